"""Allocate of NPUs: rows P1 to P17 of ascend_ppu_hami.md F.1 as decisions 36 to 40 and 50 have them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from devplugin.answers import Allocation, FactRequest, Mount, Refused
from devplugin.ascend.allocation import allocate, needs, ordered
from devplugin.ascend.inventory import Inventory
from devplugin.ascend.settings import ChipConfig, Settings
from devplugin.deeds import MakeDir, MoveAside
from devplugin.hami import Claim, Pod

from .npupods import B4_1, C910, HARD, P3, SOFT, SOFT_POD, claim, device, entry, node, pod


def serve(
    served: Pod,
    slot: int = 0,
    *,
    settings: Settings = HARD,
    inventory: Inventory | None = None,
    chip: ChipConfig = P3,
    there: bool = True,
) -> Allocation:
    """What the container of a slot gets; `there`: the host has the library."""
    here = inventory or node(chip)
    wanted = claim(served, slot, chip)
    return allocate(here, settings, wanted, (served,), dict.fromkeys(needs(here, settings, wanted), there))


def refusal(served: Pod, slot: int = 0, **more: Any) -> Refused:
    with pytest.raises(Refused) as refused:
        serve(served, slot, **more)
    assert str(refused.value).startswith("pod ns/p: ")
    assert "; " in str(refused.value)  # what to do follows
    return refused.value


# ------------------------------------------------------------------ slices by template, and whole cards


def test_a_template_slice_is_two_variables_and_nothing_else() -> None:
    """P1."""
    given = serve(pod([[device("uuid3", 3072, 1)]], [entry("uuid3", "vir01", 3072, 1)]))
    assert given.edits.envs == {"ASCEND_VISIBLE_DEVICES": "3", "ASCEND_VNPU_SPECS": "vir01"}
    assert (given.edits.mounts, given.edits.devices, given.before, given.annotations) == ((), (), (), {})


def test_two_containers_get_their_own_card_and_template() -> None:
    """P2."""
    both = pod(
        [[device("uuid0", 3072)], [device("uuid1", 6144)]],
        [entry("uuid0", "vir01", 3072), entry("uuid1", "vir02", 6144)],
    )
    assert [dict(serve(both, slot).edits.envs) for slot in (0, 1)] == [
        {"ASCEND_VISIBLE_DEVICES": "0", "ASCEND_VNPU_SPECS": "vir01"},
        {"ASCEND_VISIBLE_DEVICES": "1", "ASCEND_VNPU_SPECS": "vir02"},
    ]


def test_two_containers_that_share_a_card_do_not_get_each_others_template() -> None:
    """A.7: a map by UUID would give the last entry to both."""
    both = pod(
        [[device("uuid0", 3072)], [device("uuid0", 6144)]],
        [entry("uuid0", "vir01", 3072), entry("uuid0", "vir02", 6144)],
    )
    assert [serve(both, slot).edits.envs["ASCEND_VNPU_SPECS"] for slot in (0, 1)] == ["vir01", "vir02"]


def test_a_card_shared_in_equal_amounts_is_told_apart_by_the_slots_position() -> None:
    both = pod(
        [[device("uuid0", 3000)], [device("uuid0", 3000)]], [entry("uuid0", "vir01"), entry("uuid0", "vir02")]
    )
    assert [serve(both, slot).edits.envs["ASCEND_VNPU_SPECS"] for slot in (0, 1)] == ["vir01", "vir02"]


def test_without_the_permanent_record_the_amounts_tell_the_entries_of_a_card_apart() -> None:
    both = pod(
        [[device("uuid0", 3072)], [device("uuid0", 6144)]],
        [entry("uuid0", "vir01", 3072), entry("uuid0", "vir02", 6144)],
        allocated=False,
    )
    assert [serve(both, slot).edits.envs["ASCEND_VNPU_SPECS"] for slot in (0, 1)] == ["vir01", "vir02"]


def test_entries_that_nothing_tells_apart_are_refused() -> None:
    both = pod(
        [[device("uuid0", 3000)], [device("uuid0", 3000)]],
        [entry("uuid0", "vir01", 3000), entry("uuid0", "vir02", 3000)],
        allocated=False,
    )
    assert "nothing tells which is this container's" in str(refusal(both))


def test_two_devices_of_one_container_with_unequal_templates_are_refused() -> None:
    """P3 as decision 38 has it."""
    one = pod(
        [[device("uuid0", 3072), device("uuid1", 3072)]], [entry("uuid0", "vir01"), entry("uuid1", "vir02")]
    )
    assert "unequal templates" in str(refusal(one))


def test_two_slices_in_one_container_are_refused_because_the_runtime_cuts_one_only() -> None:
    """Also what superPod's rounding of 1 to 2 makes of a slice (D.9)."""
    one = pod(
        [[device("uuid0", 3072), device("uuid1", 3072)]], [entry("uuid0", "vir01"), entry("uuid1", "vir01")]
    )
    assert "vNPU not supported for multiple devices" in str(refusal(one))


