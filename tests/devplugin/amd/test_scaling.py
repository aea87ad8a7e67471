"""device_memory_scaling: guide-amd.md, amd.md 1.1 and 5.4, decision 8, cases.md B71."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devplugin.amd.allocation import allocate, needs
from devplugin.amd.caps import caps
from devplugin.amd.devices import Catalogue, scaled_memory_mib
from devplugin.amd.discovery import discover
from devplugin.amd.inventory import Inventory
from devplugin.amd.notices import notices
from devplugin.amd.registration import annotation, registration
from devplugin.amd.settings import MODE_PARTITION, Settings
from devplugin.amd.taken import rebuild
from devplugin.answers import Allocation, FactRequest
from devplugin.dmem import Usable
from devplugin.hami import Pod
from gpusim.fixture import load
from gpusim.machine import Machine

from .builders import CU, MIB, claimed, inventory, pod, soft_gpu

THERE = {FactRequest("file", "/usr/local/vgpu/libamvgpu.so"): True}
ONE = inventory(soft_gpu("g", cus=64, mib=1000, render=128))


def scaled(factor: float) -> Settings:
    return replace(CU, memory_scaling=factor)


def give(owner: Pod, settings: Settings, of: Inventory = ONE) -> Allocation:
    return allocate(of, settings, claimed(owner), [owner], THERE)


def registered(mib: int, factor: float) -> int:
    return scaled_memory_mib(soft_gpu("g", mib=mib), scaled(factor))


def test_b71_one_and_a_half_times_196592_mib_are_294888() -> None:
    of = inventory(soft_gpu("g", mib=196592))
    (entry,) = registration(of, scaled(1.5))
    assert entry["devmem"] == 294888
    assert entry["devcore"] == 64


@pytest.mark.parametrize(
    ("mib", "factor", "expected"),
    [
        (16304, 1.0, 16304),
        (16304, 0.5, 8152),
        (1001, 1.5, 1501),
        (100, 0.29, 29),  # 28.999999999999996 in floating point
        (100, 1.1, 110),
        (294896, 1e9, 2**31 - 1),
        (294896, 1e300, 2**31 - 1),
        (1000, 1e-9, 1),
    ],
)
def test_the_product_is_truncated_to_whole_mib_and_stays_a_positive_int32(
    mib: int, factor: float, expected: int
) -> None:
    assert registered(mib, factor) == expected


@given(st.integers(1, 2**24), st.floats(1e-6, 1e6, allow_nan=False), st.floats(1e-6, 1e6, allow_nan=False))
def test_more_factor_never_registers_less(mib: int, a: float, b: float) -> None:
    low, high = sorted((a, b))
    assert 1 <= registered(mib, low) <= registered(mib, high) <= 2**31 - 1


def test_hard_partitions_are_never_scaled() -> None:
    machine = Machine(load("mi355x/qpx-6.14"))
    plain = Settings(mode=MODE_PARTITION)
    found = discover(machine, plain)
    assert annotation(found, replace(plain, memory_scaling=2.0)) == annotation(found, plain)
    soft = json.loads(annotation(found, Settings(memory_scaling=2.0)))
    assert {entry["devmem"] for entry in soft} == {2 * 294896}


def test_whole_is_what_is_registered_and_not_what_is_built_in() -> None:
    settings = scaled(1.5)
    assert needs(ONE, settings, claimed(pod("g,AMD,1500,64:;"))) == ()
    assert needs(ONE, settings, claimed(pod("g,AMD,1000,64:;"))) != ()


def test_above_one_pods_that_load_the_hook_may_oversubscribe() -> None:
    assert give(pod("g,AMD,1200,8:;"), scaled(1.5)).edits.envs["HIP_OVERSUBSCRIBE"] == "true"
    for factor in (1.0, 0.5):
        assert "HIP_OVERSUBSCRIBE" not in give(pod("g,AMD,400,8:;"), scaled(factor)).edits.envs


def test_a_whole_gpu_has_no_hook_to_oversubscribe_with() -> None:
    assert "HIP_OVERSUBSCRIBE" not in give(pod("g,AMD,1500,64:;"), scaled(1.5)).edits.envs


def test_the_hooks_limit_is_what_was_asked_for_also_above_the_card() -> None:
    assert give(pod("g,AMD,1200,8:;"), scaled(1.5)).edits.envs["HIP_DEVICE_MEMORY_LIMIT_0"] == "1200m"


@pytest.mark.parametrize(("asked", "limit"), [(400, 400), (1000, 1000), (1400, 1000)])
def test_the_kernels_limit_is_never_more_than_the_card(asked: int, limit: int) -> None:
    of = replace(ONE, dmem=Usable(True, ""), dmem_regions=("drm/0000:03:00.0/vram",))
    given_to = pod(None, phase="Running", amd__devices__allocated=f"g,AMD,{asked},8:;")
    (cap,) = caps(of, scaled(1.5), [given_to]).pods
    assert cap.limits == {"drm/0000:03:00.0/vram": limit * MIB}


@pytest.mark.parametrize(("before", "after"), [(1.0, 1.5), (1.5, 1.0), (1.0, 0.5), (2.0, 3.0)])
def test_a_whole_pod_stays_whole_when_the_factor_changes_under_it(before: float, after: float) -> None:
    memory = Catalogue(ONE, scaled(before)).devices[0].memory_mib
    holder = pod(None, phase="Running", amd__devices__allocated=f"g,AMD,{memory},64:;")
    assert rebuild(ONE, scaled(after), [holder], None).masks == {"0000:03:00.0": (1 << 64) - 1}


def test_what_a_factor_asks_of_the_node_is_told_once() -> None:
    rdna = inventory(soft_gpu("r", mib=1000, gfx=120001))
    assert [line for line in notices(ONE, scaled(1.5)) if "scaling" in line] == [
        "-device_memory_scaling=1.5: hipMalloc takes managed memory, which needs XNACK on 0000:03:00.0"
    ]
    for of, factor in ((ONE, 1.0), (ONE, 0.5), (rdna, 1.5)):
        assert not [line for line in notices(of, scaled(factor)) if "scaling" in line]
    (told,) = [line for line in notices(rdna, scaled(1e9)) if "scaling" in line]
    assert told.startswith("-device_memory_scaling: 2147483647 MiB, the most there may be")
