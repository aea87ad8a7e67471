"""A seeded driver of ledger histories, our ledger on a real file, and a bare model in dicts to hold it to.

The model is the oracle of `test_ledger_histories` and the floor of the guard in `tests/bench`.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from devplugin.ascend import ledgerfile
from gpusim.ascend.ledger import Ledger
from gpusim.ascend.reading import read
from gpusim.ascend.runtime import OUT_OF_MEMORY, RefusedError

STEPS = 60
LIMITS = (40, 25, 60)
SIZES = (0, 1, 5, 9, 20, 25, 40, 41, (1 << 64) - 1, 1 << 64)


class Model:
    """What B.6 says, in dicts: the oracle, and the measure of speed."""

    def __init__(self) -> None:
        self.live: dict[int, dict[int, tuple[int, int]]] = {}
        self.reserved: dict[int, dict[int, tuple[int, int]]] = {}
        self.device: dict[int, int] = {}
        self.dead: set[int] = set()

    def start(self, pid: int) -> None:
        self.live[pid], self.reserved[pid], self.device[pid] = {}, {}, 0

    def used(self, device: int) -> int:
        """Recounted from nothing but the entries."""
        return sum(
            size
            for held in (*self.live.values(), *self.reserved.values())
            for where, size in held.values()
            if where == device
        )

    def sweep(self) -> None:
        for pid in self.dead:
            del self.live[pid], self.reserved[pid], self.device[pid]
        self.dead.clear()

    def set_device(self, pid: int, device: int) -> None:
        self.device[pid] = device

    def reserve(self, pid: int, size: int, token: int) -> bool:
        device = self.device[pid]
        self.sweep()
        if self.used(device) + size > LIMITS[device]:
            return False
        self.reserved[pid][token] = device, size
        return True

    def commit(self, pid: int, token: int, handle: int) -> None:
        self.live[pid][handle] = self.reserved[pid].pop(token)

    def rollback(self, pid: int, token: int) -> None:
        del self.reserved[pid][token]

    def free(self, pid: int, handle: int, code: int) -> None:
        if code == 0:
            self.live[pid].pop(handle, None)

    def die(self, pid: int) -> None:
        self.dead.add(pid)


class Ours:
    """The same verbs on a real file."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.dead: set[int] = set()
        self.ledgers: dict[int, Ledger] = {}
        self.tokens: dict[int, Any] = {}
        self.keeper = Ledger(path, LIMITS, pid=1, alive=self.alive)

    def alive(self, pid: int, _: int) -> bool:
        return pid not in self.dead

    def start(self, pid: int) -> None:
        self.ledgers[pid] = self.keeper.fork(pid)

    def used(self, device: int) -> int:
        return self.keeper.used(device)

    def sweep(self) -> None:
        self.keeper.sweep()

    def set_device(self, pid: int, device: int) -> None:
        self.ledgers[pid].set_device(device)

    def reserve(self, pid: int, size: int, token: int) -> bool:
        try:
            self.tokens[token] = self.ledgers[pid].reserve(size)
        except RefusedError as error:
            assert error.code == OUT_OF_MEMORY
            return False
        return True

    def commit(self, pid: int, token: int, handle: int) -> None:
        self.ledgers[pid].commit(self.tokens.pop(token), handle)

    def rollback(self, pid: int, token: int) -> None:
        self.ledgers[pid].rollback(self.tokens.pop(token))

    def free(self, pid: int, handle: int, code: int) -> None:
        self.ledgers[pid].free(handle, code)

    def die(self, pid: int) -> None:
        self.dead.add(pid)

    def close(self) -> None:
        for ledger in self.ledgers.values():
            ledger._map.close()  # what is left to the dead is not given back
        self.keeper._map.close()


class Driver:
    """A seeded history: what it does next does not depend on whom it does it to, but for what is granted."""

    def __init__(self, seed: int, *subjects: Model | Ours) -> None:
        self.random = random.Random(seed)
        self.subjects = subjects
        self.alive: list[int] = []
        self.handles: dict[int, list[int]] = {}
        self.open: list[tuple[int, int]] = []
        self.serial = 1
        self.done: Counter[str] = Counter()

    def run(self) -> None:
        """All steps; after each, everybody says what is used of each device, and it is the same."""
        for _ in range(STEPS):
            self.step()
            for device in range(len(LIMITS)):
                first, *others = self.all("used", device)
                assert all(other == first for other in others)

    def all(self, verb: str, *arguments: int) -> list[Any]:
        return [getattr(subject, verb)(*arguments) for subject in self.subjects]

    def step(self) -> None:
        chance = self.random.random()
        self.serial += 1
        if not self.alive or (chance < 0.06 and len(self.alive) < 6):
            self.alive.append(self.serial)
            self.handles[self.serial] = []
            self.all("start", self.serial)
            return
        pid = self.random.choice(self.alive)
        if chance < 0.16:
            self.all("set_device", pid, self.random.randrange(len(LIMITS)))
        elif chance < 0.55:
            answers = self.all("reserve", pid, self.random.choice(SIZES), self.serial)
            assert len(set(answers)) == 1
            self.done[f"reserve {answers[0]}"] += 1
            if answers[0]:
                self.open.append((pid, self.serial))
        elif chance < 0.78 and self.open:
            self.settle()
        elif chance < 0.93:
            handles = self.handles[pid]
            handle = self.random.choice(handles) if handles and chance < 0.9 else self.random.randrange(9)
            self.done["free"] += 1
            self.all("free", pid, handle, 0 if chance < 0.87 else 107000)
        elif chance < 0.96:
            self.done["die"] += 1
            self.alive.remove(pid)
            self.open = [entry for entry in self.open if entry[0] != pid]
            self.all("die", pid)
        else:
            self.all("sweep")

    def settle(self) -> None:
        pid, token = self.open.pop(self.random.randrange(len(self.open)))
        if self.random.random() < 0.75:
            handle = self.random.randrange(9)  # handles come again
            self.handles[pid].append(handle)
            self.done["commit"] += 1
            self.all("commit", pid, token, handle)
        else:
            self.done["rollback"] += 1
            self.all("rollback", pid, token)


def agree(model: Model, ours: Ours) -> None:
    data = ours.keeper._map.bytes()
    found = read(data)
    # The dead count until they are swept, in both.
    assert found.used == tuple(model.used(device) for device in range(len(LIMITS)))
    assert found.reserved == tuple(
        sum(size for held in model.reserved.values() for where, size in held.values() if where == device)
        for device in range(len(LIMITS))
    )
    assert all(used <= limit for used, limit in zip(found.used, LIMITS, strict=True))
    assert found.stored_total == found.total == sum(found.used)
    assert ledgerfile.parse(data).used == found.used
