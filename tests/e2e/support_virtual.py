"""An event loop whose clock jumps: hours of waiting in milliseconds, and the same order every time.

Nothing in a run of it may touch a thread or a socket; everything that waits, waits for the clock or for
another task. So a history with a given seed is the same history each time, and can be cut at call k.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class StuckError(RuntimeError):
    """Every task waits for another one and none for the clock."""


class _Jump(selectors.SelectSelector):
    """Instead of waiting, moves the clock to where the loop would have woken up."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise StuckError("nothing will ever happen again")
        self.now += max(timeout, 0.0)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """asyncio on a clock that starts at 0 and only moves when everybody waits."""

    def __init__(self) -> None:
        self._jump = _Jump()
        self.troubles: list[BaseException] = []
        super().__init__(self._jump)
        self.set_exception_handler(self._note)

    def time(self) -> float:
        return self._jump.now

    def _note(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.troubles.append(context.get("exception") or RuntimeError(context["message"]))


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run to the end in virtual time. What a forgotten task raised is raised here."""
    loop = VirtualLoop()
    try:
        result = loop.run_until_complete(main)
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
    finally:
        loop.close()
    if loop.troubles:
        raise loop.troubles[0]
    return result
