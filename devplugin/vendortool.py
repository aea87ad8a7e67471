"""A vendor's tool: where it is, how it is asked, and one error for all that goes wrong with it.

Exit statuses prove nothing (decisions 42 and 54): what counts is whether the output can be read, and whoever
reads it says so. What cannot be read is a `ToolError` that names the command and quotes what was said.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from devplugin.host import Host, Kind, Runner, words
from devplugin.settings import shown

TIMEOUT = 8.0
"""Seconds for one answer. A tool that hangs holds the one thread that touches the node: an Allocate, which
has 24 (decision 24), and a scrape, which has 9, still have to get their turn behind it."""
_QUOTED = 160
"""Characters of what it said in an error."""


class ToolError(Exception):
    """The tool cannot be run, or its answer cannot be read. One line: the command and what it said."""


def table(text: str) -> Iterator[tuple[str, ...]]:
    """The cells of every line of a drawn table that has any."""
    for line in text.splitlines():
        bare = line.strip()
        if len(bare) > 1 and bare.startswith("|") and bare.endswith("|"):
            yield tuple(cell.strip() for cell in bare[1:-1].split("|"))


@dataclass(frozen=True, slots=True)
class Tool:
    """One program of a vendor."""

    name: str
    """``npu-smi``."""
    places: tuple[str, ...]
    """Looked into in this order, then the directories of PATH."""

    def find(self, host: Host) -> str:
        """Its path where it is in one of its places, else its name, for whoever runs it to look in PATH.

        A directory, and a file that nobody may execute, are passed over (ascend_ppu_hami.md A.5).
        """
        for path in self.places:
            try:
                there = host.stat(path)
            except OSError:
                continue
            if there.kind.name != Kind.DIRECTORY.name and there.mode & 0o111:
                return path
        return self.name

    def ask(self, host: Host, path: str, *arguments: str) -> str:
        """What it prints when it is asked, both streams.

        Args:
            host: where it runs.
            path: of `find`.
            arguments: the question.

        Raises:
            ToolError: it cannot be run, or did not end in time.
        """
        try:
            # The seam's other half: every host of the launcher has it.
            done = cast("Runner", host).run((path, *arguments), timeout=TIMEOUT)
        except OSError as error:  # TimeoutError too
            if error.errno == errno.ENOENT and path == self.name:
                raise ToolError(f"{self.name} not found in [{' '.join(self.places)}] or PATH") from error
            raise ToolError(f"{self.command(*arguments)}: {words(error)}") from error
        return (done.stdout + b"\n" + done.stderr).decode("utf-8", "replace")

    def command(self, *arguments: str) -> str:
        """The words of a question, as errors name it."""
        return " ".join((self.name, *arguments))

    def unread(self, arguments: str, text: str, why: str = "cannot be read") -> ToolError:
        """The error for an answer that says nothing that can be understood."""
        return ToolError(
            f"{self.command(*arguments.split())}: {why}: {shown(' '.join(text.split()), _QUOTED)}"
        )
