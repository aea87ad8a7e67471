"""The layouts are those of B.1 and decision 47 byte by byte; bytes that are no ledger have no numbers."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusim.ascend.reading import Reading, Slot, fresh, read, with_slots, write
from gpusim.ascend.shm import (
    BYTES_MAX,
    GLOBAL_REGISTRY,
    MAGIC,
    MIB,
    V140,
    V140_SMALL,
    V141,
    Layout,
    UnknownLedgerError,
)

GIB = 1 << 30


def extent(layout: Layout) -> int:
    fields = [one.offset + one.size * one.count for one in layout.fields.values()]
    return max([*fields, *(table.base(table.rows) for table in layout.tables.values())])


@pytest.mark.parametrize(
    ("layout", "size", "end"),
    [(V140_SMALL, 6200, 6200), (V140, 6224, 6224), (V141, 10560, 10560), (GLOBAL_REGISTRY, 2848, 2844)],
)
def test_a_layout_has_its_size_and_its_fields_do_not_overlap(layout: Layout, size: int, end: int) -> None:
    assert (layout.size, extent(layout)) == (size, end)
    taken = [range(one.offset, one.offset + one.size * one.count) for one in layout.fields.values()]
    for table in layout.tables.values():
        taken.append(range(table.offset, table.base(table.rows)))
        within = [range(one.offset, one.offset + one.size * one.count) for one in table.fields.values()]
        assert sum(map(len, within)) == len(set().union(*within))
        assert max(each.stop for each in within) <= table.stride
    assert sum(map(len, taken)) == len(set().union(*taken))
    # C aligns each number to its own size.
    assert all(one.offset % one.size == 0 for one in layout.fields.values())


def test_a_file_of_1_4_0_built_by_hand_reads_as_the_page_says() -> None:
    data = bytearray(6224)
    struct.pack_into("<Q", data, 0, 8 * GIB)
    struct.pack_into("<I", data, 48, 3)
    struct.pack_into("<Q", data, 8, 77)
    struct.pack_into("<iI", data, 6216, 0, 1)
    struct.pack_into("<i", data, 1080 + 80, 4711)
    struct.pack_into("<Q", data, 1080 + 80 + 8 + 16, 5 * MIB)
    struct.pack_into("<I", data, 1080 + 80 + 72, 1)
    struct.pack_into("<Q", data, 1080 + 2 * 80 + 8, 9 * MIB)  # of a slot that is not active
    found = read(bytes(data))
    assert found.layout is V140
    assert found.limits == (8 * GIB,) * 8
    assert found.used == (0, 0, 5 * MIB, 0, 0, 0, 0, 0)
    assert (found.total, found.stored_total, found.active_workers) == (5 * MIB, 77, 3)
    assert [(slot.row, slot.pid) for slot in found.slots] == [(1, 4711)]
    small = read(bytes(data[:6200]))
    assert (small.layout, small.used) == (V140_SMALL, found.used)


def test_a_file_of_1_4_1_built_by_hand_reads_as_decision_47_says() -> None:
    data = bytearray(10560)
    struct.pack_into("<8sIIQQIIII", data, 0, MAGIC, 0x010401, 64, 10560, 2, 2, 64, 32, 1)
    struct.pack_into("<2Q", data, 64, 8 * GIB, 4 * GIB)
    struct.pack_into("<I", data, 288, 2)
    struct.pack_into("<ii", data, 296, 12, 3)
    struct.pack_into("<iIQ", data, 1344 + 144, 4711, 1, 99)
    struct.pack_into("<2Q", data, 1344 + 144 + 16, 5, 6)
    struct.pack_into("<2Q", data, 1344 + 144 + 80, 0, 7)
    found = read(bytes(data))
    assert found.limits == (8 * GIB, 4 * GIB)
    assert found.slots == (Slot(1, 4711, 99, (5, 13), (0, 7)),)
    assert (found.used, found.reserved, found.active_workers) == ((5, 13), (0, 7), 2)
    assert (found.fields["manager_pid"], found.fields["manager_index"]) == (12, 3)


numbers = st.integers(0, 1 << 40)


@st.composite
def readings(draw: st.DrawFn) -> Reading:
    layout = draw(st.sampled_from([V140_SMALL, V140, V141]))
    ours = layout is V141
    devices = draw(st.integers(1, 8)) if ours else 8
    least = 1 if layout is V140_SMALL else 0  # zeros alone are a file that nobody has written yet
    limits = [draw(numbers) for _ in range(devices)]
    if not ours:
        limits = [draw(st.integers(least, 1 << 20)) * MIB] * 8
    slots = []
    for row in sorted(draw(st.sets(st.integers(0, 63), max_size=5))):
        used = [draw(numbers) for _ in range(devices)]
        held = [draw(st.integers(0, size)) for size in used] if ours else [0] * devices
        start = draw(numbers) if ours else 0
        slots.append(Slot(row, draw(st.integers(1, 1 << 22)), start, tuple(used), tuple(held)))
    fields = {
        name: draw(st.integers(0, 2))
        for name in (
            "state",
            "batch",
            "tokens",
            "reported",
            "priority",
            "manager_pid",
            "manager_index",
            "manager_heartbeat",
        )
        if name in layout.fields
    }
    return with_slots(Reading(layout, tuple(limits), (), draw(st.integers(0, 32)), 0, fields), slots)


@given(readings())
def test_what_is_written_is_read_again(reading: Reading) -> None:
    data = write(reading)
    assert len(data) == reading.layout.size
    assert read(data) == reading


def poked(data: bytes, layout: Layout, name: str, value: int) -> bytes:
    changed = bytearray(data)
    layout.fields[name].write(changed, (value,) * layout.fields[name].count)
    return bytes(changed)


def slot_poked(data: bytes, layout: Layout, name: str, value: int) -> bytes:
    changed = bytearray(data)
    table = layout.tables["procs"]
    table.fields["active"].write(changed, (1,), table.base(3))
    field = table.fields[name]
    field.write(changed, (value,) * field.count, table.base(3))
    return bytes(changed)


OURS = fresh((8 * GIB,))
OLD = write(Reading(V140, (8 * GIB,) * 8, (), 0, 0))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        bytes(1159),
        bytes(1160),
        OLD[:-1],
        OLD + b"\0",
        bytes(6224),
        OURS[:-1],
        OURS + b"\0",
        OURS[:6224],
        b"VENDOR\0\0" + OURS[8:],
        poked(OURS, V141, "version", 0x010402),
        poked(OURS, V141, "header", 128),
        poked(OURS, V141, "size", 6224),
        poked(OURS, V141, "procs", 65),
        poked(OURS, V141, "workers", 33),
        poked(OURS, V141, "devices", 0),
        poked(OURS, V141, "devices", 9),
        poked(OURS, V141, "initialized", 0),
        poked(OURS, V141, "seq", 7),
        poked(OURS, V141, "active_workers", 33),
        poked(OURS, V141, "state", 3),
        slot_poked(OURS, V141, "pid", -1),
        slot_poked(OURS, V141, "active", 2),
        poked(OLD, V140, "limit", 8 * GIB + 1),
        poked(OLD, V140, "limit", 1 << 60),
        poked(OLD, V140, "initialized", 0),
        poked(OLD, V140, "state", 1 << 31),
        poked(OLD, V140, "active_workers", 33),
        poked(OLD, V140, "reported", 33),
        slot_poked(OLD, V140, "pid", -5),
        slot_poked(OLD, V140, "pid", (1 << 22) + 1),
        slot_poked(OLD, V140, "active", 77),
        slot_poked(OLD, V140, "used", BYTES_MAX + 1),
        slot_poked(OLD, V140, "used", (1 << 64) - MIB),
    ],
)
def test_what_is_short_torn_foreign_or_implausible_has_no_numbers(data: bytes) -> None:
    with pytest.raises(UnknownLedgerError):
        read(data)


@given(st.binary(max_size=200), st.integers(0, 10559), st.booleans())
def test_garbage_in_a_ledger_is_refused_or_stays_within_its_bounds(
    garbage: bytes, place: int, old: bool
) -> None:
    data = bytearray(OLD if old else OURS)
    data[place % len(data) : place % len(data) + len(garbage)] = garbage
    try:
        found = read(bytes(data[: len(OLD if old else OURS)]))
    except UnknownLedgerError:
        return
    assert 0 <= found.active_workers <= 32
    assert all(0 <= slot.pid <= 1 << 22 for slot in found.slots)
