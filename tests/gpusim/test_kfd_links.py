"""KFD links: kind, weight, bandwidth and recommended engines, line by line of kernel.md 1.7 and kfd.md 1."""

from __future__ import annotations

import pytest

from gpusim.amd.kfd_links import Link, link, link_text, sdma_engines
from gpusim.spec import Cpus, GpuSpec, NodeSpec

from .kfdnodes import listed, node, switched

TWO_SOCKETS = Cpus(nodes=2, distance=32)


def test_cpus_are_joined_by_hypertransport_or_qpi_with_the_numa_distance() -> None:
    assert link(listed(node()), 0, 1) == Link(1, 32, 0, 0, 0, 0)
    intel = node(cpus=Cpus(vendor="intel", distance=21))
    assert link(listed(intel), 0, 1) == Link(5, 21, 0, 0, 0, 0)


def test_a_gpu_hangs_on_its_cpu_by_pcie_and_memory_seen_from_the_cpu_is_not_coherent() -> None:
    topology = listed(node())
    assert link(topology, 2, 0) == Link(2, 20, 0, 64000, 3, 1)
    assert link(topology, 0, 2) == Link(2, 20, 0, 64000, 3, 3)


@pytest.mark.parametrize(("generation", "mbps"), [(1, 4000), (3, 16000), (4, 32000), (5, 64000)])
def test_bandwidth_follows_the_pcie_generation(generation: int, mbps: int) -> None:
    assert link(listed(node(pcie_generation=generation)), 2, 0).max_mbps == mbps


def test_an_older_driver_says_312_and_prints_no_engine_mask() -> None:
    topology = listed(node("MI300X", kernel="6.8.0-79-generic", driver="in-tree"))
    assert link(topology, 2, 0).min_mbps == 312
    assert "recommended_sdma_engine_id_mask" not in link_text(topology, 2, 0)
    assert link_text(topology, 2, 0).endswith("recommended_transfer_size 0\nflags 1\n")


def test_another_socket_is_reached_over_the_own_one() -> None:
    topology = listed(node())
    assert link(topology, 2, 1, p2p=True) == Link(2, 52, 0, 0, 0, 1)
    assert link(topology, 1, 2, p2p=True) == Link(2, 52, 0, 0, 0, 3)


def test_distances_may_differ_by_socket() -> None:
    matrix = ((10, 12, 32), (12, 10, 32), (32, 32, 10))
    topology = listed(node(cpus=Cpus(nodes=3, distance=matrix)))
    assert [link(topology, 3, cpu, p2p=True).weight for cpu in topology.peers(3, p2p=True)] == [32, 52]


def test_without_a_large_bar_the_cpu_has_no_link_to_the_gpu() -> None:
    topology = listed(node(large_bar=False))
    assert topology.peers(0) == (1,)
    assert topology.peers(1, p2p=True) == ()
    assert topology.peers(2) == (0,)
    assert topology.peers(2, p2p=True) == (1,)


def test_partitions_of_one_gpu_are_next_to_each_other_and_far_from_other_gpus() -> None:
    topology = listed(node(modes=("DPX", "DPX")))
    assert topology.peers(2) == (0, 3, 4, 5)
    assert link(topology, 2, 3) == Link(11, 13, 819200, 819200, 0b11111100, 1)
    assert link(topology, 2, 4) == Link(11, 41, 0, 0, 0b11111100, 1)


def test_partitions_without_xgmi_engines_recommend_the_first_two() -> None:
    assert link(listed(node(modes=("CPX",))), 2, 3).engines == 3


@pytest.mark.parametrize(
    ("kernel", "driver", "mbps"),
    [
        ("6.5", "in-tree", 0),
        ("6.12", "in-tree", 50000),
        ("6.14", "in-tree", 64000),
        ("6.8", "dkms-6.14.14", 64000),
    ],
)
def test_whole_gpus_of_a_hive_say_the_drivers_link_speed(kernel: str, driver: str, mbps: int) -> None:
    topology = listed(node("MI300X", ("SPX", "SPX"), kernel=kernel, driver=driver))
    assert link(topology, 2, 3)[:4] == (11, 15, mbps, mbps)


