"""Kubelet's plugin directory: who is in it, and the news that something changed there.

Sockets are no part of `devplugin.host`: they are not what a vendor decides on, and a simulated node
may stand beside a real directory. So this file, next to `linux.py`, looks at files itself, and only
in this one directory. inotify tells at once and can miss (a directory that is made later, a queue
that overflows); the registrar therefore also asks again every second or two (libraries.md,
inotify; kubelet.md 4: a server goes on behind an unlinked socket).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import socket
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

KUBELET_SOCKET = "kubelet.sock"

PATH_MAX = 107
"""Bytes a unix socket path may have: sun_path is 108 with its terminator (unix(7); kubelet.md 4)."""

YOUNG = 2.0
"""Seconds before an unanswering socket counts as dead: between bind and listen all refuse."""


class SocketPathError(Exception):
    """The plugin directory cannot hold our socket; the text names the path, the reason and the remedy."""

    permanent = False


class SocketPathTooLongError(SocketPathError):
    """No waiting will help: every name in this directory is too long."""

    permanent = True


@dataclass(frozen=True, slots=True)
class Identity:
    """Which file is at a path: a new one differs also where the file system reuses the inode number."""

    device: int
    inode: int
    made_ns: int
    """mtime of a socket: set when it is made, and by nothing that uses it."""


class Directory:
    """One plugin directory; use as a context manager, inside a running loop."""

    def __init__(self, path: str) -> None:
        self.path = path.rstrip("/") or "/"
        self._subscribers: set[Callable[[], None]] = set()
        self._notify: _Inotify | None = None

    def __enter__(self) -> Directory:
        self._notify = _Inotify(self.path, self._changed)
        self._notify.arm()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._notify is not None:
            self._notify.close()
            self._notify = None

    def subscribe(self, call: Callable[[], None]) -> None:
        """Have `call` called in the loop after anything is made, moved or removed here."""
        self._subscribers.add(call)

    def unsubscribe(self, call: Callable[[], None]) -> None:
        """End it."""
        self._subscribers.discard(call)

    def _changed(self) -> None:
        for call in tuple(self._subscribers):
            call()

    def join(self, name: str) -> str:
        """The path of a name in this directory."""
        return f"{self.path}/{name}"

    def look(self) -> None:
        """Set the watch again if the directory was made, or made anew, since the last look."""
        if self._notify is not None:
            self._notify.arm()

    def socket(self, name: str) -> Identity | None:
        """The socket of that name; None when there is none, or something that is no socket."""
        try:
            found = os.lstat(self.join(name))
        except OSError:
            return None
        if not stat.S_ISSOCK(found.st_mode):
            return None
        return Identity(found.st_dev, found.st_ino, found.st_mtime_ns)

    def misplaced(self, name: str) -> str | None:
        """A word for what lies at the name of a socket and is none: ``a regular file``; else None."""
        try:
            mode = os.lstat(self.join(name)).st_mode
        except OSError:
            return None
        if stat.S_ISSOCK(mode):
            return None
        kinds = {stat.S_IFREG: "a regular file", stat.S_IFDIR: "a directory", stat.S_IFLNK: "a symbolic link"}
        return kinds.get(stat.S_IFMT(mode), "no socket")

    def check(self, name: str) -> None:
        """Refuse a name the kernel cannot bind, with the reason that gRPC does not give (kubelet.md 4).

        Raises:
            SocketPathError: path too long, no directory, or something else at the path.
        """
        path = self.join(name)
        length = len(os.fsencode(path))
        if length > PATH_MAX:
            raise SocketPathTooLongError(
                f"socket path {path} has {length} bytes, the kernel takes {PATH_MAX}: shorten -kubelet_dir"
            )
        try:
            mode = Path(self.path).stat().st_mode
        except OSError as error:
            raise SocketPathError(
                f"plugin directory {self.path}: {error.strerror}: is kubelet installed?"
            ) from error
        if not stat.S_ISDIR(mode):
            raise SocketPathError(f"plugin directory {self.path} is not a directory: check -kubelet_dir")
        if (kind := self.misplaced(name)) is not None:
            raise SocketPathError(f"there is {kind} at {path}, where our socket is to be: remove it")
        if self.socket(name) is not None:
            raise SocketPathError(f"there is a socket at {path} already: somebody else may serve it")

    def new_name(self, prefix: str) -> str:
        """A name nobody has: a second server on one path would take it over and later unlink it."""
        return f"{prefix}-{os.getpid()}-{secrets.token_hex(4)}.sock"

    def secure(self, name: str) -> None:
        """Let only the owner connect; gRPC makes sockets 0755 (kubelet.md 4)."""
        Path(self.join(name)).chmod(0o600)

    def remove(self, name: str) -> None:
        """Remove one socket of ours; no error when it is gone."""
        Path(self.join(name)).unlink(missing_ok=True)

    def sweep(self, family: str) -> tuple[str, ...]:
        """Remove sockets that an earlier life left behind, and name them.

        Only names as `new_name` makes them under a prefix that begins with `family`, only sockets,
        and only those nobody listens on: an overlapping instance keeps its own (bug 16).
        """
        shape = re.compile(rf"{re.escape(family)}.+-\d+-[0-9a-f]{{8}}\.sock")
        try:
            names = sorted(path.name for path in Path(self.path).iterdir() if shape.fullmatch(path.name))
        except OSError:
            return ()
        removed = []
        for name in names:
            identity = self.socket(name)
            if identity is None or time.time() - identity.made_ns / 1e9 < YOUNG or answers(self.join(name)):
                continue
            with contextlib.suppress(OSError):  # EROFS, EPERM: untidy, and no reason to stop working
                self.remove(name)
                removed.append(name)
        return tuple(removed)


@dataclass(frozen=True, slots=True)
class State:
    """What a plugin directory is like before we are in it."""

    there: bool
    writable: bool
    kubelet: bool | None
    """Whether kubelet answers on its socket; None: there is no socket."""


def state(directory: str) -> State:
    """Look at a plugin directory without leaving anything in it."""
    path = f"{directory.rstrip('/')}/{KUBELET_SOCKET}"
    return State(
        there=Path(directory).is_dir(),
        writable=os.access(directory, os.W_OK | os.X_OK),
        kubelet=answers(path) if Path(path).exists() else None,
    )


def alive(directory: str, family: str) -> tuple[str, ...]:
    """Sockets of this family (see `Directory.sweep`) on which somebody answers."""
    try:
        names = sorted(path.name for path in Path(directory).iterdir() if path.name.startswith(family))
    except OSError:
        return ()
    paths = [f"{directory.rstrip('/')}/{name}" for name in names if name.endswith(".sock")]
    return tuple(path for path in paths if answers(path))


def answers(path: str) -> bool:
    """Whether somebody listens on this unix socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return False
        except OSError:  # EAGAIN: its backlog is full, so somebody lives there; others: not ours to judge
            return True
    return True


