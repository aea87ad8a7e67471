"""What keeps one resource registered, whatever kubelet does meanwhile.

Serve under a name nobody ever had, then register, then watch; begin again when the socket was wiped
(kubelet starts: K3), when kubelet.sock is another one (K4), or when the stream ended though kubelet
lives (K5). Every beginning is the same walk, so there is one path to test. Register is retried
without end, since the daemon is useless without it. Rules and measurements: kubelet.md 1, 2, 4.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass

import grpc
import grpc.aio

from devplugin.kubelet.directory import (
    KUBELET_SOCKET,
    Directory,
    Identity,
    SocketPathError,
    SocketPathTooLongError,
)
from devplugin.kubelet.service import Allocate, Board, Prefer, Service
from devplugin.kubeletapi import api_pb2, api_pb2_grpc

log = logging.getLogger(__name__)

VERSION = "v1beta1"


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds the registrar waits; a test may hurry it."""

    register: float = 15.0
    """Deadline of Register: above the 10 s in which kubelet dials us back inside it."""
    first_retry: float = 0.005
    """kubelet.sock exists a moment before anybody listens on it."""
    last_retry: float = 5.0
    poll: float = 2.0
    """How often files are looked at without a notice."""
    settle: float = 0.5
    """From the end of a stream to registering again: kubelet tidies up the old one meanwhile."""
    stream: float = 10.0
    """How long a successful Register may stay without a stream."""
    drain: float = 25.0
    """What an Allocate in flight is given when its server is replaced …"""
    farewell: float = 5.0
    """… and when the process ends."""


@dataclass(slots=True)
class _Endpoint:
    """One server life: a name, a server, its service."""

    name: str
    server: grpc.aio.Server
    service: Service


