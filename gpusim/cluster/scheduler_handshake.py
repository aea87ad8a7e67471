"""The handshake: how scheduler and plugin tell each other through a node's annotation that they live.

The scheduler writes ``Requesting_<time>``, the plugin overwrites it with ``Reported_<time>`` every 30 s
(ascend_ppu_hami.md D.3). Only then does the scheduler read the registration anew; what the plugin
registers without it is ignored. Times are local and have dashes, the plugin's have dots: nobody reads
those.

As upstream has it: after a clean-up nothing is there, which counts as an answer; a dead plugin's devices
so come back for a minute and go again.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, tzinfo

REQUESTING = "Requesting"
PATIENCE = 60.0
"""Seconds that an unanswered handshake proves nothing."""
_FORMAT = "%Y-%m-%d %H:%M:%S"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a handshake says of one vendor on one node."""

    healthy: bool
    """Otherwise: clean up, if its devices were believed."""
    refresh: bool
    """The registration is to be read, once a new `request` is written."""


def judge(value: str | None, now: float, *, counted: bool, zone: tzinfo | None = None) -> Verdict:
    """Read a handshake annotation.

    Args:
        value: the annotation; None when it is not there.
        now: unix seconds.
        counted: whether the node's allocatable lists any device of the vendor.
        zone: of the time in it; None: this process's.
    """
    if value is None or REQUESTING not in value:
        return Verdict(healthy=True, refresh=True)
    since = _time(value, zone)
    waits = since is None or now - since < PATIENCE
    return Verdict(healthy=waits or counted, refresh=False)


def request(now: float, zone: tzinfo | None = None) -> str:
    """What the scheduler writes for the plugin to answer."""
    return f"{REQUESTING}_{datetime.fromtimestamp(now, zone).strftime(_FORMAT)}"


def _time(value: str, zone: tzinfo | None) -> float | None:
    """Unix seconds of what follows the first ``_``; None when it is no such time."""
    parts = value.split("_")
    try:
        found = datetime.strptime(parts[1], _FORMAT) if len(parts) > 1 else None
        return found.replace(tzinfo=zone).timestamp() if found is not None else None
    except (ValueError, OverflowError):
        return None
