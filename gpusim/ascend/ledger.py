"""The ledger of libvnpu v1.4.1: how much memory a container's processes have on each of its devices.

Every device has its own limit (decision 36). Memory is reserved before the driver is asked and becomes the
process's when the driver agrees; it is credited to the device it was taken on, whatever is current when it is
freed. A process that is gone is swept once, on every device. What a process itself has written about itself
is the truth, the sums over the processes are a cache written last (decision 47), so that whoever comes after
a killed writer can put the file right. Whatever is in doubt is refused (decision 50).

Source: ascend_ppu_hami.md B.6, decisions 36 and 47 to 50.
"""

from __future__ import annotations

import itertools
import logging
import os
import time
from collections.abc import Callable, Hashable, Mapping

from gpusim.ascend.liveness import Alive, alive, start_of
from gpusim.ascend.mapping import SEQ, NotReadyError, bytes_of, limits_of, open_mapping
from gpusim.ascend.runtime import (
    OK,
    OUT_OF_MEMORY,
    LedgerError,
    RefusedError,
    Reservation,
    quota_bytes,
    virtual_info,
)
from gpusim.ascend.shm import MAGIC, MAX_DEVICES, MAX_PROCESSES, V141, Reading, UnknownLedgerError, read

_log = logging.getLogger(__name__)

DEFAULT_PATH = "/tmp/vnpu_local_shmem"  # noqa: S108 - libvnpu's own default (B.2)
_POLL = 0.2
"""Seconds between two looks for a file that somebody else is to make (B4-9)."""
_TRIES = 200
"""Pairs of reads of another process's file until one falls between two stores, ..."""
_PAUSE = 0.0005
"""... and seconds in between."""

