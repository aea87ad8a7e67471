"""What an operator should read once in the log: why the last look failed, what is left out, who is ill.

The daemon logs each line the first time it appears; so no line holds anything that changes by itself.
"""

from __future__ import annotations

from devplugin.ppu.inventory import Inventory
from devplugin.ppu.settings import Settings


def notices(inventory: Inventory) -> tuple[str, ...]:
    """Discovery's lines."""
    lines = []
    if inventory.trouble:
        kept = "what was offered before stays" if inventory.ppus else "nothing is offered yet"
        lines.append(f"PPUs cannot be listed, {kept}: {inventory.trouble}")
    lines += (f"not offered: {skipped.device}: {skipped.reason}" for skipped in inventory.skipped)
    lines += (
        f"PPU {ppu.index} ({ppu.uuid}): unhealthy: {ppu.reason}" for ppu in inventory.ppus if ppu.reason
    )
    if inventory.library.trouble and inventory.ppus:
        lines.append(f"every pod will be refused: {inventory.library.trouble}")
    return tuple(lines)


def details(inventory: Inventory, settings: Settings) -> tuple[str, ...]:
    """How ppu-smi's answers were read, a line for each card: for ``-v 4``."""
    lines = [f"ppu-smi: {inventory.tool or 'not asked yet'}; {settings.split} shares of each PPU"]
    lines += (
        f"PPU {ppu.index}: {ppu.name}, {ppu.memory_mib} MiB, minor {ppu.minor}, {ppu.bdf or 'no address'}, "
        f"NUMA node {ppu.numa}, {ppu.uuid}"
        for ppu in inventory.ppus
    )
    return tuple(lines)
