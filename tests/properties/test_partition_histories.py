"""What holds after any history of switches, hot-plug, opens and closes on any small node."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpusim.amd.partition import MODES
from gpusim.machine import Machine
from gpusim.process import DeviceRules, Handle
from gpusim.spec import NodeSpec
from gpusim.testing.machines import node

NODES = "/sys/class/kfd/kfd/topology/nodes"

RELEASES = (
    ("MI355X", "6.14", "dkms-6.14.14"),
    ("MI355X", "6.17", "in-tree"),
    ("MI300X", "6.8.0-79-generic", "in-tree"),
    ("MI300X", "6.12", "in-tree"),
    ("MI300A", "6.8.0-79-generic", "in-tree"),
)


@st.composite
def specs(draw: st.DrawFn) -> NodeSpec:
    """One to three GPUs, shrinking to one MI355X in SPX."""
    product, kernel, driver = draw(st.sampled_from(RELEASES))
    mode = draw(st.sampled_from(("SPX", "CPX")))
    return node(
        product,
        draw(st.integers(1, 3)),
        kernel=kernel,
        driver=driver,
        gpu={"mode": mode},
        bmc=draw(st.booleans()),
    )


INDEX = st.integers(0, 2)
STEPS = st.one_of(
    st.tuples(st.just("switch"), INDEX, st.sampled_from((*MODES, "SPXX", "cpx", "no", ""))),
    st.tuples(st.just("remove"), INDEX, st.none()),
    st.tuples(st.just("add"), INDEX, st.none()),
    st.tuples(st.just("open kfd"), INDEX, st.booleans()),
    st.tuples(st.just("open render"), INDEX, st.integers(0, 7)),
    st.tuples(st.just("close"), INDEX, st.none()),
    st.tuples(st.just("fork"), INDEX, st.none()),
)


@dataclass
class History:
    """A machine and the handles opened on it so far."""

    machine: Machine
    handles: list[Handle] = field(default_factory=list)

    def bdf(self, index: int) -> str:
        known = list(self.machine.driver.gpus)
        return known[index % len(known)]

    def do(self, step: tuple[str, int, Any]) -> None:
        name, index, argument = step
        bdf = self.bdf(index)
        gpu = self.machine.gpu(bdf)
        if name == "switch":
            self.switch(bdf, argument)
        elif name == "remove" and gpu.present:
            self.machine.remove(bdf)
        elif name == "add" and not gpu.present:
            self.machine.add(bdf)
        elif name == "open kfd":
            devices = None
            if argument and gpu.drm:
                kfd = (self.machine.driver.kfd_major, 0)
                devices = DeviceRules.only((226, gpu.drm[0].render or 0), kfd)
            self.handles.append(self.machine.open("/dev/kfd", self.machine.process(devices)))
        elif name == "open render" and argument < len(gpu.drm):
            self.open_render(gpu.drm[argument].render or 0, valid=argument < gpu.partitions)
        elif name == "close" and self.handles:
            self.machine.close(self.handles.pop(index % len(self.handles)))
        elif name == "fork":
            self.machine = self.machine.fork()
            self.handles = [self.machine.processes.handle(handle.number) for handle in self.handles]

    def switch(self, bdf: str, text: str) -> None:
        before = self.machine.describe()
        generation = self.machine.driver.topology
        try:
            self.machine.switch(bdf, text)
        except OSError:
            assert self.machine.describe() == before
            assert self.machine.driver.topology is generation
        else:
            assert self.machine.gpu(bdf).mode == text[:3].upper()

    def open_render(self, minor: int, *, valid: bool) -> None:
        process = self.machine.process()
        try:
            self.handles.append(self.machine.open(f"/dev/dri/renderD{minor}", process))
        except FileNotFoundError:
            assert not valid
        else:
            assert valid


def properties_of(machine: Machine, index: int) -> dict[str, int]:
    lines = machine.read(f"{NODES}/{index}/properties").decode().splitlines()
    return {name: int(value) for name, value in (line.split(" ") for line in lines)}


def check(machine: Machine) -> None:
    indexes = sorted(int(name) for name in machine.list(NODES))
    assert indexes == list(range(len(indexes)))

    nodes = [found for i in indexes[8:] if (found := properties_of(machine, i))]
    minors = [found["drm_render_minor"] for found in nodes]
    assert len(set(minors)) == len(minors)
    for minor in minors:
        machine.probe(f"/dev/dri/renderD{minor}")
    ids = [machine.read(f"{NODES}/{i}/gpu_id") for i in indexes[8:]]
    assert len(set(ids)) == len(ids)

    bound = [gpu for gpu in machine.driver.gpus.values() if gpu.bound]
    assert len(nodes) == sum(gpu.partitions for gpu in bound)
    for gpu in bound:
        mine = [found for found in nodes if found["drm_render_minor"] in {n.render for n in gpu.drm}]
        assert len(mine) == gpu.partitions
        assert sum(found["num_xcc"] for found in mine) == gpu.product.xccs
        assert sum(found["simd_count"] for found in mine) == gpu.facts.active_cus * gpu.product.simd_per_cu

    listed = list(machine.list("/dev/dri")) if bound or machine.spec.bmc else []
    held = [
        n
        for _, nodes_, _ in machine.driver.drm_devices()
        for n in (nodes_.card_name, nodes_.render_name)
        if n
    ]
    assert sorted(name for name in listed if name != "by-path") == sorted(held)
    assert len(set(held)) == len(held)
    assert {
        name for name in machine.list("/sys/class/drm") if re.fullmatch(r"(card|renderD)\d+", name)
    } == set(held)
    assert len(machine.list("/sys/bus/pci/drivers/amdgpu")) == len(bound) + 1


@given(specs(), st.lists(STEPS, max_size=14))
def test_every_history_leaves_a_consistent_node(spec: NodeSpec, steps: list[tuple[str, int, Any]]) -> None:
    history = History(Machine(spec))
    for step in steps:
        history.do(step)
    check(history.machine)


@given(specs(), st.lists(STEPS, max_size=10), INDEX, st.sampled_from(MODES))
def test_a_switch_and_back_gives_the_same_partitions(
    spec: NodeSpec, steps: list[tuple[str, int, Any]], index: int, mode: str
) -> None:
    history = History(Machine(spec))
    for step in steps:
        history.do(step)
    machine, bdf = history.machine, history.bdf(index)
    for handle in history.handles:
        machine.close(handle)
    gpu = machine.gpu(bdf)
    if not gpu.bound or mode not in gpu.product.modes():
        return

    def partitions() -> list[tuple[int, ...]]:
        nodes = machine.driver.topology.gpu_nodes(bdf)
        return [(found.part, found.minor, found.bytes, found.xccs, found.gpu_id) for _, found in nodes]

    before, first = partitions(), gpu.mode
    machine.switch(bdf, mode)
    machine.switch(bdf, first)
    assert partitions() == before


@given(specs(), st.lists(STEPS, max_size=10))
def test_generation_and_simd_counter_never_go_back(spec: NodeSpec, steps: list[tuple[str, int, Any]]) -> None:
    history = History(Machine(spec))
    seen = (history.machine.driver.topology.generation, history.machine.driver.topology.simd_next)
    for step in steps:
        nodes = history.machine.driver.topology.nodes
        history.do(step)
        topology = history.machine.driver.topology
        now = (topology.generation, topology.simd_next)
        assert now >= seen
        assert (topology.nodes == nodes) == (now[0] == seen[0])
        seen = now


@given(specs(), st.lists(STEPS, max_size=12))
def test_a_fork_taken_before_a_history_still_reads_as_then(
    spec: NodeSpec, steps: list[tuple[str, int, Any]]
) -> None:
    history = History(Machine(spec))
    fork = history.machine.fork()
    before, topology = fork.describe(), fork.driver.topology
    for step in steps:
        history.do(step)
    assert fork.describe() == before
    assert fork.driver.topology is topology
    check(fork)
