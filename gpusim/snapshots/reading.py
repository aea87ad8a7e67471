"""A capture taken apart: KFD nodes, PCI devices, partition devices and DRM minors, as far as it has them.

No conclusions are drawn here; `infer` does. Everything may be missing: a capture is often partial, and a
recorder may have padded texts with NUL to a page. kernel.md 1 and 3 say what the files are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from gpusim.snapshots.sources import Source

TOPOLOGY = ("/sys/class/kfd/kfd/topology", "/sys/devices/virtual/kfd/kfd/topology")
BDF = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]")
_CARD = re.compile(r"card(\d+)")
_RENDER = re.compile(r"renderD(\d+)")
_XCP = re.compile(r"amdgpu_xcp([._])(\d+)")
_PAIR = re.compile(r"([0-9A-Fa-f]{4}):([0-9A-Fa-f]{4})")
_BRIDGE = 0x06


@dataclass(frozen=True, slots=True)
class KfdNode:
    """One directory of topology/nodes."""

    index: int
    path: str
    values: Mapping[str, int]
    """The lines of ``properties``."""
    gpu_id: int | None

    @property
    def is_gpu(self) -> bool:
        """Whether it is one: CPUs have no SIMDs."""
        return bool(self.values.get("simd_count") or self.gpu_id)


@dataclass(slots=True)
class Pci:
    """One PCI device, wherever the capture shows it."""

    bdf: str
    paths: list[str]
    """Its directory by every way that leads there, links resolved or not."""
    driver: str | None = None
    vendor: int | None = None
    device: int | None = None
    subsystem: tuple[int, int] | None = None
    card: int | None = None
    """Minor of its own card."""
    render: int | None = None
    drm_names: tuple[str, ...] = ()
    """What its drm/ lists; empty: not recorded."""


@dataclass(frozen=True, slots=True)
class Xcp:
    """One platform device of a partition."""

    separator: str
    number: int
    path: str
    card: int | None
    render: int | None


@dataclass(slots=True)
class Capture:
    """A source, asked for what `infer` needs; every answer is kept."""

    source: Source
    _texts: dict[str, str | None] = field(default_factory=dict)

    def text(self, path: str) -> str | None:
        """A file's text without NUL padding and outer blanks; None: not there, or an error."""
        if path not in self._texts:
            try:
                data = self.source.read(path)
            except OSError:
                self._texts[path] = None
            else:
                self._texts[path] = data.decode("utf-8", "replace").rstrip("\0").strip()
        return self._texts[path]

    def names(self, path: str) -> tuple[str, ...]:
        """Names in a directory; empty when it is not there."""
        try:
            return tuple(self.source.list(path))
        except OSError:
            return ()

    def has(self, path: str) -> bool:
        """Whether the path leads anywhere."""
        try:
            self.source.stat(path)
        except OSError:
            return False
        return True

    def link(self, path: str) -> str | None:
        """Last part of a link's target; None when there is no link."""
        try:
            return self.source.readlink(path).rstrip("/").rpartition("/")[2]
        except OSError:
            return None

    def values(self, path: str) -> dict[str, int]:
        """The ``name number`` lines of a file."""
        return _values(self.text(path) or "")


def _values(text: str) -> dict[str, int]:
    found = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if value.isdecimal() and (said := number(value)) is not None:
            found[name] = said
    return found


def number(text: str | None, base: int = 10) -> int | None:
    """The number a text is, or None."""
    try:
        return int(text or "", base)
    except ValueError:
        return None


class Kfd:
    """The recorded topology."""

    def __init__(self, capture: Capture) -> None:
        self.capture = capture
        self.root = next((root for root in TOPOLOGY if capture.has(root)), TOPOLOGY[0])

    @cached_property
    def nodes(self) -> tuple[KfdNode, ...]:
        """Every node whose ``properties`` were recorded, in list order."""
        capture, top = self.capture, f"{self.root}/nodes"
        found = []
        for name in sorted((n for n in capture.names(top) if n.isdecimal()), key=int):
            path = f"{top}/{name}"
            if values := capture.values(f"{path}/properties"):
                gpu_id = number(capture.text(f"{path}/gpu_id"))
                found.append(KfdNode(int(name), path, values, gpu_id))
        return tuple(found)

    @property
    def gpus(self) -> tuple[KfdNode, ...]:
        """The GPU nodes."""
        return tuple(node for node in self.nodes if node.is_gpu)

    @property
    def cpus(self) -> tuple[KfdNode, ...]:
        """The CPU nodes."""
        return tuple(node for node in self.nodes if not node.is_gpu)

    def links(self, node: KfdNode, kind: str = "io_links") -> Iterator[dict[str, int]]:
        """The links of a node, in directory order."""
        yield from self._listed(f"{node.path}/{kind}")

    def caches(self, node: KfdNode) -> Iterator[dict[str, int]]:
        """The caches of a node, without their maps."""
        yield from self._listed(f"{node.path}/caches")

    def bank(self, node: KfdNode) -> dict[str, int]:
        """The memory bank of a node; empty: not recorded."""
        return self.capture.values(f"{node.path}/mem_banks/0/properties")

    def _listed(self, directory: str) -> Iterator[dict[str, int]]:
        for name in sorted((n for n in self.capture.names(directory) if n.isdecimal()), key=int):
            if values := self.capture.values(f"{directory}/{name}/properties"):
                yield values


