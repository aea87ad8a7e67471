"""Ascend's rows of the scheduler's table, one per chip of a device configuration: ascend_ppu_hami.md D.9.

``vnpus:`` of the configuration that plugin and scheduler share (A.2), as a plain mapping in either
layout. The row says how requests are read and what is written into a pod; admission is
`scheduler_ascend_admission`, which devices go together `scheduler_ascend_topology`.

Kept as upstream has it, because the plugin has to live with it: slices hold memory and no AI cores, so
that a card whose cores are used up by a vNPU nobody wanted fails at the container's start only (G 3); a
bad number makes the request empty, so that the pod is bound without annotations or a lock.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from gpusim.ascend.chips import CHIPS
from gpusim.cluster.scheduler_ascend_admission import Chip, Template, admit
from gpusim.cluster.scheduler_ascend_topology import pairs, same_network, share
from gpusim.cluster.scheduler_block import BadDeviceConfigError, Block
from gpusim.cluster.scheduler_vendors import (
    INT32,
    Request,
    Resources,
    Slots,
    Vendor,
    negative,
    percent_of_card,
    whole,
)

MODE_KEY = "huawei.com/vnpu-mode"
SOFT_KEY = "hami-vnpu-core"
PREDICATE_TIME = "predicate-time"
_MODES = {"template": False, "hami-core": True, "hamicore": True, "enpu": False}
_WORDS = {"310P3": "Ascend310P"}
"""Chip → common word where it is not ``Ascend<chip>`` (A.3)."""


def ascend_vendors(config: Mapping[str, Any] | None = None, *, release: str = "2.10") -> tuple[Vendor, ...]:
    """A row per common word; of two entries with one common word the last holds.

    Args:
        config: the device configuration; the shipped one (`shipped`) unless given. Without ``vnpus`` it has
            no row.
        release: of HAMi: before 2.10 its webhook injects a PostStart hook into soft containers (A.8).

    Raises:
        BadDeviceConfigError: the configuration cannot be used; the text names the key.
    """
    root = Block("", config if config is not None else shipped())
    vnpus = root.data.get("vnpus")
    if vnpus is None:
        return ()
    # a plain list up to HAMi 2.8, with the switch beside it; a mapping since (A.2)
    block = root if isinstance(vnpus, list) else root.block("vnpus")
    entries = block.blocks("vnpus" if isinstance(vnpus, list) else "configs")
    soft = _soft(block)
    chips = [_chip(entry, hook=_older(release)) for entry in entries]
    return tuple({chip.word: vendor_of(chip, soft=soft) for chip in chips}.values())


def shipped(*, soft: bool = False, super_pod: bool = False) -> dict[str, Any]:
    """The shipped configuration as HAMi's chart has it: every chip of A.3, all with a core resource."""
    configs = []
    for chip in CHIPS.values():
        word = _WORDS.get(chip.name, f"Ascend{chip.name}")
        templates = [
            {"name": t.name, "memory": t.memory_mib, "aiCore": t.ai_cores, "aiCPU": t.ai_cpus}
            for t in chip.templates
        ]
        configs.append(
            {
                "chipName": chip.label,
                "commonWord": word,
                "resourceName": f"huawei.com/{word}",
                "resourceMemoryName": f"huawei.com/{word}-memory",
                "resourceCoreName": f"huawei.com/{word}-core",
                "memoryAllocatable": chip.memory_mib,
                "memoryCapacity": 24576 if chip.name == "310P3" else chip.memory_mib,
                "aiCore": chip.ai_cores,
                "aiCPU": chip.ai_cpus,
                "superPod": super_pod and chip.name == "910C",
                "templates": templates,
            }
        )
    return {"vnpus": {"hamiVnpuCore": soft, "configs": configs}}


