"""One life of the daemon in virtual time, with all its parts but sockets and threads.

What `devplugin.daemon` builds around one reading of the settings, in its order: node → first discovery →
lists and registration → loops. Only the wire to the API server (`support_port`) and to kubelet are others;
discovery runs in an executor that knows no thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import Any, Protocol

from devplugin.amd.inventory import Inventory
from devplugin.amd.settings import Settings
from devplugin.amd.vendor import Amd
from devplugin.answers import ContainerEdits, FactRequest
from devplugin.daemon import allocate, announce, life, observe
from devplugin.hami import Node
from devplugin.kube import KubeError
from devplugin.kubelet.service import Board
from gpusim.cluster.apistore import Store
from gpusim.machine import Machine

from .support_checks import NODE
from .support_port import Plan, Port
from .support_process import Parent, TaskProcess


class Inline(Executor):
    """Does the work where it is handed in."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as error:  # the waiter's
            done.set_exception(error)
        return done


@dataclass
class Wire(Plan):
    """What becomes of the daemon's calls: a cut and spoiled answers to come, and whole outages."""

    away: bool = False
    spoiled: list[str] = field(default_factory=list)
    """Kinds of bad answers for the next calls."""
    cut_at: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.cuts = self.cut_at


class LivePort(Port):
    """A port whose calls are spoiled one by one."""

    wire: Wire

    def _trouble(self, call: str) -> str:
        if self.wire.away:
            return "500"
        if not self.wire.spoiled:
            return ""
        kind = self.wire.spoiled.pop(0)
        if kind == "409" and not call.startswith("patch"):
            kind = "500"
        self.wire.troubles[kind] += 1
        return kind


class Around(Parent, Protocol):
    """What a daemon lives in."""

    store: Store
    machine: Machine
    wire: Wire
    settings: Settings
    vendor: Amd

    def looked(self) -> None:
        """The daemon knows the node as it is now."""
        ...


class Daemon(TaskProcess):
    """From exec to SIGKILL."""

    def __init__(self, around: Around) -> None:
        super().__init__(around)
        self._around = around
        self._port = LivePort(around.store, around.wire, self)
        self._port.wire = around.wire
        self._allocator: allocate.Allocator[Inventory, Settings] | None = None
        self.boards: dict[str, Board] = {}
        self.spawn(self._live())

    async def _live(self) -> None:
        around = self._around
        node = await self._insist(lambda: self._port.node(NODE))
        vendor, settings = around.vendor, around.settings
        announcer = announce.Announcer(self._port, vendor, settings, node, lambda: self._observer.current)
        self._observer = observe.Observer(
            vendor,
            settings,
            host=around.machine,
            worker=Inline(),
            serve=self._serve,
            changed=announcer.hurry,
            before=self._looked,
        )
        await self._observer.look()
        self._allocator = allocate.Allocator(
            self._port,
            vendor,
            settings=settings,
            node=NODE,
            current=lambda: self._observer.current,
            facts=_all_there,
        )
        self.spawn(self._observer.run(0))
        self.spawn(announcer.run())
        self.spawn(life.keep_swept(self._allocator, lambda: None))

    async def _looked(self, _: Inventory) -> None:
        self._around.looked()

    async def _insist(self, ask: Callable[[], Coroutine[Any, Any, Node]]) -> Node:
        while True:
            try:
                return await ask()
            except KubeError:
                await asyncio.sleep(0.5)

    def _serve(self, board: Board) -> Callable[[], None]:
        name = board.offer.resource
        self.boards[name] = board
        return lambda: self.boards.pop(name, None) and None

    async def allocate(self, ids: Sequence[str]) -> ContainerEdits:
        """kubelet's call."""
        return await self.carry(self._allocator, ids)


async def _all_there(requests: Sequence[FactRequest]) -> Mapping[FactRequest, Any]:
    """Whatever is asked for is on the host."""
    return dict.fromkeys(requests, True)
