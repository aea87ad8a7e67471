"""The KFD node list: who is in it, in which order, and what a switch or a missing minor does to it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusim.amd.gpufacts import gpu_facts
from gpusim.amd.kfd import SIMD_BASE, Topology, apic_id
from gpusim.amd.kfd_properties import location_id, properties, properties_text, text
from gpusim.spec import Cpus, GpuSpec, NodeSpec

from .kfdnodes import listed, minors, node, switched

MODES = ("SPX", "DPX", "QPX", "CPX")


def order(topology: Topology) -> list[tuple[str, int]]:
    return [(gpu.facts.bdf[5:7], gpu.part) for _, gpu in topology.gpu_nodes()]


def value(topology: Topology, index: int, name: str) -> int:
    return dict(properties(topology, index))[name]


@pytest.mark.parametrize(("mode", "parts"), [("SPX", 1), ("DPX", 2), ("QPX", 4), ("CPX", 8)])
def test_a_gpu_has_one_node_per_partition_after_the_cpu_nodes(mode: str, parts: int) -> None:
    topology = listed(node(modes=(mode, mode)))
    assert topology.cpus == 2
    assert order(topology) == [(bus, part) for bus in ("75", "05") for part in range(parts)]
    assert [gpu.minor for _, gpu in topology.gpu_nodes()] == [*minors(0)[:parts], *minors(1)[:parts]]
    assert topology.generation == 1 + 2 * parts


@pytest.mark.parametrize(
    ("mode", "simds", "xccs", "arrays", "engines", "bank"),
    [
        # kernel.md 1.6, MI355X
        ("SPX", 1024, 8, 32, (2, 14), 309220868096),
        ("DPX", 512, 4, 16, (2, 6), 154610434048),
        ("QPX", 256, 2, 8, (2, 2), 77305217024),
        ("CPX", 128, 1, 4, (2, 0), 38652608512),
    ],
)
def test_numbers_of_an_mi355x_by_mode(
    mode: str, simds: int, xccs: int, arrays: int, engines: tuple[int, int], bank: int
) -> None:
    topology = listed(node(modes=(mode,)))
    lines = dict(properties(topology, 2))
    assert (lines["simd_count"], lines["num_xcc"], lines["array_count"]) == (simds, xccs, arrays)
    assert (lines["num_sdma_engines"], lines["num_sdma_xgmi_engines"]) == engines
    assert topology.nodes[2].bytes == bank


def test_a_switch_puts_the_gpu_last_and_moves_the_others_up() -> None:
    before = listed(node(modes=("SPX", "SPX", "SPX")))
    after = switched(before, 0, "DPX")
    assert order(before) == [("75", 0), ("05", 0), ("65", 0)]
    assert order(after) == [("05", 0), ("65", 0), ("75", 0), ("75", 1)]
    assert after.generation == before.generation + 1 + 2
    assert len(before.nodes) == 5  # the old list stays with whoever reads it


def test_switching_all_gpus_in_order_restores_their_order() -> None:
    topology = listed(node(modes=("SPX",) * 3))
    for index in range(3):
        topology = switched(topology, index, "QPX")
    assert order(topology) == [(bus, part) for bus in ("75", "05", "65") for part in range(4)]


def test_simd_ids_count_every_node_ever_made() -> None:
    topology = switched(listed(node(modes=("SPX", "SPX"))), 0, "DPX")
    # Each node, of one XCC or more, adds the 36 physical CUs of a single XCC; two SPX nodes came before.
    assert [gpu.simd_base - SIMD_BASE for _, gpu in topology.gpu_nodes()] == [36, 72, 108]


def test_gpu_ids_change_with_the_mode_and_come_back_with_it() -> None:
    topology = listed(node(modes=("SPX",)))
    there = switched(topology, 0, "QPX")
    back = switched(there, 0, "SPX")
    ids = [[gpu.gpu_id for _, gpu in t.gpu_nodes()] for t in (topology, there, back)]
    assert ids == [[17010], [51444, 28917, 63733, 16628], [17010]]


def test_equal_gpus_collide_and_the_later_one_takes_the_next_number() -> None:
    spec = node(modes=("SPX",))
    topology = listed(spec)
    twin = topology.with_gpu(gpu_facts(spec, 0), (136,), mode="SPX")
    assert [gpu.gpu_id for _, gpu in twin.gpu_nodes()] == [17010, 17011]


def test_a_partition_without_a_render_minor_is_skipped_and_takes_no_step_and_no_generation() -> None:
    spec = node(modes=("CPX", "SPX"))
    topology = Topology.boot(spec).with_gpu(gpu_facts(spec, 0), (*range(128, 134), None, 135), mode="CPX")
    assert [gpu.part for _, gpu in topology.gpu_nodes()] == [0, 1, 2, 3, 4, 5, 7]
    assert topology.generation == 8
    assert topology.nodes[-1].simd_base == SIMD_BASE + 6 * 36
    assert topology.simd_next == SIMD_BASE + 7 * 36


def test_a_gpu_without_any_minor_has_no_node() -> None:
    spec = node(modes=("SPX",))
    assert Topology.boot(spec).with_gpu(gpu_facts(spec, 0), (), mode="SPX").generation == 1


@pytest.mark.parametrize("mode", MODES)
def test_hidden_partitions_leave_one_node_with_the_whole_gpus_numbers(mode: str) -> None:
    topology = listed(node(modes=(mode,), kfd_partitions="hidden"))
    whole = listed(node(modes=("SPX",)))
    assert properties(topology, 2) == properties(whole, 2)
    assert topology.nodes[2].gpu_id == whole.nodes[2].gpu_id
    assert topology.nodes[2].bytes == 309220868096


def test_truncated_partitions_lose_the_last_of_each_gpu() -> None:
    topology = listed(node(modes=("QPX", "QPX"), kfd_partitions="truncated"))
    assert order(topology) == [(bus, part) for bus in ("75", "05") for part in range(3)]
    assert value(topology, 2, "simd_count") == 256
    assert len(listed(node(modes=("SPX",), kfd_partitions="truncated")).nodes) == 3


@pytest.mark.parametrize(("numa", "cpu"), [(0, 0), (1, 1), (-1, 0), (None, 0), (7, 0)])
def test_a_gpu_whose_numa_node_is_unknown_hangs_on_cpu_0(numa: int | None, cpu: int) -> None:
    topology = listed(node(numa=(numa,)))
    assert topology.nodes[2].cpu == cpu
    assert topology.peers(2)[0] == cpu


def test_the_partition_number_lands_in_the_function_bits() -> None:
    topology = listed(node(modes=("CPX",)))
    assert [location_id(gpu) for _, gpu in topology.gpu_nodes()] == [0x7500 | part for part in range(8)]


def test_a_single_node_keeps_its_real_function() -> None:
    spec = NodeSpec("vf", "7.0", gpus=(GpuSpec("MI355X-VF", "0003:00:04.2"),))
    topology = listed(spec)
    assert (value(topology, 2, "location_id"), value(topology, 2, "domain")) == (4 << 3 | 2, 3)


def test_apic_ids_go_on_with_the_last_step() -> None:
    assert [apic_id((0, 128), numa) for numa in range(4)] == [0, 128, 256, 384]
    assert apic_id((7,), 3) == 7


def test_cpu_nodes_say_cores_memory_and_dmi_facts_of_node_0() -> None:
    cpus = Cpus(nodes=3, threads_per_node=48, first_apic_ids=(0, 64), bytes_per_node=(10 << 30, 20 << 30))
    topology = Topology.boot(node(modes=(), cpus=cpus))
    assert [cpu.bytes >> 30 for cpu in topology.nodes] == [10, 20, 20]
    assert [value(topology, index, "cpu_core_id_base") for index in range(3)] == [0, 64, 128]
    assert [value(topology, index, "cpu_cores_count") for index in range(3)] == [48] * 3


@pytest.mark.parametrize(
    ("kernel", "driver", "spx", "partitions"),
    [
        ("6.14", "dkms-6.14.14", "own", "own"),
        ("6.18.0", "in-tree", "die", "dies"),
        ("7.0", "in-tree", "own", "dies"),
    ],
)
def test_unique_ids_by_driver(kernel: str, driver: str, spx: str, partitions: str) -> None:
    def ids(mode: str) -> list[int]:
        topology = listed(node(modes=(mode,), kernel=kernel, driver=driver))
        return [value(topology, index, "unique_id") for index, _ in topology.gpu_nodes()]

    own = gpu_facts(node(), 0).unique_id
    assert (ids("SPX") == [own]) == (spx == "own")
    assert (set(ids("QPX")) == {own}) == (partitions == "own")
    if partitions == "dies":
        assert len(set(ids("QPX"))) == 4
        assert ids("QPX") == ids("CPX")[::2]  # the first die of each partition
        assert own not in ids("CPX")


def test_a_gpu_without_unique_id_prints_0_whatever_the_driver() -> None:
    spec = NodeSpec("x", "7.0", gpus=(GpuSpec("MI355X", "0000:05:00.0", unique_id=0, mode="CPX"),))
    topology = listed(spec)
    assert {value(topology, index, "unique_id") for index, _ in topology.gpu_nodes()} == {0}


def test_fused_cus_of_one_die_move_only_its_partitions_cache_count() -> None:
    fused = {2: (0xFF, 0xFF, 0xFF, 0xFF)}
    spec = NodeSpec("x", "6.14", gpus=(GpuSpec("MI355X", "0000:05:00.0", mode="CPX", fused=fused),))
    counts = [value(listed(spec), 2 + part, "caches_count") for part in range(8)]
    assert counts == [70, 70, 66, 70, 70, 70, 70, 70]
    assert {value(listed(spec), 2 + part, "simd_count") for part in range(8)} == {128}


def test_a_single_gpu_is_in_no_hive_but_its_partitions_form_one() -> None:
    assert listed(node(modes=("SPX",))).nodes[2].hive == 0
    assert listed(node(modes=("QPX",))).nodes[2].hive == 0x7500
    assert len(listed(node(modes=("SPX", "SPX"))).hives) == 1


STEPS = st.lists(st.tuples(st.integers(0, 2), st.sampled_from(("out", *MODES))), max_size=12)


@given(STEPS)
def test_whatever_happens_numbers_are_contiguous_and_counts_match_links(steps: list[tuple[int, str]]) -> None:
    spec = node(modes=("SPX", "CPX", "DPX"), numa=(0, 1))
    topology = listed(spec)
    changes = 0
    for index, what in steps:
        before = topology
        if what == "out":
            topology = topology.without_gpu(spec.gpus[index].bdf)
        else:
            topology = switched(topology, index, what)
        changed = set(before.nodes) ^ set(topology.nodes)
        assert topology.generation == before.generation + len(changed)
        assert topology.simd_next >= before.simd_next
        changes += len(changed)
    assert topology.generation == listed(spec).generation + changes
    ids = [gpu.gpu_id for _, gpu in topology.gpu_nodes()]
    assert len(ids) == len(set(ids))
    bases = [gpu.simd_base for _, gpu in topology.gpu_nodes()]
    assert bases == sorted(set(bases))
    for index in range(len(topology.nodes)):
        for p2p, name in ((False, "io_links_count"), (True, "p2p_links_count")):
            peers = topology.peers(index, p2p=p2p)
            assert value(topology, index, name) == len(peers) == len(set(peers))
            assert index not in peers
            assert all(0 <= peer < len(topology.nodes) for peer in peers)
            # large BAR: every link has its way back
            assert all(index in topology.peers(peer, p2p=p2p) for peer in peers)
        assert not set(topology.peers(index)) & set(topology.peers(index, p2p=True))


@pytest.mark.parametrize(
    ("kernel", "driver"), [("5.13", "in-tree"), ("6.8", "in-tree"), ("6.8", "dkms-6.19.4")]
)
def test_the_text_of_properties_says_every_value_of_the_list_before_and_after_a_switch(
    kernel: str, driver: str
) -> None:
    spec = node(modes=("CPX", "SPX"), kernel=kernel, driver=driver)
    uneven = replace(spec.gpus[0], fused={3: (0xFF, 0, 0xFF, 0x1EF)})
    fresh = listed(replace(spec, gpus=(uneven, *spec.gpus[1:])))
    counts = {value(fresh, index, "caches_count") for index, gpu in fresh.gpu_nodes() if gpu.parts > 1}
    assert len(counts) == 2
    for topology in (fresh, switched(fresh, 0, "QPX"), fresh):
        for index in range(len(topology.nodes)):
            assert properties_text(topology, index) == text(properties(topology, index))
