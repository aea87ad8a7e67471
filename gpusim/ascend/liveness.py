"""Whether a process that is registered in a ledger still is the one that registered.

Source: ascend_ppu_hami.md B.4 (what counts as dead) and B4-12 (a pid alone does not identify a process).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

Alive = Callable[[int, int], bool]
"""(pid, start) → whether that process lives."""


def start_of(pid: int) -> int | None:
    """Clock ticks after boot at which a process started; None when it is dead or a zombie, 0 when unknown."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    except OSError:
        return 0
    # The name in parentheses may hold anything; state is the first field after it, starttime the 20th.
    fields = text.rpartition(b")")[2].split()
    if fields[:1] and fields[0] in {b"Z", b"X", b"x"}:
        return None
    return int(fields[19]) if len(fields) > 19 and fields[19].isdigit() else 0


def alive(pid: int, start: int) -> bool:
    """Not dead, and started when the registered one did. What cannot be told counts as alive."""
    found = start_of(pid)
    return found is not None and (found == start or not found or not start)
