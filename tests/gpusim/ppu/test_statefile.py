"""The state file of a container with PPUs: no quota is ever exceeded, whoever dies or starts in between."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import random
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpusim.ppu.environment import BadLimitError
from gpusim.ppu.layout import CARDS, PROCESSES, SIZE, Card, UnknownStateError, write
from gpusim.ppu.mapping import NotReadyError, StateError
from gpusim.ppu.statefile import Charge, RefusedError, StateFile, alive, read_file
from gpusim.testing.machines.ledger import LedgerMachine

LIMITS = (40, 25)
NAMES = itertools.count()
"""Of files: Hypothesis seeds `random` anew for every example."""


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "ledger")


@contextlib.contextmanager
def processes(path: str, *pids: int, dead: set[int] | None = None) -> Iterator[list[StateFile]]:
    """Simulated ones of a container with two cards."""
    gone = set() if dead is None else dead
    files = [StateFile(path, LIMITS, pid=pid, alive=lambda pid: pid not in gone) for pid in pids]
    try:
        yield files
    finally:
        for file in files:
            file.close()


# What a process does


def test_a_card_gives_its_quota_and_not_a_byte_more(path: str) -> None:
    with processes(path, 1, 2) as (one, two):
        first = one.allocate(0, 30)
        second = two.allocate(0, 10)
        for file in (one, two):
            with pytest.raises(RefusedError, match="1 bytes asked, 40 of 40 used"):
                file.allocate(0, 1)
            assert (file.used(0), file.mem_info(0)) == (40, (0, 40))
        two.allocate(1, 25)
        one.free(first)
        assert one.mem_info(0) == (30, 40)
        two.free(second)
        assert one.used(0) == 0
        assert one.used(1) == 25


@pytest.mark.parametrize("size", [41, -1, (1 << 64) - 1, 1 << 64, 1 << 80])
def test_sizes_do_not_wrap(path: str, size: int) -> None:
    with processes(path, 1) as (one,):
        one.allocate(0, 1)
        with pytest.raises(RefusedError):
            one.allocate(0, size)
        assert one.used(0) == 1


def test_a_card_without_a_quota_is_counted_all_the_same(path: str) -> None:
    file = StateFile(path, (0,), pid=1)
    charge = file.allocate(0, 1 << 40)
    assert (file.mem_info(0), file.used(0)) == (None, 1 << 40)
    with pytest.raises(RefusedError):
        file.allocate(0, (1 << 64) - 1)
    file.free(charge)
    file.close()


def test_what_is_not_charged_cannot_be_freed(path: str) -> None:
    with processes(path, 1, 2) as (one, two):
        charge = one.allocate(0, 5)
        with pytest.raises(StateError, match="not charged to process 2"):
            two.free(charge)
        one.free(charge)
        with pytest.raises(StateError, match="not charged to process 1"):
            one.free(charge)
        with pytest.raises(StateError):
            one.free(Charge(99, 0, 5))
        assert one.used(0) == 0


def test_a_file_says_what_its_processes_did(path: str) -> None:
    file = StateFile(path, (8 << 30, 0), (30, 100), pid=7)
    file.allocate(0, 1000)
    file.allocate(0, 24)
    file.report(1, 55)
    first, second, *rest = read_file(path)
    assert (first.quota, first.stored, first.used, first.sm_limit) == (8 << 30, 1024, 1024, 30)
    assert [(slot.row, slot.pid, slot.used) for slot in first.slots] == [(0, 7, 1024)]
    assert (second.busy, second.sm_limit, second.slots) == (55, 100, ())
    assert rest == [Card()] * (CARDS - 2)
    assert [file.sm_limit(card) for card in (0, 1, 2)] == [30, 100, 0]
    file.close()
    assert read_file(path)[0].used == 0
    assert Path(path).stat().st_mode & 0o777 == 0o666


def test_a_card_that_is_none_and_a_percentage_that_is_none_are_refused(path: str) -> None:
    with processes(path, 1) as (one,):
        for card in (-1, 64):
            with pytest.raises(StateError, match="cards 0 to 63"):
                one.allocate(card, 1)
        with pytest.raises(StateError, match="0 to 100 percent"):
            one.report(0, 101)


@pytest.mark.parametrize(
    ("limits", "sm", "told"),
    [
        ((), None, "1 to 64 cards"),
        ((1,) * 65, None, "1 to 64"),
        ((-1,), None, "below 2"),
        ((1,), (101,), "0 to 100"),
    ],
)
def test_limits_without_room_are_refused_and_no_file_is_made(
    path: str, limits: tuple[int, ...], sm: tuple[int, ...] | None, told: str
) -> None:
    with pytest.raises(StateError, match=told):
        StateFile(path, limits, sm)
    assert not Path(path).exists()


# Whose file it is


def test_a_container_finds_path_and_limits_in_its_environment(path: str) -> None:
    environ = {"HGGC_LEDGER_PATH": path, "HGGC_DEVICE_MEMORY_LIMIT_0": "4096", "HGGC_DEVICE_SM_LIMIT": "30"}
    file = StateFile.of_environment(environ, 1)
    assert (file.mem_info(0), file.sm_limit(0), file.pid) == ((4096 << 20, 4096 << 20), 30, os.getpid())
    file.close()
    with pytest.raises(StateError, match="HGGC_LEDGER_PATH is not set"):
        StateFile.of_environment({**environ, "HGGC_LEDGER_PATH": ""}, 1)
    with pytest.raises(BadLimitError):
        StateFile.of_environment({**environ, "HGGC_DEVICE_MEMORY_LIMIT_0": "4Gi"}, 1)


def test_a_second_process_has_the_same_quotas_or_none(path: str) -> None:
    with processes(path, 1):
        with pytest.raises(StateError, match="card 1 has a quota of 25 bytes, not 26"):
            StateFile(path, (40, 26), pid=2)
        with pytest.raises(StateError, match="card 2 has a quota of 0 bytes, not 1"):
            StateFile(path, (40, 25, 1), pid=2)
        other = StateFile(path, pid=3)
        assert other.limits[:2] == LIMITS
        other.close()


def test_a_process_without_limits_makes_no_file(path: str) -> None:
    with pytest.raises(NotReadyError, match="no state file yet"):
        StateFile(path)
    assert not Path(path).exists()


@pytest.mark.parametrize(
    "content",
    [b"", b"somebody's", b"\0" * SIZE, write([Card(quota=40)])[:-1], write([]) + b"\0"]
    + [write([])[:8] + struct.pack("<I", version) + write([])[12:] for version in (0, 2)],
)
def test_a_file_that_is_not_ours_is_left_as_it_is(path: str, content: bytes) -> None:
    Path(path).write_bytes(content)
    for limits in (LIMITS, None):
        with pytest.raises(UnknownStateError, match="left as it is, move it away"):
            StateFile(path, limits)
    with pytest.raises(UnknownStateError, match="ledger: "):
        read_file(path)
    assert Path(path).read_bytes() == content
    assert os.listdir(Path(path).parent) == ["ledger"]


def test_a_file_that_was_deleted_or_cut_gives_nothing_more(path: str) -> None:
    with processes(path, 1) as (one,):
        charge = one.allocate(0, 5)
        Path(path).unlink()
        with pytest.raises(RefusedError, match="deleted"):
            one.allocate(0, 1)
        one.free(charge)


def test_a_quota_that_somebody_raised_is_refused(path: str) -> None:
    with processes(path, 1) as (one,):
        with Path(path).open("r+b") as file:
            file.seek(96)
            file.write(struct.pack("<Q", 1 << 40))
        with pytest.raises(RefusedError, match="somebody changed the quota of card 0"):
            one.allocate(0, 1)
        one.allocate(1, 25)


# Who is gone


def test_the_dead_are_swept_before_anybody_is_refused(path: str) -> None:
    dead: set[int] = set()
    with processes(path, 1, 2, dead=dead) as (one, two):
        one.allocate(0, 40)
        with pytest.raises(RefusedError):
            two.allocate(0, 1)
        dead.add(1)
        two.allocate(0, 40)
        assert [slot.pid for slot in read_file(path)[0].slots] == [2]


def test_a_sweep_tells_what_it_found_once(path: str) -> None:
    dead = {1}
    with processes(path, 1, 2, dead=dead) as (one, two):
        one.allocate(0, 30)
        one.allocate(1, 3)
        assert two.sweep(0) == {1: 30}
        assert two.sweep(0) == {}
        assert (two.used(0), two.used(1)) == (0, 3)


def test_whoever_was_swept_by_mistake_registers_again_with_all_it_has(path: str) -> None:
    dead = {1}
    with processes(path, 1, 2, dead=dead) as (one, two):
        charge = one.allocate(0, 30)
        two.sweep(0)
        dead.clear()
        two.allocate(0, 10)
        with pytest.raises(RefusedError, match="1 bytes asked, 40 of 40"):
            one.allocate(0, 1)
        one.free(charge)
        assert two.used(0) == 10


def test_a_full_table_refuses_and_lifts_no_limit(path: str) -> None:
    dead: set[int] = set()
    with processes(path, *range(1, PROCESSES + 2), dead=dead) as files:
        for file in files[:PROCESSES]:
            file.allocate(0, 0)
        with pytest.raises(RefusedError, match="all 32 process slots are taken"):
            files[-1].allocate(0, 1)
        files[-1].allocate(1, 1)
        dead.add(9)
        files[-1].allocate(0, 1)
        assert [slot.pid for slot in read_file(path)[0].slots][8] == PROCESSES + 1


def test_an_emptied_slot_hides_none_behind_it(path: str) -> None:
    with processes(path, 1, 2, 3) as (one, two, three):
        one.allocate(0, 1)
        two.allocate(0, 2)
        one.exit()
        two.allocate(0, 3)
        three.allocate(0, 4)
        assert [(slot.pid, slot.used) for slot in read_file(path)[0].slots] == [(3, 4), (2, 5)]


def test_a_successor_with_the_same_pid_starts_with_nothing(path: str) -> None:
    before = StateFile(path, LIMITS, pid=5)
    before.allocate(0, 40)
    before._map.leave(before)  # it was killed
    after = StateFile(path, LIMITS, pid=5)
    after.allocate(0, 40)
    assert [(slot.pid, slot.used) for slot in read_file(path)[0].slots] == [(5, 40)]
    after.close()


def test_two_holds_of_one_process_do_not_overwrite_each_other(path: str) -> None:
    with processes(path, 1, 1) as (one, again):
        one.allocate(0, 5)
        with pytest.raises(StateError, match="another StateFile counts for process 1: use that one"):
            again.allocate(0, 5)
        assert one.used(0) == 5


def test_the_dead_and_zombies_are_not_alive() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    end = time.monotonic() + 10
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.005)
    assert not alive(pid)
    os.waitpid(pid, 0)
    assert not alive(pid)
    assert alive(os.getpid())


class KilledError(BaseException):
    """Here the process was killed."""


class Fragile:
    """A view of the file whose owner is killed at a store."""

    def __init__(self, view: Any, left: list[int]) -> None:
        self.view, self.left = view, left

    def __getitem__(self, place: int) -> int:
        return int(self.view[place])

    def __setitem__(self, place: int, number: int) -> None:
        if self.left[0] == 0:
            raise KilledError
        self.left[0] -= 1
        self.view[place] = number


@pytest.mark.parametrize("act", ["allocate", "again", "free", "exit", "sweep"])
@pytest.mark.parametrize("stores", range(8))
def test_a_process_that_is_killed_between_two_stores_harms_nobody(path: str, act: str, stores: int) -> None:
    dead: set[int] = set()
    with processes(path, 1, 2, 3, dead=dead) as (one, two, three):
        three.allocate(0, 4)
        two.allocate(0, 10)
        charge = None if act == "allocate" else one.allocate(0, 20)
        if act == "sweep":
            dead.add(3)
        words, halves = one._map.words, one._map.halves
        left = [stores]
        one._map.words, one._map.halves = Fragile(words, left), Fragile(halves, left)
        with contextlib.suppress(KilledError):
            if act in ("allocate", "again"):
                one.allocate(0, 5)
            elif act == "free" and charge is not None:
                one.free(charge)
            elif act == "exit":
                one.exit()
            else:
                one.sweep(0)
        one._map.words, one._map.halves = words, halves
        assert two.used(0) <= 40
        read_file(path)
        emptied = struct.iter_unpack("<i4xQ", Path(path).read_bytes()[96 + 64 : 96 + 576])
        assert all(pid or not used for pid, used in emptied)
        dead |= {1, 3}
        two.allocate(0, 30)  # all that the dead had
        with pytest.raises(RefusedError):
            two.allocate(0, 1)
        card = read_file(path)[0]
        assert (card.used, card.stored, [slot.pid for slot in card.slots]) == (40, 40, [2])


# Locks


def test_cards_have_a_lock_each_at_the_byte_that_is_decided(path: str) -> None:
    """Another program that locks a card's byte keeps everybody from that card, and from no other."""
    script = f"""
import fcntl, sys
file = open({path!r}, "r+b")
fcntl.lockf(file, fcntl.LOCK_EX, 1, 32 + 1)
print("locked", flush=True)
sys.stdin.read()
"""
    with processes(path, 1) as (one,):
        other = subprocess.Popen(
            [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert other.stdin is not None and other.stdout is not None
        assert other.stdout.readline() == b"locked\n"
        one.allocate(0, 1)
        done = threading.Event()

        def wait() -> None:
            one.allocate(1, 1)
            done.set()

        thread = threading.Thread(target=wait)
        thread.start()
        assert not done.wait(0.2)
        other.stdin.close()
        assert done.wait(10)
        thread.join()
        other.wait(10)
        other.stdout.close()


def test_looking_at_a_file_does_not_lose_its_locks(path: str) -> None:
    with processes(path, 1) as (one,):
        with one._map.locked(0):
            read_file(path)
            pid = os.fork()
            if pid == 0:
                try:
                    fcntl.lockf(os.open(path, os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 32)
                except BlockingIOError:
                    os._exit(0)
                os._exit(1)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert one.used(0) == 0


def test_a_forked_child_is_a_process_of_its_own(path: str) -> None:
    file = StateFile(path, LIMITS)
    charge = file.allocate(0, 30)
    pid = os.fork()
    if pid == 0:
        status = 1
        with contextlib.suppress(Exception):
            assert file.pid == os.getpid()
            with contextlib.suppress(StateError):
                file.free(charge)
                os._exit(2)
            file.allocate(0, 10)
            with contextlib.suppress(RefusedError):
                file.allocate(0, 1)
                os._exit(3)
            file.close()
            status = 0
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert file.used(0) == 30
    file.free(charge)
    file.close()


# Histories


class Container:
    """A container of simulated processes, as `LedgerMachine` wants it; an owner that exits is killed."""

    def __init__(self, limits: list[int], directory: str) -> None:
        self.path = f"{directory}/{next(NAMES)}"
        self.limits, self.pids, self.dead = tuple(limits), iter(range(1, 1 << 20)), set[int]()
        self.files: dict[str, StateFile] = {}
        self.charges: dict[tuple[int, str, int], list[Charge]] = {}
        self.watcher = self.start()

    def start(self) -> StateFile:
        return StateFile(self.path, self.limits, pid=next(self.pids), alive=lambda pid: pid not in self.dead)

    def charge(self, device: int, owner: str, size: int) -> bool:
        if owner not in self.files:
            self.files[owner] = self.start()
        try:
            made = self.files[owner].allocate(device, size)
        except RefusedError:
            return False
        self.charges.setdefault((device, owner, size), []).append(made)
        return True

    def free(self, device: int, owner: str, size: int) -> None:
        self.files[owner].free(self.charges[device, owner, size].pop())

    def exit(self, owner: str) -> None:
        if owner in self.files:
            self.dead.add(self.files.pop(owner).pid)
        self.charges = {key: made for key, made in self.charges.items() if key[1] != owner}

    def used(self, device: int) -> int:
        self.watcher.sweep(device)
        card = read_file(self.path)[device]
        assert card.stored == card.used <= card.quota == self.limits[device]
        return card.used


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("histories"))


def test_histories_of_processes_that_die_end_as_the_recount(directory: str) -> None:
    from hypothesis.stateful import run_state_machine_as_test

    class Histories(LedgerMachine):
        make = staticmethod(lambda limits: Container(limits, directory))

    run_state_machine_as_test(
        Histories, settings=settings(max_examples=60, stateful_step_count=30, deadline=None)
    )


STEPS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 1), st.integers(-45, 45), st.sampled_from("aaaaafffdr")),
    max_size=60,
)


