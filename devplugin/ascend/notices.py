"""What an operator should read once in the log: why the last look failed, what is left out, who is ill.

The daemon logs each line the first time it appears; so no line holds anything that changes by itself.
"""

from __future__ import annotations

from devplugin.ascend.inventory import Inventory
from devplugin.ascend.settings import Settings
from devplugin.hami.codec import clip


def notices(inventory: Inventory, settings: Settings) -> tuple[str, ...]:
    """Discovery's lines, and what follows from the configuration."""
    lines = [*inventory.warnings]
    if inventory.trouble:
        kept = "what was offered before stays" if inventory.npus else "nothing is offered yet"
        lines.append(f"NPUs cannot be listed, {kept}: {inventory.trouble}")
    lines += (f"not offered: {skipped.device}: {skipped.reason}" for skipped in inventory.skipped)
    lines += (
        f"NPU {npu.card} chip {npu.device} ({npu.uuid}): unhealthy: npu-smi says {clip(npu.reason)}"
        for npu in inventory.npus
        if not npu.healthy
    )
    missing = settings.filtered_cards - {known.card for known in inventory.known}
    if missing and inventory.known:
        listed = ", ".join(str(card) for card in sorted(missing))
        lines.append(f"filterDevices.index: the node has no card {listed}")
    return tuple(lines)


def details(inventory: Inventory, settings: Settings) -> tuple[str, ...]:
    """How npu-smi's answers were read, a line for each chip: for ``-v 4``."""
    chip = inventory.chip
    shares = inventory.shares(settings)
    kind = "unknown" if chip is None else f"{chip.chip} as {chip.resource}, {chip.allocatable_mib} MiB"
    lines = [f"npu-smi: {inventory.tool or 'not asked yet'}; chips: {kind}; {shares} shares of each"]
    lines += (
        f"NPU {npu.card} chip {npu.device}: {npu.name}, logic id {npu.logic}, phy id {npu.phy}, {npu.uuid}"
        for npu in inventory.npus
    )
    return tuple(lines)
