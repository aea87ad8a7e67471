"""The ledger of libvnpu v1.4.0 with its faults, to be compared with: nothing is to be built on it.

One counter for the whole container, a device index frozen when the client is made, sums over a single device
written into the container's counter, and a stub without any limit where something is missing. It writes the
6224-byte file that such a runtime leaves, so that readers of old files have something to read. Its
compare-and-swaps need no lock: tests interleave its steps by hand. Source: ascend_ppu_hami.md B.4.
"""

from __future__ import annotations

import logging
import mmap
import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from pathlib import Path

from gpusim.ascend.reading import Reading, read
from gpusim.ascend.runtime import OK, OUT_OF_MEMORY, LedgerError, RefusedError, Reservation, virtual_info
from gpusim.ascend.shm import MAX_DEVICES, MAX_PROCESSES, MAX_WORKERS, V140, Field

_log = logging.getLogger(__name__)

_WRAP = 1 << 64
_TIMEOUT = 10.0
"""Seconds a client waits for ``initialized`` before it becomes a stub (B4-9)."""
_POLL = 0.2
_PROCS, _REPORTS = V140.tables["procs"], V140.tables["reports"]


def create(path: str, limit: int) -> None:
    """What the first manager does: a file with this limit in bytes, 0 for none, for the whole container."""
    data = bytearray(V140.size)
    V140.fields["limit"].write(data, (limit,))
    V140.fields["initialized"].write(data, (1,))
    Path(path).write_bytes(data)


