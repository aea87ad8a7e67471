"""What must hold at every moment of a history, checked at every change of the store.

Decision 19 as a list: no compute unit twice, by what pods record and by what containers were given; what was
erased or given stays so; the lock of a pod that ended goes in time, that of a pod that waits stays; in the
end nothing hangs. Counting is `support_oracle`'s.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from devplugin.answers import ContainerEdits
from gpusim.cluster.apishelves import Change
from gpusim.cluster.apistore import Store

from .support_oracle import (
    ALLOCATED,
    LOCK,
    PHASE,
    TO_ALLOCATE,
    Asked,
    Facts,
    Holding,
    add,
    overlap,
    slots_of,
)
from .support_port import Plan

NODE = "n1"
EPOCH = 1_800_000_000
"""Unix seconds at virtual 0."""
TERMINAL = ("Succeeded", "Failed")
LATE = 30.0
"""A lock may outlive its pod by this much (decision 19) …"""
TROUBLED = 12.0
"""… and by two deadlines more where the API server itself does not answer."""

Object = dict[str, Any]


def unix() -> float:
    """Now, as everybody in the cluster sees it."""
    return EPOCH + asyncio.get_running_loop().time()


@dataclass
class Container:
    """What kubelet knows of a container it admitted."""

    slot: tuple[Asked, ...]
    edits: ContainerEdits


@dataclass
class Seen:
    """What was observed of a bound pod, to tell what may not happen to it any more."""

    left: list[tuple[Asked, ...]]
    allocated: str
    phase: str
    held: Holding


class Checks:
    """Watches a store. `broken` keeps the first thing that did not hold."""

    def __init__(self, store: Store, facts: Facts, plan: Plan) -> None:
        self._store, self._facts, self._plan = store, facts, plan
        self.given: dict[str, dict[str, Container]] = {}
        """kubelet's own ledger: pod uid → container → what it was given."""
        self.failure: BaseException | None = None
        self._seen: dict[str, Seen] = {}
        self._recorded: dict[tuple[str, str], Holding] = {}
        self._ended: dict[str, float] = {}
        """``namespace,name`` → since when no pod of that name lives."""
        store.subscribe(self._hear)

    def broken(self, error: BaseException) -> None:
        """What no history may meet; raised at its end."""
        self.failure = self.failure or error

    def lock(self) -> str | None:
        """The node lock."""
        annotations = self._store.peek("nodes", NODE, "")["metadata"].get("annotations") or {}
        found: str | None = annotations.get(LOCK)
        return found

    def _hear(self, change: Change) -> None:
        """Every change of the store, at once."""
        if change.resource == "pods":
            meta = change.obj["metadata"]
            if change.kind == "DELETED" or change.obj["status"].get("phase") in TERMINAL:
                self.given.pop(meta["uid"], None)
                self._ended.setdefault(f"{meta['namespace']},{meta['name']}", unix())
            else:
                self._ended.pop(f"{meta['namespace']},{meta['name']}", None)
            try:
                if change.kind != "DELETED":
                    self._check_history(change.obj)
                self.check_pods()
            except Exception as error:  # whatever it is, it is not the caller's
                self.broken(error)
        elif change.resource == "nodes":
            self.check_lock()
            self._check_release(change)

    def _check_history(self, one: Object) -> None:
        """What was erased stays erased, what was given stays given."""
        meta = one["metadata"]
        if not one["spec"].get("nodeName"):
            return
        annotations = meta["annotations"]
        now = Seen(
            slots_of(annotations[TO_ALLOCATE]),
            annotations[ALLOCATED],
            annotations[PHASE],
            self._holds(one),
        )
        was = self._seen.get(meta["uid"])
        self._seen[meta["uid"]] = now
        if was is None:
            return
        name = meta["name"]
        assert now.allocated == was.allocated, f"{name}: what it was promised changed"
        for old, new in zip(was.left, now.left, strict=True):
            assert new in ((), old), f"{name}: an erased slot came back"
        for bdf, mask in was.held.items():
            assert now.held.get(bdf, 0) & mask == mask, f"{name}: a record lost CUs"
        order = ("allocating", "success", "failed")
        assert order.index(now.phase) >= order.index(was.phase), f"{name}: {was.phase} became {now.phase}"
        if now.phase == "success":
            assert not any(now.left), f"{name}: success with a slot left"

    def _holds(self, one: Object) -> Holding:
        key = (one["metadata"]["uid"], one["metadata"]["resourceVersion"])
        if key not in self._recorded:
            self._recorded[key] = self._facts.recorded(one["metadata"].get("annotations") or {})
        return self._recorded[key]

    def _living(self) -> list[Object]:
        return [
            one
            for one in self._store.select("pods")[0]
            if one["status"].get("phase") not in TERMINAL and one["spec"].get("nodeName")
        ]

    def check_pods(self) -> None:
        """No compute unit twice: by what pods record, and by what containers were given."""
        living = self._living()
        clash = overlap({one["metadata"]["name"]: self._holds(one) for one in living})
        assert not clash, f"recorded: {clash}"
        held: dict[str, Holding] = {}
        for one in living:
            recorded = self._holds(one)
            for name, container in self.given.get(one["metadata"]["uid"], {}).items():
                mine = self._holding_of(container)
                held[f"{one['metadata']['name']}/{name}"] = mine
                for bdf, mask in mine.items():
                    assert recorded.get(bdf, 0) & mask == mask, f"{name} runs on CUs that nobody recorded"
        clash = overlap(held)
        assert not clash, f"given: {clash}"

    def _holding_of(self, container: Container) -> Holding:
        edits = container.edits
        return self._facts.granted(container.slot, edits.envs, [node.path for node in edits.devices])

    def check_running(self, uid: str) -> None:
        """What an admitted pod records is what its containers were given, neither more nor less."""
        (one,) = [one for one in self._store.list("pods") if one["metadata"]["uid"] == uid]
        total: Holding = {}
        for one_of_it in self.given[uid].values():
            for bdf, mask in self._holding_of(one_of_it).items():
                add(total, bdf, mask)
        assert total == self._holds(one), (
            f"{one['metadata']['name']}: {total} given, {self._holds(one)} noted"
        )
        assert one["metadata"]["annotations"][PHASE] == "success"

    def check_lock(self) -> None:
        """A lock whose pod has ended is not older than decision 19 allows."""
        held = self.lock()
        if held is None:
            return
        ended = self._ended.get(held.partition(",")[2])
        if ended is not None and unix() - ended > LATE + (TROUBLED if self._plan.troubles else 0.0):
            self.broken(AssertionError(f"lock {held} outlives its pod by {unix() - ended:.1f} s"))

    def _check_release(self, change: Change) -> None:
        """Nobody takes the lock from a bound pod that lives and waits for devices.

        Except a refusal that could not be written down: the lock goes all the same (amd.md 5.9).
        """
        was = ((change.before or change.obj)["metadata"].get("annotations") or {}).get(LOCK)
        if was is None or was == self.lock() or self._plan.troubles:
            return
        _, namespace, name = was.split(",")
        for one in self._living():
            meta = one["metadata"]
            if (meta["namespace"], meta["name"]) == (namespace, name):
                annotations = meta["annotations"]
                waits = annotations[PHASE] == "allocating" and any(slots_of(annotations[TO_ALLOCATE]))
                if waits:
                    self.broken(AssertionError(f"the lock was taken from {name}, which waits for devices"))

    def at_rest(self) -> None:
        """After the last disturbance: nothing hangs."""
        if self.failure is not None:
            raise self.failure
        assert self.lock() is None, f"locked for ever: {self.lock()}"
        for one in self._store.list("pods", fields=f"spec.nodeName={NODE}"):
            meta = one["metadata"]
            assert meta["annotations"][PHASE] in ("success", "failed"), f"{meta['name']} is stuck"
            if one["status"]["phase"] not in TERMINAL:
                assert not any(slots_of(meta["annotations"][TO_ALLOCATE])), f"{meta['name']} lacks devices"
                assert one["status"]["phase"] == "Running"
