"""The plugin's reader of ledgers agrees with the machine's writers, and has no number for anything else."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import signal
import struct
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devplugin.ascend.ledgerfile import ContainerUse, NoLedgerError, parse, read
from devplugin.host import Host, Kind, Stat
from devplugin.linux import LinuxHost
from gpusim.ascend import reading as reading_
from gpusim.ascend import shm
from gpusim.ascend.ledger import Ledger
from gpusim.ascend.ledger140 import Ledger140, create
from gpusim.ascend.reading import Reading, Slot, fresh
from gpusim.ascend.shm import MIB, V140, V140_SMALL, V141, UnknownLedgerError

GIB = 1 << 30


class Reads:
    """A host on which each read of any file gives the next bytes, the last for ever."""

    def __init__(self, *contents: bytes | OSError) -> None:
        self.contents = list(contents)
        self.count = 0

    def read(self, path: str) -> bytes:
        self.count += 1
        found = self.contents.pop(0) if len(self.contents) > 1 else self.contents[0]
        if isinstance(found, OSError):
            raise found
        return found

    def stat(self, path: str, *, follow: bool = True) -> Stat:
        assert not follow, "what a container put there is looked at itself"
        found = self.contents[0]
        if isinstance(found, OSError):
            raise found
        return Stat(Kind.FILE, 0o666, len(found))

    def __getattr__(self, name: str) -> object:
        raise AssertionError(f"a reader of ledgers only reads, and does not {name}")


def host(*contents: bytes | OSError) -> Host:
    return Reads(*contents)  # type: ignore[return-value]


def reading(layout: shm.Layout, seed: int) -> Reading:
    random_ = random.Random(seed)
    devices = random_.randint(1, 8) if layout is V141 else 8
    limits = tuple(random_.randrange(64) * GIB for _ in range(devices))
    slots = []
    for row in random_.sample(range(64), random_.randint(0, 64)):
        used = tuple(random_.randrange(GIB) for _ in range(devices))
        held = tuple(random_.randint(0, size) if layout is V141 else 0 for size in used)
        slots.append(Slot(row, random_.randint(1, 1 << 22), random_.randrange(1 << 40), used, held))
    limits = limits if layout is V141 else (limits[0] or GIB,) * 8
    ordered = sorted(slots, key=lambda slot: slot.row)
    return reading_.with_slots(Reading(layout, limits, (), random_.randint(0, 32), 0), ordered)


@given(st.sampled_from([V140_SMALL, V140, V141]), st.integers(0, 1 << 30))
def test_both_readers_read_the_same(layout: shm.Layout, seed: int) -> None:
    wanted = reading(layout, seed)
    found = parse(reading_.write(wanted))
    assert found.version == layout.name[:5]
    assert (found.limits, found.used, found.total) == (wanted.limits, wanted.used, wanted.total)
    assert [(one.pid, one.used) for one in found.processes] == [(one.pid, one.used) for one in wanted.slots]
    assert found.active_workers == wanted.active_workers


@given(
    st.sampled_from([V140_SMALL, V140, V141]),
    st.integers(0, 99),
    st.lists(st.tuples(st.integers(0, 10559), st.binary(min_size=1, max_size=9)), max_size=4),
    st.integers(0, 3),
)
def test_both_readers_refuse_the_same(
    layout: shm.Layout, seed: int, pokes: list[tuple[int, bytes]], cut: int
) -> None:
    data = bytearray(reading_.write(reading(layout, seed)))
    for place, poke in pokes:
        start = (place % 400 if len(poke) % 2 else place) % len(data)
        data[start : start + len(poke)] = poke
    whole = bytes(data[: layout.size - (cut if cut > 1 else 0)])
    theirs: Reading | None = None
    ours: ContainerUse | None = None
    with contextlib.suppress(UnknownLedgerError):
        theirs = reading_.read(whole)
    with contextlib.suppress(NoLedgerError):
        ours = parse(whole)
    assert (ours is None) == (theirs is None)
    if ours is not None and theirs is not None:
        assert (ours.used, ours.limits, ours.active_workers) == (
            theirs.used,
            theirs.limits,
            theirs.active_workers,
        )


def test_a_hand_built_file_of_1_4_0() -> None:
    data = bytearray(6224)
    struct.pack_into("<Q", data, 0, 8 * GIB)
    struct.pack_into("<I", data, 48, 3)
    struct.pack_into("<I", data, 6220, 1)
    struct.pack_into("<iI", data, 1080 + 80, 4711, 0)
    struct.pack_into("<Q", data, 1080 + 80 + 8 + 16, 5 * MIB)
    struct.pack_into("<I", data, 1080 + 80 + 72, 1)
    found = parse(bytes(data))
    assert (found.version, found.limits[0], found.active_workers) == ("1.4.0", 8 * GIB, 3)
    assert found.used == (0, 0, 5 * MIB, 0, 0, 0, 0, 0)
    data[1080 + 80 + 72] = 0
    assert parse(bytes(data)).total == 0


@pytest.mark.parametrize("size", [0, 1, 1159, 1160, 6199, 6200, 6201, 6223, 6224, 6225, 10559, 10560, 10561])
def test_a_file_of_another_size_or_of_zeros_alone_is_no_ledger(size: int) -> None:
    """Of 1.4.0's smaller layout zeros would be "not limited, and nothing used": its size comes first."""
    with pytest.raises(NoLedgerError):
        parse(bytes(size))
    with pytest.raises(NoLedgerError):
        read(host(bytes(size)), "/l")
    with pytest.raises(UnknownLedgerError):
        reading_.read(bytes(size))


