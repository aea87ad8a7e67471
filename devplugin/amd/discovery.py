"""What AMD GPUs and partitions this node has, and why any other is not offered.

KFD first: it lists what a runtime can use, one node per GPU or partition. Each node finds the PCI
directory it belongs to, `assemble` makes the GPUs, and what is left over is explained: a node without
PCI device, a PCI device without node, a card of another driver. Nothing here raises, whatever a tree
holds, and nothing is offered that KFD does not list. Rules: decisions 1 to 14, 20, 27.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from devplugin import dmem
from devplugin.amd.absent import absent_gpus
from devplugin.amd.assemble import Assembler, label_of
from devplugin.amd.exclude import without
from devplugin.amd.inventory import LINK_XGMI, Gpu, Inventory, Skipped
from devplugin.amd.links import link_types
from devplugin.amd.pcidev import BOUND, UnusableError, bound_gpus, read_drm
from devplugin.amd.settings import Settings
from devplugin.amd.topology import NODES, Node, read_topology
from devplugin.host import Host

Slot = tuple[int, int, int]


def discover(host: Host, settings: Settings, previous: Inventory | None = None) -> Inventory:
    """All AMD GPUs of the node now, and every one that is not offered with its reason.

    `previous` only keeps id and modes of a GPU whose files do not tell them for the moment (in reset, hung).
    Never raises for anything a tree may hold.
    """
    topology = read_topology(host)
    bound, no_driver = bound_gpus(host)
    placed, homeless, nowhere = nodes_by_gpu(host, topology.gpus, bound)
    unclear = [node.reason for node in topology.unreadable] + nowhere
    skipped = [_without_pci(node, members, no_driver) for node, members in homeless]
    warnings: list[str] = []
    assembler = Assembler(
        host,
        settings.node_name,
        topology.gpus,
        {gpu.bdf: gpu for gpu in previous.gpus} if previous else {},
        _first(unclear) or NODES,
    )
    gpus: list[Gpu] = []
    unlisted = 0
    disagreements: dict[str, list[str]] = {}
    for bdf, nodes in placed.items():
        made = assembler.assemble(bdf, nodes)
        gpus += [made.gpu] if made.gpu else []
        skipped += made.skipped
        warnings += made.warnings
        unlisted += made.unlisted
        if made.disagreement:
            disagreements.setdefault(made.disagreement, []).append(bdf)
    warnings += (f"{', '.join(sorted(bdfs))}: {text}" for text, bdfs in disagreements.items())
    absent = list(
        absent_gpus(
            host,
            (bdf for group in bound.values() for bdf in group),
            set(placed) | {_place(node, members) for node, members in homeless},
            topology.missing or _first(unclear),
        )
    )
    skipped += absent
    # Before ids are compared: to leave one of two with the same id out lets the other be offered.
    kept = without(gpus, settings.exclude, (label.device.partition("/")[0] for label in skipped))
    skipped += kept.excluded
    warnings += kept.warnings
    gpus, doubles = _distinct(kept.gpus)
    skipped += doubles
    if not unlisted and not absent:
        # No device is missing that these could be, so they are told on their own.
        skipped += (
            Skipped(f"kfd node {reason.split('/nodes/')[1].split('/')[0]}", reason) for reason in unclear
        )
    links = link_types(host, topology, [[p.node for p in gpu.partitions] for gpu in gpus])
    usable = dmem.usable(host)
    return Inventory(
        gpus=_with_peers(gpus, links),
        skipped=tuple(sorted(skipped, key=_order)),
        warnings=tuple(warnings),
        links=links,
        dmem_regions=dmem.regions(host) if usable.ok else (),
        dmem=usable,
        excluded=tuple(left_out.device for left_out in kept.excluded),
    )


def nodes_by_gpu(
    host: Host, nodes: Sequence[Node], bound: Mapping[Slot, tuple[str, ...]]
) -> tuple[dict[str, list[Node]], list[tuple[Node, int]], list[str]]:
    """Nodes by the PCI directory they belong to, in KFD order (decision 3).

    Returns:
        BDF → nodes; nodes whose GPU is not bound, with the number of nodes in their slot; and why a node
        cannot be placed at all.
    """
    slots: dict[Slot, list[Node]] = {}
    nowhere: list[str] = []
    for node in nodes:
        if node.slot is None:
            line = "domain" if node.domain is None else "location_id"
            nowhere.append(f"{NODES}/{node.index}/properties: no usable line '{line}'")
        else:
            slots.setdefault(node.slot, []).append(node)
    placed: dict[str, list[Node]] = {}
    homeless: list[tuple[Node, int]] = []
    for slot, members in slots.items():
        for node in members:
            bdf = _owner(host, node, bound.get(slot, ()))
            if bdf is None:
                homeless.append((node, len(members)))
            else:
                placed.setdefault(bdf, []).append(node)
    return placed, homeless, nowhere


def _owner(host: Host, node: Node, candidates: Sequence[str]) -> str | None:
    """The PCI directory of a node: the only one of its slot, else by render minor, else by function.

    Several functions in one slot are virtual functions, each a GPU of its own.
    """
    if len(candidates) < 2:
        return candidates[0] if candidates else None
    for bdf in candidates:
        try:
            if node.render_minor in read_drm(host, f"{BOUND}/{bdf}").renders:
                return bdf
        except UnusableError:
            continue
    return next((bdf for bdf in candidates if bdf.endswith(f".{node.function}")), None)


def _place(node: Node, members: int) -> str:
    """The PCI address a node without PCI directory speaks of: function 0 where it is one of several."""
    domain, bus, device = node.slot or (0, 0, 0)
    return f"{domain:04x}:{bus:02x}:{device:02x}.{0 if members > 1 else node.function}"


def _without_pci(node: Node, members: int, no_driver: str | None) -> Skipped:
    place = _place(node, members)
    return Skipped(label_of(place, node.function, members), no_driver or f"{BOUND}/{place}: ENOENT")


def _first(reasons: Sequence[str]) -> str | None:
    """The first of several reasons, and how many more there are."""
    if not reasons:
        return None
    return reasons[0] + (f" and {len(reasons) - 1} more" if len(reasons) > 1 else "")


def _distinct(gpus: Iterable[Gpu]) -> tuple[list[Gpu], list[Skipped]]:
    """Refuse every GPU that shares its id with another (decision 11); partition ids derive from it."""
    owners: dict[str, list[Gpu]] = {}
    for gpu in gpus:
        owners.setdefault(gpu.id, []).append(gpu)
    kept = [group[0] for group in owners.values() if len(group) == 1]
    refused = [
        Skipped(
            label_of(gpu.bdf, partition.number, gpu.ways),
            f"id {gpu.id} is also that of {', '.join(other.bdf for other in group if other is not gpu)}",
        )
        for group in owners.values()
        if len(group) > 1
        for gpu in group
        for partition in gpu.partitions
    ]
    return kept, refused


def _with_peers(gpus: Sequence[Gpu], links: Mapping[tuple[int, int], int]) -> tuple[Gpu, ...]:
    """Each GPU with the BDFs of those an XGMI link joins to it (amd.md 3.1)."""
    peers: dict[str, list[str]] = {gpu.bdf: [] for gpu in gpus}
    for at, a in enumerate(gpus):
        for b in gpus[at + 1 :]:
            ends = (a.partitions[0].node, b.partitions[0].node)
            if links.get((min(ends), max(ends))) == LINK_XGMI:
                peers[a.bdf].append(b.bdf)
                peers[b.bdf].append(a.bdf)
    return tuple(replace(gpu, xgmi_peers=tuple(sorted(peers[gpu.bdf]))) for gpu in gpus)


def _order(skipped: Skipped) -> tuple[str, int, str]:
    """By device, its partitions in number order."""
    device, _, number = skipped.device.partition("/")
    return device, int(number) if number.isdecimal() else -1, skipped.reason
