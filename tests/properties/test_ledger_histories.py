"""Random histories of NPU ledgers against a naive recount in ints (B.6 and its invariants).

Three drivers: thousands of seeded histories of simulated processes, which also may cost no more than three
times a bare model in dicts; Hypothesis, which shrinks; and real processes that allocate, free, fork and are
killed on one file, with threads in each.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import random
import signal
import struct
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import settings

from devplugin.ascend import ledgerfile
from gpusim.ascend.ledger import Ledger
from gpusim.ascend.ledgerview import read_file
from gpusim.ascend.reading import read
from gpusim.ascend.runtime import OUT_OF_MEMORY, RefusedError
from gpusim.testing.machines.ledger import LedgerMachine

HISTORIES = int(os.environ.get("LEDGER_HISTORIES", "5000"))
"""Ten seconds of one core."""
SECONDS = float(os.environ.get("LEDGER_SECONDS", "4"))
"""How long real processes are at it; 30 in a nightly run."""
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


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Frees of unknown handles are warned about, which takes longer than they do."""
    caplog.set_level(logging.ERROR, logger="gpusim.ascend.ledger")


@pytest.fixture
def directory() -> Any:
    shared = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=shared) as made:
        yield made


def test_every_step_of_random_histories_agrees_with_a_recount(directory: str) -> None:
    done: Counter[str] = Counter()
    for seed in range(100):
        model, ours = Model(), Ours(f"{directory}/{seed}")
        driver = Driver(seed, model, ours)
        for _ in range(STEPS):
            driver.step()
            agree(model, ours)
        ours.close()
        done += driver.done
    assert min(done.values()) > 30, done


@pytest.mark.timeout(600)
def test_many_histories_end_as_the_recount_and_cost_three_times_a_model_at_most(directory: str) -> None:
    """The whole check, ledger and oracle side by side, against the oracle alone."""
    model_time = our_time = 0.0
    for seed in range(HISTORIES):
        begun = time.process_time()
        Driver(seed, Model()).run()
        between = time.process_time()
        model, ours = Model(), Ours(f"{directory}/ledger")
        Driver(seed, model, ours).run()
        our_time += time.process_time() - between
        model_time += between - begun
        agree(model, ours)
        ours.close()
        os.unlink(ours.path)
    print(f"{HISTORIES} histories: model {model_time:.2f} s, model and ledger {our_time:.2f} s")
    assert our_time <= 3 * model_time


class SharedLedger:
    """Our ledger as the test library's state machine asks for one."""

    def __init__(self, limits: Sequence[int]) -> None:
        self._directory = tempfile.TemporaryDirectory()
        self._gone: set[int] = set()
        self._path = self._directory.name + "/ledger"
        self._keeper = Ledger(self._path, tuple(limits), pid=1, alive=lambda pid, _: pid not in self._gone)
        self._owners: dict[str, Ledger] = {}
        self._all: list[Ledger] = []
        self._held: list[tuple[int, str, int]] = []
        self._handles: list[int] = []
        self._next = 1

    def charge(self, device: int, owner: str, size: int) -> bool:
        self._next += 1
        if owner not in self._owners:
            self._owners[owner] = self._keeper.fork(self._next + 1)
            self._all.append(self._owners[owner])
        ledger = self._owners[owner]
        ledger.set_device(device)
        try:
            ledger.commit(ledger.reserve(size), self._next)
        except RefusedError:
            return False
        self._held.append((device, owner, size))
        self._handles.append(self._next)
        return True

    def free(self, device: int, owner: str, size: int) -> None:
        place = self._held.index((device, owner, size))
        del self._held[place]
        ledger = self._owners[owner]
        ledger.set_device((device + 1) % len(ledger.limits))
        ledger.free(self._handles.pop(place))

    def exit(self, owner: str) -> None:
        ledger = self._owners.pop(owner, None)
        if ledger is not None:
            self._gone.add(ledger.pid)
            self._keeper.sweep()
        kept = [(e, h) for e, h in zip(self._held, self._handles, strict=True) if e[1] != owner]
        self._held, self._handles = [e for e, _ in kept], [h for _, h in kept]

    def used(self, device: int) -> int:
        return read_file(self._path).used[device]

    def close(self) -> None:
        self._keeper._map.close()
        for ledger in self._all:
            ledger._map.close()
        self._directory.cleanup()


class OurLedgerMachine(LedgerMachine):
    """The rules of every ledger, for ours."""

    make = SharedLedger

    def teardown(self) -> None:
        if self.limits:
            self.ledger.close()  # type: ignore[attr-defined]


TestLedgerMachine = OurLedgerMachine.TestCase
TestLedgerMachine.settings = settings(stateful_step_count=60, deadline=None)


# ---- real processes

