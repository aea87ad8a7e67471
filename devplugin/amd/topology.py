"""KFD's topology as the kernel writes it: nodes in numeric order, each with its numbers.

Knows the text format and nothing of PCI. `properties` is ``name value`` lines, decimal, unsigned, up to
64 bit; the set of lines differs between kernels and is never counted (kernel.md 1.1, 1.2). Of a GPU that
the reader's device cgroup forbids, the directory is listed and the read fails with EPERM (kernel.md 1.8):
such a node is told as unreadable and the rest goes on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from devplugin.host import Host, words

NODES = "/sys/class/kfd/kfd/topology/nodes"

_LINE = re.compile(r"^(\w+)[ \t]+([0-9]{1,20})[ \t\r]*$", re.MULTILINE | re.ASCII)
_LONGEST = 64 << 10
_BIGGEST = str(2**64 - 1)


class TopologyError(Exception):
    """A topology file does not say what is asked of it. The text is the reason without the path."""


class Properties:
    """The lines of one topology file. Reading a number is a lookup by its exact name.

    Values are kept as text of at most 20 digits, so that a comparison of texts tells what fits 64 bits.
    """

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, str]) -> None:
        """Take decimal texts by name."""
        self._values = values

    def get(self, name: str) -> int | None:
        """The number, or None where there is no such line or it does not fit 64 bits."""
        text = self._values.get(name)
        return int(text) if text is not None and (len(text) < 20 or text <= _BIGGEST) else None

    def numbers(self, names: Sequence[str]) -> list[int | None]:
        """`get` of several names at once: a discovery asks for a thousand numbers."""
        texts = map(self._values.get, names)
        return [int(t) if t is not None and (len(t) < 20 or t <= _BIGGEST) else None for t in texts]

    def require(self, name: str) -> int:
        """The number; raises TopologyError where `get` gives None."""
        value = self.get(name)
        if value is None:
            raise TopologyError(f"no usable line '{name}'")
        return value


def parse_properties(raw: bytes) -> Properties:
    """Parse a topology file; of a repeated name the first line counts, what is no such line is passed over.

    NUL padding, which some captures carry, is dropped.

    Raises:
        TopologyError: A line of more than 64 KiB: what follows cannot be trusted to be absent.
    """
    if b"\0" in raw:
        raw = raw.replace(b"\0", b"")
    if len(raw) > _LONGEST and any(len(line) > _LONGEST for line in raw.split(b"\n")):
        raise TopologyError("line too long")
    return Properties(dict(reversed(_LINE.findall(raw.decode("latin-1")))))


@dataclass(frozen=True, slots=True)
class Node:
    """One KFD node that is a GPU or a partition of one. None: the kernel has no such line."""

    index: int
    render_minor: int
    """0: no render node (kernel.md 1.8)."""
    location: int | None
    """bus << 8 | device << 3 | function or partition number (decision 3)."""
    domain: int | None
    simds: int
    simds_per_cu: int
    xccs: int | None
    unique_id: int
    device_id: int | None
    gfx: int
    compute_queues: int
    hive: int
    io_links: int | None
    """io_links_count."""
    p2p_links: int | None

    @property
    def cus(self) -> int:
        """Active compute units (decision 6); 0 where the kernel does not say."""
        return self.simds // self.simds_per_cu if self.simds_per_cu else 0

    @property
    def slot(self) -> tuple[int, int, int] | None:
        """(domain, bus, device): what all partitions of a GPU share; None without those lines."""
        if self.domain is None or self.location is None:
            return None
        return self.domain, self.location >> 8 & 0xFF, self.location >> 3 & 0x1F

    @property
    def function(self) -> int:
        """The low three bits of the location."""
        return (self.location or 0) & 7


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A node directory that does not tell what it is, and may be a GPU."""

    index: int
    reason: str
    """Path and cause: ``/sys/…/nodes/5/properties: EPERM``."""


@dataclass(frozen=True, slots=True)
class Topology:
    """All GPU nodes in numeric order, how many CPU nodes, and what could not be read."""

    gpus: tuple[Node, ...] = ()
    cpus: int = 0
    unreadable: tuple[Unreadable, ...] = ()
    missing: str | None = None
    """Why there is no topology at all: path and cause."""


def read_topology(host: Host) -> Topology:
    """All nodes of the machine. Never raises: what is absent or broken is in the answer."""
    try:
        names = host.list(NODES)
    except OSError as error:
        return Topology(missing=f"{NODES}: {words(error)}")
    gpus: list[Node] = []
    unreadable: list[Unreadable] = []
    cpus = 0
    for index in sorted(
        int(name) for name in names if name.isascii() and name.isdecimal() and len(name) < 10
    ):
        path = f"{NODES}/{index}/properties"
        try:
            node = _node(index, parse_properties(host.read(path)))
        except (OSError, TopologyError) as error:
            why = words(error) if isinstance(error, OSError) else str(error)
            if _is_cpu(host, index):
                cpus += 1
            else:
                unreadable.append(Unreadable(index, f"{path}: {why}"))
            continue
        if node is None:
            cpus += 1
        else:
            gpus.append(node)
    return Topology(tuple(gpus), cpus, tuple(unreadable))


_NODE_LINES = (
    "drm_render_minor",
    "simd_count",
    "location_id",
    "domain",
    "simd_per_cu",
    "num_xcc",
    "unique_id",
    "device_id",
    "gfx_target_version",
    "num_cp_queues",
    "hive_id",
    "io_links_count",
    "p2p_links_count",
)


def _node(index: int, given: Properties) -> Node | None:
    """A GPU node, or None for a CPU: it prints 0 for both SIMDs and the render minor.

    A file that says neither is no node we know.
    """
    (
        minor,
        simds,
        location,
        domain,
        per_cu,
        xccs,
        unique_id,
        device,
        gfx,
        queues,
        hive,
        io_links,
        p2p_links,
    ) = given.numbers(_NODE_LINES)
    if not minor and not simds:
        given.require("simd_count")
        return None
    return Node(
        index=index,
        render_minor=minor or 0,
        location=location,
        domain=domain,
        simds=simds or 0,
        simds_per_cu=per_cu or 0,
        xccs=xccs or None,
        unique_id=unique_id or 0,
        device_id=device or None,
        gfx=gfx or 0,
        compute_queues=queues or 0,
        hive=hive or 0,
        io_links=io_links,
        p2p_links=p2p_links,
    )


def _is_cpu(host: Host, index: int) -> bool:
    """Whether `gpu_id` is 0, which it is for CPU nodes only; asked where `properties` did not help."""
    try:
        return host.read(f"{NODES}/{index}/gpu_id").strip(b" \n\0") == b"0"
    except OSError:
        return False


def read_bank(host: Host, index: int) -> int | None:
    """Bytes of a node's first memory bank, or None; needed only where nothing else tells the share."""
    try:
        return parse_properties(host.read(f"{NODES}/{index}/mem_banks/0/properties")).get("size_in_bytes")
    except (OSError, TopologyError):
        return None
