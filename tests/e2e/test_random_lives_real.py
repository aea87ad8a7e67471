"""A hundred random pod lives with real processes: daemon, kubelet, API server, scheduler, a served machine.

The same end conditions as on virtual time (`test_random_lives`), with what only processes and sockets do:
SIGKILL in the middle of an Allocate, connections refused, a kubelet that forgets its plugins, a switch that
is found at the next pulse.
"""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from devplugin.amd.settings import Settings
from devplugin.amd.taken import rebuild
from devplugin.amd.vendor import Amd
from devplugin.kubejson import read_pods
from gpusim.cluster.pods import PlacementError

from ..devplugin.daemon.rig import NODE, until
from .support_node import GPU, TERMINAL
from .support_oracle import LOCK, PHASE, REGISTER, TO_ALLOCATE, Facts, Holding, add, overlap, slots_of
from .test_scheduler_lives import Cluster, slice_

LIVES = 50
"""Of each mode."""


@dataclass
class Told:
    """What happened so far, for whoever has to read a failure."""

    cluster: Cluster
    mode: str
    sentences: list[str] = field(default_factory=list)
    switched: bool = False

    def say(self, sentence: str) -> None:
        self.sentences.append(sentence)

    # -- the recount -------------------------------------------------------------------------------------

    def holdings(self) -> dict[str, Holding]:
        """Pod/container → compute units, by what runs."""
        facts = Facts(self.cluster.machine, "[]")
        found: dict[str, Holding] = {}
        for one in self.cluster.store.list("pods"):
            if one["status"].get("phase") != "Running":
                continue
            name = one["metadata"]["name"]
            for part, edits in self.cluster.given(name).items():
                paths = [device.host_path for device in edits.devices]
                if any("/renderD" in path for path in paths):
                    held: Holding = {}
                    for bdf, mask in facts.visible(edits.envs, paths).items():
                        add(held, bdf, mask)
                    found[f"{name}/{part}"] = held
        return found

    def nothing_twice(self) -> None:
        clash = overlap(self.holdings())
        assert not clash, clash

    def at_rest(self) -> None:
        """No lock, nobody stuck, registration and account as they should be."""
        store = self.cluster.store
        until(lambda: self.cluster.node_annotation(LOCK) is None, 32, lambda: "locked for ever")
        bound = store.list("pods", fields=f"spec.nodeName={NODE}")
        for one in bound:
            name = one["metadata"]["name"]
            until(lambda at=name: self.cluster.annotation(at, PHASE) in ("success", "failed"), 32)
            if self.cluster.phase(name) not in TERMINAL:
                assert self.cluster.phase(name) == "Running"
                assert not any(slots_of(str(self.cluster.annotation(name, TO_ALLOCATE))))
        self.nothing_twice()
        vendor = Amd()
        settings = Settings(node_name=NODE, mode=self.mode, hook_path="/usr/local")
        fresh = vendor.discover(self.cluster.machine, settings, None)
        wanted = vendor.registration(fresh, settings, 0.0).annotations[REGISTER]
        until(
            lambda: self.cluster.node_annotation(REGISTER) == wanted,
            35,
            lambda: "the registration is not a fresh start's",
        )
        pods = read_pods(json.dumps({"items": store.list("pods", fields=f"spec.nodeName={NODE}")}).encode())
        counted: Holding = {}
        for held in self.holdings().values():
            for bdf, mask in held.items():
                add(counted, bdf, mask)
        taken = rebuild(fresh, settings, pods, None)
        assert not taken.blocked
        assert {bdf: mask for bdf, mask in taken.masks.items() if mask} == counted

    # -- trouble -----------------------------------------------------------------------------------------

    def kill(self) -> None:
        self.say("The daemon is killed.")
        assert self.cluster.plugin.end(signal.SIGKILL) == -signal.SIGKILL
        before = sum(event.kind == "registered" for event in self.cluster.kubelet.events)
        self.cluster.plugin = self.cluster.start(*self.cluster.flags)
        self.registered(before)

    def registered(self, before: int) -> None:
        """kubelet knows the plugin again."""
        kubelet = self.cluster.kubelet
        until(lambda: sum(event.kind == "registered" for event in kubelet.events) > before, 30)
        until(lambda: kubelet.allocatable(GPU) > 0, 30)

    def outage(self) -> None:
        self.say("The API server is away for 0.7 s.")
        self.cluster.server.down()
        time.sleep(0.7)
        self.cluster.server.up()

    def kubelet(self) -> None:
        self.say("Kubelet is restarted.")
        before = sum(event.kind == "registered" for event in self.cluster.kubelet.events)
        self.cluster.kubelet.restart()
        self.registered(before)

    def switch(self) -> None:
        """An idle GPU, when no pod is on its way to it."""
        while True:
            self.settle()
            used = {bdf for held in self.holdings().values() for bdf in held}
            idle = [gpu.bdf for gpu in self.cluster.machine.spec.gpus if gpu.bdf not in used]
            if idle:
                break
            self.leave(self.names()[0])
        first = idle[0]
        before = self.cluster.node_annotation(REGISTER)
        self.say(f"GPU {first}, which nobody uses, is switched to SPX.")
        self.cluster.machine.switch(first, "SPX")
        until(lambda: self.cluster.node_annotation(REGISTER) != before, 35)
        self.switched = True

    # -- pods --------------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        return [one["metadata"]["name"] for one in self.cluster.store.list("pods")]

    def settle(self) -> None:
        """Nobody is on the way: all are running, ended, or find no room."""

        def decided() -> bool:
            pods = self.cluster.store.list("pods")
            waits = [p for p in pods if p["spec"].get("nodeName") and p["status"].get("phase") == "Pending"]
            return not waits and self.cluster.node_annotation(LOCK) is None

        until(decided, 40, lambda: "pods on their way do not arrive")

    def leave(self, name: str) -> None:
        self.say(f"Pod {name} is deleted.")
        self.cluster.delete(name)

    def leave_all(self) -> None:
        for name in self.names():
            self.leave(name)


