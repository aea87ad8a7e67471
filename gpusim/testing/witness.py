"""Which simulated nodes the running test used, so that the report of its failure can show them.

The pytest plugin asks; `note` is for whatever makes nodes in a test, the rule-based machines too. Of a
property only the nodes of its latest example are kept, which is the shrunk one when it fails. Neither pytest
nor Hypothesis is needed, or imported.
"""

from __future__ import annotations

import sys
from typing import Any, TypeVar

N = TypeVar("N")

_noted: list[tuple[object, Any]] = []


def note(node: N) -> N:
    """Remember a machine or a recorder of one; returns it."""
    example = _example()
    if example is not None:
        _noted[:] = [entry for entry in _noted if entry[0] is None or entry[0] is example]
    _noted.append((example, node))
    return node


def nodes() -> list[Any]:
    """The nodes of the running test, the oldest first."""
    return [node for _, node in _noted]


def forget() -> None:
    """Another test begins."""
    _noted.clear()


def _example() -> object:
    """What stands for the example that Hypothesis is running; None outside of one."""
    control = sys.modules.get("hypothesis.control")
    if control is None or not control.currently_in_test_context():
        return None
    context: object = control.current_build_context()
    return context
