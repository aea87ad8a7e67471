"""Each fault of the v1.4.0 ledger (B.4): shown there, and right in ours by the same steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpusim.ascend.ledger import Ledger
from gpusim.ascend.ledger140 import Ledger140, create
from gpusim.ascend.mapping import NotReadyError
from gpusim.ascend.runtime import OUT_OF_MEMORY, RefusedError
from gpusim.ascend.shm import MAX_PROCESSES, MAX_WORKERS, MIB

LIMIT = 10 * MIB
WRAP = 1 << 64


class World:
    """A container with two devices, both kinds of ledger, and processes that live and die."""

    def __init__(self, directory: Path) -> None:
        self.dead: set[tuple[int, int]] = set()
        self.old_path, self.new_path = str(directory / "old"), str(directory / "new")

    def old(self, pid: int, device: int = 0) -> Ledger140:
        if not Path(self.old_path).exists():
            create(self.old_path, LIMIT)
        return Ledger140(self.old_path, pid, alive=self.pid_lives, device=device)

    def new(self, pid: int, device: int = 0, start: int = 1) -> Ledger:
        made = Ledger(self.new_path, (LIMIT, LIMIT), pid=pid, start=start, alive=self.lives)
        made.set_device(device)
        return made

    def pid_lives(self, pid: int) -> bool:
        """As v1.4.0 asks: any process of that number will do. Starts count up, so the last one decides."""
        return not any(gone == pid for gone, _ in self.dead) or pid in self.reused

    def lives(self, pid: int, start: int) -> bool:
        return (pid, start) not in self.dead

    reused: frozenset[int] = frozenset()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def allocate(ledger: Ledger | Ledger140, size: int, handle: str) -> bool:
    try:
        reservation = ledger.reserve(size)
    except RefusedError as error:
        assert error.code == OUT_OF_MEMORY
        return False
    ledger.commit(reservation, handle)
    return True


def used(ledger: Ledger) -> tuple[int, ...]:
    return ledger.read().used


def test_b4_1_another_devices_check_does_not_reset_the_use(world: World) -> None:
    a, b = world.old(1), world.old(2, device=1)
    assert allocate(a, 6 * MIB, "a")
    assert allocate(b, 6 * MIB, "b")
    assert sum(map(sum, (slot.used for slot in a.read().slots))) == 12 * MIB  # of a container's 10

    first, second = world.new(1), world.new(2, device=1)
    assert allocate(first, 6 * MIB, "a")
    assert allocate(second, 6 * MIB, "b")  # 10 on each device
    assert used(first) == (6 * MIB, 6 * MIB)
    second.set_device(0)
    assert not allocate(second, 6 * MIB, "c")
    assert used(first) == (6 * MIB, 6 * MIB)


def test_b4_2_the_device_of_the_allocation_is_charged_and_credited(world: World) -> None:
    old = world.old(1)
    old.set_device(1)
    assert allocate(old, 3 * MIB, "a")
    assert old.read().used[:2] == (3 * MIB, 0)

    ours = world.new(1)
    ours.set_device(1)
    assert allocate(ours, 3 * MIB, "a")
    assert used(ours) == (0, 3 * MIB)
    ours.set_device(0)
    assert allocate(ours, MIB, "b")
    ours.free("a")  # while device 0 is current: a naive repair would take 3 from 1 here and wrap
    assert used(ours) == (MIB, 0)


def test_b4_3_a_reservation_survives_another_ones_sweep(world: World) -> None:
    one, other = world.old(1), world.old(2)
    one.reserve(4 * MIB)
    assert one.memory_used == 4 * MIB
    other.recalculate()
    assert one.memory_used == 0

    first, second = world.new(1), world.new(2)
    reservation = first.reserve(4 * MIB)
    second.sweep()
    assert not allocate(second, 7 * MIB, "b")
    assert used(first) == (4 * MIB, 0)
    first.commit(reservation, "a")
    assert used(first) == (4 * MIB, 0)


def test_b4_4_a_death_is_swept_once_on_every_device(world: World) -> None:
    dying_there, sweeper = world.old(1, device=1), world.old(2)
    assert allocate(dying_there, 2 * MIB, "a")
    world.dead.add((1, 1))
    sweeper.recalculate()
    sweeper.recalculate()
    row = 0
    assert sweeper._used(row)[1] == 2 * MIB  # for ever: the slot has no pid any more

    dying, first, second = world.new(1), world.new(2), world.new(3)
    world.dead.clear()
    assert allocate(dying, 3 * MIB, "a")
    dying.set_device(1)
    assert allocate(dying, 2 * MIB, "b")
    assert allocate(second, MIB, "c")
    world.dead.add((1, 1))
    assert first.sweep() == {1: (3 * MIB, 2 * MIB, 0, 0, 0, 0, 0, 0)}
    assert second.sweep() == {}
    assert used(first) == (MIB, 0)


def test_b4_5_a_measurement_from_before_cannot_undo_a_charge(world: World) -> None:
    old = world.old(1)
    measured = {1: 0}
    assert allocate(old, 6 * MIB, "a")
    old.snapshot(measured)
    assert allocate(old, 6 * MIB, "b")  # 12 of 10

    ours = world.new(1)
    assert allocate(ours, 6 * MIB, "a")
    assert not hasattr(ours, "snapshot")
    assert not allocate(ours, 6 * MIB, "b")
    assert used(ours) == (6 * MIB, 0)


def test_b4_6_a_failed_allocation_gives_back_exactly_what_it_took(world: World) -> None:
    one, other = world.old(1), world.old(2)
    reservation = one.reserve(4 * MIB)
    other.recalculate()
    one.rollback(reservation)
    assert one.memory_used == WRAP - 4 * MIB

    first, second = world.new(1), world.new(2)
    taken = first.reserve(4 * MIB)
    second.sweep()
    assert first.rollback(taken) == OUT_OF_MEMORY
    assert used(first) == (0, 0)
    assert first.rollback(taken) == OUT_OF_MEMORY
    assert used(first) == (0, 0)


def test_b4_7_a_process_that_ends_takes_its_charges_along(world: World) -> None:
    one, other = world.old(1), world.old(2)
    assert allocate(one, 6 * MIB, "a")
    one.exit()
    assert other.memory_used == 6 * MIB

    first, second = world.new(1), world.new(2)
    second.attach()
    assert allocate(first, 6 * MIB, "a")
    first.exit()
    assert used(second) == (0, 0)
    assert second.read().stored_total == 0
    assert [slot.pid for slot in second.read().slots] == [2]


def test_b4_8_a_process_or_worker_too_many_is_refused_not_unlimited(world: World) -> None:
    olds = [world.old(pid) for pid in range(1, MAX_PROCESSES + 2)]
    assert allocate(olds[-1], 1000 * LIMIT, "a")
    for _ in range(MAX_WORKERS):
        olds[0].start_worker()
    assert not allocate(olds[0], 1000 * LIMIT, "b")
    olds[0].start_worker()
    assert allocate(olds[0], 1000 * LIMIT, "b")

    news = [world.new(pid) for pid in range(1, MAX_PROCESSES + 1)]
    for ledger in news:
        ledger.attach()
    late = world.new(MAX_PROCESSES + 1)
    with pytest.raises(RefusedError, match="slots are taken"):
        late.attach()
    assert not allocate(late, 1, "a")
    news[0].exit()
    assert allocate(late, MIB, "a")  # the refusal is not for good
    assert not allocate(late, 10 * MIB, "b")
    with late.worker(), pytest.raises(RefusedError):
        workers = [late.worker() for _ in range(MAX_WORKERS)]
        for worker in workers:
            worker.__enter__()
    assert not allocate(late, 10 * MIB, "b")


def test_b4_9_a_process_without_a_file_waits_a_while_and_is_refused(world: World) -> None:
    slept: list[float] = []
    stub = Ledger140(world.old_path, 1, alive=world.pid_lives, sleep=slept.append)
    assert sum(slept) == pytest.approx(10.0)
    assert allocate(stub, 1000 * LIMIT, "a")

    slept.clear()
    with pytest.raises(NotReadyError):
        Ledger(world.new_path, pid=1, wait=10.0, sleep=slept.append)
    assert sum(slept) == pytest.approx(10.0)
    assert not Path(world.new_path).exists()

    made: list[Ledger] = []

    def somebody_makes_it(_: float) -> None:
        made.append(world.new(2))

    ours = Ledger(world.new_path, pid=1, wait=10.0, sleep=somebody_makes_it, alive=world.lives)
    assert ours.limits == (LIMIT, LIMIT)
    assert not allocate(ours, LIMIT + 1, "a")


def test_b4_10_a_size_near_2_to_64_does_not_wrap(world: World) -> None:
    old = world.old(1)
    assert allocate(old, 6 * MIB, "a")
    assert allocate(old, WRAP - 4 * MIB, "b")
    assert old.memory_used == 2 * MIB

    ours = world.new(1)
    assert allocate(ours, 6 * MIB, "a")
    for size in (WRAP - 1, WRAP - 4 * MIB, WRAP, WRAP + MIB, -1, LIMIT + 1, 4 * MIB + 1):
        assert not allocate(ours, size, "b")
    assert used(ours) == (6 * MIB, 0)
    assert allocate(ours, 4 * MIB, "b")


def test_b4_11_a_handle_that_comes_again_replaces_its_old_charge(world: World) -> None:
    old = world.old(1)
    assert allocate(old, 3 * MIB, "a")
    assert allocate(old, 2 * MIB, "a")  # the driver gave the address again: 3 were freed behind our back
    old.free("a")
    assert old.read().used[0] == 3 * MIB

    ours = world.new(1)
    assert allocate(ours, 3 * MIB, "a")
    ours.set_device(1)
    assert allocate(ours, 2 * MIB, "a")
    assert used(ours) == (0, 2 * MIB)
    ours.free("a")
    assert used(ours) == (0, 0)


def test_b4_12_a_pid_that_comes_again_is_another_process(world: World) -> None:
    one, other = world.old(1), world.old(2)
    assert allocate(one, 6 * MIB, "a")
    world.dead.add((1, 1))
    world.reused = frozenset({1})
    assert not allocate(other, 6 * MIB, "b")

    first, second = world.new(1, start=1), world.new(2)
    world.dead.clear()
    assert allocate(first, 6 * MIB, "a")
    world.dead.add((1, 1))
    assert allocate(second, 6 * MIB, "b")
    again = world.new(1, start=2)
    assert allocate(again, 3 * MIB, "c")
    assert used(second) == (9 * MIB, 0)
    assert (first.pid, first.free("a")) == (1, 0)  # of a process that is gone, and credits nobody
    assert used(second) == (9 * MIB, 0)
