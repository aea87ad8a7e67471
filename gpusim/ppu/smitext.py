"""What ppu-smi prints: the listing, the CSV, the long form and the table, of any PPUs under any indices.

The line of ``-L``, the keys ``PPU UUID`` and ``Minor Number`` of ``-q``, and ``49MiB / 98304MiB`` and ``4%``
of the table are recorded (ascend_ppu_hami.md C.2); what stands around them is ours, after the tool of
another vendor that ppu-smi follows. What is not known reads ``N/A`` (decision 54).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpusim.ppu.ppu import MINOR, Ppu

NOT_KNOWN = "N/A"
NO_DEVICES = "No devices were found\n"
_RULER = f"+{'-' * 31}+{'-' * 25}+{'-' * 13}+"


@dataclass(frozen=True, slots=True)
class Row:
    """A PPU as ppu-smi shows it somewhere: a container sees other indices than the host.

    Attributes:
        ppu: which.
        index: what ppu-smi counts it as.
        version: of the driver.
    """

    ppu: Ppu
    index: int
    version: str

    def value(self, field: str) -> str:
        """A field, with neither unit nor a guess."""
        return _COLUMNS[field].value(self) if self.ppu.knows(field) else NOT_KNOWN

    def with_unit(self, field: str, gap: str = " ") -> str:
        """A field with its unit, if it has one."""
        text, unit = self.value(field), _COLUMNS[field].unit
        return f"{text}{gap}{unit}" if unit and text != NOT_KNOWN else text


@dataclass(frozen=True, slots=True)
class _Column:
    value: Callable[[Row], str]
    unit: str = ""


_COLUMNS: Mapping[str, _Column] = {
    "index": _Column(lambda row: str(row.index)),
    "name": _Column(lambda row: row.ppu.product.name),
    "uuid": _Column(lambda row: row.ppu.uuid),
    "pci.bus_id": _Column(lambda row: row.ppu.bus_id),
    "memory.total": _Column(lambda row: str(row.ppu.product.memory_mib), "MiB"),
    "memory.used": _Column(lambda row: str(row.ppu.used_mib), "MiB"),
    "memory.free": _Column(lambda row: str(row.ppu.product.memory_mib - row.ppu.used_mib), "MiB"),
    "utilization.ppu": _Column(lambda row: str(row.ppu.busy), "%"),
    "power.limit": _Column(lambda row: str(row.ppu.product.power_watts), "W"),
    "driver_version": _Column(lambda row: row.version),
    MINOR: _Column(lambda row: str(row.ppu.minor)),
}


def listing(rows: Iterable[Row]) -> str:
    """``-L``: ``PPU 0: PPU (UUID: GPU-…)``."""
    return "".join(
        f"PPU {row.index}: {row.ppu.product.listed_as} (UUID: {row.value('uuid')})\n" for row in rows
    )


def csv(rows: Iterable[Row], fields: Sequence[str], *, header: bool, units: bool) -> str:
    """``--query-ppu``: one line a PPU in the order of `fields`, values separated by a comma and a blank."""
    lines = []
    if header:
        titles = ((field, _COLUMNS[field].unit if units else "") for field in fields)
        lines.append(", ".join(f"{field} [{unit}]" if unit else field for field, unit in titles))
    lines += [
        ", ".join(row.with_unit(field) if units else row.value(field) for field in fields) for row in rows
    ]
    return "".join(f"{line}\n" for line in lines)


def long(rows: Sequence[Row], version: str) -> str:
    """``-q``: a block a PPU, keys padded, sections indented."""
    lines = [
        "",
        "==============PPU-SMI LOG==============",
        "",
        _pair(0, "Driver Version", version),
        _pair(0, "Attached PPUs", str(len(rows))),
    ]
    for row in rows:
        lines += [
            f"PPU {row.value('pci.bus_id')}",
            _pair(1, "Product Name", row.value("name")),
            _pair(1, "PPU UUID", row.value("uuid")),
            _pair(1, "Minor Number", row.value(MINOR)),
            "    PCI",
            _pair(2, "Bus Id", row.value("pci.bus_id")),
            "    Memory Usage",
            _pair(2, "Total", row.with_unit("memory.total")),
            _pair(2, "Used", row.with_unit("memory.used")),
            _pair(2, "Free", row.with_unit("memory.free")),
            "    Utilization",
            _pair(2, "Ppu", row.with_unit("utilization.ppu")),
            "    Power",
            _pair(2, "Power Limit", row.with_unit("power.limit")),
            "",
        ]
    return "\n".join(lines)


def _pair(depth: int, key: str, value: str) -> str:
    return f"{'    ' * depth}{key:<{42 - 4 * depth}}: {value}"


def table(rows: Sequence[Row], version: str) -> str:
    """The overview: two lines a PPU, with ``49MiB / 98304MiB`` and ``4%``."""
    lines = [
        f"+{'-' * 71}+",
        f"| {f'PPU-SMI {version}':<35}{f'Driver Version: {version}':<35}|",
        _RULER,
        f"| {'PPU  Name':<30}| {'Bus-Id':<24}| {'PPU-Util':<12}|",
        f"| {'     Power-Cap':<30}| {'Memory-Usage':<24}| {'':<12}|",
        _RULER.replace("-", "="),
    ]
    for row in rows:
        memory = " / ".join(row.with_unit(f"memory.{which}", "") for which in ("used", "total"))
        name = f"{row.index:>3}  {row.value('name')}"
        power = row.with_unit("power.limit", "")
        busy = row.with_unit("utilization.ppu", "")
        lines += [
            f"| {name:<30}| {row.value('pci.bus_id'):<24}| {busy:>11} |",
            f"| {f'     {power}':<30}| {memory:>23} | {'':<12}|",
            _RULER,
        ]
    return "\n".join(lines) + "\n"
