"""How a state machine says which of its invariants broke."""

from __future__ import annotations


class Broken(AssertionError):  # noqa: N818 - an assertion that failed, by name
    """An invariant does not hold.

    Attributes:
        invariant: its name, as the tables of docs/property-tests.md and of the machines' docstrings have it.
        why: what was found.
    """

    def __init__(self, invariant: str, why: str) -> None:
        super().__init__(f"[{invariant}] {why}")
        self.invariant = invariant
        self.why = why


def ensure(holds: bool, invariant: str, why: str) -> None:
    """Raise `Broken` unless it holds."""
    __tracebackhide__ = True  # pytest shows who asked
    if not holds:
        raise Broken(invariant, why)
