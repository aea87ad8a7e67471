"""Whatever arrives damaged, every parser answers or refuses as it documents, soon, and keeps nothing of it.

More than 100,000 inputs in every run of the suite, always the same ones; `bin/fuzz` goes on with others.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from gpusim.testing.parsers import ParserError, case, check_parser

from .table import NOTHING, ROWS, Row, again

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_damaged_input_is_read_or_refused_as_documented_soon_and_leaves_nothing(row: Row) -> None:
    try:
        done = check_parser(row.parser(), runs=row.runs)
    except ParserError as error:
        error.add_note(again(error))
        raise
    assert done.runs >= row.runs
    if row.refuses is NOTHING and not row.errnos:
        assert not done.refused
    else:
        # The damage reaches both what a parser refuses and what it must still understand.
        assert done.runs // 500 <= done.refused <= done.runs - done.runs // 500


def test_more_than_100_000_inputs_of_each_run_are_of_the_five_kinds_that_strangers_write() -> None:
    assert sum(row.runs for row in ROWS if row.kind) > 100_000
    for kind in ("properties", "annotation", "ids", "dmem", "fixture"):
        assert sum(row.runs for row in ROWS if row.kind == kind) >= 5_000, kind
    assert min(row.runs for row in ROWS) >= 1_000
    assert len({row.name for row in ROWS}) == len(ROWS)


def test_no_row_takes_for_a_refusal_what_any_mistake_raises() -> None:
    # An error of our own, or one that its library raises for bad input alone: a stray ValueError is neither.
    for row in ROWS:
        for error in row.parser().refuses:
            ours = error.__module__.partition(".")[0] in ("devplugin", "gpusim")
            known = error in (argparse.ArgumentTypeError, msgspec.ValidationError, msgspec.DecodeError)
            assert ours or known, f"{row.name}: {error.__name__}"


def test_one_input_can_be_looked_at_alone() -> None:
    row = ROWS[0]
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", row.name, "--seed", "3", "--number", "5"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    shown, verdict = done.stdout.splitlines()
    assert shown == repr(case(row.parser(), seed=3, number=5))
    assert verdict.split(" ")[0] in ("refused", "taken")


def test_a_time_that_is_no_number_is_refused_and_checks_nothing_in_silence() -> None:
    command = [sys.executable, "-m", "tests.fuzz", "--seconds", "nan"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "--seconds above 0" in done.stderr
