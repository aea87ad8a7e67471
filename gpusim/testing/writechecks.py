"""The write and errno contract of a host: what `check_host` asks with ``writes=True``."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from gpusim.testing.rules import GPUS, MISSING, NODES, Checked, CheckError, errno_of, expect, refuses

_CGROUPS = "/sys/fs/cgroup"
_SCRATCH = "/run/check-host"


def partitions(
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
            expect(host.write(path, text) == len(text), "a write takes all bytes", path, len(text), "fewer")
            checked.writes += 1
            expect(host.read(path) == f"{mode}\n".encode(), "a mode written is the mode read", path, mode, "")
            nodes = list(host.list(NODES))
            expect(
                counts.setdefault(mode, nodes) == nodes, "a mode has its nodes", NODES, counts[mode], nodes
            )
            for gone in set().union(*counts.values()) - set(nodes):
                here = f"{NODES}/{gone}/gpu_id"
                refuses(errno.ENOENT, "a vanished node is gone at once", here, host.read, here)
        different = len({len(nodes) for nodes in counts.values()})
        expect(
            different == len(modes), "each mode has as many nodes as partitions", NODES, len(modes), counts
        )
        for nonsense in (b"XXX\n", b"CP\n", b" CPX\n"):
            refuses(errno.EINVAL, "no mode", path, host.write, path, nonsense)
        if hold is not None:
            other = next(mode for mode in modes if f"{mode}\n".encode() != host.read(path)).encode()
            with hold("/dev/kfd"):
                refuses(errno.EBUSY, "no switch while KFD is in use", path, host.write, path, other)
            host.write(path, other)
            expect(host.read(path) == other + b"\n", "a switch once it is free", path, other, host.read(path))
    finally:
        host.write(path, first)


def kernel_names(host: Any, checked: Checked) -> None:
    """In sysfs only the kernel makes names, and a file has the methods its mode says, for root too."""
    gpu = _partitionable(host)
    vendor = f"{gpu}/vendor"
    asked: list[tuple[int, str, str, Callable[[], object]]] = [
        (errno.EACCES, "write to a read-only file", vendor, lambda: host.write(vendor, b"1")),
        (errno.ENOENT, "write to what is not there", gpu, lambda: host.write(f"{gpu}/{MISSING}", b"1")),
        (errno.EISDIR, "write to a directory", gpu, lambda: host.write(gpu, b"1")),
        (errno.ENOTDIR, "write below a file", vendor, lambda: host.write(f"{vendor}/{MISSING}", b"1")),
        (errno.EACCES, "create in sysfs", gpu, lambda: host.put(f"{gpu}/{MISSING}", b"1")),
        (errno.EPERM, "mkdir in sysfs", gpu, lambda: host.mkdir(f"{gpu}/{MISSING}")),
        (errno.EPERM, "unlink in sysfs", vendor, lambda: host.unlink(vendor)),
        (errno.EPERM, "rmdir in sysfs", f"{gpu}/power", lambda: host.rmdir(f"{gpu}/power")),
        (errno.ENOENT, "unlink what is not there", gpu, lambda: host.unlink(f"{gpu}/{MISSING}")),
    ]
    for code, rule, path, ask in asked:
        refuses(code, rule, path, ask)
        checked.writes += 1


def ordinary_files(host: Any, checked: Checked) -> None:
    """Where programs keep files: put replaces whole, modes are kept, directories must be empty to go."""
    inner, file = f"{_SCRATCH}/inner", f"{_SCRATCH}/inner/file"
    host.mkdir(inner)
    try:
        for content, mode in ((b"one", 0o640), (b"", 0o644), (b"longer than before\n", 0o600)):
            host.put(file, content, mode)
            checked.writes += 1
            expect(host.read(file) == content, "what was put is read", file, content, host.read(file))
            found = host.stat(file).mode
            expect(found == mode, "put keeps the mode", file, oct(mode), oct(found))
            expect(
                list(host.list(inner)) == ["file"],
                "put leaves nothing beside",
                inner,
                ["file"],
                host.list(inner),
            )
        host.mkdir(inner)
        refuses(errno.ENOTEMPTY, "rmdir of a directory in use", inner, host.rmdir, inner)
        refuses(errno.EISDIR, "unlink of a directory", inner, host.unlink, inner)
        refuses(errno.ENOTDIR, "rmdir of a file", file, host.rmdir, file)
        host.unlink(file)
        refuses(errno.ENOENT, "a file removed is gone", file, host.read, file)
    finally:
        if errno_of(host.stat, file) is None:
            host.unlink(file)
        host.rmdir(inner)
        host.rmdir(_SCRATCH)


def cgroups(host: Any, checked: Checked) -> None:
    """A cgroup is a directory that fills itself; its limits are files (kernel.md 4)."""
    if errno_of(host.list, _CGROUPS) is not None:
        return
    group = f"{_CGROUPS}/check-host"
    host.mkdir(group)
    try:
        expect(
            "cgroup.procs" in host.list(group),
            "a cgroup has its files",
            group,
            "cgroup.procs",
            host.list(group),
        )
        procs = f"{group}/cgroup.procs"
        expect(host.read(procs) == b"", "a new cgroup is empty", procs, b"", host.read(procs))
        refuses(errno.EACCES, "create in cgroupfs", group, host.put, f"{group}/{MISSING}", b"1")
        checked.writes += 1
    finally:
        host.rmdir(group)
    refuses(errno.ENOENT, "a cgroup removed is gone", group, host.list, group)


def _partitionable(host: Any) -> str:
    for name in host.list(GPUS):
        gpu = f"{GPUS}/{name}"
        if errno_of(host.read, f"{gpu}/available_compute_partition") is None:
            return gpu
    raise CheckError(f"{GPUS}: the write contract needs a GPU that can be partitioned; there is none")
