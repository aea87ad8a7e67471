"""Reading the ledger that libvnpu keeps for one container: who uses how much memory of which device.

Two kinds of file are read. v1.4.0 leaves 6200 or 6224 bytes without magic or version, believed when its
fields are plausible; of v1.4.1 only our own layout is public, known by its magic. The vendor's v1.4.1, a
short, torn or foreign file has no numbers for anybody. This file knows the layouts by itself and only reads.
Source: ascend_ppu_hami.md B.1 and B.8, decisions 47 and 48.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from devplugin.containerdirs import check_file
from devplugin.host import Host, words

MAX_DEVICES = 8
MAGIC = b"simVNPU\x01"
_SIZE_141 = 10560
_HEADER_141 = (0x010401, 64, _SIZE_141)
_MIB = 1 << 20
_PROCESSES, _WORKERS = 64, 32
_PID_MAX = 1 << 22
_BYTES_MAX = 1 << 44
"""More than eight NPUs have. A counter of v1.4.0 above it has wrapped below 0, or is none."""
_TRIES = 500
"""Reads until two have the same even sequence number: a writer is at work for microseconds."""

_HEAD_140 = struct.Struct("<QQQIxxxxQQII")
_PROC_140 = struct.Struct("<ii8QIxxxx")
_HEAD_141 = struct.Struct("<8sIIQQIIII16x8Q8Q8Q")
_STATE_141 = struct.Struct("<QIxxxxQQII")
_PROC_141 = struct.Struct("<iIQ8Q8Q")


class NoLedgerError(Exception):
    """There is nothing to be read from this file; the text says why."""


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """A registered process: its pid in the container and bytes a device, reservations included."""

    pid: int
    used: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ContainerUse:
    """A container's ledger.

    Attributes:
        version: ``1.4.0`` or ``1.4.1``.
        limits: bytes a device, by rank in ASCEND_VISIBLE_DEVICES (decision 39); 0: not limited. v1.4.0 has
            one for the container, repeated for all eight.
        processes: active slots; a dead process counts until somebody sweeps it.
        active_workers: that launch kernels in the current round.
    """

    version: str
    limits: tuple[int, ...]
    processes: tuple[ProcessUse, ...]
    active_workers: int

    @property
    def used(self) -> tuple[int, ...]:
        """Bytes on each device: the sum over the processes."""
        return tuple(sum(one.used[device] for one in self.processes) for device in range(len(self.limits)))

    @property
    def total(self) -> int:
        """Bytes on all devices."""
        return sum(self.used)


def read(host: Host, path: str) -> ContainerUse:
    """Read a file that others may be writing.

    Args:
        host: where it is.
        path: of the ledger.

    Raises:
        NoLedgerError: it cannot be read, or does not hold what can be believed.
    """
    try:
        check_file(host, path, _SIZE_141)
        data = host.read(path)
        for _ in range(_TRIES if _is_141(data) else 0):
            # The number stands before the counters and a read goes upwards: when the next read finds the same
            # even one, no store fell into this read.
            again = host.read(path)
            if _sequence(data) % 2 == 0 and _sequence(again) == _sequence(data):
                break
            data = again
        else:
            if _is_141(data):
                raise NoLedgerError(f"{path}: never at rest: its writer died, or too many are at work")
    except OSError as error:
        raise NoLedgerError(f"{path}: {words(error)}") from error
    try:
        return parse(data)
    except NoLedgerError as error:
        raise NoLedgerError(f"{path}: {error}") from error


def parse(data: bytes) -> ContainerUse:
    """What the bytes of a ledger say.

    Raises:
        NoLedgerError: unknown size, version or magic; an implausible field; caught in the middle of a store.
    """
    if data.startswith(MAGIC):
        return _parse_141(data)
    if len(data) not in {6200, 6224}:
        raise NoLedgerError(f"{len(data)} bytes of an unknown kind")
    return _parse_140(data)


def _parse_140(data: bytes) -> ContainerUse:
    limit, _, _, state, _, _, workers, reported = _HEAD_140.unpack_from(data)
    _believe(limit % _MIB == 0 and limit <= _BYTES_MAX, f"limit {limit}")
    _believe(len(data) == 6200 or data[6220:6224] == b"\1\0\0\0", "not initialised")
    _believe(any(data), "nothing but zeros")  # has its size, and nobody has written it yet
    _believe_state(state, workers, reported)
    processes = tuple(_processes_140(data))
    return ContainerUse("1.4.0", (limit,) * MAX_DEVICES, processes, workers)


def _processes_140(data: bytes) -> Iterator[ProcessUse]:
    for pid, _, *used, active in _PROC_140.iter_unpack(data[1080:6200]):
        _believe(0 <= pid <= _PID_MAX and active <= 1, f"pid {pid}, active {active}")
        if active:
            _believe(max(used) <= _BYTES_MAX, f"process {pid} uses {max(used)} bytes")
            yield ProcessUse(pid, tuple(used))


def _parse_141(data: bytes) -> ContainerUse:
    _believe(len(data) == _SIZE_141, f"{len(data)} bytes")
    _, *header, sequence, devices, processes, workers, initialized = _HEAD_141.unpack_from(data)[:9]
    _believe(tuple(header) == _HEADER_141, f"header {header}")
    _believe((processes, workers) == (_PROCESSES, _WORKERS), f"{processes} processes, {workers} workers")
    _believe(initialized == 1, "not initialised")
    _believe(sequence % 2 == 0, "caught in the middle of a store")
    _believe(1 <= devices <= MAX_DEVICES, f"{devices} devices")
    limits = _HEAD_141.unpack_from(data)[9 : 9 + devices]
    _, state, _, _, active_workers, reported = _STATE_141.unpack_from(data, 256)
    _believe_state(state, active_workers, reported)
    return ContainerUse("1.4.1", limits, tuple(_processes_141(data, devices)), active_workers)


def _processes_141(data: bytes, devices: int) -> Iterator[ProcessUse]:
    for pid, active, _, *counters in _PROC_141.iter_unpack(data[1344:]):
        _believe(0 <= pid <= _PID_MAX and active <= 1, f"pid {pid}, active {active}")
        if pid and active:
            committed, reserved = counters[:MAX_DEVICES], counters[MAX_DEVICES:]
            yield ProcessUse(pid, tuple(map(sum, zip(committed, reserved, strict=True)))[:devices])


def _believe_state(state: int, workers: int, reported: int) -> None:
    _believe(state <= 2, f"state {state}")
    _believe(workers <= _WORKERS and reported <= _WORKERS, f"{workers} workers, {reported} reported")


def _believe(plausible: bool, otherwise: str) -> None:
    if not plausible:
        raise NoLedgerError(f"implausible: {otherwise}")


def _is_141(data: bytes) -> bool:
    return data.startswith(MAGIC) and len(data) == _SIZE_141


def _sequence(data: bytes) -> int:
    return int.from_bytes(data[24:32], "little")
