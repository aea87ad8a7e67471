"""Product rows agree with the figures that kfd.md 2 and kernel.md 1.6 give for them."""

from __future__ import annotations

import pytest

from gpusim.amd.gpufacts import gpu_facts
from gpusim.amd.kfd import GpuNode, Topology
from gpusim.amd.kfd_caches import node_caches
from gpusim.amd.kfd_properties import capability, debug_prop, save_area
from gpusim.amd.products import PRODUCTS
from gpusim.kernel import behaviour
from gpusim.spec import GpuSpec, NodeSpec


def first_node(product: str, mode: str = "SPX", kernel: str = "6.14", driver: str = "in-tree") -> GpuNode:
    spec = NodeSpec("one", kernel, driver, gpus=(GpuSpec(product, "0000:05:00.0", mode=mode),))
    listed = Topology.boot(spec).with_gpu(gpu_facts(spec, 0), range(128, 136), mode=mode)
    return next(node for _, node in listed.gpu_nodes())


@pytest.mark.parametrize(
    ("product", "cus"),
    [
        ("MI300X", 304),
        ("MI300A", 228),
        ("MI355X", 256),
        ("MI355X-VF", 256),
        ("MI300X-VF", 304),
        ("MI308X", 80),
        ("MI325X", 304),
        ("MI350X", 256),
        ("MI210", 104),
        ("RX6900XT", 80),
        ("RX7600", 32),
        ("RX7900XTX", 96),
        ("PHOENIX", 12),
        ("RX9070XT", 64),
        ("STRIX_POINT", 12),
    ],
)
def test_active_cus_sum_over_the_bitmaps(product: str, cus: int) -> None:
    assert PRODUCTS[product].total_cus() == cus


@pytest.mark.parametrize("product", PRODUCTS.values(), ids=lambda product: product.name)
def test_a_row_is_consistent_in_itself(product) -> None:
    assert PRODUCTS[product.name] is product
    assert len(product.bitmaps) == product.engines * product.arrays
    assert all(bitmap < 1 << product.cus_per_array for bitmap in product.bitmaps)
    assert product.vram_bytes % 4096 == 0
    assert product.vram_bytes or product.cpu_xgmi
    assert not (product.vf and product.product_name)
    assert set(product.modes()) <= {"SPX", "DPX", "TPX", "QPX", "CPX"}
    for mode in product.modes():
        assert product.xccs % product.partitions(mode) == 0


@pytest.mark.parametrize(
    ("product", "modes"),
    [
        ("MI300X", ("SPX", "DPX", "QPX", "CPX")),
        ("MI300A", ("SPX", "TPX", "CPX")),
        ("MI355X", ("SPX", "DPX", "QPX", "CPX")),
        ("MI308X", ("SPX", "DPX", "CPX")),
        ("MI210", ("SPX",)),
        ("RX9070XT", ("SPX",)),
    ],
)
def test_xcc_count_decides_the_modes(product: str, modes: tuple[str, ...]) -> None:
    assert PRODUCTS[product].modes() == modes


@pytest.mark.parametrize(
    ("product", "driver", "expected"),
    [
        ("MI300X", "dkms-6.10.5", 746037888),
        ("MI300X", "dkms-6.14.14", 2893521536),
        ("MI300A", "dkms-6.10.5", 1013424768),
        ("MI300A", "dkms-6.14.14", 3160908416),
        ("MI355X", "dkms-6.10.5", 741843584),
        ("MI355X", "dkms-6.14.14", 2889327232),
        ("MI355X-VF", "dkms-6.14.14", 741843584),  # a VF never has bit 31
        ("MI350X", "dkms-6.16.13", 2889327232),
        ("MI350X-VF", "dkms-6.16.13", 741843584),
        ("MI308X", "dkms-6.8.5", 746037888),
        ("MI210", "dkms-6.10.5", 746037888),
        ("STRIX_POINT", "dkms-6.14.14", 553886336),
        ("VEGA10", "dkms-5.6", 8832),
    ],
)
def test_capability_is_the_captured_sum_of_bits(product: str, driver: str, expected: int) -> None:
    node = first_node(product, driver=driver)
    assert capability(node, behaviour("6.14", driver)) == expected


