"""An NPU container's ledger, mapped, and the one lock that all of its processes take (decision 49).

How a file is shared within a process is `gpusim.sharedfile`.
"""

from __future__ import annotations

import fcntl
import os
import sys
import threading
from pathlib import Path
from types import TracebackType

from gpusim.ascend.reading import check_141, fresh
from gpusim.ascend.runtime import LedgerError
from gpusim.ascend.shm import V141, UnknownLedgerError
from gpusim.sharedfile import Files, SharedFile, make_whole

SEQ = V141.fields["seq"].offset // 8
"""Word of the sequence number: odd while somebody writes, or after a writer was killed."""


class NotReadyError(LedgerError):
    """There is no ledger yet."""


class Mapping(SharedFile):
    """A v1.4.1 ledger, mapped. `open_mapping` makes them; as a context manager it is the lock."""

    def new_locks(self) -> None:
        """One lock for the whole file."""
        super().new_locks()
        self._threads = threading.Lock()

    def __enter__(self) -> Mapping:
        self._threads.acquire()
        try:
            fcntl.lockf(self.descriptor, fcntl.LOCK_EX)
        except BaseException:
            self._threads.release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            fcntl.lockf(self.descriptor, fcntl.LOCK_UN)
        finally:
            self._threads.release()

    def bytes(self) -> bytes:
        """All of it as one moment left it, under the lock."""
        with self:
            return super().bytes()

    def check(self) -> None:
        """Its head, which never changes: a writer may be at work, or have died, and both are fine.

        Raises:
            UnknownLedgerError: it is no ledger of this version.
        """
        check_141(self._memory)


FILES: Files[Mapping] = Files()
"""Those this process has open."""
bytes_of = FILES.bytes_of


def open_mapping(path: str, limits: tuple[int, ...] | None = None) -> Mapping:
    """Map a ledger; every call is to be paired with a `Mapping.close`.

    Args:
        path: of the file.
        limits: make the file if there is none, whole and at once: nobody ever sees it half made.

    Raises:
        NotReadyError: there is none and it is not to be made.
        UnknownLedgerError: it is none of this version. It is not touched (B.6: reading is not sharing).
        LedgerError: it has other limits than those given.
        OSError: EACCES, EROFS, ENOSPC, ...
    """
    if sys.byteorder != "little":
        raise LedgerError("the ledger is little-endian, and so must be the machine that maps it")

    def first() -> Mapping:
        if limits is not None:
            Path(path).parent.mkdir(parents=True, exist_ok=True)  # as the runtime does (B.2)
            make_whole(path, fresh(limits))
        return _map(path)

    mapping = FILES.open(path, first)
    if limits is not None and (found := limits_of(mapping)) != limits:
        mapping.close()
        raise LedgerError(f"{path}: its limits are {found}, not {limits}: one container has one quota")
    return mapping


def limits_of(mapping: Mapping) -> tuple[int, ...]:
    """Bytes, one a device of the container. They never change."""
    first, devices = V141.fields["limit"].offset // 8, mapping.halves[V141.fields["devices"].offset // 4]
    return tuple(mapping.words[first : first + devices])


def _map(path: str) -> Mapping:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        raise NotReadyError(f"{path}: there is no ledger yet") from None
    found = os.fstat(descriptor)
    if found.st_size != V141.size:
        os.close(descriptor)
        raise UnknownLedgerError(f"{path}: {found.st_size} bytes: no ledger of 1.4.1, left as it is")
    mapping = Mapping(FILES, descriptor, path, V141.size)
    try:
        mapping.check()
    except UnknownLedgerError as error:
        mapping.unmap()
        raise UnknownLedgerError(f"{path}: left as it is: {error}") from error
    return mapping
