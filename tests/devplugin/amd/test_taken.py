"""The rebuild of what is in use: amd.md 14.2 (rebuild cases), decision 18."""

from __future__ import annotations

from dataclasses import replace

import pytest

from devplugin.amd.inventory import Inventory
from devplugin.amd.settings import Settings
from devplugin.amd.taken import RECORD, VOCABULARY, Taken, read_record, rebuild, write_record
from devplugin.hami import Pod

from .builders import CU, PARTITION, cut_gpu, inventory, pod, soft_gpu

BDF0, BDF1 = "0000:03:00.0", "0000:04:00.0"


def two(cus: int = 8) -> Inventory:
    return inventory(
        soft_gpu("gpu0", cus=cus, render=128, node=1), soft_gpu("gpu1", cus=cus, render=129, node=2)
    )


def recorded(text: str, name: str = "p", phase: str = "Running") -> Pod:
    plain = pod(None, name=name, phase=phase)
    return replace(plain, annotations={RECORD: text})


def take(*pods: Pod, of: Inventory | None = None, current: Pod | None = None) -> Taken:
    return rebuild(of or two(), CU, pods, current)


def test_records_of_living_pods_add_up_and_those_of_ended_ones_do_not() -> None:
    taken = take(
        recorded('{"gpu0":"0-3"}', "a"),
        recorded('{"gpu0":"4-5","gpu1":"0"}', "b", "Pending"),
        recorded('{"gpu0":"6-7"}', "c", "Succeeded"),
        recorded('{"gpu1":"1-7"}', "d", "Failed"),
    )
    assert taken.masks == {BDF0: 0x3F, BDF1: 0x01}
    assert taken.blocked == {}
    assert {bdf: tuple(map(str, pods)) for bdf, pods in taken.holders.items()} == {
        BDF0: ("default/a", "default/b"),
        BDF1: ("default/b",),
    }


def test_an_overlap_blocks_the_device_and_names_cu_and_both_pods() -> None:
    taken = take(recorded('{"gpu0":"0-3"}', "pod-a"), recorded('{"gpu0":"3-4","gpu1":"1"}', "pod-b"))
    assert set(taken.blocked) == {BDF0}
    for word in ("gpu0", "CU 3 ", "default/pod-a", "default/pod-b"):
        assert word in taken.blocked[BDF0]
    assert taken.masks[BDF1] == 2


@pytest.mark.parametrize("cus", ["8", "0-8", "x", "3-1"])
def test_a_list_that_is_wrong_blocks_its_device_only(cus: str) -> None:
    taken = take(recorded(f'{{"gpu0":"{cus}","gpu1":"0-1"}}', "bad"))
    assert set(taken.blocked) == {BDF0}
    assert "default/bad" in taken.blocked[BDF0]
    assert taken.masks == {BDF1: 3}


def test_cu_8_of_8_is_told_to_be_out_of_bounds() -> None:
    assert "out of bounds" in take(recorded('{"gpu0":"8"}')).blocked[BDF0]


@pytest.mark.parametrize(
    "text",
    [
        '{"gpu0":',
        '{"gpu0":3}',
        '{"gpu0":{"x":"0"}}',
        '["gpu0"]',
        '{"gpu0":"0","gpu0":"1"}',
        '{"":"0","gpu0":"0"}',
    ],
)
def test_a_record_that_cannot_be_read_blocks_the_devices_it_names(text: str) -> None:
    assert set(take(recorded(text)).blocked) == {BDF0}


def test_an_unreadable_record_that_names_nothing_blocks_what_its_pod_was_given() -> None:
    broken = pod("gpu1,AMDGPU,100,4:;", amd__cu__allocated="???", phase="Running")
    assert set(take(broken).blocked) == {BDF1}


def test_an_unreadable_list_of_devices_blocks_the_devices_it_names() -> None:
    broken = pod("gpu1,AMDGPU,100:;", phase="Running")
    served = replace(broken, annotations={**broken.annotations, VOCABULARY.to_allocate: ";"})
    assert set(take(served).blocked) == {BDF1}


def test_an_unreadable_list_of_which_nothing_was_served_blocks_nobody() -> None:
    taken = take(pod("gpu1,AMDGPU,100:;"))
    assert taken.blocked == {}
    assert "default/p" in taken.warnings[0]


