"""One life of the daemon: everything that serves one node by one reading of its settings.

Begin: first discovery → lists and registration. Then these loops until it is cancelled: rediscovery,
announcing, memory limits, the sweep, and one registrar for each resource. `devplugin.daemon.main` says
when a life begins and ends; what outlives it (`Shared`) is handed in.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast

from devplugin import imagecheck
from devplugin.answers import ContainerEdits, FactRequest, HealthSource, PreferenceQuery, Reports
from devplugin.daemon.allocate import Allocator
from devplugin.daemon.announce import Announcer
from devplugin.daemon.caps import Capper
from devplugin.daemon.ending import Fatal
from devplugin.daemon.exports import Exporter
from devplugin.daemon.hands import Hands
from devplugin.daemon.images import Images
from devplugin.daemon.logs import told
from devplugin.daemon.observe import PERIOD, Observer
from devplugin.daemon.own import Tally
from devplugin.daemon.prepare import Preparer
from devplugin.daemon.specfile import SpecFile
from devplugin.daemon.sweep import Sweeper
from devplugin.deeds import Ground
from devplugin.hami import Node, Pod
from devplugin.host import Host
from devplugin.kube import Api, KubeError
from devplugin.kubelet.directory import Directory, SocketPathError
from devplugin.kubelet.registrar import Registrar
from devplugin.kubelet.service import Board, TryLater
from devplugin.vendor import Inv, S, Vendor, no_files

log = logging.getLogger(__name__)

T = TypeVar("T")

SWEEP = 25.0
"""Decision 19 promises 30 s from a pod's end to its lock's; the sweep itself needs a moment."""

SWEEP_AGAIN = 2.0
"""After a sweep that failed: waiting for the next turn would make those 30 s almost a minute."""

FIRST_RETRY = 0.5
LAST_RETRY = 5.0


@dataclass(frozen=True, slots=True)
class Start(Generic[Inv, S]):
    """All that a daemon is started with."""

    vendor: Vendor[Inv, S]
    host: Host
    node: str
    """NODE_NAME."""
    args: argparse.Namespace
    env: Mapping[str, str]
    kubelet_dir: str
    connect: Callable[[], Api]
    """Makes the API server's port; blocking (it imports the client)."""
    pulse: int = 0
    verbosity: int = 0
    read: Callable[[str], bytes] = no_files
    """A configuration file by its path; raises OSError."""
    metrics: str = ""
    """Where the daemon tells of itself; empty: nowhere."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What one life leaves to the next."""

    worker: Executor
    """The one thread that touches the Host."""
    tally: Tally = field(default_factory=Tally)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """One Allocate at a time, also when the last one of an ended life is still at work."""


