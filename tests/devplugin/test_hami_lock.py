"""The node lock and the sweep: ascend_ppu_hami.md D.7 and F.3 (L5, L8, G3), decision 19."""

from __future__ import annotations

from dataclasses import replace

import pytest

from devplugin.hami import (
    FAILED,
    SUCCESS,
    Lock,
    LockError,
    PhaseMark,
    lock_of,
    may_release,
    owner_of,
    owns,
    parse_lock,
    sweep,
)

from .amd.builders import locked_by, node, pod

SLOT = "uuid-a,AMDGPU,4096,25:;"
TIME = "2026-07-03T15:35:10+08:00"


def test_a_lock_has_a_time_and_an_owner() -> None:
    assert parse_lock("2026-07-03T07:35:10.123456789Z,ns,p-0.x").name == "p-0.x"
    lock = parse_lock(f"{TIME},ns,p")
    assert lock == Lock(TIME, "ns", "p")
    assert lock.owned


@pytest.mark.parametrize("value", [TIME, "2026-07-03T07:35:10Z", f"{TIME},,"])
def test_a_legacy_lock_or_one_with_empty_names_has_no_owner(value: str) -> None:
    assert not parse_lock(value).owned
    assert owner_of(node(value)) is None


@pytest.mark.parametrize(
    "value",
    [
        "lock",
        "",
        f"{TIME},ns",
        f"{TIME},a,b,c",
        "yesterday,ns,p",
        "a,b",
        "20260703,ns,p",
        "2026-07-03T99:35:10Z,ns,p",
        f"{TIME},..,p",
        f"{TIME},ns,p/status",
        f"{TIME},ns,p\n",
    ],
)
def test_a_malformed_lock_is_an_error_and_names_no_owner(value: str) -> None:
    with pytest.raises(LockError, match="malformed"):
        parse_lock(value)
    assert owner_of(node(value)) is None


def test_without_the_annotation_there_is_no_lock() -> None:
    assert lock_of(node()) is None
    assert owner_of(node()) is None


def test_ownership_is_the_suffix_so_a_new_time_changes_nothing() -> None:
    ours = pod(name="p", namespace="ns")
    assert owns(node(f"{TIME},ns,p"), ours)
    assert owns(node("2030-01-01T00:00:00Z,ns,p"), ours)
    assert not owns(node(f"{TIME},ns,other-p"), ours)
    assert not owns(node(f"{TIME},other,p"), ours)
    assert not owns(node(), ours)


@pytest.mark.parametrize(
    ("value", "released"),
    [(None, False), (f"{TIME},ns,other", False), (f"{TIME},ns,p", True), (TIME, True), ("garbage", False)],
)
def test_only_our_own_or_a_legacy_lock_may_be_released(value: str | None, released: bool) -> None:
    assert may_release(node(value), pod(name="p", namespace="ns")) is released


# ------------------------------------------------------------------ the sweep


def test_a_lock_whose_owner_is_gone_is_released() -> None:
    result = sweep(node(f"{TIME},ns,gone"), None, ())
    assert result.release
    assert "ns/gone is gone" in result.why


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_lock_whose_owner_has_ended_is_released_and_the_owner_marked_failed(phase: str) -> None:
    owner = pod(SLOT, phase=phase)
    result = sweep(locked_by(owner), owner, [owner])
    assert result.release
    assert result.marks == (PhaseMark(owner, FAILED),)


def test_an_owner_that_has_got_everything_is_marked_success_and_the_lock_released() -> None:
    owner = pod(";;")
    result = sweep(locked_by(owner), owner, [owner])
    assert result.release
    assert result.marks == (PhaseMark(owner, SUCCESS),)


def test_an_owner_with_a_slot_left_keeps_its_lock() -> None:
    owner = pod(f";{SLOT}")
    result = sweep(locked_by(owner), owner, [owner])
    assert not result.release
    assert result.marks == ()


def test_an_owner_with_a_slot_of_another_vendor_left_keeps_its_lock() -> None:
    owner = pod(";", Ascend910B4__devices__to__allocate="x,Ascend,1,1:;")
    assert not sweep(locked_by(owner), owner, [owner]).release


def test_an_owner_that_is_not_bound_yet_keeps_its_lock() -> None:
    """The scheduler locks before it binds: such a pod is in no list of the node's pods."""
    owner = replace(pod(SLOT, bind_phase=None), node="")
    result = sweep(locked_by(owner), owner, ())
    assert not result.release
    assert result.marks == ()


@pytest.mark.parametrize("value", [None, TIME, "garbage"])
def test_no_lock_a_legacy_one_and_a_malformed_one_are_left_alone(value: str | None) -> None:
    assert not sweep(node(value), None, ()).release


def test_an_ended_pod_does_not_stay_allocating_even_when_another_holds_the_lock() -> None:
    owner, dead = pod(SLOT, name="owner"), pod(SLOT, name="dead", phase="Failed")
    result = sweep(locked_by(owner), owner, [owner, dead])
    assert not result.release
    assert result.marks == (PhaseMark(dead, FAILED),)


def test_a_living_pod_without_slots_does_not_stay_allocating_without_a_lock() -> None:
    served = pod(";")
    assert sweep(node(), None, [served]).marks == (PhaseMark(served, SUCCESS),)


def test_a_phase_that_was_set_is_not_set_again() -> None:
    ended = pod(";", phase="Succeeded", bind_phase=SUCCESS)
    result = sweep(locked_by(ended), ended, [ended])
    assert result.release
    assert result.marks == ()
