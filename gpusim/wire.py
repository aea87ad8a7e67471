"""The frames between a served machine and its clients, and how values and errors travel in them.

A frame is two big-endian u32 (length of the header, length of the body), a JSON header, and raw bytes: file
contents are never encoded. A request's header is ``{"do": method, "args": {…}, "as": caller or null}``, an
answer's ``{"value": …}`` or ``{"error": {…}}``. One answer to each request, in order, per connection.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from typing import Any

from gpusim.allocation import Allocation
from gpusim.errors import GpusimError
from gpusim.nodes import Kind, Stat
from gpusim.process import DeviceRules, Handle, Process

PROTOCOL = 3
"""Number in the greeting; a client and a server of different numbers refuse each other."""
LONGEST_SOCKET_PATH = 107
"""Bytes that fit into sockaddr_un.sun_path with its NUL (unix(7))."""
_LENGTHS = struct.Struct("!II")
_MAX_HEADER = 16 << 20
_MAX_BODY = 1 << 30

Header = dict[str, Any]


class GarbledError(GpusimError):
    """The other end speaks something else, or went away in the middle of a frame."""


class Channel:
    """One connection, used by one thread at a time."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._reader = connection.makefile("rb")

    def send(self, header: Header, body: bytes = b"") -> None:
        """Write one frame."""
        text = json.dumps(header, separators=(",", ":")).encode()
        self._socket.sendall(_LENGTHS.pack(len(text), len(body)) + text + body)

    def receive(self) -> tuple[Header, bytes] | None:
        """The next frame; None when the other end has closed between two frames.

        Raises:
            GarbledError: no frame of ours.
            OSError: the connection failed.
        """
        lengths = self._reader.read(_LENGTHS.size)
        if not lengths:
            return None
        if len(lengths) < _LENGTHS.size:
            raise GarbledError("connection closed in the middle of a frame")
        header_length, body_length = _LENGTHS.unpack(lengths)
        if header_length > _MAX_HEADER or body_length > _MAX_BODY:
            raise GarbledError("not a frame of the gpusim protocol")
        frame = self._reader.read(header_length + body_length)
        if len(frame) < header_length + body_length:
            raise GarbledError("connection closed in the middle of a frame")
        try:
            header = json.loads(frame[:header_length])
        except (ValueError, RecursionError):
            raise GarbledError("not a frame of the gpusim protocol") from None
        if not isinstance(header, dict):
            raise GarbledError("not a frame of the gpusim protocol")
        return header, frame[header_length:]

    def finish(self) -> None:
        """Let the other end's next `receive` see the end; what is being answered still arrives."""
        try:
            self._socket.shutdown(socket.SHUT_RD)
        except OSError:
            return  # it has gone already

    def __del__(self) -> None:
        # A client's thread that ends, or a client that is dropped, takes its connection with it.
        self.close()

    def close(self) -> None:
        """Close both directions."""
        self._reader.close()
        self._socket.close()


def check_path(path: str) -> None:
    """Refuse what the kernel cannot bind or connect to.

    Raises:
        GpusimError: over 107 bytes, or empty.
    """
    length = len(os.fsencode(path))
    if not path or length > LONGEST_SOCKET_PATH:
        raise GpusimError(
            f"socket path {path!r} has {length} bytes, a unix socket takes 1 to {LONGEST_SOCKET_PATH}: "
            "use a shorter path, such as one in /tmp"
        )


def error_out(error: Exception) -> Header:
    """An exception as JSON. OSError keeps errno, text and file name; everything else its text."""
    if isinstance(error, OSError):
        code = error.errno
        text = error.strerror if error.strerror is not None else str(error)
        if code is None and isinstance(error, TimeoutError):
            return {"timeout": str(error)}
        return {"errno": code, "strerror": text, "filename": error.filename}
    if isinstance(error, GpusimError):
        return {"text": str(error)}
    return {"text": f"{type(error).__name__}: {error}"}


def error_in(error: Header) -> Exception:
    """The exception to raise for `error_out`'s JSON: OSError of the same errno, else GpusimError."""
    if "timeout" in error:
        return TimeoutError(error["timeout"])
    if "errno" in error:
        return OSError(error["errno"], error["strerror"], error["filename"])
    return GpusimError(error["text"])


def stat_out(stat: Any) -> list[Any]:
    """A `Stat` of anybody's as JSON."""
    return [stat.kind.name, stat.mode, stat.size, stat.rdev, stat.uid, stat.gid]


def stat_in(value: list[Any]) -> Stat:
    """The `Stat` of `stat_out`'s JSON."""
    kind, mode, size, rdev, uid, gid = value
    return Stat(Kind[kind], mode, size, None if rdev is None else (rdev[0], rdev[1]), uid, gid)


def rules_out(rules: DeviceRules | None) -> list[str] | None:
    """A device allow list as its lines; None stays None."""
    return None if rules is None else rules.lines()


def rules_in(lines: list[str] | None) -> DeviceRules | None:
    """The allow list of `rules_out`'s lines."""
    return None if lines is None else DeviceRules.parse(*lines)


def handle_out(handle: Handle) -> Header:
    """An open file as JSON."""
    return {"number": handle.number, "pid": handle.pid, "path": handle.path, "rdev": handle.rdev}


def handle_in(value: Header) -> Handle:
    """A client's copy of an open file: same number, no release function."""
    rdev = value["rdev"]
    return Handle(value["number"], value["pid"], value["path"], None if rdev is None else (rdev[0], rdev[1]))


def process_out(process: Process) -> Header:
    """A process as JSON."""
    return {
        "pid": process.pid,
        "uid": process.uid,
        "gids": process.gids,
        "devices": rules_out(process.devices),
        "cgroup": process.cgroup,
        "files": [handle_out(handle) for handle in process.files.values()],
    }


def process_in(value: Header) -> Process:
    """A client's copy of a process; its files are those open when it was asked for."""
    files = {handle["number"]: handle_in(handle) for handle in value["files"]}
    devices = rules_in(value["devices"])
    return Process(value["pid"], value["uid"], tuple(value["gids"]), devices, files, cgroup=value["cgroup"])


_ALLOCATION = ("number", "pid", "bdf", "minor", "bytes", "place", "cgroup", "gpu_id", "handle", "lost")


def allocation_out(allocation: Allocation) -> Header:
    """An allocation as JSON."""
    return {name: getattr(allocation, name) for name in _ALLOCATION}


def allocation_in(value: Header) -> Allocation:
    """A client's copy of an allocation: same number, no counter."""
    return Allocation(**value)