def test_devices_of_one_container_with_unequal_memory_are_refused() -> None:
    """P13 as decision 38 has it."""
    one = pod(
        [[device("uuid0", 8192, 8), device("uuid1", 4096, 8)]],
        [entry("uuid0"), entry("uuid1")],
        annotations=SOFT_POD,
    )
    assert "unequal shares" in str(refusal(one, settings=SOFT))


def test_an_unknown_uuid_is_refused() -> None:
    """P6."""
    said = refusal(pod([[device("gone", 3072)]], [entry("gone", "vir01")]))
    assert "unknown uuid: gone" in str(said)
    assert said.why == "device"


def test_a_device_named_twice_for_one_container_is_refused() -> None:
    assert "named twice" in str(refusal(pod([[device("uuid0", 21527)] * 2], [entry("uuid0")])))


def test_an_absent_annotation_is_refused_with_its_name() -> None:
    """P7."""
    said = str(refusal(pod([[device("uuid0", 3072)]], None)))
    assert "annotation huawei.com/Ascend310P not set" in said


def test_a_long_annotation_is_quoted_in_part() -> None:
    said = str(refusal(pod([[device("uuid0", 3072)]], "x" * 81)))
    assert "x" * 80 + "\\u2026" in said
    assert "x" * 81 not in said
    assert "x" * 80 + "'" in str(refusal(pod([[device("uuid0", 3072)]], "x" * 80)))


@pytest.mark.parametrize(
    "text", ["", "{", "null", "{}", '[{"UUID":1}]', '[{"UUID":"uuid0","memory":"1"}]', "[" * 5000, "\ud800"]
)
def test_an_annotation_that_is_no_list_of_entries_is_refused_with_what_is_wrong(text: str) -> None:
    """P7."""
    said = refusal(pod([[device("uuid0", 3072)]], text))
    assert "huawei.com/Ascend310P value" in str(said)
    assert "invalid" in str(said)
    assert said.why == "record"
    assert str(said).isascii()


def test_an_entry_with_an_empty_uuid_is_skipped() -> None:
    """P8."""
    served = pod([[device("uuid0", 3072)]], [entry("", "vir04"), entry("uuid0", "vir01")])
    assert serve(served).edits.envs["ASCEND_VNPU_SPECS"] == "vir01"


def test_a_device_without_an_entry_is_refused() -> None:
    """P9 as decision 38 has it."""
    assert "has no entry for device uuid0" in str(refusal(pod([[device("uuid0", 21527)]], [entry("uuid1")])))


@pytest.mark.parametrize("settings", [HARD, SOFT])
def test_a_whole_card_is_one_variable_when_memory_says_so(settings: Settings) -> None:
    given = serve(pod([[device("uuid2", 21527)]], [entry("uuid2", memory=21527)]), settings=settings)
    assert given.edits.envs == {"ASCEND_VISIBLE_DEVICES": "2"}
    assert given.edits.mounts == ()
    assert given.before == ()


