"""What a container's ledger says: read from its bytes, and written to bytes that say it.

Nothing is taken for a ledger that does not look like one in every field (decision 48). Of v1.4.0 sums over
the process slots count, not the container's counter, which may be wrong (ascend_ppu_hami.md B.4).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from gpusim.ascend.shm import (
    BYTES_MAX,
    HEADER,
    MAGIC,
    MAX_DEVICES,
    MAX_PROCESSES,
    MAX_WORKERS,
    MIB,
    PID_MAX,
    V140,
    V140_SMALL,
    V141,
    VERSION,
    Bytes,
    Layout,
    UnknownLedgerError,
)
from gpusim.errors import GpusimError


@dataclass(frozen=True, slots=True)
class Slot:
    """A process that is registered. Bytes, one number a device.

    Attributes:
        row: its place in the table.
        start: clock ticks after boot at which it started; 0 where the layout does not say.
        used: all that is charged to it, reservations included.
        reserved: the part of `used` that the driver has not confirmed yet; v1.4.0 does not tell.
    """

    row: int
    pid: int
    start: int
    used: tuple[int, ...]
    reserved: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Reading:
    """What a ledger says. Bytes; 0 as a limit means that the device is not limited.

    Attributes:
        layout: which kind of file it is.
        limits: one a device; of v1.4.0 the container's only limit, repeated.
        slots: active ones.
        stored_total: the container's counter as v1.4.0 stores it, which may be wrong (B.4); of v1.4.1 the sum
            of the cached counters.
    """

    layout: Layout
    limits: tuple[int, ...]
    slots: tuple[Slot, ...]
    active_workers: int
    stored_total: int
    fields: Mapping[str, int] = field(default_factory=dict)

    @property
    def used(self) -> tuple[int, ...]:
        """Charged on each device: the sum over the processes, which is the truth (decision 47)."""
        return tuple(sum(slot.used[d] for slot in self.slots) for d in range(len(self.limits)))

    @property
    def reserved(self) -> tuple[int, ...]:
        """The part of `used` that is reserved only."""
        return tuple(sum(slot.reserved[d] for slot in self.slots) for d in range(len(self.limits)))

    @property
    def total(self) -> int:
        """Charged on all devices: their sum."""
        return sum(self.used)


_NAMED = ("state", "batch", "tokens", "reported", "priority")
_MANAGED = ("manager_pid", "manager_index", "manager_heartbeat")


def read(data: bytes) -> Reading:
    """What the bytes of a ledger say.

    Raises:
        UnknownLedgerError: they are none, or one that nobody has finished writing.
    """
    if data.startswith(MAGIC):
        return _read_141(data)
    layout = next((one for one in (V140_SMALL, V140) if one.size == len(data)), None)
    if layout is None:
        raise UnknownLedgerError(f"{len(data)} bytes, no magic of ours: a ledger of neither 1.4.0 nor 1.4.1")
    return _read_140(data, layout)


def _read_140(data: bytes, layout: Layout) -> Reading:
    limit = layout.get(data, "limit")
    _believe(limit % MIB == 0 and limit <= BYTES_MAX, f"a limit of {limit} bytes")
    if "initialized" in layout.fields:
        _believe(layout.get(data, "initialized") == 1, "initialized is not 1: nobody has finished making it")
    _believe(any(data), "nothing but zeros: it has its size, and nobody has written it yet")
    slots = []
    table = layout.tables["procs"]
    for row in range(table.rows):
        values = {name: one.read(data, table.base(row)) for name, one in table.fields.items()}
        (pid,), (active,), used = values["pid"], values["active"], values["used"]
        _believe(0 <= pid <= PID_MAX and active <= 1, f"process slot {row} has pid {pid}, active {active}")
        if active:
            _believe(max(used) <= BYTES_MAX, f"process slot {row} holds {max(used)} bytes")
            slots.append(Slot(row, pid, 0, used, (0,) * MAX_DEVICES))
    return _reading(data, layout, (limit,) * MAX_DEVICES, slots, layout.get(data, "used"))


def check_141(data: Bytes) -> None:
    """Whether the head is one of ours, whole and of this version; counters are not looked at.

    Raises:
        UnknownLedgerError: it is not.
    """
    magic = V141.get(data, "magic") if len(data) == V141.size else None
    _believe(magic == int.from_bytes(MAGIC, "little"), f"{len(data)} bytes, or not our magic")
    head = {name: V141.get(data, name) for name in ("version", "header", "size", "procs", "workers")}
    wanted = {
        "version": VERSION,
        "header": HEADER,
        "size": V141.size,
        "procs": MAX_PROCESSES,
        "workers": MAX_WORKERS,
    }
    _believe(head == wanted, f"its header says {head}")
    _believe(V141.get(data, "initialized") == 1, "initialized is not 1: nobody has finished making it")
    devices = V141.get(data, "devices")
    _believe(1 <= devices <= MAX_DEVICES, f"it has {devices} devices")


def _read_141(data: bytes) -> Reading:
    check_141(data)
    _believe(V141.get(data, "seq") % 2 == 0, "it is being written, or its writer died")
    devices = V141.get(data, "devices")
    slots = []
    table = V141.tables["procs"]
    for row in range(table.rows):
        values = {name: one.read(data, table.base(row)) for name, one in table.fields.items()}
        (pid,), (active,) = values["pid"], values["active"]
        _believe(0 <= pid <= PID_MAX and active <= 1, f"process slot {row} has pid {pid}, active {active}")
        if pid and active:
            held = values["reserved"][:devices]
            used = tuple(map(sum, zip(values["used"][:devices], held, strict=True)))
            slots.append(Slot(row, pid, values["start"][0], used, held))
    stored = [*V141.fields["used"].read(data), *V141.fields["reserved"].read(data)]
    return _reading(data, V141, V141.fields["limit"].read(data)[:devices], slots, sum(stored))


def _reading(data: bytes, layout: Layout, limits: tuple[int, ...], slots: list[Slot], total: int) -> Reading:
    workers, reported = layout.get(data, "active_workers"), layout.get(data, "reported")
    state = layout.get(data, "state")
    _believe(workers <= MAX_WORKERS and reported <= MAX_WORKERS, f"{workers} workers, {reported} reported")
    _believe(state <= 2, f"state {state}")
    named = [*_NAMED, *(name for name in _MANAGED if name in layout.fields)]
    values = {name: layout.get(data, name) for name in named}
    return Reading(layout, limits, tuple(slots), workers, total, values)


def _believe(plausible: bool, otherwise: str) -> None:
    if not plausible:
        raise UnknownLedgerError(f"no ledger that can be believed: {otherwise}")


def write(reading: Reading) -> bytes:
    """The bytes of a file of `reading.layout` that says this; `read` of them gives the same."""
    layout = reading.layout
    data = bytearray(layout.size)

    def put(name: str, *numbers: int) -> None:
        one = layout.fields.get(name)
        if one is not None:
            one.write(data, (*numbers, *(0,) * (one.count - len(numbers))))

    if layout is V141:
        put("magic", int.from_bytes(MAGIC, "little"))
        put("version", VERSION)
        put("header", HEADER)
        put("size", layout.size)
        put("devices", len(reading.limits))
        put("procs", MAX_PROCESSES)
        put("workers", MAX_WORKERS)
        put("limit", *reading.limits)
        put("used", *(all_ - held for all_, held in zip(reading.used, reading.reserved, strict=True)))
        put("reserved", *reading.reserved)
    else:
        put("limit", reading.limits[0])
        put("used", reading.stored_total)
    for name, value in reading.fields.items():
        put(name, value)
    put("active_workers", reading.active_workers)
    put("initialized", 1)
    table = layout.tables["procs"]
    for slot in reading.slots:
        held = slot.reserved if layout is V141 else (0,) * len(slot.used)
        committed = tuple(all_ - part for all_, part in zip(slot.used, held, strict=True))
        values = {
            "pid": [slot.pid],
            "active": [1],
            "start": [slot.start],
            "used": committed,
            "reserved": held,
        }
        for name, one in table.fields.items():
            numbers = held if name == "reserved" else values.get(name, ())
            one.write(data, (*numbers, *(0,) * (one.count - len(numbers))), table.base(slot.row))
    return bytes(data)


@functools.lru_cache(maxsize=16)
def fresh(limits: tuple[int, ...]) -> bytes:
    """A v1.4.1 ledger in which nobody is registered.

    Args:
        limits: bytes, one a device of the container; 0 means that the device is not limited.

    Raises:
        GpusimError: no device, more than eight, or a limit that is no number of 64 bits.
    """
    if not 1 <= len(limits) <= MAX_DEVICES:
        raise GpusimError(f"a container has 1 to {MAX_DEVICES} devices, not {len(limits)}")
    if any(not 0 <= limit < 1 << 64 for limit in limits):
        raise GpusimError(f"{limits}: a limit is a number of bytes below 2^64")
    return write(Reading(V141, limits, (), 0, 0))


def with_slots(reading: Reading, slots: Iterable[Slot]) -> Reading:
    """The same ledger with other processes in it; the stored total becomes their sum."""
    changed = replace(reading, slots=tuple(slots))
    return replace(changed, stored_total=changed.total)
