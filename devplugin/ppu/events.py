"""Events about the node's PPUs. Reasons are ours after AMD's."""

from __future__ import annotations

from devplugin.answers import NodeEvent
from devplugin.healthevents import Device, Reasons, Seen
from devplugin.healthevents import transitions as compared
from devplugin.ppu.inventory import Inventory

REASONS = Reasons("PPUUnhealthy", "PPUMissing", "PPURecovered")


def transitions(inventory: Inventory, seen: Seen | None) -> tuple[tuple[NodeEvent, ...], Seen]:
    """Events since the last registration, and what is known now.

    A card is named without its index, which moves when another one goes.
    """
    devices = {ppu.uuid: Device(f"PPU {ppu.uuid} (minor {ppu.minor})", ppu.reason) for ppu in inventory.ppus}
    return compared(devices, seen, REASONS)
