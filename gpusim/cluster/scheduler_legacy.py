"""The string in which nodes registered their devices before JSON (ascend_ppu_hami.md D.2, C7 to C13).

``id,count,MiB,cores,type,numa,health[,index,mode]:`` for each device; 7 or 9 fields are read, 9 are written.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from gpusim.cluster.scheduler_vendors import INT32, SOFT
from gpusim.errors import GpusimError

_TRUE = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE = frozenset({"0", "f", "F", "false", "FALSE", "False"})
"""Words of Go's ``ParseBool``."""


class LegacyError(GpusimError):
    """The string cannot be read."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One device."""

    id: str
    count: int
    memory_mib: int
    cores: int
    type: str
    numa: int
    healthy: bool
    index: int = 0
    mode: str = SOFT

    def json(self) -> dict[str, Any]:
        """As the newer form has it."""
        return {
            "id": self.id,
            "index": self.index,
            "count": self.count,
            "devmem": self.memory_mib,
            "devcore": self.cores,
            "type": self.type,
            "numa": self.numa,
            "mode": self.mode,
            "health": self.healthy,
        }


def decode(text: str) -> tuple[Entry, ...]:
    """The devices, in their order.

    Raises:
        LegacyError: no separator, a segment without a comma, another number of fields, a field that is bad.
    """
    if ":" not in text:
        raise LegacyError("node annotation missing device separator")
    return tuple(_entry(segment) for segment in text.split(":") if segment)


def encode(entries: Iterable[Entry]) -> str:
    """The string of some devices, nine fields each."""
    return "".join(
        f"{e.id},{e.count},{e.memory_mib},{e.cores},{e.type},{e.numa},{str(e.healthy).lower()},{e.index},{e.mode}:"
        for e in entries
    )


def _entry(segment: str) -> Entry:
    if "," not in segment:
        raise LegacyError(f'malformed node annotation segment: "{segment}"')
    fields = segment.split(",")
    if len(fields) not in (7, 9):
        raise LegacyError(f"unexpected field count {len(fields)} in node annotation")
    count, memory, cores, numa = (
        _int32(what, fields[at]) for what, at in (("count", 1), ("memory", 2), ("core", 3), ("numa", 5))
    )
    if fields[6] not in _TRUE | _FALSE:
        raise LegacyError(f"invalid health field: {fields[6]!r}")
    index = _int32("index", fields[7]) if len(fields) == 9 else 0
    if index < 0:
        raise LegacyError(f"index field must not be negative: {index}")
    mode = fields[8] if len(fields) == 9 else SOFT
    return Entry(fields[0], count, memory, cores, fields[4], numa, fields[6] in _TRUE, index, mode)


def _int32(what: str, text: str) -> int:
    try:
        value = int(text) if text.isascii() and text.strip() == text and "_" not in text else INT32
    except ValueError:
        value = INT32
    if not -INT32 <= value < INT32:
        raise LegacyError(f"invalid {what} field: {text!r}")
    return value
