"""A card's global registry: which containers' managers take turns on it, in the file they all share.

One file a card, ``<phy>_global_registry`` in the shared region, made by whichever container comes first; its
layout is public and did not change with v1.4.1 (ascend_ppu_hami.md B.1). Two faults of the original are not
ours: a file between create and truncate has no bytes yet, and whoever maps it dies by SIGBUS (G 15): it is
waited for, and not for ever; a 65th manager is refused, and not served without a turn. What the turns are is
`gpusim.ascend.throttle`.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType

from gpusim.ascend.mapping import NotReadyError
from gpusim.ascend.runtime import LedgerError, RefusedError
from gpusim.ascend.shm import GLOBAL_REGISTRY, MAX_MANAGERS, UnknownLedgerError

SIZE = GLOBAL_REGISTRY.size
_SLOTS = GLOBAL_REGISTRY.tables["slots"]
_POLL = 0.2
"""Seconds between two looks at a file that somebody else is to size."""


@dataclass(frozen=True, slots=True)
class Manager:
    """One container's manager."""

    index: int
    """Its slot: the ``Global Manager #0`` of the runtime's log (A.13)."""
    pid: int
    average_us: int
    heartbeat_us: int
    priority: int


class Registry:
    """One process's hold on a card's registry; a context manager.

    Args:
        path: of the file, made with its full size if there is none.
        wait, sleep: how many seconds a file without its size is waited for, and how to pass them.

    Raises:
        NotReadyError: it is still not sized; nothing was mapped.
        UnknownLedgerError: it has another size than a registry. It is not touched.
        OSError: EACCES, ENOSPC, …
    """

    def __init__(
        self, path: str, *, wait: float = 10.0, sleep: Callable[[float], object] = time.sleep
    ) -> None:
        self.path = path
        self._descriptor = _made(path)
        try:
            while (size := os.fstat(self._descriptor).st_size) != SIZE:
                if size > SIZE:
                    raise UnknownLedgerError(f"{path}: {size} bytes: no registry of a card, left as it is")
                if wait <= 0:
                    raise NotReadyError(f"{path}: {size} of {SIZE} bytes: whoever made it has not sized it")
                sleep(min(wait, _POLL))
                wait -= _POLL
            self._memory = mmap.mmap(self._descriptor, SIZE)
        except BaseException:
            os.close(self._descriptor)
            raise

    def __enter__(self) -> Registry:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file; managers that joined stay in it."""
        self._memory.close()
        os.close(self._descriptor)

    def join(self, pid: int, priority: int = 1, *, average_us: int = 500, now_us: int = 0) -> Manager:
        """Take the first free slot, or the one this pid has.

        Raises:
            LedgerError: no pid, or a number that the file cannot hold.
            RefusedError: all 64 are taken (B.1, limits).
        """
        if not 0 < pid < 1 << 31 or not all(0 <= n < 1 << 64 for n in (priority, average_us, now_us)):
            raise LedgerError(f"{self.path}: manager {pid} with priority {priority} cannot be written")
        with self._locked():
            taken = {index: one for index, one in enumerate(self._rows()) if one is not None}
            mine = [index for index, one in taken.items() if one.pid == pid]
            free = [index for index in range(MAX_MANAGERS) if index not in taken]
            if not mine and not free:
                raise RefusedError(f"{self.path}: {MAX_MANAGERS} managers take turns on this card already")
            index = (mine or free)[0]
            told = {"avg_kernel_time": average_us, "last_heartbeat": now_us, "priority": priority}
            self._write(index, {"pid": pid, **told, "active": 1})
        return Manager(index, pid, average_us, now_us, priority)

    def leave(self, index: int, pid: int) -> bool:
        """Free a slot if it is still this pid's: its successor's is not to be freed (B.5, supervisor)."""
        if not 0 <= index < MAX_MANAGERS:
            raise LedgerError(f"{self.path}: no slot {index} among {MAX_MANAGERS}")
        with self._locked():
            one = self._rows()[index]
            if one is None or one.pid != pid:
                return False
            self._write(index, {"active": 0, **dict.fromkeys(_SLOTS.fields, 0)})
        return True

    def managers(self) -> tuple[Manager, ...]:
        """Who takes turns, by slot. The file is written by containers: what stands in it is only shown."""
        return tuple(one for one in self._rows() if one is not None)

    def _rows(self) -> list[Manager | None]:
        rows: list[Manager | None] = []
        for index in range(_SLOTS.rows):
            at = _SLOTS.base(index)
            found = {name: one.read(self._memory, at)[0] for name, one in _SLOTS.fields.items()}
            times = found["avg_kernel_time"], found["last_heartbeat"]
            slot = Manager(index, found["pid"], *times, found["priority"])
            rows.append(slot if found["active"] and slot.pid > 0 else None)
        return rows

    def _write(self, index: int, numbers: Mapping[str, int]) -> None:
        """Store fields of a slot in this order: ``active`` last or first, for those who look meanwhile."""
        for name, value in numbers.items():
            _SLOTS.fields[name].write(self._memory, (value,), _SLOTS.base(index))

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN)


def _made(path: str) -> int:
    """The file, opened; whoever makes it gives it its size, nobody else does."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except FileExistsError:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.fchmod(descriptor, 0o666)  # managers of any user join, whatever the umask is
        os.ftruncate(descriptor, SIZE)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
