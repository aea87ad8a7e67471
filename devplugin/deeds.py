"""Things a decision wants done on the node, and the one way they are done.

A decision names deeds and does none (design.md, rule 2); the daemon carries them out through the seam, in
the thread that owns the Host. Every one is idempotent: doing it twice, or again after a crash in the middle,
ends in the same node.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from devplugin.host import Completed, Files, Host, Kind, Runner, words
from devplugin.settings import shown

STALE = ".stale-"
"""Between a directory's name and the number it gets when it is moved aside (decision 44)."""


class Ground(Host, Files, Runner, Protocol):
    """Where deeds are done: all three halves of the seam."""


class DeedError(Exception):
    """A deed could not be done. One line: the object and why."""


@dataclass(frozen=True, slots=True)
class MakeDir:
    """A directory with exactly this mode, its parents as they are or 0755; an existing one gets the mode."""

    path: str
    mode: int = 0o755


@dataclass(frozen=True, slots=True)
class MoveAside:
    """What has this name gets ``<name>.stale-<n>`` with the smallest free n; nothing there: nothing done."""

    path: str


@dataclass(frozen=True, slots=True)
class RemoveDir:
    """A directory and all in it; links are removed, never followed. Nothing there: nothing done."""

    path: str


@dataclass(frozen=True, slots=True)
class InstallFile:
    """A copy of `source`, by rename, unless the target has the same bytes and mode."""

    source: str
    target: str
    mode: int = 0o644


@dataclass(frozen=True, slots=True)
class WriteFile:
    """A file with this content, by rename."""

    path: str
    data: bytes
    mode: int = 0o644


@dataclass(frozen=True, slots=True)
class RunTool:
    """A vendor's tool, run to its end. Its status alone proves nothing (decision 42)."""

    argv: tuple[str, ...]
    stdin: bytes = b""
    wanted: str = ""
    """Must stand in what it prints, blanks squeezed; empty: status 0 is enough."""
    timeout: float = 30.0
    name: str = ""
    """As messages name it; empty: by all its words."""

    @property
    def called(self) -> str:
        """What messages call it."""
        return self.name or " ".join(self.argv)


Deed = MakeDir | MoveAside | RemoveDir | InstallFile | WriteFile | RunTool
_LEVELS = 1000
"""Levels of a directory that one deed removes: who still nests more meanwhile cannot keep it for ever."""

DEEDS = (MakeDir, MoveAside, RemoveDir, InstallFile, WriteFile, RunTool)


def carry_out(ground: Ground, deed: Deed) -> str:
    """Do one; what was done as a line for the log, empty when nothing had to be.

    Raises:
        DeedError: it could not be done.
    """
    try:
        match deed:
            case MakeDir():
                return _make_dir(ground, deed)
            case MoveAside():
                return _move_aside(ground, deed)
            case RemoveDir():
                return _remove_dir(ground, deed)
            case InstallFile():
                return _install(ground, deed)
            case WriteFile():
                return _write(ground, deed)
            case RunTool():
                return _run(ground, deed)
    except OSError as error:
        name = deed.called if isinstance(deed, RunTool) else _path(deed)
        raise DeedError(f"{name}: {words(error)}") from error


def _path(deed: MakeDir | MoveAside | RemoveDir | InstallFile | WriteFile) -> str:
    return deed.target if isinstance(deed, InstallFile) else deed.path


def _make_dir(ground: Ground, deed: MakeDir) -> str:
    known = _mode(ground, deed.path, Kind.DIRECTORY)
    if known == deed.mode:
        return ""
    if known is None:
        _make_parents(ground, deed.path)
        ground.mkdir(deed.path, deed.mode)
    ground.chmod(deed.path, deed.mode)  # mkdir(2) leaves out what the umask has
    return f"{deed.path}: directory, mode {deed.mode:04o}"


def _make_parents(ground: Ground, path: str) -> None:
    """Those that are missing, 0755 whatever the umask: who may use the last one must get there."""
    made = ""
    for name in path.strip("/").split("/")[:-1]:
        made = f"{made}/{name}"
        if not _there(ground, made):
            ground.mkdir(made, 0o755)
            ground.chmod(made, 0o755)


def _move_aside(ground: Ground, deed: MoveAside) -> str:
    if not _there(ground, deed.path):
        return ""
    number = 1
    while _there(ground, aside := f"{deed.path}{STALE}{number}"):
        number += 1
    ground.rename(deed.path, aside)
    return f"{deed.path}: moved aside to {aside}"


def _remove_dir(ground: Ground, deed: RemoveDir) -> str:
    if not _there(ground, deed.path):
        return ""
    if _mode(ground, deed.path, Kind.DIRECTORY) is None:
        ground.unlink(deed.path)  # a link, or a file, in the place of one
    else:
        _empty(ground, deed.path)
        ground.rmdir(deed.path)
    return f"{deed.path}: removed"


def _empty(ground: Ground, directory: str) -> None:
    """Level by level: what lies two deep is moved up, so that no path is ever longer than the kernel takes.

    A container can nest directories deeper than a path or a stack reaches. What is left after so many levels
    fails the `rmdir` behind this, and the deed done again goes on from there.
    """
    number = 0
    for _ in range(_LEVELS):
        names = ground.list(directory)
        if not names:
            return
        for name in names:
            path = f"{directory}/{name}"
            if _mode(ground, path, Kind.DIRECTORY) is None:
                ground.unlink(path)
                continue
            for below in ground.list(path):
                if _mode(ground, f"{path}/{below}", Kind.DIRECTORY) is None:
                    ground.unlink(f"{path}/{below}")
                    continue
                while _there(ground, up := f"{directory}/{number}"):
                    number += 1
                ground.rename(f"{path}/{below}", up)
            ground.rmdir(path)


def _install(ground: Ground, deed: InstallFile) -> str:
    if _mode(ground, deed.target, Kind.FILE) == deed.mode and ground.read(deed.target) == ground.read(
        deed.source
    ):
        return ""
    ground.copy(deed.source, deed.target, deed.mode)
    return f"{deed.target}: installed from {deed.source}"


def _write(ground: Ground, deed: WriteFile) -> str:
    ground.put(deed.path, deed.data, deed.mode)
    return f"{deed.path}: {len(deed.data)} bytes"


def _run(ground: Ground, deed: RunTool) -> str:
    done: Completed = ground.run(deed.argv, timeout=deed.timeout, stdin=deed.stdin)
    said = " ".join((done.stdout + b" " + done.stderr).decode("utf-8", "replace").split())
    good = " ".join(deed.wanted.split()) in said if deed.wanted else done.status == 0
    if not good:
        raise DeedError(f"{deed.called}: {done.status}: {shown(said, 200)}")
    return f"{deed.called}: done"


def _there(ground: Ground, path: str) -> bool:
    try:
        ground.stat(path, follow=False)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _mode(ground: Ground, path: str, kind: Kind) -> int | None:
    """The permission bits of what is there; None when there is nothing of that kind."""
    try:
        found = ground.stat(path, follow=False)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.mode if found.kind.name == kind.name else None
