"""What a capture tells of the host: CPUs, memory, distances, and which NUMA node each GPU hangs on.

Sources: kernel.md 1.3 (CPU nodes) and 1.7 (links); without KFD, the PCI directories' local_cpulist and
numa_node.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from gpusim.amd.kfd import apic_id
from gpusim.snapshots.board import Board, Say
from gpusim.snapshots.evidence import whole
from gpusim.snapshots.reading import Capture, Kfd, Pci, first, number
from gpusim.spec import Cpus

_INTEL = 5
_ITSELF = 10
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def cpus(capture: Capture, kfd: Kfd, boards: Sequence[Board], devices: Mapping[str, Pci], say: Say) -> Cpus:
    """The CPUs, from KFD's nodes; without them from what PCI directories tell."""
    nodes = kfd.cpus
    if not nodes:
        return _without_kfd(capture, boards, devices, say)
    threads = {node.values.get("cpu_cores_count", 0) for node in nodes}
    if len(threads) > 1:
        say(f"NUMA nodes have {sorted(threads)} CPUs: a fixture has one number for all, that of node 0")
    banks = [kfd.bank(node) for node in nodes]
    sizes = tuple(bank["size_in_bytes"] for bank in banks if "size_in_bytes" in bank)
    if len(sizes) < len(nodes):
        say(f"memory of {len(nodes) - len(sizes)} NUMA nodes is not recorded: the default stands")
    vendor, distance = _distances(kfd, say)
    usual = Cpus()
    return Cpus(
        vendor=vendor,
        nodes=len(nodes),
        threads_per_node=nodes[0].values.get("cpu_cores_count", usual.threads_per_node),
        first_apic_ids=_shortest(tuple(node.values.get("cpu_core_id_base", 0) for node in nodes)),
        distance=distance,
        max_mhz=nodes[0].values.get("max_engine_clk_ccompute", usual.max_mhz),
        bytes_per_node=_repeating(sizes) if len(sizes) == len(nodes) else usual.bytes_per_node,
        dmi_width=banks[0].get("width", usual.dmi_width),
        dmi_mhz=banks[0].get("mem_clk_max", usual.dmi_mhz),
    )


def _shortest(ids: tuple[int, ...]) -> tuple[int, ...]:
    """`ids` without the last ones that the step before them gives."""
    usual = Cpus().first_apic_ids
    if len(ids) <= len(usual) and ids == usual[: len(ids)]:
        return usual
    while len(ids) > 2 and apic_id(ids[:-1], len(ids) - 1) == ids[-1]:
        ids = ids[:-1]
    return ids


def _repeating(sizes: tuple[int, ...]) -> tuple[int, ...]:
    while len(sizes) > 1 and sizes[-1] == sizes[-2]:
        sizes = sizes[:-1]
    return sizes


def _distances(kfd: Kfd, say: Say) -> tuple[str, int | tuple[tuple[int, ...], ...]]:
    """Vendor and NUMA distances, from the links between CPU nodes."""
    usual, count = Cpus(), len(kfd.cpus)
    if count < 2:
        return usual.vendor, usual.distance
    known: dict[tuple[int, int], int] = {}
    kinds = set()
    for node in kfd.cpus:
        for link in kfd.links(node):
            if link.get("node_to", count) < count:
                known[node.index, link["node_to"]] = link.get("weight", 0)
                kinds.add(link.get("type"))
    vendor = "intel" if _INTEL in kinds else "amd"
    pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
    if any(pair not in known for pair in pairs):
        say("links between CPUs are not recorded: their distance is the default")
        return vendor, usual.distance
    values = {known[pair] for pair in pairs}
    if len(values) == 1:
        return vendor, values.pop()
    return vendor, tuple(tuple(known.get((a, b), _ITSELF) for b in range(count)) for a in range(count))


def _without_kfd(capture: Capture, boards: Sequence[Board], devices: Mapping[str, Pci], say: Say) -> Cpus:
    places = [_file(capture, board)[1] for board in boards]
    nodes = max((place + 1 for place in places if place is not None and place >= 0), default=1)
    lists = [first(capture, device, "local_cpulist") for device in devices.values()]
    match = next((match for text in lists if text and (match := _RANGE.match(text))), None)
    known = "NUMA nodes are those the GPUs name"
    if match is None:
        say(f"no KFD node of a CPU is recorded: {known}, number of CPUs and memory are defaults")
        return Cpus(nodes=nodes)
    say(f"no KFD node of a CPU is recorded: {known}, CPUs those near a device, memory a default")
    return Cpus(nodes=nodes, threads_per_node=int(match[2] or match[1]) - int(match[1]) + 1)


def _file(capture: Capture, board: Board) -> tuple[bool, int | None]:
    """Whether a numa_node file was, or would have been, recorded, and its number."""
    text = first(capture, board.pci, "numa_node") if board.pci else None
    if text is not None:
        return True, number(text)
    return whole(capture, board) is not None, None


def numa_nodes(capture: Capture, kfd: Kfd, boards: Sequence[Board], nodes: int, say: Say) -> list[int | None]:
    """NUMA node of each GPU: its PCI file, else its first KFD link, else what the CPUs' link counts leave."""
    found: list[int | None] = []
    guessed = []
    room = _room(kfd)
    for board in boards:
        recorded, told = _file(capture, board)
        link = next(kfd.links(board.nodes[0]), {}) if board.nodes else {}
        if recorded:
            place = told
        elif link.get("node_to", nodes) < nodes:
            place = link["node_to"]
        else:
            place = next((cpu for cpu, free in enumerate(room) if free > 0), 0)
            if place < len(room):
                room[place] -= len(board.nodes)
            guessed.append(board.bdf)
        if place is not None and place >= nodes:
            say(f"{board.bdf}: NUMA node {place} has no CPUs: written as unknown")
            place = -1
        found.append(place)
    if guessed:
        what = "filled in probe order after the CPUs' link counts" if any(_room(kfd)) else "0 is assumed"
        say(f"NUMA nodes of {', '.join(guessed)} are not recorded: {what}")
    return found


def _room(kfd: Kfd) -> list[int]:
    """How many GPU nodes each CPU node has links to."""
    cpus = kfd.cpus
    return [max(node.values.get("io_links_count", 0) - (len(cpus) - 1), 0) for node in cpus]