def test_records_that_cannot_be_read_and_name_no_device_here_are_ignored_with_a_warning() -> None:
    broken = pod("other,AMDGPU,100:;", name="q", phase="Running")
    served = replace(broken, annotations={**broken.annotations, VOCABULARY.to_allocate: ";"})
    taken = take(recorded("nonsense"), served)
    assert taken.blocked == {}
    assert taken.warnings == (
        f"{RECORD} of pod default/p cannot be read and names no device of this node, ignored",
        f"{VOCABULARY.allocated} of pod default/q cannot be read and names no device of this node, ignored",
    )


@pytest.mark.parametrize("text", ["", "  ", "{}"])
def test_an_empty_record_holds_nothing(text: str) -> None:
    assert take(recorded(text)) == Taken()


def test_a_device_this_node_does_not_have_is_ignored_with_a_warning() -> None:
    taken = take(recorded('{"other":"0-3","gpu0":"0"}'), pod("other,AMDGPU,1,1:;", name="q"))
    assert taken.masks == {BDF0: 1}
    assert taken.blocked == {}
    assert len(taken.warnings) == 2


@pytest.mark.parametrize(("memory", "cores"), [(0, 0), (16304, 8), (99999, 99), (16304, 0), (0, 8)])
def test_a_whole_entry_holds_all_cus(memory: int, cores: int) -> None:
    taken = take(pod(f"gpu0,AMDGPU,{memory},{cores}:;", phase="Running"))
    assert taken.masks == {BDF0: 0xFF}


@pytest.mark.parametrize(("memory", "cores"), [(4096, 0), (4096, 8), (16304, 4)])
def test_a_sliced_entry_holds_only_what_is_recorded(memory: int, cores: int) -> None:
    assert take(pod(f"gpu0,AMDGPU,{memory},{cores}:;", phase="Running")).masks == {}


def test_the_whole_entry_and_the_record_of_one_pod_do_not_overlap_each_other() -> None:
    both = pod("gpu0,AMDGPU,16304,8:gpu1,AMDGPU,4096,2:;", amd__cu__allocated='{"gpu0":"0-7","gpu1":"0-1"}')
    taken = take(both)
    assert taken.blocked == {}
    assert taken.masks == {BDF0: 0xFF, BDF1: 3}


def test_a_slice_on_a_gpu_that_another_pod_holds_whole_blocks_it() -> None:
    taken = take(pod("gpu0,AMDGPU,16304,8:;", name="whole"), recorded('{"gpu0":"2"}', "slice"))
    assert "CU 2 is held by both default/whole and default/slice" in taken.blocked[BDF0]


def test_of_the_pod_being_served_only_consumed_slots_count() -> None:
    current = pod("gpu0,AMDGPU,0,0:;gpu1,AMDGPU,0,0:;")
    assert take(current, current=current).masks == {}
    half = replace(current, annotations={**current.annotations, VOCABULARY.to_allocate: ";gpu1,AMDGPU,0,0:;"})
    assert take(half, current=half).masks == {BDF0: 0xFF}
    assert take(half, current=None).masks == {BDF0: 0xFF, BDF1: 0xFF}


def test_mode_suffixes_on_recorded_ids_are_ignored() -> None:
    taken = take(recorded('{"gpu0#cpx":"0"}'), pod("gpu1#spx,AMDGPU,0,0:;", name="q"))
    assert taken.masks == {BDF0: 1, BDF1: 0xFF}
    assert taken.warnings == ()


def test_a_partition_holds_its_part_of_the_gpu_in_either_mode() -> None:
    of = inventory(cut_gpu("m", compute="qpx", ways=4, cus=64))
    holder = pod("m-p2,AMD,73728,64:;", phase="Running")
    for settings in (CU, PARTITION):
        taken = rebuild(of, settings, [holder], None)
        assert taken.masks == {"0000:05:00.0": ((1 << 64) - 1) << 128}


