"""The plugin's own reader of decision 53's state file, held against gpusim's writer while it writes."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given as each
from hypothesis import strategies as st

from devplugin.linux import LinuxHost
from devplugin.ppu.statefile import CARDS, SIZE, CardUse, NoStateError, parse, read
from gpusim.ppu import layout
from gpusim.ppu.layout import Card, Slot
from gpusim.ppu.statefile import RefusedError, StateFile

GIB = 1 << 30
WHOLE = layout.write(
    [Card(quota=8 * GIB, stored=3, sm_limit=30, busy=7, slots=(Slot(0, 5, 1), Slot(31, 9, 2)))]
)

numbers = st.integers(0, 1 << 44)
slots = st.lists(st.tuples(st.integers(1, 1 << 22), st.integers(0, 1 << 44)), max_size=layout.PROCESSES).map(
    lambda found: tuple(Slot(row, pid, used) for row, (pid, used) in enumerate(found))
)
cards = st.lists(
    st.builds(Card, numbers, numbers, st.integers(0, 100), st.integers(0, 100), slots),
    max_size=CARDS,
)


def test_what_the_writer_lays_down_is_read() -> None:
    first, *others = parse(WHOLE)
    assert first == CardUse(quota=8 * GIB, used=3, sm_limit=30, busy=7, processes=2)
    assert others == [CardUse()] * (CARDS - 1)
    assert layout.SIZE == SIZE == len(WHOLE)


@each(cards)
def test_both_readers_make_the_same_of_every_file(written: list[Card]) -> None:
    data = layout.write(written)
    assert [
        (one.quota, one.used, one.sm_limit, one.busy, one.processes, one.settled) for one in parse(data)
    ] == [
        (one.quota, one.used, one.sm_limit, one.busy, len(one.slots), one.used == one.stored)
        for one in layout.read(data)
    ]


def test_what_the_slots_say_is_the_truth() -> None:
    (card, *_) = parse(layout.write([Card(quota=9, stored=8, slots=(Slot(4, 1, 3), Slot(7, 2, 2)))]))
    assert (card.used, card.settled) == (5, False)


@pytest.mark.parametrize("length", [0, 1, 7, 8, 23, 24, 95, 96, 672, SIZE - 1, SIZE + 1, 2 * SIZE])
def test_a_file_of_another_length_has_no_numbers(length: int) -> None:
    with pytest.raises(NoStateError):
        parse((WHOLE * 2)[:length])


@pytest.mark.parametrize(
    ("at", "bytes_", "why"),
    [
        (0, b"VPPUREGM", "it begins with b'VPPUREGM'"),
        (0, b"simVNPU\x01", "it begins with"),
        (0, bytes(8), "it begins with"),
        (8, struct.pack("<I", 2), "version and sizes"),
        (12, struct.pack("<I", 64), "version and sizes"),
        (16, struct.pack("<I", 65), "version and sizes"),
        (20, struct.pack("<I", 31), "version and sizes"),
        (96, struct.pack("<Q", 1 << 45), "card 0: quota"),
        (96 + 16, struct.pack("<I", 101), "card 0: SM limit 101"),
        (96 + 576 + 20, struct.pack("<I", 1 << 31), "card 1: SM limit 0, busy 2147483648"),
        (96 + 64, struct.pack("<i", -1), "card 0: pid -1"),
        (96 + 64, struct.pack("<i", (1 << 22) + 1), "card 0: pid 4194305"),
        (96 + 64 + 8, struct.pack("<Q", (1 << 64) - 1), "card 0: process 5 uses"),
    ],
)
def test_a_foreign_or_impossible_file_has_no_numbers(at: int, bytes_: bytes, why: str) -> None:
    data = bytearray(WHOLE)
    data[at : at + len(bytes_)] = bytes_
    with pytest.raises(NoStateError) as caught:
        parse(bytes(data))
    assert why in str(caught.value)


@each(st.binary(max_size=200) | st.binary(max_size=60).map(lambda tail: WHOLE[: SIZE - len(tail)] + tail))
def test_whatever_bytes_there_are_they_are_read_or_refused(data: bytes) -> None:
    with contextlib.suppress(NoStateError):
        assert len(parse(data)) == CARDS


def test_a_file_that_is_not_there_is_an_error_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(NoStateError, match=r"^/ledger: ENOENT$"):
        read(LinuxHost(str(tmp_path)), "/ledger")
    (tmp_path / "ledger").write_bytes(WHOLE[:100])
    with pytest.raises(NoStateError, match=r"^/ledger: no state file that can be read: 100 bytes$"):
        read(LinuxHost(str(tmp_path)), "/ledger")


def test_what_a_container_puts_in_the_place_of_its_file_is_neither_followed_nor_read(tmp_path: Path) -> None:
    (tmp_path / "of another").write_bytes(WHOLE)
    (tmp_path / "ledger").symlink_to("/of another")
    with pytest.raises(NoStateError, match=r"^/ledger: ELOOP$"):
        read(LinuxHost(str(tmp_path)), "/ledger")
    with (tmp_path / "of another").open("ab") as grown:
        grown.write(b"1")
    with pytest.raises(NoStateError, match=r"^/of another: EFBIG$"):
        read(LinuxHost(str(tmp_path)), "/of another")


# ------------------------------------------------------------------ while others write


def _work(path: str, seed: int, limit: int) -> None:
    """A process of the container: takes and gives back memory of two cards until it is killed."""
    draw = random.Random(seed)
    state = StateFile(path, (limit, limit), (30, 30))
    held = []
    while True:
        if held and draw.random() < 0.5:
            state.free(held.pop(draw.randrange(len(held))))
        else:
            with contextlib.suppress(RefusedError):
                held.append(state.allocate(draw.randrange(2), draw.randrange(1, 2048) << 12))


def _started(path: str, count: int, limit: int) -> list[multiprocessing.process.BaseProcess]:
    context = multiprocessing.get_context("fork")
    found: list[multiprocessing.process.BaseProcess] = [
        context.Process(target=_work, args=(path, seed, limit), daemon=True) for seed in range(count)
    ]
    for process in found:
        process.start()
    return found


def _until(what: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_while_processes_write_every_read_is_a_state_of_theirs(tmp_path: Path) -> None:
    path, limit, count = str(tmp_path / "ledger"), 64 << 20, 3
    host = LinuxHost(str(tmp_path))
    StateFile(path, (limit, limit), (30, 30)).close()
    processes = _started(path, count, limit)
    try:
        _until(lambda: read(host, "/ledger")[0].processes == count)
        end, settled, seen = time.monotonic() + 1.5, 0, set()
        while time.monotonic() < end:
            found = read(host, "/ledger")
            for card in found[:2]:
                assert (card.quota, card.sm_limit, card.processes <= count) == (limit, 30, True)
                assert card.used % 4096 == 0
                if card.settled:  # sum and slots agree: then it was never above its quota
                    settled += 1
                    assert card.used <= limit
                    seen.add(card.used)
            assert found[2:] == (CardUse(),) * (CARDS - 2)
        assert len(seen) > 10, "nobody wrote"
        assert settled > 0
    finally:
        for process in processes:
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            process.join()
    # Killed where they stood: slots are the truth, and both readers say the same of them.
    mine, theirs = read(host, "/ledger"), layout.read(Path(path).read_bytes())
    assert [one.used for one in mine] == [one.used for one in theirs]
