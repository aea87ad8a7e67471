"""``gpusim ledger``: what the ledger of a container's NPUs or PPUs says, without touching it.

Exit codes: 0 read, 1 absent or unreadable, 2 no ledger that can be parsed (ascend_ppu_hami.md B.7).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpusim.cli.sizes import mib
from gpusim.errors import GpusimError
from gpusim.stdout import say

if TYPE_CHECKING:
    from gpusim.ascend.reading import Reading


def add_commands(commands: Any) -> None:
    """``ledger``."""
    command = commands.add_parser(
        "ledger",
        help="show who uses how much of a container's NPUs or PPUs",
        description="Read the file in which libvnpu counts a container's memory, of v1.4.0 or v1.4.1, or the "
        "state file of PPU-HAMi-core: limit and use of each device, process slots, active workers. Exit 1: "
        "it is absent or unreadable; 2: it is no such file, or its writer died in the middle.",
        examples="  gpusim ledger ./vnpu_local_shmem\n  gpusim ledger ./vnpu_local_shmem --json",
    )
    command.add_argument(
        "file", metavar="FILE", help="the container's vnpu_local_shmem, or its PPU state file"
    )
    command.add_argument("--json", action="store_true", help="print one JSON object, in bytes")
    command.set_defaults(run=_ledger)


def _ledger(args: argparse.Namespace) -> int:
    try:
        state, text = _of_ppus(args.file) if _is_of_ppus(args.file) else _of_npus(args.file)
    except GpusimError as error:
        why = str(error).removeprefix(f"{args.file}: ")
        sys.stderr.write(f"gpusim: {args.file}: {why}\n")
        return 2
    if args.json:
        say(json.dumps(state, indent=2))
    else:
        for line in text:
            say(line)
    return 0


def _is_of_ppus(path: str) -> bool:
    from gpusim.ppu.layout import MAGIC

    with Path(path).open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def _of_ppus(path: str) -> tuple[dict[str, object], Iterator[str]]:
    from gpusim.cli import ppuledger
    from gpusim.ppu.statefile import read_file

    cards = read_file(path)
    return ppuledger.as_json(cards), ppuledger.lines(cards)


def _of_npus(path: str) -> tuple[dict[str, object], Iterator[str]]:
    from gpusim.ascend.ledgerview import read_file

    reading = read_file(path)
    return as_json(reading), lines(reading)


def as_json(reading: Reading) -> dict[str, object]:
    """All of it, in bytes; what is reserved is part of what is used."""
    return {
        "layout": reading.layout.name,
        "devices": [
            {"device": device, "limit": limit, "used": used, "reserved": reserved}
            for device, (limit, used, reserved) in _devices(reading)
        ],
        "used": reading.total,
        "active_workers": reading.active_workers,
        "slots": [
            {
                "slot": slot.row,
                "pid": slot.pid,
                "start": slot.start,
                "used": list(slot.used),
                "reserved": list(slot.reserved),
            }
            for slot in reading.slots
        ],
        **reading.fields,
    }


def lines(reading: Reading) -> Iterator[str]:
    """The same for people, in MiB."""
    yield f"layout {reading.layout.name}, {reading.active_workers} active workers"
    shown = [found for found in _devices(reading) if _says_something(reading, found)]
    for device, (limit, used, reserved) in shown:
        of = f"of {mib(limit)}" if limit else "not limited"
        yield f"device {device}: {mib(used)} {of}" + (f", {mib(reserved)} reserved" if reserved else "")
    yield f"total: {mib(reading.total)}"
    for slot in reading.slots:
        held = ", ".join(f"{mib(slot.used[device])} on {device}" for device, _ in shown if slot.used[device])
        yield f"slot {slot.row}: pid {slot.pid}: {held or 'nothing'}"
    if not reading.slots:
        yield "no process is registered"


def _devices(reading: Reading) -> list[tuple[int, tuple[int, int, int]]]:
    return list(enumerate(zip(reading.limits, reading.used, reading.reserved, strict=True)))


def _says_something(reading: Reading, found: tuple[int, tuple[int, int, int]]) -> bool:
    """v1.4.0 does not tell how many devices there are: show the first, and those in use."""
    device, (_, used, _) = found
    return reading.layout.name == "1.4.1" or used > 0 or device == 0
