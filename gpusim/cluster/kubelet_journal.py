"""What happened inside the simulated kubelet, in order, for tests to read and wait on.

The original only logs these things; a test wants to see that a registration was refused, a list was
shorter, or an allocation rolled back, and to wait for it without sleeping.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Event:
    """One occurrence.

    Kinds: ``started stopped killed socket-removed registering registered refused connected list
    watch-over stream-ended allocating allocated allocation-failed preferred prestart admitted rejected
    blocked removed published unknown-numa env-conflict checkpoint-unreadable resource-removed api-error``.
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
        """Wait until `holds()`: asked after every event, and every 20 ms for what makes no event here.

        `holds` is called without our lock: it may take locks under which others record events.
        """
        end = time.monotonic() + timeout
        while True:
            with self._changed:
                seen = len(self._events)
            if holds():
                return True
            left = end - time.monotonic()
            if left <= 0:
                return False
            with self._changed:
                if len(self._events) == seen:
                    self._changed.wait(min(0.02, left))
