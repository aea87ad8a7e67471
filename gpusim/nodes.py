"""What a simulated file tree is made of, and who asks for it.

Five kinds of node. None of them knows where it hangs; `gpusim.tree` walks them. Sources: Linux
``fs/kernfs``, ``fs/sysfs/file.c``, ``fs/namei.c``; kernel.md 1.8, 2.1 and 6.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import count
from types import MappingProxyType
from typing import Protocol

PAGE = 4096
"""x86-64 page: what `stat` reports as the size of a sysfs text attribute."""


class Kind(Enum):
    """What a path leads to (the same names and values as the plugin's seam)."""

    DIRECTORY = "directory"
    FILE = "file"
    LINK = "link"
    CHARACTER = "character device"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Stat:
    """Kind, permission bits, size in bytes, the device number of a device node, and the owner.

    The owner is not in the plugin's seam, which compares what both have.
    """

    kind: Kind
    mode: int
    size: int = 0
    rdev: tuple[int, int] | None = None
    uid: int = field(default=0, compare=False)
    gid: int = field(default=0, compare=False)


class DevicePolicy(Protocol):
    """A device cgroup: `gpusim.process.DeviceRules` is one."""

    def allows(self, major: int, minor: int, access: str) -> bool:
        """Whether a task of this cgroup may use character device major:minor; access of ``rwm``."""
        ...


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: identity, device cgroup, and the mounts that are read-only where the caller lives."""

    uid: int = 0
    gids: tuple[int, ...] = ()
    devices: DevicePolicy | None = None
    """None: no device program attached, everything allowed."""
    readonly: tuple[str, ...] = ()
    """Directories mounted read-only for this caller, such as ``("/sys",)``."""
    cgroup: str | None = None
    """Root of the cgroup namespace the caller lives in, ``/kubepods.slice/…``; None: the host's."""

    def covers(self, path: str) -> bool:
        """Whether the canonical `path` lies on a read-only mount of this caller."""
        return any(path == top or path.startswith(top.rstrip("/") + "/") for top in self.readonly)


ROOT = Caller()
"""Root of the host, in no container."""

Content = bytes | str
Show = Callable[[], Content]
Store = Callable[[bytes, Caller], None]
Guard = Callable[[Caller], None]
Release = Callable[[], None]
Opener = Callable[[Caller], Release | None]

_ticks = count(1)
GENERATION = [0]
"""One number for all trees of this interpreter, new when a way that a walk of any of them took has moved.

`Tree` drops its remembered paths when it differs; a change elsewhere costs it only the memory of paths. A
name that is new, or that no walk went through, moves nothing: what is remembered are the mappings of
directories themselves, and never that a name is missing.
"""


def touch() -> None:
    """Say that names moved: every remembered path is looked up anew."""
    GENERATION[0] = next(_ticks)


def _left(node: Node | None) -> None:
    """A directory no longer holds this under a name: does a remembered path lead through it?"""
    if isinstance(node, Link) or (isinstance(node, Dir) and node.walked):
        touch()


class Node:
    """What all nodes have: permission bits and an owner."""

    __slots__ = ()
    kind: Kind
    mode: int
    uid: int = 0
    gid: int = 0


class Attr(Node):
    """A file the kernel computes when it is read: sysfs, cgroup, proc.

    Args:
        show: the text, or a function that returns it. None: no show method, read gives EIO.
        store: called with the bytes of one write(2) and the caller; raises OSError to refuse.
        guard: called with the caller at *read* (the open succeeds), as KFD does; raises EPERM.
        mode: permission bits.
        sysfs: True: at most a page less its NUL (4095 bytes) is read, `stat` says 4096, and an open is
            refused with EACCES to everyone, root too, when the mode has no such bit at all
            (KERNFS_ROOT_EXTRA_OPEN_PERM_CHECK); a write without `store` is EIO.
            False: a cgroup or proc file: no cap, size 0, no extra check; a write without `store` is EINVAL.
    """

    __slots__ = ("guard", "mode", "show", "store", "sysfs")
    kind = Kind.FILE

    def __init__(
        self,
        show: Content | Show | None,
        store: Store | None = None,
        guard: Guard | None = None,
        *,
        mode: int = 0o444,
        sysfs: bool = True,
    ) -> None:
        self.show = show.encode() if isinstance(show, str) else show
        self.store = store
        self.guard = guard
        self.mode = mode
        self.sysfs = sysfs


class NamespacedAttr(Attr):
    """A kernel file whose text depends on the reader's cgroup namespace; no guard, no store.

    Args:
        seen: the text for a reader whose namespace has this root, ``/kubepods.slice/…``; ``/``: the host.
    """

    __slots__ = ("seen",)

    def __init__(self, seen: Callable[[str], Content]) -> None:
        super().__init__(lambda: seen("/"), sysfs=False)
        self.seen = seen


class File(Node):
    """An ordinary file with content of its own."""

    __slots__ = ("content", "gid", "mode", "uid")
    kind = Kind.FILE

    def __init__(self, content: Content = b"", *, mode: int = 0o644, uid: int = 0, gid: int = 0) -> None:
        self.content = content.encode() if isinstance(content, str) else content
        self.mode = mode
        self.uid = uid
        self.gid = gid


class Link(Node):
    """A symbolic link; `target` is its text, absolute or relative to its directory."""

    __slots__ = ("target",)
    kind = Kind.LINK
    mode = 0o777

    def __init__(self, target: str) -> None:
        self.target = target


class CharDev(Node):
    """A character device node.

    Args:
        major: device number.
        minor: device number.
        mode: permission bits; devtmpfs makes 0600, udev widens.
        opener: the driver's open, called with the caller after every permission check. It may raise
            (ENOENT for an invalid partition, ENODEV for an unplugged one) and may return a function that
            is called once when the file is closed. None: no driver behind the number, ENXIO.
        gid: owning group, such as ``video`` or ``render``.
    """

    __slots__ = ("gid", "major", "minor", "mode", "opener", "uid")
    kind = Kind.CHARACTER

    def __init__(
        self,
        major: int,
        minor: int,
        mode: int = 0o600,
        opener: Opener | None = None,
        *,
        uid: int = 0,
        gid: int = 0,
    ) -> None:
        self.major = major
        self.minor = minor
        self.mode = mode
        self.opener = opener
        self.uid = uid
        self.gid = gid


Entries = Mapping[str, Node] | Callable[[], Mapping[str, Node]]


class Dir(Node):
    """A directory: a fixed mapping, or a function that is called at the first visit.

    Args:
        entries: name → node, or a function returning that; its result is kept until `invalidate`. A dict
            becomes the directory's own.
        mode: permission bits.
        writable: True: tmpfs-like, names may be made and removed in it. False: kernfs, where only the
            kernel makes names (create EACCES, everything else EPERM).
        uid: owner.
        gid: owning group.
    """

    __slots__ = ("_entries", "_kids", "gid", "mode", "uid", "walked", "writable")
    kind = Kind.DIRECTORY

    def __init__(
        self,
        entries: Entries = MappingProxyType({}),
        *,
        mode: int = 0o755,
        writable: bool = False,
        uid: int = 0,
        gid: int = 0,
    ) -> None:
        self._entries: Callable[[], Mapping[str, Node]] | None = None
        self._kids: dict[str, Node] | None = None
        if type(entries) is dict:
            self._kids = entries
        elif callable(entries):
            self._entries = entries
        else:
            self._kids = dict(entries)
        self.mode = mode
        self.writable = writable
        self.uid = uid
        self.gid = gid
        self.walked = False
        """Whether a walk may have remembered a path through it."""

    def kids(self) -> dict[str, Node]:
        """Name → node, made now if nobody looked before; changed by `add` and `drop` only."""
        kids = self._kids
        if kids is None:
            assert self._entries is not None
            made = self._entries()
            kids = self._kids = made if type(made) is dict else dict(made)
        return kids

    def add(self, name: str, node: Node) -> None:
        """Enter or replace one name, at once and whole."""
        kids = self.kids()
        before = kids.get(name)
        kids[name] = node
        _left(before)

    def drop(self, name: str) -> None:
        """Remove one name; KeyError when it is not there."""
        _left(self.kids().pop(name))

    def invalidate(self) -> None:
        """Forget what a lazy directory held; the next visit asks `entries` again.

        Names added by `add` go with it. A directory with a fixed mapping keeps it.
        """
        if self._entries is not None and self._kids is not None:
            self._kids = None
            touch()


class KernelDir(Dir):
    """A kernfs directory whose file system has mkdir and rmdir of its own, as that of cgroups has.

    Args:
        entries: as of `Dir`.
        make: mkdir(name, mode, caller), after every permission check; enters the name itself.
        remove: rmdir(name); takes the name out itself.
        mode: permission bits.
        uid: owner.
        gid: owning group.
    """

    __slots__ = ("make", "remove")

    def __init__(
        self,
        entries: Entries,
        *,
        make: Callable[[str, int, Caller], None],
        remove: Callable[[str], None],
        mode: int = 0o755,
        uid: int = 0,
        gid: int = 0,
    ) -> None:
        super().__init__(entries, mode=mode, uid=uid, gid=gid)
        self.make = make
        self.remove = remove
