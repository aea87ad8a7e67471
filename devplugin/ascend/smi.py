"""npu-smi: where it is, how it is asked, and what its answers say.

The exit status proves nothing (decision 42): what counts is whether the output can be read. What cannot is
an `SmiError` that names the command and quotes what was said. Places: ascend_ppu_hami.md A.5; forms:
decision 42; the overview: dumps ascend-310p3-hami-softslice, ascend-910b4-1-npu-smi, ascend-910c-npu-smi.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from devplugin.vendortool import Tool, ToolError, table

NAME = "npu-smi"
PLACES = (
    "/usr/local/Ascend/driver/tools/npu-smi",
    "/usr/local/sbin/npu-smi",
    "/usr/local/bin/npu-smi",
)
"""Looked into in this order, then the directories of PATH (A.5)."""
TOOL = Tool(NAME, PLACES)
find, ask = TOOL.find, TOOL.ask
SmiError = ToolError

IDLE = "0" * 12
"""Container of a vNPU that none uses (decision 42)."""

_NUMBER = re.compile(r"[0-9]{1,9}")
_BUS = re.compile(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]")
_WORD = re.compile(r"[0-9A-Fa-f]{1,8}")
_CHIP_NAME = re.compile(r"[!-~]+(?: [!-~]+)*")
_HEALTH = re.compile(r"[!-~]+(?: [!-~]+)*")
_PAIR = r"([0-9]{1,9}) */ *[0-9]{1,9}"
_LOAD = re.compile(rf"([0-9]{{1,3}}) +(?:[0-9]{{1,9}} */ *[0-9]{{1,9}} +)?{_PAIR}")
_CONTAINER = re.compile(r"[0-9A-Za-z]{1,64}")


@dataclass(frozen=True, slots=True)
class Row:
    """A chip of ``info -m``."""

    card: int
    """NPU ID."""
    device: int
    """Chip ID."""
    logic: int
    phy: int | None
    """None: this version of the tool has no such column."""
    name: str
    """Without the type before it: ``910B4``, and ``Ascend910`` of a 910C, whose name begins with it."""


@dataclass(frozen=True, slots=True)
class BoardInfo:
    """What ``info -t board`` says of a chip."""

    uuid: str
    """The words of the VDie ID, joined by ``-``."""
    type: str
    """Empty: not said."""


@dataclass(frozen=True, slots=True)
class Load:
    """What a chip does and holds now, of ``info``."""

    busy: int
    """AICore utilisation in percent."""
    used_mib: int


@dataclass(frozen=True, slots=True)
class Vnpu:
    """A slice of a chip, of ``info -t info-vnpu``."""

    number: int
    group: int
    container: str
    """Of the container that uses it, or `IDLE`."""
    status: int
    template: str

    @property
    def idle(self) -> bool:
        """Whether no container uses it."""
        return self.container == IDLE and self.status == 0


def chips(text: str) -> tuple[Row, ...]:
    """The chips of ``info -m``, by logic id. A row without logic id is a card's Mcu, no chip.

    Raises:
        SmiError: no such table, a row that is none of it, or two chips of one place or number.
    """
    rows: list[Row] = []
    columns = 0
    for line in text.splitlines():
        cells = line.split()
        if not columns:
            if cells[:4] == ["NPU", "ID", "Chip", "ID"] and cells[-2:] == ["Chip", "Name"]:
                columns = 5 if "Phy-ID" in cells else 4
            continue
        if not cells or (len(cells) >= columns and cells[2] == "-"):
            continue
        row = _row(cells, columns)
        if row is None:
            raise _unread("info -m", text)
        rows.append(row)
    if not columns or any(
        len(set(numbers)) < len(numbers)
        for numbers in (
            [(row.card, row.device) for row in rows],
            [row.logic for row in rows],
            [row.phy for row in rows if row.phy is not None],
        )
    ):
        raise _unread("info -m", text)
    return tuple(sorted(rows, key=lambda row: row.logic))


def _row(cells: Sequence[str], columns: int) -> Row | None:
    numbers, name = cells[: columns - 1], " ".join(cells[columns - 1 :])
    if not name or not all(map(_NUMBER.fullmatch, numbers)) or _CHIP_NAME.fullmatch(name) is None:
        return None
    card, device, logic, *phy = map(int, numbers)
    return Row(card, device, logic, phy[0] if phy else None, name.removeprefix("Ascend "))


def board(text: str, arguments: str = "info -t board") -> BoardInfo:
    """What ``info -t board`` says.

    Raises:
        SmiError: it has no VDie ID, or that is none.
    """
    said = pairs(text)
    vdie = said.get("VDie ID", "").split()
    if not 0 < len(vdie) <= 8 or not all(map(_WORD.fullmatch, vdie)):
        raise _unread(arguments, text)
    return BoardInfo("-".join(vdie), said.get("Chip Type", ""))


def place(text: str, arguments: str = "info -t phyid-remap") -> tuple[int, int]:
    """(NPU ID, Chip ID) of the physical id that ``info -t phyid-remap`` was asked for.

    Raises:
        SmiError: it says neither.
    """
    said = pairs(text)
    numbers = said.get("NPU ID", ""), said.get("Chip ID", "")
    if not all(map(_NUMBER.fullmatch, numbers)):
        raise _unread(arguments, text)
    return int(numbers[0]), int(numbers[1])


def pairs(text: str) -> Mapping[str, str]:
    """``key : value`` lines; of a key that stands twice the first."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(" : ")
        if colon:
            found.setdefault(" ".join(key.split()), value.strip())
    return found


