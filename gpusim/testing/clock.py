"""Virtual time and one list of what happened: a test of minutes runs in microseconds and is the same twice.

Time moves only when somebody says so (style.md, example 4). It is kept in whole nanoseconds, so that many
small steps add up to what one large step is.
"""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol

from gpusim.errors import GpusimError

_NANO = 1_000_000_000


@dataclass(order=True, slots=True)
class Timer:
    """Something to be done at a time; `cancel` it, or let the clock reach it."""

    at: int
    """Nanoseconds of the clock."""
    number: int
    """Order of asking, for those of one time."""
    action: Callable[[], object] = field(compare=False)
    cancelled: bool = field(default=False, compare=False)

    def cancel(self) -> None:
        """Do nothing when the time comes; fine when it has come."""
        self.cancelled = True


class Clock:
    """Seconds that pass when told to. Called, it is what ``time.monotonic`` is elsewhere.

    Args:
        start: seconds, not negative.
    """

    def __init__(self, start: float = 0.0) -> None:
        self._now = _nanoseconds(start)
        self._numbers = count(1)
        self._timers: list[Timer] = []

    def __call__(self) -> float:
        """Seconds now."""
        return self._now / _NANO

    @property
    def nanoseconds(self) -> int:
        """Now, exactly."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Let time pass. What falls due is done on the way, each at its own time, in the order of asking.

        Raises:
            GpusimError: negative, infinite or not a number: time does not go back.
        """
        end = self._now + _nanoseconds(seconds)
        while self._timers and self._timers[0].at <= end:
            timer = heapq.heappop(self._timers)
            # An action may advance the clock itself; time still never goes back.
            self._now = max(self._now, timer.at)
            if not timer.cancelled:
                timer.action()
        self._now = max(self._now, end)

    def sleep(self, seconds: float) -> None:
        """`advance`, under the name that code with an injected sleep calls."""
        self.advance(seconds)

    def after(self, seconds: float, action: Callable[[], object]) -> Timer:
        """Do something once, `seconds` from now.

        Raises:
            GpusimError: as `advance`.
        """
        timer = Timer(self._now + _nanoseconds(seconds), next(self._numbers), action)
        heapq.heappush(self._timers, timer)
        return timer

    def jump(self) -> bool:
        """Go to the next timer and do it; False when none is left."""
        while self._timers and self._timers[0].cancelled:
            heapq.heappop(self._timers)
        if not self._timers:
            return False
        self.advance((self._timers[0].at - self._now) / _NANO)
        return True

    def fork(self) -> Clock:
        """Another clock at the same time. Timers stay behind: they act on what they were made for."""
        twin = Clock()
        twin._now = self._now
        return twin


def _nanoseconds(seconds: float) -> int:
    if not math.isfinite(seconds) or seconds < 0:
        raise GpusimError(f"{seconds} seconds: time moves forward, by a finite number of seconds")
    return round(seconds * _NANO)


class HasEvents(Protocol):
    """What an `EventLog` follows: a `Machine`, say."""

    @property
    def events(self) -> list[dict[str, Any]]:
        """What happened so far, oldest first."""
        ...


class EventLog:
    """What happened on a node and in the test around it, in order, with the virtual time of each.

    Args:
        clock: stamps the entries; None: all at 0.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock
        self._entries: list[dict[str, Any]] = []
        self._followed: list[tuple[str, HasEvents, int]] = []

    def record(self, event: str, **facts: Any) -> None:
        """Note one thing; facts can be written as JSON."""
        self._entries.append({"at": self._at(), "event": event, **facts})

    def follow(self, source: HasEvents, name: str = "node") -> None:
        """Take over a machine's events from now on, each time `collect` or a reader asks."""
        self._followed.append((name, source, len(source.events)))

    def collect(self) -> None:
        """Take what the followed machines did since, in the order they were followed."""
        for place, (name, source, seen) in enumerate(self._followed):
            for event in source.events[seen:]:
                self._entries.append({"at": self._at(), "of": name, **event})
            self._followed[place] = (name, source, len(source.events))

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        self.collect()
        return iter(list(self._entries))

    def __len__(self) -> int:
        self.collect()
        return len(self._entries)

    def text(self) -> str:
        """JSON lines, keys sorted: equal histories are equal bytes."""
        return "".join(json.dumps(entry, sort_keys=True) + "\n" for entry in self)

    def _at(self) -> float:
        return 0.0 if self._clock is None else self._clock()
