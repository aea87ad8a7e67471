"""Which files of a node are recorded: what device plugins, labellers and monitors read, and what explains it.

Starting points are the kernel's own lists (class, bus and module directories); every link on the way to
a device is kept as a link, and the device's directory is taken whole. Only names are looked at here
(`record` reads the files), except a PCI device's ``class``.

Left out (kernel.md 3, the captures' PROVENANCE): files whose *reading* acts on the device or takes its
firmware's time, what is private (monitor serials, kernel addresses, die serials inside binary tables), raw
PCI space, and all of the node that has nothing to do with accelerators.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from gpusim.snapshots.directory import MAX_LINKS, code_name
from gpusim.snapshots.pack import Entry, Kind
from gpusim.snapshots.programs import TOOLS
from gpusim.snapshots.shape import check_depth

LEFT_OUT = {
    "psp_vbflash": "reading it starts the flashing of the video BIOS",
    "usbc_pd_fw": "reading it asks the firmware of a port controller",
    "config": "raw PCI configuration space, with a serial number in it",
    "vpd": "an EEPROM that takes seconds to read, with a serial number in it",
    "rom": "the video BIOS",
    "resource": "addresses of the host",
    "pp_table": "binary power tables",
    "pm_metrics": "a binary table of the firmware, with the serial numbers of the dies in it",
    "reg_state": "raw registers",
    "hdcp_srm": "binary, not the device's",
    "edid": "the serial number of a monitor",
    "sections": "kernel addresses",
    "notes": "build ids",
    "holders": "other modules",
}
"""File or directory name → why it is not recorded. ``resource0``, ``resource0_wc``, … are ``resource``."""

_RESOURCE = re.compile(r"resource\d+(?:_wc)?")
_BRIDGE = frozenset(
    [
        *(
            "class",
            "vendor",
            "device",
            "revision",
            "subsystem_vendor",
            "subsystem_device",
            "modalias",
            "uevent",
        ),
        *("driver", "subsystem", "numa_node", "current_link_speed", "current_link_width"),
        *("max_link_speed", "max_link_width"),
    ]
)
"""Of a bridge above a GPU."""

_ACCELERATORS = ("0x03", "0x12")
"""PCI base classes: display controllers, processing accelerators (Ascend, PPU)."""

_DEVICES = re.compile(r"kfd|dri|accel|v?davinci\w*|devmm_svm|hisi_hdc|alixpu\w*")
"""Names in /dev; directories with what is in them."""

_CGROUPS = re.compile(
    r"(?:kubelet|[\w-]*kubepods(?:-burstable|-besteffort)?)(?:\.slice)?|burstable|besteffort"
)
"""Cgroups above pods. Pods and containers are somebody's work and carry identifiers."""

_CGROUP_FILES = re.compile(r"cgroup\.(?:controllers|subtree_control|type)|dmem\.\w+")

_SINGLE = (
    "/proc/devices",
    "/proc/sys/kernel/osrelease",
    "/proc/sys/kernel/ostype",
    "/proc/sys/kernel/version",
    "/etc/os-release",
    "/opt/rocm/.info/version",
    "/etc/ascend_install.info",
    "/usr/local/Ascend/driver/version.info",
    "/usr/local/Ascend/firmware/version.info",
)
"""Versions, device majors, and how a driver was installed."""

_MODULES = ("amdgpu", "amdkcl", "amdttm", "drm", "drv_davinci_intf", "alixpu")
_BDF = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]")


class Stat(Protocol):
    """Kind, permission bits and device number; `kind` has the member names of `pack.Kind`."""

    @property
    def kind(self) -> Any: ...  # noqa: D102
    @property
    def mode(self) -> int: ...  # noqa: D102
    @property
    def rdev(self) -> tuple[int, int] | None: ...  # noqa: D102


class Source(Protocol):
    """Where a node's names are: a directory, or whatever is a Host. Errors are OSError."""

    def list(self, path: str) -> Sequence[str]: ...  # noqa: D102
    def readlink(self, path: str) -> str: ...  # noqa: D102
    def stat(self, path: str, *, follow: bool = True) -> Stat: ...  # noqa: D102
    def read(self, path: str) -> bytes: ...  # noqa: D102


