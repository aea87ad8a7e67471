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
from dataclasses import dataclass
from typing import Any, Protocol

_TOPS = ("/sys", "/dev", "/proc")
_MISSING = "no-such-name"
_NODES = "/sys/class/kfd/kfd/topology/nodes"
_GPUS = "/sys/bus/pci/drivers/amdgpu"
_CGROUPS = "/sys/fs/cgroup"
_SCRATCH = "/run/check-host"


class CheckError(AssertionError):
    """A rule is broken."""


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


@dataclass(slots=True)
class Checked:
    """How much was looked at: a check of nothing proves nothing."""

    directories: int = 0
    files: int = 0
    links: int = 0
    devices: int = 0
    refused: int = 0
    """Files whose reading was refused, with an errno."""
    writes: int = 0


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
    present = [top for top in _TOPS if _errno(host.list, top) is None]
    _expect(bool(present), "a node has one of /sys, /dev, /proc", "/", "a directory", "none")
    for top in present:
        _walk(host, top, checked)
        _missing(host, top)
    _kfd(host, checked)
    _render_nodes(host, checked)
    if writes:
        _partitions(host, checked, hold)
        _kernel_names(host, checked)
        _ordinary_files(host, checked)
        _cgroups(host, checked)
    return checked


# Reading


def _walk(host: ReadableHost, top: str, checked: Checked) -> None:
    """Every name below `top`, by its kind."""
    todo = [top]
    while todo:
        directory = todo.pop()
        checked.directories += 1
        names = list(host.list(directory))
        _expect(
            names == sorted(set(names)), "names are sorted and distinct", directory, sorted(set(names)), names
        )
        wrong = [name for name in names if "/" in name or name in ("", ".", "..")]
        _expect(not wrong, "a directory lists names", directory, "no '.', '..' or '/'", wrong)
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
                    _refuses(errno.ENOTDIR, "a device is no directory", path, host.list, path)
        _refuses(errno.EISDIR, "a directory cannot be read", directory, host.read, directory)
        _refuses(errno.EINVAL, "a directory is no link", directory, host.readlink, directory)


def _file(host: ReadableHost, path: str, checked: Checked) -> None:
    try:
        content = host.read(path)
    except OSError as error:
        _expect(bool(error.errno), "a refused read has an errno", path, "an errno", error)
        checked.refused += 1
    else:
        checked.files += 1
        _expect(type(content) is bytes, "reading gives bytes", path, "bytes", type(content).__name__)
        readable = host.stat(path).mode & 0o444
        _expect(bool(readable), "what nobody may read is not read", path, "EACCES", content)
        if path.startswith(_NODES):
            _expect(host.read(path) == content, "reading changes nothing", path, content, host.read(path))
    _refuses(errno.ENOTDIR, "a file is no directory", path, host.list, path)
    _refuses(errno.EINVAL, "a file is no link", path, host.readlink, path)
    _refuses(errno.ENOTDIR, "a file has nothing below it", path, host.stat, f"{path}/{_MISSING}")


def _link(host: ReadableHost, path: str, checked: Checked) -> None:
    """A link leads to what its text names, seen from where it stands."""
    checked.links += 1
    target = posixpath.normpath(posixpath.join(posixpath.dirname(path), host.readlink(path)))
    try:
        through = host.stat(path)
    except OSError as error:
        _expect(
            error.errno == errno.ENOENT,
            "a link that leads nowhere is ENOENT",
            path,
            "ENOENT",
            _name(error.errno),
        )
        return
    _expect(through.kind.name != "LINK", "stat follows", path, "what it leads to", "LINK")
    # What stands before ".." in the text may itself be a link: then only walking finds the place.
    if _errno(host.stat, target) is None and through.kind.name == "DIRECTORY":
        _expect(host.list(path) == host.list(target), "a link shows its target", path, target, "other names")


def _missing(host: ReadableHost, top: str) -> None:
    path = f"{top}/{_MISSING}"
    asked: dict[str, Callable[[], object]] = {
        "read": lambda: host.read(path),
        "list": lambda: host.list(path),
        "readlink": lambda: host.readlink(path),
        "stat": lambda: host.stat(path),
        "lstat": lambda: host.stat(path, follow=False),
        "probe": lambda: host.probe(path),
        "stat below": lambda: host.stat(f"{path}/{_MISSING}"),
    }
    for what, ask in asked.items():
        _refuses(errno.ENOENT, f"{what} of what is not there", path, ask)


