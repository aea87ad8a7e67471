"""What a mounted machine answers to each operation the kernel asks for (FUSE's high-level interface).

Free of libfuse: `gpusim.export.fuse` connects the two, and its docstring says what a mount cannot carry.
Sources: Linux ``fs/kernfs/file.c`` and ``fs/sysfs/file.c`` for what an offset, a length or a mode means to
the kernel's own files; kernel.md 1.8, 2.1 and 6 for who may.
"""

from __future__ import annotations

import errno
import os
import posixpath
import stat as modes
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from gpusim.errors import GpusimError
from gpusim.export.fuseabsent import Absent, error
from gpusim.export.holders import Holders
from gpusim.nodes import PAGE, Kind, Stat
from gpusim.process import Handle

if TYPE_CHECKING:
    from gpusim.machine import Machine
    from gpusim.remote import RemoteMachine, RemoteView
    from gpusim.view import View

_P = ParamSpec("_P")
_T = TypeVar("_T")

_KINDS = {
    Kind.DIRECTORY: modes.S_IFDIR,
    Kind.FILE: modes.S_IFREG,
    Kind.LINK: modes.S_IFLNK,
    Kind.CHARACTER: modes.S_IFREG,
    Kind.OTHER: modes.S_IFREG,
}
_ABOVE = {"st_mode": modes.S_IFDIR, "st_ino": 1}
"""The kernel makes ``..`` itself."""
_NULL = (1, 3)
_KERNELS = ("/sys/", "/proc/")
"""Where files are the kernel's: they have no length to cut, and a write has no place."""


@dataclass(frozen=True, slots=True)
class Stub:
    """A name that is only there for something else to be mounted on, or a link: of no node.

    Args:
        kind: directory, file or link.
        target: the text of a link.
    """

    kind: Kind
    target: str = ""


@dataclass(slots=True)
class _Open:
    """An open file or directory of the mount."""

    path: str
    view: View | RemoteView
    """The node as the opener saw it when opening; permissions are not asked again."""
    content: bytes | None = None
    """What was read at offset 0: the rest of one reading is of the same text, as in a seq_file."""
    rdev: tuple[int, int] | None = None
    handle: Handle | None = None
    pid: int = 0
    entries: list[tuple[str, int]] = field(default_factory=list)
    """Name and kind (S_IFMT) of what was in a directory."""


def _op(
    method: Callable[Concatenate[Operations, _P], _T],
) -> Callable[Concatenate[Operations, _P], _T]:
    """An operation whose failures are errnos: a server that went away is EIO, not an exception in libfuse."""

    def answered(self: Operations, /, *args: _P.args, **named: _P.kwargs) -> _T:
        try:
            return method(self, *args, **named)
        except GpusimError:
            raise OSError(errno.EIO, os.strerror(errno.EIO)) from None

    return answered