def health(text: str) -> Mapping[tuple[int, int], str]:
    """(NPU ID, Chip ID) → word of the Health column of ``info``.

    Raises:
        SmiError: it shows no chip, or one twice.
    """
    return {place: word for place, (word, _) in _overview(text).items()}


def loads(text: str) -> Mapping[tuple[int, int], Load]:
    """(NPU ID, Chip ID) → what the chip does, of ``info``; without chips whose numbers are none (``NA``).

    HBM stands in the last column where there is one; 310P3 has its memory in the only one.

    Raises:
        SmiError: it shows no chip, or one twice.
    """
    read = {place: _LOAD.fullmatch(load) for place, (_, load) in _overview(text).items()}
    return {place: Load(int(load[1]), int(load[2])) for place, load in read.items() if load}


def _overview(text: str) -> Mapping[tuple[int, int], tuple[str, str]]:
    """(NPU ID, Chip ID) → health and the cell with utilisation and memory, of ``info``.

    A chip has two lines: number, name and health, then chip id, bus address and what it does.
    """
    found: dict[tuple[int, int], tuple[str, str]] = {}
    before: tuple[str, ...] = ()
    for cells in table(text):
        if len(cells) == 3 and len(before) == 3 and _BUS.fullmatch(cells[1]):
            npu, chip = before[0].split()[:1], cells[0].split()[:1]
            if not (npu and chip and _NUMBER.fullmatch(npu[0]) and _NUMBER.fullmatch(chip[0])):
                raise _unread("info", text)
            key = int(npu[0]), int(chip[0])
            if key in found or _HEALTH.fullmatch(before[1]) is None:
                raise _unread("info", text)
            found[key] = before[1], cells[2]
        before = cells
    if not found:
        raise _unread("info", text)
    return found


def vnpus(text: str, arguments: str = "info -t info-vnpu") -> tuple[Vnpu, ...]:
    """The slices of a chip, as ``info -t info-vnpu`` lists them.

    Raises:
        SmiError: no such table, a row that is none of it, or not as many as it says.
    """
    found: list[Vnpu] = []
    total = re.search(r"Total number of vnpu *: *([0-9]{1,4})\b", text)
    listed = False
    for cells in table(text):
        if len(cells) != 5:
            continue
        number, group, container, status, template = cells
        if number == "Vnpu ID":
            listed = True
            continue
        good = all(map(_NUMBER.fullmatch, (number, group, status)))
        if not (listed and good and _CONTAINER.fullmatch(container) and template):
            raise _unread(arguments, text)
        found.append(Vnpu(int(number), int(group), container, int(status), template))
    if total is None or int(total[1]) != len(found):
        raise _unread(arguments, text)
    return tuple(found)


def _unread(arguments: str, text: str) -> SmiError:
    return TOOL.unread(arguments, text)
