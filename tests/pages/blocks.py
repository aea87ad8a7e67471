"""The commands that README.md and the pages of docs/ show, each with what the page says it prints.

Two kinds of blocks hold commands. ``sh``: every line is one. ``console``: a line that begins with ``$ `` is
one (``> `` continues it), the lines below are what it prints, ``…`` standing for anything. A comment ``# exit
status 1`` behind a command says that it fails. A block without a language is refused: a command could hide.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))))
COMMANDS = ("sh", "console")
OTHERS = ("python", "yaml", "json", "text", "diff", "log")
"""Languages of blocks without commands."""

_FENCE = re.compile(r"^```(\S*)$")
_STATUS = re.compile(r"#.*\bexit status (\d+)$")
_HEREDOC = re.compile(r"<<-?'?(\w+)'?")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block."""

    language: str
    line: int
    """Of its first line, from 1."""
    lines: tuple[str, ...]
    heading: str
    """The nearest ``##`` above it; empty before the first."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command, as printed."""

    page: str
    line: int
    heading: str
    text: str
    shown: tuple[str, ...] = ()
    """What the page says it prints; empty: nothing is said."""

    @property
    def status(self) -> int:
        """The exit status the page announces."""
        found = _STATUS.search(self.text)
        return int(found[1]) if found else 0

    @property
    def bare(self) -> str:
        """Without a comment behind it: how it is looked up in tables of the test."""
        return re.sub(r"\s+#\s.*$", "", self.text)

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.text}"


def blocks(page: str) -> Iterator[Block]:
    """The fenced blocks of a page."""
    heading, inside, began, language = "", None, 0, ""
    for number, line in enumerate((ROOT / page).read_text().splitlines(), 1):
        fence = _FENCE.match(line)
        if inside is not None:
            if fence:
                yield Block(language, began, tuple(inside), heading)
                inside = None
            else:
                inside.append(line)
        elif fence:
            inside, began, language = [], number + 1, fence[1]
        elif line.startswith("## "):
            heading = line[3:]
    assert inside is None, f"{page}: a block does not end"


def commands(page: str) -> list[Command]:
    """All of them, in the order of the page."""
    found: list[Command] = []
    for block in blocks(page):
        if block.language == "sh":
            found += _script(page, block)
        elif block.language == "console":
            found += _session(page, block)
    return found


def _script(page: str, block: Block) -> Iterator[Command]:
    held: list[str] = []
    for number, line in enumerate(block.lines, block.line):
        if not held and (not line.strip() or line.startswith("#")):
            continue
        held.append(line)
        if whole("\n".join(held)):
            yield Command(page, number - len(held) + 1, block.heading, "\n".join(held))
            held = []
    assert not held, f"{page}:{block.line}: {held} is no whole command"


def _session(page: str, block: Block) -> Iterator[Command]:
    text, began, shown = "", 0, []
    for number, line in enumerate(block.lines, block.line):
        if line.startswith("$ "):
            if text:
                yield Command(page, began, block.heading, text, tuple(shown))
            text, began, shown = line[2:], number, []
        elif line.startswith("> ") and not shown:
            text += "\n" + line[2:]
        else:
            assert text, f"{page}:{number}: a console begins with a command"
            shown.append(line)
    yield Command(page, began, block.heading, text, tuple(shown))


def whole(text: str) -> bool:
    """Whether a shell would not wait for more lines."""
    heredoc = _HEREDOC.search(text)
    if heredoc and text.splitlines()[-1] != heredoc[1]:
        return False
    if text.endswith("\\"):
        return False
    done = subprocess.run(["bash", "-n", "-c", text], capture_output=True, check=False)
    return done.returncode == 0


def agrees(shown: tuple[str, ...], printed: list[str]) -> bool:
    """Whether output is what a page shows: ``…`` in a line is any text, alone in one any number of lines.

    How wide a gap between words is does not count: columns follow their longest cell.
    """
    if not shown:
        return True
    return _agrees([" ".join(line.split()) for line in shown], [" ".join(line.split()) for line in printed])


def _agrees(shown: list[str], printed: list[str]) -> bool:
    if not shown:
        return not printed
    if shown[0] == "…":
        return any(_agrees(shown[1:], printed[at:]) for at in range(len(printed) + 1))
    if not printed:
        return False
    pattern = ".*".join(re.escape(part) for part in shown[0].split("…"))
    return re.fullmatch(pattern, printed[0]) is not None and _agrees(shown[1:], printed[1:])
