"""Which parser reads which input in production, what it documents for what it refuses, and how much of it.

A row whose input is of one of the five kinds that others write for us says which; these rows alone have more
than 100,000 inputs.
"""

from __future__ import annotations

import argparse
import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from devplugin import kubejson
from devplugin.amd.cumask import CuError
from devplugin.amd.pcidev import UnusableError
from devplugin.amd.preference import PreferenceError
from devplugin.amd.registered import RegistrationError, read_registration
from devplugin.amd.taken import RecordError
from devplugin.amd.topology import TopologyError
from devplugin.ascend import smi as npusmi
from devplugin.ascend.ledgerfile import NoLedgerError
from devplugin.ascend.poststart import ReleaseError
from devplugin.ascend.runtimeinfo import RuntimeInfoError
from devplugin.ascend.smi import SmiError
from devplugin.configfile import ConfigError
from devplugin.hami import CodecError, LockError, NoClaim
from devplugin.hook import HookError
from devplugin.imageref import ImageNameError, normalise
from devplugin.libc import VersionError, glibc_version
from devplugin.ppu import smi as ppusmi
from devplugin.ppu.registered import RegistrationError as PpuRegistrationError
from devplugin.ppu.statefile import NoStateError
from devplugin.settings import SettingsError, bind_address
from devplugin.vendortool import ToolError
from gpusim.ascend.runtime import BadQuotaError
from gpusim.ascend.shm import UnknownLedgerError
from gpusim.cluster import (
    resourcenames,
    scheduler_devices,
    scheduler_ledger,
    scheduler_legacy,
    scheduler_lock,
)
from gpusim.cluster.apistatus import ApiError
from gpusim.cluster.kubelet_checkpoint import CheckpointError
from gpusim.cluster.scheduler_block import BadDeviceConfigError
from gpusim.errors import GpusimError
from gpusim.fixture import BadFixture
from gpusim.ppu.environment import BadLimitError
from gpusim.ppu.layout import UnknownStateError
from gpusim.snapshots.shape import PackError
from gpusim.testing.parsers import Parser, ParserError
from gpusim.testing.trace import BadTrace
from gpusim.wire import GarbledError

from . import plugin, ppu, simulator, sound, sound_others

_Refuses = type[Exception] | tuple[type[Exception], ...]


@dataclass(frozen=True)
class Row:
    """A parser, and how many inputs it gets in the suite."""

    name: str
    parse: Callable[[bytes], object]
    sound: Callable[[], Sequence[bytes]]
    refuses: _Refuses
    runs: int
    kind: str = ""
    """``properties``, ``annotation``, ``ids``, ``dmem`` or ``fixture``."""
    one_line: bool = False
    """It refuses with a line that a log can have (decision 25)."""
    errnos: frozenset[int] = frozenset()
    moment: float = 0.05

    def parser(self) -> Parser:
        """With its sound inputs made."""
        refuses = self.refuses if isinstance(self.refuses, tuple) else (self.refuses,)
        return Parser(
            self.name,
            self.parse,
            self.sound(),
            refuses,
            errnos=self.errnos,
            one_line=self.one_line,
            moment=self.moment,
        )


def again(error: ParserError) -> str:
    """The command that does it again."""
    number = f" --number {error.number}" if error.number >= 0 else ""
    return f"again: bin/fuzz {error.parser} --seed {error.seed}{number}"


def _always(*inputs: bytes) -> Callable[[], Sequence[bytes]]:
    return lambda: inputs


def _ppu_smi(name: str, parse: Callable[[str], object], *words: str) -> Row:
    """A reader of what ``ppu-smi`` prints."""
    return Row(
        name,
        lambda data: parse(plugin.plain(data)),
        lambda: ppu.says(*words),
        ToolError,
        1500,
        one_line=True,
    )


def _smi(name: str, parse: Callable[[str], object], *words: str) -> Row:
    """A reader of what ``npu-smi info`` prints."""
    return Row(
        name,
        lambda data: parse(plugin.plain(data)),
        lambda: sound_others.npu_smi_says("info", *words),
        SmiError,
        2000,
        one_line=True,
    )


NOTHING: _Refuses = ()
"""It takes whatever comes, and tells in its answer what it could not use."""

