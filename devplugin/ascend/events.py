"""Events about the node's NPUs: one got ill, is gone, or is well again.

Reasons are ours after AMD's: the public plugin tells nobody. One registration is compared with the one
before; the first of a life is only a baseline.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from devplugin.ascend.inventory import Inventory, Npu
from devplugin.hami.codec import clip
from devplugin.vendor import NodeEvent

UNHEALTHY = "AscendNPUUnhealthy"
MISSING = "AscendNPUMissing"
RECOVERED = "AscendNPURecovered"


@dataclass(frozen=True, slots=True)
class Known:
    """One NPU as it was last seen."""

    what: str
    """``NPU 4 chip 0 (<uuid>)``."""
    state: str
    """``healthy``, ``ill`` or ``missing``."""


Seen = Mapping[str, Known]
"""UUID → what was last said of it."""


def transitions(inventory: Inventory, seen: Seen | None) -> tuple[tuple[NodeEvent, ...], Seen]:
    """Events since the last registration, by UUID, and what is known now.

    Args:
        inventory: now; after a look that failed it is the one before, and says nothing.
        seen: what was known then; None: nothing yet.
    """
    now = {npu.uuid: Known(_what(npu), "healthy" if npu.healthy else "ill") for npu in inventory.npus}
    if seen is None:
        return (), now
    reasons = {npu.uuid: npu.reason for npu in inventory.npus}
    events: list[NodeEvent] = []
    after = dict(now)
    for uuid in sorted(now.keys() | seen.keys()):
        before, known = seen.get(uuid), now.get(uuid)
        if known is None:
            after[uuid] = Known(seen[uuid].what, "missing")
            if seen[uuid].state != "missing":
                events.append(NodeEvent("Warning", MISSING, f"{seen[uuid].what} is missing"))
        elif known.state == "ill":
            if before is None or before.state != "ill":
                told = f"{known.what} is unhealthy: npu-smi says {clip(reasons[uuid])}"
                events.append(NodeEvent("Warning", UNHEALTHY, told))
        elif before is not None and before.state != "healthy":
            events.append(NodeEvent("Normal", RECOVERED, f"{known.what} is healthy again"))
    return tuple(events), after


def _what(npu: Npu) -> str:
    return f"NPU {npu.card} chip {npu.device} ({npu.uuid})"
