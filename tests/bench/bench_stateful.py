"""A property test that walks an eight-GPU node (performance.md: stateful property example, 30 steps).

The same machine, `Walk`, runs on the simulator and on pyfakefs with every file of the node made beforehand;
and beside an empty Hypothesis machine. That one has the same rules with the same arguments and takes as many
steps, so Hypothesis draws for it what it draws for `Walk`; the bodies of its rules are empty, and it has
neither preconditions nor invariants nor a node.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RULE_MARKER, RuleBasedStateMachine, rule, run_state_machine_as_test
from pyfakefs.fake_filesystem import FakeFilesystem
from pyfakefs.fake_open import FakeFileOpen

from gpusim.machine import Machine
from gpusim.spec import NodeSpec
from gpusim.testing.machines import NodeMachine, node
from gpusim.testing.machines.walk import KFD
from tests.bench.guards import Guard, best

STEPS = 30
EIGHT = node()


class Walk(NodeMachine):
    """Switches, processes and memory on eight GPUs; files made beforehand know no hot-plug and no hang."""

    nodes = st.just(EIGHT)
    forks = False
    unplug_or_plug = None
    hang_or_recover = None


class Materialised:
    """The node as files in pyfakefs, all made at once; what an action changes is made anew."""

    def __init__(self, spec: NodeSpec) -> None:
        self.machine = Machine(spec)
        self.files = FakeFilesystem()
        self.fake_open = FakeFileOpen(self.files)
        for path, found in self.machine.tree.every_file():
            self.make(path, found.kind.name)

    def make(self, path: str, kind: str) -> None:
        if kind == "DIRECTORY":
            if not self.files.exists(path):
                self.files.create_dir(path)
        elif kind == "LINK":
            self.files.create_symlink(path, self.machine.readlink(path))
        elif kind == "CHARACTER":
            if not self.files.exists(path):  # pyfakefs has /dev/null itself
                self.files.create_file(path)
        else:
            try:
                self.files.create_file(path, contents=self.machine.read(path))
            except OSError:
                return  # a file that only takes writes

    def read(self, path: str) -> bytes:
        with self.fake_open(path, "rb") as file:
            return bytes(file.read())

    def list(self, path: str) -> Sequence[str]:
        return sorted(self.files.listdir(path))

    def probe(self, path: str) -> None:
        self.fake_open(path, "r+b").close()

    def switch(self, bdf: str, mode: str) -> None:
        before = self.machine.read(f"{KFD}/generation_id")
        self.machine.switch(bdf, mode)
        self.again(f"/sys/bus/pci/devices/{bdf}/current_compute_partition")
        if self.machine.read(f"{KFD}/generation_id") != before:
            self.again(f"{KFD}/generation_id")
            nodes = self.machine.tree.resolve(f"{KFD}/nodes")
            self.files.remove_object(nodes)
            self.below(nodes)

    def below(self, directory: str) -> None:
        self.make(directory, "DIRECTORY")
        for name in self.machine.list(directory):
            inner = f"{directory}/{name}"
            kind = self.machine.stat(inner, follow=False).kind.name
            self.below(inner) if kind == "DIRECTORY" else self.make(inner, kind)

    def again(self, path: str) -> None:
        with self.fake_open(path, "wb") as file:
            file.write(self.machine.read(path))

    def allocate_vram(self, process: Any, bdf: str, size: int) -> Any:
        made = self.machine.allocate_vram(process, bdf, size)
        self.again(f"/sys/bus/pci/devices/{bdf}/mem_info_vram_used")
        return made

    def free(self, made: Any) -> None:
        self.machine.free(made)
        self.again(f"/sys/bus/pci/devices/{made.bdf}/mem_info_vram_used")

    def exit(self, process: Any) -> None:
        self.machine.exit(process)
        for gpu in self.machine.spec.gpus:
            self.again(f"/sys/bus/pci/devices/{gpu.bdf}/mem_info_vram_used")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.machine, name)


class WalkFiles(Walk):
    make = Materialised


def empty(machine: type[RuleBasedStateMachine]) -> type[RuleBasedStateMachine]:
    """The same rules and arguments, bodies empty; no preconditions and no invariants."""
    rules = {}
    for name in dir(machine):
        found = getattr(getattr(machine, name), RULE_MARKER, None)
        if found is not None:
            rules[name] = rule(**dict(found.arguments))(_named(name))
    return type("Empty", (RuleBasedStateMachine,), rules)


def _named(name: str) -> Callable[..., None]:
    def nothing(self: RuleBasedStateMachine, **drawn: object) -> None:
        del drawn

    nothing.__name__ = name
    return nothing


def run(machine: type[RuleBasedStateMachine], examples: int) -> Callable[[], None]:
    chosen = settings(
        max_examples=examples,
        stateful_step_count=STEPS,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    return lambda: run_state_machine_as_test(machine, settings=chosen)


@pytest.mark.parametrize("collected", [False, True], ids=["collector-off", "collector-on"])
def test_a_stateful_example_against_an_empty_hypothesis_machine(guard: Guard, collected: bool) -> None:
    # In turns, so that what else the computer does meets both; its time on a processor is all that counts.
    bare, walk = run(empty(Walk), 20), run(Walk, 20)
    alone = partial(best, rounds=1, clock=time.process_time, collected=collected)
    rounds = [(alone(bare), alone(walk)) for _ in range(9)]
    floor, ours = (min(seconds) for seconds in zip(*rounds, strict=True))
    guard.benchmark.pedantic(run(Walk, 20), rounds=1)
    guard.record(
        ours, floor=floor, limit=3, floor_name="the same rules with nothing behind them, 20 examples"
    )


def test_a_stateful_example_against_pyfakefs_with_every_file(guard: Guard) -> None:
    files = best(run(WalkFiles, 2), rounds=1) / 2
    ours = best(run(Walk, 20), rounds=7) / 20
    guard.benchmark.pedantic(run(Walk, 20), rounds=1)
    guard.record(ours, floor=files, limit=1 / 50, floor_name="the same machine on pyfakefs")