def wishes(chance: random.Random, mode: str) -> list[dict[str, int] | None]:
    """Containers that fit on an empty node."""
    found: list[dict[str, int] | None] = []
    for _ in range(chance.choice((1, 1, 2, 3))):
        part = slice_(chance.randrange(1, 90_000), chance.randrange(1, 60), chance.choice((1, 1, 2)))
        hard = {GPU: chance.choice((1, 1, 2, 3))}
        found.append(
            chance.choice((None, {GPU: 1}, part, part, part) if mode == "cu" else (None, hard, hard))
        )
    return found if any(found) else [{GPU: 1}]


def lives(told: Told, seed: int, troubles: dict[int, Callable[[], None]]) -> tuple[int, int]:
    """`LIVES` pods come, run and go, with troubles at their numbers; how many ran and failed."""
    cluster, chance = told.cluster, random.Random(seed)
    ran: set[str] = set()
    failed: set[str] = set()
    for number in range(LIVES):
        name = f"web-{number}"
        asked = wishes(chance, told.mode)
        told.say(f"Pod {name} is created; its containers ask for {asked}.")
        cluster.create(name, *asked)
        if number in troubles:
            time.sleep(chance.uniform(0.0, 0.08))  # somewhere between its filter and its last Allocate
            troubles[number]()
        moved = time.monotonic()
        while True:
            phase = cluster.phase(name)
            if phase in ("Running", *TERMINAL):
                (ran if phase == "Running" else failed).add(name)
                break
            if time.monotonic() - moved > 0.5 and cluster.said("unplaced", name):  # full: somebody leaves
                moved = time.monotonic()
                others = [other for other in told.names() if other != name]
                if others:
                    told.leave(chance.choice(others))
            assert time.monotonic() - moved < 45, f"{name} is stuck"
            time.sleep(0.01)
        told.nothing_twice()
        if chance.random() < 0.45 and name in told.names():
            if chance.random() < 0.5 and name in ran:
                told.say(f"Pod {name} ends by itself.")
                cluster.store.patch("pods", name, {"status": {"phase": "Succeeded"}}, subresource="status")
            else:
                told.leave(name)
    return len(ran), len(failed)


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("mode", "fixture", "resources"),
    [("cu", "mi355x/spx-6.14", {GPU: 80}), ("partition", "mi355x/qpx-6.14", {GPU: 32})],
)
def test_fifty_random_lives_with_real_processes_end_in_order(
    mode: str, fixture: str, resources: dict[str, int]
) -> None:
    with Cluster(fixture, mode, ("-pulse", "1"), resources) as cluster:
        told = Told(cluster, mode)
        troubles: dict[int, Callable[[], None]] = {
            7: told.kill,
            15: told.outage,
            24: told.kill,
            33: told.kubelet,
        }
        if mode == "partition":
            troubles[40] = told.switch
        try:
            ran, failed = lives(told, 1, troubles)
            told.settle()
            told.at_rest()
            told.leave_all()
            told.at_rest()
            assert told.switched == (mode == "partition")
            count = len(json.loads(str(cluster.node_annotation(REGISTER))))
            cluster.create("all", {GPU: count})
            cluster.runs("all")
            cluster.delete("all")
        except (AssertionError, TimeoutError, PlacementError) as error:
            error.add_note("\n".join(f"{n:3}. {text}" for n, text in enumerate(told.sentences, 1)))
            raise
        assert ran + failed == LIVES
        assert failed <= len(troubles) + 2
