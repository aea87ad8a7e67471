"""One Allocate as a whole: amd.md 5.7, 5.9 and 14.4's lock cases, cases.md B40, decisions 16, 17, 19, 23."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from devplugin.amd.inventory import Inventory
from devplugin.amd.settings import Settings
from devplugin.amd.taken import RECORD, VOCABULARY
from devplugin.amd.vendor import Amd
from devplugin.answers import FactRequest
from devplugin.hami import ALLOCATING, BIND_PHASE, FAILED, LOCK, SUCCESS, Node, Pod
from devplugin.plan import Denied, Granted, Needs, plan

from .amd.builders import CU, PARTITION, cut_gpu, inventory, locked_by, node, pod, soft_gpu

GPU = inventory(soft_gpu("uuid-a", cus=32))
HOOK = FactRequest("file", "/usr/local/vgpu/libamvgpu.so")
THERE = {HOOK: True}
SLICE = "uuid-a,AMDGPU,4096,16:;"
WHOLE = "uuid-a,AMDGPU,16304,32:;"


def decide(
    at: Node,
    pods: Sequence[Pod],
    count: int = 1,
    facts: dict[FactRequest, Any] | None = None,
    of: Inventory = GPU,
    settings: Settings = CU,
    ids: Sequence[str] = (),
) -> Needs | Granted | Denied:
    return plan(
        Amd(),
        of,
        settings,
        node=at,
        pods=pods,
        ids=ids or [f"0000:03:00.0#{i}" for i in range(count)],
        facts=THERE if facts is None else facts,
    )


def test_a_slice_asks_for_the_hook_first_and_is_granted_with_one_patch() -> None:
    owner = pod(SLICE)
    first = decide(locked_by(owner), [owner], facts={})
    assert first == Needs((HOOK,))
    second = decide(locked_by(owner), [owner])
    assert isinstance(second, Granted)
    assert second.patch == {VOCABULARY.to_allocate: ";", RECORD: '{"uuid-a":"0-15"}', BIND_PHASE: SUCCESS}
    assert second.release


def test_a_whole_gpu_needs_no_lock() -> None:
    granted = decide(node(), [pod(WHOLE)])
    assert isinstance(granted, Granted)
    assert granted.patch == {VOCABULARY.to_allocate: ";", BIND_PHASE: SUCCESS}


def test_a_slice_without_the_lock_is_denied_and_nothing_is_recorded() -> None:
    denied = decide(node(), [pod(SLICE)])
    assert isinstance(denied, Denied)
    assert "lock does not belong to pod default/p" in denied.reason
    assert denied.patch == {BIND_PHASE: FAILED}


@pytest.mark.parametrize(
    ("lock", "who"),
    [
        (None, "nobody holds it"),
        ("2026-01-02T03:04:05Z,other,pod-9", "pod other/pod-9 holds it since 2026-01-02T03:04:05Z"),
        ("2026-01-02T03:04:05Z", "it was taken at 2026-01-02T03:04:05Z and names no pod"),
    ],
)
def test_who_lacks_the_lock_is_told_who_holds_it(lock: str | None, who: str) -> None:
    bare = node()
    held = replace(bare, annotations={**bare.annotations, **({} if lock is None else {LOCK: lock})})
    denied = decide(held, [pod(SLICE)])
    assert isinstance(denied, Denied)
    assert f"does not belong to pod default/p ({who}" in denied.reason


def test_a_memory_only_slice_records_nothing_and_needs_no_lock() -> None:
    assert isinstance(decide(node(), [pod("uuid-a,AMDGPU,4096,0:;")]), Granted)


def test_the_lock_stays_while_a_slot_is_left() -> None:
    owner = pod(f"{WHOLE}uuid-a,AMDGPU,1,1:uuid-z,AMDGPU,1,1:;")
    granted = decide(locked_by(owner), [owner])
    assert isinstance(granted, Granted)
    assert not granted.release
    assert granted.patch[BIND_PHASE] == ALLOCATING


def test_a_refusal_marks_the_pod_failed_releases_its_lock_and_tells_people_why() -> None:
    owner = pod(SLICE)
    denied = decide(locked_by(owner), [owner], facts={HOOK: False})
    assert isinstance(denied, Denied)
    assert denied.pod == owner
    assert denied.patch == {BIND_PHASE: FAILED}
    assert denied.release
    assert denied.event is not None
    assert (denied.event.type, denied.event.pod, denied.event.uid) == ("Warning", "p", owner.uid)
    assert denied.reason.startswith("node node-a: ")
    assert "libamvgpu.so" in denied.event.message


def test_a_pod_with_another_nodes_device_is_denied_naming_both_nodes_and_the_device() -> None:
    lost = pod("uuid-z,AMDGPU,1,1:;", assigned="node-z")
    denied = decide(locked_by(lost), [lost])
    assert isinstance(denied, Denied)
    assert all(word in denied.reason for word in ("node-a", "node-z", "uuid-z"))
    assert denied.patch == {BIND_PHASE: FAILED}
    assert denied.release


def test_a_bad_annotation_fails_its_pod_and_no_other() -> None:
    bad, good = pod("uuid-a,AMDGPU,x,1:;", name="bad"), pod(WHOLE, name="good")
    denied = decide(locked_by(bad), [bad, good])
    assert isinstance(denied, Denied)
    assert denied.pod == bad
    granted = decide(locked_by(good), [bad, good])
    assert isinstance(granted, Granted)
    assert granted.claim.pod == good


def test_a_soft_id_that_no_pod_waits_for_is_denied_without_touching_anybody() -> None:
    denied = decide(node(), [])
    assert isinstance(denied, Denied)
    assert (denied.pod, denied.patch, denied.event, denied.release) == (None, None, None, False)


def test_a_hard_id_that_no_pod_waits_for_is_granted_without_any_patch() -> None:
    of = inventory(cut_gpu("m", compute="qpx", ways=4))
    granted = decide(node(), [], of=of, settings=PARTITION, ids=["amdgpu_xcp_0#qpx"])
    assert isinstance(granted, Granted)
    assert granted.patch == {}
    assert not granted.release


def test_the_lock_of_a_pod_of_the_same_name_elsewhere_is_not_ours() -> None:
    owner = pod(SLICE)
    stranger = replace(owner, namespace="other", uid="u2")
    assert isinstance(decide(locked_by(stranger), [owner]), Denied)
