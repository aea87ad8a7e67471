"""What an operator should read once in the log: oddities of the node and what follows from choices.

The daemon logs each line the first time it appears; so no line holds anything that changes by itself.
"""

from __future__ import annotations

from devplugin.amd.caps import dmem_state
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
    lines += naming_notices(inventory, settings)
    dmem = dmem_state(inventory, settings)
    if dmem.reason:
        lines.append(f"dmem: {'on' if dmem.ok else 'off'}: {dmem.reason}")
    return tuple(lines)