@pytest.mark.parametrize("temp", [{}, {"temp": ""}, {"temp": None}])
def test_less_than_a_card_without_a_template_is_refused_with_the_sizes_there_are(
    temp: dict[str, Any],
) -> None:
    """P10 as decision 38 has it."""
    said = refusal(pod([[device("uuid0", 8192)]], [{"UUID": "uuid0", "memory": 8192, **temp}]))
    assert "it would get the whole card" in str(said)
    assert "6144 (vir02)" in str(said)
    assert "hami-core" in str(said)
    assert said.why == "limit"


def test_a_template_the_configuration_does_not_know_is_refused() -> None:
    said = str(refusal(pod([[device("uuid0", 3072)]], [entry("uuid0", "vir05\n_1c")])))
    assert "is not one of Ascend310P (vir01, vir02, vir04)" in said
    assert "\n" not in said


def test_a_template_smaller_than_the_request_is_refused_and_the_right_one_served() -> None:
    """G 7: 910B4-1 with the templates of 910B4."""
    right = pod([[device("uuid0", 16384)]], [entry("uuid0", "vir05_1c_16g", 16384)], chip=B4_1)
    assert serve(right, chip=B4_1).edits.envs["ASCEND_VNPU_SPECS"] == "vir05_1c_16g"
    wrong = pod([[device("uuid0", 32768)]], [entry("uuid0", "vir05_1c_16g", 32768)], chip=B4_1)
    assert "has 16384 MiB, 32768 were asked for" in str(refusal(wrong, chip=B4_1))
    old = pod([[device("uuid0", 16384)]], [entry("uuid0", "vir10_3c_16g", 16384)], chip=B4_1)
    assert "same device configuration" in str(refusal(old, chip=B4_1))


def test_whole_cards_of_a_chip_without_templates_need_none() -> None:
    both = pod(
        [[device("uuid0", 65536), device("uuid1", 65536)]], [entry("uuid0"), entry("uuid1")], chip=C910
    )
    assert serve(both, chip=C910).edits.envs == {"ASCEND_VISIBLE_DEVICES": "0,1"}
    less = pod([[device("uuid0", 16384)]], [entry("uuid0", memory=16384)], chip=C910)
    assert "ask for 65536 MiB" in str(refusal(less, chip=C910))


# ------------------------------------------------------------------ soft slices


def test_a_soft_slice_gets_eight_mounts_in_order_and_its_limits() -> None:
    """P11."""
    served = pod([[device("uuid3", 16384, 4)]], [entry("uuid3", "", 16384, 4)], annotations=SOFT_POD)
    given = serve(served, settings=SOFT)
    own = "/usr/local/hami-vnpu-core/containers/0000-uid_c0"
    assert given.edits.mounts == (
        Mount("/usr/local/bin/npu-smi", "/usr/local/bin/npu-smi"),
        Mount("/etc/ascend_install.info", "/etc/ascend_install.info"),
        Mount("/usr/local/Ascend/driver/lib64/driver", "/usr/local/Ascend/driver/lib64/driver"),
        Mount("/usr/local/Ascend/driver/version.info", "/usr/local/Ascend/driver/version.info"),
        Mount("/hami-vnpu-core", "/usr/local/hami-vnpu-core"),
        Mount("/etc/ld.so.preload", "/usr/local/hami-vnpu-core/ld.so.preload"),
        Mount("/hami-shared-region", "/usr/local/hami-shared-region", read_only=False),
        Mount("/hami-vnpu-shmem", own, read_only=False),
    )
    assert given.edits.envs == {
        "ASCEND_VISIBLE_DEVICES": "3",
        "NPU_MEM_QUOTA": "16384",
        "NPU_PRIORITY": "4",
        "NPU_GLOBAL_SHM_PATH": "/hami-shared-region/3_global_registry",
        "NPU_LOCAL_SHM_PATH": "/hami-vnpu-shmem/vnpu_local_shmem",
    }
    assert given.before == (MoveAside(own), MakeDir(own, 0o777))