class _Inotify:
    """An inotify descriptor on the loop's reader, armed whenever the directory exists."""

    def __init__(self, path: str, call: Callable[[], None]) -> None:
        import inotify_simple

        flags = inotify_simple.flags
        self._mask = (
            flags.CREATE
            | flags.DELETE
            | flags.MOVED_TO
            | flags.MOVED_FROM
            | flags.DELETE_SELF
            | flags.MOVE_SELF
        )
        self._lost = flags.IGNORED | flags.MOVE_SELF | flags.UNMOUNT
        self._path = path
        self._call = call
        self._armed = False
        self._inotify = inotify_simple.INotify(nonblocking=True)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._inotify.fileno(), self._ready)

    def arm(self) -> None:
        """Watch, unless we do; a directory that is not there yet is looked for again."""
        if self._armed:
            return
        try:
            self._inotify.add_watch(self._path, self._mask)
        except (
            OSError
        ):  # ENOENT until kubelet makes it, ENOSPC when the node is out of watches: the poll remains
            return
        self._armed = True

    def _ready(self) -> None:
        for event in self._inotify.read(timeout=0):
            if event.mask & self._lost:
                self._armed = False
        self._call()

    def close(self) -> None:
        self._loop.remove_reader(self._inotify.fileno())
        self._inotify.close()
