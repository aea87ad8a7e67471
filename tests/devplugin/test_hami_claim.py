"""Which pod an Allocate serves: amd.md 5.1, 14.5, F.3 (G1, G2), cases.md B31, B40, decisions 16, 17, 40."""

from __future__ import annotations

from dataclasses import replace

import pytest

from devplugin.amd.taken import RECORD, VOCABULARY
from devplugin.hami import ALLOCATING, BIND_PHASE, SUCCESS, Claim, NoClaim, Node, Pod, claim, pod_patch

from .amd.builders import NODE, locked_by, node, pod

ONE = "uuid-a,AMDGPU,4096,25:;"
TWO = "uuid-a,AMDGPU,4096,25:uuid-b,AMDGPU,1,2:;"


def serve(at: Node, pods: list[Pod], count: int = 1) -> Claim:
    return claim(at, pods, VOCABULARY, [f"x#{i}" for i in range(count)])


def test_the_good_pod_is_found_among_those_that_are_not_meant() -> None:
    good = pod(ONE, name="good")
    others = [
        pod(ONE, name="failed", phase="Failed"),
        Pod("default", "bare", "u", NODE, "Pending"),
        pod(ONE, name="no-phase", bind_phase=None),
        pod(ONE, name="done", bind_phase=SUCCESS),
        pod(ONE, name="unbound", bind_time=None),
        pod(ONE, name="unassigned", assigned=None),
        pod(ONE, name="elsewhere", assigned="node-z"),
        pod(ONE, name="running", phase="Running"),
        pod(ONE, name="going", deleting=True),
        pod(";", name="served"),
        pod(TWO, name="larger"),
        replace(pod(ONE, name="foreign"), node="node-z"),
    ]
    found = serve(node(), [*others, good])
    assert found.pod == good
    assert (found.slot, [d.id for d in found.devices]) == (0, ["uuid-a"])


def test_the_oldest_of_several_goes_first() -> None:
    late = pod(ONE, name="a-late", bind_time="1700000200")
    early = pod(ONE, name="z-early", bind_time="1700000100")
    odd = pod(ONE, name="odd", bind_time="soon")
    assert serve(node(), [late, odd, early]).pod == early


def test_the_lock_owner_goes_before_an_older_pod() -> None:
    older = pod(ONE, name="older", bind_time="1")
    owner = pod(ONE, name="owner", bind_time="2")
    assert serve(locked_by(owner), [older, owner]).pod == owner


def test_a_lock_owner_without_a_slot_of_this_size_does_not_hinder_the_other() -> None:
    owner, other = pod(TWO, name="owner"), pod(ONE, name="other")
    assert serve(locked_by(owner), [owner, other]).pod == other


@pytest.mark.parametrize("change", [{"phase": "Failed"}, {"deleting": True}])
def test_a_lock_owner_that_has_ended_or_is_going_is_passed_over(change: dict[str, object]) -> None:
    owner = replace(pod(ONE, name="owner"), **change)
    other = pod(ONE, name="other")
    assert serve(locked_by(owner), [owner, other]).pod == other


def test_a_lock_owner_whose_allocation_failed_is_passed_over() -> None:
    owner, other = pod(ONE, name="owner", bind_phase="failed"), pod(ONE, name="other")
    assert serve(locked_by(owner), [owner, other]).pod == other


def test_a_lock_left_by_a_deleted_pod_does_not_hide_the_pending_one() -> None:
    waiting = pod(ONE)
    assert serve(node("2026-11-30T10:00:00Z,default,gone"), [waiting]).pod == waiting


def test_a_malformed_lock_is_an_error_that_says_what_to_remove() -> None:
    with pytest.raises(NoClaim, match=r"hami.io/mutex.lock.*remove the annotation"):
        serve(node("lock"), [pod(ONE)])


# ------------------------------------------------------------------ slots


def test_the_first_filled_slot_of_the_right_size_is_served_whatever_its_index() -> None:
    waiting = pod(f";{TWO}{ONE}{ONE}")
    assert serve(node(), [waiting]).slot == 2
    assert serve(node(), [waiting], 2).slot == 1


def test_only_the_number_of_kubelets_ids_matters_and_the_annotation_gives_the_order() -> None:
    text = "".join(f"u{i},AMD,100,10:" for i in range(8)) + ";"
    ids = ["u0-17", "u0-6", "u0-2", "u1-1", "u2-1", "u0-13", "u1-6", "u0-10"]
    found = claim(node(), [pod(text)], VOCABULARY, ids)
    assert [device.id for device in found.devices] == [f"u{i}" for i in range(8)]
    assert found.ids == tuple(ids)


def test_another_number_of_ids_is_an_error_that_names_node_pod_and_sizes() -> None:
    with pytest.raises(NoClaim, match=r"node node-a.*slot of 3 device.*default/p: its slots have 2 device"):
        serve(node(), [pod(TWO)], 3)


