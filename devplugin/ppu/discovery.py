"""Which PPUs the node has: ppu-smi asked twice and the answers joined, all of them or none.

A question that is not answered leaves the PPUs of the look before as they are, with the reason in
`Inventory.trouble`; the next look asks again, so a driver that comes late at boot needs no restart (the
complaint of ascend_ppu_hami.md G 2). One value that reads ``N/A`` concerns its card alone (decision 54): a
card that was known before stays, unhealthy, and one that never said what is needed is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from devplugin.configfile import INT32_MAX
from devplugin.host import Host, words
from devplugin.ppu import library, smi
from devplugin.ppu.inventory import Inventory, Ppu, Skipped
from devplugin.ppu.settings import Settings
from devplugin.ppu.smi import LONG, QUERY, TOOL, Row
from devplugin.ppu.words import COMMON_NODES, NODE
from devplugin.vendortool import ToolError

PCI = "/sys/bus/pci/devices"


def discover(host: Host, settings: Settings, previous: Inventory | None) -> Inventory:
    """What the node has now, or what it had with the reason why nothing newer is known."""
    before = replace(
        previous or Inventory(), trouble="", library=library.look(host), assets=library.assets(host)
    )
    tool = TOOL.find(host)
    try:
        rows = smi.rows(TOOL.ask(host, tool, *QUERY))
        minors = smi.minors(TOOL.ask(host, tool, *LONG)) if rows else {}
    except ToolError as error:
        return replace(before, trouble=str(error))
    found: list[Ppu] = []
    skipped: list[Skipped] = []
    common = _missing(host)
    for row in rows:
        ppu = _ppu(host, row, minors, before, common)
        why = ppu if isinstance(ppu, str) else _unfit(ppu, rows, settings)
        if why:
            skipped.append(Skipped(f"PPU {row.index} ({row.uuid or row.bdf or 'unknown'})", why))
        elif not isinstance(ppu, str):
            found.append(ppu)
    return replace(before, ppus=tuple(found), skipped=tuple(skipped), tool=tool)


def _ppu(host: Host, row: Row, minors: Mapping[str, int | None], before: Inventory, common: str) -> Ppu | str:
    """A row with all that is known of it, or why nothing can be made of it."""
    if row.uuid is None:
        return "ppu-smi does not know its uuid"
    if row.uuid not in minors:
        return "ppu-smi -q does not list it"
    known = before.ppu(row.uuid)
    minor, memory, name = minors[row.uuid], row.memory_mib, row.name
    trouble = ""
    for field, value in (("Minor Number", minor), ("memory.total", memory), ("name", name)):
        if value is None:
            if known is None:
                return f"ppu-smi does not know its {field}"
            trouble = trouble or f"ppu-smi does not know its {field} any more"
    if known is not None:
        minor = known.minor if minor is None else minor
        memory = known.memory_mib if memory is None else memory
        name = name or known.name
    assert minor is not None and memory is not None and name is not None
    return Ppu(
        uuid=row.uuid,
        index=row.index,
        minor=minor,
        name=name,
        bdf=row.bdf or "",
        memory_mib=memory,
        numa=_numa(host, row.bdf),
        trouble=trouble or common or _there(host, f"{NODE}{minor}"),
        unopened=known.unopened if known is not None else "",
    )


def _unfit(ppu: Ppu, rows: tuple[Row, ...], settings: Settings) -> str:
    """Why it cannot be offered; empty: it can."""
    if sum(row.uuid == ppu.uuid for row in rows) > 1:
        return "another PPU has the same uuid"
    mib = settings.memory_mib(ppu.memory_mib)
    if not 0 < mib <= INT32_MAX:
        return f"{ppu.memory_mib} MiB x {settings.memory_scaling:g} = {mib}: no int32 above 0 (D.2)"
    return ""


def _missing(host: Host) -> str:
    """Why no PPU can be used at all; empty: the nodes that all share are there."""
    return next((why for path in COMMON_NODES if (why := _there(host, path))), "")


def _there(host: Host, path: str) -> str:
    try:
        host.stat(path)
    except OSError as error:
        return f"{path}: {words(error)}"
    return ""


def _numa(host: Host, bdf: str | None) -> int:
    if bdf is None:
        return -1
    try:
        text = host.read(f"{PCI}/{bdf}/numa_node").strip()
    except OSError:
        return -1
    return int(text) if text.isdigit() and len(text) <= 4 else -1
