"""A file that several processes map and lock, opened once in each of them.

A POSIX lock belongs to the process and is lost as soon as the process closes *any* descriptor of the file, so
every user in the process shares one descriptor; after a fork the child's locks are made anew, for a thread it
does not have may hold the inherited ones (decision 49). What the runtimes of NPUs and PPUs keep for a
container is such a file; what is in it, and which parts are locked, their own modules say.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

Key = tuple[int, int]
"""Device and inode."""


class Survivor(Protocol):
    """Somebody who has to know that he is in a forked child now."""

    def forked(self) -> None:
        """Called in the child before anything else runs."""
        ...


class SharedFile:
    """One file, mapped; `Files.open` hands it out.

    Attributes:
        words: the file as unsigned 64-bit numbers; every store of a counter goes through here, one number a
            store, so none is ever torn.
        halves: the same as unsigned 32-bit numbers.
    """

    def __init__(self, files: Files[Any], descriptor: int, path: str, size: int) -> None:
        found = os.fstat(descriptor)
        self.descriptor = descriptor
        self.path = path
        self.key: Key = (found.st_dev, found.st_ino)
        self.opens = 1
        self._files = files
        self._size = size
        self._memory = mmap.mmap(descriptor, size)
        view = memoryview(self._memory)
        self._views = (view.cast("Q"), view.cast("I"), view)
        # Views, or whatever a test puts in their place to count stores.
        self.words: Any = self._views[0]
        self.halves: Any = self._views[1]
        self._users: weakref.WeakSet[Any] = weakref.WeakSet()
        self.new_locks()

    def new_locks(self) -> None:
        """Locks that keep the threads of this process apart, held by nobody."""
        self._joining = threading.Lock()

    @property
    def users(self) -> list[Any]:
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
        return found.st_nlink > 0 and found.st_size == self._size

    def bytes(self) -> bytes:
        """All of it; what is being written may be between two stores."""
        return self._memory[:]

    def forked(self) -> None:
        """In the child: locks nobody holds, and no process slot."""
        self.new_locks()
        for user in self.users:
            user.forked()

    def close(self) -> None:
        """One user less. The last one closes the file; nobody of this process has it locked then."""
        self._files.closed(self)

    def unmap(self) -> None:
        """Close it now: mmap has a descriptor of its own, which must not go with a garbage collection."""
        for view in self._views:
            view.release()
        self._memory.close()
        os.close(self.descriptor)


F = TypeVar("F", bound=SharedFile)


class Files(Generic[F]):
    """The files of one kind that this process has open."""

    def __init__(self) -> None:
        self._open: dict[Key, F] = {}
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._forked)

    @property
    def paths(self) -> list[str]:
        """Where they are."""
        with self._lock:
            return [one.path for one in self._open.values()]

    def open(self, path: str, first: Callable[[], F]) -> F:
        """The file, or what `first` maps when this process has it not open; pair it with `SharedFile.close`.

        Raises:
            whatever `first` raises.
        """
        with self._lock:
            found = self._find(path)
            if found is None:
                found = first()
                self._open[found.key] = found
            else:
                found.opens += 1
            return found

    def bytes_of(self, path: str) -> bytes:
        """A file's bytes without ever opening a file twice that this process holds.

        Of a file of another process it is one read, which may fall into a store.

        Raises:
            OSError: ENOENT, EACCES, EISDIR, ...
        """
        with self._lock:
            found = self._find(path)
            if found is None:
                return Path(path).read_bytes()
        return found.bytes()

    def closed(self, one: F) -> None:
        """One user of it less."""
        with self._lock:
            one.opens -= 1
            if one.opens == 0:
                del self._open[one.key]
                one.unmap()

    def _find(self, path: str) -> F | None:
        try:
            found = Path(path).stat()
        except FileNotFoundError:
            return None
        return self._open.get((found.st_dev, found.st_ino))

    def _forked(self) -> None:
        self._lock = threading.Lock()  # the child has no thread that could release the one it inherits
        for one in self._open.values():
            one.forked()


def make_whole(path: str, data: bytes) -> None:
    """A new file, under a name of its own first, then linked to the real one: nobody sees it half made.

    Whoever links first has made it; a file that is there is left as it is.

    Raises:
        OSError: ENOSPC, EACCES, EROFS, …; nothing of it is left behind.
    """
    target = Path(path)
    if target.exists():
        return
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        # Processes of any user of the container write it (ascend_ppu_hami.md B.2), whatever the umask is.
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
