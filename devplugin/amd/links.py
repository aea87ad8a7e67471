"""Which link joins two GPUs, from as few of KFD's link files as possible.

A node of 64 partitions has over 4,000 link files, yet the link type between two GPUs is the same for all
their partitions, because a hive is made of GPUs (kfd.md 1, Link lists). So one file is read per pair of
GPUs and one per partitioned GPU. Its place follows from the kernel's order (CPU first, then the hive's
nodes ascending); what stands there is checked, and where it is not the expected link, all links of that
node are read, and then the other side's.

Type 11 is xGMI, 2 is PCIe (kernel.md 1.7). Between GPUs of one hive the link stands in `io_links`, else,
with CONFIG_HSA_AMD_P2P, in `p2p_links`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, product, repeat

from devplugin.amd.topology import NODES, Node, Topology, TopologyError, parse_properties
from devplugin.host import Host


def link_types(host: Host, topology: Topology, groups: Sequence[Sequence[int]]) -> dict[tuple[int, int], int]:
    """Link type of every joined pair of nodes, lower node first.

    Args:
        host: The node.
        topology: All its KFD nodes: places are counted over all of them, offered or not.
        groups: Node indexes of each GPU that is looked at.

    Returns:
        A pair without any link has no entry. Links that cannot be read or parsed count as absent.
    """
    finder = _Finder(host, topology)
    found: dict[tuple[int, int], int] = {}
    for at, group in enumerate(groups):
        if len(group) > 1 and (kind := finder.between(group[0], group[1])) is not None:
            found.update(zip(combinations(sorted(group), 2), repeat(kind), strict=False))
        for other in groups[at + 1 :]:
            if (kind := finder.between(group[0], other[0])) is not None:
                found.update(zip(_pairs(group, other), repeat(kind), strict=False))
    return found


def _pairs(one: Sequence[int], two: Sequence[int]) -> Iterable[tuple[int, int]]:
    """Every pair of a node of each, lower first; GPUs are mostly one after the other."""
    if max(one) < min(two):
        return product(one, two)
    if max(two) < min(one):
        return product(two, one)
    return ((min(a, b), max(a, b)) for a in one for b in two)


class _Finder:
    """Finds single links; remembers nodes whose links it had to read whole."""

    def __init__(self, host: Host, topology: Topology) -> None:
        self._host = host
        self._nodes: Mapping[int, Node] = {node.index: node for node in topology.gpus}
        self._cpus = topology.cpus
        self._hives: dict[int, list[int]] = {}
        for node in topology.gpus:
            self._hives.setdefault(node.hive, []).append(node.index)
        self._whole: dict[int, Mapping[int, int]] = {}

    def between(self, a: int, b: int) -> int | None:
        """Link type between two GPU nodes, from either side."""
        low, high = min(a, b), max(a, b)
        kind = self._from(low, high)
        return self._from(high, low) if kind is None else kind

    def _from(self, source: int, target: int) -> int | None:
        if source in self._whole:
            return self._whole[source].get(target)
        place = self._place(self._nodes[source], self._nodes[target])
        if place is None:
            return None
        link = self._read(source, place)
        if link is not None and link[1] == target:
            return link[0]
        self._whole[source] = self._all(source)
        return self._whole[source].get(target)

    def _place(self, source: Node, target: Node) -> str | None:
        """Where the link should stand, ``io_links/<i>`` or ``p2p_links/<i>``; None: there can be none.

        A count that the kernel does not print leaves it open, and so does a place that is a guess: what
        is read there is checked.
        """
        if source.hive and source.hive == target.hive:
            if source.io_links is not None and source.io_links <= 1:  # its CPU alone
                return None
            rank = bisect_left(self._hives[source.hive], target.index)
            return f"io_links/{rank + (source.index > target.index)}"
        if source.p2p_links is None or source.p2p_links <= max(self._cpus - 1, 0):  # other CPUs alone
            return "io_links/1" if source.io_links is None or source.io_links > 1 else None
        others = [n for n in self._nodes if n != source.index and not self._same_hive(source, self._nodes[n])]
        return f"p2p_links/{max(source.p2p_links - len(others), 0) + others.index(target.index)}"

    @staticmethod
    def _same_hive(a: Node, b: Node) -> bool:
        return a.hive != 0 and a.hive == b.hive

    def _read(self, source: int, place: str) -> tuple[int, int] | None:
        """(type, node_to) of one link file; None where it is absent, unreadable or malformed."""
        try:
            given = parse_properties(self._host.read(f"{NODES}/{source}/{place}/properties"))
        except (OSError, TopologyError):
            return None
        kind, origin, target = given.numbers(("type", "node_from", "node_to"))
        if kind is None or target is None or origin not in (None, source):
            return None
        return kind, target

    def _all(self, source: int) -> Mapping[int, int]:
        """node_to → type over every link of a node; of two to the same node the later file counts."""
        out: dict[int, int] = {}
        for kind in ("io_links", "p2p_links"):
            for name in _numeric(self._names(f"{NODES}/{source}/{kind}")):
                if (link := self._read(source, f"{kind}/{name}")) is not None:
                    out[link[1]] = link[0]
        return out

    def _names(self, path: str) -> Sequence[str]:
        try:
            return self._host.list(path)
        except OSError:
            return ()


def _numeric(names: Iterable[str]) -> list[str]:
    return sorted((n for n in names if n.isascii() and n.isdecimal()), key=int)
