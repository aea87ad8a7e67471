"""Killed before and after every API call of many histories, the daemon leaves nothing wrong behind.

Decision 19 with everything real but kubelet, scheduler and clock: `Allocator` and sweep, the AMD vendor, a
machine, an API server's rules. Each history is lived once undisturbed to number its calls, then once for
each call and each side of it. What must hold is in `support_world`: it is checked at every change of the
store, by a recount that shares nothing with the plugin.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field
from functools import cache

import pytest

from devplugin.amd.settings import Settings
from devplugin.amd.vendor import Amd
from gpusim.cluster.pods import Placed, place, pod
from gpusim.fixture import load
from gpusim.machine import Machine

from .support_checks import NODE
from .support_oracle import LOCK, REGISTER
from .support_port import DEADLINE, Plan
from .support_virtual import run
from .support_world import World

SPX, QPX, RDNA = "mi355x/spx-6.14", "mi355x/qpx-6.14", "rdna4/rx9070-igpu"

HISTORIES = [
    (SPX, 6, 0.0),
    (SPX, 4, 0.0),
    (SPX, 8, 0.05),
    (QPX, 11, 0.0),
    (QPX, 2, 0.0),
    (QPX, 20, 0.05),
    (RDNA, 20, 0.0),
    (RDNA, 10, 0.0),
    (RDNA, 20, 0.05),
]
"""Node, seed, share of calls that a live API server answers badly. A partitioned GPU is in cu mode too."""

CUTS = 60
"""At least so many cut points from each start: with nine of them more than 500."""

CALLS = {
    (when, call)
    for when in ("before", "after")
    for call in ("get node", "list pods", "patch pod", "patch node")
}


@cache
def node(fixture: str) -> tuple[Machine, str]:
    machine = Machine(load(fixture))
    vendor, settings = Amd(), Settings(node_name=NODE, hook_path="/usr/local")
    register = vendor.registration(vendor.discover(machine, settings, None), settings, 0.0)
    text = register.annotations[REGISTER]
    assert text is not None
    return machine, text


def live(fixture: str, plan: Plan, pods: int = 5) -> World:
    """One history to its end; raises what did not hold."""
    random.seed(plan.seed)  # the daemon's own jitter

    async def go() -> World:
        world = World(*node(fixture), plan, seed=plan.seed, pods=pods)
        await world.history()
        return world

    return run(go())


@dataclass
class Proof:
    """What was gone through."""

    points: int = 0
    struck: Counter[tuple[str, str]] = field(default_factory=Counter)
    ran: int = 0
    refused: int = 0

    @property
    def enough(self) -> bool:
        """Whether every kind of call was cut, often, and pods came through and were refused all the same."""
        return (
            self.points >= CUTS
            and set(self.struck) >= CALLS
            and self.ran >= self.struck.total()
            and self.refused > 0
        )


@pytest.mark.parametrize(("fixture", "seed", "trouble"), HISTORIES)
def test_killed_at_every_call_cores_stay_disjoint_locks_go_and_phases_end(
    fixture: str, seed: int, trouble: float
) -> None:
    proof = Proof()
    for another in range(seed, seed + 500, 100):  # a history may be short: then one more
        _cut_everywhere(fixture, another, trouble, proof)
        if proof.enough:
            return
    pytest.fail(f"too little was proved: {proof}")


def _cut_everywhere(fixture: str, seed: int, trouble: float, proof: Proof) -> None:
    calls = Plan(trouble=trouble, seed=seed)
    live(fixture, calls)
    for number in range(calls.busy):
        for when in ("before", "after"):
            if proof.points % 3 == 0:  # and once more, while the next life sweeps or serves
                later = {number + 2 + number % 7: "after" if number % 2 else "before"}
                _cut(fixture, Plan(cuts={number: when, **later}, trouble=trouble, seed=seed), proof)
            plan = Plan(cuts={number: when}, trouble=trouble, seed=seed)
            _cut(fixture, plan, proof)
            assert [cut[:2] for cut in plan.met] == [(number, when)], "the history before the cut is another"
            proof.points += 1


def _cut(fixture: str, plan: Plan, proof: Proof) -> None:
    cuts = dict(plan.cuts)
    try:
        world = live(fixture, plan)
    except BaseException as error:
        error.add_note(f"{fixture}, seed {plan.seed}, trouble {plan.trouble}, cuts {cuts}")
        raise
    assert world.lives == 1 + len(plan.met)
    proof.struck.update((place, call) for _, place, call in plan.met)
    proof.ran += len(world.ran)
    proof.refused += world.refused


@pytest.mark.parametrize("answer", ["500", "lost", "silence unheard"])
@pytest.mark.parametrize("call", [2, 3, 4, 5, 6, 7])
def test_a_dead_pods_lock_goes_in_time_though_one_call_of_the_sweep_fails(call: int, answer: str) -> None:
    async def go() -> float:
        world = World(*node(SPX), Plan(answers={call: answer}), seed=1, pods=0)
        device = next(iter(world.facts.devices.values()))
        world.start()
        await asyncio.sleep(1.0)  # the first sweep, two calls, is over
        world.store.create("pods", pod("web"))
        place(world.store, "web", NODE, [[Placed(device.id, device.type, 1024, 8)]])
        world.store.patch("pods", "web", {"status": {"phase": "Failed"}}, subresource="status")
        ended = asyncio.get_running_loop().time()
        while LOCK in world.store.get("nodes", NODE)["metadata"]["annotations"]:
            await asyncio.sleep(0.1)
        assert world.plan.calls > call, "the call that was to fail did not happen"
        return asyncio.get_running_loop().time() - ended

    deadline = DEADLINE if answer == "silence unheard" else 0.0
    assert run(go()) <= 30.0 + deadline


def test_a_history_is_the_same_every_time() -> None:
    first, second = (Plan(cuts={9: "after"}, trouble=0.1, seed=3) for _ in range(2))
    worlds = [live(SPX, plan) for plan in (first, second)]
    assert (first.calls, first.met, first.troubles) == (second.calls, second.met, second.troubles)
    assert worlds[0].ran == worlds[1].ran