@given(STEPS)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_interleaving_of_processes_exceeds_a_quota(
    directory: str, steps: list[tuple[int, int, int, str]]
) -> None:
    """Against ints: what is granted is exactly what fits beside all that the living have."""
    path = f"{directory}/{next(NAMES)}"
    dead: set[int] = set()
    pids = iter(range(1, 1 << 20))

    def start() -> StateFile:
        return StateFile(path, LIMITS, pid=next(pids), alive=lambda pid: pid not in dead)

    files = [start() for _ in range(4)]
    held: list[list[Charge]] = [[] for _ in range(4)]
    for who, card, size, act in steps:
        living = sum(c.size for charges in held for c in charges if c.card == card)
        if act == "a":
            try:
                held[who].append(files[who].allocate(card, size))
                assert 0 <= size <= LIMITS[card] - living
            except RefusedError:
                assert not 0 <= size <= LIMITS[card] - living
        elif act == "f" and held[who]:
            files[who].free(held[who].pop(size % len(held[who])))
        elif act == "d":
            dead.add(files[who].pid)
            files[who], held[who] = start(), []
        elif act == "r":
            files[who].sweep(card)
        for place, found in enumerate(read_file(path)[:2]):
            mine = {file.pid: sum(c.size for c in held[i] if c.card == place) for i, file in enumerate(files)}
            assert found.used <= LIMITS[place]
            shown = {slot.pid: slot.used for slot in found.slots if slot.pid not in dead}
            assert all(shown.get(pid, 0) == used for pid, used in mine.items())


