"""A Kubernetes API server small enough for a test: nodes, pods, events and namespaces over plain HTTP.

It runs in a thread of the test's process or as ``gpusim apiserver``, and the official client cannot tell.
Outside /api it has two admin paths: ``/faults`` (GET, POST one fault, DELETE all; ``{"down_seconds": s}``
refuses connections for a while) and ``/requests`` (GET, DELETE).
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import socket
import sys
import threading
from concurrent.futures import Future
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

from gpusim.cluster import kubeconfig
from gpusim.cluster.apifaults import Faults, RequestLog, parse
from gpusim.cluster.apihttp import Connections, decode_json
from gpusim.cluster.apirouter import Request, Response, answer, refusal
from gpusim.cluster.apistatus import ApiError, bad_request
from gpusim.cluster.apistore import Store
from gpusim.errors import GpusimError
from gpusim.stdout import say

MAX_PORT = 65535


class ApiServer:
    """The API server, in a thread of this process; also a context manager.

    Args:
        port: 0 takes a free one; it stays the same over `down`/`up` and `stop`/`start`.
        host: address to listen on.
        store: the objects; a new, empty cluster unless given.
    """

    def __init__(self, port: int = 0, host: str = "127.0.0.1", *, store: Store | None = None) -> None:
        self.store = store or Store()
        """create get list patch update delete bind: the same rules as over HTTP."""
        self.faults = Faults()
        """``faults.add(Fault(verb="patch", resource="pods", nth=2, code=409))``."""
        self.requests = RequestLog()
        """What was asked: ``requests.entries(agent)``, ``requests.verbs(agent)``."""
        self.host = host
        self.port = port
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listener: asyncio.Server | None = None
        self._connections: Connections | None = None
        self._halt: asyncio.Event | None = None

    @property
    def url(self) -> str:
        """``http://127.0.0.1:PORT``."""
        return f"http://{self.host}:{self.port}"

    def start(self) -> ApiServer:
        """Listen; returns when requests are answered.

        Raises:
            GpusimError: the port is taken or impossible, or the server runs already.
        """
        if not 0 <= self.port <= MAX_PORT:
            raise GpusimError(f"port {self.port}: TCP ports are 1 to {MAX_PORT}, and 0 for a free one")
        if self._thread is not None:
            raise GpusimError(f"the API server runs already at {self.url}")
        ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(ready,), name="apiserver", daemon=True)
        self._thread.start()
        try:
            ready.result()
        except BaseException as error:
            if isinstance(error, Exception):  # else a signal: the thread goes on
                self._thread.join()
                self._thread = None
            if isinstance(error, OSError):
                why = f"cannot listen on {self.host}:{self.port}: {error.strerror}"
                raise GpusimError(why) from error
            raise
        return self

    def stop(self) -> None:
        """End all connections and the thread; the store stays readable. Fine when it is not running."""
        thread, loop, halt = self._thread, self._loop, self._halt
        if thread is None or loop is None or halt is None:
            return
        loop.call_soon_threadsafe(halt.set)
        thread.join()
        self._thread = None

    def down(self) -> None:
        """Refuse connections (ECONNREFUSED) and drop those that are open."""
        self._call(self._close())

    def up(self) -> None:
        """Listen again on the same port; fine when the server listens."""
        self._call(self._listen())

    def kubeconfig(self, path: str | Path) -> Path:
        """Write a kubeconfig for this server, mode 0600.

        Raises:
            GpusimError: something else stands at `path`, or nothing can be written there.
        """
        return kubeconfig.write(Path(path), self.url)

    def __enter__(self) -> ApiServer:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # -- the thread -----------------------------------------------------------------------------------

    def _run(self, ready: Future[None]) -> None:
        asyncio.run(self._main(ready))

    async def _main(self, ready: Future[None]) -> None:
        self._loop, self._halt = asyncio.get_running_loop(), asyncio.Event()
        try:
            self._connections = Connections(self.store, self.faults, self.requests, self._admin)
            await self._listen()
        except Exception as error:  # whatever it is, start() waits for it
            ready.set_exception(error)
            return
        ready.set_result(None)
        await self._halt.wait()
        await self._close()

    async def _listen(self) -> None:
        if self._listener is not None:
            return
        assert self._connections is not None
        made = socket.create_server((self.host, self.port), backlog=128)
        self.port = made.getsockname()[1]
        self._listener = await asyncio.start_server(self._connections.serve, sock=made, limit=1 << 16)

    async def _close(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
            for _ in range(2):  # what was accepted just before gets its turn, lest nobody ends it
                await asyncio.sleep(0)
        if self._connections is not None:
            await self._connections.abort()

    def _call(self, work: Any) -> None:
        if self._thread is None or self._loop is None:
            work.close()
            raise GpusimError("the API server is not running: start() it first")
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    # -- admin paths ----------------------------------------------------------------------------------

    def _admin(self, request: Request) -> Response | None:
        if request.path == "/requests":
            if request.method == "DELETE":
                self.requests.clear()
            return answer(200, [asdict(e) for e in self.requests.entries(request.query.get("agent", ""))])
        if request.path != "/faults":
            return None
        if request.method == "DELETE":
            self.faults.clear()
        elif request.method == "POST":
            try:
                self._program(decode_json(request.body))
            except ApiError as error:
                return refusal(error)
        return answer(200, self.faults.describe())

    def _program(self, body: Any) -> None:
        if isinstance(body, dict) and set(body) == {"down_seconds"}:
            seconds = body["down_seconds"]
            if isinstance(seconds, bool) or not isinstance(seconds, int | float) or seconds < 0:
                raise bad_request(f"down_seconds {seconds!r} is no number of seconds")
            assert self._loop is not None
            # after the answer is out
            self._loop.call_later(0.02, lambda: asyncio.ensure_future(self._outage(seconds)))
            return
        try:
            self.faults.add(parse(body))
        except GpusimError as error:
            raise bad_request(str(error)) from None

    async def _outage(self, seconds: float) -> None:
        await self._close()
        await asyncio.sleep(seconds)
        if self._halt is not None and not self._halt.is_set():
            await self._listen()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``gpusim apiserver``."""
    parser.add_argument("--port", type=int, default=0, help="TCP port on 127.0.0.1 (0: a free one)")
    parser.add_argument(
        "--kubeconfig",
        type=Path,
        help="write a kubeconfig for this server here; a file that is not an earlier one of ours is refused",
    )
    parser.add_argument(
        "--node", action="append", default=[], metavar="NAME", help="create this node (repeatable)"
    )


def run(args: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM; a kubeconfig it wrote is removed at the end. Returns the exit status."""
    server = ApiServer(args.port)
    done = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: done.set())
    try:
        server.start()
    except GpusimError as error:
        sys.stderr.write(f"gpusim apiserver: {error}\n")
        return 1
    written = None
    try:
        for name in args.node:
            server.store.create("nodes", {"metadata": {"name": name}})
        if args.kubeconfig is not None:
            written = server.kubeconfig(args.kubeconfig)
        say(f"apiserver ready at {server.url}")
        done.wait()
    except GpusimError as error:
        sys.stderr.write(f"gpusim apiserver: {error}\n")
        return 1
    finally:
        server.stop()
        if written is not None:
            kubeconfig.remove(written, server.url)
    return 0
