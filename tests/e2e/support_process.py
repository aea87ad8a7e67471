"""A daemon's process in virtual time: tasks that run until SIGKILL, and what kubelet's call meets then."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

from devplugin.answers import ContainerEdits, Refused
from devplugin.kube import KubeError

from .support_port import Killed


class ConnectionLostError(Exception):
    """kubelet's end of an Allocate whose plugin died."""


class Parent(Protocol):
    """Who started the process."""

    def fell(self) -> None:
        """The daemon is dead."""
        ...

    def broken(self, error: BaseException) -> None:
        """Something that no history may meet."""
        ...


class Allocates(Protocol):
    """The part of an `Allocator` that kubelet meets."""

    def allocate(self, ids: Sequence[str]) -> Coroutine[Any, Any, ContainerEdits]:
        """What a container with these devices is given."""
        ...


class TaskProcess:
    """From exec to SIGKILL."""

    def __init__(self, parent: Parent) -> None:
        self.alive = True
        self._parent = parent
        self._tasks: dict[asyncio.Task[Any], None] = {}  # in order, so that a history can be repeated

    async def carry(self, allocator: Allocates | None, ids: Sequence[str]) -> ContainerEdits:
        """kubelet's call, carried to its end whatever becomes of kubelet; raises as the wire would."""
        if allocator is None:
            raise ConnectionLostError
        task = self.spawn(allocator.allocate(ids))
        try:
            return await asyncio.shield(task)
        except (Killed, asyncio.CancelledError):
            if self.alive:
                raise
            raise ConnectionLostError from None

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """A task of this process."""
        task = asyncio.ensure_future(work)
        self._tasks[task] = None
        task.add_done_callback(self._reap)
        return task

    def _reap(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled():
            error = task.exception()  # Killed is how a process ends, the rest is what kubelet is told
            if error is not None and not isinstance(error, Killed | Refused | KubeError):
                self._parent.broken(error)

    def die(self) -> None:
        """SIGKILL: no task of ours runs on, and no call of ours leaves any more."""
        if self.alive:
            self.alive = False
            for task in tuple(self._tasks):
                task.cancel()
            self._parent.fell()
