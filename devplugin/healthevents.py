"""Events about a node's devices: one got ill, is gone, or is well again.

For vendors whose tool says of each device whether it is well: one registration is compared with the one
before; the first of a life is only a baseline.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from devplugin.answers import NodeEvent


@dataclass(frozen=True, slots=True)
class Reasons:
    """What a vendor calls the three events."""

    unhealthy: str
    missing: str
    recovered: str


@dataclass(frozen=True, slots=True)
class Device:
    """One device as it is now."""

    what: str
    """As messages name it: ``NPU 4 chip 0 (<uuid>)``."""
    trouble: str = ""
    """Why it is ill: ``npu-smi says Alarm``; empty: it is well."""


@dataclass(frozen=True, slots=True)
class Known:
    """One device as it was last seen."""

    what: str
    state: str
    """``healthy``, ``ill`` or ``missing``."""


Seen = Mapping[str, Known]
"""UUID → what was last said of it."""


def transitions(
    devices: Mapping[str, Device], seen: Seen | None, reasons: Reasons
) -> tuple[tuple[NodeEvent, ...], Seen]:
    """Events since the last registration, by UUID, and what is known now.

    Args:
        devices: now, by UUID; after a look that failed they are those of the one before, and say nothing.
        seen: what was known then; None: nothing yet.
        reasons: the vendor's.
    """
    now = {uuid: Known(one.what, "ill" if one.trouble else "healthy") for uuid, one in devices.items()}
    if seen is None:
        return (), now
    events: list[NodeEvent] = []
    after = dict(now)
    for uuid in sorted(now.keys() | seen.keys()):
        before, known = seen.get(uuid), now.get(uuid)
        if known is None:
            after[uuid] = Known(seen[uuid].what, "missing")
            if seen[uuid].state != "missing":
                events.append(NodeEvent("Warning", reasons.missing, f"{seen[uuid].what} is missing"))
        elif known.state == "ill":
            if before is None or before.state != "ill":
                told = f"{known.what} is unhealthy: {devices[uuid].trouble}"
                events.append(NodeEvent("Warning", reasons.unhealthy, told))
        elif before is not None and before.state != "healthy":
            events.append(NodeEvent("Normal", reasons.recovered, f"{known.what} is healthy again"))
    return tuple(events), after
