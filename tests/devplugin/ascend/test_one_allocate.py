"""One Allocate of an Ascend pod from kubelet's ids to the pod's patch, through `devplugin.plan`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from devplugin.ascend.runtimeinfo import vocabulary
from devplugin.ascend.vendor import Ascend
from devplugin.hami import BIND_PHASE, LOCK, Node, Pod
from devplugin.plan import Denied, Granted, Needs, plan

from .npupods import HARD, NODE, P3, SOFT, SOFT_POD, device, entry, node, pod

TO_ALLOCATE = vocabulary(P3.word).to_allocate


def locked_by(owner: Pod | None) -> Node:
    lock = {} if owner is None else {LOCK: f"2026-07-03T15:35:10Z,{owner.namespace},{owner.name}"}
    return Node(NODE, "node-uid", lock)


def decide(pods: tuple[Pod, ...], owner: Pod | None, ids: int = 1, *, soft: bool = False) -> Granted | Denied:
    settings = SOFT if soft else HARD
    asked = plan(
        Ascend(),
        node(),
        settings,
        node=locked_by(owner),
        pods=pods,
        ids=[f"uuid7-{i}" for i in range(ids)],
        facts={},
    )
    if not isinstance(asked, Needs):
        return asked
    answered = plan(
        Ascend(),
        node(),
        settings,
        node=locked_by(owner),
        pods=pods,
        ids=[f"uuid7-{i}" for i in range(ids)],
        facts=dict.fromkeys(asked.requests, True),
    )
    assert not isinstance(answered, Needs)
    return answered


def slice_of(name: str, uuid: str, template: str, memory: int, bound: str = "1700000000") -> Pod:
    made = pod([[device(uuid, memory)]], [entry(uuid, template, memory)], name=name, uid=f"uid-{name}")
    return replace(made, annotations={**made.annotations, "hami.io/bind-time": bound})


def given(answer: Granted | Denied) -> dict[str, str]:
    assert isinstance(answer, Granted), answer
    return dict(answer.allocation.edits.envs)


def test_two_pods_created_together_get_their_own_templates() -> None:
    """G 1: the lock says whose turn it is, whatever kubelet's ids and the pods' order."""
    one, two = slice_of("one", "uuid0", "vir01", 3072), slice_of("two", "uuid1", "vir04", 12288)
    for pods in ((one, two), (two, one)):
        assert given(decide(pods, one)) == {"ASCEND_VISIBLE_DEVICES": "0", "ASCEND_VNPU_SPECS": "vir01"}
        assert given(decide(pods, two)) == {"ASCEND_VISIBLE_DEVICES": "1", "ASCEND_VNPU_SPECS": "vir04"}


def test_without_a_lock_the_pod_bound_first_is_served_first() -> None:
    late = slice_of("a-late", "uuid0", "vir01", 3072, "1700000009")
    early = slice_of("b-early", "uuid1", "vir02", 6144, "1700000001")
    assert given(decide((late, early), None))["ASCEND_VNPU_SPECS"] == "vir02"


def test_the_lock_is_kept_until_the_last_container_has_its_card() -> None:
    """P17, the rule the library states: public plugins release after the first Allocate."""
    both = pod(
        [[device("uuid0", 3072)], [device("uuid1", 6144)]],
        [entry("uuid0", "vir01", 3072), entry("uuid1", "vir02", 6144)],
    )
    first = decide((both,), both)
    assert isinstance(first, Granted)
    assert (first.patch[BIND_PHASE], first.release) == ("allocating", False)
    after = {key: value for key, value in first.patch.items() if value is not None}
    served = replace(both, annotations={**both.annotations, **after})
    second = decide((served,), served)
    assert given(second) == {"ASCEND_VISIBLE_DEVICES": "1", "ASCEND_VNPU_SPECS": "vir02"}
    assert isinstance(second, Granted)
    assert (second.patch[BIND_PHASE], second.release) == ("success", True)
    assert second.patch[TO_ALLOCATE] == ";;"


def test_containers_are_popped_in_order_and_then_there_is_none() -> None:
    """P15 and P16."""
    both = pod(
        [[device("uuid0", 3072)], [device("uuid1", 3072)]], [entry("uuid0", "vir01"), entry("uuid1", "vir01")]
    )
    served, seen = both, []
    for _ in range(2):
        answer = decide((served,), served)
        seen.append(given(answer)["ASCEND_VISIBLE_DEVICES"])
        assert isinstance(answer, Granted)
        after = {key: value for key, value in answer.patch.items() if value is not None}
        served = replace(served, annotations={**served.annotations, **after})
    assert seen == ["0", "1"]
    third = decide((served,), served)
    assert isinstance(third, Denied)
    assert "no slot left" in third.reason


def test_a_success_of_ascend_waits_for_the_other_vendors_slots() -> None:
    """Decision 40."""
    made = slice_of("p", "uuid0", "vir01", 3072)
    mixed = {**made.annotations, "hami.io/amd-devices-to-allocate": "gpu,AMD,1,1:;"}
    answer = decide((replace(made, annotations=mixed),), made)
    assert isinstance(answer, Granted)
    assert (answer.patch[BIND_PHASE], answer.release) == ("allocating", False)


def test_a_request_of_another_size_than_the_slots_is_refused() -> None:
    """P4."""
    made = pod([[device("uuid0", 21527), device("uuid1", 21527)]], [entry("uuid0"), entry("uuid1")])
    answer = decide((made,), made, ids=1)
    assert isinstance(answer, Denied)
    assert "device number not matched" in answer.reason


def test_a_refused_pod_is_marked_failed_and_its_lock_may_go() -> None:
    made = pod([[device("uuid0", 3072)]], "not json")
    answer = decide((made,), made)
    assert isinstance(answer, Denied)
    assert answer.patch == {BIND_PHASE: "failed"}
    assert answer.release
    assert answer.event is not None
    assert answer.reason.startswith(f"node {NODE}: pod ns/p: ")


@pytest.mark.parametrize("text", ["uuid,type,100:;", "garbage:;", "a,b,c,d:;"])
def test_a_slot_that_cannot_be_read_fails_its_pod(text: str) -> None:
    """C6."""
    made = pod([[device("uuid0", 3072)]], [entry("uuid0", "vir01")], annotations={TO_ALLOCATE: text})
    answer = decide((made,), made)
    assert isinstance(answer, Denied)
    assert answer.pod == made


def test_a_soft_pod_asks_for_the_library_first() -> None:
    made = pod([[device("uuid0", 8192)]], [entry("uuid0")], annotations=SOFT_POD)
    assert given(decide((made,), made, soft=True))["NPU_MEM_QUOTA"] == "8192"
