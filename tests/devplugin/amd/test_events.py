"""Events about the node's GPUs: amd.md 10 and 14.9 (the sequence), decisions 10 and 33."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devplugin.amd.events import Seen, changed_in_use, transitions
from devplugin.amd.inventory import Gpu, Standing
from devplugin.amd.registration import annotation
from devplugin.amd.settings import Settings
from devplugin.amd.taken import RECORD, VOCABULARY
from devplugin.amd.uuid import partition_id
from devplugin.answers import NodeEvent
from devplugin.hami import Pod

from .builders import CU, NODE, PARTITION, cut_gpu, inventory, soft_gpu

UUID = "c6ff75a3-0000-1000-802a-c130ee448403"
OTHER = "c7ff75a3-0000-1000-802a-c130ee448404"


def sick(gpu: Gpu) -> Gpu:
    return replace(gpu, healthy=False)


A = soft_gpu("gpu-a", render=131, card=3)
B = soft_gpu("gpu-b", render=132, card=4)


class Registrations:
    """One registration after the other."""

    def __init__(self, settings: Settings = CU) -> None:
        self.settings = settings
        self.seen: Seen | None = None

    def next(self, *gpus: Gpu, **more: Any) -> list[str]:
        events, self.seen = transitions(replace(inventory(*gpus), **more), self.settings, self.seen)
        self.last = events
        return [event.reason.removeprefix("AMDGPU") for event in events]


def test_the_sequence_of_the_specification() -> None:
    told = Registrations()
    assert told.next(A, B) == []
    assert told.next(A, B) == []
    assert told.next(sick(A), B) == ["Unhealthy"]
    assert told.next(sick(A), B) == []
    assert told.next(A, B) == ["Recovered"]
    assert told.next(A) == ["Missing"]
    assert told.next(A) == []
    assert told.next(A, B) == ["Recovered"]
    assert told.next(A) == ["Missing"]
    assert told.next(A, sick(B)) == ["Unhealthy"]
    assert told.next(A, B) == ["Recovered"]


def test_messages_name_index_address_and_id_and_types_are_the_specifications() -> None:
    told = Registrations()
    told.next(A, B)
    told.next(sick(A), health={A.bdf: Standing(healthy=False, reason="/dev/dri/renderD131: EIO")})
    assert told.last == (
        NodeEvent(
            "Warning", "AMDGPUUnhealthy", f"GPU 3 {A.bdf} (gpu-a) is unhealthy: /dev/dri/renderD131: EIO"
        ),
        NodeEvent("Warning", "AMDGPUMissing", f"GPU 4 {B.bdf} (gpu-b) is missing"),
    )
    told.next(A, B)
    assert [(event.type, event.reason) for event in told.last] == [("Normal", "AMDGPURecovered")] * 2


def test_what_was_sick_from_the_start_is_no_news_until_it_recovers() -> None:
    told = Registrations()
    assert told.next(sick(A)) == []
    assert told.next(sick(A)) == []
    assert told.next(A) == ["Recovered"]


def test_a_new_device_is_news_only_when_it_is_sick() -> None:
    told = Registrations()
    told.next()
    assert told.next(A) == []
    assert told.next(A, sick(B)) == ["Unhealthy"]


def test_each_partition_of_a_sick_gpu_is_told_in_the_order_of_ids() -> None:
    told = Registrations(PARTITION)
    gpu = cut_gpu(UUID, compute="qpx", ways=4)
    told.next(gpu)
    assert told.next(sick(gpu)) == ["Unhealthy"] * 4
    ids = [event.message.partition("(")[2].partition(")")[0] for event in told.last]
    assert ids == sorted(gpu.ids)


def test_a_gpu_that_was_switched_is_not_missing() -> None:
    told = Registrations(PARTITION)
    whole, cut = cut_gpu(UUID, compute="spx", ways=1), cut_gpu(UUID, compute="qpx", ways=4)
    told.next(whole)
    assert told.next(cut) == []
    assert told.next(whole) == []


def test_a_partition_that_kfd_no_longer_lists_is_missing_though_its_gpu_is_there() -> None:
    told = Registrations(PARTITION)
    told.next(cut_gpu(UUID, compute="qpx", ways=4))
    assert told.next(cut_gpu(UUID, compute="qpx", ways=4, listed=3)) == ["Missing"]
    assert told.next(cut_gpu(UUID, compute="qpx", ways=4)) == ["Recovered"]


STATES = st.lists(st.lists(st.sampled_from(["gone", "fine", "sick"]), min_size=3, max_size=3), max_size=12)


@given(STATES)
def test_events_alone_tell_the_state_of_every_device_that_ever_changed(histories: list[list[str]]) -> None:
    """Who believes the events knows after each registration what is wrong, and is told nothing twice."""
    gpus = [soft_gpu(f"gpu-{n}", render=128 + n) for n in range(3)]
    told = Registrations()
    believed: dict[str, str] = {}
    known: set[str] = set()
    for turn, states in enumerate(histories):
        there = [sick(g) if s == "sick" else g for g, s in zip(gpus, states, strict=True) if s != "gone"]
        told.next(*there)
        for event in told.last:
            name = event.message.partition("(")[2].partition(")")[0]
            assert believed.get(name) != event.reason
            believed[name] = event.reason
        for gpu, state in zip(gpus, states, strict=True):
            if turn == 0 and state != "fine":
                believed[gpu.id] = "baseline"
            known |= {gpu.id} if state != "gone" else set()
            expected = {"sick": "AMDGPUUnhealthy", "gone": "AMDGPUMissing", "fine": "AMDGPURecovered"}[state]
            if believed.get(gpu.id, "baseline") != "baseline" and gpu.id in known:
                assert believed[gpu.id] == expected


# A mode that changed in use


def holder(name: str, *ids: str, phase: str = "Running", **annotations: str) -> Pod:
    text = "".join(f"{one},AMD,1024,16:" for one in ids) + ";" if ids else ""
    return Pod("ns", name, f"uid-{name}", NODE, phase, {VOCABULARY.allocated: text, **annotations})


def registered(*gpus: Gpu, settings: Settings = PARTITION) -> str:
    return annotation(inventory(*gpus), settings)


SPX, QPX = cut_gpu(UUID, compute="spx", ways=1), cut_gpu(UUID, compute="qpx", ways=4)
SPX = replace(SPX, ids=(UUID,))
QPX = replace(QPX, ids=tuple(partition_id(UUID, number) for number in range(4)))
STEADY = replace(
    cut_gpu(OTHER, compute="spx", ways=1, bdf="0000:15:00.0", first_render=136, first_node=9), ids=(OTHER,)
)


def test_a_mode_that_changed_under_its_pods_is_one_warning_that_names_them() -> None:
    pods = [
        holder("a", UUID),
        holder("b", OTHER),
        holder("c", UUID, phase="Pending"),
        holder("d", UUID, phase="Failed"),
    ]
    (event,) = changed_in_use(inventory(QPX, STEADY), PARTITION, registered(SPX, STEADY), pods)
    assert (event.type, event.reason) == ("Warning", "AMDGPUModeChangedInUse")
    assert event.name == f"{NODE}.amdgpumodechangedinuse.{UUID}"
    assert event.name == event.name.lower()
    assert "from spx to qpx while in use by ns/a, ns/c;" in event.message
    assert f"GPU 1 {SPX.bdf} ({UUID})" in event.message


@pytest.mark.parametrize(
    ("pod", "holds"),
    [
        (holder("p", QPX.ids[3]), True),
        (holder("p", f"{UUID}#spx"), True),
        (holder("p", **{RECORD: f'{{"{UUID}":"0-3"}}'}), True),
        (holder("p", **{RECORD: f'{{"{UUID}": broken'}), True),
        (holder("p", OTHER), False),
        (holder("p"), False),
        (holder("p", UUID, phase="Succeeded"), False),
    ],
)
def test_who_holds_a_gpu_is_read_from_either_record_in_any_spelling(pod: Pod, holds: bool) -> None:
    events = changed_in_use(inventory(SPX), PARTITION, registered(QPX), [pod])
    assert len(events) == holds


def test_a_change_of_the_operating_mode_is_a_change() -> None:
    soft = registered(SPX, settings=CU)
    (event,) = changed_in_use(inventory(SPX), PARTITION, soft, [holder("a", UUID)])
    assert "from cu to spx" in event.message
    assert changed_in_use(inventory(SPX), CU, soft, [holder("a", UUID)]) == ()


def test_nothing_changed_nobody_there_or_a_gpu_that_left_is_no_event() -> None:
    pods = [holder("a", UUID)]
    assert changed_in_use(inventory(QPX), PARTITION, registered(QPX), pods) == ()
    assert changed_in_use(inventory(QPX), PARTITION, registered(SPX), []) == ()
    assert changed_in_use(inventory(STEADY), PARTITION, registered(SPX), pods) == ()
    assert changed_in_use(inventory(QPX), PARTITION, registered(STEADY), pods) == ()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        "[1]",
        "[{}]",
        '[{"id": 1}]',
        '[{"id":"x","mode":"\n"}]',
        "[" * 100_000,
        "null",
    ],
)
def test_an_annotation_that_makes_no_sense_says_nothing(text: str) -> None:
    assert changed_in_use(inventory(QPX), PARTITION, text, [holder("a", UUID)]) == ()


def test_of_very_many_pods_ten_are_named_and_the_rest_counted() -> None:
    pods = [holder(f"p{number}", UUID) for number in range(300)]
    (event,) = changed_in_use(inventory(QPX), PARTITION, registered(SPX), pods)
    assert "and 290 more" in event.message


def test_the_registration_is_what_is_compared_and_nothing_else_of_it() -> None:
    entries = json.loads(registered(SPX))
    for entry in entries:
        entry |= {"health": False, "devmem": 1, "custominfo": None}
    assert changed_in_use(inventory(SPX), PARTITION, json.dumps(entries), [holder("a", UUID)]) == ()
