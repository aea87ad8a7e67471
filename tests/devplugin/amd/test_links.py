"""Which link joins two GPUs: xGMI cases of amd.md 14.9, and the shortcut against reading every file."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from devplugin.amd.links import link_types
from devplugin.amd.topology import NODES, parse_properties, read_topology

from ..dict_host import DictHost, Tree
from ..small_nodes import cpu_node, found, gpu_node, link, machine, pci_gpu


def by_reading_all(host: DictHost) -> dict[tuple[int, int], int]:
    """The slow truth: every link file of every GPU node, io_links before p2p_links, a later file wins."""
    gpus = [n.index for n in read_topology(host).gpus]
    out: dict[tuple[int, int], int] = {}
    for source in gpus:
        for kind in ("io_links", "p2p_links"):
            try:
                names = sorted(host.list(f"{NODES}/{source}/{kind}"), key=int)
            except OSError:
                continue
            for name in names:
                given = parse_properties(host.read(f"{NODES}/{source}/{kind}/{name}/properties"))
                target, of_type = given.get("node_to"), given.get("type")
                if target in gpus and of_type is not None:
                    out[min(source, target), max(source, target)] = of_type
    return out


def server(
    hives: Iterable[int], partitions: int, *, p2p: bool, counts: bool = True, sockets: int = 2
) -> DictHost:
    """Nodes with links as kfd.md 1 orders them; GPU g is in hive ``hives[g]``, 0 for none."""
    nodes = [(g, p, hive) for g, hive in enumerate(hives) for p in range(partitions)]
    parts: list[Tree] = [cpu_node(c) for c in range(sockets)]
    for at, (g, p, hive) in enumerate(nodes):
        index = sockets + at
        home = g % sockets
        io, peers = [(home, 2)], []
        for at2, (_, _, hive2) in enumerate(nodes):
            if at2 == at:
                continue
            if hive and hive == hive2:
                io.append((sockets + at2, 11))
            elif p2p:
                peers.append((sockets + at2, 2))
        peers = [(c, 2) for c in range(sockets) if c != home] + peers
        for kind, entries in (("io_links", io), ("p2p_links", peers)):
            for i, (target, of_type) in enumerate(entries):
                parts.append(link(index, kind, i, target, of_type))
        counted = {"io_links_count": len(io), "p2p_links_count": len(peers)} if counts else {}
        parts.append(
            gpu_node(index, 128 + at, g << 8 | p, 38, hive_id=hive, num_xcc=8 // partitions, **counted)
        )
    return machine(*parts)


def groups_of(host: DictHost) -> list[list[int]]:
    slots: dict[object, list[int]] = {}
    for node in read_topology(host).gpus:
        slots.setdefault(node.slot, []).append(node.index)
    return list(slots.values())


@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=5),
    st.integers(1, 4),
    st.booleans(),
    st.booleans(),
    st.integers(1, 2),
)
def test_the_shortcut_finds_what_reading_every_file_finds(
    hives: list[int], partitions: int, p2p: bool, counts: bool, sockets: int
) -> None:
    if partitions > 1:  # without a hive the driver makes one of the GPU's own partitions (kernel.md 1.5)
        hives = [hive or 100 + g for g, hive in enumerate(hives)]
    host = server(hives, partitions, p2p=p2p, counts=counts, sockets=sockets)
    assert link_types(host, read_topology(host), groups_of(host)) == by_reading_all(host)


def test_of_64_partitions_only_one_file_per_pair_of_gpus_is_read() -> None:
    host = server([7] * 8, 8, p2p=False)
    topology, groups = read_topology(host), groups_of(host)
    host.asked.clear()
    links = link_types(host, topology, groups)
    assert len(links) == 64 * 63 // 2
    assert len(host.asked) == 8 + 8 * 7 // 2


def test_a_missing_link_file_is_found_from_the_other_side() -> None:
    host = server([7] * 4, 1, p2p=False)
    whole = by_reading_all(host)
    for path in [path for path in host.tree if "/io_links/" in path]:
        broken = DictHost({k: v for k, v in host.tree.items() if k != path})
        assert link_types(broken, read_topology(broken), groups_of(broken)) == whole


def test_malformed_links_count_as_absent() -> None:
    host = server([7] * 2, 1, p2p=False)
    for path in host.tree:
        if "/io_links/" in path or "/p2p_links/" in path:
            host.tree[path] = "type eleven\nnode_to\n"
    assert link_types(host, read_topology(host), groups_of(host)) == {}


def mi210(registered: set[int]) -> DictHost:
    """Eight GPUs in two bridged groups of four, nodes 2-9, BDF bus = node + 0x10 (amd.md 14.9)."""
    host = server([1, 1, 1, 1, 2, 2, 2, 2], 1, p2p=True)
    for node in range(2, 10):
        properties = f"{NODES}/{node}/properties"
        text = str(host.tree[properties]).replace(
            f"location_id {(node - 2) << 8}", f"location_id {(node + 16) << 8}"
        )
        host.tree[properties] = text
        if node in registered:
            host.tree |= pci_gpu(f"0000:{node + 16:02x}:00.0", node - 1, 126 + node)
    return host


def test_xgmi_on_mi210_every_gpu_has_exactly_three_peers_and_is_not_its_own() -> None:
    gpus = found(mi210(set(range(2, 10)))).gpus
    peers = {gpu.bdf: gpu.xgmi_peers for gpu in gpus}
    assert len(peers) == 8
    assert all(len(others) == 3 and bdf not in others for bdf, others in peers.items())
    assert all(bdf in peers[other] for bdf, others in peers.items() for other in others)


def test_xgmi_only_registered_gpus_are_peers() -> None:
    gpus = found(mi210({4, 2})).gpus
    assert {gpu.bdf: gpu.xgmi_peers for gpu in gpus} == {
        "0000:12:00.0": ("0000:14:00.0",),
        "0000:14:00.0": ("0000:12:00.0",),
    }


def test_xgmi_pcie_links_make_no_peers() -> None:
    host = server([0, 0], 1, p2p=True)
    host.tree |= pci_gpu("0000:00:00.0", 1, 128) | pci_gpu("0000:01:00.0", 2, 129)
    gpus = found(host).gpus
    assert [gpu.xgmi_peers for gpu in gpus] == [(), ()]
    assert found(host).links == {(2, 3): 2}
