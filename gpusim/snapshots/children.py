"""Reads files in child processes, so that one that never answers costs seconds and not the recording.

A sysfs attribute can hang in the driver (a GPU that fell off the bus, firmware that does not reply), and a
thread in the kernel cannot be called back. So children read; one whose answer is overdue is killed and
left behind, and another takes its place. A few are kept for all files: a read costs two pipe messages more
than in this process.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import signal
import struct
import time
import warnings
from collections.abc import Callable, Iterable, Iterator

_LENGTH = struct.Struct("<I")
_ANSWER = struct.Struct("<iI")
_ENDED = (signal.SIGINT, signal.SIGTERM)

Read = Callable[[str], bytes]
Answer = tuple[str, "bytes | OSError"]


class _Child:
    """One process that reads what it is told, one file after the other."""

    def __init__(self, read: Read, siblings: Iterable[_Child]) -> None:
        requests, self.requests = os.pipe()
        self.answers, answers = os.pipe()
        # Ctrl-C reaches the whole process group: children leave it to the parent, from their first moment.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDED)
        try:
            with warnings.catch_warnings():
                # A lock that another thread holds at this moment may hang the child: then it is overdue.
                warnings.simplefilter("ignore", DeprecationWarning)
                self.pid = os.fork()
            if self.pid == 0:
                # Not the terminal's, so a child left behind keeps no pipeline waiting; not the siblings', so
                # they see the end of their requests when the parent is gone.
                mine = (requests, answers)
                others = [fd for child in siblings for fd in (child.requests, child.answers)]
                for descriptor in (0, 1, 2, self.requests, self.answers, *others):
                    if descriptor not in mine:
                        with contextlib.suppress(OSError):
                            os.close(descriptor)
                _serve(read, requests, answers)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(requests)
        os.close(answers)
        self.path = ""
        self.due = 0.0
        self.got = bytearray()
        self.died = False

    def ask(self, path: str, patience: float) -> None:
        """Send one path; the answer is due in `patience` seconds."""
        name = os.fsencode(path)
        self.path, self.due, self.got = path, time.monotonic() + patience, bytearray()
        with contextlib.suppress(BrokenPipeError):  # it died idle: its answer is the end of the other pipe
            os.write(self.requests, _LENGTH.pack(len(name)) + name)

    def answer(self) -> bytes | OSError | None:
        """What has arrived; None while it is not whole."""
        chunk = os.read(self.answers, 1 << 16)
        if not chunk:
            self.died = True
            return _error(errno.EIO, self.path)
        self.got += chunk
        if len(self.got) < _ANSWER.size:
            return None
        code, length = _ANSWER.unpack_from(self.got)
        if len(self.got) < _ANSWER.size + length:
            return None
        return _error(code, self.path) if code else bytes(self.got[_ANSWER.size :])

    def end(self) -> bool:
        """Kill it; whether it is gone (one that hangs in the kernel is not, and is not waited for)."""
        for descriptor in (self.requests, self.answers):
            with contextlib.suppress(OSError):
                os.close(descriptor)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        return self.gone(0.2)

    def gone(self, patience: float = 0.0) -> bool:
        """Whether the process has ended, within `patience` seconds."""
        end = time.monotonic() + patience
        while True:
            try:
                if os.waitpid(self.pid, os.WNOHANG)[0]:
                    return True
            except ChildProcessError:
                return True
            if time.monotonic() >= end:
                return False
            time.sleep(0.001)


class Readers:
    """A few children that read files; use it as a context manager, or `close` it.

    Args:
        read: what a child does with a path: the bytes, or OSError. It runs in a forked process.
        children: how many at once.
        patience: seconds after which a child is abandoned, and its file answers ETIMEDOUT.
    """

    def __init__(self, read: Read, *, children: int = 4, patience: float = 2.0) -> None:
        self._read = read
        self._most = children
        self._patience = patience
        self._idle: list[_Child] = []
        self._busy: dict[int, _Child] = {}
        self._left: list[_Child] = []

    def __enter__(self) -> Readers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all children."""
        for child in (*self._idle, *self._busy.values()):
            if not child.end():
                self._left.append(child)
        self._idle.clear()
        self._busy.clear()
        self._left = [child for child in self._left if not child.gone()]

    def one(self, path: str) -> bytes:
        """One file's content.

        Raises:
            OSError: what reading gave; ETIMEDOUT when it did not answer in time.
        """
        for _, answer in self.all([path]):
            if isinstance(answer, OSError):
                raise answer
            return answer
        raise AssertionError("every path is answered")

    def all(self, paths: Iterable[str]) -> Iterator[Answer]:
        """(path, content or OSError) of every path, in the order the answers come."""
        todo = iter(paths)
        more = True
        with selectors.DefaultSelector() as ready:
            while more or self._busy:
                while more and len(self._busy) < self._most:
                    path = next(todo, None)
                    if path is None:
                        more = False
                        break
                    child = self._idle.pop() if self._idle else self._another()
                    child.ask(path, self._patience)
                    self._busy[child.answers] = child
                    ready.register(child.answers, selectors.EVENT_READ)
                if not self._busy:
                    break
                soonest = min(child.due for child in self._busy.values())
                for key, _ in ready.select(max(0.0, soonest - time.monotonic())):
                    child = self._busy[key.fd]
                    answer = child.answer()
                    if answer is not None:
                        ready.unregister(key.fd)
                        del self._busy[key.fd]
                        self._settle(child)
                        yield child.path, answer
                now = time.monotonic()
                for child in [child for child in self._busy.values() if child.due <= now]:
                    ready.unregister(child.answers)
                    del self._busy[child.answers]
                    if not child.end():
                        self._left.append(child)
                    yield child.path, _error(errno.ETIMEDOUT, child.path)

    def _another(self) -> _Child:
        return _Child(self._read, self._busy.values())

    def _settle(self, child: _Child) -> None:
        """Keep a child for the next file, unless it died over this one."""
        if child.died:
            child.end()
        else:
            self._idle.append(child)


def _serve(read: Read, requests: int, answers: int) -> None:
    """A child's whole life; it never returns."""
    try:
        while head := _exactly(requests, _LENGTH.size):
            path = os.fsdecode(_exactly(requests, _LENGTH.unpack(head)[0]))
            try:
                data, code = read(path), 0
            except OSError as error:
                data, code = b"", error.errno or errno.EIO
            left = memoryview(_ANSWER.pack(code, len(data)) + data)
            while left:
                left = left[os.write(answers, left) :]
    except BaseException:  # noqa: S110  the parent sees the end of the pipe and says EIO
        pass
    os._exit(0)


def _exactly(descriptor: int, length: int) -> bytes:
    """That many bytes; nothing at the end of the pipe."""
    data = b""
    while len(data) < length:
        chunk = os.read(descriptor, length - len(data))
        if not chunk:
            return b""
        data += chunk
    return data


def _error(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)
