"""Whatever holds a node's files, opened for reading: the one opener of `infer`, `diff` and `verify`.

A fixture becomes a machine, ``unix:S`` a served one, a directory or a pack a recorded node, ``/`` this host.
All answer four questions (`Source`). What captures.toml excludes from a capture is not there: its publisher's
notes, program output, what was worked out later.
"""

from __future__ import annotations

import contextlib
import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from gpusim import hosts
from gpusim.errors import GpusimError
from gpusim.nodes import Stat
from gpusim.snapshots import pack, record
from gpusim.snapshots.host import CaptureHost, load

MANIFEST = Path(__file__).with_name("captures.toml")
HERE = "/"
"""The argument that means this host."""
_NAMED = re.compile(r"^snapshot: *(\S+)", re.MULTILINE)
_PROVENANCE = "/PROVENANCE"


class Source(Protocol):
    """A node's files, for reading; paths are absolute, failures are OSError with the kernel's errno."""

    def read(self, path: str) -> bytes:
        """The whole content of a file."""
        ...

    def list(self, path: str) -> Sequence[str]:
        """Names in a directory, sorted."""
        ...

    def readlink(self, path: str) -> str:
        """The text of a link; EINVAL when it is none."""
        ...

    def stat(self, path: str, *, follow: bool = True) -> Stat:
        """What the path leads to; with ``follow=False`` the link itself."""
        ...


@dataclass(frozen=True, slots=True)
class Exclusion:
    """One row of the manifest."""

    glob: str
    reason: str
    capture: str = ""
    """The one capture it is about; empty: all."""


@cache
def exclusions() -> tuple[Exclusion, ...]:
    """The manifest's rows."""
    return tuple(Exclusion(**row) for row in tomllib.loads(MANIFEST.read_text(encoding="utf-8"))["exclude"])


def without_notes(recorded: pack.Capture) -> pack.Capture:
    """A capture without what the manifest excludes; the capture itself is not changed."""
    notes = recorded.entry(_PROVENANCE)
    said = _NAMED.search(notes.content.decode("utf-8", "replace")) if notes else None
    name = said[1] if said else ""
    globs = [row.glob for row in exclusions() if row.capture in ("", name)]
    return recorded._replace(tree=_kept(recorded.tree, "", globs))


def _kept(names: dict[str, Any], above: str, globs: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, node in names.items():
        path = above + name
        if name == "/" or not any(fnmatchcase(path, glob) for glob in globs):
            found[name] = _kept(node, f"{path}/", globs) if isinstance(node, dict) else node
    return found


@contextlib.contextmanager
def opened(argument: str) -> Iterator[Source]:
    """What `argument` names, for the length of a ``with`` block.

    Args:
        argument: a directory (``/`` is this host), a packed capture, a fixture's path or name,
            ``unix:SOCKET``.

    Raises:
        GpusimError: it is none of these.
    """
    path = Path(argument)
    if argument == HERE:
        # Through the recorder: a file of a live system may never answer.
        yield CaptureHost(record.record(record.DirectorySource()))
    elif argument.startswith(hosts.SOCKET) or not path.exists() or path.suffix in (".yaml", ".yml"):
        with hosts.simulated(argument) as machine:
            yield machine
    elif path.is_dir():
        if not any((path / name).is_dir() for name in ("sys", "dev", "proc")):
            raise GpusimError(f"{argument}: is no node: neither sys, dev nor proc is in it")
        yield CaptureHost(without_notes(load(path)))
    else:
        yield CaptureHost(without_notes(load(path)))
