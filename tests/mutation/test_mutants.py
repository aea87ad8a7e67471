"""The changes that `bin/mutate` makes, and that docs/mutation.md explains no change that is none any more."""

from __future__ import annotations

import ast

from .__main__ import EXPLAINED, ROOT, TARGETS, WRONG, _judged, explained
from .mutants import mutants
from .running import KILLED, SLOW, SURVIVED

SOURCE = '''
"""Docstrings stay."""
def f(a: int = 3) -> "int":
    """This too."""
    if not a and a < 4:
        raise ValueError("words for people")
    a += 1
    b = f"{a:02x},{min(a, 2)}"
    c = f"no words of {a} for people are changed"
    return [b for b in c if b]
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
        ("b = f'{a:02x},{min(a, 2)}'", "b = f'{a:2x},{min(a, 2)}'"),
        ("b = f'{a:02x},{min(a, 2)}'", "b = f'{a:02x}{min(a, 2)}'"),
        ("b = f'{a:02x},{min(a, 2)}'", "b = f'{a:02x},{max(a, 2)}'"),
        ("return [b for b in c if b]", "return [b for b in c if not b]"),
        ("return [b for b in c if b]", "return None"),
    } <= changes
    assert not any(words in was for was, _ in changes for words in ("Docstrings", "too", "no words"))


def test_a_change_does_not_stay_for_the_next_one() -> None:
    trees = [ast.unparse(m.tree) for m in mutants(SOURCE)]
    assert len(set(trees)) == len(trees)
    plain = ast.unparse(ast.parse(SOURCE)).splitlines()
    assert all(
        sum(a != b for a, b in zip(plain, tree.splitlines(), strict=True)) == 1 for tree in map(str, trees)
    )


def test_changes_that_read_alike_have_names_of_their_own() -> None:
    keys = [m.key for m in mutants("def f():\n    g()\n    g()\n")]
    assert keys == ["f: `g()` → `pass`", "f (number 2): `g()` → `pass`"]
    for target in TARGETS:
        made = [m.key for m in mutants((ROOT / target.file).read_text())]
        assert len(set(made)) == len(made)


def test_every_explanation_is_of_a_change_that_can_be_made() -> None:
    possible = {f"{t.file}: {m.key}" for t in TARGETS for m in mutants((ROOT / t.file).read_text())}
    told = explained(EXPLAINED.read_text())
    assert told
    assert set(told) <= possible, sorted(set(told) - possible)


def test_the_page_must_explain_what_survives_and_nothing_that_is_noticed() -> None:
    wrong = {
        (result, told)
        for result in (SURVIVED, KILLED, SLOW)
        for told in (True, False)
        if _judged(result, told) in WRONG
    }
    assert wrong == {(SURVIVED, False), (KILLED, True)}
