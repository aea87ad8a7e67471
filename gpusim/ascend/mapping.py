"""One ledger file in this process's memory, and the lock that all of its processes take (decision 49).

A POSIX lock belongs to the process and is lost as soon as the process closes *any* descriptor of the file, so
a file is opened once and every user in the process shares that descriptor. Threads are kept apart by a lock
of their own, which a forked child makes anew: the one it inherits may be held by a thread it does not have.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import sys
import threading
import weakref
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from gpusim.ascend.reading import check_141, fresh
from gpusim.ascend.runtime import LedgerError
from gpusim.ascend.shm import V141, UnknownLedgerError

SEQ = V141.fields["seq"].offset // 8
"""Word of the sequence number: odd while somebody writes, or after a writer was killed."""


class NotReadyError(LedgerError):
    """There is no ledger yet."""


class Survivor(Protocol):
    """Somebody who has to know that he is in a forked child now."""

    def forked(self) -> None:
        """Called in the child before anything else runs."""
        ...


class Mapping:
    """A v1.4.1 ledger, mapped. `open_mapping` makes them; as a context manager it is the lock.

    Attributes:
        words: the file as unsigned 64-bit numbers; every store of a counter goes through here, one number a
            store, so none is ever torn.
        halves: the same as unsigned 32-bit numbers.
        users: told after a fork.
    """

    def __init__(self, descriptor: int, path: str, key: tuple[int, int]) -> None:
        self.descriptor = descriptor
        self.path = path
        self.key = key
        self.opens = 1
        self._memory = mmap.mmap(descriptor, V141.size)
        view = memoryview(self._memory)
        self._views = (view.cast("Q"), view.cast("I"), view)
        # Views, or whatever a test puts in their place to count stores.
        self.words: Any = self._views[0]
        self.halves: Any = self._views[1]
        self.users: weakref.WeakSet[Survivor] = weakref.WeakSet()
        self._threads = threading.Lock()

    def __enter__(self) -> Mapping:
        self._threads.acquire()
        try:
            fcntl.lockf(self.descriptor, fcntl.LOCK_EX)
        except BaseException:
            self._threads.release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            fcntl.lockf(self.descriptor, fcntl.LOCK_UN)
        finally:
            self._threads.release()

    @property
    def linked(self) -> bool:
        """Whether the file still has a name: others could make a second ledger beside a deleted one."""
        return os.fstat(self.descriptor).st_nlink > 0

    def bytes(self) -> bytes:
        """All of it as one moment left it, under the lock."""
        with self:
            return self._memory[:]

    def check(self) -> None:
        """Its head, which never changes: a writer may be at work, or have died, and both are fine.

        Raises:
            UnknownLedgerError: it is no ledger of this version.
        """
        check_141(self._memory)

    def forked(self) -> None:
        """In the child: a lock nobody holds, and no process slot."""
        self._threads = threading.Lock()
        for user in list(self.users):
            user.forked()

    def close(self) -> None:
        """One user less. The last one closes the file; nobody of this process has it locked then."""
        with _opening:
            self.opens -= 1
            if self.opens == 0:
                del _open[self.key]
                self.unmap()

    def unmap(self) -> None:
        """Close it now: mmap has a descriptor of its own, which must not go with a garbage collection."""
        for view in self._views:
            view.release()
        self._memory.close()
        os.close(self.descriptor)


_open: dict[tuple[int, int], Mapping] = {}
_opening = threading.Lock()


def open_mapping(path: str, limits: tuple[int, ...] | None = None) -> Mapping:
    """Map a ledger; every call is to be paired with a `Mapping.close`.

    Args:
        path: of the file.
        limits: make the file if there is none, whole and at once: nobody ever sees it half made.

    Raises:
        NotReadyError: there is none and it is not to be made.
        UnknownLedgerError: it is none of this version. It is not touched (B.6: reading is not sharing).
        LedgerError: it has other limits than those given.
        OSError: EACCES, EROFS, ENOSPC, ...
    """
    if sys.byteorder != "little":
        raise LedgerError("the ledger is little-endian, and so must be the machine that maps it")
    with _opening:
        mapping = _find(path)
        if mapping is None:
            if limits is not None:
                _make(path, fresh(limits))
            mapping = _find(path) or _map(path)
        else:
            mapping.opens += 1
    if limits is not None and (found := limits_of(mapping)) != limits:
        mapping.close()
        raise LedgerError(f"{path}: its limits are {found}, not {limits}: one container has one quota")
    return mapping


def limits_of(mapping: Mapping) -> tuple[int, ...]:
    """Bytes, one a device of the container. They never change."""
    first, devices = V141.fields["limit"].offset // 8, mapping.halves[V141.fields["devices"].offset // 4]
    return tuple(mapping.words[first : first + devices])


def bytes_of(path: str) -> bytes:
    """A ledger's bytes without ever opening a file twice that this process holds.

    Of a file of another process it is one read, which may fall into a store: `seq` tells.

    Raises:
        OSError: ENOENT, EACCES, EISDIR, ...
    """
    with _opening:
        mapping = _find(path)
        if mapping is None:
            return Path(path).read_bytes()
    return mapping.bytes()


def _find(path: str) -> Mapping | None:
    try:
        found = Path(path).stat()
    except FileNotFoundError:
        return None
    return _open.get((found.st_dev, found.st_ino))


def _map(path: str) -> Mapping:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        raise NotReadyError(f"{path}: there is no ledger yet") from None
    found = os.fstat(descriptor)
    if found.st_size != V141.size:
        os.close(descriptor)
        raise UnknownLedgerError(f"{path}: {found.st_size} bytes: no ledger of 1.4.1, left as it is")
    mapping = Mapping(descriptor, path, (found.st_dev, found.st_ino))
    try:
        mapping.check()
    except UnknownLedgerError as error:
        mapping.unmap()
        raise UnknownLedgerError(f"{path}: left as it is: {error}") from error
    _open[mapping.key] = mapping
    return mapping


def _make(path: str, data: bytes) -> None:
    """Under a name of its own first, then linked to the real one; whoever links first has made it."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists():
        return
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        # Processes of any user of the container write it (B.2), whatever the umask is.
        os.fchmod(descriptor, 0o666)
        rest = memoryview(data)
        while rest:  # a full disk takes a part, and the next write says why it takes no more
            rest = rest[os.write(descriptor, rest) :]
        os.link(draft, target)
    except FileExistsError:
        pass
    finally:
        os.close(descriptor)
        draft.unlink(missing_ok=True)


def _after_fork() -> None:
    global _opening  # noqa: PLW0603 - the child has no thread that could release the one it inherits
    _opening = threading.Lock()
    for mapping in _open.values():
        mapping.forked()


os.register_at_fork(after_in_child=_after_fork)