def test_a_counter_that_wrapped_below_zero_is_no_number(tmp_path: Path) -> None:
    path = str(tmp_path / "old")
    create(path, 8 * GIB)
    old = Ledger140(path, 1, alive=lambda _: True)
    old._charge(0, -MIB)
    with pytest.raises(NoLedgerError, match="implausible"):
        parse(Path(path).read_bytes())


def test_the_containers_counter_of_1_4_0_is_not_asked(tmp_path: Path) -> None:
    path = str(tmp_path / "old")
    create(path, 8 * GIB)
    one, two = (Ledger140(path, pid, alive=lambda _: True, device=pid - 1) for pid in (1, 2))
    one.commit(one.reserve(GIB), "a")
    two.commit(two.reserve(2 * GIB), "b")
    assert one.memory_used == 2 * GIB
    found = read(LinuxHost("/"), path)
    assert (found.used[:2], found.total) == ((GIB, 2 * GIB), 3 * GIB)


def stamped(sequence: int) -> bytes:
    data = bytearray(fresh((8 * GIB,)))
    V141.fields["seq"].write(data, (sequence,))
    return bytes(data)


def test_a_reader_waits_for_two_reads_without_a_store_between() -> None:
    assert read(host(stamped(3), stamped(4), stamped(6), stamped(6)), "/l").limits == (8 * GIB,)
    with pytest.raises(NoLedgerError, match="never at rest"):
        read(host(stamped(7)), "/l")
    with pytest.raises(NoLedgerError, match="never at rest"):
        read(host(*map(stamped, range(2, 4000, 2))), "/l")


@pytest.mark.parametrize("code", [errno.ENOENT, errno.EACCES, errno.EISDIR])
def test_what_cannot_be_read_says_why(code: int) -> None:
    for contents in ([OSError(code, "no")], [stamped(2), OSError(code, "no")]):
        with pytest.raises(NoLedgerError, match=f"/l: {errno.errorcode[code]}"):
            read(host(*contents), "/l")


def test_what_a_container_puts_in_the_place_of_its_ledger_is_neither_followed_nor_read(
    tmp_path: Path,
) -> None:
    """It may write there what it likes, and we are root on the node."""
    node = LinuxHost(str(tmp_path))
    (tmp_path / "of another").write_bytes(reading_.write(reading(V141, 1)))
    (tmp_path / "link").symlink_to("/of another")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "directory").mkdir()
    with (tmp_path / "huge").open("wb") as huge:
        huge.truncate(1 << 40)
    for name, why in (("link", "ELOOP"), ("pipe", "EINVAL"), ("directory", "EINVAL"), ("huge", "EFBIG")):
        with pytest.raises(NoLedgerError, match=f"^/{name}: {why}$"):
            read(node, f"/{name}")
    assert read(node, "/of another").version == "1.4.1"


def test_a_file_that_is_replaced_between_two_reads_is_no_ledger_of_ours() -> None:
    with pytest.raises(NoLedgerError):
        read(host(stamped(2), b""), "/l")


def test_old_files_are_read_once() -> None:
    old = reading_.write(reading(V140, 1))
    reads = Reads(old)
    read(reads, "/l")  # type: ignore[arg-type]
    assert reads.count == 1


def test_while_processes_write_each_reading_is_of_one_moment(tmp_path: Path) -> None:
    """The writer always has the same on both devices, between two of its calls at most 1 MiB more on one."""
    path = str(tmp_path / "ledger")
    pids = []
    for _ in range(2):
        pid = os.fork()
        if pid == 0:
            ledger = Ledger(path, (1024 * GIB, 1024 * GIB))
            for number in range(10**9):
                for device in (0, 1):
                    ledger.set_device(device)
                    ledger.commit(ledger.reserve(MIB), (device, number))
                if number % 3 == 2:
                    for device in (0, 1):
                        ledger.free((device, number))
        pids.append(pid)
    try:
        seen: set[int] = set()
        end = time.monotonic() + 60
        while len(seen) < 30 and time.monotonic() < end:
            try:
                found = read(LinuxHost("/"), path)
            except NoLedgerError:
                continue
            for one in found.processes:
                assert one.used[0] - one.used[1] in {-MIB, 0, MIB}
            assert found.total == sum(found.used)
            seen.add(found.total)
        assert len(seen) == 30
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
