"""The machine a test gets from the pytest plugin: it remembers every call, and may be shared by processes.

`Used` is a recorder (`gpusim.testing.trace`) with a lock, so that the test, a served socket and a kubelet can
use one node at the same time and the trace tells their calls in the order in which they were answered.
"""

from __future__ import annotations

import functools
import os
import threading
from typing import Any

from gpusim import fixture
from gpusim.spec import NodeSpec
from gpusim.testing import witness
from gpusim.testing.faults import Plan
from gpusim.testing.trace import Recorder

DEFAULT = "mi355x/spx-6.14"
"""The node of a test that names none."""

Source = str | os.PathLike[str] | NodeSpec


class Used(Recorder):
    """A `Machine` for tests; whatever a machine can do, it does, and writes it down.

    Attributes:
        lock: held during each call; a server of this machine takes the same.
    """

    def __init__(self, spec: NodeSpec, plan: Plan = Plan()) -> None:  # noqa: B008 - a value
        super().__init__(spec, plan)
        self.lock = threading.RLock()

    def __getattr__(self, name: str) -> Any:
        if name == "lock":  # before __init__ has run
            raise AttributeError(name)
        found = super().__getattr__(name)
        if name not in self.__dict__:  # not one of the calls that are written down
            return found
        lock = self.lock

        @functools.wraps(found)
        def locked(*args: Any, **named: Any) -> Any:
            with lock:
                return found(*args, **named)

        self.__dict__[name] = locked
        return locked


def make(source: Source = DEFAULT, *, faults: Plan = Plan()) -> Used:  # noqa: B008 - a value
    """A new node, shown with its trace if the running test fails.

    Args:
        source: name of a shipped fixture, path of one, or a spec (`gpusim.testing.machines.node`).
        faults: what goes wrong on it.

    Raises:
        BadFixture: no such fixture, or none that describes a node.
        SpecError: a spec of a node that cannot exist.
        TypeError: no name, path or spec, or an empty name; faults that are no plan.
    """
    plan: Any = faults  # what a marker says has met no type checker
    if not isinstance(plan, Plan):
        raise TypeError(f"faults are a Plan, not {type(plan).__name__}")
    named: Any = source
    if not isinstance(named, (str, os.PathLike, NodeSpec)):
        raise TypeError(f"a node is a name, a path or a NodeSpec, not {type(named).__name__}")
    if not isinstance(named, NodeSpec) and not os.fspath(named):
        raise TypeError(f"a node is a name, a path or a NodeSpec, and the name is empty; {DEFAULT!r} is one")
    spec = named if isinstance(named, NodeSpec) else _load(os.fspath(named))
    return witness.note(Used(spec, faults))


def _load(name: str) -> NodeSpec:
    path = fixture.find(name)
    return _shipped(name) if path.resolve().is_relative_to(fixture.SHIPPED) else fixture.load(path)


@functools.cache
def _shipped(name: str) -> NodeSpec:
    """A shipped fixture: it does not change while tests run, and a property asks for it again and again."""
    return fixture.load(name)
