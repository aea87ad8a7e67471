"""One side of a comparison: what it has, and where each name is compared.

Recorders often keep a real directory where sysfs has a link, and the way from a root bus to a GPU is the
host's own; so every name has a place (`place`) that is the same on all hosts, and a side is asked for a place
by every way that leads there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from gpusim.nodes import Kind
from gpusim.snapshots.shape import check_depth
from gpusim.snapshots.sources import Source

ROOTS = (
    "/sys/class/kfd",
    "/sys/devices/virtual/kfd",
    "/sys/class/drm",
    "/sys/class/hwmon",
    "/sys/bus/pci",
    "/sys/bus/platform/devices",
    "/sys/module/amdgpu",
    "/sys/devices",
    "/sys/fs/cgroup",
    "/dev/kfd",
    "/dev/dri",
)
"""What is compared; of /sys/devices only GPUs and the partitions' platform devices."""
_BDF = r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]"
_BELOW_BUS = re.compile(rf"/sys/devices/pci[0-9a-f]+:[0-9a-f]{{2}}/(?:{_BDF}/)*({_BDF})(?=/|$)")
_MEMBER = re.compile(rf"/sys/(?:bus/pci/drivers/[^/]+|module/amdgpu/drivers/pci:amdgpu)/({_BDF})(?=/)")
_KFD = "/sys/devices/virtual/kfd/kfd"
_HWMON = re.compile(r"/hwmon/hwmon\d+(?=/|$)")
_PCI = "/sys/bus/pci/devices"
_BRIDGE = "0x06"
_GPU_CLASSES = ("0x03", "0x12")
_KEPT = {
    "/sys/devices": ("pci", "platform"),
    "/sys/devices/platform": ("amdgpu_xcp",),
    "/sys/bus/platform/devices": ("amdgpu_xcp",),
    "/sys/bus/pci": ("devices", "drivers"),
    "/sys/bus/pci/drivers": ("amdgpu",),
    "/sys/fs/cgroup": ("cgroup.controllers", "cgroup.subtree_control", "dmem.", "kubepods"),
    "/sys/fs/cgroup/kubepods": ("cgroup.controllers", "cgroup.subtree_control", "dmem."),
    "/sys/fs/cgroup/kubepods.slice": ("cgroup.controllers", "cgroup.subtree_control", "dmem."),
}
"""Directory → what the names that belong to GPUs start with; a real host has much else there."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A path without further names below it."""

    path: str
    kind: Kind


class Walk:
    """One side: its leaves by the place they are compared at, and lookups."""

    def __init__(self, source: Source, only: Sequence[str] = ()) -> None:
        self.source = source
        self._only = tuple(only)
        self._kinds: dict[str, Kind | None] = {}
        self.leaves: dict[str, Leaf] = {}
        for root in ROOTS:
            self._visit(root)

    def _visit(self, path: str) -> None:
        kind = self.kind(path)
        if kind is Kind.DIRECTORY:
            check_depth(path)
            try:
                names = self.source.list(path)
            except OSError:
                names = ()
            kept = [name for name in names if self._wanted(path, name)]
            if not names and path not in _KEPT:
                self._add(path, kind)
            for name in kept:
                self._visit(f"{path}/{name}")
        elif kind is not None:
            self._add(path, kind)

    def _add(self, path: str, kind: Kind) -> None:
        at = place(path)
        if not self._only or any(fnmatchcase(at, glob) for glob in self._only):
            self.leaves.setdefault(at, Leaf(path, kind))

    def _wanted(self, path: str, name: str) -> bool:
        """What of a real host's /sys belongs to its GPUs."""
        if path in _KEPT:
            return name.startswith(_KEPT[path])
        if re.fullmatch(_BDF, name) and (path == _PCI or path.startswith("/sys/devices/pci")):
            return self._leads_to_gpu(f"{path}/{name}")
        # A bridge's own files are the host's.
        return not (path.startswith("/sys/devices/pci") and self._is_bridge(path))

    def _is_bridge(self, path: str) -> bool:
        kind = self.text(f"{path}/class")
        return kind is not None and kind.startswith(_BRIDGE)

    def _leads_to_gpu(self, path: str) -> bool:
        check_depth(path)
        kind = self.text(f"{path}/class")
        if kind is None:
            return True
        if kind.startswith(_BRIDGE):
            try:
                return any(
                    re.fullmatch(_BDF, name) and self._leads_to_gpu(f"{path}/{name}")
                    for name in self.source.list(path)
                )
            except OSError:
                return False
        return kind.startswith(_GPU_CLASSES)

    def text(self, path: str) -> str | None:
        """Text of a file, or None."""
        try:
            return self.source.read(path).rstrip(b"\0").decode("utf-8", "replace").strip()
        except OSError:
            return None

    def kind(self, path: str) -> Kind | None:
        """What the path is itself; None: nothing."""
        if path not in self._kinds:
            try:
                self._kinds[path] = self.source.stat(path, follow=False).kind
            except OSError:
                self._kinds[path] = None
        return self._kinds[path]

    def find(self, at: str) -> Leaf | None:
        """The leaf or directory this side has at a place of the other."""
        if (leaf := self.leaves.get(at)) is not None:
            return leaf
        path = self._with_number(at)
        if path is None or (kind := self.kind(path)) is None:
            return None
        return Leaf(path, kind)

    def _with_number(self, at: str) -> str | None:
        """`at` with this side's number of the sensor chip."""
        head, mark, tail = at.partition("/hwmon/hwmon*")
        if not mark:
            return at
        try:
            chips = self.source.list(f"{head}/hwmon")
        except OSError:
            return None
        return f"{head}/hwmon/{chips[0]}{tail}" if len(chips) == 1 else None

    def content(self, leaf: Leaf) -> bytes | OSError:
        """What reading it gives: bytes without NUL padding, or the error."""
        try:
            return self.source.read(leaf.path).rstrip(b"\0")
        except OSError as error:
            return error

    def real(self, leaf: Leaf) -> str:
        """The place of a leaf with every link on the way followed."""
        here = ""
        pending = [part for part in reversed(leaf.path.split("/")) if part]
        for _ in range(200):
            if not pending:
                break
            part = pending.pop()
            if part == "..":
                here = here.rpartition("/")[0]
                continue
            path = f"{here}/{part}"
            if pending and self.kind(path) is Kind.LINK:
                target = self.source.readlink(path)
                here = "" if target.startswith("/") else here
                pending += [step for step in reversed(target.split("/")) if step not in ("", ".")]
            else:
                here = path
        return place(here)


def place(path: str) -> str:
    """Where a path is compared: a PCI device by its address alone, a sensor chip without its number."""
    if path.startswith("/sys/devices/pci"):
        path = _BELOW_BUS.sub(rf"{_PCI}/\1", path)
    elif path.startswith(_KFD):
        path = "/sys/class/kfd/kfd" + path[len(_KFD) :]
    elif ":" in path:
        path = _MEMBER.sub(rf"{_PCI}/\1", path)
    return path if path.startswith("/sys/class/hwmon/") else _HWMON.sub("/hwmon/hwmon*", path)


class Lookup(Walk):
    """A side that is only asked, never listed."""

    def _visit(self, path: str) -> None:
        pass
