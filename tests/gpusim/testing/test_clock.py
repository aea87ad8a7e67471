"""Virtual time and the event log."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusim.errors import GpusimError
from gpusim.machine import Machine
from gpusim.testing.clock import Clock, EventLog
from gpusim.testing.machines import node


@given(
    st.lists(st.integers(0, 10**6), max_size=50)
)  # a float of seconds holds days to the nanosecond, not years
def test_many_small_steps_are_one_large_step(steps: list[int]) -> None:
    small, large = Clock(), Clock()
    for step in steps:
        small.advance(step / 1000)
    large.advance(sum(steps) / 1000)
    assert small.nanoseconds == large.nanoseconds


@pytest.mark.parametrize("seconds", [-1.0, float("inf"), float("nan")])
def test_time_goes_forward_by_finite_steps_only(seconds: float) -> None:
    clock = Clock(5)
    with pytest.raises(GpusimError, match="forward"):
        clock.advance(seconds)
    assert clock() == 5


@given(st.lists(st.integers(0, 5), max_size=8))
def test_timers_come_in_order_of_time_then_of_asking(delays: list[int]) -> None:
    clock, seen = Clock(), list[tuple[float, int]]()
    for number, delay in enumerate(delays):
        clock.after(delay, lambda n=number: seen.append((clock(), n)))
    clock.advance(10)
    assert seen == sorted((float(delay), number) for number, delay in enumerate(delays))


def test_a_timer_sees_its_own_time_and_may_set_another() -> None:
    clock, seen = Clock(), list[float]()
    clock.after(2, lambda: (seen.append(clock()), clock.after(3, lambda: seen.append(clock()))))
    clock.advance(10)
    assert seen == [2.0, 5.0] and clock() == 10


def test_a_cancelled_timer_does_nothing_and_jump_goes_to_the_next() -> None:
    clock, seen = Clock(), list[str]()
    clock.after(1, lambda: seen.append("first")).cancel()
    clock.after(30, lambda: seen.append("second"))
    assert clock.jump() and seen == ["second"] and clock() == 30
    assert not clock.jump()


def test_a_forked_clock_goes_its_own_way() -> None:
    clock = Clock(3)
    twin = clock.fork()
    clock.advance(1)
    assert (clock(), twin()) == (4, 3)


def test_the_log_has_the_tests_and_the_nodes_events_with_their_time() -> None:
    clock, machine = Clock(), Machine(node(each=[{}]))
    log = EventLog(clock)
    log.follow(machine)
    log.record("test began", seed=7)
    clock.advance(2)
    machine.remove("0000:75:00.0")
    entries = list(log)
    assert entries[0] == {"at": 0.0, "event": "test began", "seed": 7}
    assert entries[1]["at"] == 2.0 and entries[1]["of"] == "node" and entries[1]["event"] == "removed"
    assert [json.loads(line) for line in log.text().splitlines()] == entries