class Ledger140:
    """One process's client.

    Args:
        path: of the file that `create` or another client made.
        pid: who is registered.
        alive: whether a pid lives; the start time is not looked at (B4-12).
        device: current when the client is made, and the one it charges ever after (B4-2).
        sleep: passes the time while the file is missing.
    """

    def __init__(
        self,
        path: str,
        pid: int,
        *,
        alive: Callable[[int], bool],
        device: int = 0,
        sleep: Callable[[float], object] = lambda _: None,
    ) -> None:
        self.path = path
        self.pid = pid
        self.stub = False
        """Something failed when the client was made: no limit, and nothing is counted, for good."""
        self._alive = alive
        self._frozen = self._device = device
        self._live: dict[Hashable, int] = {}
        self._number = 0
        self._row = 0
        polls = round(_TIMEOUT / _POLL)
        while not self._ready():
            if polls == 0:
                self.stub = True
                return
            sleep(_POLL)
            polls -= 1
        descriptor = os.open(path, os.O_RDWR)
        self._memory = mmap.mmap(descriptor, V140.size)
        os.close(descriptor)
        # One number a store, as the original's atomics: what others read is wrong often enough, but not torn.
        view = memoryview(self._memory)
        self._views = {8: view.cast("Q"), 4: view.cast("I")}
        self._attach()

    # ---- what a process does

    @property
    def device(self) -> int:
        """The process's current device; the ledger does not look at it."""
        return self._device

    def set_device(self, device: int) -> None:
        """Change the process's current device."""
        if not 0 <= device < MAX_DEVICES:
            raise LedgerError(f"{self.path}: no device {device} among {MAX_DEVICES}")
        self._device = device

    def reserve(self, size: int) -> Reservation:
        """Recalculate, then add to the container's counter if the sum stays within the limit."""
        self._number += 1
        reservation = Reservation(self._number, self._device, size)
        if self._limit:
            self.recalculate()
            after = (self.memory_used + size) % _WRAP  # B4-10
            if after > self._limit:
                raise RefusedError(
                    f"{self.path}: {self.memory_used} of {self._limit} bytes used, {size} asked"
                )
            self._put("used", after)
        return reservation

    def commit(self, reservation: Reservation, handle: Hashable) -> None:
        """Remember the handle; what an older charge under it was, is forgotten (B4-11)."""
        if self._limit:
            self._live[handle] = reservation.size
            self._charge(self._frozen, reservation.size)

    def rollback(self, reservation: Reservation) -> int:
        """Subtract, whatever happened to the counter meanwhile (B4-6)."""
        if self._limit:
            self._put("used", self.memory_used - reservation.size)
        return OUT_OF_MEMORY

    def free(self, handle: Hashable, driver_rc: int = OK) -> int:
        """Credit the container and the device of the client."""
        if driver_rc == OK and self._limit:
            size = self._live.pop(handle, None)
            if size is None:
                _log.warning("%s: process %d freed %r, which it does not have", self.path, self.pid, handle)
            else:
                self._put("used", self.memory_used - size)
                self._charge(self._frozen, -size)
        return driver_rc

    def exit(self) -> None:
        """A normal end: the slot is free, its counters and the container's keep what they have (B4-7)."""
        if not self.stub:
            self._put_slot(self._row, "pid", 0)
            self._put_slot(self._row, "active", 0)

    def mem_info(self) -> tuple[int, int] | None:
        """(free, total) of the device the client was made on."""
        if not self._limit:
            return None
        used = sum(self._used(row)[self._frozen] for row in self._registered())
        return virtual_info(self._limit, used)

    def start_worker(self) -> None:
        """Take a report slot; the 33rd worker panics and its process gets the stub (B4-8)."""
        if self.stub:
            return
        for row in range(MAX_WORKERS):
            base = _REPORTS.base(row)
            if _REPORTS.fields["occupied"].read(self._memory, base) == (0,):
                self._write(_REPORTS.fields["occupied"], (1,), base)
                self._write(_REPORTS.fields["pid"], (self.pid,), base)
                self._put("active_workers", V140.get(self._memory, "active_workers") + 1)
                return
        self.stub = True

    # ---- what is done to the ledger

    def recalculate(self) -> None:
        """Sum one device over the living, clear one device of the dead, and call that the container's use.

        B4-1, B4-3 and B4-4 are in these lines.
        """
        device, total = self._frozen, 0
        for row in range(MAX_PROCESSES):
            pid = self._slot(row, "pid")
            if pid == 0:
                continue
            if self._alive(pid):
                total += self._used(row)[device]
            else:
                self._put_slot(row, "pid", 0)
                self._charge(device, -self._used(row)[device], row)
                self._put_slot(row, "active", 0)
        self._put("used", total)

    def snapshot(self, measured: Mapping[int, int]) -> None:
        """What a background thread does every 5 s: DCMI's bytes of a pid replace what was counted (B4-5).

        Args:
            measured: bytes on device 0 by pid, at whatever time it was taken.
        """
        for row in self._registered():
            pid = self._slot(row, "pid")
            if pid in measured:
                self._charge(0, measured[pid] - self._used(row)[0], row)

    # ---- looking

    @property
    def memory_used(self) -> int:
        """The container's counter, in bytes."""
        return V140.get(self._memory, "used")

    def read(self) -> Reading:
        """All that the file says."""
        return read(bytes(self._memory))

    # ---- the file

    def _ready(self) -> bool:
        try:
            data = Path(self.path).read_bytes()
        except FileNotFoundError:
            return False
        return len(data) == V140.size and V140.get(data, "initialized") == 1

    def _attach(self) -> None:
        for row in range(MAX_PROCESSES):
            if self._slot(row, "pid") == 0:
                self._row = row
                self._write(_PROCS.fields["used"], (0,) * MAX_DEVICES, _PROCS.base(row))
                self._put_slot(row, "pid", self.pid)
                self._put_slot(row, "active", 1)
                return
        self.stub = True  # the panic is caught, and a client without a limit is kept for this pid (B4-8)

    @property
    def _limit(self) -> int:
        return 0 if self.stub else V140.get(self._memory, "limit")

    def _registered(self) -> Iterator[int]:
        return (row for row in range(MAX_PROCESSES) if self._slot(row, "pid"))

    def _write(self, field: Field, numbers: Iterable[int], base: int = 0) -> None:
        first = (base + field.offset) // field.size
        for place, number in enumerate(numbers, first):
            self._views[field.size][place] = number

    def _put(self, name: str, value: int) -> None:
        self._write(V140.fields[name], (value % _WRAP,))

    def _slot(self, row: int, name: str) -> int:
        return _PROCS.fields[name].read(self._memory, _PROCS.base(row))[0]

    def _put_slot(self, row: int, name: str, value: int) -> None:
        self._write(_PROCS.fields[name], (value,), _PROCS.base(row))

    def _used(self, row: int) -> tuple[int, ...]:
        return _PROCS.fields["used"].read(self._memory, _PROCS.base(row))

    def _charge(self, device: int, size: int, row: int | None = None) -> None:
        """Add to a process's counter of a device; below 0 it wraps."""
        row = self._row if row is None else row
        used = list(self._used(row))
        used[device] = (used[device] + size) % _WRAP
        self._write(_PROCS.fields["used"], used, _PROCS.base(row))
