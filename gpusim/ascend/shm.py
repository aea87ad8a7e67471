"""The files that libvnpu's processes share, as rows of data, and what can be read from their bytes.

Three layouts of the container's ledger: two of v1.4.0, which carry neither magic nor version and are known
by their size, and ours of v1.4.1 (decision 47; the vendor's is not public, and a file of theirs reads as
unknown, never as numbers). The global registry of a card is a fourth layout and the same in both versions.
Everything is little-endian with C alignment. Source: ascend_ppu_hami.md B.1, decisions 47 and 48.
"""

from __future__ import annotations

import functools
import mmap
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from gpusim.errors import GpusimError

MAX_DEVICES = 8
MAX_PROCESSES = 64
MAX_WORKERS = 32
MAX_MANAGERS = 64
PID_MAX = 1 << 22
"""Linux gives no larger pid (PID_MAX_LIMIT)."""
BYTES_MAX = 1 << 44
"""More than any container of eight NPUs holds: a larger counter of v1.4.0 is a wrapped or a foreign one."""
MIB = 1 << 20
MAGIC = b"simVNPU\x01"
VERSION = 0x010401
"""1.4.1, one byte a number."""
HEADER = 64
Bytes = bytes | bytearray | mmap.mmap
"""What numbers are read from."""
_CODES = {(4, False): "I", (4, True): "i", (8, False): "Q"}


class UnknownLedgerError(GpusimError):
    """The bytes are no ledger that can be read: foreign, short, torn, or not initialised yet."""


@dataclass(frozen=True, slots=True)
class Field:
    """A number, or `count` of them side by side.

    Attributes:
        offset: bytes from the start of the file, or of the row of a table.
        size: bytes of one number, 4 or 8.
    """

    offset: int
    size: int
    count: int = 1
    signed: bool = False

    def read(self, data: Bytes, base: int = 0) -> tuple[int, ...]:
        """The numbers in a file's bytes."""
        code = f"<{self.count}{_CODES[self.size, self.signed]}"
        return struct.unpack_from(code, data, base + self.offset)

    def write(self, data: bytearray | mmap.mmap, numbers: Iterable[int], base: int = 0) -> None:
        """Put the numbers into a file's bytes."""
        code = f"<{self.count}{_CODES[self.size, self.signed]}"
        struct.pack_into(code, data, base + self.offset, *numbers)


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of the same fields: `rows` of them, `stride` bytes apart."""

    offset: int
    stride: int
    rows: int
    fields: Mapping[str, Field]

    def base(self, row: int) -> int:
        """Where a row starts."""
        return self.offset + row * self.stride


@dataclass(frozen=True, slots=True)
class Layout:
    """One kind of file."""

    name: str
    size: int
    fields: Mapping[str, Field]
    tables: Mapping[str, Table]

    def get(self, data: Bytes, name: str) -> int:
        """One number of the file's head."""
        return self.fields[name].read(data)[0]


def _u32(offset: int) -> Field:
    return Field(offset, 4)


def _i32(offset: int) -> Field:
    return Field(offset, 4, signed=True)


def _u64(offset: int, count: int = 1) -> Field:
    return Field(offset, 8, count)


_REPORT = {
    "batch": _u64(0),
    "cpu_start_us": _u64(8),
    "duration_us": _u64(16),
    "occupied": _u32(24),
    "pid": _i32(28),
}
_HEAD_140 = {
    "limit": _u64(0),
    "used": _u64(8),
    "priority": _u64(16),
    "state": _u32(24),
    "batch": _u64(32),
    "tokens": _u64(40),
    "active_workers": _u32(48),
    "reported": _u32(52),
}
_MANAGER_140 = {
    "manager_pid": _i32(6200),
    "manager_heartbeat": _u64(6208),
    "manager_index": _i32(6216),
    "initialized": _u32(6220),
}
_PROC_140 = {"pid": _i32(0), "used": _u64(8, MAX_DEVICES), "active": _u32(72)}
_REPORTS_140 = Table(56, 32, MAX_WORKERS, _REPORT)

V140_SMALL = Layout(
    name="1.4.0 (6200 bytes)",
    size=6200,
    fields=_HEAD_140,
    tables={
        "reports": _REPORTS_140,
        "procs": Table(1080, 80, MAX_PROCESSES, {**_PROC_140, "host_pid": _i32(4)}),
    },
)
"""hami-vnpu-core f795831: no manager fields, a host pid in each process slot."""
V140 = Layout(
    name="1.4.0",
    size=6224,
    fields={**_HEAD_140, **_MANAGER_140},
    tables={"reports": _REPORTS_140, "procs": Table(1080, 80, MAX_PROCESSES, _PROC_140)},
)
"""hami-vnpu-core 962cb486, which the plugin's v1.4.0 image carries."""
V141 = Layout(
    name="1.4.1",
    size=10560,
    fields={
        "magic": _u64(0),
        "version": _u32(8),
        "header": _u32(12),
        "size": _u64(16),
        "seq": _u64(24),
        "devices": _u32(32),
        "procs": _u32(36),
        "workers": _u32(40),
        "initialized": _u32(44),
        "limit": _u64(64, MAX_DEVICES),
        "used": _u64(128, MAX_DEVICES),
        "reserved": _u64(192, MAX_DEVICES),
        "priority": _u64(256),
        "state": _u32(264),
        "batch": _u64(272),
        "tokens": _u64(280),
        "active_workers": _u32(288),
        "reported": _u32(292),
        "manager_pid": _i32(296),
        "manager_index": _i32(300),
        "manager_heartbeat": _u64(304),
    },
    tables={
        "reports": Table(320, 32, MAX_WORKERS, _REPORT),
        "procs": Table(
            1344,
            144,
            MAX_PROCESSES,
            {
                "pid": _i32(0),
                "active": _u32(4),
                "start": _u64(8),
                "used": _u64(16, MAX_DEVICES),
                "reserved": _u64(80, MAX_DEVICES),
            },
        ),
    },
)
"""Decision 47. ``used`` is what was committed and ``reserved`` what is on its way: they do not overlap."""
GLOBAL_REGISTRY = Layout(
    name="global registry",
    size=2848,
    fields={
        "lock_owner": _u32(0),
        "lock_timestamp": _u64(8),
        "queue_head": _u32(16),
        "queue_tail": _u32(20),
        "queue": Field(24, 4, MAX_MANAGERS),
        "signal_counter": _u32(2840),
    },
    tables={
        "slots": Table(
            280,
            40,
            MAX_MANAGERS,
            {
                "pid": _i32(0),
                "avg_kernel_time": _u64(8),
                "last_heartbeat": _u64(16),
                "active": _u32(24),
                "priority": _u64(32),
            },
        )
    },
)
"""One file a card; times in microseconds. v1.4.1 did not change it."""


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