ROWS = (
    # Annotations of pods and nodes
    Row(
        "annotation",
        plugin.annotation,
        sound.annotations,
        CodecError,
        15000,
        kind="annotation",
        one_line=True,
    ),
    Row(
        "cu-list",
        plugin.cu_list,
        _always(b"0-3,8,16-31", b" 5 , 7-9,, 255", b""),
        CuError,
        15000,
        kind="ids",
        one_line=True,
    ),
    Row("cu-record", plugin.cu_record, sound.records, RecordError, 5000, kind="annotation", one_line=True),
    Row("taken", plugin.what_is_taken, sound.annotations, NOTHING, 2000, kind="annotation"),
    Row("taken-record", plugin.what_is_taken, sound.records, NOTHING, 2000, kind="annotation"),
    Row(
        "claim",
        plugin.what_waits,
        lambda: sound.annotations()[:2],
        NoClaim,
        4000,
        kind="annotation",
        one_line=True,
    ),
    Row(
        "registration",
        lambda data: read_registration(plugin.plain(data)),
        sound.registrations,
        RegistrationError,
        5000,
        kind="annotation",
        one_line=True,
    ),
    Row("mode-change", plugin.mode_change, sound.registrations, NOTHING, 2000, kind="annotation"),
    Row("lock", plugin.lock, _always(*sound.LOCKS), LockError, 8000, kind="annotation", one_line=True),
    Row(
        "runtime-info",
        plugin.runtime_info,
        _always(*sound_others.RUNTIME_INFOS),
        RuntimeInfoError,
        3000,
        kind="annotation",
        one_line=True,
    ),
    # Files of the node
    Row(
        "properties",
        plugin.properties,
        sound.properties,
        TopologyError,
        18000,
        kind="properties",
        one_line=True,
    ),
    Row("kfd-node", plugin.kfd_node, sound.properties, NOTHING, 2000, kind="properties"),
    Row("gpu-files", plugin.gpu_files, sound.files, UnusableError, 4000, one_line=True),
    Row(
        "number-files",
        plugin.numbers,
        _always(b"309220868096\n", b"1048576"),
        UnusableError,
        4000,
        one_line=True,
    ),
    Row("discovery", plugin.discovery, sound.files, NOTHING, 1000),
    Row("dmem-files", plugin.dmem_files, _always(*sound.DMEM_FILES), NOTHING, 8000, kind="dmem"),
    Row("ledger", plugin.ledger, sound_others.ledgers, NoLedgerError, 3000, one_line=True),
    Row("device-config", plugin.device_config, sound_others.device_configs, ConfigError, 2000, one_line=True),
    Row(
        "node-config",
        plugin.node_config,
        sound_others.node_configs,
        ConfigError,
        2000,
        one_line=True,
    ),
    _smi("smi-map", npusmi.chips, "-m"),
    _smi("smi-health", npusmi.health),
    _smi("smi-board", npusmi.board, "-t", "board", "-i", "N", "-c", "0"),
    _smi("smi-place", npusmi.place, "-t", "phyid-remap", "-p", "0"),
    _smi("smi-vnpus", npusmi.vnpus, "-t", "info-vnpu", "-i", "N", "-c", "0"),
    _ppu_smi("ppu-rows", ppusmi.rows, *ppusmi.QUERY),
    _ppu_smi("ppu-minors", ppusmi.minors, *ppusmi.LONG),
    _ppu_smi("ppu-uses", ppusmi.uses),
    Row("ppu-config", ppu.device_config, ppu.configs, ConfigError, 1500, one_line=True),
    Row("ppu-state", ppu.state_file, sound_others.state_files, NoStateError, 1000, one_line=True),
    Row(
        "ppu-registration",
        ppu.registration,
        _always(*ppu.REGISTRATIONS),
        PpuRegistrationError,
        1500,
        one_line=True,
    ),
    Row("ppu-preload", ppu.preload, _always(*ppu.PRELOADS), NOTHING, 1000),
    Row("libc", glibc_version, sound.libcs, VersionError, 1000, one_line=True, moment=0.5),
    # Of kubelet, the API server and operators
    Row("kubelet-ids", plugin.kubelet_ids, sound.kubelet_ids, NOTHING, 8000, kind="ids"),
    Row("preference", plugin.preference, sound.kubelet_ids, PreferenceError, 1500, kind="ids"),
    Row(
        "pods",
        kubejson.read_pods,
        sound.pods,
        (msgspec.ValidationError, msgspec.DecodeError),
        4000,
    ),
    Row("quantity", plugin.quantities, _always(*sound.QUANTITIES), NOTHING, 3000),
    Row(
        "image",
        lambda data: normalise(plugin.text(data)),
        _always(*sound.IMAGES),
        ImageNameError,
        3000,
        one_line=True,
    ),
    Row("flag", plugin.flag, _always(*sound.FLAGS), argparse.ArgumentTypeError, 3000, one_line=True),
    Row("release", plugin.release, _always(*sound_others.RELEASES), ReleaseError, 1000, one_line=True),
    Row("hook-paths", plugin.hook_paths, _always(*sound.HOOKS), HookError, 1000, one_line=True),
    Row(
        "address",
        lambda data: bind_address(plugin.text(data)),
        _always(*sound.ADDRESSES),
        SettingsError,
        1000,
        one_line=True,
    ),
    # The simulator's
    Row("fixture", simulator.fixture_text, sound.fixtures, BadFixture, 6000, kind="fixture"),
    Row(
        "dmem-write",
        simulator.dmem_write,
        _always(*sound.DMEM_WRITES),
        NOTHING,
        10000,
        kind="dmem",
        errnos=frozenset({errno.EINVAL}),
    ),
    Row("simulators-ledger", simulator.simulators_ledger, sound_others.ledgers, UnknownLedgerError, 1500),
    Row("quota", simulator.quota, _always(*sound_others.QUOTAS), BadQuotaError, 2000),
    Row("npu-smi", simulator.npu_smi, _always(*sound_others.NPU_SMI), NOTHING, 1500),
    Row("ppu-smi", simulator.ppu_smi, _always(*sound_others.PPU_SMI), NOTHING, 1500),
    Row("ppu-limit", simulator.ppu_limit, _always(*sound_others.QUOTAS), BadLimitError, 1000),
    Row("state-file", simulator.state_file, sound_others.state_files, UnknownStateError, 1000),
    Row(
        "scheduler-config",
        simulator.scheduler_configuration,
        sound_others.device_configs,
        BadDeviceConfigError,
        1000,
    ),
    Row("pack", simulator.packed, sound.packs, PackError, 1500),
    Row("pack-body", simulator.pack_body, sound.pack_bodies, PackError, 3000),
    Row("fault-plan", simulator.fault_plan, sound.plans, GpusimError, 2000),
    Row("trace", simulator.traced, sound.traces, BadTrace, 1000),
    Row("frames", simulator.frames, _always(*sound.FRAMES), GarbledError, 1500),
    Row("frame-header", simulator.frame_of, _always(sound.FRAMES[0][8:]), GarbledError, 1500),
    Row("checkpoint", simulator.checkpoint, sound.checkpoints, CheckpointError, 1500),
    Row("device-rules", simulator.device_rules, _always(*sound.RULES), GpusimError, 1500),
    Row(
        "scheduler-annotation",
        simulator.scheduler_annotation,
        sound.annotations,
        scheduler_ledger.LedgerError,
        4000,
        kind="annotation",
    ),
    Row(
        "scheduler-registration",
        simulator.scheduler_registration,
        sound.registrations,
        scheduler_devices.RegistrationError,
        3000,
        kind="annotation",
    ),
    Row(
        "legacy-registration",
        simulator.legacy_registration,
        _always(b"id-1,10,16384,100,Ascend910B4,0,true,1,hami-core:id-2,1,1,1,t,-1,false:"),
        scheduler_legacy.LegacyError,
        2000,
        kind="annotation",
    ),
    Row(
        "scheduler-lock",
        simulator.scheduler_lock_text,
        _always(*sound.LOCKS),
        scheduler_lock.LockError,
        3000,
        kind="annotation",
    ),
    Row(
        "kubelet-quantity",
        simulator.kubelet_quantity,
        _always(*sound.QUANTITIES),
        resourcenames.QuantityError,
        2000,
    ),
    Row("patch", simulator.json_patch, sound.patches, ApiError, 2000),
    Row("field-selector", simulator.selectors, _always(*sound.SELECTORS), ApiError, 1500),
    Row("label-selector", simulator.labels, _always(*sound.LABELS), ApiError, 1500),
)
BY_NAME = {row.name: row for row in ROWS}
