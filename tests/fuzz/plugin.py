"""How bytes reach the plugin's parsers in production, for those that take no bytes.

Annotations are texts; a text with half surrogates stands for what JSON's ``\\ud800`` becomes. What is read
from files is served by a node with one file exchanged. Where a second reader or a writer exists they must
agree: AssertionError is nobody's refusal.
"""

from __future__ import annotations

import argparse
import logging
import zlib
from collections.abc import Sequence
from functools import cache
from itertools import product
from typing import Any

from devplugin import cgroups, dmem, hook, settings
from devplugin.amd import cumask, events, links, partition, pcidev, sensors, taken, topology
from devplugin.amd.devices import Catalogue
from devplugin.amd.discovery import discover
from devplugin.amd.labelfacts import read_label_facts
from devplugin.amd.preference import PreferenceError, prefer
from devplugin.answers import PreferenceQuery
from devplugin.ascend import deviceconfig, ledgerfile, nodeconfig, poststart, runtimeinfo
from devplugin.hami import LOCK, Node, Pod, claim, decode, encode, parse_lock, readings
from devplugin.host import Host, Kind, Stat
from devplugin.quantity import quantity
from gpusim.ascend import reading
from gpusim.machine import Machine

from . import sound


def text(data: bytes) -> str:
    """Any bytes as a text: what is no UTF-8 becomes half surrogates."""
    return data.decode("utf-8", "surrogateescape")


def plain(data: bytes) -> str:
    """A text as an API server or a flag can carry it."""
    return data.decode("utf-8", "replace")


# Annotations


def annotation(data: bytes) -> None:
    """The plugin's codec; what it reads it writes, and reads again as the same."""
    slots = decode(text(data))
    assert decode(encode(slots)) == slots


def cu_list(data: bytes) -> None:
    """An id list of a GPU of 256 CUs."""
    mask = cumask.parse(plain(data), 256)
    assert cumask.parse(cumask.text(mask), 256) == mask


def cu_record(data: bytes) -> None:
    """A pod's record of its CUs."""
    record = taken.read_record(plain(data))
    assert taken.read_record(taken.write_record(record)) == record


def pod(**annotations: str) -> Pod:
    """A running pod with annotations by the vocabulary's short names."""
    keys = {"given": taken.VOCABULARY.allocated, "wanted": taken.VOCABULARY.to_allocate, "cus": taken.RECORD}
    found = {keys[name]: value for name, value in annotations.items()}
    found |= {"hami.io/bind-phase": "allocating", "hami.io/bind-time": "17", "hami.io/vgpu-node": "node-a"}
    return Pod("default", "a", "u", "node-a", "Pending", found)


def what_is_taken(data: bytes) -> None:
    """The rebuild from pods of whom one has this, whichever of its annotations it is."""
    told = plain(data)
    pods = [pod(given=told), pod(cus=told), pod(given=sound.annotations()[0].decode(), wanted=told)]
    for current in (None, pods[2]):
        taken.rebuild(sound.inventory(), sound.CU, pods, current)


def what_waits(data: bytes) -> None:
    """Which pod an Allocate serves, and what the log says of it."""
    told = plain(data)
    node = Node("node-a", "uid", annotations={LOCK: sound.LOCKS[0].decode()})
    for line in readings(node, [pod(wanted=told, given=told)], taken.VOCABULARY):
        assert line.isprintable(), line
    claim(node, [pod(wanted=told)], taken.VOCABULARY, ("x",))


def mode_change(data: bytes) -> None:
    """A registration about to be overwritten, while pods hold devices."""
    told = plain(data)
    pods = [pod(given=sound.annotations()[2].decode()), pod(given=told), pod(cus=told)]
    for mode in (sound.CU, sound.PARTITIONS):
        events.changed_in_use(sound.inventory(), mode, told, pods)


def lock(data: bytes) -> None:
    """The plugin's; a lock names its owner in words that may go into a path."""
    held = parse_lock(plain(data))
    assert "/" not in held.namespace + held.name


# Ids


@cache
def _catalogues() -> tuple[Catalogue, ...]:
    return tuple(Catalogue(sound.inventory(), mode) for mode in (sound.CU, sound.PARTITIONS))


def kubelet_ids(data: bytes) -> None:
    """Ids a line, as kubelet asks for them: found or not, and never a slot that was not offered."""
    for identifier in plain(data).split("\n"):
        for catalogue in _catalogues():
            catalogue.named(identifier)
            found = catalogue.slot(identifier)
            assert found is None or identifier in found[0].kubelet_ids, identifier


def preference(data: bytes) -> None:
    """GetPreferredAllocation of these ids. Its warnings would only fill pytest's memory."""
    ids = tuple(plain(data).split("\n"))
    log = logging.getLogger(prefer.__module__)
    level = log.level
    log.setLevel(logging.ERROR)
    refused: list[Exception] = []
    try:
        for mode, size in product((sound.CU, sound.PARTITIONS), (1, 2, len(ids))):
            try:
                chosen = prefer(sound.inventory(), mode, PreferenceQuery(ids, (), size))
                assert len(set(chosen)) == len(chosen)
            except PreferenceError as error:
                refused.append(error)
    finally:
        log.setLevel(level)  # other tests read what it says
    if len(refused) == 6:
        raise refused[0]


# Files


class Exchanged:
    """A node one of whose files reads otherwise."""

    def __init__(self, node: Machine, path: str, content: bytes) -> None:
        self._node, self._path, self._content = node, path, content

    def read(self, path: str) -> bytes:
        if path == self._path or path.replace("/sys/module/amdgpu/drivers/pci:amdgpu", _BOUND) == self._path:
            return self._content
        return self._node.read(path)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node, name)


