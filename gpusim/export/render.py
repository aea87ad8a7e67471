"""Writes the whole file tree of a machine into a directory, for tools that only know a real file system.

The result serves as ``-root DIR`` of the device plugin. Three things cannot be carried over, and are not:

* A character device becomes an **empty regular file** of the same mode. A device node on disk is looked up by
  its number among the *host's* drivers: opening a rendered ``/dev/dri/renderD128`` would open the host's GPU,
  and making nodes needs privileges. A reader of a rendered tree must not insist on a character device.
* An attribute whose read fails (write-only, guarded, in reset) is left out and named in the report: a file
  with made-up content would lie.
* Nothing is computed any more: writing ``current_compute_partition`` there is writing a text file. Serve the
  machine (`gpusim.serve`) for everything that must answer.

Links are kept as they are; an absolute one is written relative, or it would leave the directory.
"""

# ruff: noqa: PTH103, PTH106, PTH123, PTH208
# Thousands of files in a row: raw calls on strings, because a Path object for each would cost a third more.

from __future__ import annotations

import errno
import os
import posixpath
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gpusim.errors import GpusimError
from gpusim.nodes import PAGE
from gpusim.tree import ROOT, Attr, Caller, CharDev, Dir, Link, Tree

_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class _Kind(Protocol):
    @property
    def name(self) -> str: ...


MARK = ".gpusim-rendering"
"""File at the top of a rendered tree by which a later rendering knows that it may be replaced."""

NOTES = ".gpusim-capture.json"
"""What programs of the node answer, as `gpusim.snapshots.directory` reads it beside a tree."""


class _Stat(Protocol):
    @property
    def kind(self) -> _Kind: ...
    @property
    def mode(self) -> int: ...


class Source(Protocol):
    """What can be rendered: a `Machine`, a view of one, or a `RemoteMachine`."""

    def read(self, path: str) -> bytes:
        """The content of a file."""
        ...

    def list(self, path: str) -> Sequence[str]:
        """The names in a directory."""
        ...

    def readlink(self, path: str) -> str:
        """The target of a link."""
        ...

    def stat(self, path: str, *, follow: bool = True) -> _Stat:
        """Kind and mode."""
        ...


class RenderError(GpusimError):
    """The directory cannot take a rendered tree."""


@dataclass(slots=True)
class Report:
    """What was written, and what was not."""

    directories: int = 0
    files: int = 0
    links: int = 0
    devices: int = 0
    """Character devices, now empty files."""
    skipped: list[tuple[str, str]] = field(default_factory=list)
    """Path and errno name of every attribute that could not be read."""


def render(
    machine: Source,
    directory: str | os.PathLike[str],
    *,
    force: bool = False,
    notes: bytes = b"",
) -> Report:
    """Write every directory, file, link and device of `machine` below `directory`.

    Args:
        machine: whose tree.
        directory: made with its parents when missing; must be empty otherwise.
        force: replace an earlier rendering, known by its `MARK`; a directory that holds anything else is
            refused all the same.
        notes: content of `NOTES`, which is about the tree and not in it; empty: there is none.

    Returns:
        Counts, and the attributes left out.

    Raises:
        RenderError: `directory` is empty text, a file, or not empty.
        OSError: the disk is full, a parent cannot be written, … Nothing half-written is left, nor after
            Ctrl-C.
    """
    target = os.fspath(directory)
    tops = _names(machine, "/")
    existed = _prepare(target, tops, force=force)
    writer = _Writer(machine)
    if not existed:
        os.makedirs(target)
    root = os.open(target, _DIRECTORY)
    try:
        writer.write(MARK, b"A rendered tree; rendering with force may replace it.\n", 0o444, root)
        if (nodes := _nodes(machine)) is not None:
            writer.fill_from_nodes("/", nodes, root)
        else:
            writer.fill("/", tops, root)
        if notes:
            writer.write(NOTES, notes, 0o444, root)
        writer.report.skipped.sort()
    except BaseException:
        for name in (*tops, NOTES, MARK):  # the directory was empty: all of them are ours
            _remove(name, root)
        if not existed:
            os.rmdir(target)
        raise
    finally:
        os.close(root)
    return writer.report


def _prepare(target: str, tops: Sequence[str], *, force: bool) -> bool:
    """Make sure that `target` is free; whether it exists."""
    if not target:
        raise RenderError("the directory's name is empty; name an empty directory or a new one")
    try:
        present = set(os.listdir(target))
    except FileNotFoundError:
        return False
    except NotADirectoryError:
        what = "is a file" if os.path.lexists(target) else "lies below a file"
        raise RenderError(f"{target}: {what}; name an empty directory or a new one") from None
    if not present:
        return True
    foreign = sorted(present - {*tops, NOTES, MARK}) if MARK in present else sorted(present)
    if foreign or not force:
        shown = ", ".join(foreign[:3] or sorted(present)[:3])
        remedy = "name another one" if foreign else "name another one, or force to replace it"
        raise RenderError(f"{target}: is not empty (it holds {shown}); {remedy}")
    root = os.open(target, _DIRECTORY)
    try:
        for name in [*sorted(present - {MARK}), MARK]:  # the mark last: an interrupted removal can go on
            _remove(name, root)
    finally:
        os.close(root)
    return True


