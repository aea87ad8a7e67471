"""Registered devices and the spellings they are found by: amd.md 4.2 and 5.4, decisions 9, 13 and 22."""

from __future__ import annotations

from dataclasses import replace

import pytest

from devplugin.amd.devices import Catalogue, split_count

from .builders import CU, PARTITION, cut_gpu, inventory, soft_gpu

BDF = "0000:03:00.0"
ONE = inventory(soft_gpu("gpu", cus=8))
QPX = inventory(cut_gpu("m", compute="qpx", ways=4, cus=64))


def found(kubelet_id: str, of: Catalogue) -> tuple[str, int] | None:
    slot = of.slot(kubelet_id)
    return None if slot is None else (slot[0].id, slot[1])


def test_every_offered_id_of_kubelet_is_found_with_its_slot() -> None:
    for settings, of in ((CU, ONE), (CU, QPX), (PARTITION, QPX), (PARTITION, ONE)):
        catalogue = Catalogue(of, settings)
        for device in catalogue.devices:
            assert [found(name, catalogue) for name in device.kubelet_ids] == [
                (device.id, slot) for slot in range(device.slots)
            ]


@pytest.mark.parametrize("rest", ["#10", "#-1", "#x", "#", "", "#01", "#1 ", "#spx", "#9#1"])
def test_a_soft_gpu_has_the_slots_0_to_9_and_no_others(rest: str) -> None:
    assert found(BDF + rest, Catalogue(ONE, CU)) is None


@pytest.mark.parametrize("name", ["0000:05:00.0#spx", "0000:05:00.0#0", "0000:05:00.0", "amdgpu_xcp_3#qpx"])
def test_a_partition_is_found_under_its_own_mode_only(name: str) -> None:
    assert found(name, Catalogue(QPX, PARTITION)) is None


@pytest.mark.parametrize(("memory", "cores"), [(1, 0), (0, 1), (16303, 0), (0, 7), (1, 8), (16304, 1)])
def test_less_of_either_is_a_slice_of_a_soft_device(memory: int, cores: int) -> None:
    (device,) = Catalogue(ONE, CU).devices
    assert device.sliced(memory, cores)


def test_a_hard_device_is_never_a_slice() -> None:
    assert not any(device.sliced(1, 1) for device in Catalogue(QPX, PARTITION).devices)


@pytest.mark.parametrize(("gfx", "count"), [(119999, 10), (120000, 2), (90402, 10)])
def test_two_pods_share_a_gpu_from_gfx12_on(gfx: int, count: int) -> None:
    gpu = soft_gpu("g", gfx=gfx)
    assert split_count(gpu, CU) == count
    assert split_count(gpu, replace(CU, split_count=3)) == 3


def test_an_annotation_may_name_kubelets_id_but_not_its_first_half_alone() -> None:
    catalogue = Catalogue(ONE, CU)
    device = catalogue.named(f"{BDF}#3")
    assert device is not None
    assert device.id == "gpu"
    assert catalogue.named(BDF) is None
    assert catalogue.named("") is None


def test_an_id_wins_over_a_slot_number_that_looks_like_it() -> None:
    catalogue = Catalogue(inventory(soft_gpu("x"), soft_gpu("AMDGPU-0", render=129)), CU)
    device = catalogue.named("AMDGPU-0")
    assert device is not None
    assert device.id == "AMDGPU-0"


def test_rocrs_name_of_one_agent_is_not_the_name_of_a_gpu_with_several() -> None:
    gpu = cut_gpu("m", compute="qpx", ways=4)
    named = replace(gpu, partitions=tuple(replace(p, rocr_name=f"GPU-{p.number}") for p in gpu.partitions))
    assert Catalogue(inventory(named), CU).named("GPU-0") is None
    device = Catalogue(inventory(named), PARTITION).named("GPU-2")
    assert device is not None
    assert device.id == "m-p2"


def test_slots_are_counted_through_soft_devices_only() -> None:
    mixed = inventory(cut_gpu("m", compute="qpx", ways=4), soft_gpu("s", render=140))
    device = Catalogue(mixed, PARTITION).named("node-AMDGPU-0")
    assert device is not None
    assert device.id == "s"
