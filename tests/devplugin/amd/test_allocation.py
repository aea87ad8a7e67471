"""Allocate: the cases of amd.md 14.3 and 14.4, cases.md B14, B26, B72, decisions 9, 12, 17, 20 to 23, 25."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from devplugin.amd.allocation import allocate, needs
from devplugin.amd.devices import Catalogue
from devplugin.amd.hooking import HOOK_IN_CONTAINER
from devplugin.amd.hooking import source as hook_source
from devplugin.amd.inventory import Inventory
from devplugin.amd.settings import Settings
from devplugin.amd.taken import RECORD
from devplugin.answers import Allocation, FactRequest, Refused
from devplugin.dmem import Usable
from devplugin.hami import Claim, Pod

from .builders import CU, PARTITION, claimed, cut_gpu, inventory, pod, soft_gpu

HOOK = "/usr/local/vgpu/libamvgpu.so"
THERE = {FactRequest("file", HOOK): True}


def give(
    of: Inventory, owner: Pod, others: Sequence[Pod] = (), settings: Settings = CU, facts: object = None
) -> Allocation:
    return allocate(
        of,
        settings,
        claimed(owner, *others),
        [owner, *others],
        THERE if facts is None else facts,  # type: ignore[arg-type]
    )


def pair(cus_a: int = 64, cus_b: int = 2, mib_b: int = 512) -> Inventory:
    """amd.md 14.4's a (render 128) and b (render 130)."""
    return inventory(
        soft_gpu("uuid-a", cus=cus_a, mib=16304, render=128, card=0, rocr="GPU-a"),
        soft_gpu("uuid-b", cus=cus_b, mib=mib_b, render=130, card=2, rocr="GPU-b"),
    )


# ------------------------------------------------------------------ whole GPUs


def test_a_whole_gpu_gets_no_hook_no_limit_and_no_record() -> None:
    result = give(inventory(soft_gpu("uuid-a", cus=32)), pod("uuid-a,AMDGPU,16304,32:;"), facts={})
    assert result.edits.mounts == ()
    assert result.annotations == {}
    assert result.edits.envs == {
        "ROCR_VISIBLE_DEVICES": "0",
        "HIP_VISIBLE_DEVICES": "0",
        "HSA_CU_MASK": "0:0-31",
    }


def test_everything_follows_the_order_of_the_annotation() -> None:
    result = give(pair(), pod("uuid-b,AMDGPU,512,2:uuid-a,AMDGPU,16304,64:;"))
    assert result.edits.envs == {
        "ROCR_VISIBLE_DEVICES": "GPU-b,GPU-a",
        "HSA_CU_MASK": "0:0-1;1:0-63",
        "HIP_VISIBLE_DEVICES": "0,1",
    }
    assert [d.path for d in result.edits.devices] == [
        "/dev/kfd",
        "/dev/dri/card2",
        "/dev/dri/renderD130",
        "/dev/dri/card0",
        "/dev/dri/renderD128",
    ]
    assert {d.permissions for d in result.edits.devices} == {"rw"}


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("a,AMDGPU,0,0:b,AMDGPU,0,0:;", True),
        ("a,AMDGPU,16304,32:;", True),
        ("a,AMDGPU,16304,16:;", False),
        ("a,AMDGPU,4096,32:;", False),
        ("a,AMDGPU,0,0:b,AMDGPU,16304,20:;", False),
    ],
)
def test_a_request_is_whole_when_no_device_is_cut_in_cus_or_memory(text: str, whole: bool) -> None:
    of = inventory(
        soft_gpu("a", cus=32, bdf="0000:06:00.0"), soft_gpu("b", cus=32, render=129, bdf="0000:07:00.0")
    )
    assert (needs(of, CU, claimed(pod(text))) == ()) is whole


def test_a_whole_gpu_that_is_partly_used_is_refused_naming_the_holder() -> None:
    holder = pod(None, name="slice", phase="Running", amd__cu__allocated='{"uuid-a":"0-3"}')
    with pytest.raises(Refused, match=r"uuid-a.*default/slice"):
        give(pair(), pod("uuid-a,AMDGPU,16304,64:;"), [holder])