_LIMIT, _USED, _RESERVED = (V141.fields[name].offset // 8 for name in ("limit", "used", "reserved"))
_PROCS = V141.tables["procs"]
_STRIDE = _PROCS.stride // 8
_FIRST, _END = _PROCS.offset // 8, _PROCS.base(_PROCS.rows) // 8
# Words of a row, and its 32-bit numbers as halves.
_START, _ROW_USED, _ROW_RESERVED = (_PROCS.fields[name].offset // 8 for name in ("start", "used", "reserved"))
_PID, _ACTIVE = (_PROCS.fields[name].offset // 4 for name in ("pid", "active"))


class Ledger:
    """One process's hold on its container's ledger; `gpusim.ascend.runtime.Accounting`.

    Several threads may use it. After a fork the child's copy is a process of its own, with nothing charged.

    Args:
        path: of the file.
        limits: bytes, one a device in container order, 0 for one that is not limited; the file is made if
            there is none. None: it must be there, or come within `wait` seconds.
        pid, start: who is registered; None: this process, now.
        alive: tells whether a registered process lives.
        wait, sleep: for how many seconds to look for the file, and how to pass the time.

    Raises:
        NotReadyError, UnknownLedgerError, LedgerError, OSError: as `open_mapping`.
    """

    def __init__(
        self,
        path: str,
        limits: tuple[int, ...] | None = None,
        *,
        pid: int | None = None,
        start: int | None = None,
        alive: Alive = alive,
        wait: float = 0.0,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        while True:
            try:
                self._map = open_mapping(path, limits)
                break
            except NotReadyError:
                if wait <= 0:
                    raise
            sleep(min(wait, _POLL))
            wait -= _POLL
        self.path = path
        self.limits = limits_of(self._map)
        self._simulated = pid is not None
        self.pid = os.getpid() if pid is None else pid
        self.start = ((0 if self._simulated else start_of(self.pid)) or 0) if start is None else start
        self._alive = alive
        self._device = 0
        self._reset()
        with self._map:
            self._map.users.add(self)

    @classmethod
    def of_environment(cls, environ: Mapping[str, str], devices: int, *, alive: Alive = alive) -> Ledger:
        """As a process of a container with this many NPUs finds it; nothing is registered yet.

        Raises:
            BadQuotaError: NPU_MEM_QUOTA cannot be read.
            NotReadyError, UnknownLedgerError, LedgerError, OSError: as `open_mapping`.
        """
        limits = (quota_bytes(environ),) * devices
        return cls(environ.get("NPU_LOCAL_SHM_PATH", DEFAULT_PATH), limits, alive=alive)

    # ---- what a process does

    @property
    def device(self) -> int:
        """The current device, an index among the container's."""
        return self._device

    def set_device(self, device: int) -> None:
        """Change the current device.

        Raises:
            LedgerError: the container has no such device. It is not "one without a limit".
        """
        if not 0 <= device < len(self.limits):
            raise LedgerError(f"{self.path}: no device {device} among {len(self.limits)}")
        self._device = device

    def attach(self) -> None:
        """Take a process slot now, with all counters 0; `reserve` does it by itself.

        Raises:
            RefusedError: all slots are taken by living processes. Try again later.
        """
        with self._map as file:
            self._repair()
            self._sweep()
            if not self._owns(file.halves, file.words):
                self._claim()

    def reserve(self, size: int) -> Reservation:
        """Take `size` bytes of the current device's limit before the driver is asked for them.

        Raises:
            RefusedError: they do not fit, or it cannot be told whether they do.
        """
        device = self._device
        limit = self.limits[device]
        if limit == 0:
            return Reservation(0, device, size)
        with self._map as file:
            words = file.words
            if words[SEQ] & 1:
                self._repair()
            if not file.linked:
                raise RefusedError(f"{self.path}: it was deleted; what others use cannot be known")
            self._sweep()
            if not self._owns(file.halves, words):
                self._claim()
            used = words[_USED + device] + words[_RESERVED + device]
            if words[_LIMIT + device] != limit:
                raise RefusedError(f"{self.path}: somebody changed the limit of device {device}")
            # Integers here do not wrap: a size near 2^64 is simply too much (B4-10).
            if not 0 <= size <= limit - used:
                raise RefusedError(
                    f"{self.path}: device {device}: {size} bytes asked, {used} of {limit} used"
                )
            reservation = Reservation(next(self._numbers), device, size)
            self._reservations[reservation.number] = reservation
            self._held[device] += size
            self._store(device, 0, size)
        return reservation

    def commit(self, reservation: Reservation, handle: Hashable) -> None:
        """The driver gave the memory.

        A handle that is known already was freed behind our back; its charge is credited (B4-11).

        Raises:
            LedgerError: this reservation is not open, here and now.
        """
        if reservation.number == 0:
            return
        with self._map:
            self._take(reservation)
            stale = self._live.get(handle)
            self._live[handle] = reservation.device, reservation.size
            device, size = reservation.device, reservation.size
            self._held[device] -= size
            self._committed[device] += size
            self._store(device, size, -size)
            if stale is not None:
                self._credit(*stale)

    def rollback(self, reservation: Reservation) -> int:
        """The driver did not give it: 207001, and the bytes are free again. A second time changes nothing."""
        if reservation.number:
            with self._map:
                if reservation.number in self._reservations:
                    self._take(reservation)
                    self._held[reservation.device] -= reservation.size
                    self._store(reservation.device, 0, -reservation.size)
        return OUT_OF_MEMORY

    def free(self, handle: Hashable, driver_rc: int = OK) -> int:
        """The driver was asked to free it; its code. Only 0 credits, the device that the memory came from."""
        if driver_rc == OK:
            with self._map:
                entry = self._live.pop(handle, None)
                if entry is not None:
                    self._credit(*entry)
            if entry is None and 0 not in self.limits:
                _log.warning("%s: process %d freed %r, which it does not have", self.path, self.pid, handle)
        return driver_rc

    def exit(self) -> None:
        """Give back all this process has, and its slot."""
        with self._map as file:
            self._repair()
            if self._owns(file.halves, file.words):
                self._begin()
                self._clear(self._row)
                self._recount()
            self._reset()

    def close(self) -> None:
        """`exit`, and forget the file. It stays."""
        self.exit()
        with self._map:
            self._map.users.discard(self)
        self._map.close()

    def fork(self, pid: int, start: int = 0) -> Ledger:
        """The ledger of a simulated child: on the same device, with nothing charged and no slot yet."""
        child = Ledger(self.path, pid=pid, start=start, alive=self._alive)
        child._device = self._device
        return child

    # ---- looking

    def mem_info(self) -> tuple[int, int] | None:
        """(free, total) of the current device, in bytes, or None: it is not limited. Nothing is changed."""
        limit = self.limits[self._device]
        if limit == 0:
            return None
        words, device = self._map.words, self._device
        seq = words[SEQ]
        used = words[_USED + device] + words[_RESERVED + device]
        if seq & 1 or words[SEQ] != seq:
            # Somebody is at it, or died at it. With the lock nobody is, and the processes' own words count.
            with self._map:
                used = self._sum(_ROW_USED + device) + self._sum(_ROW_RESERVED + device)
        return virtual_info(limit, used)

    def sweep(self) -> dict[int, tuple[int, ...]]:
        """Release what dead processes had: bytes a device, by pid. Of several sweepers one gets each."""
        with self._map:
            self._repair()
            return self._sweep()

    def read(self) -> Reading:
        """All that the file says."""
        return read_file(self.path)

    # ---- with the lock held

    def _reset(self) -> None:
        self._live: dict[Hashable, tuple[int, int]] = {}
        self._reservations: dict[int, Reservation] = {}
        self._committed = [0] * MAX_DEVICES
        self._held = [0] * MAX_DEVICES
        self._numbers = itertools.count(1)
        self._row = -1

    def forked(self) -> None:
        """In a forked child: the parent's charges stay with the parent."""
        if not self._simulated:
            self.pid = os.getpid()
            self.start = start_of(self.pid) or 0
            self._reset()

    def _owns(self, halves: memoryview, words: memoryview) -> bool:
        row = self._row
        return row >= 0 and halves[row * 2 + _PID] == self.pid and words[row + _START] == self.start

    def _is(self, other: Ledger) -> bool:
        return (self.pid, self.start) == (other.pid, other.start)

    def _take(self, reservation: Reservation) -> None:
        if self._reservations.pop(reservation.number, None) != reservation:
            raise LedgerError(f"{self.path}: {reservation} is not open in process {self.pid}")

    def _credit(self, device: int, size: int) -> None:
        self._committed[device] -= size
        self._store(device, -size, 0)

    def _begin(self) -> None:
        """From here to `_recount` or the end of `_store` the file is between two states."""
        self._map.words[SEQ] |= 1

    def _store(self, device: int, used: int, reserved: int) -> None:
        """Write what this process has on a device, then the sums: its own word first, the cache last."""
        file = self._map
        words = file.words
        self._repair()
        if not self._owns(file.halves, words):
            return  # swept by mistake, or never attached; the next `reserve` registers all of it anew
        row, seq = self._row, words[SEQ]
        words[SEQ] = seq | 1
        if used:
            words[row + _ROW_USED + device] = self._committed[device]
        if reserved:
            words[row + _ROW_RESERVED + device] = self._held[device]
        if used:
            words[_USED + device] += used
        if reserved:
            words[_RESERVED + device] += reserved
        words[SEQ] = seq + 2

    def _repair(self) -> None:
        """Put right what a killed writer left: its own row goes with it, the sums are made anew."""
        words = self._map.words
        if words[SEQ] & 1:
            for user in self._map.users:
                if isinstance(user, Ledger) and user._owns(self._map.halves, words):
                    user._write_row()  # a writer of this process that an exception stopped
            self._recount()

    def _recount(self) -> None:
        words = self._map.words
        for device in range(MAX_DEVICES):
            for cache, first in ((_USED, _ROW_USED), (_RESERVED, _ROW_RESERVED)):
                words[cache + device] = self._sum(first + device)
        words[SEQ] = (words[SEQ] | 1) + 1

    def _sum(self, word: int) -> int:
        """Of one word of the rows over all processes."""
        return sum(self._map.words[_FIRST + word : _END : _STRIDE])

    def _sweep(self) -> dict[int, tuple[int, ...]]:
        file = self._map
        found: dict[int, tuple[int, ...]] = {}
        pids = file.halves[_FIRST * 2 + _PID : _END * 2 : _STRIDE * 2].tolist()
        for place, pid in enumerate(pids):
            if pid and pid != self.pid:
                row = _FIRST + place * _STRIDE
                if not self._alive(pid, file.words[row + _START]):
                    if not found:
                        self._begin()
                    found[pid] = self._clear(row)
        if found:
            self._recount()
        return found

    def _clear(self, row: int) -> tuple[int, ...]:
        """Empty a slot. Its pid goes last: killed before, the next sweeper finds it dead and goes on."""
        words, halves = self._map.words, self._map.halves
        halves[row * 2 + _ACTIVE] = 0
        had = []
        for device in range(MAX_DEVICES):
            used, reserved = row + _ROW_USED + device, row + _ROW_RESERVED + device
            had.append(words[used] + words[reserved])
            words[used] = words[reserved] = 0
        words[row + _START] = 0
        halves[row * 2 + _PID] = 0
        return tuple(had)

    def _claim(self) -> None:
        """Take a slot and write into it what this process has: nothing, when it is new or forked."""
        halves, words = self._map.halves, self._map.words
        pids = halves[_FIRST * 2 + _PID : _END * 2 : _STRIDE * 2].tolist()
        mine = pids.index(self.pid) if self.pid in pids else -1
        if mine >= 0 and any(
            isinstance(user, Ledger) and user is not self and user._owns(halves, words) and user._is(self)
            for user in self._map.users
        ):
            raise LedgerError(f"{self.path}: process {self.pid} uses it already, through another Ledger")
        place = mine if mine >= 0 else pids.index(0) if 0 in pids else -1
        if place < 0:
            raise RefusedError(f"{self.path}: all {MAX_PROCESSES} process slots are taken; try again later")
        self._row = row = _FIRST + place * _STRIDE
        self._begin()
        self._clear(row)
        words[row + _START] = self.start
        halves[row * 2 + _PID] = self.pid
        self._write_row()
        halves[row * 2 + _ACTIVE] = 1
        self._recount()

    def _write_row(self) -> None:
        words, row = self._map.words, self._row
        for device in range(len(self.limits)):
            words[row + _ROW_USED + device] = self._committed[device]
            words[row + _ROW_RESERVED + device] = self._held[device]


def read_file(path: str) -> Reading:
    """What a ledger of either version says. Nothing is made, nothing is changed.

    Raises:
        UnknownLedgerError: it is none, or its writer died in the middle.
        OSError: ENOENT, EACCES, ...
    """
    seq = V141.fields["seq"]
    for _ in range(_TRIES):
        data, again = bytes_of(path), bytes_of(path)
        if not data.startswith(MAGIC) or len(data) != V141.size:
            return read(data)
        if seq.read(data) == seq.read(again) and seq.read(data)[0] % 2 == 0:
            return read(data)
        time.sleep(_PAUSE)
    raise UnknownLedgerError(f"{path}: it is being written all the time, or its writer died")


def mem_info(path: str, device: int) -> tuple[int, int] | None:
    """(free, total) as a query of memory sees it that is in nobody's slot, or None without a limit.

    Raises:
        UnknownLedgerError, OSError: as `read_file`.
        LedgerError: the container has no such device.
    """
    reading = read_file(path)
    if not 0 <= device < len(reading.limits):
        raise LedgerError(f"{path}: no device {device} among {len(reading.limits)}")
    return virtual_info(reading.limits[device], reading.used[device])