def test_a_custom_hook_path_moves_library_preload_list_and_directory_together() -> None:
    """Decision 44: public code leaves the sources of two mounts behind."""
    served = pod([[device("uuid0", 8192)]], [entry("uuid0")], annotations=SOFT_POD)
    given = serve(served, settings=replace(SOFT, hook_path="/opt/vnpu"))
    assert [mount.host_path for mount in given.edits.mounts[4:]] == [
        "/opt/vnpu",
        "/opt/vnpu/ld.so.preload",
        "/usr/local/hami-shared-region",
        "/opt/vnpu/containers/0000-uid_c0",
    ]
    assert given.before == (
        MoveAside("/opt/vnpu/containers/0000-uid_c0"),
        MakeDir("/opt/vnpu/containers/0000-uid_c0", 0o777),
    )


def test_quota_and_priority_come_from_the_slot_when_the_entries_have_neither() -> None:
    """P12 as decision 38 has it."""
    served = pod(
        [[device("uuid0", 8192, 30)]],
        [{"UUID": "uuid0", "memory": None, "core": None}],
        annotations=SOFT_POD,
    )
    envs = serve(served, settings=SOFT).edits.envs
    assert (envs["NPU_MEM_QUOTA"], envs["NPU_PRIORITY"]) == ("8192", "30")


def test_the_slot_and_not_the_entry_says_how_much_memory_there_is() -> None:
    served = pod([[device("uuid0", 8192)]], [entry("uuid0", memory=16384)], annotations=SOFT_POD)
    assert serve(served, settings=SOFT).edits.envs["NPU_MEM_QUOTA"] == "8192"


def test_no_memory_in_the_slot_would_be_no_limit_and_is_refused() -> None:
    """Decision 50."""
    said = refusal(pod([[device("uuid0", 0)]], [entry("uuid0")], annotations=SOFT_POD), settings=SOFT)
    assert "0 MiB" in str(said)
    assert said.why == "limit"


def test_more_memory_than_a_card_has_would_be_no_limit_and_is_refused() -> None:
    """Decision 50: the scheduler reads another configuration, or the card was registered larger before."""
    card = P3.allocatable_mib
    whole = pod([[device("uuid0", card)]], [entry("uuid0", memory=card)], annotations=SOFT_POD)
    assert serve(whole, settings=SOFT).edits.envs["NPU_MEM_QUOTA"] == str(card)
    more = pod([[device("uuid0", card + 1)]], [entry("uuid0", memory=card + 1)], annotations=SOFT_POD)
    said = refusal(more, settings=SOFT)
    assert f"{card + 1} MiB" in str(said)
    assert f"a card's {card}" in str(said)
    assert said.why == "limit"


def test_cores_of_zero_leave_the_priority_out_and_more_than_all_is_all() -> None:
    free = pod([[device("uuid0", 8192, 0)]], [entry("uuid0")], annotations=SOFT_POD)
    assert "NPU_PRIORITY" not in serve(free, settings=SOFT).edits.envs
    much = pod([[device("uuid0", 8192, 120)]], [entry("uuid0")], annotations=SOFT_POD)
    assert serve(much, settings=SOFT).edits.envs["NPU_PRIORITY"] == "100"


def test_several_devices_get_the_quota_each_and_the_registry_of_the_first() -> None:
    """Decisions 36 and 39."""
    served = pod(
        [[device("uuid4", 8192, 10), device("uuid1", 8192, 10)]],
        [entry("uuid4", "", 8192, 10), entry("uuid1", "", 8192, 10)],
        annotations=SOFT_POD,
    )
    envs = serve(served, settings=SOFT).edits.envs
    assert envs["ASCEND_VISIBLE_DEVICES"] == "1,4"
    assert envs["NPU_MEM_QUOTA"] == "8192"
    assert envs["NPU_GLOBAL_SHM_PATH"] == "/hami-shared-region/1_global_registry"


def test_more_devices_than_a_ledger_counts_are_refused() -> None:
    """B.1, decision 50: memory of the ninth would be nobody's."""
    here = node(C910, 16, dies=2)

    def asking(count: int) -> Pod:
        slot = [device(f"uuid{n}", 8192, 10, "Ascend910C") for n in range(count)]
        entries = [entry(f"uuid{n}", "", 8192, 10) for n in range(count)]
        return pod([slot], entries, chip=C910, annotations=SOFT_POD)

    served = serve(asking(8), inventory=here, chip=C910, settings=SOFT)
    assert served.edits.envs["ASCEND_VISIBLE_DEVICES"] == "0,1,2,3,4,5,6,7"
    said = refusal(asking(9), inventory=here, chip=C910, settings=SOFT)
    assert "9 devices" in str(said)
    assert said.why == "limit"


