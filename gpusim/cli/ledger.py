"""``gpusim ledger``: what a container's NPU ledger says, without touching it.

Exit codes: 0 read, 1 absent or unreadable, 2 no ledger that can be parsed (ascend_ppu_hami.md B.7).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gpusim.stdout import say

if TYPE_CHECKING:
    from gpusim.ascend.reading import Reading

_MIB = 1 << 20


def add_commands(commands: Any) -> None:
    """``ledger``."""
    command = commands.add_parser(
        "ledger",
        help="show who uses how much of a container's NPUs",
        description="Read the file in which libvnpu counts a container's memory, of v1.4.0 or v1.4.1: limit "
        "and use of each device, process slots, active workers. Exit 1: it is absent or unreadable; 2: it is "
        "no such file, or its writer died in the middle.",
        examples="  gpusim ledger ./vnpu_local_shmem\n  gpusim ledger ./vnpu_local_shmem --json",
    )
    command.add_argument("file", metavar="FILE", help="the container's vnpu_local_shmem")
    command.add_argument("--json", action="store_true", help="print one JSON object, in bytes")
    command.set_defaults(run=_ledger)


def _ledger(args: argparse.Namespace) -> int:
    from gpusim.ascend.ledgerview import read_file
    from gpusim.ascend.shm import UnknownLedgerError

    try:
        reading = read_file(args.file)
    except UnknownLedgerError as error:
        sys.stderr.write(f"gpusim: {args.file}: {error}\n")
        return 2
    if args.json:
        say(json.dumps(as_json(reading), indent=2))
    else:
        for line in lines(reading):
            say(line)
    return 0


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
        of = f"of {_mib(limit)}" if limit else "not limited"
        yield f"device {device}: {_mib(used)} {of}" + (f", {_mib(reserved)} reserved" if reserved else "")
    yield f"total: {_mib(reading.total)}"
    for slot in reading.slots:
        held = ", ".join(f"{_mib(slot.used[device])} on {device}" for device, _ in shown if slot.used[device])
        yield f"slot {slot.row}: pid {slot.pid}: {held or 'nothing'}"
    if not reading.slots:
        yield "no process is registered"


def _devices(reading: Reading) -> list[tuple[int, tuple[int, int, int]]]:
    return list(enumerate(zip(reading.limits, reading.used, reading.reserved, strict=True)))


def _says_something(reading: Reading, found: tuple[int, tuple[int, int, int]]) -> bool:
    """v1.4.0 does not tell how many devices there are: show the first, and those in use."""
    device, (_, used, _) = found
    return reading.layout.name == "1.4.1" or used > 0 or device == 0


def _mib(size: int) -> str:
    """Whole MiB as such; of others one decimal, and bytes below 0.1 MiB."""
    if size % _MIB == 0:
        return f"{size // _MIB} MiB"
    return f"{size / _MIB:.1f} MiB" if size * 10 >= _MIB else f"{size} bytes"
