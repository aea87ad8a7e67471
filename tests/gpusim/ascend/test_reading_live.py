"""Both readers of ledgers, the machine's and the plugin's, while other processes write what they read.

What is read is the sum of devices and never more than somebody wrote; what is torn, short or foreign in that
moment is an error. The ledgers of 1.4.0 have no sequence number: one read of one is what it is.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from devplugin.ascend import ledgerfile
from devplugin.linux import LinuxHost
from gpusim.ascend.ledger import Ledger
from gpusim.ascend.ledger140 import Ledger140, create
from gpusim.ascend.ledgerview import read_file
from gpusim.ascend.reading import Reading, fresh, write
from gpusim.ascend.shm import MIB, V140, V140_SMALL, V141, UnknownLedgerError

LIMIT = 1 << 40
UNIT = 3 * MIB
"""Every charge is this much: any other number was never written."""
SHARE = 5
"""Charges a process has at most on a device."""


class Seen(NamedTuple):
    """What a reader said."""

    total: int
    used: tuple[int, ...]
    processes: tuple[tuple[int, tuple[int, ...]], ...]
    workers: int


def machines(path: str) -> Seen:
    found = read_file(path)
    slots = tuple((slot.pid, slot.used) for slot in found.slots)
    return Seen(found.total, found.used, slots, found.active_workers)


def plugins(path: str) -> Seen:
    found = ledgerfile.read(LinuxHost("/"), path)
    processes = tuple((one.pid, one.used) for one in found.processes)
    return Seen(found.total, found.used, processes, found.active_workers)


READERS = [machines, plugins]
ERRORS = (UnknownLedgerError, ledgerfile.NoLedgerError)


def turn(ledger: Ledger | Ledger140) -> None:
    """Allocate `SHARE` charges on each of two devices, free them all, for ever."""
    for start in itertools.count(step=2 * SHARE):
        for number in range(start, start + 2 * SHARE):
            ledger.set_device(number % 2)
            ledger.commit(ledger.reserve(UNIT), number)
        for number in range(start, start + 2 * SHARE):
            ledger.free(number)


@contextlib.contextmanager
def processes(count: int, work: Callable[[int], None]) -> Iterator[list[int]]:
    """Forked children that do it, each with its number, until the end of the block."""
    pids: list[int] = []
    try:
        for place in range(count):
            pid = os.fork()
            if pid == 0:
                try:
                    work(place)
                finally:
                    os._exit(7)
            pids.append(pid)
        yield pids
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def observe(read: Callable[[str], Seen], path: str, wanted: int) -> list[Seen]:
    """As many readings with different numbers; errors are looked over."""
    seen: dict[Seen, None] = {}
    end = time.monotonic() + 60
    while len(seen) < wanted and time.monotonic() < end:
        with contextlib.suppress(*ERRORS, FileNotFoundError):
            seen.setdefault(read(path))
    assert len(seen) == wanted
    return list(seen)


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("version", ["1.4.0", "1.4.1"])
def test_while_processes_write_totals_are_sums_of_devices_that_were_written(
    version: str, read: Callable[[str], Seen], tmp_path: Path
) -> None:
    path = str(tmp_path / "ledger")
    olds: list[Ledger140] = []
    if version == "1.4.0":  # its clients are made one after the other: they do not lock
        create(path, LIMIT)
        olds = [Ledger140(path, 101 + i, alive=lambda _: True, device=i % 2) for i in range(3)]

    def work(place: int) -> None:
        turn(olds[place] if olds else Ledger(path, (LIMIT, LIMIT)))

    with processes(3, work) as pids:
        registered = {each.pid for each in olds} or set(pids)
        for found in observe(read, path, 25):
            assert found.total == sum(found.used)
            for device, size in enumerate(found.used):
                assert size == sum(used[device] for _, used in found.processes)
            for pid, used in found.processes:
                assert pid in registered
                # 1.4.0 charges its first device with all (B4-2); one charge more may be on its way.
                most = 2 * SHARE if olds else SHARE
                assert all(size % UNIT == 0 and size <= (most + 1) * UNIT for size in used)
            assert found.workers == 0


GOOD = {
    "1.4.0": write(Reading(V140, (8 << 30,) * 8, (), 2, 0)),
    "1.4.0 small": write(Reading(V140_SMALL, (8 << 30,) * 8, (), 2, 0)),
    "1.4.1": fresh((8 << 30, 8 << 30)),
}


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("version", GOOD)
def test_a_file_that_is_cut_filled_and_replaced_meanwhile_has_its_numbers_or_none(
    version: str, read: Callable[[str], Seen], tmp_path: Path
) -> None:
    """Foreign, short, half written and whole follow each other; only the whole one has numbers."""
    path, draft = tmp_path / "ledger", tmp_path / "draft"
    good = GOOD[version]
    bad = [b"", good[:1160], good[:-1], good + b"\0", b"VENDOR\0\1" + good[8:], b"\xff" * len(good)]

    def churn(_: int) -> None:
        for turn_ in itertools.count():
            path.write_bytes(good if turn_ % 2 else bad[turn_ // 2 % len(bad)])  # cut first, then filled
            draft.write_bytes(bad[turn_ % len(bad)] if turn_ % 3 else good)
            draft.replace(path)

    expected: set[Seen] = set()
    path.write_bytes(good)
    expected.add(read(str(path)))
    refused = accepted = 0
    with processes(1, churn):
        end = time.monotonic() + 60
        while (refused < 200 or accepted < 200) and time.monotonic() < end:
            try:
                found = read(str(path))
            except (*ERRORS, FileNotFoundError):
                refused += 1
            else:
                accepted += 1
                assert found in expected
    assert refused >= 200 and accepted >= 200


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("priority", [(1 << 31) - 1, (1 << 32) - 1, (1 << 64) - 1])
@pytest.mark.parametrize("version", ["1.4.0", "1.4.1"])
def test_g26_a_priority_out_of_all_bounds_is_a_number_like_any_other(
    version: str, priority: int, read: Callable[[str], Seen], tmp_path: Path
) -> None:
    """Field report G row 26: a monitor took it for an index."""
    data = bytearray(GOOD[version])
    (V140 if version == "1.4.0" else V141).fields["priority"].write(data, (priority,))
    path = tmp_path / "ledger"
    path.write_bytes(bytes(data))
    found = read(str(path))
    assert (found.total, found.processes) == (0, ())
