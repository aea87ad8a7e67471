"""The devices a node offers, in either mode, and what an id that somebody wrote means here.

A whole GPU is soft (shared by slots, in CUs and MiB) in cu mode; in partition mode a GPU that can change
its partition contributes its partitions as hard devices instead (decision 13). Ids come back to us in
several spellings (amd.md 5.3, decisions 10, 13): registered id, an older id with ``#mode``, kubelet's
``<key>#…``, ROCr's name, and ``…AMDGPU-<n>`` of older HAMi.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from devplugin.amd.inventory import Gpu, Inventory, Partition
from devplugin.amd.settings import MODE_PARTITION, Settings
from devplugin.amd.uuid import strip_mode

MIB = 1024 * 1024
GIB = 1024 * MIB
LARGEST_MIB = 2**31 - 1

_SLOT = re.compile(r"0|[1-9][0-9]{0,5}")
_FLAT = re.compile(r".*AMDGPU-(0|[1-9][0-9]{0,5})")


@dataclass(frozen=True, slots=True)
class Device:
    """One registered device: a whole GPU (`partition` None) or one partition of it."""

    id: str
    gpu: Gpu
    partition: Partition | None
    hard: bool
    """Given to one pod as a whole: no CU mask, no memory limit (decision 22)."""
    slots: int
    """Sharers; 1 for a hard device."""
    memory_mib: int
    """Registered memory."""
    key: str
    """First half of kubelet's ids: BDF, or the platform device's name (decision 13)."""

    @property
    def agents(self) -> tuple[Partition, ...]:
        """The KFD nodes a container gets with it: in cu mode all of a partitioned GPU (decision 9)."""
        return self.gpu.partitions if self.partition is None else (self.partition,)

    @property
    def cus(self) -> int:
        """Compute units it has."""
        return sum(agent.cus for agent in self.agents)

    @property
    def first_cu(self) -> int:
        """Where its CUs start within those of its GPU."""
        if self.partition is None:
            return 0
        return sum(p.cus for p in self.gpu.partitions[: self.gpu.partitions.index(self.partition)])

    def sliced(self, memory_mib: int, cores: int) -> bool:
        """Whether a share is less than the whole device (amd.md 5.4); a hard one never is (decision 22).

        0 MiB is all memory; so are 0 CUs all of them, unless the memory is less (amd.md 5.5).
        """
        return not self.hard and (0 < cores < self.cus or 0 < memory_mib < self.memory_mib)

    @property
    def kubelet_ids(self) -> tuple[str, ...]:
        """``<bdf>#<slot>`` for each slot of a soft device, ``<key>#<mode>`` of a hard one."""
        if self.hard:
            return (f"{self.key}#{self.gpu.compute}",)
        return tuple(f"{self.key}#{slot}" for slot in range(self.slots))


def whole_memory_mib(gpu: Gpu) -> int:
    """Registered memory of a whole GPU: the kernel's number in MiB (decision 6)."""
    return gpu.vram_bytes // MIB


def share_memory_mib(gpu: Gpu) -> int:
    """Registered memory of one partition: an equal part of the card's VRAM in whole GiB (decision 7)."""
    if gpu.whole:
        return whole_memory_mib(gpu)
    return -(-gpu.vram_bytes // GIB) * (GIB // MIB) // gpu.ways


def scaled_memory_mib(gpu: Gpu, settings: Settings) -> int:
    """Registered memory of a soft device: the whole GPU's times the factor, in whole MiB (decision 8).

    The factor counts as the decimal number it was written as: 0.29 of 100 MiB are 29, which floats would
    miss. Never above what a device may have (the scheduler reads an int32, amd.md 2.5), and never 0, which
    consumers read as "all".
    """
    exact = whole_memory_mib(gpu) * Fraction(repr(settings.memory_scaling))
    return max(1, min(int(exact), LARGEST_MIB))


def split_count(gpu: Gpu, settings: Settings) -> int:
    """Sharers of a soft GPU: the flag, else 2 on gfx12 and later and 10 otherwise (amd.md 14.1)."""
    return settings.split_count or (2 if gpu.gfx >= 120000 else 10)


def devices_of(gpu: Gpu, settings: Settings) -> tuple[Device, ...]:
    """What one GPU contributes: itself, or in partition mode its partitions."""
    if settings.mode == MODE_PARTITION and gpu.partitionable:
        return tuple(
            Device(
                id=identifier,
                gpu=gpu,
                partition=partition,
                hard=True,
                slots=1,
                memory_mib=share_memory_mib(gpu),
                key=partition.key,
            )
            for partition, identifier in zip(gpu.partitions, gpu.ids, strict=True)
        )
    return (
        Device(
            id=gpu.id,
            gpu=gpu,
            partition=None,
            hard=False,
            slots=split_count(gpu, settings),
            memory_mib=scaled_memory_mib(gpu, settings),
            key=gpu.bdf,
        ),
    )


def devices(inventory: Inventory, settings: Settings) -> tuple[Device, ...]:
    """Every registered device, GPU by GPU in inventory order, partitions in theirs."""
    return tuple(device for gpu in inventory.gpus for device in devices_of(gpu, settings))


class Catalogue:
    """The registered devices, findable by every spelling of an id."""

    def __init__(self, inventory: Inventory, settings: Settings) -> None:
        self.devices = devices(inventory, settings)
        self.by_id: Mapping[str, Device] = {device.id: device for device in self.devices}
        self._by_key = {device.key: device for device in self.devices}
        self._by_rocr = {
            device.agents[0].rocr_name: device
            for device in self.devices
            if len(device.agents) == 1 and device.agents[0].rocr_name
        }

    def named(self, identifier: str) -> Device | None:
        """The device that an annotation's id means, None when this node offers none of that name."""
        plain = strip_mode(identifier)
        found = self.by_id.get(plain) or self._by_rocr.get(plain)
        if found is None and (flat := _FLAT.fullmatch(plain)):
            return self._flat(int(flat[1]))
        if found is None and "#" in identifier:
            found = self._by_key.get(identifier.partition("#")[0])
        return found

    def slot(self, kubelet_id: str) -> tuple[Device, int] | None:
        """The device and slot number of one of *our* kubelet ids; None for an id we do not offer."""
        key, separator, rest = kubelet_id.rpartition("#")
        device = self._by_key.get(key)
        if device is None or not separator:
            return None
        if device.hard:
            return (device, 0) if rest == device.gpu.compute else None
        if not _SLOT.fullmatch(rest) or int(rest) >= device.slots:
            return None
        return device, int(rest)

    def _flat(self, number: int) -> Device | None:
        """The device of the n-th slot, counted through all soft devices in order (amd.md 4.2)."""
        for device in self.devices:
            if device.hard:
                continue
            if number < device.slots:
                return device
            number -= device.slots
        return None
