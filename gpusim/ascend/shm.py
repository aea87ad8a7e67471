"""The files that libvnpu's processes share, as rows of data.

Three layouts of the container's ledger: two of v1.4.0, which carry neither magic nor version and are known
by their size, and ours of v1.4.1 (decision 47; the vendor's is not public, and a file of theirs reads as
unknown, never as numbers). The global registry of a card is a fourth layout and the same in both versions.
Everything is little-endian with C alignment. Source: ascend_ppu_hami.md B.1, decisions 47 and 48.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

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