def test_devices_are_listed_ascending_by_number_whatever_the_annotations_order() -> None:
    """G 8: `5,4` broke workloads; and 10 comes after 9."""
    here = node(C910, 12, dies=2)
    both = pod(
        [[device("uuid10", 65536), device("uuid9", 65536)]], [entry("uuid10"), entry("uuid9")], chip=C910
    )
    assert serve(both, chip=C910, inventory=here).edits.envs["ASCEND_VISIBLE_DEVICES"] == "9,10"


def test_chips_of_one_card_are_named_by_their_physical_ids() -> None:
    """G 14: card 0 with chips 0 and 1, whose physical ids are not their places."""
    here = node(P3, 4, dies=2, phys=(4, 5, 0, 1))
    second = pod([[device("uuid1", 3072)]], [entry("uuid1", "vir01")])
    assert serve(second, inventory=here).edits.envs["ASCEND_VISIBLE_DEVICES"] == "5"


def test_a_soft_slice_without_the_library_on_the_host_is_refused() -> None:
    """Decision 50: the linker ignores a preload list that names nothing."""
    served = pod([[device("uuid0", 8192)]], [entry("uuid0")], annotations=SOFT_POD)
    files = [f"/usr/local/hami-vnpu-core/{name}" for name in ("libvnpu.so", "ld.so.preload")]
    assert needs(node(), SOFT, claim(served)) == tuple(FactRequest("file", path) for path in files)
    said = refusal(served, settings=SOFT, there=False)
    assert "libvnpu.so" in str(said)
    assert said.why == "limit"


def test_nobody_else_asks_for_the_library() -> None:
    whole = pod([[device("uuid0", 21527)]], [entry("uuid0")])
    wrong = pod([[device("uuid0", 8000)]], "no JSON", annotations=SOFT_POD)
    assert [needs(node(), SOFT, claim(one)) for one in (whole, wrong)] == [(), ()]


@pytest.mark.parametrize(
    ("fields", "slot"), [({"uid": ""}, 0), ({"containers": ("",)}, 0), ({"containers": ()}, 0)]
)
def test_a_directory_without_a_pod_uid_or_container_name_is_refused(
    fields: dict[str, Any], slot: int
) -> None:
    """P14 as decision 38 has it."""
    served = pod([[device("uuid0", 8192)]], [entry("uuid0")], annotations=SOFT_POD, **fields)
    assert "has no name" in str(refusal(served, slot, settings=SOFT))


@pytest.mark.parametrize("fields", [{"uid": "../../etc"}, {"containers": ("a/../b",)}, {"uid": "a_b"}])
def test_a_name_that_would_lead_elsewhere_makes_no_path(fields: dict[str, Any]) -> None:
    """Decision 25."""
    served = pod([[device("uuid0", 8192)]], [entry("uuid0")], annotations=SOFT_POD, **fields)
    assert "cannot name a directory" in str(refusal(served, settings=SOFT))


def test_a_slots_container_is_counted_from_the_init_containers() -> None:
    """D.8: for Ascend positions hold."""
    served = pod(
        [[device("uuid0", 4096)], [], [device("uuid1", 8192)]],
        [entry("uuid0"), entry("uuid1")],
        annotations=SOFT_POD,
        init_containers=("setup",),
        containers=("sidecar", "main"),
    )
    assert [serve(served, slot, settings=SOFT).edits.mounts[-1].host_path[-12:] for slot in (0, 2)] == [
        "00-uid_setup",
        "000-uid_main",
    ]


# ------------------------------------------------------------------ which mode


