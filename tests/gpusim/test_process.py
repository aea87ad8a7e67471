"""Processes hold files, device rules allow exactly what they say, and nothing is numbered twice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusim.errors import GpusimError
from gpusim.process import FIRST_PID, DeviceRule, DeviceRules, Processes

NUMBERS = st.one_of(st.none(), st.integers(0, 3))
RULES = st.builds(
    DeviceRule,
    NUMBERS,
    NUMBERS,
    st.sets(st.sampled_from("rwm"), min_size=1).map(lambda letters: "".join(sorted(letters))),
)


# Device rules


def test_no_rule_allows_nothing() -> None:
    assert not DeviceRules().allows(226, 128, "r")


def test_a_rule_with_stars_allows_every_number() -> None:
    rules = DeviceRules.parse("c 226:* rw", "c *:0 m")
    assert rules.allows(226, 999, "rw")
    assert rules.allows(7, 0, "m")
    assert not rules.allows(226, 999, "m")
    assert DeviceRules.parse("a").allows(1, 2, "rwm")


def test_two_rules_that_give_half_each_do_not_add_up() -> None:
    rules = DeviceRules.parse("c 226:128 r", "c 226:128 w")
    assert rules.allows(226, 128, "r")
    assert rules.allows(226, 128, "w")
    assert not rules.allows(226, 128, "rw")


def test_only_gives_read_and_write_on_these_devices_and_no_mknod() -> None:
    rules = DeviceRules.only((226, 128), (235, 0))
    assert rules.allows(235, 0, "rw")
    assert not rules.allows(226, 128, "m")
    assert not rules.allows(226, 129, "r")


@pytest.mark.parametrize(
    "line",
    [
        "",
        "c",
        "c 226:128",
        "b 8:0 rw",
        "c 226 rw",
        "c 1:2:3 rw",
        "c x:1 r",
        "c 1:-1 r",
        "c 1:1 x",
        "c 1:² r",
    ],
)
def test_a_line_that_is_no_rule_is_refused_and_quoted(line: str) -> None:
    with pytest.raises(GpusimError) as caught:
        DeviceRules.parse(line)
    assert repr(line) in str(caught.value)


@given(
    st.lists(RULES, max_size=4),
    st.integers(0, 3),
    st.integers(0, 3),
    st.sampled_from(["r", "w", "rw", "rwm"]),
)
def test_rules_survive_their_text_and_more_rules_never_allow_less(
    rules: list[DeviceRule], major: int, minor: int, access: str
) -> None:
    allowed = DeviceRules(tuple(rules)).allows(major, minor, access)
    assert DeviceRules.parse(*DeviceRules(tuple(rules)).lines()) == DeviceRules(tuple(rules))
    assert allowed == any(DeviceRules((rule,)).allows(major, minor, access) for rule in rules)
    assert not allowed or all(DeviceRules(tuple(rules)).allows(major, minor, letter) for letter in access)


# Processes


def test_pids_count_up_and_are_never_reused() -> None:
    processes = Processes()
    first = processes.spawn()
    processes.exit(first)
    assert (first.pid, processes.spawn().pid) == (FIRST_PID, FIRST_PID + 1)
    assert Processes(first_pid=7).spawn().pid == 7


def test_holding_tells_who_has_a_path_or_a_device_open_and_each_once() -> None:
    processes = Processes()
    one, two = processes.spawn(), processes.spawn(uid=5)
    kfd = processes.open(two, "/dev/kfd", (235, 0))
    processes.open(two, "/dev/kfd", (235, 0))
    processes.open(one, "/dev/kfd", (235, 0))
    assert processes.holding((235, 0)) == processes.holding("/dev/kfd") == [one, two]
    processes.close(kfd)
    assert processes.holding((235, 0)) == [one, two]
    processes.exit(two)
    assert processes.holding((235, 0)) == [one]
    assert processes.holding((226, 128)) == processes.holding("/dev/dri/card0") == []


def test_exit_closes_every_file_in_order_of_opening_and_runs_each_release_once() -> None:
    processes = Processes()
    process = processes.spawn()
    log: list[str] = []
    first = processes.open(process, "/a", release=lambda: log.append("a"))
    second = processes.open(process, "/b", release=lambda: log.append("b"))
    third = processes.open(process, "/c", release=lambda: log.append("c"))
    processes.close(second)
    processes.exit(process)
    assert log == ["b", "a", "c"]
    assert first.closed
    assert second.closed
    assert third.closed
    assert not process.alive
    assert list(processes) == []


def test_what_was_closed_or_has_exited_cannot_be_used_again() -> None:
    processes = Processes()
    process = processes.spawn()
    handle = processes.open(process, "/a")
    processes.close(handle)
    with pytest.raises(GpusimError, match="not open"):
        processes.close(handle)
    with pytest.raises(GpusimError, match=f"no open handle {handle.number}"):
        processes.handle(handle.number)
    processes.exit(process)
    with pytest.raises(GpusimError, match="exited"):
        processes.open(process, "/a")
    with pytest.raises(GpusimError, match="exited"):
        processes.exit(process)
    with pytest.raises(GpusimError, match=f"no process {process.pid}"):
        processes.get(process.pid)


def test_a_process_of_one_node_means_nothing_on_another() -> None:
    ours, theirs = Processes(), Processes()
    process = ours.spawn()
    theirs.spawn()
    with pytest.raises(GpusimError, match="not of this node"):
        theirs.open(process, "/a")


def test_a_fork_holds_the_same_and_parts_from_there() -> None:
    processes = Processes()
    process = processes.spawn(uid=3, gids=[4], devices=DeviceRules.only((226, 128)))
    log: list[str] = []
    handle = processes.open(process, "/dev/kfd", (235, 0), release=lambda: log.append("released"))
    fork = processes.fork()
    twin = fork.get(process.pid)
    assert (twin.uid, twin.gids, twin.devices) == (3, (4,), process.devices)
    fork.close(fork.handle(handle.number))
    assert log == []
    assert processes.holding("/dev/kfd") == [process]
    assert fork.holding("/dev/kfd") == []
    assert fork.spawn().pid == processes.spawn().pid == process.pid + 1
    assert fork.open(twin, "/x").number == handle.number + 1


@given(
    st.lists(st.tuples(st.sampled_from(["spawn", "open", "close", "exit"]), st.integers(0, 9)), max_size=30)
)
def test_holding_agrees_with_a_recount_after_any_history(history: list[tuple[str, int]]) -> None:
    processes = Processes()
    for what, pick in history:
        alive = list(processes)
        if what == "spawn":
            processes.spawn()
        elif alive:
            process = alive[pick % len(alive)]
            if what == "open":
                processes.open(process, f"/{pick % 3}", (1, pick % 3))
            elif what == "exit":
                processes.exit(process)
            elif process.files:
                processes.close(next(iter(process.files.values())))
    for number in range(3):
        expected = [
            process
            for process in processes
            if any(handle.rdev == (1, number) for handle in process.files.values())
        ]
        assert processes.holding((1, number)) == processes.holding(f"/{number}") == expected
