"""A HAMi scheduler as far as a node can tell: which devices, the node lock, the Binding (D.7, D.8, D.10).

It keeps no ledger but the pods' own annotations, packs pods together where they could collide, and two of
its threads contend for the lock. What it writes is `gpusim.cluster.pods.place`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from gpusim.cluster.apistatus import ApiError
from gpusim.cluster.apistore import Store
from gpusim.cluster.pods import Placed, PlacementError, container, place, pod, release_lock

from .support_checks import NODE, TERMINAL, unix
from .support_oracle import ALLOCATED, LOCK, Asked, Device, slots_of

EXPIRY = 300.0
"""A lock is taken over after five minutes (D.7)."""
PATIENCE = 120.0
"""Seconds after which somebody deletes a pod that finds no room."""

Object = dict[str, Any]
Slots = list[list[Asked]]


class Scheduler:
    """Creates pods and places them.

    Args:
        store: the API server.
        devices: what the node's register annotation offers.
        seed: of its choices.
        pods: how many come.
    """

    def __init__(self, store: Store, devices: Mapping[str, Device], *, seed: int, pods: int) -> None:
        self._store, self._devices, self._pods = store, devices, pods
        self._wishing, self._placing = random.Random(f"pods {seed}"), random.Random(f"place {seed}")
        self._asking: list[tuple[str, str, Slots]] = []
        """Pods not placed yet: name, uid, slots by container."""
        self._news = asyncio.Event()
        self.binding = asyncio.Lock()
        """Held while a pod is bound; whoever else holds it keeps pods away."""
        self.quiet = False
        """Nothing goes wrong any more."""

    async def run(self) -> None:
        """Until all pods came and were placed, or gone."""
        await asyncio.gather(*(self._binder(turn) for turn in range(2)), self._arrivals())

    async def probe(self) -> None:
        """Place one small pod more, now."""
        self._asks("probe", [[Asked("", 1, 1)]])
        await self._bind_next()

    async def _arrivals(self) -> None:
        random = self._wishing
        for number in range(self._pods):
            await asyncio.sleep(random.expovariate(1.0))
            # Two pods share a name now and then, as those of a StatefulSet do one after the other.
            name = f"web-{number}" if random.random() < 0.7 else "web"
            while any(one["metadata"]["name"] == name for one in self._store.list("pods")):
                await asyncio.sleep(0.5)
                name = f"web-{number}"
            self._asks(name, self._wishes())

    def _asks(self, name: str, slots: Slots) -> None:
        limits = [{"amd.com/gpu": len(slot)} if slot else None for slot in slots]
        made = self._store.create(
            "pods", pod(name, [container(f"c{i}", one) for i, one in enumerate(limits)])
        )
        self._asking.append((name, made["metadata"]["uid"], slots))
        self._news.set()

    def _wishes(self) -> Slots:
        """Containers by kind; device ids are chosen when the pod is placed."""
        random = self._wishing
        slots: Slots = []
        for _ in range(random.choice((1, 1, 1, 2, 2, 3))):
            kind = random.choice(("none", "slice", "slice", "slice", "thin", "whole", "mix", "two"))
            devices = list(self._devices.values())
            big = devices[0]
            cut = Asked("", random.randint(1, big.memory // 4), random.randint(1, max(1, big.cores // 3)))
            thin = Asked("", random.randint(1, big.memory // 8), 0)
            whole = Asked("", 0, -1)  # all of whatever device it is put on
            slots.append(
                {
                    "none": [],
                    "slice": [cut],
                    "thin": [thin],
                    "whole": [whole],
                    "mix": [whole, cut] if random.random() < 0.5 else [cut, whole],
                    "two": [cut, thin],
                }[kind]
            )
        if not any(slots):
            slots[0] = [Asked("", 1, 1)]
        return slots

    def _usage(self, but: str = "") -> dict[str, list[int]]:
        """The scheduler's own ledger: device → sharers, MiB and CUs promised to other pods that live."""
        used = {name: [0, 0, 0] for name in self._devices}
        for one in self._store.list("pods"):
            if one["status"].get("phase") in TERMINAL or one["metadata"]["name"] == but:
                continue
            for slot in slots_of((one["metadata"].get("annotations") or {}).get(ALLOCATED, "")):
                for asked in slot:
                    device = self._devices[asked.id]
                    use = used[asked.id]
                    use[0] += 1
                    use[1] += asked.memory
                    # The plugin hands out whole work-group processors, and HAMi counts them so.
                    use[2] += min(-(-asked.cores // device.unit) * device.unit, device.cores)
        return used

    def _fit(self, used: dict[str, list[int]], memory: int, cores: int) -> list[Device]:
        """Devices with room, the fullest first: pods are packed together, where they could collide."""
        found = []
        for device in self._devices.values():
            sharers, taken_memory, taken_cores = used[device.id]
            wanted_memory = device.memory if cores < 0 else min(memory, device.memory)
            wanted_cores = device.cores if cores < 0 else min(cores, device.cores)
            wanted_cores = min(-(-wanted_cores // device.unit) * device.unit, device.cores)
            if (
                sharers < device.count
                and taken_memory + wanted_memory <= device.memory
                and taken_cores + wanted_cores <= device.cores
                and not (cores < 0 and sharers)
            ):
                found.append(device)
        return sorted(found, key=lambda device: (-used[device.id][0], device.id))

    def _choose(self, name: str, slots: Slots) -> list[list[Placed]] | None:
        """Devices for all slots, or None while there is no room."""
        used = self._usage(name)
        placed: list[list[Placed]] = []
        for slot in slots:
            chosen: list[Placed] = []
            for asked in slot:
                free = [
                    device
                    for device in self._fit(used, asked.memory, asked.cores)
                    if device.id not in {one.id for one in chosen}
                ]
                if not free:
                    return None
                device = free[0] if self._placing.random() < 0.8 else self._placing.choice(free)
                whole = asked.cores < 0
                memory = device.memory if whole else min(asked.memory, device.memory - 1)
                cores = device.cores if whole else min(asked.cores, device.cores)
                chosen.append(Placed(device.id, device.type, memory, cores))
                use = used[device.id]
                use[0] += 1
                use[1] += memory
                use[2] += min(-(-cores // device.unit) * device.unit, device.cores)
            placed.append(chosen)
        # HAMi pads containers without devices under another key, so AMD's slots may be shifted (D.8).
        if self._placing.random() < 0.5:
            placed = [slot for slot in placed if slot]
        return placed + [[]] * self._placing.choice((0, 0, 1))

    async def _binder(self, turn: int) -> None:
        """One of the scheduler's binding threads: they contend for the node lock."""
        placed = 0
        while placed < self._pods // 2 + (self._pods % 2 if turn == 0 else 0):
            if not self._asking:
                self._news.clear()
                await self._news.wait()
                continue
            await self._bind_next()
            placed += 1

    async def _bind_next(self) -> None:
        name, uid, slots = self._asking.pop(0)
        patience = unix() + PATIENCE
        while unix() < patience:
            if not self._lives(name, uid):
                return  # deleted meanwhile
            placed = self._choose(name, slots)
            if placed is not None:
                async with self.binding:
                    done = not self._lives(name, uid) or await self._try_bind(name, placed)
                if done:
                    return
            await asyncio.sleep(self._placing.uniform(0.2, 1.0))
        if self._lives(name, uid):
            self._store.delete("pods", name)  # somebody gives up on it

    async def _try_bind(self, name: str, placed: list[list[Placed]]) -> bool:
        self._take_over()
        try:
            place(self._store, name, NODE, placed, now=unix(), bind=False)
        except PlacementError:
            return False
        except ApiError:
            return True  # gone
        await asyncio.sleep(self._placing.uniform(0.0, 0.1))
        if not self.quiet and self._placing.random() < 0.1:  # the Binding is refused; the phase stays (D.8)
            release_lock(self._store, NODE, name)
            return False
        try:
            self._store.bind(name, NODE)
        except ApiError:
            release_lock(self._store, NODE, name)
            return True
        return True

    def _take_over(self) -> None:
        """Take the lock of a pod that does not exist, and any that is five minutes old (D.7)."""
        held = (self._store.get("nodes", NODE)["metadata"].get("annotations") or {}).get(LOCK)
        if held is None:
            return
        stamp, namespace, name = held.split(",")
        try:
            self._store.get("pods", name, namespace)
        except ApiError:
            gone = True
        else:
            gone = False
        if gone or unix() - datetime.fromisoformat(stamp).timestamp() > EXPIRY:
            self._store.patch("nodes", NODE, {"metadata": {"annotations": {LOCK: None}}})

    def _lives(self, name: str, uid: str) -> bool:
        try:
            return bool(self._store.get("pods", name)["metadata"]["uid"] == uid)
        except ApiError:
            return False
