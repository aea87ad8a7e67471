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
from hypothesis.stateful import invariant

from devplugin.ascend import ledgerfile
from gpusim.ascend.ledger import Ledger
from gpusim.ascend.ledgerview import read_file
from gpusim.ascend.runtime import RefusedError
from gpusim.testing.machines.ledger import LedgerMachine

from .ledger_driver import STEPS, Driver, Model, Ours, agree

HISTORIES = 5000
"""Ten seconds of one core."""
SECONDS = 30.0
"""How long real processes are at it. They are nice, so that other tests run beside them."""
EXAMPLES = max(500, settings().max_examples)
"""Histories of Hypothesis."""
SHARED = "/dev/shm" if os.path.isdir("/dev/shm") else None
"""Where containers would have it, and where no disk takes part."""


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Frees of unknown handles are warned about, which takes longer than they do."""
    caplog.set_level(logging.ERROR, logger="gpusim.ascend.ledger")


@pytest.fixture
def directory() -> Any:
    with tempfile.TemporaryDirectory(dir=SHARED) as made:
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
    """The whole check, ledger and oracle side by side, against the oracle alone; ratios of 500 at a time.

    The least disturbed ratio counts, as in `tests/bench`, where there is a guard for it too.
    """
    ratios = []
    for first in range(0, HISTORIES, 500):
        model_time = our_time = 0.0
        for seed in range(first, first + 500):
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
        ratios.append(our_time / model_time)
    assert min(ratios) <= 3, ratios


class SharedLedger:
    """Our ledger as the test library's state machine asks for one."""

    def __init__(self, limits: Sequence[int]) -> None:
        self._directory = tempfile.TemporaryDirectory(dir=SHARED)
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
        return self._keeper.used(device)

    def written(self) -> tuple[int, ...]:
        """What the file says to somebody who only reads it."""
        return read_file(self._path).used

    def close(self) -> None:
        self._keeper._map.close()
        for ledger in self._all:
            ledger._map.close()
        self._directory.cleanup()


class OurLedgerMachine(LedgerMachine):
    """The rules of every ledger, for ours."""

    make = SharedLedger

    @invariant()
    def the_file_says_the_same(self) -> None:
        """The sums that writers keep are those of the process slots."""
        if self.limits:
            written = self.ledger.written()  # type: ignore[attr-defined]
            assert written == tuple(self.ledger.used(device) for device in range(len(self.limits)))

    def teardown(self) -> None:
        if self.limits:
            self.ledger.close()  # type: ignore[attr-defined]


TestLedgerMachine = pytest.mark.timeout(600)(OurLedgerMachine.TestCase)
TestLedgerMachine.settings = settings(stateful_step_count=STEPS, max_examples=EXAMPLES, deadline=None)


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


@pytest.mark.timeout(240)
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
                os.nice(10)
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
    assert kills > SECONDS  # even where the machine has little time for it
    assert readings > SECONDS * 10
