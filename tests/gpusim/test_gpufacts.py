"""What a node description leaves out is resolved by product, host and seed (kfd.md 2)."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gpusim.amd.gpufacts import GpuFacts, gpu_facts
from gpusim.spec import Cpus, GpuSpec, NodeSpec

from .kfdnodes import node


def facts(spec: NodeSpec) -> list[GpuFacts]:
    return [gpu_facts(spec, index) for index in range(len(spec.gpus))]


def test_defaults_are_the_products() -> None:
    (gpu,) = facts(node())
    assert gpu.subsystem == (0x1002, 0x75A3)
    assert gpu.vram_bytes == gpu.bank_bytes == 309220868096
    assert (gpu.fw_version, gpu.sdma_fw_version) == (36, 12)
    assert gpu.active_cus == 256


def test_a_given_value_wins_even_when_it_is_0() -> None:
    spec = node()
    gpu = replace(
        spec.gpus[0],
        unique_id=0,
        hive_id=0,
        subsystem=(1, 2),
        fw_version=0,
        sdma_fw_version=0,
        vram_bytes=1 << 30,
        gtt_bytes=1 << 20,
        xgmi_physical=0,
        fused={1: (1, 1, 1, 1)},
    )
    found = gpu_facts(replace(spec, gpus=(gpu,)), 0)
    assert (found.unique_id, found.hive_id, found.subsystem) == (0, 0, (1, 2))
    assert (found.fw_version, found.sdma_fw_version, found.xgmi_physical) == (0, 0, 0)
    assert (found.vram_bytes, found.gtt_bytes) == (1 << 30, 1 << 20)
    assert found.active_cus == 7 * 32 + 4


def test_positions_on_the_mesh_follow_the_probe_order_of_the_server() -> None:
    assert [gpu.xgmi_physical for gpu in facts(node(modes=("SPX",) * 8))] == [4, 6, 5, 7, 0, 2, 1, 3]
    assert [gpu.xgmi_physical for gpu in facts(node("MI300X", ("SPX",) * 3))] == [0, 1, 2]


def test_an_apu_package_has_the_memory_of_its_numa_node() -> None:
    cpus = Cpus(nodes=2, bytes_per_node=(100 << 30, 120 << 30))
    spec = node("MI300A", ("SPX", "SPX"), numa=(0, 1), cpus=cpus)
    assert [gpu.vram_bytes >> 30 for gpu in facts(spec)] == [100, 120]


def test_a_small_apu_banks_its_gtt_and_has_no_unique_id() -> None:
    (gpu,) = facts(NodeSpec("x", "6.14", gpus=(GpuSpec("STRIX_POINT", "0000:c1:00.0"),)))
    assert (gpu.vram_bytes, gpu.bank_bytes, gpu.unique_id) == (536870912, 16441004032, 0)


def test_a_card_may_map_half_of_the_hosts_memory() -> None:
    (gpu,) = facts(node("RX9070XT", cpus=Cpus(nodes=2, bytes_per_node=(64 << 30,))))
    assert gpu.gtt_bytes == 64 << 30


def test_gpus_of_an_xgmi_product_share_one_hive_and_others_have_none() -> None:
    assert len({gpu.hive_id for gpu in facts(node(modes=("SPX",) * 4))} - {0}) == 1
    assert [gpu.hive_id for gpu in facts(node("RX9070XT", ("SPX", "SPX")))] == [0, 0]
    assert [gpu.hive_id for gpu in facts(node())] == [0]


@given(st.integers(0, 1 << 32))
def test_invented_ids_are_distinct_and_follow_the_seed(seed: int) -> None:
    spec = node(modes=("SPX",) * 8, seed=seed)
    ids = [gpu.unique_id for gpu in facts(spec)]
    assert len(set(ids)) == 8
    assert all(0 < number < 1 << 64 for number in ids)
    assert ids == [gpu.unique_id for gpu in facts(replace(spec, name="other"))]
    assert not set(ids) & {gpu.unique_id for gpu in facts(replace(spec, seed=seed + 1))}
