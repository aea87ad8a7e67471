"""How a rule of `gpusim.testing.checks` is put, and what a broken one says."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass

MISSING = "no-such-name"
NODES = "/sys/class/kfd/kfd/topology/nodes"
GPUS = "/sys/bus/pci/drivers/amdgpu"


class CheckError(AssertionError):
    """A rule is broken."""


@dataclass(slots=True)
class Checked:
    """How much was looked at: a check of nothing proves nothing."""

    directories: int = 0
    files: int = 0
    links: int = 0
    devices: int = 0
    refused: int = 0
    """Files whose reading was refused, with an errno."""
    writes: int = 0


def expect(holds: bool, rule: str, path: str, expected: object, got: object) -> None:
    """CheckError unless `holds`."""
    if not holds:
        raise CheckError(f"{rule}: {path}: expected {expected!r}, got {got!r}")


def refuses(code: int, rule: str, path: str, ask: Callable[..., object], *args: object) -> None:
    """CheckError unless ``ask(*args)`` is refused with that errno."""
    got = errno_of(ask, *args)
    if got != code:
        raise CheckError(f"{rule}: {path}: expected {name_of(code)}, got {name_of(got)}")


def errno_of(ask: Callable[..., object], *args: object) -> int | None:
    """The errno an operation is refused with; None when it is not refused."""
    try:
        ask(*args)
    except OSError as error:
        return error.errno or 0
    return None


def name_of(code: int | None) -> str:
    """An errno in words."""
    return "success" if code is None else errno.errorcode.get(code, f"errno {code}")
