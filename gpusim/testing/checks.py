"""Checks that anything which claims to be a node's file system keeps the contract of a `Host`.

For a fake of your own, a capture, a rendered or mounted tree. Needs no pytest and no machine of ours; a
failure is a `CheckError` that says which rule, which path, what was expected and what came::

    from gpusim.testing.checks import check_host

    check_host(lambda: MyHost("/tmp/node"))                  # the read contract
    check_host(lambda: MyHost("/mnt"), writes=True)          # and what answers to writes, as root
    check_host(make, writes=True, hold=my_open)              # and EBUSY while /dev/kfd is held open

The rules are those of Linux for sysfs, procfs and devtmpfs (kernel.md 1.1, 1.8, 2.1, 3, 6), not of a
particular node: one host is looked at, no two are compared. Device nodes may be character devices or
regular files (a mounted or rendered tree has only those).
"""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from gpusim.testing import writechecks
from gpusim.testing.rules import MISSING, NODES, Checked, CheckError, errno_of, expect, name_of, refuses

__all__ = ["CheckError", "Checked", "ReadableHost", "check_host"]

_TOPS = ("/sys", "/dev", "/proc")


class _Kind(Protocol):
    @property
    def name(self) -> str: ...


class _Stat(Protocol):
    @property
    def kind(self) -> _Kind: ...
    @property
    def mode(self) -> int: ...


class ReadableHost(Protocol):
    """What the read contract is about: the seam's `Host` without `write`."""

    def read(self, path: str) -> bytes:
        """The whole content of a file."""
        ...

    def list(self, path: str) -> Sequence[str]:
        """The names in a directory, sorted as text."""
        ...

    def readlink(self, path: str) -> str:
        """The text of a link."""
        ...

    def stat(self, path: str, *, follow: bool = True) -> _Stat:
        """Kind and mode."""
        ...

    def probe(self, path: str) -> None:
        """Open a device for reading and writing, and close it."""
        ...


def check_host(
    make: Callable[[], ReadableHost],
    *,
    writes: bool = False,
    hold: Callable[[str], AbstractContextManager[object]] | None = None,
) -> Checked:
    """Hold a host to the contract.

    Args:
        make: a new host, seen by root.
        writes: also what answers to writing, making and removing: the host needs `write`, `put`, `mkdir`,
            `rmdir` and `unlink`, a GPU that can be partitioned, and a /run. It is left as it was found.
        hold: opens a path of the same node as some process, until the ``with`` block ends.

    Raises:
        CheckError: a rule is broken.
    """
    host = make()
    checked = Checked()
    present = [top for top in _TOPS if errno_of(host.list, top) is None]
    expect(bool(present), "a node has one of /sys, /dev, /proc", "/", "a directory", "none")
    for top in present:
        _walk(host, top, checked)
        _missing(host, top)
    _kfd(host, checked)
    _render_nodes(host, checked)
    if writes:
        writechecks.partitions(host, checked, hold)
        writechecks.kernel_names(host, checked)
        writechecks.ordinary_files(host, checked)
        writechecks.cgroups(host, checked)
    return checked


# Reading


def _walk(host: ReadableHost, top: str, checked: Checked) -> None:
    """Every name below `top`, by its kind."""
    todo = [top]
    while todo:
        directory = todo.pop()
        checked.directories += 1
        names = list(host.list(directory))
        expect(
            names == sorted(set(names)), "names are sorted and distinct", directory, sorted(set(names)), names
        )
        wrong = [name for name in names if "/" in name or name in ("", ".", "..")]
        expect(not wrong, "a directory lists names", directory, "no '.', '..' or '/'", wrong)
        for name in names:
            path = f"{directory}/{name}"
            match host.stat(path, follow=False).kind.name:
                case "DIRECTORY":
                    todo.append(path)
                case "LINK":
                    _link(host, path, checked)
                case "FILE":
                    _file(host, path, checked)
                case "CHARACTER":
                    checked.devices += 1
                    refuses(errno.ENOTDIR, "a device is no directory", path, host.list, path)
        refuses(errno.EISDIR, "a directory cannot be read", directory, host.read, directory)
        refuses(errno.EINVAL, "a directory is no link", directory, host.readlink, directory)