class Plan:
    """The names of a recording: everything but the content of files.

    Args:
        source: the node.
        read: reads one file; may raise OSError.
    """

    def __init__(self, source: Source, read: Callable[[str], bytes]) -> None:
        self.source = source
        self.entries: dict[str, Entry] = {}
        """Canonical path → entry; files without content."""
        self.files: list[str] = []
        """Files to be read."""
        self._read = read
        self._listed: dict[str, Sequence[str]] = {}

    def everything(self) -> None:
        """Look at the whole node."""
        self._kfd()
        self._drm()
        self._pci()
        self._modules()
        for directory in ("/sys/class/hwmon", "/sys/class/accel", "/sys/dev/char"):
            self._links_to_recorded(directory)
        self._cgroup("/sys/fs/cgroup")
        for path in _SINGLE:
            self.take(path)
        for tool in TOOLS.values():
            for path in tool.places:
                self._program(path)
        self._dev()

    # ------------------------------------------------------------------ the node's parts

    def _kfd(self) -> None:
        self.take("/sys/class/kfd")
        for name in self._names("/sys/class/kfd"):
            self.whole(self.take(f"/sys/class/kfd/{name}"))

    def _drm(self) -> None:
        """Every DRM device with the device it belongs to, whoever drives it."""
        self.take("/sys/class/drm")
        for name in self._names("/sys/class/drm"):
            place = self.take(f"/sys/class/drm/{name}")
            if place is not None:
                self.whole(place.partition("/drm/")[0] if place.startswith("/sys/devices/") else place)
        self.take("/sys/bus/platform/devices")
        for name in self._names("/sys/bus/platform/devices"):
            if name.startswith("amdgpu_xcp"):
                self.whole(self.take(f"/sys/bus/platform/devices/{name}"))

    def _pci(self) -> None:
        """Accelerators without a DRM device, too; then bridges, drivers and lists of all that was taken."""
        for name in self._names("/sys/bus/pci/devices"):
            path = f"/sys/bus/pci/devices/{name}"
            place = self._resolve(path)
            if place is None or place in self.entries:
                continue
            # A directory there instead of a link: somebody's capture of just what matters.
            if place == path or self._is_accelerator(place):
                self.whole(place)
        devices = [path for path in self.entries if _BDF.fullmatch(path.rpartition("/")[2])]
        for path in devices:
            above = path.rpartition("/")[0]
            while _BDF.fullmatch(above.rpartition("/")[2]) and f"{above}/class" not in self.entries:
                for name in self._names(above):
                    if name in _BRIDGE:
                        self._keep(f"{above}/{name}")
                above = above.rpartition("/")[0]
        drivers = [self._resolve(f"{path}/driver") for path in self.entries if _BDF.fullmatch(_last(path))]
        for driver in sorted({driver for driver in drivers if driver is not None}):
            self._links_to_recorded(driver, files=True)
        self._links_to_recorded("/sys/bus/pci/devices")

    def _modules(self) -> None:
        for name in _MODULES:
            place = self.take(f"/sys/module/{name}")
            if place is None:
                continue
            if name == "amdgpu":
                self.whole(place)
                for driver in self._names(f"{place}/drivers"):
                    self.take(f"{place}/drivers/{driver}")
            else:
                for file in ("version", "srcversion"):
                    self.take(f"{place}/{file}")

    def _cgroup(self, path: str, depth: int = 5) -> None:
        if self.take(path) is None:
            return
        for name in self._names(path):
            inner = f"{path}/{name}"
            if _CGROUP_FILES.fullmatch(name):
                self._keep(inner)
            elif _CGROUPS.fullmatch(name) and depth and self._kind(inner) is Kind.DIRECTORY:
                self._cgroup(inner, depth - 1)

    def _dev(self) -> None:
        """Names, numbers and modes only: nothing below /dev is ever opened."""
        if self.take("/dev") is None:
            return
        for name in self._names("/dev"):
            if _DEVICES.fullmatch(name):
                self._device(f"/dev/{name}")

    def _device(self, path: str) -> None:
        self._keep(path, opened=False)
        entry = self.entries.get(path)
        if entry is not None and entry.kind is Kind.DIRECTORY:
            check_depth(path)
            for name in self._names(path):
                self._device(f"{path}/{name}")

    def _program(self, path: str) -> None:
        """A vendor's program: that it is there, not what is in it."""
        place = self.take(path) if self._resolve(path) is not None else None
        if place in self.files:
            self.files.remove(place)

    def _links_to_recorded(self, directory: str, *, files: bool = False) -> None:
        """Those links of a directory whose target is recorded; with `files` what is no link, too."""
        for name in self._names(directory):
            path = f"{directory}/{name}"
            kind = self._kind(path)
            if kind is Kind.LINK:
                if self._resolve(path) in self.entries or (files and name == "module"):
                    self.take(path)
            elif files and kind is not Kind.DIRECTORY:
                self.take(path)

    def _is_accelerator(self, place: str) -> bool:
        try:
            return self._read(f"{place}/class").decode("ascii", "replace").startswith(_ACCELERATORS)
        except OSError:
            return False

    # ------------------------------------------------------------------ taking names

    def take(self, path: str) -> str | None:
        """Keep everything on the way to a path, links too; where it leads, None when nowhere."""
        todo = [part for part in path.split("/") if part][::-1]
        here: list[str] = []
        links = 0
        while todo:
            part = todo.pop()
            if part == "..":
                del here[-1:]
                continue
            at = "/".join(("", *here, part))
            if at not in self.entries:
                self._keep(at)
            entry = self.entries.get(at)
            if entry is None:
                return None
            if entry.kind is Kind.LINK:
                links += 1
                if links > MAX_LINKS:
                    return None
                if entry.target.startswith("/"):
                    here = []
                todo += [step for step in entry.target.split("/") if step not in ("", ".")][::-1]
            else:
                here.append(part)
        return "/".join(("", *here))

    def whole(self, path: str | None) -> None:
        """Keep a directory with all that is below it, but `LEFT_OUT`; links are kept, not followed."""
        if path is None or self.take(path) is None:
            return
        entry = self.entries[path]
        if entry.kind is not Kind.DIRECTORY or entry.error:
            return
        check_depth(path)
        behind = _BDF.fullmatch(_last(path)) is not None  # other PCI devices are below a bridge
        for name in self._names(path):
            if name in LEFT_OUT or _RESOURCE.fullmatch(name) or (behind and _BDF.fullmatch(name)):
                continue
            inner = f"{path}/{name}"
            if inner not in self.entries:
                self._keep(inner)
            kept = self.entries.get(inner)
            if kept is not None and kept.kind is Kind.DIRECTORY:
                self.whole(inner)

    def _keep(self, path: str, *, opened: bool = True) -> None:
        """Keep one name; nothing when it has gone."""
        try:
            found = self.source.stat(path, follow=False)
            kind = Kind[found.kind.name]
            if kind is Kind.LINK:
                self.entries[path] = Entry(kind, 0o777, target=self.source.readlink(path))
                return
        except OSError:
            return
        if kind is Kind.DIRECTORY:
            try:
                self._listed[path] = self.source.list(path)
            except OSError as error:
                self.entries[path] = Entry(kind, found.mode, error=code_name(error.errno))
                return
        if kind is Kind.FILE and opened:
            if found.mode & 0o444:
                self.files.append(path)
            else:
                # Write-only: the kernel answers EACCES to everyone (KERNFS_ROOT_EXTRA_OPEN_PERM_CHECK).
                self.entries[path] = Entry(kind, found.mode, error="EACCES")
                return
        self.entries[path] = Entry(kind, found.mode, rdev=found.rdev)

    def _kind(self, path: str) -> Kind | None:
        try:
            return Kind[self.source.stat(path, follow=False).kind.name]
        except OSError:
            return None

    def _names(self, path: str) -> Sequence[str]:
        """What is in a directory, whatever links lead there; nothing when it cannot be listed."""
        if path in self._listed:
            return self._listed[path]
        place = self._resolve(path)
        try:
            return () if place is None else self.source.list(place)
        except OSError:
            return ()

    def _resolve(self, path: str) -> str | None:
        """The canonical path, without keeping anything; None when it leads nowhere."""
        todo = [part for part in path.split("/") if part][::-1]
        here: list[str] = []
        links = 0
        while todo:
            part = todo.pop()
            if part == "..":
                del here[-1:]
                continue
            at = "/".join(("", *here, part))
            kind = self._kind(at)
            if kind is None or links > MAX_LINKS:
                return None
            if kind is not Kind.LINK:
                here.append(part)
                continue
            links += 1
            target = self.source.readlink(at)
            if target.startswith("/"):
                here = []
            todo += [step for step in target.split("/") if step not in ("", ".")][::-1]
        return "/".join(("", *here))


def _last(path: str) -> str:
    return path.rpartition("/")[2]
