"""One file, many real processes and threads: locks, forks, and writers killed between any two stores."""

from __future__ import annotations

import os
import resource
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpusim.ascend.ledger import Ledger
from gpusim.ascend.ledgerview import read_file
from gpusim.ascend.mapping import FILES
from gpusim.ascend.runtime import RefusedError
from gpusim.ascend.shm import MIB, V141

LIMITS = (100 * MIB, 100 * MIB)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "ledger")


class Dying:
    """A view that kills its process after so many stores; of both views of a mapping together."""

    def __init__(self, view: Any, left: list[int]) -> None:
        self.view = view
        self.left = left

    def __getitem__(self, place: Any) -> Any:
        return self.view[place]

    def __setitem__(self, place: Any, value: int) -> None:
        if self.left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left[0] -= 1
        self.view[place] = value


def in_child(work: Callable[[], None]) -> int:
    """The wait status of a forked child that does it."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException:
            os._exit(3)
        os._exit(0)
    return os.waitpid(pid, 0)[1]


def allocate(ledger: Ledger, size: int, handle: object) -> None:
    ledger.commit(ledger.reserve(size), handle)


def life(ledger: Ledger) -> None:
    """All that a process does to a ledger."""
    allocate(ledger, 3 * MIB, "a")
    with ledger.worker():
        ledger.set_device(1)
        allocate(ledger, 5 * MIB, "b")
        ledger.rollback(ledger.reserve(MIB))
        allocate(ledger, 2 * MIB, "a")
        ledger.free("b")
    ledger.exit()
    allocate(ledger, MIB, "c")


def test_a_writer_killed_after_any_store_leaves_what_can_be_recovered(path: str) -> None:
    keeper = Ledger(path, LIMITS)
    allocate(keeper, 7 * MIB, "mine")

    def victim() -> None:
        """Has died already, so that the next one sweeps it: sweepers are killed too."""
        allocate(keeper, 11 * MIB, "left behind")

    kills, k = 0, 0
    while True:
        assert in_child(victim) == 0

        def work(k: int = k) -> None:
            left = [k]
            keeper._map.words = Dying(keeper._map.words, left)
            keeper._map.halves = Dying(keeper._map.halves, left)
            life(keeper)

        status = in_child(work)
        torn = keeper._map.words[V141.fields["seq"].offset // 8] % 2
        if torn:  # nobody reads numbers from it until a writer has come by
            assert keeper.mem_info() is not None
        taken = keeper.reserve(93 * MIB)  # all that there is beside its own 7
        with pytest.raises(RefusedError):
            keeper.reserve(1)
        keeper.rollback(taken)
        reading = read_file(path)
        assert (reading.used, reading.reserved) == ((7 * MIB, 0), (0, 0))
        assert [slot.pid for slot in reading.slots] == [os.getpid()]
        assert (reading.stored_total, reading.active_workers) == (7 * MIB, 0)
        if status == 0:
            break
        assert os.WTERMSIG(status) == signal.SIGKILL
        kills, k = kills + 1, k + 1
    assert kills > 150


def test_of_many_processes_that_sweep_at_once_one_releases_a_dead_one_on_all_devices(path: str) -> None:
    """B.6 invariant 7: what the winners say they released is what the dead had, once."""
    keeper = Ledger(path, LIMITS)
    allocate(keeper, 7 * MIB, "mine")

    def victim() -> None:
        allocate(keeper, 3 * MIB, "a")
        keeper.set_device(1)
        allocate(keeper, 2 * MIB, "b")
        keeper.reserve(MIB)

    for _ in range(10):
        died = []
        ready_read, ready_write = os.pipe()
        for _ in range(3):
            pid = os.fork()
            if pid == 0:
                victim()
                os.write(ready_write, b"!")
                signal.pause()
            died.append(pid)
        for _ in died:
            os.read(ready_read, 1)
        os.close(ready_read)
        os.close(ready_write)
        for pid in died:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        go_read, go_write = os.pipe()
        said_read, said_write = os.pipe()
        sweepers = []
        for _ in range(4):
            pid = os.fork()
            if pid == 0:
                os.close(go_write)
                os.read(go_read, 1)  # all at once
                for found in keeper.sweep().items():
                    os.write(said_write, f"{found}\n".encode())
                os._exit(0)
            sweepers.append(pid)
        for end in (go_read, go_write, said_write):
            os.close(end)
        for pid in sweepers:
            assert os.waitpid(pid, 0)[1] == 0
        with os.fdopen(said_read, "rb") as said:
            released = sorted(said.read().decode().splitlines())
        had = (3 * MIB, 3 * MIB, 0, 0, 0, 0, 0, 0)
        assert released == sorted(str((pid, had)) for pid in died)
        assert read_file(path).used == (7 * MIB, 0)


def test_an_exception_between_two_stores_is_put_right_by_the_next_call(path: str) -> None:
    ours = Ledger(path, LIMITS)
    allocate(ours, 7 * MIB, "mine")
    real = ours._map.words

    class Stopping(Dying):
        def __setitem__(self, place: Any, value: int) -> None:
            if self.left[0] == 0:
                raise KeyboardInterrupt
            self.left[0] -= 1
            self.view[place] = value

    for k in range(4):
        ours._map.words = Stopping(real, [k])
        with pytest.raises(KeyboardInterrupt):
            ours.free("mine")
        ours._map.words = real
        taken = ours.reserve(MIB)
        assert ours.read().used == (MIB, 0)
        ours.commit(taken, "mine")


def test_a_forked_child_has_a_slot_of_its_own(path: str) -> None:
    parent = Ledger(path, LIMITS)
    allocate(parent, 5 * MIB, "a")

    def child() -> None:
        parent.free("a")
        allocate(parent, 3 * MIB, "b")
        mine = {slot.pid: slot.used[0] for slot in parent.read().slots}
        assert mine == {os.getppid(): 5 * MIB, os.getpid(): 3 * MIB}

    assert in_child(child) == 0
    parent.sweep()
    assert parent.read().used == (5 * MIB, 0)


def test_a_child_forked_while_a_thread_holds_the_lock_can_go_on(path: str) -> None:
    parent = Ledger(path, LIMITS)
    parent.attach()
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with parent._map:
            held.set()
            done.wait(30)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(30)
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        allocate(parent, 3 * MIB, "b")  # waits for the parent's file lock, not for its thread's
        os._exit(0)
    done.set()
    holder.join()
    assert os.waitpid(pid, 0)[1] == 0


def test_looking_at_the_file_does_not_give_its_lock_away(path: str) -> None:
    """A POSIX lock is lost with any descriptor of the file that its process closes (decision 49)."""
    ours = Ledger(path, LIMITS)
    other = Ledger(path, pid=7, alive=lambda *_: True)
    assert other._map is ours._map
    reader, writer = os.pipe()
    with ours._map:
        looking = threading.Thread(target=read_file, args=(path,))
        looking.start()
        pid = os.fork()
        if pid == 0:
            with ours._map:
                os.write(writer, b"in")
            os._exit(0)
        os.set_blocking(reader, False)
        for _ in range(30):
            time.sleep(0.01)
            with pytest.raises(BlockingIOError):
                os.read(reader, 2)
    looking.join()
    assert os.waitpid(pid, 0)[1] == 0
    assert os.read(reader, 2) == b"in"
    os.close(reader)
    os.close(writer)


def test_the_last_user_closes_the_file(path: str) -> None:
    before = len(os.listdir("/proc/self/fd"))
    one, other = Ledger(path, LIMITS), Ledger(path, pid=7, alive=lambda *_: True)
    one.close()
    assert FILES.paths.count(path) == 1
    allocate(other, MIB, "a")
    other.close()
    assert FILES.paths.count(path) == 0
    assert len(os.listdir("/proc/self/fd")) == before
    assert read_file(path).total == 0


def test_threads_together_never_pass_the_limit(path: str) -> None:
    ours = Ledger(path, LIMITS)
    granted: list[int] = []

    def ask(number: int) -> None:
        for turn in range(50):
            try:
                allocate(ours, MIB, (number, turn))
            except RefusedError:
                continue
            granted.append(1)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(granted) == 100
    assert ours.read().used == (100 * MIB, 0)


def test_a_file_that_does_not_fit_is_not_left_in_part(path: str) -> None:
    """What was left would be refused for as long as the container lives."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))  # a write takes that much, and the next is EFBIG
    try:
        with pytest.raises(OSError, match="File too large"):
            Ledger(path, LIMITS)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.listdir(Path(path).parent) == []
    assert Ledger(path, LIMITS).limits == LIMITS


def test_many_makers_make_one_file(path: str) -> None:
    go_read, go_write = os.pipe()
    said_read, said_write = os.pipe()
    children = []
    for _ in range(6):
        pid = os.fork()
        if pid == 0:
            os.close(go_write)
            os.read(go_read, 1)
            ledger = Ledger(path, LIMITS)
            try:
                allocate(ledger, 30 * MIB, "a")
                os.write(said_write, b"+")
            except RefusedError:
                os.write(said_write, b"-")
            signal.pause()
        children.append(pid)
    for end in (go_read, go_write, said_write):
        os.close(end)
    said = b"".join(os.read(said_read, 1) for _ in children)
    os.close(said_read)
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert sorted(said) == sorted(b"+++---")
    assert os.listdir(Path(path).parent) == ["ledger"]