class _Writer:
    """One rendering under way.

    Files are made relative to their open directory: sysfs is deep, and having each whole path walked again
    would cost a fifth more.
    """

    def __init__(self, machine: Source) -> None:
        self.machine = machine
        self.report = Report()
        self.umask = _umask()

    def fill(self, path: str, names: Sequence[str], directory: int) -> None:
        """Write what the machine has in `path` below the open descriptor `directory`."""
        machine = self.machine
        for name in names:
            inner = f"{path}/{name}" if path != "/" else f"/{name}"
            stat = machine.stat(inner, follow=False)
            match stat.kind.name:
                case "DIRECTORY":
                    made = self.enter(name, directory)
                    try:
                        self.fill(inner, _names(machine, inner), made)
                    finally:
                        self.leave(made, stat.mode)
                case "LINK":
                    self.link(name, inner, machine.readlink(inner), directory)
                case "CHARACTER":
                    self.device(name, stat.mode, directory)
                case _:
                    self.attribute(name, inner, stat.mode, directory)

    def fill_from_nodes(self, path: str, source: Dir, directory: int) -> None:
        """The same for a machine of this process: its nodes at hand, no path is looked up."""
        for name, node in source.kids().items():
            inner = f"{path}/{name}" if path != "/" else f"/{name}"
            mode = node.mode
            if isinstance(node, Attr):
                self.attribute(_checked(name, path), inner, mode, directory, node)
            elif isinstance(node, Dir):
                made = self.enter(_checked(name, path), directory)
                try:
                    self.fill_from_nodes(inner, node, made)
                finally:
                    self.leave(made, mode)
            elif isinstance(node, Link):
                self.link(_checked(name, path), inner, node.target, directory)
            elif isinstance(node, CharDev):
                self.device(_checked(name, path), mode, directory)
            else:
                self.attribute(_checked(name, path), inner, mode, directory)

    def enter(self, name: str, above: int) -> int:
        """A new directory, open."""
        os.mkdir(name, 0o755, dir_fd=above)
        self.report.directories += 1
        return os.open(name, _DIRECTORY, dir_fd=above)

    def leave(self, directory: int, mode: int) -> None:
        """Close a directory; its mode comes last, it may forbid writing."""
        if mode & 0o7777 != 0o755 & ~self.umask:
            os.fchmod(directory, mode & 0o7777)
        os.close(directory)

    def link(self, name: str, path: str, target: str, directory: int) -> None:
        """A symbolic link."""
        os.symlink(_inside(target, path), name, dir_fd=directory)
        self.report.links += 1

    def device(self, name: str, mode: int, directory: int) -> None:
        """A device node, as the empty file it becomes."""
        self.write(name, b"", mode, directory)
        self.report.devices += 1

    def attribute(self, name: str, path: str, mode: int, directory: int, node: Attr | None = None) -> None:
        """A file with what reading it gives, unless that fails."""
        try:
            content = _shown(node) if node is not None else None
            if content is None:
                content = self.machine.read(path)
        except OSError as error:
            self.report.skipped.append((path, errno.errorcode.get(error.errno or 0, "EIO")))
            return
        self.write(name, content, mode, directory)
        self.report.files += 1

    def write(self, name: str, content: bytes, mode: int, directory: int) -> None:
        """A new file of exactly that mode, whatever the umask."""
        mode &= 0o7777
        descriptor = os.open(name, _NEW_FILE, mode, dir_fd=directory)
        try:
            while content:
                content = content[os.write(descriptor, content) :]
            if mode & self.umask:
                os.fchmod(descriptor, mode)
        finally:
            os.close(descriptor)


def _nodes(machine: Source) -> Dir | None:
    """The root directory of a machine in this process, seen by root; None: ask by path."""
    tree, caller = getattr(machine, "tree", None), getattr(machine, "caller", None)
    return tree.root if isinstance(tree, Tree) and isinstance(caller, Caller) and not caller.uid else None


def _shown(node: Attr) -> bytes | None:
    """What the host's root reads, for the usual attribute; None: let the tree say, it knows every case."""
    if not node.mode & 0o444:
        return None
    if node.guard is not None:
        node.guard(ROOT)
    show = node.show
    content = show() if callable(show) else show
    if content is None:
        return None
    if isinstance(content, str):
        content = content.encode()
    return content if len(content) < PAGE else None


def _inside(target: str, link: str) -> str:
    """The text of `link` so that it stays below the rendered root: an absolute one is made relative."""
    return posixpath.relpath(target, posixpath.dirname(link)) if target.startswith("/") else target


def _names(machine: Source, path: str) -> Sequence[str]:
    names = machine.list(path)
    for name in names:
        _checked(name, path)
    return names


def _checked(name: str, path: str) -> str:
    """`name`, unless it would lead out of the directory."""
    if "/" in name or name in ("", ".", ".."):
        raise RenderError(f"{path}: the machine lists {name!r}, which is no file name")
    return name


def _umask() -> int:
    """The umask of this process, without changing it as os.umask would for every thread."""
    with open("/proc/self/status", "rb") as status:
        for line in status:
            if line.startswith(b"Umask:"):
                return int(line.split()[1], 8)
    return 0o777


def _remove(name: str, directory: int) -> None:
    """Remove an entry of the open `directory`, a tree with its read-only directories too; absent is fine.

    Always below an open descriptor: no path is looked up, so an odd name cannot lead anywhere else.
    """
    try:
        os.unlink(name, dir_fd=directory)
    except FileNotFoundError:
        return
    except (IsADirectoryError, PermissionError):
        for _, _, _, inner in os.fwalk(name, dir_fd=directory):
            os.fchmod(inner, 0o700)
        shutil.rmtree(name, dir_fd=directory)
