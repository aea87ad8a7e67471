"""The ledger of libvnpu v1.4.1: how much memory a container's processes have on each of its devices.

Every device has its own limit (decision 36). Memory is reserved before the driver is asked and becomes the
process's when the driver agrees; it is credited to the device it was taken on, whatever is current when it is
freed. A process that is gone is swept once, on every device. What a process itself has written about itself
is the truth, the sums over the processes are a cache written last (decision 47), so that whoever comes after
a killed writer can put the file right. Whatever is in doubt is refused (decision 50).

Source: ascend_ppu_hami.md B.6, decisions 36 and 47 to 50.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import time
from collections.abc import Callable, Hashable, Iterator, Mapping

from gpusim.ascend import rows
from gpusim.ascend.ledgerview import read_file
from gpusim.ascend.liveness import Alive, alive
from gpusim.ascend.mapping import SEQ, NotReadyError, limits_of, open_mapping
from gpusim.ascend.reading import Reading
from gpusim.ascend.runtime import (
    OK,
    OUT_OF_MEMORY,
    LedgerError,
    RefusedError,
    Reservation,
    quota_bytes,
    virtual_info,
)
from gpusim.ascend.shm import MAX_DEVICES, MAX_WORKERS
from gpusim.liveness import start_of

_log = logging.getLogger(__name__)

DEFAULT_PATH = "/tmp/vnpu_local_shmem"  # noqa: S108 - libvnpu's own default (B.2)
_POLL = 0.2
"""Seconds between two looks for a file that somebody else is to make (B4-9)."""


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
            self._map.join(self)

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
        with self._map:
            self._repair()
            self._sweep()
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
            self._repair()
            if not file.intact:
                raise RefusedError(f"{self.path}: it was deleted; what others use cannot be known")
            self._sweep()
            if not self._owns():
                self._claim()
            used = words[rows.USED + device] + words[rows.RESERVED + device]
            if words[rows.LIMIT + device] != limit:
                raise RefusedError(f"{self.path}: somebody changed the limit of device {device}")
            # Integers here do not wrap: a size near 2^64 is simply too much (B4-10).
            if not 0 <= size <= limit - used:
                raise RefusedError(
                    f"{self.path}: device {device}: {size} bytes asked, {used} of {limit} used"
                )
            reservation = Reservation(next(self._numbers), device, size)
            self._reservations[reservation.number] = reservation
            self._held[device] += size
            self._store(device)
        return reservation

    def commit(self, reservation: Reservation, handle: Hashable) -> None:
        """The driver gave the memory.

        A handle that is known already was freed behind our back; its charge is credited (B4-11).

        Raises:
            LedgerError: this reservation is not open, here and now.
        """
        if reservation.number == 0:
            return
        device = reservation.device
        with self._map:
            self._take(reservation)
            other, stale = self._live.get(handle, (device, 0))
            self._live[handle] = device, reservation.size
            self._committed[other] -= stale
            self._committed[device] += reservation.size
            self._store(device)
            if other != device:
                self._store(other)

    def rollback(self, reservation: Reservation) -> int:
        """The driver did not give it: 207001, and the bytes are free again. A second time changes nothing."""
        if reservation.number:
            with self._map:
                if reservation.number in self._reservations:
                    self._take(reservation)
                    self._store(reservation.device)
        return OUT_OF_MEMORY

    def free(self, handle: Hashable, driver_rc: int = OK) -> int:
        """The driver was asked to free it; its code. Only 0 credits, the device that the memory came from."""
        if driver_rc == OK:
            with self._map:
                entry = self._live.pop(handle, None)
                if entry is not None:
                    self._committed[entry[0]] -= entry[1]
                    self._store(entry[0])
            if entry is None and 0 not in self.limits:
                _log.warning("%s: process %d freed %r, which it does not have", self.path, self.pid, handle)
        return driver_rc

    def exit(self) -> None:
        """Give back all this process has, and its slot."""
        with self._map as file:
            self._repair()
            if self._owns():
                rows.begin(file)
                rows.clear(file, self._row)
                rows.recount(file)
            self._reset()

    def close(self) -> None:
        """`exit`, and forget the file. It stays."""
        self.exit()
        with self._map:
            self._map.leave(self)
        self._map.close()

    @contextlib.contextmanager
    def worker(self) -> Iterator[None]:
        """A worker takes part in the current round: one of 32 report slots is its.

        Raises:
            RefusedError: all are taken; the limits of memory hold for it as before.
        """
        with self._map as file:
            self._repair()
            self._sweep()
            self._claim()
            place, pid = rows.take_report(file, self.pid), self.pid
        if place is None:
            raise RefusedError(f"{self.path}: all {MAX_WORKERS} report slots are taken; try again later")
        try:
            yield
        finally:
            with self._map as file:
                self._repair()
                if self.pid == pid:  # and not a child that was forked meanwhile
                    rows.give_report(file, place, pid)

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
        return virtual_info(limit, self.used(self._device))

    def used(self, device: int) -> int:
        """Bytes that all processes together have or have reserved on a device."""
        file = self._map
        seq = file.words[SEQ]
        used: int = file.words[rows.USED + device] + file.words[rows.RESERVED + device]
        if seq & 1 or file.words[SEQ] != seq:
            # Somebody is at it, or died at it. With the lock nobody is, and the processes' own words count.
            with file:
                used = rows.total(file, rows.ROW_USED + device) + rows.total(file, rows.ROW_RESERVED + device)
        return used

    def sweep(self) -> dict[int, tuple[int, ...]]:
        """Release what dead processes had: bytes a device, by pid. Of several sweepers one gets each."""
        with self._map:
            self._repair()
            return self._sweep()

    def read(self) -> Reading:
        """All that the file says."""
        return read_file(self.path)

    # ---- with the lock held

    def _sweep(self) -> dict[int, tuple[int, ...]]:
        return rows.sweep(self._map, self.pid, self._alive)

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

    def _owns(self) -> bool:
        return rows.holds(self._map, self._row, self.pid, self.start)

    def _take(self, reservation: Reservation) -> None:
        if self._reservations.pop(reservation.number, None) != reservation:
            raise LedgerError(f"{self.path}: {reservation} is not open in process {self.pid}")
        self._held[reservation.device] -= reservation.size

    def _store(self, device: int) -> None:
        """Write what this process has on a device.

        Without a slot (swept by mistake, or never registered) nothing is; the next `reserve` registers
        all of it anew.
        """
        self._repair()
        if self._owns():
            rows.store(self._map, self._row, device, self._committed[device], self._held[device])

    def _repair(self) -> None:
        """Put right what a killed writer left: the sums are made anew, and the sweep takes its slot."""
        if self._map.words[SEQ] & 1:
            for user in self._map.users:
                if isinstance(user, Ledger) and user._owns():  # an exception stopped a writer of this process
                    rows.write(self._map, user._row, user._committed, user._held)
            rows.recount(self._map)

    def _claim(self) -> None:
        """Have a slot, and in it what this process has: nothing, when it is new or forked.

        Raises:
            RefusedError: 64 living processes have one each. Never a reason to go without (B4-8).
            LedgerError: another `Ledger` counts for this process; each would overwrite the other.
        """
        if self._owns():
            return
        for user in self._map.users:
            if not isinstance(user, Ledger) or user is self:
                continue
            if (user.pid, user.start) == (self.pid, self.start) and user._owns():
                raise LedgerError(f"{self.path}: another Ledger counts for process {self.pid} already")
        pids = rows.pids(self._map)
        # A slot with this pid is of a predecessor: dead, or before an exec.
        wanted = self.pid if self.pid in pids else 0
        if wanted not in pids:
            raise RefusedError(f"{self.path}: all {len(pids)} process slots are taken; try again later")
        self._row = rows.row_of(pids.index(wanted))
        rows.begin(self._map)
        rows.clear(self._map, self._row)
        rows.enter(self._map, self._row, self.pid, self.start, used=self._committed, reserved=self._held)
        rows.recount(self._map)
