"""Looking at a container's ledger from outside: nothing is registered, made or changed.

Source: ascend_ppu_hami.md B.6 (query, monitor_read), decisions 47 and 48.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from gpusim.ascend.mapping import bytes_of
from gpusim.ascend.reading import Reading, read
from gpusim.ascend.runtime import LedgerError, virtual_info
from gpusim.ascend.shm import MAGIC, V141, UnknownLedgerError

_TRIES = 200
"""Pairs of reads of another process's file until one falls between two stores, ..."""
_PAUSE = 0.0005
"""... and seconds in between."""


def read_file(path: str) -> Reading:
    """What a ledger of either version says.

    Raises:
        UnknownLedgerError: it is none, or its writer died in the middle.
        OSError: ENOENT, EACCES, ...
    """
    return read_settled(bytes_of, path)


def read_settled(look: Callable[[str], bytes], path: str) -> Reading:
    """The same of a file that is somewhere else: on a simulated node, or below another directory.

    Args:
        look: reads the whole file, upwards.
        path: what it is given.

    Raises:
        UnknownLedgerError, OSError: as `read_file`.
    """
    seq = V141.fields["seq"]
    for _ in range(_TRIES):
        data, again = look(path), look(path)
        if not data.startswith(MAGIC) or len(data) != V141.size or len(again) != V141.size:
            return read(data)
        # The number stands before the counters and is read first: if it is the same even one afterwards, no
        # store fell in between.
        if seq.read(data) == seq.read(again) and seq.read(data)[0] % 2 == 0:
            return read(data)
        time.sleep(_PAUSE)
    raise UnknownLedgerError(f"{path}: it is being written all the time, or its writer died")


def mem_info(path: str, device: int) -> tuple[int, int] | None:
    """(free, total) in bytes as a query sees it that is in nobody's slot, or None without a limit.

    Raises:
        UnknownLedgerError, OSError: as `read_file`.
        LedgerError: the container has no such device.
    """
    reading = read_file(path)
    if not 0 <= device < len(reading.limits):
        raise LedgerError(f"{path}: no device {device} among {len(reading.limits)}")
    return virtual_info(reading.limits[device], reading.used[device])
