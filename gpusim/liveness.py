"""Whether a process of this machine lives, and since when: what is asked of pids that stand in shared files.

Source: ascend_ppu_hami.md B.4 (what counts as dead) and B4-12 (a pid alone does not identify a process).
"""

from __future__ import annotations

from pathlib import Path


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