def test_a_whole_gpu_with_an_odd_number_of_cus_on_rdna_gets_them_all() -> None:
    of = inventory(soft_gpu("uuid-a", cus=33, gfx=120001))
    assert give(of, pod("uuid-a,AMDGPU,16304,33:;")).edits.envs["HSA_CU_MASK"] == "0:0-32"


# ------------------------------------------------------------------ slices


def test_a_slice_gets_limits_for_each_device_one_mount_and_a_record() -> None:
    result = give(pair(cus_b=2, mib_b=4096), pod("uuid-b,AMDGPU,4096,1:uuid-a,AMDGPU,16304,32:;"))
    envs = result.edits.envs
    assert envs["HIP_DEVICE_MEMORY_LIMIT_0"] == "4096m"
    assert envs["HIP_DEVICE_MEMORY_LIMIT_1"] == "16304m"
    assert envs["LD_AUDIT"] == HOOK_IN_CONTAINER
    assert envs["HSA_CU_MASK"] == "0:0;1:0-31"
    (mount,) = result.edits.mounts
    assert (mount.container_path, mount.host_path, mount.read_only) == (HOOK_IN_CONTAINER, HOOK, True)
    assert result.annotations == {RECORD: '{"uuid-a":"0-31","uuid-b":"0"}'}


def test_a_memory_only_slice_may_use_all_cus_and_holds_none() -> None:
    result = give(pair(), pod("uuid-a,AMDGPU,4096,0:;"))
    assert result.edits.envs["HSA_CU_MASK"] == "0:0-63"
    assert result.edits.envs["HIP_DEVICE_MEMORY_LIMIT_0"] == "4096m"
    assert result.annotations == {}


def test_a_memory_slice_with_all_cus_holds_them_all() -> None:
    result = give(pair(), pod("uuid-a,AMDGPU,4096,64:;"))
    assert result.annotations == {RECORD: '{"uuid-a":"0-63"}'}


def test_a_whole_device_beside_a_slice_is_recorded_and_limited_to_its_own_memory() -> None:
    result = give(pair(mib_b=4096), pod("uuid-a,AMDGPU,0,0:uuid-b,AMDGPU,1024,1:;"))
    assert result.edits.envs["HIP_DEVICE_MEMORY_LIMIT_0"] == "16304m"
    assert result.annotations == {RECORD: '{"uuid-a":"0-63","uuid-b":"0"}'}


def test_after_a_restart_masks_follow_the_records_in_the_order_of_the_request() -> None:
    """cases.md B72."""
    of = inventory(
        soft_gpu("u1", cus=304, render=128, rocr="GPU-1"), soft_gpu("u2", cus=304, render=129, rocr="GPU-2")
    )
    running = pod(None, name="a", phase="Running", amd__cu__allocated='{"u1":"0-75"}')
    result = give(of, pod("u2,AMD,4096,76:u1,AMD,4096,76:;", name="b"), [running])
    assert result.edits.envs["ROCR_VISIBLE_DEVICES"] == "GPU-2,GPU-1"
    assert result.edits.envs["HSA_CU_MASK"] == "0:0-75;1:76-151"


def test_slices_on_rdna_are_made_of_pairs() -> None:
    of = inventory(soft_gpu("r", cus=32, gfx=120001))
    assert give(of, pod("r,AMD,1024,3:;")).edits.envs["HSA_CU_MASK"] == "0:0-3"


def test_a_second_container_adds_to_the_pods_record() -> None:
    owner = pod(";uuid-a,AMDGPU,1024,8:;", amd__cu__allocated='{"uuid-a":"0-3","elsewhere":"7"}')
    result = give(pair(), owner)
    assert json.loads(result.annotations[RECORD] or "") == {"uuid-a": "0-11", "elsewhere": "7"}
    assert result.edits.envs["HSA_CU_MASK"] == "0:4-11"


