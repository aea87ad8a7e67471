"""A state machine that walks a simulated node: switches, hot-plug, processes, memory, faults, forks.

What the node must answer is kept here in a few plain values, apart from the simulator's own state; the
invariants ask through files, as a plugin does. Sources of the rules: kernel.md 1.4, 2.1, 6 and 7.
"""

from __future__ import annotations

import errno
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gpusim.amd.partition import MODES
from gpusim.amd.products import PRODUCTS
from gpusim.machine import Allocation, Machine
from gpusim.process import Handle
from gpusim.spec import GpuSpec, NodeSpec
from gpusim.testing import witness
from gpusim.testing.machines.broken import Broken, ensure
from gpusim.testing.machines.expected import KFD, PCI, Expected, Saved, facts_of, place_of, where
from gpusim.testing.strategies import nodes
from gpusim.testing.trace import Recorder

_GPU = st.integers(0, 7)
_MIB = 1 << 20
_NO_MEMORY = (errno.ENOMEM, errno.ENODEV, errno.EBADF, errno.EINVAL)
"""Full; no such partition; nothing open; the GPU came after the process had opened KFD."""
_NAME = re.compile(r"(?:card|renderD)\d+")


class NodeMachine(RuleBasedStateMachine):
    """A node under a random history; subclass it to add rules, or to put another machine in its place.

    =============================== =================================================================
    invariant                       holds when
    =============================== =================================================================
    ``kfd-nodes-without-holes``     KFD nodes are numbered 0, 1, … without a gap
    ``partitions-once``             no two KFD nodes share a render minor or a gpu_id
    ``partitions-make-the-gpu``     a GPU has as many KFD nodes as its mode says, with all its SIMDs
    ``listed-partitions-open``      the render node of every KFD node opens (EIO while the GPU hangs)
    ``mode-as-written``             current_compute_partition reads as the last mode that was accepted
    ``refusal-changes-nothing``     a refused switch leaves KFD's generation and the mode as it was
    ``busy-gpu-keeps-its-mode``     a switch to another mode is EBUSY while a process holds /dev/kfd
    ``gone-gpu-is-gone``            an unplugged GPU has no PCI directory, a plugged one has
    ``dev-as-sysfs``                /dev/dri has the nodes that /sys/class/drm lists
    ``generation-goes-on``          generation_id never goes back, and moves when KFD's nodes change
    ``vram-used-is-what-is-held``   mem_info_vram_used is what was in use at boot plus the live allocations
    ``fork-reads-alike``            a fork reads as its original
    ``fork-stays``                  … and still does when the original has gone on
    =============================== =================================================================

    After a step the GPU it touched and one other are looked at, and what KFD lists anew; after the history,
    everything is. A failing run notes its trace, for ``gpusim replay``. On Python 3.11 the phase
    `Phase.explain` of Hypothesis traces every line and takes most of the time after a failure: better leave
    it out.
    """

    nodes: ClassVar[st.SearchStrategy[NodeSpec]] = nodes(max_gpus=3, sriov=False, odd=False)
    """Where histories begin."""
    make: ClassVar[Any] = Machine
    """Called with a `NodeSpec`; gives the machine."""
    forks: ClassVar[bool] = True
    """Whether the history forks."""

    node: Recorder
    """Actions go through it, so that they are in the trace; what is only read need not."""

    def __init__(self) -> None:
        super().__init__()
        self.gpus: dict[str, Expected] = {}
        self.handles: list[Handle] = []
        self.memory: list[tuple[str, Allocation]] = []
        self.saved: Saved | None = None
        self._turn = 0
        self._touched: list[str] = []
        self._checked: tuple[int, list[str]] = (-1, [])
        self._state: tuple[list[bool], list[bool]] | None = None
        self._known: dict[bytes, Mapping[str, int]] = {}

    @initialize(spec=st.runner().flatmap(lambda self: self.nodes))
    def boot(self, spec: NodeSpec) -> None:
        """The node starts."""
        self.spec = spec
        self.node = Recorder(spec, machine=type(self).make(spec))
        self.machine = self.node.machine
        self._bdf = {place_of(gpu.bdf): gpu.bdf for gpu in spec.gpus}
        facts = [self._node(name) for name in self.machine.list(f"{KFD}/nodes")]
        listed = self._by_gpu([found for found in facts if found["simd_count"]])
        for gpu in spec.gpus:
            mine = listed[gpu.bdf]
            simds = sum(found["simd_count"] for found in mine)
            self.gpus[gpu.bdf] = Expected(gpu.mode, bool(mine), base=self._base(gpu), simds=simds)

    def _base(self, gpu: GpuSpec) -> int:
        """Bytes that the node's description says are in use."""
        return gpu.vram_used

    def bdf(self, place: int) -> str:
        """Address of a GPU by its place, modulo how many there are; what the step touches."""
        bdf = self.spec.gpus[place % len(self.spec.gpus)].bdf
        self._touched.append(bdf)
        return bdf

    # Rules

    @rule(gpu=_GPU, mode=st.sampled_from((*MODES, "no", "")))
    def switch(self, gpu: int, mode: str) -> None:
        """Somebody writes a mode."""
        bdf = self.bdf(gpu)
        seen, before = self.gpus[bdf], self._modes(bdf)
        try:
            self.node.switch(bdf, mode)
        except OSError as error:
            after = self._modes(bdf)
            name = errno.errorcode.get(error.errno or 0, "?")
            why = f"{mode!r} for {bdf} was refused with {name}; before {before}, after {after}"
            ensure(after == before, "refusal-changes-nothing", why)
        else:
            why = f"{bdf} went from {seen.mode} to {mode} while a process holds /dev/kfd"
            busy = any(handle.path == "/dev/kfd" for handle in self.handles)
            ensure(not busy or seen.mode == mode[:3].upper(), "busy-gpu-keeps-its-mode", why)
            seen.mode = mode[:3].upper()

    @rule(gpu=_GPU, chance=st.integers(0, 3))
    def unplug_or_plug(self, gpu: int, chance: int) -> None:
        """A GPU is pulled out, or put back in: one time in four, as it is the rarest thing."""
        if chance:
            return
        bdf = self.bdf(gpu)
        seen = self.gpus[bdf]
        if seen.present:
            self.node.remove(bdf)
            self.memory = [entry for entry in self.memory if entry[0] != bdf]
        else:
            self.node.add(bdf)
            # Under older releases numbers run out by plugging alone (kernel.md 2.6): the probe fails then.
            seen.driven = self._driven(bdf)
            seen.mode = self._mode(bdf) or "SPX"
            seen.hung = False
        seen.present = not seen.present

    @rule(gpu=_GPU)
    def hold(self, gpu: int) -> None:
        """A process starts and opens /dev/kfd."""
        if "kfd" in self.machine.list("/dev"):
            self.handles.append(self.node.open("/dev/kfd", self.node.process()))

    @precondition(lambda self: self.handles)
    @rule(number=_GPU)
    def end(self, number: int) -> None:
        """A process exits."""
        handle = self.handles.pop(number % len(self.handles))
        self._touched += [bdf for bdf, made in self.memory if made.pid == handle.pid]
        self.node.exit(self.machine.processes.get(handle.pid))
        self.memory = [entry for entry in self.memory if entry[1].pid != handle.pid]

    @precondition(lambda self: self.handles)
    @rule(gpu=_GPU, number=_GPU, mib=st.integers(1, 64))
    def allocate(self, gpu: int, number: int, mib: int) -> None:
        """A process takes memory of a GPU."""
        bdf, handle = self.bdf(gpu), self.handles[number % len(self.handles)]
        if self.gpus[bdf].present and self.gpus[bdf].driven:
            process = self.machine.processes.get(handle.pid)
            try:
                made = self.node.allocate_vram(process, bdf, mib * _MIB)
            except OSError as error:
                if error.errno not in _NO_MEMORY:
                    raise
            else:
                self.memory.append((bdf, made))

    @precondition(lambda self: self.memory)
    @rule(number=_GPU)
    def free(self, number: int) -> None:
        """A process gives memory back."""
        bdf, made = self.memory.pop(number % len(self.memory))
        self._touched.append(bdf)
        self.node.free(made)

    @rule(gpu=_GPU)
    def hang_or_recover(self, gpu: int) -> None:
        """A GPU stops answering, or answers again."""
        bdf = self.bdf(gpu)
        seen = self.gpus[bdf]
        if seen.present and seen.driven:
            (self.node.recover if seen.hung else self.node.hang)(bdf)
            seen.hung = not seen.hung

    @precondition(lambda self: self.forks)
    @rule()
    def fork(self) -> None:
        """The history goes on on a fork; the original stays behind."""
        self._look_back()
        self.saved = Saved(self.machine, self._glance(self.machine))
        self.node = self.node.fork()
        self.machine = self.node.machine
        now = self._glance(self.machine)
        differ = [path for path, text in self.saved.read.items() if now.get(path) != text]
        ensure(now == self.saved.read, "fork-reads-alike", f"a fork reads otherwise: {differ}")
        self.handles = [self.machine.processes.handle(handle.number) for handle in self.handles]
        self.memory = [(bdf, self.machine.vram.get(made.number)) for bdf, made in self.memory]

    def teardown(self) -> None:
        """After the history: the fork left behind, and the trace if something broke."""
        if sys.exc_info()[1] is not None:
            if hasattr(self, "node"):
                self._tell()
            return
        try:
            self._look_back()
            self.everything_is_sound()
        except Broken:
            self._tell()
            raise

    def _tell(self) -> None:
        """The trace, and the node for the report of a failed test."""
        note("trace, for `gpusim replay FILE`:\n" + self.node.text())
        witness.note(self.node)

    # Invariants

    @invariant()
    def node_is_sound(self) -> None:
        """All invariants: one line a step in a counter-example."""
        if self.gpus:
            self._turn += 1
            addresses = list(self.gpus)
            looked_at = dict.fromkeys((*self._touched, addresses[self._turn % len(addresses)]))
            self._touched.clear()
            self.kfd_is_sound(looked_at)
            for bdf in looked_at:
                self.gpu_is_sound(bdf)

    def everything_is_sound(self) -> None:
        """After the history: all files of all GPUs and KFD nodes, nothing remembered."""
        if self.gpus:
            self._checked = (-1, [])
            self._state = None
            self.kfd_is_sound(self.gpus)
            for bdf in self.gpus:
                self.gpu_is_sound(bdf)

    def kfd_is_sound(self, touched: Collection[str]) -> None:
        """KFD's nodes where they may have changed; of the GPUs that were touched nothing is remembered."""
        names, changed = self._listed()
        gpus = self.gpus.values()
        state = [seen.present for seen in gpus], [seen.hung for seen in gpus]
        if self._state is None or state[0] != self._state[0]:
            self._devices_agree()
        if changed:
            self._nodes_are_sound(names, {place_of(bdf) for bdf in touched})
        if changed or state != self._state:
            for facts in self._known.values():
                bdf = self._bdf[where(facts)]
                if bdf in touched:
                    self._opens(facts["drm_render_minor"], self.gpus[bdf])
        self._state = state

    def _nodes_are_sound(self, names: list[str], touched: Collection[tuple[int, int]]) -> None:
        ensure(names == [str(n) for n in range(len(names))], "kfd-nodes-without-holes", f"nodes {names}")
        gpus = {}
        for name in names:
            number = self.machine.read(f"{KFD}/nodes/{name}/gpu_id")
            if number != b"0\n":
                ensure(number not in gpus, "partitions-once", f"gpu_id {number!r} of two KFD nodes")
                gpus[number] = name
        before = {number: facts for number, facts in self._known.items() if where(facts) not in touched}
        self._known = {number: before.get(number) or self._node(name) for number, name in gpus.items()}
        minors = [facts["drm_render_minor"] for facts in self._known.values()]
        ensure(len(set(minors)) == len(minors), "partitions-once", f"render minors of KFD nodes: {minors}")
        mine = self._by_gpu(list(self._known.values()))
        for spec in self.spec.gpus:
            self._is_whole(spec.product, spec.bdf, mine[spec.bdf])

    def _is_whole(self, product: str, bdf: str, mine: list[Mapping[str, int]]) -> None:
        seen = self.gpus[bdf]
        ways = PRODUCTS[product].partitions(seen.mode) if seen.present and seen.driven else 0
        simds = sum([facts["simd_count"] for facts in mine])
        if len(mine) != ways or simds != (seen.simds if ways else 0):
            why = f"{bdf} in {seen.mode}: {len(mine)} KFD nodes with {simds} of {seen.simds} SIMDs"
            raise Broken("partitions-make-the-gpu", why)

    def gpu_is_sound(self, bdf: str) -> None:
        """One GPU's own files: its mode, and the bytes in use against a recount."""
        seen, mode = self.gpus[bdf], self._mode(bdf)
        if mode is None:
            there = bdf in self.machine.list(PCI)
            why = f"{bdf}: expected {seen.present}, listed {there}"
            ensure(there == seen.present, "gone-gpu-is-gone", why)
        elif not seen.present:
            raise Broken("gone-gpu-is-gone", f"{bdf} was unplugged and still has files")
        elif mode != seen.mode and not seen.hung:
            raise Broken("mode-as-written", f"{bdf} says {mode}; accepted was {seen.mode}")
        if seen.present and seen.driven and not seen.hung:
            held = sum([made.bytes for where, made in self.memory if where == bdf and made.place == "vram"])
            used = self._vram(bdf)
            if used != seen.base + held:
                why = f"{bdf} says {used} bytes; {seen.base} at boot and {held} held are {seen.base + held}"
                raise Broken("vram-used-is-what-is-held", why)

    # Looking

    def _listed(self) -> tuple[list[str], bool]:
        """KFD's nodes in order, and whether they changed since the last look."""
        generation = int(self.machine.read(f"{KFD}/generation_id"))
        was, before = self._checked
        # What is wrong is put into words when it is: these checks run after every step.
        if generation < was:
            raise Broken("generation-goes-on", f"generation_id went from {was} to {generation}")
        names = sorted(self.machine.list(f"{KFD}/nodes"), key=int)
        if names != before and generation == was:
            why = f"KFD has nodes {names} instead of {before}, and generation_id is {generation} as before"
            raise Broken("generation-goes-on", why)
        self._checked = (generation, names)
        return names, generation != was

    def _devices_agree(self) -> None:
        shown = {name for name in self.machine.list("/sys/class/drm") if _NAME.fullmatch(name)}
        try:
            made = {name for name in self.machine.list("/dev/dri") if _NAME.fullmatch(name)}
        except FileNotFoundError:
            made = set()
        ensure(made == shown, "dev-as-sysfs", f"only in one of /dev/dri and sysfs: {sorted(made ^ shown)}")

    def _opens(self, minor: int, seen: Expected) -> None:
        try:
            self.machine.probe(f"/dev/dri/renderD{minor}")
        except OSError as error:
            hangs = seen.hung and error.errno == errno.EIO
            name = errno.errorcode.get(error.errno or 0, "?")
            ensure(hangs, "listed-partitions-open", f"KFD lists renderD{minor}; opening it is {name}")

    def _node(self, name: str) -> Mapping[str, int]:
        return facts_of(self.machine.read(f"{KFD}/nodes/{name}/properties"))

    def _by_gpu(self, found: Sequence[Mapping[str, int]]) -> dict[str, list[Mapping[str, int]]]:
        """KFD nodes by the GPU with the same domain, bus and device (decision 3)."""
        mine: dict[str, list[Mapping[str, int]]] = {bdf: [] for bdf in self._bdf.values()}
        for facts in found:
            place = where(facts)
            if place not in self._bdf:
                raise Broken("partitions-make-the-gpu", f"a KFD node of no GPU, at {place}")
            mine[self._bdf[place]].append(facts)
        return mine

    def _modes(self, bdf: str) -> list[object]:
        return [self.machine.read(f"{KFD}/generation_id"), self._mode(bdf)]

    def _mode(self, bdf: str) -> str | None:
        """As the file says; None: there is none, the GPU is gone, not driven, or cannot be partitioned."""
        try:
            return str(self.machine.read(f"{PCI}/{bdf}/current_compute_partition").decode().strip())
        except FileNotFoundError:
            return None

    def _driven(self, bdf: str) -> bool:
        return "mem_info_vram_used" in self.machine.list(f"{PCI}/{bdf}")

    def _vram(self, bdf: str) -> int:
        return int(self.machine.read(f"{PCI}/{bdf}/mem_info_vram_used"))

    def _glance(self, machine: Any) -> dict[str, bytes]:
        """A few files that together tell the state."""
        paths = [f"{KFD}/generation_id", f"{KFD}/nodes"]
        for bdf in self.gpus:
            paths += [f"{PCI}/{bdf}/current_compute_partition", f"{PCI}/{bdf}/mem_info_vram_used"]
        found = {}
        for path in paths:
            try:
                found[path] = (
                    " ".join(machine.list(path)).encode() if path.endswith("/nodes") else machine.read(path)
                )
            except OSError as error:
                found[path] = errno.errorcode.get(error.errno or 0, "?").encode()
        return found

    def _look_back(self) -> None:
        if self.saved is not None:
            now = self._glance(self.saved.machine)
            differ = [path for path, text in self.saved.read.items() if now.get(path) != text]
            ensure(not differ, "fork-stays", f"the original of a fork reads otherwise now: {differ}")
