"""Events about the node's NPUs. Reasons are ours after AMD's: the public plugin tells nobody."""

from __future__ import annotations

from devplugin.answers import NodeEvent
from devplugin.ascend.inventory import Inventory
from devplugin.hami.codec import clip
from devplugin.healthevents import Device, Known, Reasons, Seen
from devplugin.healthevents import transitions as compared

UNHEALTHY = "AscendNPUUnhealthy"
MISSING = "AscendNPUMissing"
RECOVERED = "AscendNPURecovered"

__all__ = ["MISSING", "RECOVERED", "UNHEALTHY", "Known", "Seen", "transitions"]


def transitions(inventory: Inventory, seen: Seen | None) -> tuple[tuple[NodeEvent, ...], Seen]:
    """Events since the last registration, and what is known now."""
    devices = {
        npu.uuid: Device(
            f"NPU {npu.card} chip {npu.device} ({npu.uuid})",
            "" if npu.healthy else f"npu-smi says {clip(npu.reason)}",
        )
        for npu in inventory.npus
    }
    return compared(devices, seen, Reasons(UNHEALTHY, MISSING, RECOVERED))
