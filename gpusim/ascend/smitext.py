"""The layouts of npu-smi: what it prints, given what there is to say.

Overview tables: dumps ascend-310p3-hami-softslice (wide, one memory column), ascend-910b4-1-npu-smi (HBM
column) and ascend-910c-npu-smi (Phy-ID column, rulers, processes); widths are counted from them. The
other forms: decision 42 for what they must hold, Huawei's public command reference for how the lines
look.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpusim.ascend.npu import NO_CONTAINER, Npu


@dataclass(frozen=True, slots=True)
class Row:
    """One chip in the overview."""

    npu: int
    chip: int
    phy: int
    name: str
    health: str
    bdf: str
    busy: int
    used_mib: int | None
    """None is shown as NA."""
    total_mib: int
    first: bool
    """Whether it is the NPU's first chip: the second one's power is ``-``."""


@dataclass(frozen=True, slots=True)
class _Shape:
    """Where a table has its columns: inner widths, and whether there is an HBM column."""

    columns: tuple[int, int, int]
    npu: int
    version: int
    hbm: bool

    @property
    def inner(self) -> int:
        return sum(self.columns) + 2


_HBM = _Shape((27, 15, 52), 5, 24, hbm=True)
_WIDE = _Shape((31, 17, 54), 7, 40, hbm=False)
_POWER_W = {True: "NA", False: "91.9"}
"""Watts of an idle chip: none is reported on 310P3."""
_TEMPERATURE_C = 37
_HBM_HEAD = (
    ("NPU   Name", "Health", "Power(W)    Temp(C)           Hugepages-Usage(page)"),
    ("Chip", "Bus-Id", "AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)"),
)
_WIDE_HEAD = (
    ("NPU     Name", "Health", "Power(W)     Temp(C)           Hugepages-Usage(page)"),
    ("Chip    Device", "Bus-Id", "AICore(%)    Memory-Usage(MB)"),
)


def overview(version: str, rows: Sequence[Row], *, hbm: bool, phy_column: bool) -> str:
    """``npu-smi info``: a block a chip, then the processes (none is simulated)."""
    shape = _HBM if hbm else _WIDE
    thin, thick = f"+{'-' * shape.inner}+", _ruler(shape, "=")
    head = _HBM_HEAD if hbm else _WIDE_HEAD
    second = ("Chip  Phy-ID", *head[1][1:]) if hbm and phy_column else head[1]
    title = f" npu-smi {version:<{shape.version}} Version: {version}"
    lines = [
        thin,
        f"|{title:<{shape.inner}}|",
        _ruler(shape, "-"),
        _line(shape, head[0]),
        _line(shape, second),
    ]
    lines.append(thick)
    for i, row in enumerate(rows):
        last = i + 1 == len(rows) or rows[i + 1].npu != row.npu
        lines += [*_block(shape, row, phy_column), thick if last else thin]
    if hbm:
        lines += _processes(dict.fromkeys(row.npu for row in rows))
    return "\n".join(lines) + "\n"


def _block(shape: _Shape, row: Row, phy_column: bool) -> tuple[str, str]:
    width = shape.npu
    power = _POWER_W[not shape.hbm] if row.first else "-"
    used = "NA" if row.used_mib is None else row.used_mib
    if shape.hbm:
        state = f"{power:<11} {_TEMPERATURE_C:<17} {0:<4} / {0}"
        use = f"{row.busy:<11} {0:<5}/ {0:<10} {used:<5}/ {row.total_mib}"
        number = str(row.phy) if phy_column else ""
    else:
        state = f"{power:<12} {_TEMPERATURE_C:<17} {0:<5} / {0}"
        use = f"{row.busy:<12} {used:<5}/ {row.total_mib}"
        number = str(row.phy)
    return (
        _line(shape, (f"{row.npu:<{width}} {row.name}", row.health, state)),
        _line(shape, (f"{row.chip:<{width}} {number}", row.bdf.upper(), use)),
    )


def _line(shape: _Shape, cells: tuple[str, ...]) -> str:
    return "|" + "|".join(f" {cell:<{w - 1}}" for cell, w in zip(cells, shape.columns, strict=True)) + "|"


def _ruler(shape: _Shape, stroke: str) -> str:
    return "+" + "+".join(stroke * width for width in shape.columns) + "+"


def _processes(npus: Iterable[int]) -> list[str]:
    """The second table, only known in the width of the HBM chips (dump ascend-910c-npu-smi)."""
    widths = (27, 15, 26, 25)
    thick = f"+{'=' * 27}+{'=' * 15}+{'=' * 52}+"
    head = ("NPU     Chip", "Process id", "Process name", "Process memory(MB)")
    lines = [_ruler(_HBM, "-")]
    lines += ["|" + "|".join(f" {c:<{w - 1}}" for c, w in zip(head, widths, strict=True)) + "|", thick]
    for npu in npus:
        lines += [f"|{f' No running processes found in NPU {npu}':<{_HBM.inner}}|", thick]
    return lines


def pairs(*lines: tuple[str, object]) -> str:
    """``key : value`` lines."""
    return "".join(f"\t{key:<30} : {value}\n" for key, value in lines)


def columns(*rows: Sequence[object]) -> str:
    """Rows of cells 30 wide, as ``info -m``."""
    return "".join("\t" + " ".join(f"{cell!s:<30}" for cell in row).rstrip() + "\n" for row in rows)


def vnpus(npu: Npu) -> str:
    """``info -t info-vnpu``: what is free of the chip, then id, vgroup, container, status and template."""
    cores, cpus, mib = npu.free
    chip = npu.chip
    cpu = f"{cpus}/{chip.ai_cpus}" if chip.ai_cpus else "NA/NA"
    free = f" {f'{cores}/{chip.ai_cores}':<10}{f'{mib >> 10}/{chip.memory_mib >> 10}':<10}{cpu}"
    ruler = f"+{'-' * 79}+"
    lines = [
        ruler,
        _cell(" NPU resource static info as follow:"),
        _cell(" Format:Free/Total                   NA: Currently, query is not supported."),
        _cell(" AICORE    Memory    AICPU"),
        _cell("           GB"),
        f"|{'=' * 79}|",
        _cell(free),
        ruler,
        _cell(f" Total number of vnpu: {len(npu.vnpus)}"),
        ruler,
        _cell("  Vnpu ID  |  Vgroup ID     |  Container ID  |  Status  |  Template Name"),
        ruler,
    ]
    for v in npu.vnpus.values():
        status = 0 if v.container is None else 1
        holder = v.container or NO_CONTAINER
        lines.append(_cell(f"  {v.number:<9}|  {0:<14}|  {holder}  |  {status:<8}|  {v.template.name}"))
    return "\n".join([*lines, *([ruler] if npu.vnpus else [])]) + "\n"


def templates(npu: Npu) -> str:
    """``info -t template-info``: name, AICore, memory and AICPU of every template."""
    ruler = f"+{'-' * 79}+"
    lines = [ruler, _cell(" NPU instance template info is:"), ruler]
    lines += [_cell(f" {'Name':<24}{'AICORE':<10}{'Memory(GB)':<14}AICPU"), f"|{'=' * 79}|"]
    for t in npu.chip.templates:
        lines.append(_cell(f" {t.name:<24}{t.ai_cores:<10}{t.memory_mib >> 10:<14}{t.ai_cpus or 'NA'}"))
    return "\n".join([*lines, ruler]) + "\n"


def _cell(text: str) -> str:
    return f"|{text:<79}|"