class Operations(Absent):
    """What libfuse asks, answered by a machine. One thread at a time, paths without links and ``..``.

    Args:
        machine: whose tree.
        who: (uid, gid, pid) of the caller of the current operation.
        stubs: further names, over those of the node.
        ready: called once, when the kernel has accepted the mount.
    """

    use_ns = True

    def __init__(
        self,
        machine: Machine | RemoteMachine,
        who: Callable[[], tuple[int, int, int]],
        *,
        stubs: Mapping[str, Stub] | None = None,
        ready: Callable[[], None] | None = None,
    ) -> None:
        self.machine = machine
        self._who = who
        self._stubs = dict(stubs or {})
        self._ready = ready
        self._open: dict[int, _Open] = {}
        self._next = 1
        self._holders = Holders(machine)
        self._began = time.time_ns()

    # The mount itself

    def init(self, path: str) -> None:
        """The kernel is connected."""
        if self._ready is not None:
            self._ready()

    def destroy(self, path: str) -> None:
        """Unmounted: whatever is still open is closed on the node."""
        for number in list(self._open):
            self.release(path, number)

    def statfs(self, path: str) -> dict[str, int]:
        """No blocks, as sysfs."""
        return {"f_bsize": PAGE, "f_frsize": PAGE, "f_namemax": 255}

    # Looking

    @_op
    def getattr(self, path: str, fh: int | None = None) -> dict[str, int]:
        """lstat. A device is a regular file of its mode and owner."""
        stub = self._stubs.get(path)
        if stub is not None:
            mode = 0o777 if stub.kind is Kind.LINK else 0o555 if stub.kind is Kind.DIRECTORY else 0o444
            found = Stat(stub.kind, mode, len(stub.target))
        else:
            found = self._view().stat(path, follow=False)
        return {
            "st_mode": _KINDS[found.kind] | found.mode,
            "st_ino": _number(path),
            # 1 tells `find` that subdirectories were not counted; 2 would promise that there are none.
            "st_nlink": 1,
            "st_uid": found.uid,
            "st_gid": found.gid,
            "st_size": found.size,
            "st_blksize": PAGE,
            "st_atime": self._began,
            "st_mtime": self._began,
            "st_ctime": self._began,
        }

    @_op
    def access(self, path: str, amode: int) -> int:
        """access(2), and what chdir(2) asks: permission bits alone, as in generic_permission."""
        stub = self._stubs.get(path)
        found = Stat(stub.kind, 0o555) if stub else self._view().stat(path)
        uid, gids = self._ids()
        if uid == 0:
            executable = found.kind is Kind.DIRECTORY or found.mode & 0o111
            allowed = 7 if executable else 6
        elif uid == found.uid:
            allowed = found.mode >> 6
        else:
            allowed = found.mode >> 3 if found.gid in gids else found.mode
        if amode & 7 & ~allowed:
            raise error(errno.EACCES)
        return 0

    @_op
    def readlink(self, path: str) -> str:
        """The text of a link; an absolute one is told relative, or it would leave the mount."""
        if (stub := self._stubs.get(path)) is not None and stub.target:
            return stub.target
        target = self._view().readlink(path)
        if target.startswith("/"):
            return posixpath.relpath(target, posixpath.dirname(path))
        return str(target)

    @_op
    def opendir(self, path: str) -> int:
        """The names are those of this moment."""
        view = self._view()
        below = path.rstrip("/") + "/"
        extra = {name[len(below) :] for name in self._stubs if name.startswith(below)}
        names = {name for name in extra if "/" not in name}
        if path not in self._stubs:
            names |= set(view.list(path))
        return self._keep(
            _Open(path, view, entries=[(name, self._kind(below + name, view)) for name in sorted(names)])
        )

    def _kind(self, path: str, view: View | RemoteView) -> int:
        """S_IFMT bits; 0, unknown to readdir(3), when the name has just gone."""
        try:
            found = self._stubs.get(path) or view.stat(path, follow=False)
        except OSError:
            return 0
        return _KINDS[found.kind]

    @_op
    def readdir(self, path: str, fh: int) -> list[tuple[str, dict[str, int], int]]:
        """What `opendir` saw. An entry without an inode number would be skipped by readdir(3)."""
        opened = self._open[fh]
        below = opened.path.rstrip("/") + "/"
        inner = [
            (name, {"st_mode": kind, "st_ino": _number(below + name)}, 0) for name, kind in opened.entries
        ]
        return [(".", {"st_mode": modes.S_IFDIR, "st_ino": _number(path)}, 0), ("..", _ABOVE, 0), *inner]

    def releasedir(self, path: str, fh: int) -> int:
        """closedir."""
        self._open.pop(fh, None)
        return 0

    # Files

    @_op
    def open(self, path: str, flags: int) -> int:
        """open(2) with every permission check; a device is opened, and held, on the node."""
        if path in self._stubs:
            raise error(errno.EACCES)
        view = self._view()
        access = {os.O_RDONLY: "r", os.O_WRONLY: "w"}.get(flags & os.O_ACCMODE, "rw")
        found = view.stat(path)
        if found.kind is not Kind.CHARACTER or found.rdev == _NULL:
            view.probe(path, access)
            return self._keep(_Open(path, view, rdev=found.rdev))
        pid = self._who()[2]
        handle = self._holders.open(pid, self._ids(), path)
        return self._keep(_Open(path, view, rdev=found.rdev, handle=handle, pid=pid))

    @_op
    def create(self, path: str, mode: int) -> int:
        """open(2) of a name that is not there, with O_CREAT. EACCES on kernfs."""
        view = self._view()
        view.put(path, b"", mode & 0o7777)
        return self._keep(_Open(path, view))

    @_op
    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        """read(2): computed at offset 0, then continued."""
        opened = self._open[fh]
        if opened.rdev is not None:
            if opened.rdev != _NULL:
                raise error(errno.EINVAL)
            return b""
        if offset == 0 or opened.content is None:
            try:
                opened.content = bytes(opened.view.read(opened.path))
            except FileNotFoundError:
                raise error(errno.ENODEV) from None
        return opened.content[offset : offset + size]

    @_op
    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        """write(2). A file of the kernel takes it whatever the offset."""
        opened = self._open[fh]
        if opened.rdev is not None:
            if opened.rdev != _NULL:
                raise error(errno.EINVAL)
            return len(data)
        for other in self._open.values():
            if other.path == opened.path:
                other.content = None
        try:
            if not offset or _of_kernel(opened.path):
                return int(opened.view.write(opened.path, data))
            before = self.machine.read(opened.path)[:offset].ljust(offset, b"\0")
            return int(opened.view.write(opened.path, before + data)) - offset
        except FileNotFoundError:
            raise error(errno.ENODEV) from None

    @_op
    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        """O_TRUNC of the shell's ``>``: nothing to the kernel's files, which have no length."""
        opened = self._open.get(fh) if fh is not None else None
        view = self._view() if opened is None else opened.view
        if opened is None:
            view.probe(path, "w")
        if not _of_kernel(path) and (opened is None or opened.rdev is None):
            before = self.machine.read(path)
            if len(before) != length:
                view.put(path, before[:length].ljust(length, b"\0"), view.stat(path).mode)
        return 0

    @_op
    def release(self, path: str, fh: int) -> int:
        """The last close."""
        opened = self._open.pop(fh, None)
        if opened is not None and opened.handle is not None:
            self._holders.close(opened.pid, opened.handle)
        return 0

    # Names

    @_op
    def mknod(self, path: str, mode: int, dev: int) -> int:
        """A file, or a device node by root, as a container runtime makes them in /dev."""
        if modes.S_ISREG(mode):
            self._view().put(path, b"", mode & 0o7777)
        elif modes.S_ISCHR(mode) and self._who()[0] == 0:
            self.machine.mknod(path, os.major(dev), os.minor(dev), mode & 0o7777)
        else:
            raise error(errno.EPERM)
        return 0

    @_op
    def mkdir(self, path: str, mode: int) -> int:
        """EPERM on kernfs; a cgroup below /sys/fs/cgroup."""
        self._view().mkdir(path, mode & 0o7777)
        return 0

    @_op
    def rmdir(self, path: str) -> int:
        """EPERM on kernfs; the end of a cgroup."""
        self._view().rmdir(path)
        return 0

    @_op
    def unlink(self, path: str) -> int:
        """EPERM on kernfs."""
        self._view().unlink(path)
        return 0

    @_op
    def rename(self, old: str, new: str) -> int:
        """EPERM on kernfs."""
        self._view().rename(old, new)
        return 0

    @_op
    def symlink(self, target: str, source: str) -> int:
        """A link at `target` with the text `source` (libfuse's order). EPERM on kernfs."""
        self._view().symlink(source, target)
        return 0

    @_op
    def chmod(self, path: str, mode: int) -> int:
        """Kept for ordinary files; EPERM for the kernel's, whose modes are the driver's."""
        view = self._view()
        found = view.stat(path, follow=False)
        mode &= 0o7777
        if mode != found.mode:
            if found.kind is not Kind.FILE or _of_kernel(path) or self._ids()[0] not in (0, found.uid):
                raise error(errno.EPERM)
            view.put(path, self.machine.read(path), mode)
        return 0

    @_op
    def chown(self, path: str, uid: int, gid: int) -> int:
        """To whom it belongs already; EPERM otherwise (-1: leave as it is)."""
        found = self._view().stat(path, follow=False)
        if uid not in (-1, found.uid) or gid not in (-1, found.gid):
            raise error(errno.EPERM)
        return 0

    @_op
    def utimens(self, path: str, times: tuple[int, int] | None = None) -> int:
        """Times are those of the mount; ``touch`` of what is there does no harm."""
        if path not in self._stubs:
            self._view().stat(path, follow=False)
        return 0

    # Who asks

    def _ids(self) -> tuple[int, tuple[int, ...]]:
        """User and groups of the caller."""
        uid, gid, pid = self._who()
        return uid, (gid, *_groups(pid)) if uid else (gid,)

    def _view(self) -> View | RemoteView:
        """The node as the caller sees it."""
        uid, gids = self._ids()
        return self.machine if uid == 0 else self.machine.view(uid=uid, gids=gids)

    def _keep(self, opened: _Open) -> int:
        number = self._next
        self._next += 1
        self._open[number] = opened
        return number


def _groups(pid: int) -> tuple[int, ...]:
    """Supplementary groups of a process; none when it is not to be seen from here."""
    try:
        with Path(f"/proc/{pid}/status").open("rb") as status:
            for line in status:
                if line.startswith(b"Groups:"):
                    return tuple(int(word) for word in line.split()[1:])
    except OSError:
        pass
    return ()


def _of_kernel(path: str) -> bool:
    return path.startswith(_KERNELS)


def _number(path: str) -> int:
    """A stable inode number: fts compares them to see whether a directory is still the same."""
    return int.from_bytes(blake2b(path.encode("utf-8", "surrogateescape"), digest_size=7).digest())