# Real processes

WORKER = """
import os, random, sys, threading, time
from gpusim.ppu.statefile import RefusedError, StateFile

path, seed = sys.argv[1], int(sys.argv[2])
file = StateFile.of_environment(
    {"HGGC_LEDGER_PATH": path, "HGGC_DEVICE_MEMORY_LIMIT_0": "64", "HGGC_DEVICE_MEMORY_LIMIT_1": "32"}, 2
)
print("ready", flush=True)

def work(number):
    draw, held = random.Random(f"{seed} {number}"), []
    while True:
        try:
            held.append(file.allocate(draw.randrange(2), draw.randrange(1, 20) << 20))
        except RefusedError:
            if held:
                file.free(held.pop(draw.randrange(len(held))))
        if held and draw.random() < 0.4:
            file.free(held.pop())

for number in range(2):
    threading.Thread(target=work, args=(number,), daemon=True).start()
time.sleep(60)
"""


@pytest.mark.timeout(120)
def test_real_processes_with_threads_never_exceed_a_quota_and_the_killed_leave_nothing(path: str) -> None:
    limits = (64 << 20, 32 << 20)
    keeper = StateFile(path, limits, pid=1 << 22)
    draw = random.Random(11)

    def start(seed: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", WORKER, path, str(seed)], stdout=subprocess.PIPE)

    workers = [start(seed) for seed in range(3)]
    pipes = [worker.stdout for worker in workers]
    for pipe in pipes:
        assert pipe is not None and pipe.readline() == b"ready\n"
    readings, busiest, kills, finish = 0, 0, 0, time.monotonic() + 3
    while time.monotonic() < finish:
        for card, limit in enumerate(limits):
            used = keeper.used(card)
            assert used <= limit
            busiest, readings = max(busiest, used), readings + 1
        assert all(card.used <= card.quota for card in read_file(path)[:2])
        if draw.random() < 0.01:
            place = draw.randrange(3)
            workers[place].send_signal(signal.SIGKILL)
            workers[place].wait()
            out = workers[place].stdout
            assert out is not None
            out.close()
            workers[place] = start(100 + kills)
            kills += 1
    for worker in workers:
        worker.kill()
        worker.wait()
        if worker.stdout is not None:
            worker.stdout.close()
    for card, limit in enumerate(limits):
        whole = keeper.allocate(card, limit)  # once the dead are swept
        with pytest.raises(RefusedError):
            keeper.allocate(card, 1)
        keeper.free(whole)
        assert [slot.pid for slot in read_file(path)[card].slots] == [1 << 22]
    keeper.close()
    assert kills and readings > 100 and busiest > 32 << 20
