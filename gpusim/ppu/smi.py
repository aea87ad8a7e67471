"""ppu-smi: its forms, and how it ends.

Decision 54 says which forms there are. The exit status proves nothing: what it refuses ends with
`Ppus.exit_status`, 0 by itself, and the words are on stdout either way (ascend_ppu_hami.md C.2 records
``init HGML error: driver is not loaded``; the other refusals are worded by us).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpusim.ppu import smitext
from gpusim.ppu.ppu import FIELDS, Ppu, Ppus
from gpusim.ppu.smitext import Row
from gpusim.view import Completed

NOT_LOADED = "init HGML error: driver is not loaded\n"


class _RefusedError(Exception):
    """What ppu-smi prints instead of an answer."""


@dataclass(frozen=True, slots=True)
class _Call:
    """One command line, taken apart."""

    form: str
    fields: tuple[str, ...] = ()
    header: bool = True
    units: bool = True


def run(ppus: Ppus, arguments: Sequence[str], devices: Sequence[Ppu] | None = None) -> Completed:
    """Run it.

    Args:
        ppus: of the node.
        arguments: after the program's name.
        devices: those that are seen, by the index they have there; None: as the host sees them.

    Returns:
        Exit status and output; errors are on stdout.
    """
    try:
        call = _parsed(arguments)
        if (failure := ppus.failure(call.form)) is not None:
            return failure
        if not ppus.loaded:
            raise _RefusedError(NOT_LOADED)
        seen = ppus.listed if devices is None else devices
        if not seen:
            raise _RefusedError(smitext.NO_DEVICES)
        rows = [Row(ppu, index, ppus.version) for index, ppu in enumerate(seen)]
        return Completed(0, _answer(call, rows, ppus.version).encode(), b"")
    except _RefusedError as refused:
        # It says again what it was given, which need not be text.
        return Completed(ppus.exit_status, str(refused).encode("utf-8", "surrogateescape"), b"")


def _answer(call: _Call, rows: Sequence[Row], version: str) -> str:
    if call.form == "-L":
        return smitext.listing(rows)
    if call.form == "-q":
        return smitext.long(rows, version)
    if call.form == "--query-ppu":
        return smitext.csv(rows, call.fields, header=call.header, units=call.units)
    return smitext.table(rows, version)


def _parsed(arguments: Sequence[str]) -> _Call:
    """The command line; both ``--key=value`` and ``--key value`` are taken."""
    words = list(arguments)
    if not words:
        return _Call("table")
    if words in (["-L"], ["-q"]):
        return _Call(words[0])
    options: dict[str, str] = {}
    while words:
        key, equals, value = words.pop(0).partition("=")
        if key not in ("--query-ppu", "--format") or key in options or not (equals or words):
            raise _RefusedError(f"Invalid combination of input arguments: {' '.join(arguments)}\n")
        options[key] = value if equals else words.pop(0)
    return _query(options.get("--query-ppu"), options.get("--format"))


def _query(asked: str | None, layout: str | None) -> _Call:
    if asked is None:
        raise _RefusedError("--format is for --query-ppu: add --query-ppu=index,name,uuid\n")
    fields = tuple(field.strip() for field in asked.split(","))
    for field in fields:
        if field not in FIELDS:
            raise _RefusedError(f'Field "{field}" is not a valid field to query.\n')
    words = [] if layout is None else [word.strip() for word in layout.split(",")]
    if "csv" not in words:
        raise _RefusedError('"--format=" switch is missing its "csv".\n')
    if unknown := [word for word in words if word not in ("csv", "noheader", "nounits")]:
        raise _RefusedError(f'Format "{unknown[0]}" is not one of csv, noheader, nounits.\n')
    return _Call("--query-ppu", fields, header="noheader" not in words, units="nounits" not in words)
