"""A PPU container's state file, mapped, and the lock byte of each card that its processes take.

Source: decision 53, ascend_ppu_hami.md B.7; how a file is shared within a process is `gpusim.sharedfile`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import threading
from collections.abc import Iterator

from gpusim.errors import GpusimError
from gpusim.ppu import layout
from gpusim.ppu.layout import CARDS, LOCKS, SIZE, Card, UnknownStateError
from gpusim.sharedfile import Files, SharedFile, make_whole


class StateError(GpusimError):
    """A state file cannot be used, or not so."""


class NotReadyError(StateError):
    """There is no state file yet."""


class Mapping(SharedFile):
    """A state file, mapped. `open_mapping` makes them."""

    def new_locks(self) -> None:
        """A lock a card."""
        super().new_locks()
        self._threads = [threading.Lock() for _ in range(CARDS)]

    @contextlib.contextmanager
    def locked(self, card: int) -> Iterator[None]:
        """While it lasts nobody else changes the numbers of this card; other cards go on."""
        with self._threads[card]:
            fcntl.lockf(self.descriptor, fcntl.LOCK_EX, 1, LOCKS + card)
            try:
                yield
            finally:
                fcntl.lockf(self.descriptor, fcntl.LOCK_UN, 1, LOCKS + card)


FILES: Files[Mapping] = Files()
"""Those this process has open."""
bytes_of = FILES.bytes_of


def open_mapping(path: str, cards: tuple[Card, ...] | None = None) -> Mapping:
    """Map a state file; every call is to be paired with a `Mapping.close`.

    Args:
        path: of the file.
        cards: make the file with these if there is none, whole and at once: nobody ever sees it half made.

    Raises:
        NotReadyError: there is none and it is not to be made.
        UnknownStateError: it is foreign or of another version. It is left as it is (B.7).
        OSError: EACCES, EROFS, ENOSPC, ...
    """
    if sys.byteorder != "little":
        raise StateError("the state file is little-endian, and so must be the machine that maps it")

    def first() -> Mapping:
        if cards is not None:
            make_whole(path, layout.write(cards))
        return _map(path)

    return FILES.open(path, first)


def _map(path: str) -> Mapping:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        raise NotReadyError(f"{path}: there is no state file yet; a process with limits makes it") from None
    try:
        # One byte more than it may have: a longer file is none.
        layout.check(os.pread(descriptor, SIZE + 1, 0))
    except UnknownStateError as error:
        os.close(descriptor)
        raise UnknownStateError(f"{path}: {error}; left as it is, move it away to start anew") from error
    return Mapping(FILES, descriptor, path, SIZE)
