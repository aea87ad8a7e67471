"""What vendors' programs are asked while a node is recorded: the words that plugins use, one table a program.

A replayed node answers a plugin's question only if it was asked the same, so a row of `TOOLS` is what a
plugin asks: of the node, of each chip that the program lists, of each physical id. Whatever it answers is
kept, refusals and exit status too (decision 42: the status proves nothing). Nothing that changes the node
is among the words. The program itself is recorded by name and mode, so that it is found where it was.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Optional

from gpusim.snapshots.pack import Command

Words = tuple[str, ...]

PATIENCE = 20.0
"""Seconds a program may take."""

Run = Callable[[Sequence[str]], Optional[Command]]
"""Runs a program: None when there is no such one, or it does not end."""


class Tool(NamedTuple):
    """What a program is asked.

    Attributes:
        places: where it may be installed; only names and modes are looked at there.
        once: words that are asked as they are.
        listing: which of them lists chips, a `row` each.
        row: finds (NPU, chip, physical id or nothing) of each.
        of_chip: asked of each chip; ``{npu}`` and ``{chip}`` are put in.
        of_phy: asked of each physical id; where no row has one, of 0, 1, … until all chips were named.
        named: finds NPU and chip in an answer to `of_phy`.
    """

    places: tuple[str, ...]
    once: tuple[Words, ...]
    listing: Words = ()
    row: str = r"(?!)"
    of_chip: tuple[Words, ...] = ()
    of_phy: tuple[Words, ...] = ()
    named: str = r"(?!)"


_BIN = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin")

TOOLS: Mapping[str, Tool] = {
    "npu-smi": Tool(
        # A.5
        places=("/usr/local/Ascend/driver/tools/npu-smi", *(f"{place}/npu-smi" for place in _BIN)),
        # Decision 42; health, memory in use and utilisation stand in the overview.
        once=(("info",), ("info", "-m")),
        listing=("info", "-m"),
        row=r"^\s*(\d+)\s+(\d+)\s+\d+\s+(?:(\d+)\s+)?\S",
        of_chip=(
            ("info", "-t", "board", "-i", "{npu}", "-c", "{chip}"),
            ("info", "-t", "info-vnpu", "-i", "{npu}", "-c", "{chip}"),
        ),
        of_phy=(("info", "-t", "phyid-remap", "-p", "{phy}"),),
        named=r"^\s*NPU ID\s*:\s*(\d+)\s*$[\s\S]*?^\s*Chip ID\s*:\s*(\d+)\s*$",
    ),
    "ppu-smi": Tool(
        places=tuple(f"{place}/ppu-smi" for place in _BIN),
        # Decision 54
        once=(
            ("--query-ppu=index,name,uuid,pci.bus_id,memory.total", "--format=csv,noheader,nounits"),
            ("-q",),
        ),
    ),
}
"""Programs that can be recorded."""

_MOST_PHYS = 64
"""Physical ids that are tried where the program lists none."""


def ask(tool: str, root: str = "/", run: Run | None = None) -> list[Command]:
    """Run a vendor's program with the words that plugins use.

    Args:
        tool: a key of `TOOLS`.
        root: where the node's files are; another root than ``/`` is entered by ``chroot``.
        run: runs one command.

    Returns:
        What it printed, exit status included; nothing when it is not installed.
    """
    run = run or (lambda argv: _run(argv, root))
    table = TOOLS[tool]
    done: list[Command] = []
    for words in table.once:
        found = run((tool, *words))
        if found is None:
            return done
        done.append(found)
    for words in _further(table, done):
        found = run((tool, *words))
        if found is not None:
            done.append(found)
    return done


def _further(table: Tool, done: Sequence[Command]) -> Iterator[Words]:
    """Words that depend on the chips there are; `done` grows by the answers meanwhile."""
    listing = "".join(_text(one) for one in done if one.argv[1:] == table.listing)
    rows = re.findall(table.row, listing, re.MULTILINE)
    for npu, chip, _ in rows:
        for words in table.of_chip:
            yield tuple(word.format(npu=npu, chip=chip) for word in words)
    listed = [phy for _, _, phy in rows if phy]
    unnamed = {(npu, chip) for npu, chip, phy in rows if not phy}
    for phy in listed or map(str, range(_MOST_PHYS)):
        if not listed and not unnamed:
            return
        for words in table.of_phy:
            asked = tuple(word.format(phy=phy) for word in words)
            yield asked
            if done[-1].argv[1:] == asked:
                unnamed -= set(re.findall(table.named, _text(done[-1]), re.MULTILINE))


def _text(command: Command) -> str:
    return command.stdout.decode("utf-8", "replace")


def _run(argv: Sequence[str], root: str) -> Command | None:
    words = list(argv) if root == "/" else ["chroot", root, *argv]
    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(  # noqa: S603  words come from our own table, never from a shell
            words, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, start_new_session=True
        )
    except OSError:
        return None
    try:
        stdout, stderr = process.communicate(timeout=PATIENCE)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):  # it hangs in the kernel: left behind
            process.communicate(timeout=1)
        if isinstance(error, subprocess.TimeoutExpired):
            return None
        raise
    if root != "/" and process.returncode == 127:  # chroot found no such program
        return None
    return Command(tuple(argv), process.returncode, stdout, stderr)
