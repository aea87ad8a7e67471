"""The directories of soft containers: their names, their birth and their end (A.7, decision 44)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devplugin import containerdirs
from devplugin.containerdirs import GRACE, Owner
from devplugin.deeds import carry_out
from devplugin.hami import Pod
from devplugin.linux import LinuxHost
from gpusim.fixture import load
from gpusim.machine import Machine

from .npupods import NODE, SOFT

ROOT = SOFT.containers


def machine(*names: str) -> Any:
    made: Any = Machine(load("ascend/910b4"))
    for name in names:
        made.mkdir(f"{ROOT}/{name}")
    return made


def pod(uid: str, phase: str = "Running") -> Pod:
    return Pod("ns", uid, uid, NODE, phase)


def sweep(
    host: Any, pods: Sequence[Pod], gone: Mapping[str, float], now: float
) -> tuple[list[str], dict[str, float]]:
    removed, waiting = containerdirs.leftovers(host, SOFT.containers, pods, gone, now)
    return [deed.path.removeprefix(f"{ROOT}/") for deed in removed], waiting


@given(
    st.from_regex(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", fullmatch=True),
    st.from_regex(r"[a-z]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True),
    st.integers(0, 99),
)
def test_a_directorys_name_says_whose_it_is_also_when_it_was_moved_aside(
    uid: str, container: str, number: int
) -> None:
    name = containerdirs.directory(SOFT.containers, uid, container).removeprefix(f"{ROOT}/")
    assert containerdirs.owner(name) == Owner(uid, container)
    assert containerdirs.owner(f"{name}.stale-{number}") == Owner(uid, container, stale=True)


@given(st.text(max_size=30), st.text(max_size=30))
def test_no_uid_or_container_name_leads_out_of_the_directory(uid: str, container: str) -> None:
    """Decision 25."""
    try:
        path = containerdirs.directory(SOFT.containers, uid, container)
    except ValueError as error:
        assert str(error).isascii()
        return
    rest = path.removeprefix(f"{ROOT}/")
    assert path.startswith(f"{ROOT}/")
    assert "/" not in rest
    assert not rest.startswith(".")


@pytest.mark.parametrize(
    "name", ["", "_", "uid", "uid_", "_c", "uid_C", "uid_c.stale-", "uid_c.old", ".uid_c", "u/v_c"]
)
def test_what_is_not_named_like_ours_is_not_ours(name: str) -> None:
    assert containerdirs.owner(name) is None


def test_a_slots_container_is_counted_from_the_init_containers_and_may_not_exist() -> None:
    one = replace(pod("u"), init_containers=("i",), containers=("a", "b"))
    assert [containerdirs.container(one, slot) for slot in (0, 1, 2, 3, -1, None)] == [
        "i",
        "a",
        "b",
        None,
        None,
        None,
    ]


def test_a_fresh_directory_is_empty_and_open_and_what_was_there_stays_readable(tmp_path: Path) -> None:
    host = LinuxHost(str(tmp_path))
    for content in ("one", "two", "three"):
        for deed in containerdirs.fresh("/c/uid_main"):
            carry_out(host, deed)
        assert host.list("/c/uid_main") == []
        assert host.stat("/c/uid_main").mode == 0o777
        (tmp_path / "c" / "uid_main" / "vnpu_local_shmem").write_text(content)
    assert host.list("/c") == ["uid_main", "uid_main.stale-1", "uid_main.stale-2"]
    assert host.read("/c/uid_main.stale-2/vnpu_local_shmem") == b"two"


def test_a_living_pods_directory_stays_and_so_do_those_moved_aside_for_it() -> None:
    host = machine("u1_main", "u1_main.stale-1")
    gone: dict[str, float] = {}
    for now in (0.0, GRACE, 10 * GRACE):
        removed, gone = sweep(host, [pod("u1"), pod("u2", "Pending")], gone, now)
        assert (removed, gone) == ([], {})


@pytest.mark.parametrize(
    "pods", [[], [pod("u1", "Succeeded")], [pod("u1", "Failed")]], ids=["gone", "done", "failed"]
)
def test_a_directory_goes_when_its_pod_has_been_gone_for_the_grace_period(pods: list[Pod]) -> None:
    """B.8 public monitors delete one the list does not know yet: the grace period is for those."""
    host = machine("u1_main", "u1_main.stale-1")
    removed, gone = sweep(host, pods, {}, 100.0)
    assert removed == []
    removed, gone = sweep(host, pods, gone, 100.0 + GRACE - 1)
    assert removed == []
    removed, gone = sweep(host, pods, gone, 100.0 + GRACE)
    assert removed == ["u1_main", "u1_main.stale-1"]


def test_a_directory_whose_pod_shows_up_begins_anew() -> None:
    host = machine("u1_main")
    _, gone = sweep(host, [], {}, 0.0)
    _, gone = sweep(host, [pod("u1")], gone, GRACE - 1)
    removed, gone = sweep(host, [], gone, GRACE)
    assert removed == []
    assert gone == {"u1_main": GRACE}


def test_a_directory_that_could_not_be_removed_is_tried_again() -> None:
    host = machine("u1_main")
    _, gone = sweep(host, [], {}, 0.0)
    for now in (GRACE, GRACE + 60):
        removed, gone = sweep(host, [], gone, now)
        assert removed == ["u1_main"]


def test_what_a_removed_directory_held_goes_with_it() -> None:
    host = machine("u1_main")
    host.put(f"{ROOT}/u1_main/vnpu_local_shmem", b"1")
    removed, _ = containerdirs.leftovers(host, SOFT.containers, [], {"u1_main": 0.0}, GRACE)
    for deed in removed:
        carry_out(cast("Any", host), deed)
    assert host.list(ROOT) == []


def test_a_name_that_is_none_of_ours_is_left_alone() -> None:
    host = machine("lost+found", "notes")
    assert sweep(host, [], {"notes": 0.0}, 10 * GRACE) == ([], {})


def test_before_the_first_soft_pod_there_is_nothing_to_sweep() -> None:
    assert sweep(machine(), [], {}, 0.0) == ([], {})
