"""What the PCI directory of a GPU and the platform directories of its partitions say.

One read per file, and for every file what its absence means: only `mem_info_vram_total` and the DRM
entries are needed to offer a device. Formats: kernel.md 2.1, 2.2, 2.6 and 3; meaning: amd.md 2.3, 2.4,
decisions 2, 6, 11, 13, 27.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping
from dataclasses import dataclass

from devplugin.amd.uuid import is_bdf
from devplugin.host import Host, words

BOUND = "/sys/module/amdgpu/drivers/pci:amdgpu"
PLATFORM = "/sys/devices/platform"

_XCP = re.compile(r"amdgpu_xcp[_.]([0-9]{1,9})")
_MEMORY = re.compile(r"nps[0-9]")
_MAX_MIB = 2**31 - 1
_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR})


class UnusableError(Exception):
    """A GPU or partition cannot be offered. The text names the path and the cause."""


@dataclass(frozen=True, slots=True)
class Drm:
    """DRM minors of one device directory."""

    card: int | None
    renders: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PciFacts:
    """The files of one PCI GPU."""

    vram_bytes: int
    compute: str
    """Trimmed and lower-cased; empty when absent or unreadable."""
    memory: str
    changeable: bool
    has_mode_file: bool
    has_memory_file: bool
    numa: int
    unique_id: int | None
    """None where the file is absent, empty or 0."""
    unique_id_problem: str | None
    """Set when the file is there and cannot be read: not the same as absent."""
    warnings: tuple[str, ...]


def bound_gpus(host: Host) -> tuple[Mapping[tuple[int, int, int], tuple[str, ...]], str | None]:
    """BDFs of all devices bound to amdgpu by (domain, bus, device), and why there are none."""
    try:
        names = host.list(BOUND)
    except OSError as error:
        return {}, f"{BOUND}: {words(error)}"
    slots: dict[tuple[int, int, int], tuple[str, ...]] = {}
    for name in names:
        if is_bdf(name):
            slots[slot_of(name)] = (*slots.get(slot_of(name), ()), name)
    return slots, None


def slot_of(bdf: str) -> tuple[int, int, int]:
    """(domain, bus, device) of a PCI address."""
    domain, bus, rest = bdf.split(":")
    return int(domain, 16), int(bus, 16), int(rest[:2], 16)


def read_drm(host: Host, directory: str) -> Drm:
    """DRM minors below a device directory; other names (`controlD64`, `ttm`) are passed over.

    Raises:
        UnusableError: There is no readable ``drm`` directory.
    """
    try:
        names = host.list(f"{directory}/drm")
    except OSError as error:
        raise UnusableError(f"{directory}/drm: {words(error)}") from error
    cards: list[int] = []
    renders: list[int] = []
    for name in names:
        if name.startswith("renderD"):
            renders += _minor(name[7:])
        elif name.startswith("card"):
            cards += _minor(name[4:])
    return Drm(min(cards, default=None), tuple(sorted(renders)))


def _minor(text: str) -> tuple[int, ...]:
    """A minor number (20 bits), or nothing."""
    return (int(text),) if text.isascii() and text.isdecimal() and len(text) < 8 else ()


class Platform:
    """The partition devices, listed only when asked and only as far as needed (decision 2)."""

    def __init__(self, host: Host) -> None:
        """Look at nothing yet."""
        self._host = host
        self._found: dict[int, tuple[str, int | None]] = {}
        self._rest: list[str] | None = None
        self.problem: str | None = None
        """Why no partition device can be found at all."""

    def find(self, render_minor: int) -> tuple[str, int | None] | None:
        """(directory name, card minor or None) of the partition device with this render minor.

        Devices without DRM entries are left behind by old kernels after a re-probe (kernel.md 2.6).
        """
        if self._rest is None:
            self._rest = self._names()
        while render_minor not in self._found and self._rest:
            name = self._rest.pop()
            try:
                drm = read_drm(self._host, f"{PLATFORM}/{name}")
            except UnusableError:
                continue
            for minor in drm.renders:
                self._found.setdefault(minor, (name, drm.card))
        return self._found.get(render_minor)

    def _names(self) -> list[str]:
        """Partition devices, lowest number last."""
        try:
            names = self._host.list(PLATFORM)
        except OSError as error:
            self.problem = f"{PLATFORM}: {words(error)}"
            return []
        numbered = sorted((int(m[1]), name) for name in names if (m := _XCP.fullmatch(name)))
        return [name for _, name in reversed(numbered)]


def read_facts(host: Host, bdf: str) -> PciFacts:
    """Every file of a PCI GPU that discovery looks at.

    Raises:
        UnusableError: `mem_info_vram_total` is absent, unreadable or no possible size, or nobody can tell
            whether there is an `available_compute_partition`.
    """
    directory = f"{BOUND}/{bdf}"
    warnings: list[str] = []
    compute, has_mode_file = _word(host, f"{directory}/current_compute_partition", bdf, warnings)
    memory, has_memory_file = _word(host, f"{directory}/current_memory_partition", bdf, warnings)
    unique_id, problem = _unique_id(host, f"{directory}/unique_id")
    return PciFacts(
        vram_bytes=_vram(host, f"{directory}/mem_info_vram_total"),
        compute=compute,
        memory=memory if _MEMORY.fullmatch(memory) else "",
        changeable=_can_change(host, f"{directory}/available_compute_partition"),
        has_mode_file=has_mode_file,
        has_memory_file=has_memory_file,
        numa=_numa(host, f"{directory}/numa_node", bdf, warnings),
        unique_id=unique_id,
        unique_id_problem=problem,
        warnings=tuple(warnings),
    )


def read_text(host: Host, path: str) -> str:
    """A short text file without blanks, newline and the NUL padding of some captures."""
    return host.read(path).replace(b"\0", b"").decode("utf-8", "replace").strip()


def _word(host: Host, path: str, bdf: str, warnings: list[str]) -> tuple[str, bool]:
    """(lower-case word, whether the file is there); absent is silent: most GPUs have no partitions."""
    try:
        return read_text(host, path).lower(), True
    except OSError as error:
        if error.errno not in _ABSENT:
            warnings.append(f"{bdf}: {path}: {words(error)}")
        return "", error.errno not in _ABSENT


def _can_change(host: Host, path: str) -> bool:
    """Whether there is an `available_compute_partition`: a VF has none (decision 13). Its text is not needed.

    Only ENOENT means that there is none. Whatever else keeps it from being looked at leaves open whether the
    GPU is offered hard or soft, so it is not offered.
    """
    try:
        kind = host.stat(path).kind
    except OSError as error:
        if error.errno == errno.ENOENT:
            return False
        raise UnusableError(f"{path}: {words(error)}") from error
    if kind.name == "DIRECTORY":
        raise UnusableError(f"{path}: EISDIR")
    return True


def _vram(host: Host, path: str) -> int:
    """Bytes; what does not make 1 to 2**31-1 MiB is refused (amd.md 2.5)."""
    try:
        text = read_text(host, path)
    except OSError as error:
        raise UnusableError(f"{path}: {words(error)}") from error
    if not (text.isascii() and text.isdecimal() and len(text) <= 20):
        raise UnusableError(f"{path}: no number")
    if not 0 < int(text) >> 20 <= _MAX_MIB:
        raise UnusableError(f"{path}: {text} bytes is no possible size")
    return int(text)


def _numa(host: Host, path: str, bdf: str, warnings: list[str]) -> int:
    """The NUMA node, -1 where unknown; a warning only where the kernel did not say so (decision 27)."""
    try:
        text = read_text(host, path)
    except OSError as error:
        warnings.append(f"{bdf}: {path}: {words(error)}: NUMA node taken as unknown")
        return -1
    if re.fullmatch(r"-1|[0-9]{1,5}", text) is None:
        warnings.append(f"{bdf}: {path}: no NUMA node number: taken as unknown")
        return -1
    return int(text)


def _unique_id(host: Host, path: str) -> tuple[int | None, str | None]:
    """(serial or None, problem). In reset the file answers EPERM, which says nothing of the serial."""
    try:
        text = read_text(host, path)
    except OSError as error:
        return None, None if error.errno in _ABSENT else f"{path}: {words(error)}"
    if re.fullmatch(r"(?:0x)?[0-9a-fA-F]{1,16}", text) is None:
        return None, f"{path}: no serial" if text else None
    return int(text, 16) or None, None
