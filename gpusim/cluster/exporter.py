"""AMD's device metrics exporter as far as a plugin sees it: health by GPU, over real gRPC on a unix socket.

The messages are encoded here by hand, so that a plugin's generated stubs meet somebody else's bytes.
Source: amd.md 10 (service, fields, both package names); protobuf's wire format for strings.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import grpc

METRICSSVC = "metricssvc.MetricsService"
GPUMETRICSSVC = "gpumetricssvc.MetricsService"
"""The regenerated package's name; no released server is known to use it (amd.md 10)."""


@dataclass(frozen=True, slots=True)
class State:
    """One GPU as the exporter reports it."""

    device: str
    """PCI address."""
    health: str = "healthy"
    id: str = ""
    uuid: str = ""
    workloads: tuple[str, ...] = ()


class Exporter:
    """A simulated exporter; a context manager.

    Args:
        socket: path of the unix socket.
        services: full names it answers under.
    """

    def __init__(self, socket: str, services: Iterable[str] = (METRICSSVC,)) -> None:
        self.socket = socket
        self.services = tuple(services)
        self.calls: list[str] = []
        """Full method names, in order."""
        self._states: dict[str, State] = {}
        self._server: grpc.Server | None = None
        self._open = threading.Event()
        self._open.set()

    def set(self, device: str, health: str) -> None:
        """Report this health of a GPU from now on."""
        self._states[device] = State(device, health, str(len(self._states)))

    def forget(self, device: str) -> None:
        """Do not report a GPU any more."""
        del self._states[device]

    def hang(self) -> None:
        """Take questions and do not answer them, until `answer`."""
        self._open.clear()

    def answer(self) -> None:
        """Answer again, also what waits."""
        self._open.set()

    def start(self) -> Exporter:
        """Listen."""
        Path(self.socket).unlink(missing_ok=True)
        self._server = grpc.server(ThreadPoolExecutor(4))
        for service in self.services:
            handlers = {
                name: grpc.unary_unary_rpc_method_handler(self._method(f"{service}/{name}", selected))
                for name, selected in (("List", False), ("GetGPUState", True))
            }
            self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        self._server.add_insecure_port(f"unix:{self.socket}")
        self._server.start()
        return self

    def stop(self, *, leave_socket: bool = False) -> None:
        """End; `leave_socket` as after a crash: the file stays and nobody answers."""
        self._open.set()
        if self._server is not None:
            self._server.stop(None).wait()
            self._server = None
        path = Path(self.socket)
        if not leave_socket:
            path.unlink(missing_ok=True)
        elif not path.exists():  # gRPC removes it at an orderly end
            _left_behind(self.socket)

    def __enter__(self) -> Exporter:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def _method(self, name: str, selected: bool) -> Callable[[bytes, grpc.ServicerContext], bytes]:
        def call(request: bytes, context: grpc.ServicerContext) -> bytes:
            self.calls.append(name)
            self._open.wait()
            states = list(self._states.values())
            if selected:
                ids = set(_strings(request))
                states = [state for state in states if state.id in ids]
            return encode(states)

        return call


def encode(states: Iterable[State]) -> bytes:
    """A GPUStateResponse: field 1 repeated, each a GPUState of five string fields."""
    return b"".join(
        _field(
            1,
            _text(1, state.id)
            + _text(2, state.uuid)
            + _text(3, state.health)
            + b"".join(_field(4, one.encode()) for one in state.workloads)
            + _text(5, state.device),
        )
        for state in states
    )


def _text(number: int, value: str) -> bytes:
    """A string field; proto3 leaves an empty one out."""
    return _field(number, value.encode()) if value else b""


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _strings(message: bytes) -> list[str]:
    """Field 1, repeated string, of a message that has no other field."""
    found: list[str] = []
    at = 0
    while at < len(message) and message[at] == 1 << 3 | 2:
        at += 1
        length = shift = 0
        while True:
            length |= (message[at] & 0x7F) << shift
            at, shift, more = at + 1, shift + 7, message[at] & 0x80
            if not more:
                break
        found.append(message[at : at + length].decode())
        at += length
    return found


def _left_behind(path: str) -> None:
    import socket

    with contextlib.closing(socket.socket(socket.AF_UNIX)) as made:
        made.bind(path)
