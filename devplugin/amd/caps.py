"""How much VRAM the kernel should let each pod have: the desired dmem limits, from what pods were given.

A pod's cgroup has one limit for each GPU, whatever partitions or containers use it: the sum over the
slots its containers have consumed so far on that GPU (decision 29). Hard devices and requests for whole
GPUs have none (decision 22). Writing them is `devplugin.daemon.caps`. amd.md 7; decisions 8, 22, 29, 31.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from devplugin.amd.devices import MIB, Catalogue, Device
from devplugin.amd.inventory import Gpu, Inventory
from devplugin.amd.settings import Settings
from devplugin.amd.taken import VOCABULARY
from devplugin.amd.uuid import strip_mode
from devplugin.answers import Caps, PodCap
from devplugin.dmem import Usable, region_of
from devplugin.hami import CodecError, ContainerDevice, Pod, decode


def dmem_state(inventory: Inventory, settings: Settings) -> Usable:
    """Whether slices are limited by dmem; when they are, `reason` names GPUs that are not (decision 31)."""
    if not settings.dmem_backend:
        return Usable(False, "switched off by -dmem_backend=false")
    if not inventory.dmem.ok or not inventory.gpus:
        return inventory.dmem
    host = [gpu.bdf for gpu in inventory.gpus if gpu.host_memory]
    without = [gpu.bdf for gpu in inventory.gpus if not gpu.host_memory and _region(gpu, inventory) is None]
    if len(host) == len(inventory.gpus):
        return Usable(False, "every GPU works in host memory, which no dmem region limits")
    if len(host) + len(without) == len(inventory.gpus):
        # Also the state of every in-tree amdgpu before 6.15 (kernel.md 4.1).
        return Usable(
            False, "no GPU has a region in dmem.capacity (the in-tree driver makes them since 6.15)"
        )
    said = [f"no region in dmem.capacity, so not limited: {', '.join(without)}"] if without else []
    said += [f"works in host memory, so not limited: {', '.join(host)}"] if host else []
    return Usable(True, "; ".join(said)) if said else inventory.dmem


def limited_regions(inventory: Inventory, settings: Settings) -> dict[str, str]:
    """BDF → region of every GPU whose slices dmem limits; empty when it is off.

    Not an APU's: what its runtime allocates is host memory, so a limit of its VRAM would hold nothing (B13).
    """
    if not dmem_state(inventory, settings).ok:
        return {}
    found = ((gpu.bdf, _region(gpu, inventory)) for gpu in inventory.gpus if not gpu.host_memory)
    return {bdf: region for bdf, region in found if region is not None}


def _region(gpu: Gpu, inventory: Inventory) -> str | None:
    return region_of(gpu.bdf, inventory.dmem_regions)


def caps(inventory: Inventory, settings: Settings, pods: Sequence[Pod]) -> Caps:
    """The limits of every pod that has consumed a slice and lives.

    A slot that gives all memory of a GPU has no limit. Beside a slice of the same GPU in the same pod it
    counts as the whole card, which is also the most any limit says (decision 8).

    Args:
        inventory: GPUs and regions.
        settings: operating mode (which devices are hard) and the dmem switch.
        pods: every pod bound to the node.

    Returns:
        Pods in the order given, regions in that of `Inventory.gpus`. A pod whose record cannot be read is
        not limited and a warning says so; neither is the share of a device that is not here.
    """
    regions = limited_regions(inventory, settings)
    if not regions:
        return Caps()
    catalogue = Catalogue(inventory, settings)
    known = {gpu.id for gpu in inventory.gpus}.union(*(gpu.ids for gpu in inventory.gpus))
    found: list[PodCap] = []
    warnings: list[str] = []
    for pod in pods:
        if pod.terminal or not pod.annotations.get(VOCABULARY.allocated):
            continue
        try:
            slots = list(_consumed(pod))
        except CodecError as error:
            warnings.append(f"pod {pod}: its devices cannot be read, so dmem does not limit it: {error}")
            continue
        asked = [[(catalogue.named(entry.id), entry) for entry in slot] for slot in slots]
        warnings += (
            f"pod {pod}: {VOCABULARY.allocated} names device {entry.id}, unknown here, not limited"
            for slot in asked
            for device, entry in slot
            if device is None and strip_mode(entry.id) not in known
        )
        limits = _limits(_total(asked), inventory.gpus, regions)
        if limits:
            found.append(PodCap(pod, limits))
    return Caps(tuple(found), tuple(dict.fromkeys(warnings)))


def _consumed(pod: Pod) -> Iterator[tuple[ContainerDevice, ...]]:
    """Slots of `devices-allocated` that are empty in `devices-to-allocate` by now; raises CodecError."""
    given = decode(pod.annotations[VOCABULARY.allocated])
    pending = decode(pod.annotations.get(VOCABULARY.to_allocate, ""))
    for index, slot in enumerate(given):
        if index >= len(pending) or not pending[index]:
            yield slot


def _total(asked: Sequence[Sequence[tuple[Device | None, ContainerDevice]]]) -> dict[str, int]:
    """BDF → MiB over all slots, of GPUs that some slot has a part of.

    A request is whole as a whole: one slice in it limits its other soft devices too, at their own size
    (amd.md 7).
    """
    amounts: dict[str, int] = {}
    everything: dict[str, int] = {}
    for slot in asked:
        soft = [(device, entry) for device, entry in slot if device is not None and not device.hard]
        sliced = any(device.sliced(entry.memory_mib, entry.cores) for device, entry in soft)
        for device, entry in soft:
            into = amounts if sliced and entry.memory_mib else everything
            into[device.gpu.bdf] = into.get(device.gpu.bdf, 0) + (entry.memory_mib or device.memory_mib)
    return {bdf: amount + everything.get(bdf, 0) for bdf, amount in amounts.items()}


def _limits(amounts: Mapping[str, int], gpus: Sequence[Gpu], regions: Mapping[str, str]) -> dict[str, int]:
    """Region → bytes, never more than the card has."""
    return {
        regions[gpu.bdf]: min(amounts[gpu.bdf] * MIB, gpu.vram_bytes)
        for gpu in gpus
        if gpu.bdf in amounts and gpu.bdf in regions
    }