def test_a_bad_annotation_fails_its_own_allocate_only() -> None:
    bad, good = pod("GARBAGE;", name="bad", bind_time="1"), pod(ONE, name="good")
    assert serve(node(), [bad, good]).pod == good
    with pytest.raises(NoClaim, match="GARBAGE") as caught:
        serve(node(), [bad])
    assert caught.value.pod == bad


def test_a_lock_owner_with_a_bad_annotation_is_the_one_that_fails() -> None:
    bad, good = pod("GARBAGE;", name="bad"), pod(ONE, name="good")
    with pytest.raises(NoClaim) as caught:
        serve(locked_by(bad), [bad, good])
    assert caught.value.pod == bad


def test_of_two_bad_pods_neither_is_blamed_without_a_lock() -> None:
    with pytest.raises(NoClaim) as caught:
        serve(node(), [pod("X;", name="a"), pod("Y;", name="b")])
    assert caught.value.pod is None


def test_a_pod_with_another_nodes_devices_fails_naming_both_nodes_and_the_device() -> None:
    lost = pod(ONE, assigned="node-z")
    with pytest.raises(NoClaim, match=r"'node-z'.*uuid-a.*node-a") as caught:
        serve(locked_by(lost), [lost])
    assert caught.value.pod == lost
    with pytest.raises(NoClaim) as caught:
        serve(node(), [lost])
    assert caught.value.pod == lost


# ------------------------------------------------------------------ the fallback (decision 17)


def test_without_any_waiting_pod_kubelets_own_ids_are_the_claim() -> None:
    found = serve(node(), [pod(";", name="served", bind_phase=SUCCESS)], 2)
    assert found == Claim(ids=("x#0", "x#1"), pod=None, slot=None, devices=())


@pytest.mark.parametrize(
    "waiting",
    [pod(TWO), pod(ONE, deleting=True), pod(ONE, bind_time=None), pod(ONE, phase="Running")],
    ids=["larger", "going", "no bind time", "running"],
)
def test_while_a_pod_waits_there_is_no_fallback(waiting: Pod) -> None:
    with pytest.raises(NoClaim):
        serve(node(), [waiting])


def test_pods_that_were_passed_over_are_told_in_the_fallback() -> None:
    found = serve(node(), [pod(ONE, bind_phase="failed")])
    assert found.pod is None
    assert found.passed_over == ("default/p: bind-phase is 'failed', not allocating",)


def test_a_pod_that_waits_for_another_vendor_does_not_block_the_fallback() -> None:
    foreign = pod(None, Ascend910B4__devices__to__allocate="x,Ascend,1,1:;")
    assert serve(node(), [foreign]).pod is None


# ------------------------------------------------------------------ the pod patch (decisions 19, 40)


def test_the_patch_erases_the_slot_records_and_keeps_the_phase_while_slots_are_left() -> None:
    waiting = pod(f";{ONE}{TWO}")
    patch = pod_patch(serve(node(), [waiting]), VOCABULARY, {RECORD: "{}"})
    assert patch == {VOCABULARY.to_allocate: f";;{TWO}", RECORD: "{}", BIND_PHASE: ALLOCATING}


def test_the_last_slot_makes_it_a_success() -> None:
    patch = pod_patch(serve(node(), [pod(f"{ONE};;")]), VOCABULARY, {})
    assert patch == {VOCABULARY.to_allocate: ";;;", BIND_PHASE: SUCCESS}


def test_a_slot_of_another_vendor_keeps_it_allocating() -> None:
    waiting = pod(ONE, vgpu__devices__to__allocate=";GPU-1,NVIDIA,1,1:;")
    assert pod_patch(serve(node(), [waiting]), VOCABULARY, {})[BIND_PHASE] == ALLOCATING


def test_two_containers_of_one_pod_are_served_one_after_the_other() -> None:
    """amd.md 14.5: sidecar, gpu1, gpu2."""
    text = ";uuid-a,AMDGPU,1,1:;;uuid-b,AMDGPU,1,1:;"
    first = serve(node(), [pod(text)])
    assert [d.id for d in first.devices] == ["uuid-a"]
    erased = pod_patch(first, VOCABULARY, {})[VOCABULARY.to_allocate]
    second = serve(node(), [pod(erased)])
    assert [d.id for d in second.devices] == ["uuid-b"]
    assert pod_patch(second, VOCABULARY, {})[BIND_PHASE] == SUCCESS


def test_a_slot_beyond_the_pods_containers_is_served_without_a_crash() -> None:
    """Init containers shift slots (B35): the index is never used to name a container."""
    waiting = replace(pod(f";{ONE}"), containers=("only",))
    assert serve(node(), [waiting]).slot == 1
