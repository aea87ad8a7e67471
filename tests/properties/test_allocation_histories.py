"""Any history of pods, ends, crashes and sweeps: living CU sets stay disjoint, locks and phases heal.

The world is an API server of values: each write of the plugin is one step, and a crash may fall before or
after each (decision 19). Kubelet fails the pod whose Allocate did not answer.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from devplugin.amd import cumask
from devplugin.amd.taken import VOCABULARY
from devplugin.amd.vendor import Amd
from devplugin.answers import FactRequest
from devplugin.hami import (
    ALLOCATING,
    BIND_PHASE,
    LOCK,
    Node,
    Pod,
    decode,
    may_release,
    owner_of,
    slots_left,
    sweep,
)
from devplugin.plan import Denied, Granted, plan

from ..devplugin.amd.builders import CU, cut_gpu, inventory, node, pod, soft_gpu

GPUS = inventory(
    soft_gpu("rdna", cus=16, gfx=120001, render=128, node=1),
    soft_gpu("cdna", cus=12, render=129, node=2),
    cut_gpu("cut", compute="dpx", ways=2, cus=4, first_node=3, first_render=140),
)
TOTALS = {gpu.id: gpu.cus for gpu in GPUS.gpus}
MIB = {"rdna": 16304, "cdna": 16304, "cut": 294896}
THERE = {FactRequest("file", "/usr/local/vgpu/libamvgpu.so"): True}

devices = st.tuples(st.sampled_from(sorted(TOTALS)), st.sampled_from([0, 1, 2, 3, 5, 8, 99]), st.booleans())
slots = st.lists(devices, min_size=1, max_size=2, unique_by=lambda device: device[0])
STEPS = ("before the patch", "after the patch", "after the release", "never")


class Histories(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.pods: dict[str, Pod] = {}
        self.node: Node = node()
        self.given: dict[str, dict[str, int]] = {}
        """Pod → device → CUs of the containers that run."""
        self.clock = 0

    # ---- the scheduler

    @precondition(lambda self: LOCK not in self.node.annotations)
    @rule(wanted=st.lists(slots, min_size=1, max_size=2), gap=st.booleans())
    def schedule(self, wanted: list[list[tuple[str, int, bool]]], gap: bool) -> None:
        self.clock += 1
        text = ";" * gap + "".join(
            "".join(
                f"{name},AMD,{MIB[name] if full else 1024},{min(cores, TOTALS[name])}:"
                for name, cores, full in slot
            )
            + ";"
            for slot in wanted
        )
        name = f"p{self.clock}"
        self.pods[name] = pod(text, name=name, bind_time=str(self.clock))
        self.node = node(f"2026-11-30T10:00:00Z,default,{name}")

    @precondition(lambda self: LOCK not in self.node.annotations)
    @rule(slot=slots)
    def place_and_serve(self, slot: list[tuple[str, int, bool]]) -> None:
        """The common case: one container, placed, served and started without any trouble."""
        self.schedule([slot], gap=False)
        self.serve(self.pods[f"p{self.clock}"], "never")

    # ---- kubelet and the plugin

    def waiting(self) -> list[Pod]:
        return [p for p in self.pods.values() if not p.terminal and p.bind_phase == ALLOCATING]

    @precondition(lambda self: self.waiting())
    @rule(data=st.data(), crash=st.sampled_from(STEPS))
    def allocate(self, data: st.DataObject, crash: str) -> None:
        self.serve(data.draw(st.sampled_from(self.waiting())), crash)

    def serve(self, meant: Pod, crash: str) -> None:
        sizes = [len(slot) for slot in decode(meant.annotations[VOCABULARY.to_allocate]) if slot]
        if not sizes:
            return
        decision = plan(
            Amd(),
            GPUS,
            CU,
            node=self.node,
            pods=list(self.pods.values()),
            ids=[f"x#{i}" for i in range(sizes[0])],
            facts=THERE,
        )
        if crash == "before the patch":
            self.fail(meant)
            return
        if isinstance(decision, Denied):
            if decision.pod is not None:
                self.patch(decision.pod, dict(decision.patch or {}))
                if crash != "after the patch":
                    self.release(decision.pod)
            self.fail(meant)
            return
        assert isinstance(decision, Granted)
        served = decision.claim.pod
        assert served is not None
        self.patch(served, dict(decision.patch))
        if decision.release and crash != "after the patch":
            self.release(served)
        if crash != "never":
            self.fail(meant)
            return
        self.start(meant, served, decision)

    def start(self, meant: Pod, served: Pod, decision: Granted) -> None:
        """The container runs; its CUs are those its environment names, whichever pod they were meant for."""
        if meant.name != served.name:
            self.fail(meant)  # kubelet's pod runs with another's devices: it is ended at once in this world
            return
        envs = decision.allocation.edits.envs
        nodes = [part for gpu in GPUS.gpus for part in gpu.partitions]
        nodes = [
            p
            for p in nodes
            if f"/dev/dri/renderD{p.render_minor}" in {d.path for d in decision.allocation.edits.devices}
        ]
        by_rank = sorted(nodes, key=lambda part: part.node)
        visible = [by_rank[int(index)] for index in envs["ROCR_VISIBLE_DEVICES"].split(",")]
        unlimited = {
            wanted.id
            for wanted in decision.claim.devices
            if wanted.cores == 0 and 0 < wanted.memory_mib < MIB[wanted.id]
        }
        held = self.given.setdefault(served.name, {})
        for entry in envs["HSA_CU_MASK"].split(";"):
            index, cus = entry.split(":")
            part = visible[int(index)]
            gpu = next(g for g in GPUS.gpus if part in g.partitions)
            if gpu.id in unlimited:
                continue
            shift = sum(p.cus for p in gpu.partitions[: part.number])
            held[gpu.id] = held.get(gpu.id, 0) | cumask.parse(cus, part.cus) << shift

    # ---- the API server

    def patch(self, target: Pod, patch: dict[str, str | None]) -> None:
        current = self.pods[target.name]
        merged = {**current.annotations, **{k: v for k, v in patch.items() if v is not None}}
        self.pods[target.name] = replace(current, annotations=merged)

    def release(self, owner: Pod) -> None:
        if may_release(self.node, owner):
            self.node = node()

    def fail(self, target: Pod) -> None:
        self.pods[target.name] = replace(self.pods[target.name], phase="Failed")
        self.given.pop(target.name, None)

    # ---- the passing of time

    @precondition(lambda self: self.pods)
    @rule(data=st.data(), phase=st.sampled_from(["Succeeded", "Failed", None]))
    def end(self, data: st.DataObject, phase: str | None) -> None:
        name = data.draw(st.sampled_from(sorted(self.pods)))
        self.given.pop(name, None)
        if phase is None:
            del self.pods[name]
        else:
            self.pods[name] = replace(self.pods[name], phase=phase)

    @rule()
    def lock_expires(self) -> None:
        """The scheduler takes an old lock over: its owner goes on without one (D.7)."""
        self.node = node()

    @rule()
    def sweep(self) -> None:
        named = owner_of(self.node)
        owner = self.pods.get(named[1]) if named else None
        result = sweep(self.node, owner, list(self.pods.values()))
        for mark in result.marks:
            self.patch(mark.pod, {BIND_PHASE: mark.phase})
        if result.release:
            self.node = node()
        for left in self.pods.values():
            if left.bind_phase == ALLOCATING:
                assert not left.terminal
                assert slots_left(left.annotations)
        if LOCK in self.node.annotations:
            assert owner is not None
            assert not owner.terminal
            assert slots_left(owner.annotations)

    # ---- what always holds

    @invariant()
    def living_cu_sets_are_disjoint(self) -> None:
        in_use: dict[str, int] = {}
        for held in self.given.values():
            for identifier, mask in held.items():
                assert not in_use.get(identifier, 0) & mask
                assert mask < 1 << TOTALS[identifier]
                in_use[identifier] = in_use.get(identifier, 0) | mask

    @invariant()
    def a_success_has_no_slot_left(self) -> None:
        for each in self.pods.values():
            if each.bind_phase == "success":
                assert not slots_left(each.annotations)


TestHistories = pytest.mark.timeout(300)(Histories.TestCase)