_BOUND = "/sys/bus/pci/drivers/amdgpu"


def exchanged(data: bytes) -> Any:
    """The node of `sound` with the file that the first line names, or, if that is none, any."""
    name, _, content = data.partition(b"\n")
    path = plain(name)
    paths = sound.watched_paths()
    if path not in paths:
        path = paths[zlib.crc32(data) % len(paths)]
    return Exchanged(sound.machine(), path, content)


def properties(data: bytes) -> None:
    """A topology file; every number fits 64 bits."""
    found = topology.parse_properties(data)
    for name in ("simd_count", "unique_id", "size_in_bytes", "type", "vendor_id"):
        number = found.get(name)
        assert number is None or 0 <= number < 1 << 64


def kfd_node(data: bytes) -> None:
    """KFD's nodes with one whose properties are these."""
    node: Host = Exchanged(sound.machine(), f"{sound.NODES}/8/properties", data)  # type: ignore[assignment]
    found = topology.read_topology(node)
    links.link_types(node, found, [[one.index] for one in found.gpus])


def gpu_files(data: bytes) -> None:
    """Everything that is read of one GPU, by discovery, labeller and monitor."""
    node = exchanged(data)
    problems: list[str] = []
    for card in sensors.cards(node, "/sys/class/drm", problems.append):
        chips = sensors.sensor_chips(node, card)
        sensors.temperature_celsius(node, chips)
        sensors.power_watts(node, chips)
        for name in ("gpu_busy_percent", "mem_info_vram_used", "mem_info_vram_total"):
            sensors.read_number(node, f"{card.device}/{name}", problems.append)
    assert all(problem.isprintable() for problem in problems)
    pcidev.read_facts(node, sound.BDF)


def numbers(data: bytes) -> None:
    """A node on which every small file says this: the sensors, and everything of the GPU."""
    node: Any = _Same(data, ("temp1_label", "hwmon3", "card0"))
    problems: list[str] = []
    chips = ("/sys/class/hwmon/hwmon3",)
    sensors.temperature_celsius(node, chips)
    sensors.temperature_celsius(_Same(b"junction\n", ("temp2_label",)), chips)  # type: ignore[arg-type]
    sensors.power_watts(node, chips)
    sensors.read_number(node, "/sys/x", problems.append)
    assert all(problem.isprintable() for problem in problems)
    partition.kfd_processes(node)
    pcidev.read_facts(node, sound.BDF)


class _Same:
    """Every file reads the same, every directory lists the same."""

    def __init__(self, content: bytes, names: Sequence[str]) -> None:
        self.content, self.names = content, names

    def read(self, path: str) -> bytes:
        return self.content

    def write(self, path: str, data: bytes) -> int:
        return len(data)

    def list(self, path: str) -> Sequence[str]:
        return self.names

    def stat(self, path: str, *, follow: bool = True) -> Stat:
        return Stat(Kind.FILE, 0o444)


def discovery(data: bytes) -> None:
    """All of discovery, and the labeller's look: whatever a file says, the rest of the node is told."""
    node = exchanged(data)
    found = discover(node, sound.CU)
    assert all(line.isprintable() for line in (*found.warnings, *(one.reason for one in found.skipped)))
    read_label_facts(node)


def dmem_files(data: bytes) -> None:
    """dmem.max as the plugin reads it back, and any dmem file as the monitor does."""
    group = "/sys/fs/cgroup/kubepods.slice"
    problems: list[str] = []
    node: Any = _Same(data, ())
    dmem.regions(node)
    dmem.set_limits(node, group, {sound.REGION: 1 << 30})
    found = cgroups.amounts(node, f"{group}/dmem.current", problems.append)
    assert found is not None and not problems


# Ascend


def ledger(data: bytes) -> None:
    """The plugin's reader, which must agree with the simulator's."""
    found = ledgerfile.parse(data)
    other = reading.read(data)
    assert (found.limits, found.used, found.active_workers) == (
        other.limits,
        other.used,
        other.active_workers,
    )


# Words of the API and of operators


def quantities(data: bytes) -> None:
    """The plugin's reader of a Kubernetes quantity, which must agree with the simulated kubelet's."""
    quantity(text(data))


def flag(data: bytes) -> None:
    """A flag's value as each of the types."""
    refused: list[Exception] = []
    word = text(data)
    for kind in (settings.go_int, settings.go_float, settings.go_bool, settings.severity):
        try:
            kind(word)
        except argparse.ArgumentTypeError as error:
            refused.append(error)
    if len(refused) == 4:
        raise refused[0]


def hook_paths(data: bytes) -> None:
    """``-install_hook``."""
    found = hook.parse(plain(data))
    assert found.source.startswith("/")


# Ascend's configuration


def device_config(data: bytes) -> None:
    """The file that the scheduler reads, too."""
    for chip in deviceconfig.parse(data).chips:
        assert 0 < chip.allocatable_mib < 1 << 31


def node_config(data: bytes) -> None:
    """What it says of one of its nodes, and of one that it does not name."""
    nodeconfig.parse(data, "node-a")
    assert nodeconfig.parse(data, "no such node") == nodeconfig.NodeConfig()


def runtime_info(data: bytes) -> None:
    """``huawei.com/<word>`` of a pod."""
    runtimeinfo.entries(
        Pod("default", "a", "u", "n", "", {runtimeinfo.key("Ascend910B4"): text(data)}), "Ascend910B4"
    )


def release(data: bytes) -> None:
    """A scheduler's release, as its image tag says."""
    poststart.check("hami-core", plain(data), has_poststart=False, has_bash=True)
