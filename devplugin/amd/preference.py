"""Which device ids serve a request of several best: near each other, or far apart.

The public pair weights (amd.md 6) and the rule of decision 26. Answers are exact (`selection`), in bounded
time, and never heavier (for ``spread``: lighter) than what the public plugin would choose.

*The set*: at most one slot of each shared GPU while another device could serve; within that, the least
(``spread``: greatest) sum of pair weights. *Ties*: GPUs with fewest free ids first, then in inventory order,
each giving as many as it can, its lowest partitions and slots first. That keeps broken-up GPUs in use and
whole ones free.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from devplugin.amd.devices import Catalogue, Device
from devplugin.amd.inventory import LINK_PCIE, LINK_XGMI, Inventory
from devplugin.amd.selection import Structure
from devplugin.amd.settings import Settings
from devplugin.answers import PreferenceQuery

_log = logging.getLogger(__name__)

SPREAD = "spread"


class PreferenceError(ValueError):
    """A request that no set of devices can serve; kubelet is told so."""


def pair_weight(a: Device, b: Device, inventory: Inventory) -> int:
    """Distance of two devices: same or other GPU, link, same or other NUMA node (amd.md 6).

    A shared GPU stands for its first KFD node. A pair without a link counts as "other".
    """
    first, second = a.agents[0].node, b.agents[0].node
    link = inventory.links.get((min(first, second), max(first, second)))
    return (
        (10 if a.gpu.bdf == b.gpu.bdf else 20)
        + {LINK_XGMI: 10, LINK_PCIE: 40}.get(-1 if link is None else link, 50)
        + (10 if a.gpu.numa == b.gpu.numa else 20)
    )


def prefer(inventory: Inventory, settings: Settings, query: PreferenceQuery) -> tuple[str, ...]:
    """The best ids for a request: the must-include ones first, then the chosen ones in listing order.

    Ids this node does not offer are dropped with a warning (another plugin may serve the same resource
    name). Size 0 is an empty answer. When everything available is needed, it comes back as it is.

    Raises:
        PreferenceError: the size is negative, more than available or less than what must be included, or an
            id that must be included is not available.
    """
    layout = _layout(inventory, settings)
    offered = layout.position
    unknown = sorted({i for i in (*query.available, *query.must_include) if i not in offered})
    if unknown:
        _log.warning(
            "preferred allocation: %d id(s) are not ours, for instance %s: is another plugin registered?",
            len(unknown),
            ascii(unknown[0][:80]),
        )
    available = tuple(dict.fromkeys(i for i in query.available if i in offered))
    required = tuple(dict.fromkeys(i for i in query.must_include if i in offered))
    size = query.size
    if size < 0:
        raise PreferenceError(f"preferred allocation: size {size} is negative")
    if size > len(available):
        raise PreferenceError(f"preferred allocation: {size} devices wanted, {len(available)} available")
    if len(required) > size:
        raise PreferenceError(f"preferred allocation: {len(required)} devices must be included in {size}")
    if not set(required) <= set(available):
        absent = next(i for i in required if i not in set(available))
        raise PreferenceError(f"preferred allocation: {absent} must be included but is not available")
    if size == len(available):
        return available
    if size == len(required):
        return required
    return required + layout.choose(available, required, size, largest=settings.allocator_policy == SPREAD)


@dataclass(frozen=True, slots=True)
class _Group:
    """Interchangeable ids: the partitions of one GPU that look alike to all others, or one GPU's slots."""

    gpu: int
    """Position of the GPU in the inventory."""
    shared: bool
    """Slots of a soft GPU."""


class _Layout:
    """What preferred allocation knows of an inventory before any request."""

    def __init__(self, inventory: Inventory, settings: Settings) -> None:
        self.inventory = inventory
        self.key = (settings.mode, settings.split_count)
        devices = Catalogue(inventory, settings).devices
        weights = [[0] * len(devices) for _ in devices]
        for i, a in enumerate(devices):
            for j in range(i):
                weights[i][j] = weights[j][i] = pair_weight(a, devices[j], inventory)
        gpus = {gpu.bdf: position for position, gpu in enumerate(inventory.gpus)}
        self.groups: list[_Group] = []
        members: list[list[int]] = []
        self.position: dict[str, tuple[int, int]] = {}
        """Kubelet id → its place in the listing, its group."""
        for i, device in enumerate(devices):
            gpu = gpus[device.gpu.bdf]
            group = next(
                (
                    g
                    for g, known in enumerate(self.groups)
                    if device.hard and known.gpu == gpu and _alike(weights, members[g][0], i)
                ),
                None,
            )
            if group is None:
                group = len(self.groups)
                self.groups.append(_Group(gpu, shared=not device.hard))
                members.append([])
            members[group].append(i)
            for identifier in device.kubelet_ids:
                self.position[identifier] = (len(self.position), group)
        first = [indexes[0] for indexes in members]
        self.structure = Structure(
            inside=[weights[m[0]][m[1]] if len(m) > 1 else 0 for m in members],
            between=[[weights[i][j] for j in first] for i in first],
        )

    def choose(
        self, available: Sequence[str], required: Sequence[str], size: int, *, largest: bool
    ) -> tuple[str, ...]:
        """The ids to add to the required ones."""
        low = [0] * len(self.groups)
        for identifier in required:
            low[self.position[identifier][1]] += 1
        free: list[list[tuple[int, str]]] = [[] for _ in self.groups]
        given = set(required)
        for identifier in available:
            if identifier not in given:
                place, group = self.position[identifier]
                free[group].append((place, identifier))
        room = [count + len(ids) for count, ids in zip(low, free, strict=True)]
        high = [
            max(least, min(most, 1)) if group.shared else most
            for group, least, most in zip(self.groups, low, room, strict=True)
        ]
        if size > sum(high):
            # Every device serves already: only now a second slot of a GPU (decision 26).
            low, high = high, room
        by_gpu: dict[int, int] = {}
        for g, ids in enumerate(free):
            gpu = self.groups[g].gpu
            by_gpu[gpu] = by_gpu.get(gpu, 0) + len(ids)
        order = sorted(
            range(len(self.groups)), key=lambda g: (by_gpu[self.groups[g].gpu], self.groups[g].gpu, g)
        )
        counts = self.structure.choose(low, high, size, order, largest=largest)
        chosen: list[tuple[int, str]] = []
        for count, most, ids in zip(counts, room, free, strict=True):
            chosen += sorted(ids)[: count - (most - len(ids))]
        return tuple(identifier for _, identifier in sorted(chosen))


def _alike(weights: Sequence[Sequence[int]], i: int, j: int) -> bool:
    """Whether two devices could be swapped without anybody noticing."""
    return all(a == b or x in (i, j) for x, (a, b) in enumerate(zip(weights[i], weights[j], strict=True)))


_layouts: tuple[_Layout, ...] = ()
"""The last few inventories' layouts. An inventory is immutable, so its identity is its content."""


def _layout(inventory: Inventory, settings: Settings) -> _Layout:
    global _layouts  # noqa: PLW0603 - a cache: dropping it changes nothing but the time
    key = (settings.mode, settings.split_count)
    for known in _layouts:
        if known.inventory is inventory and known.key == key:
            return known
    layout = _Layout(inventory, settings)
    _layouts = (layout, *_layouts[:3])
    return layout