def test_an_unannotated_pod_on_a_soft_node_is_served_as_it_was_scheduled() -> None:
    """G 10 and decision 37: a template if it has one, a whole card if memory says so, else soft."""
    slice_ = pod([[device("uuid0", 3072)]], [entry("uuid0", "vir01", 3072)])
    assert serve(slice_, settings=SOFT).edits.envs["ASCEND_VNPU_SPECS"] == "vir01"
    whole = pod([[device("uuid0", 21527)]], [entry("uuid0")])
    assert "NPU_MEM_QUOTA" not in serve(whole, settings=SOFT).edits.envs
    soft = pod(
        [[device("uuid0", 8000)]], [entry("uuid0", memory=8000)], annotations={"huawei.com/vnpu-mode": ""}
    )
    assert serve(soft, settings=SOFT).edits.envs["NPU_MEM_QUOTA"] == "8000"


def test_a_pod_with_a_template_anywhere_was_scheduled_by_templates() -> None:
    """Decision 37: its other container without one is not soft, it is wrong."""
    both = pod(
        [[device("uuid0", 3072)], [device("uuid1", 8000)]],
        [entry("uuid0", "vir01", 3072), entry("uuid1", memory=8000)],
    )
    assert serve(both, 0, settings=SOFT).edits.envs["ASCEND_VNPU_SPECS"] == "vir01"
    assert "without a template" in str(refusal(both, 1, settings=SOFT))


def test_an_annotated_pod_without_cores_keeps_the_memory_it_asked_for() -> None:
    """G 9: 15360 stays 15360 and is trimmed to no template."""
    served = pod([[device("uuid0", 15360)]], [entry("uuid0", memory=15360)], chip=B4_1, annotations=SOFT_POD)
    envs = serve(served, settings=SOFT, chip=B4_1).edits.envs
    assert envs["NPU_MEM_QUOTA"] == "15360"
    assert "ASCEND_VNPU_SPECS" not in envs


def test_a_soft_pod_may_have_a_whole_cards_memory() -> None:
    served = pod([[device("uuid0", 21527)]], [entry("uuid0")], annotations=SOFT_POD)
    assert serve(served, settings=SOFT).edits.envs["NPU_MEM_QUOTA"] == "21527"


@pytest.mark.parametrize("mode", ["enpu", "ubs-virt", "vcann-rt", "hami_core", "HAMI-CORE", "template", " "])
def test_another_mode_is_not_built(mode: str) -> None:
    served = pod(
        [[device("uuid0", 3072)]], [entry("uuid0", "vir01")], annotations={"huawei.com/vnpu-mode": mode}
    )
    for settings in (HARD, SOFT):
        assert "is not built" in str(refusal(served, settings=settings))


def test_a_soft_pod_on_a_node_that_is_not_prepared_for_it_is_refused() -> None:
    """Decision 45 prepares in soft mode only, so nothing would hold the limit (decision 50)."""
    said = refusal(pod([[device("uuid0", 8192)]], [entry("uuid0")], annotations=SOFT_POD))
    assert "hamiVnpuCore" in str(said)
    assert said.why == "limit"


# ------------------------------------------------------------------ without a pod, without a node


def test_kubelets_own_ids_alone_say_nothing_and_are_refused() -> None:
    with pytest.raises(Refused, match="get pending pod: no pod of this node waits for 1 device") as refused:
        allocate(node(), HARD, Claim(("uuid0-0",), None, None, (), ("ns/x: no slot left",)), (), {})
    assert refused.value.why == "pod"
    assert "ns/x: no slot left" in str(refused.value)


def test_before_the_first_chip_was_seen_nothing_is_given() -> None:
    assert "not known yet" in str(refusal(pod([[device("uuid0", 3072)]], []), inventory=Inventory()))


def test_what_was_given_is_a_line_for_the_log() -> None:
    served = pod([[device("uuid3", 8192, 4)]], [entry("uuid3")], annotations=SOFT_POD)
    (note,) = serve(served, settings=SOFT).notes
    assert note == "pod ns/p, slot 0: uuid3 (phy 3): soft, 8192 MiB each, cores 4"


def test_a_containers_devices_are_ordered_by_physical_id() -> None:
    here = node(P3, 4, phys=(2, 0, 3, 1))
    assert [npu.phy for npu in ordered(here.npus)] == [0, 1, 2, 3]