def test_no_cus_left_is_a_refusal_that_names_device_and_holders() -> None:
    holder = pod(None, name="big", phase="Running", amd__cu__allocated='{"uuid-a":"0-59"}')
    with pytest.raises(Refused, match=r"uuid-a.*8 of 64 CUs wanted.*4 are free.*default/big"):
        give(pair(), pod("uuid-a,AMDGPU,1024,8:;"), [holder])


def test_a_blocked_device_is_refused_and_its_neighbour_is_not() -> None:
    broken = pod(None, name="broken", phase="Running", amd__cu__allocated='{"uuid-a":"999"}')
    with pytest.raises(Refused, match=r"default/broken.*out of bounds"):
        give(pair(), pod("uuid-a,AMDGPU,1024,8:;"), [broken])
    assert give(pair(), pod("uuid-b,AMDGPU,100,1:;"), [broken]).annotations == {RECORD: '{"uuid-b":"0"}'}


def test_warnings_of_the_rebuild_are_warnings_and_no_notes() -> None:
    stranger = pod(None, name="old", phase="Running", amd__cu__allocated='{"gone":"0"}')
    result = give(pair(), pod("uuid-a,AMDGPU,1024,8:;"), [stranger])
    (warning,) = result.warnings
    assert "default/old" in warning
    assert "ignored" in warning
    assert not any("default/old" in note for note in result.notes)


# ------------------------------------------------------------------ the hook (decision 23)


def test_the_hook_is_asked_for_only_when_a_slice_needs_it() -> None:
    assert needs(pair(), CU, claimed(pod("uuid-a,AMDGPU,1024,8:;"))) == (FactRequest("file", HOOK),)
    assert needs(pair(), CU, claimed(pod("uuid-a,AMDGPU,16304,64:;"))) == ()
    assert needs(pair(), CU, claimed(pod("nobody,AMDGPU,1,1:;"))) == ()


@pytest.mark.parametrize("facts", [{}, {FactRequest("file", HOOK): False}])
def test_without_the_hook_a_slice_is_refused_with_the_reason(facts: object) -> None:
    with pytest.raises(Refused, match=r"/usr/local/vgpu/libamvgpu.so is not on the host"):
        give(pair(), pod("uuid-a,AMDGPU,1024,8:;"), facts=facts)


@pytest.mark.parametrize(
    ("prefix", "source"),
    [("", "/vgpu/libamvgpu.so"), ("/usr/local", HOOK), ("/opt/x/", "/opt/x/vgpu/libamvgpu.so")],
)
def test_the_hook_lies_under_the_hosts_hook_path(prefix: str, source: str) -> None:
    assert hook_source(Settings(hook_path=prefix)) == source


# ------------------------------------------------------------------ names of agents (decision 12)


@pytest.mark.parametrize(
    ("order", "rocr", "visible"),
    [
        ("ab", ("GPU-a", "GPU-b"), "GPU-a,GPU-b"),
        ("ba", ("GPU-a", None), "1,0"),
        ("ab", ("GPU-a", None), "0,1"),
        ("b", ("GPU-a", None), "0"),
    ],
)
def test_one_container_names_agents_in_one_style(
    order: str, rocr: tuple[str | None, str | None], visible: str
) -> None:
    of = inventory(
        soft_gpu("uuid-a", render=128, node=1, rocr=rocr[0]),
        soft_gpu("uuid-b", render=130, node=2, rocr=rocr[1]),
    )
    text = "".join(f"uuid-{letter},AMDGPU,0,0:" for letter in order) + ";"
    assert give(of, pod(text)).edits.envs["ROCR_VISIBLE_DEVICES"] == visible


def test_indices_count_kfd_nodes_not_render_minors() -> None:
    of = inventory(
        soft_gpu("uuid-a", render=128, node=5), soft_gpu("uuid-b", render=130, node=2, bdf="0000:99:00.0")
    )
    envs = give(of, pod("uuid-a,AMDGPU,0,0:uuid-b,AMDGPU,0,0:;")).edits.envs
    assert envs["ROCR_VISIBLE_DEVICES"] == "1,0"
    assert envs["HIP_VISIBLE_DEVICES"] == "0,1"


# ------------------------------------------------------------------ partitions


