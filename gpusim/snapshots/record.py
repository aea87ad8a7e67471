"""Records a node: names first, then every file in a child process that is abandoned when it does not answer.

Nothing is written, no device node is opened, nothing below /dev is opened at all. What a file answers is
recorded as it is, an errno too; a file that does not answer in time has ETIMEDOUT. Which files: `plan`.
Vendors' programs are run only when they are asked for, since they do open devices: `programs`.
"""

from __future__ import annotations

import os
import stat as modes
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from gpusim.snapshots.children import Readers
from gpusim.snapshots.directory import code_name, slurp
from gpusim.snapshots.pack import Capture, Command, Entry, Kind, capture
from gpusim.snapshots.plan import Plan, Source

PATIENCE = 2.0
"""Seconds a file may take."""

Progress = Callable[[int, int], None]
"""Called with files read so far and files in all."""


class _Seen(NamedTuple):
    kind: Kind
    mode: int
    rdev: tuple[int, int] | None


class DirectorySource:
    """A node's files below a directory, ``/`` for this node. Only canonical paths are asked for."""

    def __init__(self, root: str = "/") -> None:
        self._root = "" if root == "/" else root.rstrip("/")

    def list(self, path: str) -> Sequence[str]:
        """Names in a directory, sorted."""
        return sorted(os.listdir(self._root + path))  # noqa: PTH208  names only

    def readlink(self, path: str) -> str:
        """The text of a link."""
        return os.readlink(self._root + path)  # noqa: PTH115  its text as it is

    def stat(self, path: str, *, follow: bool = True) -> _Seen:
        """What is there; links are never followed."""
        found = os.lstat(self._root + path)
        kind = Kind.OTHER
        rdev = None
        if modes.S_ISDIR(found.st_mode):
            kind = Kind.DIRECTORY
        elif modes.S_ISLNK(found.st_mode):
            kind = Kind.LINK
        elif modes.S_ISCHR(found.st_mode):
            kind, rdev = Kind.CHARACTER, (os.major(found.st_rdev), os.minor(found.st_rdev))
        elif modes.S_ISREG(found.st_mode) or modes.S_ISFIFO(found.st_mode):
            # sysfs has no pipes: one in somebody's tree stands for an attribute that never answers.
            kind = Kind.FILE
        return _Seen(kind, modes.S_IMODE(found.st_mode), rdev)

    def read(self, path: str) -> bytes:
        """The whole content of a file."""
        return slurp(self._root + path)


def record(
    source: Source,
    *,
    children: int = 4,
    patience: float = PATIENCE,
    progress: Progress | None = None,
    commands: Iterable[Command] = (),
    about: dict[str, Any] | None = None,
) -> Capture:
    """Record a node as it is; identifiers stay in it (`gpusim.snapshots.scrub`).

    Args:
        source: the node; it is read in forked children.
        children: how many read at once.
        patience: seconds after which a file is given up.
        progress: told of every file.
        commands: what programs printed (`programs.ask`).
        about: what the capture says of itself.

    Returns:
        The capture; a node without accelerators gives a small one.
    """
    with Readers(source.read, children=children, patience=patience) as readers:
        plan = Plan(source, readers.one)
        plan.everything()
        entries = plan.entries
        total = len(plan.files)
        for number, (path, answer) in enumerate(readers.all(sorted(plan.files)), 1):
            mode = entries[path].mode
            if isinstance(answer, OSError):
                entries[path] = Entry(Kind.FILE, mode, error=code_name(answer.errno))
            else:
                entries[path] = Entry(Kind.FILE, mode, content=answer)
            if progress is not None:
                progress(number, total)
    return capture(entries, {**(about or {}), "scrubbed": False}, commands)