class Life(Generic[Inv, S]):
    """One life.

    Args:
        start: what the process was started with.
        shared: what it has in common with other lives of this process.
        api: the API server.
        node: this node, as read when the settings were.
        settings: resolved.
    """

    def __init__(self, start: Start[Inv, S], shared: Shared, api: Api, node: Node, settings: S) -> None:
        self._start = start
        self._shared = shared
        self._api = api
        self._node = node
        self._settings = settings
        self._worker = shared.worker
        self._tasks: set[asyncio.Task[Any]] = set()
        self._failed: asyncio.Future[None] | None = None

    async def run(self) -> None:
        """Until it is cancelled; then streams are ended and sockets gone.

        Raises:
            Fatal: an impossible socket path.
        """
        self._failed = asyncio.get_running_loop().create_future()
        with Directory(self._start.kubelet_dir) as directory:
            work = self._spawn(self._work(self._api, self._node, self._settings, directory))
            try:
                either: set[asyncio.Future[Any]] = {work, self._failed}
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                for future in either:
                    if future.done():
                        future.result()
            finally:
                self._failed.cancel()
                tasks = tuple(self._tasks)
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self, api: Api, node: Node, settings: S, directory: Directory) -> None:
        start, vendor = self._start, self._start.vendor
        # The seam's other two halves: every host of the launcher has them.
        place = cast("Ground", start.host)
        images = Images(place, _ctr(start.args))
        hands = Hands(api, start.node, images.fetch, place, self._worker)
        announcer: Announcer[Inv, S] = Announcer(
            api,
            vendor,
            settings,
            node,
            lambda: observer.current,
            announced=self._shared.tally.announce,
            hands=hands,
        )
        capper: Capper[Inv, S] = Capper(
            api,
            vendor,
            settings,
            host=start.host,
            worker=self._worker,
            node=start.node,
            current=lambda: observer.current,
        )
        spec: SpecFile[Inv, S] = SpecFile(vendor, settings, place=place, worker=self._worker)

        async def facts(requests: Sequence[FactRequest]) -> Mapping[FactRequest, Any]:
            return await self._facts(requests, images, spec)

        allocator: Allocator[Inv, S] = Allocator(
            api,
            vendor,
            settings=settings,
            node=start.node,
            current=lambda: observer.current,
            facts=facts,
            watcher=capper,
            hands=hands,
            turn=self._shared.turn,
            waited=self._shared.tally.wait,
            noticed=announcer.noticed,
        )

        def changed() -> None:
            announcer.hurry()
            capper.hurry()

        def prefer(query: PreferenceQuery) -> tuple[str, ...]:
            inventory = observer.current
            if inventory is None:
                raise ValueError("the node's devices are not known yet")
            return vendor.prefer(inventory, settings, query)

        def serve(board: Board) -> Callable[[], None]:
            allocate = self._unbroken(allocator)
            # A scheduler that looked while kubelet was away has deleted the registration (no capacity).
            registrar = Registrar(board, prefer, allocate, directory, registered=announcer.hurry)
            task = self._spawn(registrar.run())
            task.add_done_callback(self._ended)
            return lambda: _cancel(task)

        async def pods() -> Sequence[Pod]:
            return await insist(lambda: api.pods_on(start.node), f"pods of node {start.node} cannot be read")

        observer: Observer[Inv, S] = Observer(
            vendor,
            settings,
            host=start.host,
            worker=self._worker,
            serve=serve,
            changed=changed,
            before=spec.keep,
            prepare=Preparer(
                vendor,
                settings,
                host=start.host,
                worker=self._worker,
                pods=pods,
                say=announcer.say,
            ),
            ask=_ask(vendor.health_source(settings)),
        )
        sweeper: Sweeper[Inv, S] = Sweeper(
            vendor,
            settings,
            api=api,
            node=start.node,
            host=start.host,
            worker=self._worker,
            current=lambda: observer.current,
            hands=hands,
        )
        await self._first_look(observer)
        self._tidy(directory, observer)
        loops = [
            self._spawn(observer.run(start.pulse)),
            self._spawn(announcer.run()),
            self._spawn(capper.run()),
            self._spawn(keep_swept(allocator, lambda: self._tidy(directory, observer))),
            self._spawn(sweeper.run()),
        ]
        if exports := vendor.exports(settings):
            exporter: Exporter[Inv] = Exporter(
                exports,
                api=api,
                node=start.node,
                host=start.host,
                worker=self._worker,
                current=lambda: observer.current,
            )
            loops.append(self._spawn(exporter.run()))
        await asyncio.gather(*loops)

    async def _first_look(self, observer: Observer[Inv, S]) -> None:
        delay = FIRST_RETRY
        while True:
            try:
                await observer.look(check=self._start.pulse > 0)
            except Fatal:
                raise
            except Exception:
                log.exception("discovery failed; trying again")
                await asyncio.sleep(delay)
                delay = min(delay * 2, LAST_RETRY)
            else:
                if not observer.offers:
                    log.warning("no device to offer; looking again every %.0f s", PERIOD)
                return

    @staticmethod
    def _tidy(directory: Directory, observer: Observer[Inv, S]) -> None:
        """Sockets a killed life of ours left behind: of the same domain, and nobody answers on them."""
        for domain in {resource.partition("/")[0] for resource in observer.offers}:
            for name in directory.sweep(f"{domain}_"):
                log.info("removed dead socket %s", name)

    # -------------------------------------------------------------- what the parts call

    def _unbroken(
        self, allocator: Allocator[Inv, S]
    ) -> Callable[[Sequence[str]], Coroutine[Any, Any, ContainerEdits]]:
        """Allocate for the service: carried to its end also when kubelet hangs up in the middle."""

        async def allocate(ids: Sequence[str]) -> ContainerEdits:
            work = asyncio.create_task(self._shared.tally.counted(allocator.allocate(ids)))
            work.add_done_callback(_retrieve)
            try:
                return await asyncio.shield(work)
            except KubeError as error:
                log.warning("Allocate: %s", error)
                raise TryLater(str(error)) from error

        return allocate

    async def _facts(
        self, requests: Sequence[FactRequest], images: Images, spec: SpecFile[Inv, S]
    ) -> Mapping[FactRequest, Any]:
        """Everything an Allocate wants to know, asked for at the same time."""
        loop = asyncio.get_running_loop()
        kinds: dict[str, list[FactRequest]] = {}
        for request in requests:
            kinds.setdefault(request.kind, []).append(request)
        files = kinds.pop("file", [])
        libcs = kinds.pop(imagecheck.FACT, [])
        answers: dict[FactRequest, Any] = dict.fromkeys(kinds.pop("cdi", ()), spec.good)
        if kinds:
            raise ValueError(f"nobody here can tell {', '.join(kinds)}")
        there = loop.run_in_executor(self._worker, _present, self._start.host, files) if files else None
        found = await images.findings(request.subject for request in libcs)
        answers.update((request, found[request.subject]) for request in libcs)
        if there is not None:
            answers.update(await there)
        return answers

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A registrar only ends when it is cancelled, or for a reason that ends all of us."""
        if task.cancelled() or self._failed is None or self._failed.done():
            return
        error = task.exception()
        if isinstance(error, SocketPathError):
            self._failed.set_exception(Fatal(str(error)))
        elif error is not None:
            self._failed.set_exception(error)


async def keep_swept(allocator: Allocator[Any, Any], after: Callable[[], None]) -> None:
    """Sweep now and for ever; `after` is called between sweeps."""
    said = ""
    while True:
        wait = SWEEP_AGAIN
        try:
            await allocator.sweep()
            said, wait = "", SWEEP
        except KubeError as error:
            said = told(log, said, f"sweep: {error}")
        except Exception:
            log.exception("sweep failed")
        await asyncio.sleep(wait)
        after()


def _present(host: Host, requests: Sequence[FactRequest]) -> dict[FactRequest, Any]:
    """Which files are there; runs in the thread that owns the Host."""
    answers: dict[FactRequest, Any] = {}
    for request in requests:
        try:
            host.stat(request.subject)
        except OSError:
            answers[request] = False
        else:
            answers[request] = True
    return answers


def _ctr(args: argparse.Namespace) -> imagecheck.Ctr:
    """containerd's client by the flags of a vendor that has them."""
    plain = imagecheck.Ctr()
    return imagecheck.Ctr(
        getattr(args, "ctr_path", plain.path), getattr(args, "containerd_socket", plain.socket)
    )


async def insist(ask: Callable[[], Coroutine[Any, Any, T]], what: str) -> T:
    """Ask until there is an answer: without it no list may be sent (decision 24)."""
    delay, said = FIRST_RETRY, ""
    while True:
        try:
            return await ask()
        except KubeError as error:
            said = told(log, said, f"{what}: {error}; trying again")
        await asyncio.sleep(delay)
        delay = min(delay * 2, LAST_RETRY)


def _ask(source: HealthSource | None) -> Callable[[], Coroutine[Any, Any, Reports]] | None:
    """Who asks the health service there may be."""
    if source is None:
        return None
    from devplugin.daemon.exporter import Exporter

    return Exporter(source).ask


def _cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()


def _retrieve(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()
