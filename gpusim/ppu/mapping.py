"""One state file in this process's memory, and the lock byte of each card that its processes take.

A POSIX lock belongs to the process and is lost as soon as the process closes *any* descriptor of the file, so
a file is opened once and every user in the process shares that descriptor (decision 49 says the same of the
NPU ledger). Threads are kept apart by a lock a card of their own, which a forked child makes anew.

Source: decision 53, ascend_ppu_hami.md B.7.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from gpusim.errors import GpusimError
from gpusim.ppu import layout
from gpusim.ppu.layout import CARDS, LOCKS, SIZE, Card, UnknownStateError


class StateError(GpusimError):
    """A state file cannot be used, or not so."""


class NotReadyError(StateError):
    """There is no state file yet."""


class Survivor(Protocol):
    """Somebody who has to know that he is in a forked child now."""

    def forked(self) -> None:
        """Called in the child before anything else runs."""
        ...


class Mapping:
    """A state file, mapped. `open_mapping` makes them.

    Attributes:
        words: the file as unsigned 64-bit numbers; every store of a counter is one number, never torn.
        halves: the same as unsigned 32-bit numbers.
    """

    def __init__(self, descriptor: int, path: str, key: tuple[int, int]) -> None:
        self.descriptor = descriptor
        self.path = path
        self.key = key
        self.opens = 1
        self._memory = mmap.mmap(descriptor, SIZE)
        view = memoryview(self._memory)
        self._views = (view.cast("Q"), view.cast("I"), view)
        # Views, or whatever a test puts in their place to count stores.
        self.words: Any = self._views[0]
        self.halves: Any = self._views[1]
        self._users: weakref.WeakSet[Survivor] = weakref.WeakSet()
        self._new_locks()

    def _new_locks(self) -> None:
        self._threads = [threading.Lock() for _ in range(CARDS)]
        self._joining = threading.Lock()

    @contextlib.contextmanager
    def locked(self, card: int) -> Iterator[None]:
        """While it lasts nobody else changes the numbers of this card; other cards go on."""
        with self._threads[card]:
            fcntl.lockf(self.descriptor, fcntl.LOCK_EX, 1, LOCKS + card)
            try:
                yield
            finally:
                fcntl.lockf(self.descriptor, fcntl.LOCK_UN, 1, LOCKS + card)

    @property
    def users(self) -> list[Survivor]:
        """Who is told after a fork."""
        with self._joining:
            return list(self._users)

    def join(self, user: Survivor) -> None:
        """One more who is to be told."""
        with self._joining:
            self._users.add(user)

    def leave(self, user: Survivor) -> None:
        """One less."""
        with self._joining:
            self._users.discard(user)

    @property
    def intact(self) -> bool:
        """Whether the file has a name and its size: others could make a second one beside a deleted one."""
        found = os.fstat(self.descriptor)
        return found.st_nlink > 0 and found.st_size == SIZE

    def bytes(self) -> bytes:
        """All of it; a card that is being written may be between two stores."""
        return self._memory[:]

    def forked(self) -> None:
        """In the child: locks nobody holds, and no process slot."""
        self._new_locks()
        for user in self.users:
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


def open_mapping(path: str, cards: tuple[Card, ...] | None = None) -> Mapping:
    """Map a state file; every call is to be paired with a `Mapping.close`.

    Args:
        path: of the file.
        cards: make the file with these if there is none, whole and at once: nobody ever sees it half made.

    Raises:
        NotReadyError: there is none and it is not to be made.
        UnknownStateError: it is foreign or of another version. It is left as it is (B.7).
        OSError: EACCES, EROFS, ENOSPC, ...
    """
    if sys.byteorder != "little":
        raise StateError("the state file is little-endian, and so must be the machine that maps it")
    with _opening:
        mapping = _find(path)
        if mapping is None:
            if cards is not None:
                _make(path, layout.write(cards))
            return _map(path)
        mapping.opens += 1
        return mapping


def bytes_of(path: str) -> bytes:
    """A file's bytes without ever opening a file twice that this process holds.

    Raises:
        OSError: ENOENT, EACCES, EISDIR, ...
    """
    with _opening:
        mapping = _find(path)
        return Path(path).read_bytes() if mapping is None else mapping.bytes()


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
        raise NotReadyError(f"{path}: there is no state file yet; a process with limits makes it") from None
    found = os.fstat(descriptor)
    try:
        # One byte more than it may have: a longer file is none.
        layout.check(os.pread(descriptor, SIZE + 1, 0))
    except UnknownStateError as error:
        os.close(descriptor)
        raise UnknownStateError(f"{path}: {error}; left as it is, move it away to start anew") from error
    mapping = _open[found.st_dev, found.st_ino] = Mapping(descriptor, path, (found.st_dev, found.st_ino))
    return mapping


def _make(path: str, data: bytes) -> None:
    """Under a name of its own first, then linked to the real one; whoever links first has made it."""
    target = Path(path)
    if target.exists():
        return
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        # Processes of any user of the container write it, whatever the umask is.
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
