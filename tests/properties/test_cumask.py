"""CU sets, for all sets and requests: round trip, disjointness, alignment, first fit against a naive one."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from devplugin.amd.cumask import CuError, everything, first_fit, parse, text

totals = st.integers(1, 320)


@given(st.integers(0, (1 << 320) - 1))
def test_every_set_reads_back_as_written(mask: int) -> None:
    assert parse(text(mask), 320) == mask


@given(st.sets(st.integers(0, 200)))
def test_the_text_has_the_longest_runs_in_order(members: set[int]) -> None:
    written = text(sum(1 << m for m in members))
    runs = [tuple(map(int, run.split("-"))) for run in written.split(",") if run]
    assert [n for run in runs for n in range(run[0], run[-1] + 1)] == sorted(members)
    assert all(a[-1] + 1 < b[0] for a, b in itertools.pairwise(runs))
    assert all(len(run) == 1 or run[0] < run[1] for run in runs)


@given(st.text("0123456789-, ab", max_size=20), totals)
def test_the_parser_answers_or_refuses_and_never_leaves_the_device(given_text: str, total: int) -> None:
    try:
        mask = parse(given_text, total)
    except CuError:
        return
    assert mask & ~everything(total) == 0
    assert parse(text(mask), total) == mask


@given(st.data(), totals, st.integers(1, 2))
def test_the_first_fit_is_the_naive_one(data: st.DataObject, total: int, unit: int) -> None:
    in_use = data.draw(st.integers(0, everything(total)))
    count = data.draw(st.integers(1, total + 1))
    free = [
        range(start, start + unit)
        for start in range(0, total, unit)
        if start + unit <= total and not any(in_use >> cu & 1 for cu in range(start, start + unit))
    ]
    needed = -(-count // unit)
    if count == total:
        expected = everything(total) if in_use == 0 else None
    else:
        expected = sum(1 << cu for block in free[:needed] for cu in block) if needed <= len(free) else None
    try:
        mask = first_fit(in_use, total, count, unit)
    except CuError:
        assert expected is None
        return
    assert mask == expected
    assert mask & in_use == 0