def _kfd(host: ReadableHost, checked: Checked) -> None:
    """The topology: places 0 to n-1, each with all its parts, properties of a name and a number a line."""
    if _errno(host.list, _NODES) is not None:
        return
    names = host.list(_NODES)
    places = [str(place) for place in range(len(names))]
    _expect(
        sorted(names, key=_by_number) == places, "nodes are numbered without a gap", _NODES, places, names
    )
    for name in names:
        parts = host.list(f"{_NODES}/{name}")
        for part in ("gpu_id", "name", "properties", "mem_banks", "io_links", "caches"):
            _expect(part in parts, "a node has all its parts", f"{_NODES}/{name}", part, parts)
        path = f"{_NODES}/{name}/properties"
        if _errno(host.read, path) is not None:
            continue  # a GPU that this reader's device cgroup hides: EPERM
        for line in host.read(path).decode().splitlines():
            _, space, value = line.partition(" ")
            _expect(bool(space) and value.isdecimal(), "properties are numbers", path, "NAME NUMBER", line)


def _render_nodes(host: ReadableHost, checked: Checked) -> None:
    """A render node in /dev/dri is a device that opens, and its number is in its name and in sysfs."""
    names = host.list("/dev/dri") if _errno(host.list, "/dev/dri") is None else ()
    for name in (name for name in names if name.startswith("renderD")):
        path = f"/dev/dri/{name}"
        kind = host.stat(path).kind.name
        _expect(kind in ("CHARACTER", "FILE"), "a render node is a device or stands for one", path, "", kind)
        number = f"226:{name.removeprefix('renderD')}\n".encode()
        if _errno(host.list, f"/sys/class/drm/{name}") is None:
            shown = host.read(f"/sys/class/drm/{name}/dev")
            _expect(shown == number, "a minor is in its name", f"/sys/class/drm/{name}/dev", number, shown)


# Writing


def _partitions(
    host: Any, checked: Checked, hold: Callable[[str], AbstractContextManager[object]] | None
) -> None:
    """Every available mode can be had, and the nodes follow at once (kernel.md 2.1)."""
    gpu = _partitionable(host)
    path = f"{gpu}/current_compute_partition"
    first = host.read(path)
    modes = host.read(f"{gpu}/available_compute_partition").decode().strip().split(", ")
    counts: dict[str, list[str]] = {}
    try:
        for mode in (*modes, *reversed(modes)):
            text = f"{mode.lower()}\n".encode()
            _expect(host.write(path, text) == len(text), "a write takes all bytes", path, len(text), "fewer")
            checked.writes += 1
            _expect(
                host.read(path) == f"{mode}\n".encode(), "a mode written is the mode read", path, mode, ""
            )
            nodes = list(host.list(_NODES))
            _expect(
                counts.setdefault(mode, nodes) == nodes, "a mode has its nodes", _NODES, counts[mode], nodes
            )
            for gone in set().union(*counts.values()) - set(nodes):
                here = f"{_NODES}/{gone}/gpu_id"
                _refuses(
                    errno.ENOENT, "a vanished node is gone at once", here, lambda here=here: host.read(here)
                )
        different = len({len(nodes) for nodes in counts.values()})
        _expect(
            different == len(modes), "each mode has as many nodes as partitions", _NODES, len(modes), counts
        )
        for nonsense in (b"XXX\n", b"CP\n", b" CPX\n"):
            _refuses(errno.EINVAL, "no mode", path, host.write, path, text)
        if hold is not None:
            other = next(mode for mode in modes if f"{mode}\n".encode() != host.read(path)).encode()
            with hold("/dev/kfd"):
                _refuses(errno.EBUSY, "no switch while KFD is in use", path, host.write, path, other)
            host.write(path, other)
            _expect(
                host.read(path) == other + b"\n", "a switch once it is free", path, other, host.read(path)
            )
    finally:
        host.write(path, first)


