"""How long a call may take and what it may leave behind, told on a machine that others use as well.

Time is processor time of this process. Memory is looked at in rounds: a cache that fills is no leak, one that
never stops filling is.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

_TICK = 0.1
"""Seconds between looks at whether a call came back."""
_BLOCKS, _SHARE = 200, 20
"""Memory blocks that may stay of one round: so many, or one of so many calls if that is more."""
_BYTES = 1 << 20
"""Bytes of resident memory that may stay of one round: what C code keeps is no block of Python's."""


class StuckError(BaseException):
    """Raised into a call that does not come back; none of its own ``except Exception`` may catch it."""


@dataclass(slots=True)
class Watch:
    """Which call is going on."""

    number: int = -1
    """-1: none."""


@contextlib.contextmanager
def watched(patience: float) -> Iterator[Watch]:
    """Raises `StuckError` into a call whose number has stood for `patience` seconds of processor time.

    In the main thread only, and where there are signals of POSIX. ITIMER_VIRTUAL, because pytest-timeout has
    ITIMER_REAL.
    """
    watch = Watch()
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield watch
        return
    seen, ticks = -1, 0

    def look(number: int, frame: Any) -> None:
        nonlocal seen, ticks
        if watch.number != seen:
            seen, ticks = watch.number, 0
        elif seen >= 0:
            ticks += 1
            if ticks * _TICK >= patience:
                ticks = 0
                raise StuckError

    before = signal.signal(signal.SIGVTALRM, look)
    signal.setitimer(signal.ITIMER_VIRTUAL, _TICK, _TICK)
    try:
        yield watch
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def seconds(call: Callable[[], object]) -> float:
    """Processor time of a call, whatever it raises; the best of three."""
    best = float("inf")
    for _ in range(3):
        begun = time.thread_time()
        with contextlib.suppress(Exception):
            call()
        best = min(best, time.thread_time() - begun)
    return best


@dataclass(slots=True)
class Kept:
    """What is in use after each round.

    Attributes:
        blocks: Python's memory blocks.
        resident: bytes of the process; 0 where nobody tells.
    """

    blocks: list[int] = field(default_factory=list)
    resident: list[int] = field(default_factory=list)

    def look(self) -> None:
        """After a round."""
        gc.collect()
        self.blocks.append(sys.getallocatedblocks())
        self.resident.append(_resident())

    def grew(self, calls: int) -> bool:
        """Whether it became more in every round after the first; `calls`: in one round."""
        if len(self.blocks) < 3:
            return False
        return _least(self.blocks) > max(_BLOCKS, calls // _SHARE) or _least(self.resident) > _BYTES

    def __str__(self) -> str:
        """For a message."""
        return f"{', '.join(map(str, self.blocks))} blocks, {', '.join(map(str, self.resident))} bytes"


def _least(marks: list[int]) -> int:
    return min(after - before for before, after in pairwise(marks))


def _resident() -> int:
    """Bytes in memory (proc(5), statm: the second number is pages)."""
    try:
        pages = int(Path("/proc/self/statm").read_bytes().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


@contextlib.contextmanager
def only_new_is_collected() -> Iterator[None]:
    """What is there already is left alone by collections: to look through it costs more than the calls."""
    if gc.get_freeze_count():
        yield  # somebody else's, and there is only one such place
        return
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
