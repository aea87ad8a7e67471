"""The state machines pass what is right, and each invariant catches the bug that was made for it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from gpusim.machine import Machine
from gpusim.testing import strategies
from gpusim.testing.machines import (
    Broken,
    DmemLedger,
    LedgerMachine,
    NodeMachine,
    PluginMachine,
    Request,
    Share,
    ToyLedger,
    node,
)
from gpusim.testing.machines.plugin import devices_of

from .seeded_bugs import BUGS, Bug, Right, on_allocator

MACHINES = {machine.__name__: machine for machine in (NodeMachine, PluginMachine, LedgerMachine)}
QUICK = settings(
    max_examples=25,
    stateful_step_count=30,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate, Phase.shrink],
)
HUNT = settings(
    QUICK,
    max_examples=400,
    derandomize=True,
    phases=[Phase.generate],
    report_multiple_bugs=False,
    print_blob=False,
)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: f"{bug.machine}-{bug.invariant}")
def test_each_invariant_catches_the_bug_made_for_it(bug: Bug) -> None:
    with pytest.raises(Broken) as caught:
        run_state_machine_as_test(bug.test, settings=HUNT)
    assert caught.value.invariant == bug.invariant, caught.value.why


def test_every_invariant_that_a_machine_names_has_a_seeded_bug() -> None:
    for name, machine in MACHINES.items():
        named = re.findall(r"^ +``([a-z-]+)`` ", machine.__doc__ or "", re.MULTILINE)
        assert sorted(named) == sorted(bug.invariant for bug in BUGS if bug.machine == name), name


class OnNodes(NodeMachine):
    """Any small node, odd ones and virtual functions left out."""


class OnDmem(LedgerMachine):
    make = DmemLedger
    unit = 4096


class OnToy(LedgerMachine):
    make = ToyLedger


class OnPartitions(PluginMachine):
    make = Right
    with_cus = True
    devices = (
        strategies.nodes(max_gpus=2, products=["MI355X", "MI300X"], odd=False).map(devices_of).filter(bool)
    )


@pytest.mark.parametrize("machine", [OnNodes, OnDmem, OnToy, OnPartitions, on_allocator(Right)])
def test_what_is_right_passes(machine: type[RuleBasedStateMachine]) -> None:
    run_state_machine_as_test(machine, settings=QUICK)


class Small:
    """A stranger's allocator: it forgets what a pod had when the pod goes."""

    def __init__(self, devices):  # type: ignore[no-untyped-def]
        self.left = {device.id: device.memory_mib for device in devices}

    def allocate(self, pod, request):  # type: ignore[no-untyped-def]
        ids = [name for name, mib in self.left.items() if mib >= request.memory_mib][: request.devices]
        if len(ids) < request.devices:
            return None
        for name in ids:
            self.left[name] -= request.memory_mib
        return [Share(name, request.memory_mib) for name in ids]

    def free(self, pod):  # type: ignore[no-untyped-def]
        pass


class OnSmall(PluginMachine):
    make = Small


def test_a_wrong_allocator_of_fifteen_lines_gets_a_short_counter_example() -> None:
    with pytest.raises(Broken) as caught:
        run_state_machine_as_test(
            OnSmall, settings=settings(QUICK, max_examples=200, report_multiple_bugs=False)
        )
    steps = [line for line in "\n".join(caught.value.__notes__).splitlines() if line.startswith("state.")]
    assert len(steps) <= 5, steps
    assert "Device(id='gpu-0', memory_mib=1, cus=0)" in steps[0]


class OnWrongNode(NodeMachine):
    class make(Machine):  # noqa: N801 - the machine's option
        def switch(self, bdf: str, mode: str) -> None:
            if mode != "CPX":
                super().switch(bdf, mode)

    nodes = strategies.nodes(max_gpus=3, odd=False)


def test_a_failing_node_shrinks_to_one_gpu_in_spx_and_notes_its_trace() -> None:
    with pytest.raises(Broken) as caught:
        run_state_machine_as_test(
            OnWrongNode, settings=settings(QUICK, max_examples=100, report_multiple_bugs=False)
        )
    notes = "\n".join(caught.value.__notes__)
    assert "state.boot(spec=node('MI355X', each=[{}]))" in notes
    assert '{"do": "switch", "args": ["0000:75:00.0", "CPX"]}' in notes


def test_partitions_become_devices_with_their_own_memory_and_units() -> None:
    found = devices_of(node(each=[{"mode": "QPX"}]))
    assert [(device.id, device.cus, device.memory_mib) for device in found] == [
        (f"renderD{minor}", 64, 73724) for minor in range(128, 132)
    ]


def test_a_strategy_of_devices_may_be_replaced() -> None:
    class Mine(PluginMachine):
        make = Right
        devices = st.just(devices_of(node(each=[{}])))

    run_state_machine_as_test(Mine, settings=settings(QUICK, max_examples=5))


def test_an_allocator_may_answer_with_a_generator() -> None:
    class Lazy(Right):
        def allocate(self, pod: str, request: Request) -> Any:
            shares = super().allocate(pod, request)
            return None if shares is None else (share for share in shares)

    run_state_machine_as_test(on_allocator(Lazy), settings=settings(QUICK, max_examples=5))
