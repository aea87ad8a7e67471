"""Whether a process that is registered in a ledger still is the one that registered.

Source: ascend_ppu_hami.md B.4 (what counts as dead) and B4-12 (a pid alone does not identify a process).
"""

from __future__ import annotations

from collections.abc import Callable

from gpusim.liveness import start_of

Alive = Callable[[int, int], bool]
"""(pid, start) → whether that process lives."""


def alive(pid: int, start: int) -> bool:
    """Not dead, and started when the registered one did. What cannot be told counts as alive."""
    found = start_of(pid)
    return found is not None and (found == start or not found or not start)
