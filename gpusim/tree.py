"""The file tree of a simulated node: path walk, permissions, and the errno the kernel gives.

The nodes themselves are in `gpusim.nodes`, the lookup in `gpusim.walk`. The order of checks
is that of Linux ``fs/namei.c`` (may_open, do_unlinkat, filename_create, do_renameat2), ``fs/open.c``,
``fs/kernfs/file.c``, ``fs/sysfs/file.c`` and ``security/device_cgroup.c``, so that with several faults at
once the same one is reported; kernel.md 1.8, 2.1 and 6 for what matters to GPUs.

A `Tree` belongs to one thread at a time (`gpusim.serve` holds a lock around the machine).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass

from gpusim.nodes import (
    PAGE,
    ROOT,
    Attr,
    Caller,
    CharDev,
    DevicePolicy,
    Dir,
    Entries,
    File,
    Guard,
    KernelDir,
    Kind,
    Link,
    NamespacedAttr,
    Node,
    Opener,
    Release,
    Show,
    Stat,
    Store,
    touch,
)
from gpusim.walk import PATH_MAX, READ, SEARCH, WRITE, Spot, Walk, fail, measure, permits

__all__ = [
    "ROOT",
    "Attr",
    "Caller",
    "CharDev",
    "DevicePolicy",
    "Dir",
    "Entries",
    "File",
    "Guard",
    "Kind",
    "Link",
    "Node",
    "Opened",
    "Opener",
    "Release",
    "Show",
    "Stat",
    "Store",
    "Tree",
    "touch",
]


@dataclass(frozen=True, slots=True)
class Opened:
    """What `Tree.open` found; `release`, if any, is owed exactly once."""

    path: str
    """Canonical."""
    node: Node
    rdev: tuple[int, int] | None
    release: Release | None


class Tree:
    """A root directory and every file operation on it, for whoever asks (default: root of the host).

    All methods raise OSError with the errno and, as filename, the path as it was asked for. A relative
    path starts at the root.
    """

    def __init__(self, root: Dir) -> None:
        self.root = root
        self._walk = Walk(root)

    # Reading and writing

    def read(self, path: str, caller: Caller = ROOT) -> bytes:
        """The whole content.

        Raises:
            OSError: lookup errors; EISDIR; EACCES (mode; for sysfs even to root when no read bit is set);
                whatever guard and show answer (EPERM); EIO (no show); EINVAL (device nodes).
        """
        node = self._walk.find(path, caller)
        if isinstance(node, Attr):
            if caller.uid:
                self._admit(node, path, caller, READ)
            elif node.sysfs and not node.mode & 0o444:
                raise fail(errno.EACCES, path)
            try:
                if node.guard is not None:
                    node.guard(caller)
                show = node.show
                if caller.cgroup is not None and isinstance(node, NamespacedAttr):
                    content: bytes | str | None = node.seen(caller.cgroup)
                else:
                    content = show() if callable(show) else show
            except OSError as error:
                raise _named(error, path) from None
            if content is None:
                raise fail(errno.EIO, path)
            if isinstance(content, str):
                content = content.encode()
            # sysfs_kf_seq_show: a page holds its text and a NUL.
            return content[: PAGE - 1] if node.sysfs and len(content) >= PAGE else content
        self._admit(node, path, caller, READ)
        if isinstance(node, File):
            return node.content
        if isinstance(node, Dir):
            raise fail(errno.EISDIR, path)
        self._driver_only(node, path, caller)
        raise fail(errno.EINVAL, path)

    def write(self, path: str, data: bytes, caller: Caller = ROOT) -> int:
        """One write(2) of `data` at offset 0, opened without O_CREAT and O_TRUNC; the byte count.

        An ordinary file keeps what lies behind the written bytes. Nothing to write has no effect.

        Raises:
            OSError: lookup errors; EISDIR; EACCES; EROFS; EIO (sysfs, no store); EINVAL; what store answers.
        """
        node = self._walk.find(path, caller)
        self._admit(node, path, caller, WRITE)
        if isinstance(node, Attr):
            if not data:
                return 0
            if node.store is None:
                raise fail(errno.EIO if node.sysfs else errno.EINVAL, path)
            taken = data[:PAGE] if node.sysfs else data  # kernfs_fop_write_iter hands over one page
            try:
                node.store(taken, caller)
            except OSError as error:
                raise _named(error, path) from None
            return len(taken)
        if isinstance(node, File):
            node.content = data + node.content[len(data) :]
            return len(data)
        self._driver_only(node, path, caller)
        raise fail(errno.EINVAL, path)

    def list(self, path: str, caller: Caller = ROOT) -> list[str]:
        """Names in a directory, sorted as text. ENOTDIR, EACCES."""
        node = self._walk.find(path, caller)
        if not isinstance(node, Dir):
            raise fail(errno.ENOTDIR, path)
        if caller.uid and not permits(node, caller, READ):
            raise fail(errno.EACCES, path)
        return sorted(node.kids())

    def readlink(self, path: str, caller: Caller = ROOT) -> str:
        """The text of a link; EINVAL when it is none."""
        node = self._walk.find(path, caller, follow=False)
        if not isinstance(node, Link):
            raise fail(errno.EINVAL, path)
        return node.target

    def stat(self, path: str, caller: Caller = ROOT, *, follow: bool = True) -> Stat:
        """What the path leads to; with ``follow=False`` the link itself. Needs search permission only."""
        node = self._walk.find(path, caller, follow=follow)
        mode = node.mode & 0o7777
        if isinstance(node, Attr):
            return Stat(Kind.FILE, mode, PAGE if node.sysfs else 0, None, node.uid, node.gid)
        if isinstance(node, File):
            return Stat(Kind.FILE, mode, len(node.content), None, node.uid, node.gid)
        if isinstance(node, Link):
            return Stat(Kind.LINK, mode, len(os.fsencode(node.target)))
        if isinstance(node, CharDev):
            return Stat(Kind.CHARACTER, mode, 0, (node.major, node.minor), node.uid, node.gid)
        return Stat(node.kind, mode, 0, None, node.uid, node.gid)

    def open(self, path: str, caller: Caller = ROOT, access: str = "rw") -> Opened:
        """open(2) for ``r``, ``w`` or ``rw`` without O_CREAT.

        Raises:
            OSError: lookup errors; EISDIR; EACCES (mode); EPERM (device cgroup); EROFS (not for device
                nodes); ENXIO (no driver); what the driver's open answers (ENOENT, ENODEV).
        """
        place = self._walk.place(path, caller)
        node = place.node
        self._admit(node, path, caller, (READ if "r" in access else 0) | (WRITE if "w" in access else 0))
        if not isinstance(node, CharDev):
            return Opened(place.path, node, None, None)
        return Opened(place.path, node, (node.major, node.minor), self._drive(node, path, caller))

    def probe(self, path: str, caller: Caller = ROOT, access: str = "rw") -> None:
        """Open for `access` (``r``, ``w``, ``rw``), and close again. Raises what `open` raises."""
        release = self.open(path, caller, access).release
        if release is not None:
            release()

    # Making and removing names

    def put(self, path: str, data: bytes, mode: int = 0o644, caller: Caller = ROOT) -> None:
        """Write a new file beside `path` and rename it over `path`: readers see the old or the new one whole.

        Raises:
            OSError: lookup errors of the directory; EROFS; EACCES (also kernfs, which has no create);
                EISDIR; ENOTDIR (trailing slash); EBUSY (``.`` and ``..``); ENAMETOOLONG.
        """
        spot = self._walk.spot(path, caller)
        self._may_make(spot, path, caller, refused=errno.EACCES)
        if spot.special:
            raise fail(errno.EBUSY, path)
        measure(spot, path)
        if spot.slash:
            raise fail(errno.ENOTDIR, path)
        if isinstance(spot.directory.kids().get(spot.name), Dir):
            raise fail(errno.EISDIR, path)
        spot.directory.add(spot.name, File(data, mode=mode, uid=caller.uid, gid=_group(caller)))

    def copy(self, source: str, target: str, mode: int, caller: Caller = ROOT) -> None:
        """Read `source`, `put` it to `target`."""
        self.put(target, self.read(source, caller), mode, caller)

    def mkdir(self, path: str, mode: int = 0o755, caller: Caller = ROOT) -> None:
        """One directory, as mkdir(2). EEXIST, ENOENT, EROFS, EACCES, ENAMETOOLONG.

        EPERM in a kernfs without mkdir; where it has one, as in cgroups, also what that answers.
        """
        spot = self._vacant(path, caller)
        if isinstance(spot.directory, KernelDir):
            try:
                spot.directory.make(spot.name, mode, caller)
            except OSError as error:
                raise _named(error, path) from None
            return
        made = Dir({}, mode=mode, writable=True, uid=caller.uid, gid=_group(caller))
        spot.directory.add(spot.name, made)

    def makedirs(self, path: str, mode: int = 0o755, caller: Caller = ROOT) -> None:
        """A directory and its parents; no error when it is there. EEXIST/ENOTDIR when something else is."""
        try:
            self.mkdir(path, mode, caller)
        except FileNotFoundError:
            parent = path.rstrip("/").rpartition("/")[0]
            if not parent:
                raise
            self.makedirs(parent, 0o755, caller)
            self.mkdir(path, mode, caller)
        except OSError:
            # As os.makedirs(exist_ok=True): EROFS and EPERM, too, do not matter for what is there.
            if not self._is_dir(path, caller):
                raise

    def symlink(self, target: str, path: str, caller: Caller = ROOT) -> None:
        """A link at `path`. EEXIST, ENOENT (empty target, trailing slash), EROFS, EACCES, EPERM (kernfs)."""
        if not target:
            raise fail(errno.ENOENT, path)
        if len(os.fsencode(target)) >= PATH_MAX:
            raise fail(errno.ENAMETOOLONG, path)
        spot = self._vacant(path, caller, directory=False)
        spot.directory.add(spot.name, Link(target))

    def unlink(self, path: str, caller: Caller = ROOT) -> None:
        """Remove one name that is no directory. EISDIR, ENOENT, ENOTDIR, EROFS, EACCES, EPERM (kernfs)."""
        spot = self._walk.spot(path, caller)
        if spot.special:
            raise fail(errno.EISDIR, path)
        if caller.covers(spot.where):
            raise fail(errno.EROFS, path)
        node = spot.directory.kids().get(spot.name)
        if node is None:
            measure(spot, path)
            raise fail(errno.ENOENT, path)
        if spot.slash:
            raise fail(errno.EISDIR if isinstance(node, Dir) else errno.ENOTDIR, path)
        _may_delete(spot, node, path, caller, directory=False)
        if not spot.directory.writable:
            raise fail(errno.EPERM, path)
        spot.directory.drop(spot.name)

    def rmdir(self, path: str, caller: Caller = ROOT) -> None:
        """Remove one empty directory, as rmdir(2).

        Raises:
            OSError: lookup errors; EINVAL (``.``); ENOTEMPTY (``..``, or names in it); ENOTDIR; EROFS;
                EACCES; EBUSY (``/``, or what a cgroup answers); EPERM (another kernfs).
        """
        spot = self._walk.spot(path, caller)
        if spot.special:
            code = {".": errno.EINVAL, "..": errno.ENOTEMPTY}.get(spot.name, errno.EBUSY)
            raise fail(code, path)
        if caller.covers(spot.where):
            raise fail(errno.EROFS, path)
        node = spot.directory.kids().get(spot.name)
        if node is None:
            measure(spot, path)
            raise fail(errno.ENOENT, path)
        _may_delete(spot, node, path, caller, directory=True)
        if isinstance(spot.directory, KernelDir) and isinstance(node, KernelDir):
            try:
                spot.directory.remove(spot.name)
            except OSError as error:
                raise _named(error, path) from None
            return
        if isinstance(node, KernelDir):
            raise fail(errno.EBUSY, path)  # the root of its file system is a mount point
        if not spot.directory.writable:
            raise fail(errno.EPERM, path)
        if isinstance(node, Dir) and node.kids():
            raise fail(errno.ENOTEMPTY, path)
        spot.directory.drop(spot.name)

    def rename(self, old: str, new: str, caller: Caller = ROOT) -> None:
        """rename(2): `new` is replaced at once. ENOENT, ENOTDIR, EISDIR, ENOTEMPTY, EINVAL, EBUSY, EROFS."""
        source, target = self._walk.spot(old, caller), self._walk.spot(new, caller)
        if source.special or target.special:
            raise fail(errno.EBUSY, old)
        if caller.covers(source.where) or caller.covers(target.where):
            raise fail(errno.EROFS, old)
        moved, replaced = source.directory.kids().get(source.name), target.directory.kids().get(target.name)
        measure(source, old)
        if moved is None:
            raise fail(errno.ENOENT, old)
        measure(target, new)
        if not isinstance(moved, Dir) and (source.slash or target.slash):
            raise fail(errno.ENOTDIR, old)
        if isinstance(moved, Dir) and (target.where + "/").startswith(source.path + "/"):
            raise fail(errno.EINVAL, old)
        if isinstance(replaced, Dir) and (source.where + "/").startswith(target.path + "/"):
            raise fail(errno.ENOTEMPTY, old)
        if moved is replaced:
            return
        is_dir = isinstance(moved, Dir)
        _may_delete(source, moved, old, caller, directory=is_dir)
        if replaced is not None:
            _may_delete(target, replaced, old, caller, directory=is_dir)
        elif not permits(target.directory, caller, WRITE | SEARCH):
            raise fail(errno.EACCES, old)
        if not (source.directory.writable and target.directory.writable):
            raise fail(errno.EPERM, old)
        if isinstance(replaced, Dir) and replaced.kids():
            raise fail(errno.ENOTEMPTY, old)
        source.directory.drop(source.name)
        target.directory.add(target.name, moved)

    def chmod(self, path: str, mode: int, caller: Caller = ROOT) -> None:
        """chmod(2). Lookup errors; EPERM for all but owner and root, and for what a driver made; EROFS."""
        place = self._walk.place(path, caller)
        node = self._walk.find(path, caller)
        if not isinstance(node, File | Dir) or (isinstance(node, Dir) and not node.writable):
            raise fail(errno.EPERM, path)
        if caller.uid not in (0, node.uid):
            raise fail(errno.EPERM, path)
        if caller.covers(place.path):
            raise fail(errno.EROFS, path)
        node.mode = mode & 0o7777
        if isinstance(node, Dir):
            touch()  # whom it lets through is remembered, too

    # For the machine and for rendering

    def node(self, path: str, *, follow: bool = True) -> Node:
        """The node itself; nobody's permission is asked."""
        return self._walk.find(path, ROOT, follow=follow)

    def resolve(self, path: str) -> str:
        """The canonical path: no link, ``.`` or ``..`` in it; nobody's permission is asked."""
        return self._walk.place(path, ROOT).path

    def every_file(self) -> Iterator[tuple[str, Node]]:
        """(path, node) of every node below the root, sorted, directories before what is in them.

        Links are given, not followed. Visits every lazy directory.
        """
        todo: list[tuple[str, Node]] = [("", self.root)]
        while todo:
            path, node = todo.pop()
            if path:
                yield path, node
            if isinstance(node, Dir):
                todo.extend(
                    (f"{path}/{name}", kid) for name, kid in sorted(node.kids().items(), reverse=True)
                )

    def _is_dir(self, path: str, caller: Caller) -> bool:
        try:
            return isinstance(self._walk.find(path, caller), Dir)
        except OSError:
            return False

    # Permission

    def _admit(self, node: Node, path: str, caller: Caller, want: int) -> None:
        """The checks of open(2) up to the driver, in the kernel's order."""
        if want & WRITE and isinstance(node, Dir):
            raise fail(errno.EISDIR, path)
        if not permits(node, caller, want):
            raise fail(errno.EACCES, path)
        if isinstance(node, CharDev):
            access = ("r" if want & READ else "") + ("w" if want & WRITE else "")
            if caller.devices is not None and not caller.devices.allows(node.major, node.minor, access):
                raise fail(errno.EPERM, path)
            return  # device nodes can be written on a read-only mount
        if want & WRITE and caller.readonly and caller.covers(self._walk.place(path, caller).path):
            raise fail(errno.EROFS, path)
        if isinstance(node, Attr) and node.sysfs:
            # kernfs_fop_open with KERNFS_ROOT_EXTRA_OPEN_PERM_CHECK: for everyone, and after EROFS.
            lacking = (want & READ and not node.mode & 0o444) or (want & WRITE and not node.mode & 0o222)
            if lacking:
                raise fail(errno.EACCES, path)

    def _drive(self, node: CharDev, path: str, caller: Caller) -> Release | None:
        if node.opener is None:
            raise fail(errno.ENXIO, path)
        try:
            return node.opener(caller)
        except OSError as error:
            raise _named(error, path) from None

    def _driver_only(self, node: Node, path: str, caller: Caller) -> None:
        """Open and close a device that has neither a read nor a write method (DRM, KFD)."""
        if isinstance(node, CharDev):
            release = self._drive(node, path, caller)
            if release is not None:
                release()

    def _vacant(self, path: str, caller: Caller, *, directory: bool = True) -> Spot:
        """A name that may be made by this caller (filename_create, may_create)."""
        spot = self._walk.spot(path, caller)
        if spot.special or spot.name in spot.directory.kids():
            raise fail(errno.EEXIST, path)
        measure(spot, path)
        if spot.slash and not directory:
            raise fail(errno.ENOENT, path)
        self._may_make(spot, path, caller, refused=errno.EPERM, kernel=directory)
        return spot

    def _may_make(self, spot: Spot, path: str, caller: Caller, *, refused: int, kernel: bool = False) -> None:
        if caller.covers(spot.where):
            raise fail(errno.EROFS, path)
        if not permits(spot.directory, caller, WRITE | SEARCH):
            raise fail(errno.EACCES, path)
        if not spot.directory.writable and not (kernel and isinstance(spot.directory, KernelDir)):
            raise fail(refused, path)


def _may_delete(spot: Spot, node: Node, path: str, caller: Caller, *, directory: bool) -> None:
    """may_delete of fs/namei.c; `directory`: the operation replaces or removes directories."""
    if not permits(spot.directory, caller, WRITE | SEARCH):
        raise fail(errno.EACCES, path)
    if isinstance(node, Dir) != directory:
        raise fail(errno.ENOTDIR if directory else errno.EISDIR, path)


def _named(error: OSError, path: str) -> OSError:
    """A view's OSError with the path the caller used."""
    return error if error.filename is not None else OSError(error.errno, error.strerror, path)


def _group(caller: Caller) -> int:
    return caller.gids[0] if caller.gids else 0
