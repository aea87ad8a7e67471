"""A capture as a node: what a device plugin reads with ``-root PACK``.

The tree is the simulator's own (`gpusim.tree`), so lookups, links, ``..`` and errnos are those of a
machine; a recorded errno is raised again; everything is on a read-only mount, so every change answers
EROFS. A device node opens when it was there: nothing is known of the driver behind it. Programs that were
run while recording answer as they did then.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpusim.nodes import Attr, CharDev, Dir, File, Kind, Link, Node
from gpusim.snapshots import directory, pack
from gpusim.snapshots.pack import Capture, PackError
from gpusim.tree import Caller, Tree
from gpusim.view import Completed, View

_READER = Caller(readonly=("/",))


class CaptureHost(View):
    """Host, Files and Runner of a recorded node, seen by its root.

    Args:
        recorded: the capture; it is not changed and not copied.
    """

    def __init__(self, recorded: Capture) -> None:
        super().__init__(Tree(_directory(recorded.tree)), _READER)
        self.capture = recorded
        self._answers = {command.argv: command for command in recorded.commands}

    def probe(self, path: str, access: str = "rw") -> None:
        """Whether the device node was there, or the plain file that stands for one in a rendered tree.

        Raises:
            OSError: lookup errors; EISDIR; the recorded errno.
        """
        node = self.tree.node(path)
        if isinstance(node, Attr):
            self.read(path)
        elif node.kind is Kind.DIRECTORY:
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), path)

    def run(self, argv: Sequence[str], *, timeout: float = 30.0, stdin: bytes = b"") -> Completed:
        """What the program printed, and how it ended, when the node was recorded.

        It may be named with or without its directory.

        Raises:
            OSError: ENOENT, naming program and words: it was not run with these.
        """
        command = self._answers.get(tuple(argv)) or self._answers.get((argv[0].rpartition("/")[2], *argv[1:]))
        if command is None:
            raise OSError(errno.ENOENT, f"not recorded: {os.strerror(errno.ENOENT)}", " ".join(argv))
        return Completed(command.status, command.stdout, command.stderr)


def open_capture(path: str | os.PathLike[str]) -> CaptureHost:
    """The node in a packed file, or in a directory that `gpusim record` or `gpusim unpack` wrote.

    Registered as ``pack`` under the entry-point group ``devplugin.hosts``.

    Raises:
        GpusimError: it is neither, is damaged or of a newer format.
        OSError: it cannot be read.
    """
    return CaptureHost(load(path))


def load(path: str | os.PathLike[str]) -> Capture:
    """A capture from a packed file or from any directory that holds a tree.

    Raises:
        GpusimError: `PackError`; OSError as reading gives it.
    """
    place = Path(path)
    if place.is_dir():
        return directory.collect(place)
    if not place.exists():
        raise PackError(f"{place}: no such file or directory")
    return pack.read(place)


def _directory(names: Mapping[str, Any]) -> Dir:
    """A directory whose nodes are made when somebody looks into it."""
    return Dir(
        lambda: {name: _node(node) for name, node in names.items() if name != "/"},
        mode=names.get("/", pack.DIRECTORY_MODE),
    )


def _node(node: Any) -> Node:  # noqa: PLR0911  one for each form
    if type(node) is str:
        return File(node.encode("utf-8", "surrogateescape"), mode=pack.FILE_MODE)
    if type(node) is dict:
        return _directory(node)
    entry = pack.decoded(node)
    if entry.kind is pack.Kind.LINK:
        return Link(entry.target)
    if entry.kind is pack.Kind.FILE:
        return _failing(entry) if entry.error else File(entry.content, mode=entry.mode)
    if entry.kind is pack.Kind.DIRECTORY:
        return Dir(lambda: _fail(entry.error), mode=entry.mode)
    if entry.rdev is not None:
        return CharDev(*entry.rdev, entry.mode, lambda _: None)
    return File(b"", mode=entry.mode)


def _failing(entry: pack.Entry) -> Attr:
    return Attr(lambda: _fail(entry.error), mode=entry.mode, sysfs=False)


def _fail(name: str) -> Any:
    code = getattr(errno, name)
    raise OSError(code, os.strerror(code))