@pytest.mark.parametrize("settings", [CU, PARTITION])
def test_who_was_given_partition_0_holds_the_gpu_when_it_is_one_device_again(settings: Settings) -> None:
    of = inventory(cut_gpu("m", compute="spx", ways=1, cus=256))
    first, second = pod("m-p0,AMD,73728,64:;", phase="Running"), pod("m-p1,AMD,73728,64:;", name="q")
    taken = rebuild(of, settings, [first, second], None)
    assert taken.masks == {"0000:05:00.0": (1 << 256) - 1}
    assert taken.blocked == {}
    (ignored,) = taken.warnings
    assert "m-p1, unknown here" in ignored


def test_a_hard_device_is_held_whole_even_when_less_was_asked_for() -> None:
    of = inventory(cut_gpu("m", compute="spx", ways=1, cus=256))
    holder = pod("m,AMD,1024,8:;", phase="Running")
    assert rebuild(of, PARTITION, [holder], None).masks == {"0000:05:00.0": (1 << 256) - 1}
    assert rebuild(of, CU, [holder], None).masks == {}


def test_records_are_written_compact_and_sorted() -> None:
    assert write_record({"b": "0-3", "a": ""}) == '{"a":"","b":"0-3"}'
    assert read_record('{"b":"0-3","a":""}') == {"b": "0-3", "a": ""}


def test_deeply_nested_json_is_unreadable_not_a_crash() -> None:
    with pytest.raises(ValueError):
        read_record("[" * 100_000)


def test_the_keys_are_those_a_scheduler_writes() -> None:
    assert (VOCABULARY.register, VOCABULARY.to_allocate, VOCABULARY.allocated) == (
        "hami.io/node-amd-register",
        "hami.io/amd-devices-to-allocate",
        "hami.io/amd-devices-allocated",
    )


def test_a_record_of_a_partition_counts_from_its_first_cu() -> None:
    of = inventory(cut_gpu("m", compute="qpx", ways=4, cus=64))
    taken = rebuild(of, PARTITION, [recorded('{"m-p2":"0-3","m-p0":"1"}')], None)
    assert taken.masks == {"0000:05:00.0": 0xF << 128 | 2}


def test_a_partition_is_held_whole_even_when_less_was_asked_for() -> None:
    of = inventory(cut_gpu("m", compute="qpx", ways=4, cus=64))
    for settings in (CU, PARTITION):
        taken = rebuild(of, settings, [pod("m-p1,AMD,1024,8:;", phase="Running")], None)
        assert taken.masks == {"0000:05:00.0": ((1 << 64) - 1) << 64}


def test_an_overlap_names_the_lowest_cu_and_the_pod_that_has_it() -> None:
    taken = take(
        recorded('{"gpu0":"0-1"}', "first"),
        recorded('{"gpu0":"3-6"}', "second"),
        recorded('{"gpu0":"4-7"}', "third"),
    )
    assert "CU 4 is held by both default/second and default/third" in taken.blocked[BDF0]


@pytest.mark.parametrize(("memory", "cores"), [(16304, 1), (1, 8), (1, 0), (0, 7)])
def test_one_cu_or_one_mib_is_a_slice(memory: int, cores: int) -> None:
    assert take(pod(f"gpu0,AMDGPU,{memory},{cores}:;", phase="Running")).masks == {}


def test_a_shared_gpu_in_partition_mode_is_held_as_in_cu_mode() -> None:
    slice_ = pod("gpu0,AMDGPU,4096,2:;", phase="Running")
    assert rebuild(two(), PARTITION, [slice_], None).masks == {}


def test_a_list_of_pairs_is_no_record() -> None:
    assert set(take(recorded('[["gpu0","0-3"]]')).blocked) == {BDF0}


def test_a_served_pod_whose_list_is_gone_has_consumed_everything() -> None:
    current = pod("gpu0,AMDGPU,0,0:;")
    bare = replace(current, annotations={VOCABULARY.allocated: "gpu0,AMDGPU,0,0:;"})
    assert take(bare, current=bare).masks == {BDF0: 0xFF}


def test_the_cards_own_memory_is_all_of_it_only_with_all_cus() -> None:
    doubled = replace(CU, memory_scaling=2.0)
    slice_, whole = (pod(f"gpu0,AMDGPU,16304,{cores}:;", phase="Running") for cores in (0, 8))
    assert rebuild(two(), doubled, [slice_], None).masks == {}
    assert rebuild(two(), doubled, [whole], None).masks == {BDF0: 0xFF}
