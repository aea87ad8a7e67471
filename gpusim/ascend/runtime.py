"""What libvnpu answers to the runtime calls it stands in front of, whichever ledger counts behind it.

A call that allocates is reserve, the driver's own call, commit or rollback; what is refused, and what the
driver cannot give, are both the runtime's 207001. Source: ascend_ppu_hami.md B.2 and B.3, decisions 36, 50.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from gpusim.errors import GpusimError

OK = 0
OUT_OF_MEMORY = 207001
"""RT_ERROR_MEMORY_ALLOCATION."""
OVERHEAD = 128 << 20
"""Bytes that `rtMemGetInfoEx` keeps back of what is free (B.3)."""
MIB = 1 << 20


class LedgerError(GpusimError):
    """A ledger cannot be used, or not so."""


class BadQuotaError(LedgerError):
    """NPU_MEM_QUOTA says nothing that could be meant; taking it as 0 would lift the limit (decision 50)."""


class RefusedError(LedgerError):
    """The reservation is not granted; the caller of the runtime gets `code`."""

    code = OUT_OF_MEMORY


@dataclass(frozen=True, slots=True)
class Reservation:
    """Bytes on their way to be allocated on a device.

    Attributes:
        number: unique in its process; 0: the device is not limited and nothing was counted.
    """

    number: int
    device: int
    size: int


class Accounting(Protocol):
    """A process's hold on its container's ledger: both versions have it."""

    @property
    def device(self) -> int:
        """The process's current device, a container index."""
        ...

    def set_device(self, device: int) -> None:
        """Change the current device; nothing is counted."""
        ...

    def reserve(self, size: int) -> Reservation:
        """Take `size` bytes of the quota, or raise `RefusedError` and take nothing."""
        ...

    def commit(self, reservation: Reservation, handle: Hashable) -> None:
        """The driver has given the memory under this handle."""
        ...

    def rollback(self, reservation: Reservation) -> int:
        """The driver has not given it; the code for the caller."""
        ...

    def free(self, handle: Hashable, driver_rc: int = OK) -> int:
        """The driver has been asked to free it and said `driver_rc`, which is handed through."""
        ...

    def mem_info(self) -> tuple[int, int] | None:
        """(free, total) of the current device in bytes; None: ask the driver."""
        ...


class Driver(Protocol):
    """The real calls behind."""

    def malloc(self, device: int, size: int) -> tuple[int, Hashable]:
        """(return code, handle)."""
        ...

    def free(self, handle: Hashable) -> int:
        """Return code."""
        ...

    def mem_info(self, device: int) -> tuple[int, int]:
        """(free, total) in bytes."""
        ...


class Runtime:
    """The calls a program makes.

    Args:
        ledger: counts.
        driver: gives the memory.
    """

    def __init__(self, ledger: Accounting, driver: Driver) -> None:
        self.ledger = ledger
        self.driver = driver

    def malloc(self, size: int) -> tuple[int, Any]:
        """`rtMalloc` and `rtMallocPhysical`: (code, handle or None). The driver's own code is lost."""
        try:
            reservation = self.ledger.reserve(size)
        except RefusedError as error:
            return error.code, None
        code, handle = self.driver.malloc(reservation.device, size)
        if code != OK:
            return self.ledger.rollback(reservation), None
        self.ledger.commit(reservation, handle)
        return OK, handle

    def free(self, handle: Hashable) -> int:
        """`rtFree` and `rtFreePhysical`: the driver's code."""
        return self.ledger.free(handle, self.driver.free(handle))

    def mem_get_info(self) -> tuple[int, int]:
        """`rtMemGetInfoEx`: (free, total) in bytes."""
        seen = self.ledger.mem_info()
        return self.driver.mem_info(self.ledger.device) if seen is None else seen


def virtual_info(limit: int, used: int) -> tuple[int, int] | None:
    """(free, total) a program sees of a limited device; None without a limit."""
    return (max(0, limit - used - OVERHEAD), limit) if limit else None


def quota_bytes(environ: Mapping[str, str]) -> int:
    """NPU_MEM_QUOTA in bytes, the limit of each device (decision 36); unset and 0: not limited.

    Raises:
        BadQuotaError: it is set and no plain number of MiB below 2^64 bytes. v1.4.0 takes that for 0.
    """
    text = environ.get("NPU_MEM_QUOTA")
    if text is None:
        return 0
    # int() alone would take '1_0', ' 5' and digits of other scripts.
    if not (text.isascii() and text.isdecimal() and len(text) <= 20) or int(text) * MIB >= 1 << 64:
        raise BadQuotaError(f"NPU_MEM_QUOTA={text!r}: a whole number of MiB is wanted, 0 for no limit")
    return int(text) * MIB


def number(environ: Mapping[str, str], name: str, default: float, otherwise: float) -> float:
    """A number of the environment.

    Args:
        environ: the process's.
        name: of the variable.
        default: when it is unset.
        otherwise: when it is set to something else than a finite number; it need not be the default (B.2).
    """
    text = environ.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        return otherwise
    return value if math.isfinite(value) else otherwise