@pytest.mark.parametrize(
    ("product", "cwsr", "ctl"),
    [
        ("MI300X", 23203840, 12288),
        ("MI300A", 23203840, 12288),
        ("MI355X", 22687744, 12288),
        ("MI308X", 12214272, 8192),
        ("MI210", 63508480, 36864),
        ("RX9070XT", 30699520, 28672),
        ("STRIX_POINT", 4186112, 8192),
    ],
)
def test_save_area_follows_from_cus_and_generation(product: str, cwsr: int, ctl: int) -> None:
    assert save_area(first_node(product)) == (cwsr, ctl)


@pytest.mark.parametrize("mode", ["DPX", "QPX", "CPX"])
def test_save_area_is_per_xcc_and_so_the_same_in_every_mode(mode: str) -> None:
    assert save_area(first_node("MI355X", mode)) == save_area(first_node("MI355X"))


@pytest.mark.parametrize(
    ("gfx", "value"), [(90402, 1511), (90010, 470), (90500, 1494), (90006, 1494), (110500, 1495)]
)
def test_debug_prop_by_generation(gfx: int, value: int) -> None:
    assert debug_prop(gfx) == value


@pytest.mark.parametrize(
    ("product", "counts"),
    [
        ("MI300X", {"SPX": 626, "DPX": 314, "QPX": 158, "CPX": 80}),
        ("MI300A", {"SPX": 470, "TPX": 158, "CPX": 80}),
        ("MI355X", {"SPX": 546, "DPX": 274, "QPX": 138, "CPX": 70}),
        ("MI350X", {"SPX": 546, "DPX": 274, "QPX": 138, "CPX": 70}),
        ("MI308X", {"SPX": 178, "DPX": 90, "CPX": 46}),
        ("MI210", {"SPX": 217}),
        ("STRIX_POINT", {"SPX": 27}),
        ("VEGA10", {"SPX": 96}),
    ],
)
def test_cache_count_follows_from_fused_cus(product: str, counts: dict[str, int]) -> None:
    rules = behaviour("6.14", "in-tree")
    assert {mode: len(node_caches(first_node(product, mode), rules)) for mode in counts} == counts


def test_no_two_products_share_a_device_id_and_a_guest_is_its_card_with_less_memory() -> None:
    ids = [product.device_id for product in PRODUCTS.values()]
    assert len(set(ids)) == len(ids)
    guests = [product for product in PRODUCTS.values() if product.vf]
    # kernel.md 1.6; amd.md 2.5 has 74b5, which is not 74a1 + 0x10.
    assert [guest.device_id for guest in guests] == [0x74B5, 0x75B3, 0x75B0]
    for guest in guests:
        card = PRODUCTS[guest.name.removesuffix("-VF")]
        # kernel.md 7: another device id, slightly less memory, no FRU; the subsystem is the card's (C350VF).
        assert guest.subsystem_device == card.device_id
        assert guest.vram_bytes < card.vram_bytes
        assert guest.total_cus() == card.total_cus()


def test_sums_of_memory_partitions_are_those_of_the_captured_mi308x() -> None:
    # kernel.md 1.6: 51539607552 three times and 51522830336.
    assert PRODUCTS["MI308X"].vram_bytes == 3 * 51539607552 + 51522830336


@pytest.mark.parametrize(("product", "name"), [("MI210", "aldebaran"), ("MI350X", "ip discovery")])
def test_kfd_names_a_gpu_of_the_static_table_by_its_chip(product: str, name: str) -> None:
    assert PRODUCTS[product].chip_name == name
