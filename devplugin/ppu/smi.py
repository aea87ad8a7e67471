"""ppu-smi: where it is, which two questions discovery asks, and what the answers say.

The exit status proves nothing: without a driver the tool prints ``init HGML error: driver is not loaded`` and
ends with 0 (decision 54). So every answer must have the form that was asked for; any value may read ``N/A``.
A card's device node is ``Minor Number`` of the long form, never the index. For monitors there is the
overview, the one public form that shows memory in use and utilisation (ascend_ppu_hami.md C.2).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from devplugin.vendortool import Tool, ToolError, table

TOOL = Tool("ppu-smi", ("/usr/local/bin/ppu-smi",))

QUERY = ("--query-ppu=index,name,uuid,pci.bus_id,memory.total", "--format=csv,noheader,nounits")
LONG = ("-q",)

UNKNOWN = "N/A"
NONE = "No devices were found"
"""What it prints when the driver drives no card (as other vendors' tools)."""

_COLUMNS = 5
_NUMBER = re.compile(r"[0-9]{1,9}")
_NAME = re.compile(r"[!-~]+(?: [!-~]+)*")
_UUID = re.compile(r"[0-9A-Za-z](?:[0-9A-Za-z-]{0,62}[0-9A-Za-z])?")
_BUS = re.compile(r"([0-9A-Fa-f]{4}|0000[0-9A-Fa-f]{4}):([0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])")
_BLOCK = re.compile(r"PPU \S+")
_MEMORY = re.compile(r"(?:([0-9]{1,9})MiB|N/A) / (?:([0-9]{1,9})MiB|N/A)")
_BUSY = re.compile(r"(?:([0-9]{1,3})%|N/A)")
_FIRST = re.compile(r"([0-9]{1,4})\s+\S.*")


@dataclass(frozen=True, slots=True)
class Row:
    """A card of the query; None: the tool does not know."""

    index: int
    name: str | None
    uuid: str | None
    bdf: str | None
    """As sysfs spells it: ``0000:05:00.0``."""
    memory_mib: int | None


@dataclass(frozen=True, slots=True)
class Use:
    """A card of the overview; None: the tool does not know."""

    index: int
    used_mib: int | None
    busy: int | None
    """Percent."""


def rows(text: str) -> tuple[Row, ...]:
    """The cards of the query, by index.

    Raises:
        ToolError: a line that is no such row, or two rows of one index.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    if [line.strip() for line in lines] == [NONE]:
        return ()
    found = [_row(line, text) for line in lines]
    if not found or len({row.index for row in found}) < len(found):
        raise TOOL.unread(QUERY[0], text)
    return tuple(sorted(found, key=lambda row: row.index))


def _row(line: str, text: str) -> Row:
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != _COLUMNS or not _NUMBER.fullmatch(cells[0]):
        raise TOOL.unread(QUERY[0], text)
    index, name, uuid, bus, memory = (None if cell == UNKNOWN else cell for cell in cells)
    place = None if bus is None else _BUS.fullmatch(bus)
    good = (
        (name is None or _NAME.fullmatch(name))
        and (uuid is None or _UUID.fullmatch(uuid))
        and (bus is None or place)
        and (memory is None or _NUMBER.fullmatch(memory))
    )
    if not good:
        raise TOOL.unread(QUERY[0], text)
    bdf = None if place is None else f"{place[1][-4:]}:{place[2]}".lower()
    return Row(int(index or 0), name, uuid, bdf, None if memory is None else int(memory))


def minors(text: str) -> Mapping[str, int | None]:
    """UUID → number of the device node, of the long form; None where the tool does not know it.

    A card without a UUID is left out: nothing could be said of it.

    Raises:
        ToolError: it shows no card, a value that is none, or one twice.
    """
    if NONE in (line.strip() for line in text.splitlines()):
        return {}
    found: dict[str, int | None] = {}
    blocks = list(_blocks(text))
    if not blocks:
        raise TOOL.unread(LONG[0], text)
    for block in blocks:
        uuid, minor = block.get("PPU UUID", ""), block.get("Minor Number", "")
        if uuid == UNKNOWN:
            continue
        known = _NUMBER.fullmatch(minor)
        if not _UUID.fullmatch(uuid) or not (known or minor == UNKNOWN) or uuid in found:
            raise TOOL.unread(LONG[0], text)
        found[uuid] = int(minor) if known else None
    taken = [minor for minor in found.values() if minor is not None]
    if len(set(taken)) < len(taken):
        raise TOOL.unread(LONG[0], text, "two cards with one Minor Number")
    return found


def _blocks(text: str) -> Iterator[Mapping[str, str]]:
    """``key : value`` lines of each card; of a key that stands twice the first."""
    block: dict[str, str] | None = None
    for line in text.splitlines():
        if _BLOCK.fullmatch(line.strip()):
            if block is not None:
                yield block
            block = {}
        elif block is not None:
            key, colon, value = line.partition(": ")
            if colon:
                block.setdefault(key.strip(), value.strip())
    if block is not None:
        yield block


def uses(text: str) -> tuple[Use, ...]:
    """The cards of the overview: a line with index and utilisation, then one with memory.

    Raises:
        ToolError: it shows no card, or one without its memory.
    """
    found: list[Use] = []
    index: int | None = None
    busy: int | None = None
    for cells in table(text):
        memory = next((match for cell in cells if (match := _MEMORY.fullmatch(cell))), None)
        if memory is not None:
            if index is None:
                raise TOOL.unread("", text)
            found.append(Use(index, None if memory[1] is None else int(memory[1]), busy))
            index = busy = None
        elif cells and (first := _FIRST.fullmatch(cells[0])):
            index = int(first[1])
            told = next((match for cell in cells[1:] if (match := _BUSY.fullmatch(cell))), None)
            busy = int(told[1]) if told is not None and told[1] is not None else None
    if not found or index is not None or len({use.index for use in found}) < len(found):
        raise TOOL.unread("", text)
    return tuple(found)


__all__ = ["LONG", "NONE", "QUERY", "TOOL", "UNKNOWN", "Row", "ToolError", "Use", "minors", "rows", "uses"]