def test_eight_whole_gpus_name_one_engine_per_neighbour() -> None:
    topology = listed(node(modes=("SPX",) * 8, numa=(0, 0, 0, 0, 1, 1, 1, 1)))
    # MI355X in probe order stand at 4 6 5 7 0 2 1 3; row 4 of the table names 12 for neighbour 6.
    assert link(topology, 2, 3).engines == 1 << 12
    # Positions 4 and 5 name different engines for each other.
    assert (link(topology, 2, 4).engines, link(topology, 4, 2).engines) == (1 << 10, 1 << 12)
    for a in range(2, 10):
        masks = {link(topology, a, b).engines for b in topology.peers(a)[1:]}
        assert masks == {1 << engine for engine in range(2, 15, 2)}


def test_seven_whole_gpus_name_all_their_xgmi_engines() -> None:
    topology = listed(node(modes=("SPX",) * 7))
    assert link(topology, 2, 3).engines == ((1 << 14) - 1) << 2


def test_the_node_that_joined_later_decides_a_link_in_both_directions() -> None:
    both = listed(node(modes=("SPX", "SPX")))
    first = switched(both, 0, "DPX")  # nodes: 05 whole, 75.0, 75.1
    assert [link(first, 2, peer).weight for peer in (3, 4)] == [41, 41]
    assert link(first, 3, 2).weight == 41
    second = switched(first, 1, "SPX")  # nodes: 75.0, 75.1, 05 whole and last
    assert [link(second, 4, peer).weight for peer in (2, 3)] == [15, 15]
    assert link(second, 2, 4).weight == 15
    assert link(second, 2, 3).weight == 13


def radeons(*numa: int, **rest: object) -> NodeSpec:
    return node("RX9070XT", ("SPX",) * len(numa), numa=numa, **rest)


def test_cards_without_a_hive_reach_each_other_over_pcie() -> None:
    topology = listed(radeons(0, 0, 1))
    assert topology.peers(2) == (0,)
    assert topology.peers(2, p2p=True) == (1, 3, 4)
    assert link(topology, 2, 3, p2p=True) == Link(2, 40, 0, 64000, 0, 3)
    assert link(topology, 2, 4, p2p=True) == Link(2, 72, 0, 0, 0, 3)
    # Towards the node made earlier KFD copies the mask that this one's link to its CPU has.
    assert link(topology, 4, 2, p2p=True) == Link(2, 72, 0, 0, 3, 3)


def test_without_p2p_support_only_cpus_are_reached() -> None:
    assert listed(radeons(0, 1, p2p=False)).peers(2, p2p=True) == (1,)


def test_a_small_apu_beside_a_card_has_no_p2p_link_to_it() -> None:
    gpus = (GpuSpec("RX9070XT", "0000:03:00.0"), GpuSpec("STRIX_POINT", "0000:0e:00.0"))
    topology = listed(NodeSpec("desk", "6.14", gpus=gpus, cpus=Cpus(nodes=1)))
    assert topology.peers(0) == (1, 2)
    assert topology.peers(1, p2p=True) == topology.peers(2, p2p=True) == ()
    assert link(topology, 2, 0) == Link(2, 20, 0, 32000, 1, 1)


def test_an_apu_package_is_joined_by_xgmi_both_ways() -> None:
    cpus = Cpus(nodes=4, distance=32)
    topology = listed(node("MI300A", ("SPX",) * 4, numa=(0, 1, 2, 3), cpus=cpus, large_bar=False))
    assert topology.peers(0) == (1, 2, 3, 4)
    assert topology.peers(4) == (0, 5, 6, 7)
    assert topology.peers(4, p2p=True) == (1, 2, 3)
    assert link(topology, 0, 4) == link(topology, 4, 0) == Link(11, 13, 819200, 819200, 3, 1)
    assert link(topology, 4, 1, p2p=True) == link(topology, 1, 4, p2p=True) == Link(11, 45, 0, 0, 0, 1)


def test_sdma_engines_are_shared_by_the_partitions() -> None:
    assert [sdma_engines(listed(node(modes=(mode,))).nodes[2]) for mode in ("SPX", "DPX", "QPX", "CPX")] == [
        (2, 14), (2, 6), (2, 2), (2, 0)
    ]  # fmt: skip
    assert sdma_engines(listed(radeons(0)).nodes[2]) == (2, 0)


def test_two_hives_of_one_host_stay_apart() -> None:
    gpus = tuple(
        GpuSpec("MI300X", f"0000:{bus:02x}:00.0", hive_id=hive)
        for bus, hive in ((5, 7), (6, 7), (7, 8), (8, 8))
    )
    topology = listed(NodeSpec("two", "6.14", gpus=gpus))
    assert topology.peers(2) == (0, 3)
    assert topology.peers(4) == (0, 5)
    assert topology.peers(2, p2p=True) == (1, 4, 5)
