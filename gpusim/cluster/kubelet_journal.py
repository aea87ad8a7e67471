"""What happened inside the simulated kubelet, in order, for tests to read and wait on.

The original only logs these things; a test wants to see that a registration was refused, a list was
shorter, or an allocation rolled back, and to wait for it without sleeping.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Event:
    """One occurrence.

    Kinds: ``started stopped killed socket-removed registering registered refused connected list
    stream-ended allocating allocated allocation-failed preferred prestart admitted rejected blocked
    removed published unknown-numa env-conflict checkpoint-unreadable resource-removed api-error``.
    """

    kind: str
    resource: str = ""
    detail: Mapping[str, Any] = field(default_factory=dict)


class Journal:
    """Events, and a way to wait until something holds; safe to use from any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._events: list[Event] = []

    def record(self, kind: str, resource: str = "", **detail: Any) -> None:
        """Append an event and wake everybody who waits."""
        with self._changed:
            self._events.append(Event(kind, resource, detail))
            self._changed.notify_all()

    def entries(self) -> list[Event]:
        """A copy, oldest first."""
        with self._changed:
            return list(self._events)

    def wait(self, holds: Callable[[], bool], timeout: float) -> bool:
        """Wait until `holds()`: asked after every event, and every 20 ms for what makes no event here."""
        with self._changed:
            return self._changed.wait_for(holds, timeout) if timeout <= 0 else self._poll(holds, timeout)

    def _poll(self, holds: Callable[[], bool], timeout: float) -> bool:
        left = timeout
        while not holds():
            if left <= 0:
                return False
            self._changed.wait(min(0.02, left))
            left -= 0.02
        return True
