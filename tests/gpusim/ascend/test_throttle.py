"""The compute throttle in virtual time: the worked examples of B.5, what is learnt, and who gets the card."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gpusim.ascend.runtime import LedgerError
from gpusim.ascend.throttle import (
    MOST,
    STALE_US,
    Card,
    Managed,
    Plan,
    Settings,
    Tokens,
    average,
    claim,
    measured,
    plan,
)

SECOND = 1_000_000


@pytest.mark.parametrize(
    ("priority", "tokens", "expected", "timeout", "rest"),
    [
        (50, 5000, 2.5, 3.8, 2.5),
        (25, 2500, 1.25, 1.925, 3.75),
        (100, 10000, 5.0, 7.55, 0.0),
    ],
)
def test_the_worked_examples_of_a_fixed_share(
    priority: int, tokens: int, expected: float, timeout: float, rest: float
) -> None:
    found = plan(Settings(priority, fixed_share=True), 500, (500,))
    assert found == Plan(tokens, round(expected * SECOND), timeout * SECOND, round(rest * SECOND))


def test_without_a_priority_a_round_has_100_tokens() -> None:
    assert plan(Settings(), 500, (500,)) == Plan(100, 50_000, 125_000, 0)


def test_tokens_have_bounds() -> None:
    assert plan(Settings(1e9), 1, (10**9,)).tokens == MOST
    assert plan(Settings(0.0, scale=0.1), 500, ()).tokens == 1


@given(st.integers(1, 100), st.integers(1, 2000), st.integers(1, 2000))
def test_a_fixed_share_is_its_percentage_whatever_the_speeds(percent: int, own: int, other: int) -> None:
    found = plan(Settings(percent, fixed_share=True), own, (own, other))
    assume(found.tokens < MOST)
    anchor = max(own, other)
    share = found.expected_us / (found.expected_us + found.rest_us)
    # The base is rounded up to whole launches: at most one of the own kernels too many for each of the scale.
    assert 0 <= share - percent / 100 <= own / (100 * anchor) + 1e-9


@pytest.mark.parametrize(
    ("old", "duration", "tokens", "new"),
    [
        (500, 10_000, 1, 1550),
        (500, 10, 1, 237),
        (500, 0, 1, 500),
        (500, 10, 0, 500),
        (500, 50_000, 100, 500),
        (1, 1, 100, 1),
    ],
)
def test_a_round_moves_the_average_by_a_factor_of_four_at_most(
    old: int, duration: int, tokens: int, new: int
) -> None:
    assert average(old, duration, tokens, 0.7) == new


def test_a_batch_lasts_from_its_first_start_to_its_last_end() -> None:
    assert measured(((100, 50), (120, 80), (90, 0))) == 100
    assert measured(()) == measured(((5, 0),)) == 0


def test_a_token_is_never_taken_below_zero() -> None:
    ours, old = Tokens(1), Tokens(1)
    assert [ours.take(), ours.take(), ours.left] == [True, False, 0]
    assert [old.take_as_1_4_0(), old.take_as_1_4_0(), old.left] == [True, True, (1 << 64) - 1]


def test_what_the_environment_says() -> None:
    def settings(**environ: str) -> Settings:
        return Settings.of_environment({f"NPU_{name}": value for name, value in environ.items()})

    assert settings() == Settings(1.0, 100.0, 0.7, False)
    assert settings(PRIORITY="50", TOKEN_SCALE="10", AVG_ALPHA="0.5") == Settings(50.0, 10.0, 0.5, False)
    assert settings(PRIORITY="x", TOKEN_SCALE="x", AVG_ALPHA="x") == Settings(1.0, 1.0, 0.7, False)
    assert settings(TOKEN_SCALE="0", AVG_ALPHA="9").scale == 0.1
    assert (settings(AVG_ALPHA="0").alpha, settings(AVG_ALPHA="9").alpha) == (0.05, 0.95)
    assert settings(PRIORITY="nan").priority == 1.0
    assert settings(FIXED_SHARE_RATIO="TRUE").fixed_share
    assert not settings(FIXED_SHARE_RATIO="yes").fixed_share


@pytest.mark.parametrize("percent", [25, 50, 100])
def test_a_container_alone_gets_its_fixed_share_and_no_more(percent: int) -> None:
    card = Card()
    one = card.join("a", Settings(percent, fixed_share=True), kernel_us=500)
    card.run(200 * SECOND)
    assert one.used_us / card.now == pytest.approx(percent / 100, abs=0.02)


def test_two_fixed_shares_are_kept_side_by_side() -> None:
    card = Card()
    fast = card.join("fast", Settings(30, fixed_share=True), kernel_us=200)
    slow = card.join("slow", Settings(60, fixed_share=True), kernel_us=900)
    card.run(1000 * SECOND)
    assert fast.used_us / card.now == pytest.approx(0.30, abs=0.05)
    assert slow.used_us / card.now == pytest.approx(0.60, abs=0.06)
    assert (fast.average_us, slow.average_us) == (pytest.approx(200, rel=0.05), pytest.approx(900, rel=0.05))


def test_weights_divide_a_busy_card_whatever_the_kernels_last() -> None:
    card = Card()
    heavy = card.join("heavy", Settings(75), kernel_us=500)
    light = card.join("light", Settings(25), kernel_us=2000)
    card.run(600 * SECOND)
    assert heavy.used_us / (heavy.used_us + light.used_us) == pytest.approx(0.75, abs=0.02)
    assert [each.manager for each in card.history[:4]] == ["heavy", "light", "heavy", "light"]


def test_a_container_without_work_passes_on_after_5_ms() -> None:
    card = Card()
    card.join("idle", Settings(50), kernel_us=0)
    busy = card.join("busy", Settings(50), kernel_us=500)
    card.run(60 * SECOND)
    assert {(each.end - each.start, each.ended_by) for each in card.history if each.manager == "idle"} == {
        (5000, "no progress")
    }
    assert busy.used_us / card.now > 0.99


def test_kernels_that_turn_out_slow_end_a_fixed_share_by_its_budget() -> None:
    card = Card()
    card.join("a", Settings(50, fixed_share=True), kernel_us=5000)
    card.run(1)
    assert card.history[0].ended_by == "budget"
    assert card.history[0].launched == 500  # 2.5 s of 5 ms
    assert card.managers[0].average_us == 1550


def test_a_killed_owner_loses_the_baton_after_a_second() -> None:
    card = Card()
    dead = card.join("dead", Settings(50), kernel_us=500)
    live = card.join("live", Settings(50), kernel_us=500)
    dead.alive = False
    card.run(60 * SECOND)
    assert not dead.active
    assert card.history[0].start == STALE_US
    assert live.rounds == len(card.history) > 10


def test_a_report_that_never_comes_is_waited_for_and_teaches_nothing() -> None:
    card = Card()
    one = card.join("a", Settings(50), kernel_us=700)
    one.silent = True
    card.run(1)
    (only,) = card.history
    waited = plan(one.settings, 500, (500,)).measuring_us
    assert card.now - only.start >= only.launched * 700 + waited
    assert one.average_us == 500


def test_a_card_has_64_managers_and_a_container_32_reporting_workers() -> None:
    card = Card()
    for number in range(64):
        card.join(str(number), Settings(), kernel_us=0)
    with pytest.raises(LedgerError):
        card.join("late", Settings(), kernel_us=0)
    card.managers[0].active = False
    card.join("late", Settings(), kernel_us=0, workers=32)
    with pytest.raises(LedgerError):
        Card().join("many", Settings(), kernel_us=0, workers=33)


def test_a_card_without_managers_is_idle() -> None:
    card = Card()
    card.run(SECOND)
    assert (card.now, card.history) == (SECOND, [])


def test_a_manager_is_succeeded_by_a_process_of_three_seconds() -> None:
    nobody = Managed()
    assert claim(nobody, 7, born_us=0, now_us=2_999_999) == nobody
    first = claim(nobody, 7, born_us=0, now_us=3_000_000)
    assert first == Managed(7, 3_000_000)
    assert claim(first, 8, born_us=0, now_us=6_000_000) == first
    assert claim(first, 7, born_us=0, now_us=6_000_000) == Managed(7, 6_000_000)
    assert claim(first, 8, born_us=0, now_us=6_000_001) == Managed(8, 6_000_001)