def vendor_of(chip: Chip, *, soft: bool = False) -> Vendor:
    """The row of one chip; `soft`: what holds for nodes that do not say their mode."""
    word = chip.word
    many = word.startswith("Ascend910")
    return Vendor(
        word=word,
        name=word,
        register=f"hami.io/node-register-{word}",
        handshake=f"hami.io/node-handshake-{word}",
        count=chip.count,
        memory=chip.memory,
        cores=chip.cores,
        use_types="",
        avoid_types="",
        use_ids=f"hami.io/use-{word}-uuid",
        avoid_ids=f"hami.io/no-use-{word}-uuid",
        read=partial(_read, chip),
        check=partial(admit, chip),
        cores_of=percent_of_card,
        padded=True,
        legacy=True,
        mode_key=MODE_KEY,
        soft_key=SOFT_KEY,
        soft=soft,
        combine=pairs if word == "Ascend910C" else same_network if many else None,
        notes=partial(_notes, chip),
        score=share if many else None,
    )


def _read(chip: Chip, vendor: Vendor, asked: Resources) -> tuple[Request, ...]:
    """Limits, then requests; what is negative or too big empties the request, a fraction counts as absent."""
    count = whole(asked.get(vendor.count))
    if count is None or not 1 <= count < INT32:
        return ()
    memory, cores = _amount(asked.get(vendor.memory)), _amount(asked.get(vendor.cores))
    if memory is None or cores is None:
        return ()
    memory *= max(1, chip.factor)
    if memory >= INT32 or cores >= INT32:
        return ()
    return (Request(vendor.word, count, memory, cores, memory_percent=0 if memory else 100),)


def _amount(text: str | None) -> int | None:
    """A quantity; 0 when it is absent or a fraction, None when it is negative."""
    return 0 if text is None else None if negative(text) else whole(text) or 0


def _notes(chip: Chip, slots: Slots, soft: bool, now: int) -> dict[str, str]:
    """The runtime information: one entry per device over all containers, zeros left out (D.5)."""
    listed = []
    for device in (one for slot in slots for one in slot):
        temp = "" if soft else chip.trim(device.memory_mib)[1]
        entry = {"UUID": device.id, "temp": temp, "memory": device.memory_mib, "core": device.cores}
        listed.append({key: value for key, value in entry.items() if value})
    return {f"huawei.com/{chip.word}": json.dumps(listed, separators=(",", ":")), PREDICATE_TIME: str(now)}


def _chip(entry: Block, *, hook: bool) -> Chip:
    templates = tuple(
        Template(one.text("name"), one.number("memory", least=1)) for one in entry.blocks("templates")
    )
    return Chip(
        word=entry.text("commonWord"),
        count=entry.text("resourceName"),
        memory=entry.text("resourceMemoryName"),
        cores=entry.text("resourceCoreName", ""),
        allocatable=entry.number("memoryAllocatable", least=1),
        capacity=entry.number("memoryCapacity", 0) or entry.number("memoryAllocatable"),
        factor=entry.number("memoryFactor", 0),
        templates=tuple(sorted(templates, key=lambda t: t.memory_mib)),
        super_pod=entry.flag("superPod"),
        runtime_class=entry.text("runtimeClassName", ""),
        overwrite_env=entry.flag("overwriteEnv"),
        hook=hook,
    )


def _soft(block: Block) -> bool:
    """Whether nodes make soft slices that do not say so; the newer key, where it stands, overrules (A.2)."""
    mode = block.text("hamiVnpuMode", "").strip().lower()
    if mode and mode not in _MODES:
        raise BadDeviceConfigError(
            f"{block.path}.hamiVnpuMode: expected template, hami-core or enpu, got {mode!r}"
        )
    return _MODES[mode] if mode else block.flag("hamiVnpuCore")


def _older(release: str) -> bool:
    """Whether a release of HAMi is older than 2.10."""
    parts = release.lstrip("v").split(".")
    if len(parts) < 2 or not all(part.isascii() and part.isdigit() for part in parts[:2]):
        raise BadDeviceConfigError(f"release {release!r} is none: expected 2.9, v2.10.0, …")
    return (int(parts[0]), int(parts[1])) < (2, 10)