REAL = (60, 45)
WORKERS = 4
STOP = WORKERS * 16
"""Byte of the board that asks all workers to come to rest; each says so in the bytes after it."""


def work(path: str, board: mmap.mmap, place: int, seed: int) -> None:
    """Allocate and free from two threads until killed; what is held stands on the board, which is no ledger.

    The board has for each worker and device what its process believes to hold, written after a grant and
    before a free, so that at any time at most as much stands there as is charged.
    """
    random_ = random.Random(seed)
    ledger = Ledger(path, REAL)
    mine, handles = threading.Lock(), iter(range(1 << 60))
    held: dict[int, tuple[int, int]] = {}

    def note() -> None:
        sums = [sum(size for where, size in held.values() if where == device) for device in (0, 1)]
        struct.pack_into("<2Q", board, place * 16, *sums)

    def thread() -> None:
        while not board[STOP]:
            with mine:  # the current device is the process's
                ledger.set_device(random_.randrange(2))
                size = random_.randrange(1, 12)
                try:
                    reservation = ledger.reserve(size)
                except RefusedError:
                    reservation = None
                if reservation is not None and random_.random() < 0.2:
                    ledger.rollback(reservation)
                elif reservation is not None:
                    handle = next(handles)
                    ledger.commit(reservation, handle)
                    held[handle] = reservation.device, size
                    note()
            with mine:
                if held and random_.random() < 0.5:
                    handle = random_.choice(list(held))
                    del held[handle]
                    note()
                    ledger.free(handle)
            if random_.random() < 0.01:
                fork_briefly()

    def fork_briefly() -> None:
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(RefusedError):
                ledger.commit(ledger.reserve(3), "child")
            if random_.random() < 0.5:
                ledger.exit()
            os._exit(0)
        os.waitpid(pid, 0)

    other = threading.Thread(target=thread, daemon=True)
    other.start()
    thread()
    other.join()
    board[STOP + 1 + place] = 1
    signal.pause()


def settled(holds: Callable[[], bool]) -> bool:
    """Whether it comes to hold within a while."""
    end = time.monotonic() + 20
    while not holds() and time.monotonic() < end:
        time.sleep(0.01)
    return holds()


@pytest.mark.timeout(120)
def test_real_processes_that_fork_and_are_killed_end_as_the_recount(directory: str) -> None:
    path = f"{directory}/ledger"
    keeper = Ledger(path, REAL)
    keeper.attach()
    board = mmap.mmap(-1, STOP + 1 + WORKERS)
    random_ = random.Random(7)
    seeds = iter(range(1 << 30))
    workers: dict[int, int] = {}

    def start(place: int) -> None:
        struct.pack_into("<2Q", board, place * 16, 0, 0)
        seed = next(seeds)
        pid = os.fork()
        if pid == 0:
            try:
                work(path, board, place, seed)
            finally:
                os._exit(9)
        workers[place] = pid

    def end(place: int) -> None:
        os.kill(workers[place], signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(workers.pop(place), 0)[1]) == -signal.SIGKILL
        struct.pack_into("<2Q", board, place * 16, 0, 0)

    for place in range(WORKERS):
        start(place)
    kills, readings, finish = 0, 0, time.monotonic() + SECONDS
    while time.monotonic() < finish:
        time.sleep(random_.random() * 0.04)
        for _ in range(5):
            with contextlib.suppress(ledgerfile.NoLedgerError):
                found = ledgerfile.parse(keeper._map.bytes())
                readings += 1
                assert all(used <= limit for used, limit in zip(found.used, REAL, strict=True))
                assert found.limits == REAL
            believed = struct.unpack(f"<{WORKERS * 2}Q", board[:STOP])
            assert all(sum(believed[device::2]) <= REAL[device] for device in (0, 1))
        if random_.random() < 0.5:
            place = random_.randrange(WORKERS)
            end(place)
            start(place)
            kills += 1
    board[STOP] = 1
    settled(lambda: all(board[STOP + 1 + place] for place in range(WORKERS)))
    recount = struct.unpack(f"<{WORKERS * 2}Q", board[:STOP])
    expected = tuple(sum(recount[device::2]) for device in (0, 1))

    def used() -> tuple[int, ...]:
        keeper.sweep()
        return ledgerfile.parse(keeper._map.bytes()).used

    assert settled(lambda: used() == expected), (used(), expected)  # once orphans of the killed have ended
    for place in list(workers):
        end(place)
    assert used() == (0, 0)
    for device in (0, 1):  # and all of it is there to be had
        keeper.set_device(device)
        taken = keeper.reserve(REAL[device])
        with pytest.raises(RefusedError):
            keeper.reserve(1)
        keeper.rollback(taken)
    assert kills > SECONDS * 5
    assert readings > SECONDS * 50