def qpx(listed: int | None = None) -> Inventory:
    return inventory(cut_gpu("m", compute="qpx", ways=4, listed=listed, cus=64))


def test_a_partition_gets_its_own_nodes_and_neither_mask_hook_limit_nor_record() -> None:
    result = give(qpx(), pod("m-p2,AMD,73728,64:;"), settings=PARTITION, facts={})
    assert result.edits.envs == {"ROCR_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "0"}
    assert [d.path for d in result.edits.devices] == ["/dev/kfd", "/dev/dri/card3", "/dev/dri/renderD130"]
    assert (result.edits.mounts, result.annotations) == ((), {})


def test_a_hard_device_is_given_whole_even_when_less_is_asked_for() -> None:
    result = give(qpx(), pod("m-p0,AMD,1024,8:;"), settings=PARTITION, facts={})
    assert set(result.edits.envs) == {"ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"}


def test_partitions_that_share_a_serial_are_told_apart_by_index() -> None:
    result = give(qpx(), pod("m-p3,AMD,0,0:m-p1,AMD,0,0:;"), settings=PARTITION)
    assert result.edits.envs["ROCR_VISIBLE_DEVICES"] == "1,0"


def test_partitions_with_serials_of_their_own_are_named_by_them() -> None:
    """Kernel 7.0 gives each partition a unique_id; amd.md 14.4 finds such a partition by its ROCr name."""
    gpu = qpx().gpus[0]
    parts = tuple(replace(part, rocr_name=f"GPU-{part.number:016x}") for part in gpu.partitions)
    of = inventory(replace(gpu, partitions=parts))
    result = give(of, pod("GPU-0000000000000002#cpx,AMD,0,0:m-p0,AMD,0,0:;"), settings=PARTITION)
    assert result.edits.envs["ROCR_VISIBLE_DEVICES"] == "GPU-0000000000000002,GPU-0000000000000000"
    assert [d.path for d in result.edits.devices][2] == "/dev/dri/renderD130"


def test_a_partition_without_a_card_gets_its_render_node_alone() -> None:
    part = soft_gpu("uuid-a", card=None)
    result = give(inventory(part), pod("uuid-a,AMDGPU,0,0:;"))
    assert [d.path for d in result.edits.devices] == ["/dev/kfd", "/dev/dri/renderD128"]


def test_card_and_render_minors_are_the_devices_own_numbers() -> None:
    """cases.md B26: card 9 beside renderD136, because card 0 is the BMC."""
    result = give(inventory(soft_gpu("u", card=9, render=136)), pod("u,AMD,0,0:;"))
    assert [d.path for d in result.edits.devices][1:] == ["/dev/dri/card9", "/dev/dri/renderD136"]


def test_a_partition_that_another_pod_holds_is_refused() -> None:
    holder = pod("m-p1,AMD,73728,64:;", name="holder", phase="Running")
    with pytest.raises(Refused, match=r"m-p1.*default/holder"):
        give(qpx(), pod("m-p1,AMD,73728,64:;"), [holder], settings=PARTITION)
    assert give(qpx(), pod("m-p0,AMD,73728,64:;"), [holder], settings=PARTITION).edits.envs


def test_a_partitioned_gpu_in_cu_mode_is_given_with_all_nodes_and_a_mask_for_each_agent() -> None:
    result = give(qpx(), pod("m,AMD,294896,256:;"))
    assert result.edits.envs == {
        "ROCR_VISIBLE_DEVICES": "0,1,2,3",
        "HIP_VISIBLE_DEVICES": "0,1,2,3",
        "HSA_CU_MASK": "0:0-63;1:0-63;2:0-63;3:0-63",
    }
    assert [d.path for d in result.edits.devices if "render" in d.path] == [
        f"/dev/dri/renderD{128 + i}" for i in range(4)
    ]


def test_a_slice_of_a_partitioned_gpu_sees_the_agents_it_has_cus_of_and_shares_its_memory_among_them() -> (
    None
):
    """An agent without a mask would have all its CUs, and an empty mask must not be written (decision 21)."""
    holder = pod(None, name="h", phase="Running", amd__cu__allocated='{"m":"0-95"}')
    result = give(qpx(), pod("m,AMD,4096,64:;"), [holder])
    envs = result.edits.envs
    assert envs["ROCR_VISIBLE_DEVICES"] == "1,2"
    assert envs["HSA_CU_MASK"] == "0:32-63;1:0-31"
    assert (envs["HIP_DEVICE_MEMORY_LIMIT_0"], envs["HIP_DEVICE_MEMORY_LIMIT_1"]) == ("2048m", "2048m")
    assert result.annotations == {RECORD: '{"m":"96-159"}'}
    assert len([d for d in result.edits.devices if "render" in d.path]) == 4


def test_a_gpu_whose_last_partition_is_missing_has_the_cus_that_are_listed() -> None:
    result = give(qpx(listed=3), pod("m,AMD,294896,192:;"))
    assert result.edits.envs["HSA_CU_MASK"] == "0:0-63;1:0-63;2:0-63"
    assert result.annotations == {}


def test_a_soft_gpu_beside_a_partition_keeps_its_mask_at_its_own_index() -> None:
    of = inventory(
        cut_gpu("m", compute="qpx", ways=4, cus=64, first_node=2),
        soft_gpu("r", render=150, node=1, cus=32),
    )
    result = give(of, pod("m-p0,AMD,0,0:r,AMD,1024,8:;"), settings=PARTITION)
    envs = result.edits.envs
    assert envs["ROCR_VISIBLE_DEVICES"] == "1,0"
    assert envs["HSA_CU_MASK"] == "1:0-7"
    assert "HIP_DEVICE_MEMORY_LIMIT_0" not in envs
    assert envs["HIP_DEVICE_MEMORY_LIMIT_1"] == "1024m"
    assert result.annotations == {RECORD: '{"r":"0-7"}'}


# ------------------------------------------------------------------ ids


def test_an_unknown_device_is_refused_naming_node_pod_and_device() -> None:
    with pytest.raises(Refused, match=r"default/p: device uuid-z is not offered by node node-a in mode cu"):
        give(pair(), pod("uuid-z,AMDGPU,0,0:;"))


def test_a_partition_scheduled_before_a_change_to_cu_mode_is_refused() -> None:
    with pytest.raises(Refused, match="m-p1 is not offered"):
        give(qpx(), pod("m-p1,AMD,73728,64:;"))


def test_a_device_named_twice_is_refused() -> None:
    with pytest.raises(Refused, match="named twice"):
        give(pair(), pod("uuid-a,AMDGPU,1024,8:uuid-a#cpx,AMDGPU,1024,8:;"))


@pytest.mark.parametrize(
    "spelling", ["uuid-b", "uuid-b#cpx", "uuid-b#spx", "uuid-b#tpx", "GPU-b", "GPU-b#cpx", "node-AMDGPU-11"]
)
def test_old_spellings_of_an_id_mean_the_same_device(spelling: str) -> None:
    found = Catalogue(pair(), CU).named(spelling)
    assert found is not None
    assert found.id == "uuid-b"


@pytest.mark.parametrize(
    "spelling",
    ["plain", "node-AMDGPU-20", "node-AMDGPU-30", "node-AMDGPU-x", "GPU-gone", "uuid-b#0x", "#cpx"],
)
def test_ids_that_mean_nothing_here_are_unknown(spelling: str) -> None:
    assert Catalogue(pair(), CU).named(spelling) is None


def test_flat_slot_numbers_count_each_gpus_own_slots() -> None:
    """amd.md 14.4: gfx12 has 2 slots, CDNA 10."""
    of = inventory(soft_gpu("r", gfx=120001), soft_gpu("c", render=129))
    found = [Catalogue(of, CU).named(f"node-AMDGPU-{i}") for i in (0, 1, 2, 11, 12)]
    assert [device.id if device else None for device in found] == ["r", "r", "c", "c", None]


@pytest.mark.parametrize(("gfx", "unit"), [(120001, 2), (100306, 2), (90402, 1), (0, 1)])
def test_work_group_processors_are_pairs_from_gfx10_on(gfx: int, unit: int) -> None:
    assert soft_gpu("g", gfx=gfx).cu_unit == unit


# ------------------------------------------------------------------ kubelet's own ids (decision 17)


def own(*ids: str) -> Claim:
    return Claim(ids=ids, pod=None, slot=None, devices=(), passed_over=("default/x: no slot left",))


def test_hard_ids_without_a_pod_resolve_as_whole_devices() -> None:
    result = allocate(qpx(), PARTITION, own("amdgpu_xcp_1#qpx", "0000:05:00.0#qpx"), [], {})
    assert [d.path for d in result.edits.devices if "render" in d.path] == [
        "/dev/dri/renderD130",
        "/dev/dri/renderD128",
    ]
    assert result.edits.envs["ROCR_VISIBLE_DEVICES"] == "1,0"
    assert result.annotations == {}


def test_every_hard_id_that_is_offered_resolves() -> None:
    for device in Catalogue(qpx(), PARTITION).devices:
        (identifier,) = device.kubelet_ids
        assert allocate(qpx(), PARTITION, own(identifier), [], {}).edits.devices


def test_a_soft_id_without_a_pod_is_refused_and_told_why() -> None:
    with pytest.raises(Refused, match=r"no pod waits.*default/x: no slot left"):
        allocate(pair(), CU, own("0000:03:00.0#0"), [], {})


@pytest.mark.parametrize(
    "identifier", ["0000:05:00.0#cpx", "0000:05:00.0", "amdgpu_xcp_9#qpx", "0000:05:00.0#0", "evil\n#qpx"]
)
def test_ids_that_were_never_offered_are_refused(identifier: str) -> None:
    with pytest.raises(Refused, match="not one this node offers") as caught:
        allocate(qpx(), PARTITION, own(identifier), [], {})
    assert str(caught.value).isprintable()


# ------------------------------------------------------------------ dmem in place of the hook (decision 23)


def on_dmem(of: Inventory, *without: str) -> Inventory:
    regions = tuple(f"drm/{gpu.bdf}/vram" for gpu in of.gpus if gpu.bdf not in without)
    return replace(of, dmem=Usable(True, ""), dmem_regions=regions)


def test_where_dmem_caps_a_slice_a_missing_hook_is_left_out() -> None:
    result = give(on_dmem(pair()), pod("uuid-a,AMDGPU,8192,32:;"), facts={FactRequest("file", HOOK): False})
    assert result.edits.mounts == ()
    assert "LD_AUDIT" not in result.edits.envs
    assert not any(name.startswith("HIP_DEVICE_MEMORY_LIMIT") for name in result.edits.envs)
    assert result.edits.envs["HSA_CU_MASK"] == "0:0-31"
    assert json.loads(result.annotations[RECORD] or "") == {"uuid-a": "0-31"}
    assert any(HOOK in note and "only dmem" in note for note in result.notes)


def test_where_dmem_caps_a_slice_the_hook_is_used_all_the_same() -> None:
    result = give(on_dmem(pair()), pod("uuid-a,AMDGPU,8192,32:;"))
    assert result.edits.envs["LD_AUDIT"] == HOOK_IN_CONTAINER
    assert result.edits.envs["HIP_DEVICE_MEMORY_LIMIT_0"] == "8192m"


@pytest.mark.parametrize(
    ("of", "settings"),
    [
        (on_dmem(pair(), "0000:05:00.0"), CU),  # uuid-b has no region
        (on_dmem(pair()), replace(CU, dmem_backend=False)),
        (replace(on_dmem(pair()), dmem=Usable(False, "no kubepods.slice")), CU),
        (replace(on_dmem(pair()), dmem_regions=()), CU),
    ],
)
def test_a_missing_hook_refuses_a_slice_unless_dmem_caps_every_device(
    of: Inventory, settings: Settings
) -> None:
    with pytest.raises(Refused, match=r"memory hook .* is not on the host and dmem does not limit"):
        give(of, pod("uuid-a,AMDGPU,8192,32:uuid-b,AMDGPU,512,2:;"), settings=settings, facts={})
