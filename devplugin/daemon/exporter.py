"""Ask AMD's metrics exporter what it thinks of each GPU, over gRPC on its unix socket.

The exporter is optional: no socket, no question, not a word. One that is there and does not answer is
logged once an outage, and never keeps a list from kubelet for longer than its deadline. A new connection
each time, because the exporter restarts when it likes (amd.md 10). The messages are those of
`devplugin.exporterapi`; under which of its names the service answers is found out by asking.
"""

from __future__ import annotations

import asyncio
import logging

import grpc
from google.protobuf.empty_pb2 import Empty

from devplugin.answers import HealthSource, Reports
from devplugin.exporterapi import metricssvc_pb2
from devplugin.linux import LinuxHost

log = logging.getLogger(__name__)

DEADLINE = 5.0
"""Seconds for the whole question (amd.md 10)."""

_OPTIONS = (("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1))
"""No shared subchannel: a new connection each time also after a failed one, whose backoff would linger."""


class Exporter:
    """The exporter behind one socket."""

    def __init__(self, source: HealthSource, *, deadline: float = DEADLINE) -> None:
        self._source = source
        self._deadline = deadline
        self._away = False

    async def ask(self) -> Reports:
        """What it says now; never raises for anything the other end does."""
        if not await asyncio.to_thread(_is_there, self._source.socket):
            self._away = False
            return Reports()
        try:
            async with asyncio.timeout(self._deadline):
                answer = await self._list()
        except TimeoutError:
            return self._silent(f"no answer within {self._deadline:g} s")
        except grpc.aio.AioRpcError as error:
            return self._silent(f"{error.code().name}: {error.details()}")
        if self._away:
            log.info("metrics exporter at %s answers again", self._source.socket)
        self._away = False
        return Reports(_merged(answer))

    async def _list(self) -> metricssvc_pb2.GPUStateResponse:
        *others, last = self._source.services
        async with grpc.aio.insecure_channel(f"unix:{self._source.socket}", options=_OPTIONS) as channel:
            for service in others:
                try:
                    return await self._call(channel, service)
                except grpc.aio.AioRpcError as error:
                    if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
                        raise
            return await self._call(channel, last)

    async def _call(self, channel: grpc.aio.Channel, service: str) -> metricssvc_pb2.GPUStateResponse:
        call = channel.unary_unary(
            f"/{service}/List",
            request_serializer=Empty.SerializeToString,
            response_deserializer=metricssvc_pb2.GPUStateResponse.FromString,
        )
        answer: metricssvc_pb2.GPUStateResponse = await call(Empty(), timeout=self._deadline)
        return answer

    def _silent(self, why: str) -> Reports:
        if not self._away:
            log.warning(
                "metrics exporter at %s: %s; what it said last stands until it answers",
                self._source.socket,
                why,
            )
        self._away = True
        return Reports(silent=True)


def _merged(answer: metricssvc_pb2.GPUStateResponse) -> dict[str, str]:
    """Device → its word; where one device stands twice, the word that is not ``healthy``."""
    states: dict[str, str] = {}
    for state in answer.GPUState:
        if states.get(state.Device, "healthy") == "healthy":
            states[state.Device] = state.Health
    return states


def _is_there(path: str) -> bool:
    """Sockets are this process's, not the node's: the real file system is asked, also on a simulated node."""
    try:
        LinuxHost("/").stat(path)
    except OSError:
        return False
    return True
