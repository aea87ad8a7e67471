"""Killed at any call, before it or after it: cores stay disjoint, locks and phases come to rest.

Decision 19 as a property of the walk itself, with the toy vendor: a plugin is cut at one call of one
Allocate (and perhaps once more in the sweep that follows), kubelet fails the pod it got no answer for,
a new plugin begins with a sweep, and work goes on.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from devplugin import kube
from devplugin.answers import ContainerEdits, Refused
from devplugin.daemon.allocate import Allocator, Budget
from devplugin.hami import BIND_PHASE, LOCK, slots_left
from devplugin.kubejson import read_pods
from gpusim.cluster.apistore import Store
from gpusim.cluster.pods import Placed, container, place, pod, take_lock

from .storeapi import StoreApi
from .toyplugin import TAKEN, Inventory, Settings, Thing, Toy, cores_taken

HURRIED = Budget(answer=2.0, gather=0.0, release=1.0, pause=0.0, tries=3)
THINGS = Inventory((Thing("a", True, ()), Thing("b", True, ())))


class Killed(BaseException):
    """The process is gone: nothing after this line runs."""


class Cut:
    """Ends the process (or the connection) once, at one call, before or after it is carried out."""

    def __init__(self, number: int, when: str, kill: bool) -> None:
        self.left, self.when, self.kill = number, when, kill
        self.done = False

    def __call__(self, number: int, when: str, call: str) -> None:
        if self.done or when != self.when:
            return
        if self.left:
            self.left -= 1
            return
        self.done = True
        raise Killed() if self.kill else kube.Unavailable(f"cut {when} {call}")


cuts = st.builds(Cut, st.integers(0, 14), st.sampled_from(["before", "after"]), st.booleans())

pods = st.lists(
    st.lists(
        st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 9)), max_size=2, unique_by=lambda d: d[0]),
        min_size=1,
        max_size=3,
    ).filter(any),
    min_size=1,
    max_size=4,
)


class Node:
    """One node's life: a store, a kubelet's view of its pods, and one plugin after the other."""

    def __init__(self) -> None:
        self.store = Store()
        self.store.create("nodes", {"metadata": {"name": "n1"}})
        self.handed: dict[str, dict[str, set[int]]] = {}

    def plugin(self, cut: Any) -> Allocator[Any, Any]:
        async def facts(requests: Any) -> Any:
            return dict.fromkeys(requests, True)

        return Allocator(
            StoreApi(self.store, cut),
            Toy(),
            settings=Settings(),
            node="n1",
            current=lambda: THINGS,
            facts=facts,
            budget=HURRIED,
        )

    def fail(self, name: str) -> None:
        self.store.patch("pods", name, {"status": {"phase": "Failed"}}, subresource="status")
        self.handed.pop(name, None)

    async def run(self, name: str, slots: list[list[tuple[str, int]]], cut: Any) -> bool:
        """Schedule and admit one pod; whether the plugin survived it."""
        self.store.create("pods", pod(name, [container(f"c{i}") for i in range(len(slots))]))
        placed = [[Placed(thing, "Toy", 1, cores) for thing, cores in slot] for slot in slots]
        place(self.store, name, "n1", placed, word="toy")
        plugin = self.plugin(cut)
        for slot in slots:
            if not slot:
                continue
            try:
                edits = await plugin.allocate([f"{thing}#0" for thing, _ in slot])
            except Killed:
                self.fail(name)  # kubelet lost the connection: UnexpectedAdmissionError
                return False
            except (Refused, kube.Unavailable):
                self.fail(name)
                return True
            self.keep(name, edits)
        self.store.patch("pods", name, {"status": {"phase": "Running"}}, subresource="status")
        return True

    def keep(self, name: str, edits: ContainerEdits) -> None:
        self.handed[name] = {
            thing: set(cores) for thing, cores in json.loads(edits.envs["TOY_CORES"]).items()
        }

    async def sweep(self, cut: Any = None) -> None:
        try:
            await self.plugin(cut).sweep()
        except (Killed, kube.KubeError):
            await self.plugin(None).sweep()

    def check(self) -> None:
        found = read_pods(json.dumps({"items": self.store.list("pods")}).encode())
        recorded = cores_taken(found)  # fails where two live pods overlap
        for name, things in self.handed.items():
            for thing, cores in things.items():
                assert cores <= recorded.get(thing, set()), f"{name} runs on cores nobody recorded"
        live = [
            (name, thing, core) for name, t in self.handed.items() for thing, c in t.items() for core in c
        ]
        assert len({(thing, core) for _, thing, core in live}) == len(live), "two containers share a core"

    def at_rest(self) -> None:
        lock = (self.store.get("nodes", "n1")["metadata"].get("annotations") or {}).get(LOCK)
        assert lock is None, "a lock outlives its pod"
        for one in read_pods(json.dumps({"items": self.store.list("pods")}).encode()):
            assert one.annotations.get(BIND_PHASE) in {"success", "failed"}, f"{one} is stuck"
            assert one.terminal or not slots_left(one.annotations)


@settings(max_examples=500)
@given(work=pods, first=cuts, second=cuts, at=st.integers(0, 3))
def test_cores_stay_disjoint_and_everything_comes_to_rest_wherever_it_is_cut(
    work: list[list[list[tuple[str, int]]]], first: Cut, second: Cut, at: int
) -> None:
    async def go() -> None:
        first.done = second.done = False
        node = Node()
        await node.plugin(None).sweep()
        for number, slots in enumerate(work):
            name = f"p{number}"
            hit = number == at % len(work)
            await node.run(name, slots, first if hit else None)
            node.check()
            await node.sweep(second if hit else None)  # at the next start, or within 30 s
            node.check()
            node.at_rest()

    asyncio.run(go())


def test_cut_at_each_call_of_one_allocate_the_next_pod_gets_what_is_free() -> None:
    async def go() -> list[tuple[str, str]]:
        survived = []
        for when in ("before", "after"):
            for number in range(6):
                node = Node()
                cut = Cut(number, when, kill=True)
                alive = await node.run("p0", [[("a", 9)]], cut)
                await node.sweep()
                node.at_rest()
                await node.run("p1", [[("a", 9)]], None)
                node.check()
                node.at_rest()
                held = json.loads(node.store.get("pods", "p1")["metadata"]["annotations"].get(TAKEN, "{}"))
                # sixteen cores: both fit only if the first pod ended with the plugin
                assert held == ({} if alive else {"a": list(range(9))}), (when, number)
                survived.append((when, str(number)) if alive else ("", ""))
        return survived

    # the last call is the background event: by then the answer is given
    assert [one for one in asyncio.run(go()) if one[0]] == [("before", "5"), ("after", "5")]


def test_a_lock_taken_for_the_next_pod_is_not_released_by_the_sweep_for_the_last_one() -> None:
    async def go() -> None:
        node = Node()
        await node.run("p0", [[("a", 1)]], Cut(3, "before", kill=True))  # patched, not released
        node.store.patch("nodes", "n1", {"metadata": {"annotations": {LOCK: None}}})  # expired
        node.store.create("pods", pod("p1"))
        take_lock(node.store, "n1", "p1")
        place(node.store, "p1", "n1", [[Placed("a", "Toy", 1, 1)]], word="toy")
        await node.sweep()
        lock = node.store.get("nodes", "n1")["metadata"]["annotations"][LOCK]
        assert lock.endswith(",default,p1")

    asyncio.run(go())
