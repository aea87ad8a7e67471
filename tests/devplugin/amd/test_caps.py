"""Which dmem limits pods should have: amd.md 7 and 14.9, cases.md B55, decisions 8, 22, 29 and 31."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devplugin.amd.caps import caps, dmem_state, limited_regions
from devplugin.amd.inventory import Gpu, Inventory
from devplugin.amd.settings import Settings
from devplugin.amd.taken import VOCABULARY
from devplugin.amd.vendor import Amd
from devplugin.answers import Refused
from devplugin.dmem import Usable
from devplugin.hami import Claim, ContainerDevice, Pod, erase
from gpusim.fixture import load
from gpusim.machine import Machine

from .builders import CU, MIB, PARTITION, cut_gpu, inventory, pod, soft_gpu

A = soft_gpu("uuid-a", bdf="0000:08:00.0", mib=16304, cus=64, render=128, node=1)
B = soft_gpu("uuid-b", bdf="0000:0a:00.0", mib=16304, cus=64, render=129, node=2)
ON = Usable(True, "")
REGION_A, REGION_B = "drm/0000:08:00.0/vram", "drm/0000:0a:00.0/vram"


def node(*gpus: Gpu, regions: tuple[str, ...] | None = None, dmem: Usable = ON) -> Inventory:
    found = tuple(f"drm/{gpu.bdf}/vram" for gpu in gpus) if regions is None else regions
    return replace(inventory(*gpus), dmem=dmem, dmem_regions=found)


def served(text: str, left: str = "", **more: Any) -> Pod:
    """A pod whose slots are all consumed but those of `left`."""
    made = pod(text, **more)
    return replace(made, annotations={**made.annotations, VOCABULARY.to_allocate: left})


def limits(of: Inventory, *pods: Pod, settings: Settings = CU) -> dict[str, dict[str, int]]:
    wanted = caps(of, settings, pods)
    assert not wanted.warnings
    return {cap.pod.name: dict(cap.limits) for cap in wanted.pods}


def test_each_gpu_has_its_own_limit_and_its_name_from_dmem_capacity() -> None:
    one = served("uuid-b,AMDGPU,1024,0:uuid-a,AMDGPU,8192,0:;")
    both = {REGION_A: 8589934592, REGION_B: 1073741824}
    assert limits(node(A, B), one) == {"p": both}
    shouted = node(A, B, regions=(REGION_B.upper(), "drm/0000:0c:00.0/vram0", REGION_A))
    assert limits(shouted, one) == {"p": {REGION_A: 8589934592, REGION_B.upper(): 1073741824}}


SLOTS = "uuid-a,G,1000,8:;;uuid-a,G,200,4:uuid-b,G,30,4:;uuid-a,G,4,0:;"


@pytest.mark.parametrize(
    ("left", "a", "b"),
    [
        (SLOTS, 0, 0),
        (";;uuid-a,G,200,4:uuid-b,G,30,4:;uuid-a,G,4,0:;", 1000, 0),
        (";;;uuid-a,G,4,0:;", 1200, 30),
        ("uuid-a,G,1000,8:;;;uuid-a,G,4,0:;", 200, 30),
        ("uuid-a,G,1000,8:;;;;", 204, 30),
        (";;;;", 1204, 30),
        ("", 1204, 30),
        (";;;;;;", 1204, 30),
    ],
)
def test_the_limit_is_the_sum_over_the_slots_consumed_so_far(left: str, a: int, b: int) -> None:
    wanted = {region: mib * MIB for region, mib in ((REGION_A, a), (REGION_B, b)) if mib}
    assert limits(node(A, B), served(SLOTS, left)) == ({"p": wanted} if wanted else {})


@given(order=st.permutations(range(4)))
def test_the_order_in_which_containers_are_admitted_never_lowers_a_limit(order: list[int]) -> None:
    left, before = SLOTS, {REGION_A: 0, REGION_B: 0}
    for slot in order:
        left = erase(left, slot)
        now = {REGION_A: 0, REGION_B: 0} | limits(node(A, B), served(SLOTS, left)).get("p", {})
        assert all(now[region] >= before[region] for region in now)
        before = now
    assert before == {REGION_A: 1204 * MIB, REGION_B: 30 * MIB}


@pytest.mark.parametrize(
    "text",
    [
        "uuid-a,G,16304,64:;",  # as the scheduler writes a whole GPU
        "uuid-a,G,0,0:;",
        "uuid-a,G,16304,0:uuid-b,G,0,64:;",
        ";;",
    ],
)
def test_requests_for_whole_gpus_have_none(text: str) -> None:
    assert limits(node(A, B), served(text)) == {}


def test_one_slice_in_a_request_limits_its_whole_neighbour_at_full_size() -> None:
    wanted = limits(node(A, B), served("uuid-a,G,1024,0:uuid-b,G,16304,64:;"))
    assert wanted == {"p": {REGION_A: 1024 * MIB, REGION_B: 16304 * MIB}}


def test_a_slot_with_all_memory_has_no_limit_and_lifts_that_of_a_neighbour() -> None:
    assert limits(node(A, B), served("uuid-a,G,0,8:;")) == {}
    assert limits(node(A, B), served("uuid-a,G,0,8:;uuid-a,G,1024,8:;")) == {"p": {REGION_A: 16304 * MIB}}


def test_never_more_than_the_card_has() -> None:
    odd = replace(A, vram_bytes=16304 * MIB + 4096)
    text = ";".join(["uuid-a,G,9000,4:"] * 3) + ";"
    assert limits(node(odd), served(text)) == {"p": {REGION_A: 16304 * MIB + 4096}}


def test_hard_devices_have_none_whatever_the_record_says() -> None:
    gpu = cut_gpu("card", compute="qpx", ways=4)
    for text in ("card-p1,G,73728,32:;", "card-p1,G,100,1:card-p2,G,100,1:;", "card,G,100,1:;"):
        assert limits(node(gpu), served(text), settings=PARTITION) == {}
    assert limits(node(gpu), served("card-p1,G,100,1:;"), settings=CU) == {}  # given in the other mode


def test_a_hard_device_beside_a_slice_in_one_request_has_none() -> None:
    both = node(cut_gpu("card", compute="qpx", ways=4), A)
    text = "card-p1,G,73728,32:uuid-a,G,1024,8:;"
    assert limits(both, served(text), settings=PARTITION) == {"p": {REGION_A: 1024 * MIB}}


def test_a_pod_without_anything_left_to_allocate_has_consumed_all() -> None:
    made = served("uuid-a,G,1024,8:;")
    bare = {key: value for key, value in made.annotations.items() if key != VOCABULARY.to_allocate}
    assert limits(node(A), replace(made, annotations=bare)) == {"p": {REGION_A: 1024 * MIB}}


def test_a_partitioned_gpu_that_stays_soft_has_one_limit_for_all_its_partitions() -> None:
    gpu = cut_gpu("card", compute="cpx", ways=8)
    text = "card,G,24574,32:;card,G,24574,32:;"
    assert limits(node(gpu), served(text)) == {"p": {"drm/0000:05:00.0/vram": 51535413248}}


def test_every_living_pod_is_limited_and_no_other() -> None:
    text = "uuid-a,G,1024,8:;"
    pods = [
        served(text, name="running", phase="Running"),
        served(text, name="ending", phase="Running", deleting=True),
        served(text, name="done", phase="Succeeded"),
        served(text, name="lost", phase="Failed"),
        pod(text, name="waiting"),
        pod(None, name="foreign"),
    ]
    assert set(limits(node(A), *pods)) == {"running", "ending"}


def test_a_gpu_without_region_is_not_limited_beside_one_that_is() -> None:
    text = "uuid-a,G,1024,8:uuid-b,G,1024,8:;"
    assert limits(node(A, B, regions=(REGION_B,)), served(text)) == {"p": {REGION_B: 1024 * MIB}}


def test_an_apu_is_never_limited_because_its_runtime_works_in_host_memory() -> None:
    apu = replace(A, host_memory=True)
    assert limits(node(apu), served("uuid-a,G,1024,8:;")) == {}
    assert not dmem_state(node(apu), CU).ok
    beside = node(apu, B)
    text = "uuid-a,G,1024,8:uuid-b,G,1024,8:;"
    assert limits(beside, served(text)) == {"p": {REGION_B: 1024 * MIB}}
    assert apu.bdf in dmem_state(beside, CU).reason


NO_REGION = "no region in dmem.capacity, so not limited: 0000:08:00.0"
IN_HOST = "works in host memory, so not limited: 0000:0c:00.0"
APU = replace(soft_gpu("uuid-c", bdf="0000:0c:00.0"), host_memory=True)


@pytest.mark.parametrize(
    ("of", "state"),
    [
        (node(A, B), ON),
        (node(A, B, regions=(REGION_B,)), Usable(True, NO_REGION)),
        (node(B, APU), Usable(True, IN_HOST)),
        (node(B, APU, regions=(REGION_B,)), Usable(True, IN_HOST)),
        (node(A, B, APU, regions=(REGION_B,)), Usable(True, f"{NO_REGION}; {IN_HOST}")),
        (node(A, B, dmem=Usable(False, "no controller")), Usable(False, "no controller")),
        (node(A, regions=(), dmem=Usable(False, "no controller")), Usable(False, "no controller")),
    ],
)
def test_the_state_of_dmem_names_each_gpu_that_is_not_limited_once(of: Inventory, state: Usable) -> None:
    assert dmem_state(of, CU) == state


def test_a_slice_of_an_apu_is_refused_without_the_hook_although_its_vram_has_a_region() -> None:
    machine = Machine(load("apu/strixpoint-890m"))
    vendor, settings = Amd(), Settings(node_name="node")
    inventory = vendor.discover(machine, settings, None)
    (gpu,) = inventory.gpus
    assert inventory.dmem.ok
    assert inventory.dmem_regions
    slot = ContainerDevice(gpu.id, gpu.market_name, 100, gpu.cus // 2)
    claim = Claim((f"{gpu.bdf}#0",), pod(None, name="p"), 0, (slot,))
    facts = dict.fromkeys(vendor.needs(inventory, settings, claim), False)
    with pytest.raises(Refused, match="libamvgpu"):
        vendor.allocate(inventory, settings, claim, [], facts)


@pytest.mark.parametrize(
    ("of", "settings"),
    [
        (node(A), replace(CU, dmem_backend=False)),
        (node(A, dmem=Usable(False, "no controller")), CU),
        (node(A, regions=()), CU),
    ],
)
def test_with_dmem_off_there_is_nothing_to_do(of: Inventory, settings: Settings) -> None:
    assert limited_regions(of, settings) == {}
    assert limits(of, served("uuid-a,G,1024,8:;"), served("nonsense", name="q"), settings=settings) == {}


@pytest.mark.parametrize(
    ("text", "left"),
    [("uuid-a,G,x,8:;", ""), ("nonsense;", ";"), ("uuid-a,G,1,1:;", "uuid-a;"), ("a\n,G,1,1:;", "")],
)
def test_a_record_that_cannot_be_read_limits_nothing_and_says_so_in_one_line(text: str, left: str) -> None:
    good = served("uuid-a,G,1024,8:;", name="good")
    wanted = caps(node(A), CU, [served(text, left, name="bad"), good])
    assert [cap.pod for cap in wanted.pods] == [good]
    (line,) = wanted.warnings
    assert line.startswith("pod default/bad: ")
    assert "\n" not in line


def test_a_device_of_another_node_is_left_out_with_a_warning() -> None:
    wanted = caps(node(A), CU, [served("uuid-a,G,1024,8:elsewhere,G,1,1:;elsewhere,G,1,1:;")])
    assert [dict(cap.limits) for cap in wanted.pods] == [{REGION_A: 1024 * MIB}]
    (line,) = wanted.warnings
    assert "elsewhere, unknown here" in line


@pytest.mark.parametrize("spelling", ["uuid-a#spx", "xAMDGPU-0"])
def test_older_spellings_of_an_id_are_limited_too(spelling: str) -> None:
    assert limits(node(A), served(f"{spelling},G,1024,8:;")) == {"p": {REGION_A: 1024 * MIB}}
