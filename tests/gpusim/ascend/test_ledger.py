"""Our v1.4.1 ledger alone: the rules of B.6, what it answers, what it refuses, and what it leaves alone."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusim.ascend.ledger import Ledger
from gpusim.ascend.ledger140 import create
from gpusim.ascend.ledgerview import mem_info, read_file
from gpusim.ascend.liveness import alive
from gpusim.ascend.mapping import NotReadyError
from gpusim.ascend.reading import Slot, read, with_slots, write
from gpusim.ascend.runtime import (
    OK,
    OUT_OF_MEMORY,
    BadQuotaError,
    LedgerError,
    RefusedError,
    Reservation,
    Runtime,
    quota_bytes,
)
from gpusim.ascend.shm import MIB, V141, UnknownLedgerError
from gpusim.liveness import start_of

QUOTA = 8192 * MIB


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "container" / "vnpu_local_shmem")


def ledger(path: str, pid: int = 1, limits: tuple[int, ...] = (QUOTA, QUOTA), start: int = 1) -> Ledger:
    return Ledger(path, limits, pid=pid, start=start, alive=lambda *_: True)


class Memory:
    """A driver that gives all it is asked for, or a code of its own."""

    def __init__(self) -> None:
        self.held: dict[int, tuple[int, int]] = {}
        self.next = 100
        self.malloc_code = self.free_code = OK

    def malloc(self, device: int, size: int) -> tuple[int, int]:
        self.next += 1
        if self.malloc_code == OK:
            self.held[self.next] = device, size
        return self.malloc_code, self.next

    def free(self, handle: object) -> int:
        return self.free_code

    def mem_info(self, device: int) -> tuple[int, int]:
        return 60 << 30, 64 << 30


def allocate(ledger: Ledger, size: int, handle: object) -> None:
    ledger.commit(ledger.reserve(size), handle)


def refused(ledger: Ledger, size: int) -> bool:
    ledger.attach()
    before = ledger._map.bytes()
    try:
        ledger.reserve(size)
    except RefusedError as error:
        assert error.code == OUT_OF_MEMORY
        assert ledger._map.bytes() == before
        return True
    return False


def test_the_reference_trace_of_two_devices(path: str) -> None:
    ours = ledger(path)
    allocate(ours, 5000 * MIB, "a")
    ours.set_device(1)
    allocate(ours, 5000 * MIB, "b")
    ours.set_device(0)
    assert refused(ours, 4000 * MIB)
    ours.set_device(1)
    ours.free("a")
    reading = ours.read()
    assert (reading.used, reading.total) == ((0, 5000 * MIB), 5000 * MIB)


def test_b68_of_two_5000_on_one_card_of_8192_one_fails(path: str) -> None:
    ours, other = ledger(path), ledger(path, 2)
    allocate(ours, 6000 * MIB, "a")
    ours.set_device(1)
    allocate(ours, 6000 * MIB, "b")
    ours.free("a")
    assert ours.read().used == (0, 6000 * MIB)
    ours.set_device(0)
    first = ours.reserve(5000 * MIB)
    assert refused(other, 5000 * MIB)
    ours.commit(first, "c")
    assert ours.read().used == (5000 * MIB, 6000 * MIB)


@pytest.mark.parametrize(
    ("quota", "used", "free"), [(8192, 0, 8064), (8192, 8064, 0), (8192, 8063, 1), (128, 0, 0)]
)
def test_a_program_sees_the_quota_less_what_is_used_and_128_mib(
    path: str, quota: int, used: int, free: int
) -> None:
    ours = ledger(path, limits=(quota * MIB,))
    if used:
        allocate(ours, used * MIB, "a")
    assert ours.mem_info() == mem_info(path, 0) == (free * MIB, quota * MIB)


def test_what_is_used_beyond_the_quota_is_no_negative_room(path: str) -> None:
    """F.6's last row. No ledger of ours comes to say that; somebody else's may."""
    ours = ledger(path, limits=(QUOTA,))
    said = with_slots(read(ours._map.bytes()), [Slot(0, 9, 1, (9000 * MIB,), (0,))])
    ours.close()
    Path(path).write_bytes(write(said))
    assert mem_info(path, 0) == (0, QUOTA)
    newcomer = Ledger(path, pid=2, alive=lambda *_: True)
    assert Runtime(newcomer, Memory()).mem_get_info() == (0, QUOTA)
    with pytest.raises(RefusedError):
        newcomer.reserve(1)


@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 40), st.booleans()), max_size=12),
    st.integers(0, 1),
    st.integers(0, 200),
)
def test_what_is_reserved_and_given_back_was_never_there(
    held: list[tuple[int, int, bool]], device: int, size: int
) -> None:
    """B.6 invariant 4: whatever the state; only the sequence number has gone on."""
    with tempfile.TemporaryDirectory() as directory:
        ours = ledger(f"{directory}/ledger", limits=(100, 60))
        ours.attach()
        for number, (where, amount, committed) in enumerate(held):
            ours.set_device(where)
            try:
                taken = ours.reserve(amount)
            except RefusedError:
                continue
            if committed:
                ours.commit(taken, number)

        def state() -> tuple[bytes, tuple[int, ...]]:
            data = bytearray(ours._map.bytes())
            V141.fields["seq"].write(data, (0,))
            return bytes(data), ours.read().used

        before = state()
        ours.set_device(device)
        with contextlib.suppress(RefusedError):  # which is held to the same
            assert ours.rollback(ours.reserve(size)) == OUT_OF_MEMORY
        assert state() == before
        ours.close()


def test_a_query_looks_at_the_current_device(path: str) -> None:
    ours = ledger(path)
    allocate(ours, 1000 * MIB, "a")
    ours.set_device(1)
    assert ours.mem_info() == ((8192 - 128) * MIB, QUOTA)


def test_the_exact_limit_fits_and_one_byte_more_does_not(path: str) -> None:
    ours = ledger(path, limits=(1000,))
    for size in (1001, (1 << 64) - 1, 1 << 64, -1):
        assert refused(ours, size)
    allocate(ours, 0, "nothing")
    allocate(ours, 1000, "all")
    assert refused(ours, 1)
    allocate(ours, 0, "nothing more")
    ours.free("all")
    allocate(ours, 1000, "again")


def test_a_limit_of_0_counts_nothing_and_asks_the_driver(path: str) -> None:
    ours = ledger(path, limits=(0, 0))
    runtime = Runtime(ours, Memory())
    before = ours._map.bytes()
    code, handle = runtime.malloc(1 << 40)
    assert code == OK
    assert runtime.mem_get_info() == (60 << 30, 64 << 30)
    assert runtime.free(handle) == OK
    assert ours._map.bytes() == before


def test_what_the_driver_cannot_give_is_207001_and_costs_nothing(path: str) -> None:
    ours, driver = ledger(path), Memory()
    runtime = Runtime(ours, driver)
    driver.malloc_code = 507899
    assert runtime.malloc(MIB) == (OUT_OF_MEMORY, None)
    assert ours.read().total == 0
    assert runtime.mem_get_info() == (QUOTA - 128 * MIB, QUOTA)


def test_a_refusal_does_not_reach_the_driver(path: str) -> None:
    driver = Memory()
    assert Runtime(ledger(path), driver).malloc(QUOTA + 1) == (OUT_OF_MEMORY, None)
    assert driver.next == 100


def test_a_failed_free_keeps_the_charge_until_one_succeeds(path: str) -> None:
    ours, driver = ledger(path), Memory()
    runtime = Runtime(ours, driver)
    _, handle = runtime.malloc(MIB)
    driver.free_code = 107000
    assert runtime.free(handle) == 107000
    assert ours.read().total == MIB
    driver.free_code = OK
    assert runtime.free(handle) == OK
    assert ours.read().total == 0


def test_a_double_or_foreign_free_is_a_warning_only(path: str, caplog: pytest.LogCaptureFixture) -> None:
    one, other = ledger(path), ledger(path, 2)
    allocate(one, MIB, "a")
    allocate(one, MIB, "b")
    one.free("a")
    with caplog.at_level(logging.WARNING):
        one.free("a")
        other.free("b")
    assert len(caplog.records) == 2
    assert one.read().total == MIB


def test_a_reservation_is_committed_once_and_by_its_owner(path: str) -> None:
    one, other = ledger(path), ledger(path, 2)
    taken = one.reserve(MIB)
    with pytest.raises(LedgerError):
        other.commit(taken, "a")
    one.commit(taken, "a")
    for again in (taken, Reservation(99, 0, MIB)):
        with pytest.raises(LedgerError):
            one.commit(again, "b")
        assert one.rollback(again) == OUT_OF_MEMORY
    assert one.read().used == (MIB, 0)


def test_there_is_no_device_without_a_limit_beyond_the_containers(path: str) -> None:
    ours = ledger(path)
    for device in (2, 7, 8, -1):
        with pytest.raises(LedgerError):
            ours.set_device(device)
    with pytest.raises(LedgerError):
        mem_info(path, 2)


def test_a_childs_memory_is_its_own(path: str) -> None:
    parent = ledger(path)
    parent.set_device(1)
    allocate(parent, 5 * MIB, "a")
    child = parent.fork(2)
    assert child.device == 1
    child.free("a")
    assert child.read().used == (0, 5 * MIB)
    allocate(child, 2 * MIB, "a")
    child.exit()
    assert parent.read().used == (0, 5 * MIB)


def test_a_restarted_manager_finds_the_charges_of_others(path: str) -> None:
    worker = ledger(path, 2)
    allocate(worker, MIB, "a")
    manager = ledger(path)
    manager.attach()
    manager.close()
    again = ledger(path)
    again.attach()
    assert again.read().used == (MIB, 0)
    assert {slot.pid for slot in again.read().slots} == {1, 2}


def test_a_process_that_was_swept_by_mistake_is_counted_again(path: str) -> None:
    victim = ledger(path)
    allocate(victim, 5 * MIB, "a")
    allocate(victim, MIB, "b")
    blind = Ledger(path, pid=2, alive=lambda *_: False)
    blind.sweep()
    assert blind.read().total == 0
    victim.free("b")
    assert victim.read().total == 0
    taken = victim.reserve(MIB)
    assert victim.read().used == (6 * MIB, 0)
    victim.rollback(taken)
    victim.free("a")
    assert victim.read().total == 0


def test_one_process_is_counted_by_one_ledger(path: str) -> None:
    one, other = ledger(path), ledger(path)
    one.attach()
    with pytest.raises(LedgerError, match="another Ledger"):
        other.attach()
    one.close()
    other.attach()


def test_queries_make_and_change_nothing(path: str, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_file(path)
    with pytest.raises(FileNotFoundError):
        mem_info(path, 0)
    with pytest.raises(NotReadyError):
        Ledger(path)
    assert list(tmp_path.rglob("*")) == []
    ours = ledger(path)
    allocate(ours, MIB, "a")

    def state() -> tuple[str, list[str]]:
        names = sorted(map(str, tmp_path.rglob("*")))
        return hashlib.sha256(ours._map.bytes()).hexdigest(), names

    before = state()
    newcomer = Ledger(path, pid=9, alive=lambda *_: False)
    for _ in range(3):
        assert newcomer.mem_info() == ours.mem_info() == mem_info(path, 0)
        newcomer.read()
        newcomer.free("unknown")
    assert state() == before


def test_the_file_is_made_whole_and_for_every_user(path: str) -> None:
    mask = os.umask(0o077)
    try:
        ledger(path)
    finally:
        os.umask(mask)
    made = Path(path)
    assert (made.stat().st_size, made.stat().st_mode & 0o777) == (V141.size, 0o666)
    assert [each.name for each in made.parent.iterdir()] == ["vnpu_local_shmem"]


@pytest.mark.parametrize("foreign", [b"", b"hello", bytes(V141.size), bytes(6224), b"simVNPU\x01" * 1320])
def test_a_foreign_file_is_neither_used_nor_changed(path: str, foreign: bytes) -> None:
    Path(path).parent.mkdir()
    Path(path).write_bytes(foreign)
    for limits in ((QUOTA,), None):
        with pytest.raises(UnknownLedgerError, match="left as it is"):
            Ledger(path, limits)
    assert Path(path).read_bytes() == foreign


def test_a_file_of_1_4_0_is_not_shared(path: str) -> None:
    Path(path).parent.mkdir()
    create(path, QUOTA)
    before = Path(path).read_bytes()
    with pytest.raises(UnknownLedgerError):
        Ledger(path, (QUOTA,))
    assert Path(path).read_bytes() == before


def test_other_limits_than_the_files_are_refused(path: str) -> None:
    ledger(path)
    for limits in ((0, 0), (QUOTA,), (QUOTA, QUOTA + 1)):
        with pytest.raises(LedgerError, match="one container has one quota"):
            ledger(path, 2, limits)


def test_a_limit_that_somebody_overwrote_is_refused(path: str) -> None:
    ours = ledger(path)
    V141.fields["limit"].write(ours._map._memory, (0, 0, 0, 0, 0, 0, 0, 0))
    with pytest.raises(RefusedError, match="changed the limit"):
        ours.reserve(1)


def test_a_deleted_ledger_grants_nothing(path: str) -> None:
    ours = ledger(path)
    allocate(ours, MIB, "a")
    Path(path).unlink()
    with pytest.raises(RefusedError, match="deleted"):
        ours.reserve(1)
    ours.free("a")  # still fine


@pytest.mark.parametrize(
    "text", ["", "8G", "8192 ", "-1", "+1", "0x10", "1_0", "1.5", "٣", str(1 << 44), "9" * 30]
)
def test_a_quota_that_cannot_be_read_is_refused_not_lifted(tmp_path: Path, text: str) -> None:
    environ = {"NPU_MEM_QUOTA": text, "NPU_LOCAL_SHM_PATH": str(tmp_path / "ledger")}
    with pytest.raises(BadQuotaError, match="NPU_MEM_QUOTA"):
        Ledger.of_environment(environ, 1)
    assert list(tmp_path.iterdir()) == []


def test_the_quota_holds_for_each_device_of_the_container(tmp_path: Path) -> None:
    environ = {"NPU_MEM_QUOTA": "8192", "NPU_LOCAL_SHM_PATH": str(tmp_path / "ledger")}
    ours = Ledger.of_environment(environ, 3)
    assert ours.limits == (QUOTA,) * 3
    assert quota_bytes({}) == quota_bytes({"NPU_MEM_QUOTA": "0"}) == 0
    ours.close()


@pytest.mark.parametrize("limits", [(), (1,) * 9, (1 << 64,), (-1,)])
def test_a_container_has_one_to_eight_devices_with_limits_of_64_bits(
    path: str, limits: tuple[int, ...]
) -> None:
    from gpusim.errors import GpusimError

    with pytest.raises(GpusimError):
        Ledger(path, limits)
    assert not Path(path).exists()


def test_workers_are_counted_and_go_with_their_process(path: str) -> None:
    gone: set[int] = set()
    one = Ledger(path, (QUOTA,), pid=1, alive=lambda pid, _: pid not in gone)
    other = Ledger(path, (QUOTA,), pid=2, alive=lambda pid, _: pid not in gone)
    with one.worker(), other.worker():
        assert one.read().active_workers == 2
        gone.add(2)
        one.sweep()
        assert one.read().active_workers == 1
    assert one.read().active_workers == 0


def test_a_process_is_known_by_when_it_started() -> None:
    me = os.getpid()
    start = start_of(me)
    assert start
    assert alive(me, start)
    assert not alive(me, start + 1)
    assert not alive((1 << 22) - 1, 5)


def test_a_zombie_is_dead() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert not alive(pid, 0)
    os.waitpid(pid, 0)