def _file(host: ReadableHost, path: str, checked: Checked) -> None:
    try:
        content = host.read(path)
    except OSError as error:
        expect(bool(error.errno), "a refused read has an errno", path, "an errno", error)
        checked.refused += 1
    else:
        checked.files += 1
        expect(type(content) is bytes, "reading gives bytes", path, "bytes", type(content).__name__)
        readable = host.stat(path).mode & 0o444
        expect(bool(readable), "what nobody may read is not read", path, "EACCES", content)
        if path.startswith(NODES):
            expect(host.read(path) == content, "reading changes nothing", path, content, host.read(path))
    refuses(errno.ENOTDIR, "a file is no directory", path, host.list, path)
    refuses(errno.EINVAL, "a file is no link", path, host.readlink, path)
    refuses(errno.ENOTDIR, "a file has nothing below it", path, host.stat, f"{path}/{MISSING}")


def _link(host: ReadableHost, path: str, checked: Checked) -> None:
    """A link leads to what its text names, seen from where it stands."""
    checked.links += 1
    target = posixpath.normpath(posixpath.join(posixpath.dirname(path), host.readlink(path)))
    try:
        through = host.stat(path)
    except OSError as error:
        expect(
            error.errno == errno.ENOENT,
            "a link that leads nowhere is ENOENT",
            path,
            "ENOENT",
            name_of(error.errno),
        )
        return
    expect(through.kind.name != "LINK", "stat follows", path, "what it leads to", "LINK")
    # What stands before ".." in the text may itself be a link: then only walking finds the place.
    if errno_of(host.stat, target) is None and through.kind.name == "DIRECTORY":
        expect(host.list(path) == host.list(target), "a link shows its target", path, target, "other names")


def _missing(host: ReadableHost, top: str) -> None:
    path = f"{top}/{MISSING}"
    asked: dict[str, Callable[[], object]] = {
        "read": lambda: host.read(path),
        "list": lambda: host.list(path),
        "readlink": lambda: host.readlink(path),
        "stat": lambda: host.stat(path),
        "lstat": lambda: host.stat(path, follow=False),
        "probe": lambda: host.probe(path),
        "stat below": lambda: host.stat(f"{path}/{MISSING}"),
    }
    for what, ask in asked.items():
        refuses(errno.ENOENT, f"{what} of what is not there", path, ask)


def _kfd(host: ReadableHost, checked: Checked) -> None:
    """The topology: places 0 to n-1, each with all its parts, properties of a name and a number a line."""
    if errno_of(host.list, NODES) is not None:
        return
    names = host.list(NODES)
    places = [str(place) for place in range(len(names))]
    expect(sorted(names, key=_by_number) == places, "nodes are numbered without a gap", NODES, places, names)
    for name in names:
        parts = host.list(f"{NODES}/{name}")
        for part in ("gpu_id", "name", "properties", "mem_banks", "io_links", "caches"):
            expect(part in parts, "a node has all its parts", f"{NODES}/{name}", part, parts)
        path = f"{NODES}/{name}/properties"
        if errno_of(host.read, path) is not None:
            continue  # a GPU that this reader's device cgroup hides: EPERM
        for line in host.read(path).decode().splitlines():
            _, space, value = line.partition(" ")
            expect(bool(space) and value.isdecimal(), "properties are numbers", path, "NAME NUMBER", line)


def _render_nodes(host: ReadableHost, checked: Checked) -> None:
    """A render node in /dev/dri is a device that opens, and its number is in its name and in sysfs."""
    names = host.list("/dev/dri") if errno_of(host.list, "/dev/dri") is None else ()
    for name in (name for name in names if name.startswith("renderD")):
        path = f"/dev/dri/{name}"
        kind = host.stat(path).kind.name
        expect(kind in ("CHARACTER", "FILE"), "a render node is a device or stands for one", path, "", kind)
        number = f"226:{name.removeprefix('renderD')}\n".encode()
        if errno_of(host.list, f"/sys/class/drm/{name}") is None:
            shown = host.read(f"/sys/class/drm/{name}/dev")
            expect(shown == number, "a minor is in its name", f"/sys/class/drm/{name}/dev", number, shown)


def _by_number(name: str) -> tuple[int, str]:
    return (int(name) if name.isdecimal() else -1, name)
