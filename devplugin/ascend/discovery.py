"""Which NPUs the node has: npu-smi asked and the answers joined, all of them or none.

Any question that is not answered leaves the NPUs of the look before as they are (A.4: all or nothing), with
the reason in `Inventory.trouble`; the next look asks again, so a driver that comes late at boot needs no
restart (G 2). What cannot change while the process lives is asked once of every chip (decision 42).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from devplugin.ascend import smi
from devplugin.ascend.deviceconfig import config_of
from devplugin.ascend.inventory import Inventory, Known, Npu, Skipped
from devplugin.ascend.settings import ChipConfig, Settings
from devplugin.ascend.smi import Row, SmiError
from devplugin.host import Host
from devplugin.settings import shown

HEALTHY = "OK"
"""The one word that counts (decision 42)."""
TYPE = "Ascend"

_DEVICE = re.compile(r"davinci([0-9]{1,5})")


def discover(host: Host, settings: Settings, previous: Inventory | None) -> Inventory:
    """What the node has now, or what it had with the reason why nothing newer is known."""
    before = previous or Inventory()
    tool = smi.find(host)
    try:
        return _look(host, settings, before, tool)
    except SmiError as error:
        return replace(before, trouble=str(error))


def _look(host: Host, settings: Settings, before: Inventory, tool: str) -> Inventory:
    """Ask everything.

    Raises:
        SmiError: one question was not answered.
    """
    rows = smi.chips(smi.ask(host, tool, "info", "-m"))
    words = smi.health(smi.ask(host, tool, "info")) if rows else {}
    known, foreign = _identify(host, tool, rows, before.known)
    skipped: list[Skipped] = []
    offered: list[Npu] = []
    for row in rows:
        npu = _npu(row, known, words)
        device = f"NPU {row.card} chip {row.device}"
        if npu is None:
            skipped.append(Skipped(device, f"chip type is not {TYPE}: {shown(foreign[row])}"))
        elif why := _kept_back(npu, settings):
            skipped.append(Skipped(f"{device} ({npu.uuid})", why))
        else:
            offered.append(npu)
    chip = _kind(rows, offered, settings) or before.chip  # a chip that left leaves its keys
    npus = []
    for npu in offered:
        why = _unfit(npu, chip, offered, settings)
        if why:
            skipped.append(Skipped(f"NPU {npu.card} chip {npu.device} ({npu.uuid})", why))
        else:
            npus.append(npu)
    return Inventory(chip=chip, npus=tuple(npus), skipped=tuple(skipped), tool=tool, known=known)


def _npu(row: Row, known: Iterable[Known], words: Mapping[tuple[int, int], str]) -> Npu | None:
    """A row with all that is known of it; None: it is no Ascend."""
    found = next((k for k in known if (k.card, k.device) == (row.card, row.device)), None)
    if found is None:
        return None
    word = words.get((row.card, row.device), "")
    return Npu(
        uuid=found.uuid,
        logic=row.logic,
        phy=found.phy,
        card=row.card,
        device=row.device,
        name=row.name,
        healthy=word == HEALTHY,
        reason="" if word == HEALTHY else word or "not in the overview of npu-smi",
    )


def _identify(
    host: Host, tool: str, rows: Sequence[Row], before: Sequence[Known]
) -> tuple[tuple[Known, ...], dict[Row, str]]:
    """Identity of every chip ever asked, and the types of those that are no Ascend.

    Raises:
        SmiError: a chip does not tell its VDie ID, or none of the physical ids is its.
    """
    known = {(k.card, k.device): k for k in before}
    foreign: dict[Row, str] = {}
    uuids: dict[Row, str] = {}
    dealt_anew = False
    for row in rows:
        found = known.get((row.card, row.device))
        if found is not None:
            uuids[row] = found.uuid
            dealt_anew |= found.logic != row.logic or row.phy not in (None, found.phy)
            continue
        arguments = ("info", "-t", "board", "-i", str(row.card), "-c", str(row.device))
        told = smi.board(smi.ask(host, tool, *arguments), " ".join(arguments))
        if told.type in ("", TYPE):
            uuids[row], dealt_anew = told.uuid, True
        else:
            foreign[row] = told.type
    if dealt_anew:  # the driver's numbers of all chips, so that no old one stands beside a new one
        physical = _physical(host, tool, list(uuids))
        for row, uuid in uuids.items():
            known[row.card, row.device] = Known(row.card, row.device, row.logic, uuid, physical[row])
    return tuple(known[place] for place in sorted(known)), foreign


def _physical(host: Host, tool: str, rows: Sequence[Row]) -> dict[Row, int]:
    """The physical id of every row: from the table, else by asking whose each of the device nodes is.

    Raises:
        SmiError: a row's is not found; the text is that of the first question without an answer, if any.
    """
    found = {row: row.phy for row in rows if row.phy is not None}
    missing = {(row.card, row.device): row for row in rows if row.phy is None}
    failed: SmiError | None = None
    for phy in _candidates(host, rows) if missing else ():
        arguments = ("info", "-t", "phyid-remap", "-p", str(phy))
        try:
            where = smi.place(smi.ask(host, tool, *arguments), " ".join(arguments))
        except SmiError as error:  # of a chip that is gone, whose node is still there
            failed = failed or error
            continue
        if (row := missing.pop(where, None)) is not None:
            found[row] = phy
        if not missing:
            break
    if missing:
        (card, device), *_ = sorted(missing)
        raise failed or SmiError(f"npu-smi info -t phyid-remap: no physical id is NPU {card} chip {device}")
    return found


def _candidates(host: Host, rows: Sequence[Row]) -> list[int]:
    """Physical ids to ask about: those of the device nodes, and where /dev shows none, the logic ids."""
    try:
        nodes = [int(match[1]) for name in host.list("/dev") if (match := _DEVICE.fullmatch(name))]
    except OSError:
        nodes = []
    return sorted(nodes) or sorted(row.logic for row in rows)


def _kept_back(npu: Npu, settings: Settings) -> str:
    """Why the operator does not want it offered; empty: he does."""
    if npu.card in settings.filtered_cards:
        return f"kept back by the node configuration: filterDevices.index {npu.card}"
    if npu.uuid in settings.filtered_uuids:
        return "kept back by the node configuration: filterDevices.uuid"
    return ""


def _kind(rows: Sequence[Row], offered: Sequence[Npu], settings: Settings) -> ChipConfig | None:
    """The node's kind of chip: the first that the configuration knows, also when all chips are kept back."""
    for name in (*(npu.name for npu in offered), *(row.name for row in rows)):
        if (chip := config_of(name, settings.chips)) is not None:
            return chip
    return None


def _unfit(npu: Npu, chip: ChipConfig | None, all_: Sequence[Npu], settings: Settings) -> str:
    """Why it cannot be offered beside the others; empty: it can."""
    if config_of(npu.name, settings.chips) is None:
        return f"can not find vnpu config for chip {npu.name}"
    assert chip is not None, "the configuration knows at least this one"
    if npu.name != chip.chip:
        return f"a node has one kind of chip, and this one's is {chip.chip}"
    if sum(other.uuid == npu.uuid for other in all_) > 1:
        return "another chip has the same VDie ID"
    return ""