class Registrar:
    """One resource at kubelet, from `run` to its cancellation.

    Args:
        board: the resource's list; also names the resource.
        prefer, allocate: as `Service` takes them.
        directory: kubelet's plugin directory, entered.
        registered: called after every successful Register.
    """

    def __init__(
        self,
        board: Board,
        prefer: Prefer,
        allocate: Allocate,
        directory: Directory,
        timing: Timing = Timing(),
        *,
        registered: Callable[[], None] | None = None,
    ) -> None:
        self._registered = registered
        self._board = board
        self._resource = board.offer.resource
        self._prefer = prefer
        self._allocate = allocate
        self._directory = directory
        self._timing = timing
        self._wake = asyncio.Event()
        self._stopping: set[asyncio.Task[None]] = set()
        self._said = ""
        self.registrations = 0
        """Successful Register calls so far."""

    async def run(self) -> None:
        """Serve and stay registered until cancelled; then streams are ended and the socket is gone.

        Raises:
            SocketPathTooLongError: waiting cannot help.
        """
        self._directory.subscribe(self._wake.set)
        endpoint: _Endpoint | None = None
        try:
            while True:
                endpoint = await self._serve()
                known = await self._register(endpoint)
                if known is not None:
                    log.info("%s: registered as %s", self._resource, endpoint.name)
                    if self._registered is not None:
                        self._registered()
                    why = await self._lost(endpoint, known)
                    log.warning("%s: registering again: %s", self._resource, why)
                self._stop_later(endpoint, self._timing.drain)
                endpoint = None
        finally:
            self._directory.unsubscribe(self._wake.set)
            if endpoint is not None:
                self._stop_later(endpoint, self._timing.farewell)
            await self._settle_stops()

    # -------------------------------------------------------------- serving

    async def _serve(self) -> _Endpoint:
        """A listening server under a new name; tried again until it can be made."""
        delay = 0.1
        while True:
            self._wake.clear()
            self._directory.look()
            name = self._directory.new_name(self._resource.replace("/", "_"))
            try:
                self._directory.check(name)
                return await self._bind(name)
            except SocketPathTooLongError:
                raise
            except SocketPathError as error:
                self._say(logging.WARNING, f"cannot serve: {error}")
            except (RuntimeError, OSError) as error:  # gRPC: "Failed to bind", no reason given
                self._say(logging.WARNING, f"cannot serve on {self._directory.join(name)}: {error}")
            await self._pause(delay)
            delay = min(delay * 2, self._timing.last_retry)

    async def _bind(self, name: str) -> _Endpoint:
        service = Service(self._board, self._prefer, self._allocate, self._wake.set)
        server = grpc.aio.server()
        api_pb2_grpc.add_DevicePluginServicer_to_server(service, server)  # type: ignore[no-untyped-call]
        server.add_insecure_port(f"unix:{self._directory.join(name)}")
        try:
            self._directory.secure(name)
            await server.start()
        except BaseException:
            await server.stop(None)
            raise
        return _Endpoint(name, server, service)

    # -------------------------------------------------------------- registering

    async def _register(self, endpoint: _Endpoint) -> Identity | None:
        """Register until it works: the kubelet.sock it worked on; None when our own socket was wiped."""
        delay = self._timing.first_retry
        tried: Identity | None = None
        while True:
            self._wake.clear()
            self._directory.look()
            if self._directory.socket(endpoint.name) is None:
                return None
            kubelet = self._directory.socket(KUBELET_SOCKET)
            if kubelet is None:
                kind = self._directory.misplaced(KUBELET_SOCKET)
                self._say(logging.INFO, f"waiting for kubelet.sock{f' ({kind} is there)' if kind else ''}")
                await self._pause(self._timing.poll)
                continue
            if kubelet != tried:  # somebody new: hurry again
                tried, delay = kubelet, self._timing.first_retry
            try:
                await self._call(endpoint.name)
            except grpc.aio.AioRpcError as error:
                level = logging.DEBUG if delay < 0.1 else logging.WARNING  # a socket needs a moment to listen
                self._say(level, f"Register: {error.code().name}: {error.details()}")
                await self._pause(delay)
                delay = min(delay * 2, self._timing.last_retry)
                continue
            self._said = ""
            self.registrations += 1
            return kubelet

    async def _call(self, name: str) -> None:
        # A channel of its own each time: a shared one would remember a refused connection and wait.
        options = [("grpc.use_local_subchannel_pool", 1)]
        target = f"unix:{self._directory.join(KUBELET_SOCKET)}"
        async with grpc.aio.insecure_channel(target, options=options) as channel:
            stub = api_pb2_grpc.RegistrationStub(channel)  # type: ignore[no-untyped-call]
            await stub.Register(
                api_pb2.RegisterRequest(
                    version=VERSION,
                    endpoint=name,
                    resource_name=self._resource,
                    options=api_pb2.DevicePluginOptions(
                        get_preferred_allocation_available=self._board.offer.preferred
                    ),
                ),
                timeout=self._timing.register,
            )

    # -------------------------------------------------------------- staying registered

    async def _lost(self, endpoint: _Endpoint, known: Identity) -> str:
        """Wait until this registration is worth nothing any more; the reason, for the log."""
        loop = asyncio.get_running_loop()
        since = loop.time()
        alone = since if not endpoint.service.streams else None
        while True:
            self._wake.clear()
            self._directory.look()
            if self._directory.socket(endpoint.name) is None:
                return "our socket was removed"
            kubelet = self._directory.socket(KUBELET_SOCKET)
            if kubelet is not None and kubelet != known:
                return "kubelet.sock is a new one"
            wait = self._timing.poll
            if endpoint.service.streams:
                alone = None
            else:
                alone = loop.time() if alone is None else alone
                patience = self._timing.settle if endpoint.service.opened else self._timing.stream
                left = alone + patience - loop.time()
                if left <= 0:
                    return (
                        "kubelet ended the stream" if endpoint.service.opened else "kubelet opened no stream"
                    )
                wait = min(wait, left)
            await self._pause(wait)

    # -------------------------------------------------------------- small things

    async def _pause(self, seconds: float) -> None:
        """Sleep, or less when the directory or the streams change (since `_wake` was last cleared)."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()

    def _say(self, level: int, text: str) -> None:
        """Log what is new; the same words again only at debug level, since we retry without end."""
        log.log(level if text != self._said else logging.DEBUG, "%s: %s", self._resource, text)
        if level > logging.DEBUG:
            self._said = text

    def _stop_later(self, endpoint: _Endpoint, grace: float) -> None:
        """End the streams now; the server when its last Allocate is answered, but not before us."""
        endpoint.service.close()
        task = asyncio.create_task(self._stop(endpoint, grace))
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)

    async def _stop(self, endpoint: _Endpoint, grace: float) -> None:
        await endpoint.server.stop(grace)
        self._directory.remove(endpoint.name)

    async def _settle_stops(self) -> None:
        if self._stopping:
            await asyncio.wait(self._stopping, timeout=self._timing.farewell)
