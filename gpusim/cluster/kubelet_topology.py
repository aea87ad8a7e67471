"""NUMA hints for devices, and the topology manager's decision on them.

kubelet.md 2 *NUMA*: hints are sets of such NUMA nodes only as have devices of the resource
(v1.36; kubernetes PR #138244), so a machine with 36 nodes costs no more than its GPUs' nodes. A device on two
nodes belongs to both (PR #101893). The policies are the kubelet's: none, best-effort, restricted,
single-numa-node; scope container.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product

from gpusim.cluster.kubelet_devices import Device

POLICIES = ("none", "best-effort", "restricted", "single-numa-node")
ENUMERATED = 8
"""NUMA nodes up to which every subset is tried (the topology manager's own limit); beyond, only subsets of
one and two nodes and the whole set: ours, so that the time stays bounded."""


@dataclass(frozen=True, slots=True)
class Hint:
    """A set of NUMA nodes that can serve a request; None = any."""

    nodes: frozenset[int] | None
    preferred: bool


def hints(
    devices: Mapping[str, Device], available: Collection[str], reusable: Collection[str], size: int
) -> list[Hint] | None:
    """Hints for one resource of one container.

    Args:
        devices: all devices of the resource.
        available: free healthy ids.
        reusable: ids of finished init containers of the pod, which must all be inside a hint.
        size: how many are asked for.

    Returns:
        None when the devices have no topology (any node will do); an empty list when nothing fits.
    """
    carrying = sorted({node for device in devices.values() for node in device.numa})
    if not carrying:
        return None
    if len(set(available) | set(reusable)) < size:
        return []
    smallest = len(carrying)
    found: list[frozenset[int]] = []
    for mask in _masks(carrying):
        if len(mask) < smallest and _inside(devices, devices, mask) >= size:
            smallest = len(mask)
        placed = [id_ for id_ in reusable if id_ in devices and devices[id_].numa]
        if any(mask.isdisjoint(devices[id_].numa) for id_ in placed):
            continue
        if len(placed) + _inside(devices, available, mask) >= size:
            found.append(mask)
    return [Hint(mask, len(mask) == smallest) for mask in found]


def _masks(nodes: Sequence[int]) -> Iterator[frozenset[int]]:
    sizes: Iterable[int] = range(1, len(nodes) + 1)
    if len(nodes) > ENUMERATED:
        sizes = (1, 2, len(nodes))
    for size in sizes:
        yield from map(frozenset, combinations(nodes, size))


def _inside(devices: Mapping[str, Device], ids: Iterable[str], mask: frozenset[int]) -> int:
    return sum(not mask.isdisjoint(devices[id_].numa) for id_ in ids if id_ in devices)


def decide(policy: str, offered: Sequence[list[Hint] | None], all_nodes: Sequence[int]) -> tuple[Hint, bool]:
    """Merge the hints of all resources of a container.

    Returns:
        (the affinity, whether the container is admitted). An affinity of None means no alignment.
    """
    if policy == "none":
        return Hint(None, False), True
    lists = [[Hint(None, True)] if one is None else one or [Hint(None, False)] for one in offered]
    everywhere = frozenset(all_nodes)
    if policy == "single-numa-node":
        lists = [[h for h in one if h.preferred and (h.nodes is None or len(h.nodes) == 1)] for one in lists]
    best = Hint(everywhere, False)
    for combination in product(*lists) if lists else ():
        nodes = everywhere
        for hint in combination:
            nodes = nodes & hint.nodes if hint.nodes is not None else nodes
        if nodes:
            best = _better(best, Hint(nodes, all(h.preferred for h in combination)))
    if not lists:
        best = Hint(everywhere, True)
    if policy == "single-numa-node" and best.nodes == everywhere:
        best = Hint(None, best.preferred)
    return best, policy == "best-effort" or best.preferred


def _better(current: Hint, candidate: Hint) -> Hint:
    assert current.nodes is not None and candidate.nodes is not None
    if candidate.preferred != current.preferred:
        return candidate if candidate.preferred else current
    if len(candidate.nodes) != len(current.nodes):
        return candidate if len(candidate.nodes) < len(current.nodes) else current
    return candidate if _bits(candidate.nodes) < _bits(current.nodes) else current


def _bits(nodes: frozenset[int]) -> int:
    return sum(1 << node for node in nodes)


def split(
    devices: Mapping[str, Device], available: Collection[str], affinity: Hint
) -> tuple[set[str], set[str], set[str]]:
    """(aligned, unaligned, without affinity): what may be taken first, then, and last.

    Without an affinity, or when no device has topology, all are without affinity.
    """
    if affinity.nodes is None or not any(d.numa for d in devices.values()):
        return set(), set(), set(available)
    aligned, unaligned, without = set(), set(), set()
    for id_ in available:
        numa = devices[id_].numa
        if not numa:
            without.add(id_)
        elif affinity.nodes.isdisjoint(numa):
            unaligned.add(id_)
        else:
            aligned.add(id_)
    return aligned, unaligned, without
