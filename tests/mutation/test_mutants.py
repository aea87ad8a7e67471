"""The changes that `bin/mutate` makes, and that docs/mutation.md explains no change that is none any more."""

from __future__ import annotations

import ast

from .__main__ import EXPLAINED, ROOT, TARGETS, explained
from .mutants import mutants

SOURCE = '''
"""Docstrings stay."""
def f(a: int = 3) -> "int":
    """This too."""
    if not a and a < 4:
        raise ValueError("words for people")
    a += 1
    return a
'''


def test_every_kind_of_change_is_made_one_at_a_time() -> None:
    changes = {(m.was, m.now) for m in mutants(SOURCE)}
    assert {
        ("def f(a: int=3) -> 'int'", "def f(a: int=4) -> 'int'"),
        ("if not a and a < 4:", "if a and a < 4:"),
        ("if not a and a < 4:", "if not a or a < 4:"),
        ("if not a and a < 4:", "if not a and a <= 4:"),
        ("if not a and a < 4:", "if not (not a and a < 4):"),
        ("raise ValueError('words for people')", "pass"),
        ("a += 1", "a -= 1"),
        ("a += 1", "pass"),
        ("return a", "return None"),
    } <= changes
    assert not any("Docstrings" in was or "too" in was for was, _ in changes)


def test_a_change_does_not_stay_for_the_next_one() -> None:
    trees = [ast.unparse(m.tree) for m in mutants(SOURCE)]
    assert len(set(trees)) == len(trees)
    plain = ast.unparse(ast.parse(SOURCE)).splitlines()
    assert all(
        sum(a != b for a, b in zip(plain, tree.splitlines(), strict=True)) == 1 for tree in map(str, trees)
    )


def test_every_explanation_is_of_a_change_that_can_be_made() -> None:
    possible = {f"{t.file}: {m.key}" for t in TARGETS for m in mutants((ROOT / t.file).read_text())}
    told = explained(EXPLAINED.read_text())
    assert told
    assert set(told) <= possible, sorted(set(told) - possible)
