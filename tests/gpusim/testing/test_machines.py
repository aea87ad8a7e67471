"""The state machines pass what is right, and each invariant catches the bug that was made for it."""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from gpusim.errors import GpusimError
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


# A run that finds nothing because it asked for nothing


class EmptiestOnly(Right):
    """The wrong allocator of docs/property-tests.md."""

    def __init__(self, devices: Any) -> None:
        self.free_mib = {device.id: device.memory_mib for device in devices}
        self.shares: dict[str, list[Share]] = {}

    def allocate(self, pod: str, request: Request) -> Any:
        emptiest = sorted(self.free_mib, key=self.free_mib.__getitem__, reverse=True)[: request.devices]
        if self.free_mib[emptiest[0]] < request.memory_mib:
            return None
        for device in emptiest:
            self.free_mib[device] -= request.memory_mib
        self.shares[pod] = [Share(device, request.memory_mib) for device in emptiest]
        return self.shares[pod]

    def free(self, pod: str) -> None:
        for share in self.shares.pop(pod):
            self.free_mib[share.device] += share.memory_mib


class OnTwoGpus(PluginMachine):
    """That of the page's fourth chapter."""

    make = EmptiestOnly
    devices = strategies.nodes(min_gpus=2, max_gpus=2, sriov=False, odd=False).map(devices_of).filter(bool)


def test_the_wrong_allocator_of_the_page_fails_on_real_devices_whatever_the_seed() -> None:
    short = settings(QUICK, max_examples=100, phases=[Phase.generate], report_multiple_bugs=False)
    for number in range(10):
        with pytest.raises(Broken, match="memory-within-device"):
            run_state_machine_as_test(seed(number)(type("Seeded", (OnTwoGpus,), {})), settings=short)


def test_at_least_half_of_the_examples_have_a_pod_that_wants_several_devices() -> None:
    several: list[bool] = []

    class Counted(OnTwoGpus):
        make = Right

        def __init__(self) -> None:
            super().__init__()
            self.wanted: list[int] = []

        def _allocate(self, request: Request, *invariant: str) -> None:
            self.wanted.append(request.devices)
            super()._allocate(request, *invariant)

        def teardown(self) -> None:
            if sys.exc_info()[0] is None:  # Hypothesis gave up others halfway, to draw them anew
                several.append(max(self.wanted, default=0) > 1)

    run_state_machine_as_test(Counted, settings=settings(HUNT, max_examples=100))
    assert len(several) >= 60
    assert sum(several) >= len(several) / 2


# What is wrong with a machine or an allocator is said in words


def told(machine: type[PluginMachine]) -> str:
    with pytest.raises(GpusimError) as caught:
        run_state_machine_as_test(machine, settings=HUNT)
    return str(caught.value)


def test_a_machine_without_make_is_told_to_set_it() -> None:
    class Mine(PluginMachine):
        pass

    assert told(Mine) == (
        "Mine: set `make`, which is called with a list of Device and gives the allocator: "
        "class Mine(PluginMachine): make = MyAllocator"
    )


@pytest.mark.parametrize(
    ("drawn", "said"),
    [([], "`devices` drew an empty list"), ([("gpu-0", 16)], "`devices` drew ('gpu-0', 16): no Device(id,")],
)
def test_devices_that_are_none_are_named(drawn: list[Any], said: str) -> None:
    class Mine(PluginMachine):
        make = Right
        devices = st.just(drawn)

    assert said in told(Mine)


@pytest.mark.parametrize(
    "answer",
    [[("gpu-0", 1)], ["gpu-0"], "gpu-0", True, [None]],
    ids=["tuple", "name", "text", "bool", "None"],
)
def test_an_answer_that_is_no_list_of_shares_is_shown_with_the_request(answer: Any) -> None:
    class Other(Right):
        def allocate(self, pod: str, request: Request) -> Any:
            return answer

    said = told(on_allocator(Other))
    assert re.match(r"allocate\('pod-\d+', Request\(devices=\d, memory_mib=\d+, cus=\d\)\) answered ", said)
    assert f"answered {answer!r}" in said
    assert said.endswith("a list of Share(device, memory_mib, cus) is expected, or None")


def test_an_allocator_without_its_second_method_is_named() -> None:
    class Half:
        def __init__(self, devices: Any) -> None:
            pass

        def allocate(self, pod: str, request: Request) -> None:
            pass

    assert told(on_allocator(Half)).endswith("has no free()")
