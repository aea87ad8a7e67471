"""The bytes of a PPU state file: at the places that decision 53 names, and refused when they are not ours."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusim import GpusimError
from gpusim.ppu.layout import CARDS, PROCESSES, SIZE, Card, Slot, UnknownStateError, read, write

U64 = st.integers(0, (1 << 64) - 1)
PERCENT = st.integers(0, 100)


@st.composite
def cards(draw: st.DrawFn) -> Card:
    rows = draw(st.lists(st.integers(0, PROCESSES - 1), unique=True, max_size=4).map(sorted))
    slots = tuple(Slot(row, draw(st.integers(1, 1 << 22)), draw(U64)) for row in rows)
    return Card(draw(U64), draw(U64), draw(PERCENT), draw(PERCENT), slots)


def test_every_number_is_where_it_is_decided() -> None:
    data = write([Card(), Card(8 << 30, 77, 30, 4, (Slot(0, 41, 70), Slot(31, 42, 7)))])
    assert len(data) == SIZE == 36960
    assert data[:8] == b"VPPUREGN"
    assert struct.unpack_from("<4I", data, 8) == (1, 96, 64, 32)
    card = 96 + 576
    assert struct.unpack_from("<QQII", data, card) == (8 << 30, 77, 30, 4)
    assert struct.unpack_from("<iIQ", data, card + 64) == (41, 0, 70)
    assert struct.unpack_from("<iIQ", data, card + 64 + 31 * 16) == (42, 0, 7)
    assert data.count(b"\0") == SIZE - 8 - 4 - 8


@given(st.lists(cards(), max_size=CARDS))
def test_what_is_written_is_read_again(written: list[Card]) -> None:
    found = read(write(written))
    assert found == (*written, *[Card()] * (CARDS - len(written)))
    assert [card.used for card in found] == [sum(slot.used for slot in card.slots) for card in found]


@given(st.binary(max_size=64))
def test_bytes_of_anybody_are_no_state_file(data: bytes) -> None:
    with pytest.raises(UnknownStateError):
        read(data)


@pytest.mark.parametrize(
    ("place", "new", "told"),
    [
        (0, b"PPUREGNV", "no state file"),
        (8, b"\2\0\0\0", "version 2: only 1"),
        (8, b"\0\0\0\0", "version 0"),
        (12, b"\x80", "a head of 128 bytes"),
        (16, b"\x20", "32 cards"),
        (20, b"\x40", "64 processes"),
        (96 + 16, b"\x65", "card 0: SM limit 101"),
        (96 + 576 + 20, b"\xff", "card 1: SM limit 0, busy 255"),
        (96 + 64, b"\xff\xff\xff\xff", "process slot 0 has pid -1"),
        (96 + 64 + 16, b"\xff\xff\xff\x7f", "process slot 1 has pid 2147483647"),
    ],
)
def test_a_file_of_another_version_or_with_impossible_numbers_is_refused(
    place: int, new: bytes, told: str
) -> None:
    data = bytearray(write([Card(quota=1)]))
    data[place : place + len(new)] = new
    with pytest.raises(UnknownStateError, match=told):
        read(bytes(data))


@given(st.integers(0, SIZE - 1))
def test_a_file_that_was_cut_is_refused(size: int) -> None:
    with pytest.raises(UnknownStateError):
        read(write([])[:size])
    with pytest.raises(UnknownStateError):
        read(write([]) + b"\0")


def test_what_has_no_room_is_refused() -> None:
    with pytest.raises(GpusimError, match="room for 64 cards, not 65"):
        write([Card()] * 65)
    with pytest.raises(GpusimError, match="card 1 has a number without room"):
        write([Card(), Card(quota=1 << 64)])
