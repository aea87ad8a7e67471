"""A kubelet small enough to read: what registrar and service need of one, and what a test may spoil."""

from __future__ import annotations

import asyncio
import contextlib
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from devplugin.kubeletapi import api_pb2, api_pb2_grpc


class MiniKubelet(api_pb2_grpc.RegistrationServicer):
    """Registration on a real socket; dials back inside Register, as kubelet does (kubelet.md 2)."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.requests: list[Any] = []
        self.lists: dict[str, list[Any]] = {}
        self.when: list[float] = []
        self.refuse = 0
        self.open_streams = True
        self.streams: dict[str, asyncio.Task[None]] = {}
        self.channels: list[grpc.aio.Channel] = []
        self.news = asyncio.Event()

    async def start(self, wipe: bool = True) -> None:
        if wipe:
            for path in self.directory.iterdir():
                if stat.S_ISSOCK(path.lstat().st_mode):
                    path.unlink()
        self.server = grpc.aio.server()
        api_pb2_grpc.add_RegistrationServicer_to_server(self, self.server)
        self.server.add_insecure_port(f"unix:{self.directory}/kubelet.sock")
        await self.server.start()

    async def Register(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.requests.append(request)
        self.news.set()
        if self.refuse:
            self.refuse -= 1
            await context.abort(grpc.StatusCode.UNKNOWN, "not today")
        channel = grpc.aio.insecure_channel(
            f"unix:{self.directory}/{request.endpoint}", options=[("grpc.default_authority", "localhost")]
        )
        self.channels.append(channel)
        stub = api_pb2_grpc.DevicePluginStub(channel)
        self.options = await stub.GetDevicePluginOptions(api_pb2.Empty(), timeout=2)
        if self.open_streams:
            self.streams[request.resource_name] = asyncio.create_task(
                self._watch(request.resource_name, stub)
            )
        return api_pb2.Empty()

    async def _watch(self, resource: str, stub: Any) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError):
            async for message in stub.ListAndWatch(api_pb2.Empty()):
                self.lists.setdefault(resource, []).append(message)
                self.when.append(asyncio.get_running_loop().time())
                self.news.set()

    async def until(self, what: Callable[[], bool], seconds: float = 10.0) -> None:
        async with asyncio.timeout(seconds):
            while not what():
                self.news.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.02):
                        await self.news.wait()

    def cancel_stream(self, resource: str) -> None:
        self.streams.pop(resource).cancel()

    async def kill(self, leave_socket: bool = False) -> None:
        """Gone without a goodbye; a hard kill leaves the socket file (kubelet.md 2)."""
        path = self.directory / "kubelet.sock"
        kept = self.directory / "kept"
        if leave_socket:
            path.rename(kept)
        for task in self.streams.values():
            task.cancel()
        for channel in self.channels:
            await channel.close()
        await self.server.stop(None)
        if leave_socket:
            kept.rename(path)


@pytest.fixture
def plugin_dir() -> Iterator[Path]:
    # pytest's own directories are deeper than a socket path may be
    with tempfile.TemporaryDirectory(prefix="kd") as path:
        yield Path(path)


@pytest.fixture
def kubelet(plugin_dir: Path) -> Callable[[], MiniKubelet]:
    """Makes a kubelet; call it inside the running loop."""
    return lambda: MiniKubelet(plugin_dir)
