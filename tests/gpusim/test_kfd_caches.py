"""Caches of a KFD node: groups, first CUs, and the map that is off by one (kfd.md 1, Caches)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpusim.amd.kfd_caches import caches, node_caches
from gpusim.amd.products import DATA, MI355X, CacheKind
from gpusim.kernel import behaviour
from gpusim.spec import GpuSpec, NodeSpec

from .kfdnodes import listed

PER_CU = CacheKind(1, DATA, 32, 1, 128)
PAIR = CacheKind(1, DATA, 16, 2, 64)
SHARED = CacheKind(2, DATA, 4096, 0, 128)


def lines(tail: str) -> dict[str, str]:
    return dict(line.split() for line in tail.splitlines())


def test_a_group_without_an_active_cu_has_no_entry_and_the_counter_goes_on() -> None:
    found = caches((PAIR,), 10, ((0b0000001101, 0b1000000000),))
    assert [cache.offset for cache in found] == [0, 2, 19]
    assert lines(found[0].tail)["sibling_map"].startswith("1,0")
    assert lines(found[1].tail)["sibling_map"].startswith("1,1,0")
    assert lines(found[2].tail)["sibling_map"].startswith("1,0")


def test_the_last_group_of_an_array_may_be_short() -> None:
    assert [cache.offset for cache in caches((PAIR,), 9, ((0x100, 0x1FF),))] == [8, 9, 11, 13, 15, 17]


def test_a_shared_cache_shows_each_array_one_place_late() -> None:
    (cache,) = caches((SHARED,), 8, ((0xFC, 0xF3),))
    assert cache.offset == 2
    shown = lines(cache.tail)["sibling_map"].split(",")
    assert len(shown) == 64
    assert "".join(shown[:8]) == "11111100"
    assert "".join(shown[32:40]) == "00111111"


def l3(gfx_product: str, kernel: str, driver: str, nps: int) -> str:
    spec = NodeSpec("x", kernel, driver, gpus=(GpuSpec(gfx_product, "0000:05:00.0", mode="DPX", nps=nps),))
    topology = listed(spec)
    return lines(node_caches(topology.nodes[2], topology.rules)[-1].tail)["size"]


def test_the_l3_is_divided_by_memory_partitions_where_the_driver_says_so() -> None:
    assert l3("MI300X", "6.8", "in-tree", 4) == "65536"
    assert l3("MI355X", "6.14", "dkms-6.14.14", 2) == "262144"
    assert l3("MI355X", "7.0", "in-tree", 2) == "131072"
    assert l3("MI355X", "7.0", "in-tree", 1) == "262144"


def test_line_sizes_of_gfx942_are_0_on_old_drivers() -> None:
    spec = NodeSpec("x", "6.8", "in-tree", gpus=(GpuSpec("MI300X", "0000:05:00.0"),))
    topology = listed(spec)
    sizes = {lines(cache.tail)["cache_line_size"] for cache in node_caches(topology.nodes[2], topology.rules)}
    assert sizes == {"0"}
    newer = behaviour("6.12", "in-tree")
    assert {lines(c.tail)["cache_line_size"] for c in node_caches(topology.nodes[2], newer)} == {"64", "128"}


def test_all_partitions_with_the_same_cus_share_one_result() -> None:
    topology = listed(NodeSpec("x", "6.14", gpus=(GpuSpec("MI355X", "0000:05:00.0", mode="CPX"),)))
    assert node_caches(topology.nodes[2], topology.rules) is node_caches(topology.nodes[9], topology.rules)


BITMAPS = st.lists(
    st.tuples(*[st.integers(0, 0x1FF)] * 4).filter(any), min_size=1, max_size=8
).map(tuple)  # fmt: skip


@given(BITMAPS)
def test_per_cu_caches_are_the_active_cus_in_order(bitmaps: tuple[tuple[int, ...], ...]) -> None:
    arrays = [bitmap for xcc in bitmaps for bitmap in xcc]
    active = [9 * place + bit for place, bitmap in enumerate(arrays) for bit in range(9) if bitmap >> bit & 1]
    assert [cache.offset for cache in caches((PER_CU,), 9, bitmaps)] == active
    pairs = caches((PAIR,), 9, bitmaps)
    assert sum(lines(cache.tail)["sibling_map"].count("1") for cache in pairs) == len(active)
    assert {cache.offset for cache in pairs} <= set(active)
    (shared,) = caches((SHARED,), 9, bitmaps)
    assert len(lines(shared.tail)["sibling_map"].split(",")) == 32 * len(arrays)


def test_no_text_is_longer_than_a_sysfs_page() -> None:
    whole = caches(MI355X.caches, MI355X.cus_per_array, (MI355X.bitmaps,) * 8)
    assert max(len(cache.tail) for cache in whole) + len("processor_id_low 2147487744\n") < 4096


def test_the_caches_of_an_mi355x_sum_to_what_amd_smi_lists() -> None:
    # mi355x-8gpu-spx-6.8, every GPU: 256 L1, 144 instruction and 144 scalar caches, 112 of each for two CUs.
    found = caches(MI355X.caches, MI355X.cus_per_array, (MI355X.bitmaps,) * 8)
    kinds = [(lines(c.tail)["level"], lines(c.tail)["type"], lines(c.tail)["size"]) for c in found]
    assert kinds.count(("1", "9", "32")) == 256
    for kind in (("1", "10", "64"), ("1", "9", "16")):
        sharers = [
            lines(cache.tail)["sibling_map"].count("1")
            for cache, its_kind in zip(found, kinds, strict=True)
            if its_kind == kind
        ]
        assert (len(sharers), sharers.count(2), sharers.count(1)) == (144, 112, 32)
