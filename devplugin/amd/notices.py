"""What an operator should read once in the log: oddities of the node and what follows from choices.

The daemon logs each line the first time it appears; so no line holds anything that changes by itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from devplugin.amd.caps import dmem_state
from devplugin.amd.devices import LARGEST_MIB, devices
from devplugin.amd.inventory import Inventory
from devplugin.amd.offer import naming_notices
from devplugin.amd.settings import MODE_PARTITION, Settings


def notices(inventory: Inventory, settings: Settings) -> tuple[str, ...]:
    """Discovery's warnings, what is left out, soft partitioned GPUs, names, dmem."""
    lines = [*inventory.warnings]
    lines += (f"not offered: {skipped.device}: {skipped.reason}" for skipped in inventory.skipped)
    for gpu in inventory.gpus:
        if len(gpu.partitions) > 1 and not (settings.mode == MODE_PARTITION and gpu.partitionable):
            lines.append(
                f"{gpu.bdf}: partitioned and offered as one device of {gpu.cus} CUs: a pod gets its "
                f"{len(gpu.partitions)} render nodes, with one CU mask for each partition it may use"
            )
    lines += (
        f"{bdf}: unhealthy: {standing.reason}"
        for bdf, standing in inventory.health.items()
        if not standing.healthy
    )
    lines += naming_notices(inventory, settings)
    lines += _scaling_notices(inventory, settings)
    dmem = dmem_state(inventory, settings)
    if dmem.reason:
        lines.append(f"dmem: {'on' if dmem.ok else 'off'}: {dmem.reason}")
    return tuple(lines)


def _scaling_notices(inventory: Inventory, settings: Settings) -> Iterator[str]:
    """What more memory than there is asks of the node (guide-amd.md, dp.deviceMemoryScaling)."""
    soft = [device for device in devices(inventory, settings) if not device.hard]
    # CDNA is gfx9: RDNA's versions begin with 10.
    cdna = [device.gpu.bdf for device in soft if 0 < device.gpu.gfx < 100000]
    if settings.memory_scaling > 1 and cdna:
        told = f"-device_memory_scaling={settings.memory_scaling!r}: hipMalloc takes managed memory, which"
        yield f"{told} needs XNACK on {', '.join(cdna)}"
    if capped := [device.gpu.bdf for device in soft if device.memory_mib == LARGEST_MIB]:
        told = f"-device_memory_scaling: {LARGEST_MIB} MiB, the most there may be,"
        yield f"{told} are registered of {', '.join(capped)}"


def details(inventory: Inventory, settings: Settings) -> tuple[str, ...]:
    """What discovery read of each GPU and of its KFD nodes: for ``-v 4`` (guide-amd.md, dp.logVerbosity)."""
    lines = []
    for gpu in inventory.gpus:
        product = "no device id" if gpu.device_id is None else f"{gpu.device_id:04x}"
        mode = f"{gpu.compute or 'no'} partition mode, {gpu.memory or 'no'} memory mode"
        lines.append(
            f"topology: {gpu.bdf}: {product} {gpu.market_name}, id {gpu.id}, gfx {gpu.gfx}, "
            f"{gpu.vram_bytes} bytes of VRAM, NUMA node {gpu.numa}, {mode}"
            + (", can be changed" if gpu.changeable else "")
            + f", {len(gpu.xgmi_peers)} XGMI peers"
        )
        for part in gpu.partitions:
            card = "no card" if part.card is None else f"card{part.card}"
            lines.append(
                f"topology: {gpu.bdf}/{part.number}: {part.key}, KFD node {part.node}, {card}, "
                f"renderD{part.render_minor}, {part.cus} CUs, ROCr name {part.rocr_name or 'none'}"
            )
    lines += (
        f"topology: {device.key}: {len(device.kubelet_ids)} ids" for device in devices(inventory, settings)
    )
    return tuple(lines)