def pci_devices(capture: Capture) -> dict[str, Pci]:
    """Every recorded PCI device but bridges, by address."""
    found: dict[str, Pci] = {}
    for bdf, path in _places(capture):
        device = found.setdefault(bdf, Pci(bdf, []))
        if path not in device.paths:
            device.paths.append(path)
    for device in found.values():
        _describe(capture, device)
    for name in capture.names("/sys/class/drm"):
        if match := _CARD.fullmatch(name):
            owner = found.get(slot(capture, f"/sys/class/drm/{name}/device") or "")
            if owner is not None:
                owner.card = int(match[1])
    return {bdf: device for bdf, device in found.items() if not _is_bridge(capture, device)}


def _places(capture: Capture) -> Iterator[tuple[str, str]]:
    """Address and directory of PCI devices, by all ways in which captures have them."""
    for top in ("/sys/bus/pci/devices", "/sys/module/amdgpu/drivers/pci:amdgpu"):
        yield from ((name, f"{top}/{name}") for name in capture.names(top) if BDF.fullmatch(name))
    for driver in capture.names("/sys/bus/pci/drivers"):
        top = f"/sys/bus/pci/drivers/{driver}"
        yield from ((name, f"{top}/{name}") for name in capture.names(top) if BDF.fullmatch(name))
    for name in capture.names("/sys/class/drm"):
        path = f"/sys/class/drm/{name}/device"
        if (_CARD.fullmatch(name) or _RENDER.fullmatch(name)) and (bdf := slot(capture, path)):
            yield bdf, path
    pending = [f"/sys/devices/{n}" for n in capture.names("/sys/devices") if n.startswith("pci")]
    while pending:
        top = pending.pop()
        for name in capture.names(top):
            if BDF.fullmatch(name):
                yield name, f"{top}/{name}"
                pending.append(f"{top}/{name}")


def slot(capture: Capture, path: str) -> str | None:
    """PCI address of the device in a directory, from its ``uevent`` or from where a link leads."""
    said = _uevent(capture, path).get("PCI_SLOT_NAME") or capture.link(path) or ""
    return said if BDF.fullmatch(said) else None


def _uevent(capture: Capture, path: str) -> dict[str, str]:
    lines = (capture.text(f"{path}/uevent") or "").splitlines()
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


def first(capture: Capture, device: Pci, name: str) -> str | None:
    """A file of a device, by the first of its ways that has it."""
    texts = (capture.text(f"{path}/{name}") for path in device.paths)
    return next((text for text in texts if text is not None), None)


def _describe(capture: Capture, device: Pci) -> None:
    uevents = [_uevent(capture, path) for path in device.paths]
    said = {name: value for uevent in reversed(uevents) for name, value in uevent.items()}
    ids, board = _PAIR.fullmatch(said.get("PCI_ID", "")), _PAIR.fullmatch(said.get("PCI_SUBSYS_ID", ""))
    device.vendor = number(first(capture, device, "vendor"), 16) or (int(ids[1], 16) if ids else None)
    device.device = number(first(capture, device, "device"), 16) or (int(ids[2], 16) if ids else None)
    vendor, model = (number(first(capture, device, f"subsystem_{n}"), 16) for n in ("vendor", "device"))
    if vendor is not None and model is not None:
        device.subsystem = vendor, model
    elif board:
        device.subsystem = int(board[1], 16), int(board[2], 16)
    device.driver = said.get("DRIVER") or next(
        (name for path in device.paths if (name := capture.link(f"{path}/driver"))), None
    )
    for path in device.paths:
        if device.driver is None and ("/pci:amdgpu/" in path or "/drivers/amdgpu/" in path):
            device.driver = "amdgpu"
        if not device.drm_names and (names := capture.names(f"{path}/drm")):
            device.drm_names = names
            device.card, device.render = _minors(names)


def _minors(names: tuple[str, ...]) -> tuple[int | None, int | None]:
    cards = [int(match[1]) for name in names if (match := _CARD.fullmatch(name))]
    renders = [int(match[1]) for name in names if (match := _RENDER.fullmatch(name))]
    return (cards[0] if cards else None), (renders[0] if renders else None)


def _is_bridge(capture: Capture, device: Pci) -> bool:
    kind = number(first(capture, device, "class"), 16)
    return device.driver == "pcieport" or (kind is not None and kind >> 16 == _BRIDGE)


def partition_devices(capture: Capture) -> tuple[Xcp, ...]:
    """The recorded amdgpu_xcp platform devices, by number."""
    found: dict[int, Xcp] = {}
    for top in ("/sys/devices/platform", "/sys/bus/platform/devices"):
        for name in capture.names(top):
            if (match := _XCP.fullmatch(name)) and int(match[2]) not in found:
                path = f"{top}/{name}"
                card, render = _minors(capture.names(f"{path}/drm"))
                found[int(match[2])] = Xcp(match[1], int(match[2]), path, card, render)
    return tuple(found[at] for at in sorted(found))