def _kernel_names(host: Any, checked: Checked) -> None:
    """In sysfs only the kernel makes names, and a file has the methods its mode says, for root too."""
    gpu = _partitionable(host)
    vendor = f"{gpu}/vendor"
    asked: list[tuple[int, str, str, Callable[[], object]]] = [
        (errno.EACCES, "write to a read-only file", vendor, lambda: host.write(vendor, b"1")),
        (errno.ENOENT, "write to what is not there", gpu, lambda: host.write(f"{gpu}/{_MISSING}", b"1")),
        (errno.EISDIR, "write to a directory", gpu, lambda: host.write(gpu, b"1")),
        (errno.ENOTDIR, "write below a file", vendor, lambda: host.write(f"{vendor}/{_MISSING}", b"1")),
        (errno.EACCES, "create in sysfs", gpu, lambda: host.put(f"{gpu}/{_MISSING}", b"1")),
        (errno.EPERM, "mkdir in sysfs", gpu, lambda: host.mkdir(f"{gpu}/{_MISSING}")),
        (errno.EPERM, "unlink in sysfs", vendor, lambda: host.unlink(vendor)),
        (errno.EPERM, "rmdir in sysfs", f"{gpu}/power", lambda: host.rmdir(f"{gpu}/power")),
        (errno.ENOENT, "unlink what is not there", gpu, lambda: host.unlink(f"{gpu}/{_MISSING}")),
    ]
    for code, rule, path, ask in asked:
        _refuses(code, rule, path, ask)
        checked.writes += 1


def _ordinary_files(host: Any, checked: Checked) -> None:
    """Where programs keep files: put replaces whole, modes are kept, directories must be empty to go."""
    inner, file = f"{_SCRATCH}/inner", f"{_SCRATCH}/inner/file"
    host.mkdir(inner)
    try:
        for content, mode in ((b"one", 0o640), (b"", 0o644), (b"longer than before\n", 0o600)):
            host.put(file, content, mode)
            checked.writes += 1
            _expect(host.read(file) == content, "what was put is read", file, content, host.read(file))
            found = host.stat(file).mode
            _expect(found == mode, "put keeps the mode", file, oct(mode), oct(found))
            _expect(
                list(host.list(inner)) == ["file"],
                "put leaves nothing beside",
                inner,
                ["file"],
                host.list(inner),
            )
        host.mkdir(inner)
        _refuses(errno.ENOTEMPTY, "rmdir of a directory in use", inner, host.rmdir, inner)
        _refuses(errno.EISDIR, "unlink of a directory", inner, host.unlink, inner)
        _refuses(errno.ENOTDIR, "rmdir of a file", file, host.rmdir, file)
        host.unlink(file)
        _refuses(errno.ENOENT, "a file removed is gone", file, host.read, file)
    finally:
        if _errno(host.stat, file) is None:
            host.unlink(file)
        host.rmdir(inner)
        host.rmdir(_SCRATCH)


def _cgroups(host: Any, checked: Checked) -> None:
    """A cgroup is a directory that fills itself; its limits are files (kernel.md 4)."""
    if _errno(host.list, _CGROUPS) is not None:
        return
    group = f"{_CGROUPS}/check-host"
    host.mkdir(group)
    try:
        _expect(
            "cgroup.procs" in host.list(group),
            "a cgroup has its files",
            group,
            "cgroup.procs",
            host.list(group),
        )
        procs = f"{group}/cgroup.procs"
        _expect(host.read(procs) == b"", "a new cgroup is empty", procs, b"", host.read(procs))
        _refuses(errno.EACCES, "create in cgroupfs", group, host.put, f"{group}/{_MISSING}", b"1")
        checked.writes += 1
    finally:
        host.rmdir(group)
    _refuses(errno.ENOENT, "a cgroup removed is gone", group, host.list, group)


def _partitionable(host: Any) -> str:
    for name in host.list(_GPUS):
        gpu = f"{_GPUS}/{name}"
        if _errno(host.read, f"{gpu}/available_compute_partition") is None:
            return gpu
    raise CheckError(f"{_GPUS}: the write contract needs a GPU that can be partitioned; there is none")


# Saying


def _expect(holds: bool, rule: str, path: str, expected: object, got: object) -> None:
    if not holds:
        raise CheckError(f"{rule}: {path}: expected {expected!r}, got {got!r}")


def _refuses(code: int, rule: str, path: str, ask: Callable[..., object], *args: object) -> None:
    got = _errno(ask, *args)
    if got != code:
        raise CheckError(f"{rule}: {path}: expected {_name(code)}, got {_name(got)}")


def _errno(ask: Callable[..., object], *args: object) -> int | None:
    """The errno an operation is refused with; None when it is not refused."""
    try:
        ask(*args)
    except OSError as error:
        return error.errno or 0
    return None


def _name(code: int | None) -> str:
    return "success" if code is None else errno.errorcode.get(code, f"errno {code}")


def _by_number(name: str) -> tuple[int, str]:
    return (int(name) if name.isdecimal() else -1, name)
