"""A capture as a directory of plain files, and back.

What a directory cannot hold stands beside the tree in one file, `SIDECAR`: the errno of an attribute that
could not be read (an empty file), the number of a device node (an empty file, as in a rendered tree: a real
node would lead to the *host's* device), and the text of a link that would leave the directory (rewritten to
where it leads when the directory is the root). Nothing of an archive can be written or can point outside.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import posixpath
import shutil
import stat as modes
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gpusim.snapshots import pack, shape
from gpusim.snapshots.pack import Capture, Command, Entry, Kind, PackError

SIDECAR = ".gpusim-capture.json"
"""File at the top of an unpacked capture; by it a directory is known to be one."""

NOTES = frozenset({SIDECAR, ".gpusim-rendering"})
"""Names at the top that are about the tree, not in it."""

MAX_LINKS = 40
"""MAXSYMLINKS of Linux."""

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW


def write(recorded: Capture, path: str | os.PathLike[str]) -> None:
    """Write a capture as a directory, at once and whole: an interruption leaves nothing.

    Args:
        recorded: the capture.
        path: a new directory, or an empty one.

    Raises:
        PackError: `path` is not empty or no directory.
        OSError: its parent is missing or read-only, the disk is full, …
    """
    target = Path(path)
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise PackError(f"{target}: is no directory; name a new one")
    if target.is_dir() and any(target.iterdir()):
        raise PackError(f"{target}: is not empty; name a new directory")
    part = target.parent / f".{target.name}.{os.getpid()}.part"
    part.mkdir()
    try:
        notes: dict[str, Any] = {}
        root = os.open(part, _OPEN)
        try:
            _fill(recorded, recorded.tree, "", root, notes)
            _file(SIDECAR, _sidecar(recorded, notes), 0o444, root)
        finally:
            os.close(root)
        part.chmod(recorded.tree.get("/", pack.DIRECTORY_MODE) & 0o1777)
        part.replace(target)
    except BaseException:
        remove(part)
        raise


def collect(path: str | os.PathLike[str]) -> Capture:
    """The capture in a directory: one that `write` made, a rendered node, or any other tree.

    Nothing but regular files is opened. A file that cannot be read is recorded with its errno.

    Raises:
        PackError: the notes beside the tree are damaged or of a newer version; it is too deep.
        OSError: the directory itself cannot be listed.
    """
    root = Path(path)
    notes = _notes(root)
    tree: dict[str, Any] = notes.pop("tree")
    entries: dict[str, Entry] = {}
    for name, entry in _walk(str(root), ""):
        note = tree.get(name)
        entries[name] = pack.decoded(note) if note is not None and _stands_for(note, entry) else entry
    entries["/"] = Entry(Kind.DIRECTORY, modes.S_IMODE(root.stat().st_mode))
    return pack.capture(entries, notes["about"], notes["commands"])


def commands_beside(path: str | os.PathLike[str]) -> tuple[Command, ...]:
    """What programs printed, as it stands beside a tree; nothing when there are no notes.

    Raises:
        PackError: the notes are damaged or of a newer version.
        OSError: they cannot be read.
    """
    commands: tuple[Command, ...] = tuple(_notes(Path(path))["commands"])
    return commands


def beside(commands: Iterable[Command], about: Mapping[str, Any] | None = None) -> bytes:
    """Notes of a plain tree in which nothing is missing: only what programs answer stands beside it."""
    return _sidecar(Capture({}, dict(about or {}), tuple(commands)), {})


def _sidecar(recorded: Capture, notes: Mapping[str, Any]) -> bytes:
    sidecar = {"format": pack.VERSION, **pack.to_json(recorded), "tree": notes}
    return json.dumps(sidecar, indent=1, sort_keys=True).encode() + b"\n"


def remove(path: Path) -> None:
    """Remove a directory with its read-only directories; links in it are not followed."""
    for _, _, _, inner in os.fwalk(path):
        with contextlib.suppress(OSError):
            os.fchmod(inner, 0o700)
    shutil.rmtree(path, ignore_errors=True)


def _notes(root: Path) -> dict[str, Any]:
    try:
        text = (root / SIDECAR).read_bytes()
    except FileNotFoundError:
        return {"tree": {}, "about": {}, "commands": ()}
    name = str(root / SIDECAR)
    try:
        value = json.loads(text)
        pack.known_version(int(value["format"]), name)
        for path, note in value["tree"].items():
            pack.from_json({"tree": {path.rpartition("/")[2]: note}})
        commands = pack.commands_from_json(value["commands"])
        return {"tree": value["tree"], "about": dict(value["about"]), "commands": commands}
    except PackError as error:
        raise error if str(error).startswith(name) else PackError(f"{name}: is damaged: {error}") from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise PackError(f"{name}: is damaged: {error!r}") from None


def _stands_for(note: Any, entry: Entry) -> bool:
    """Whether `entry` still is what `write` left for `note`; who edited a file meant what is there now."""
    if note[0] == "l":
        return entry.kind is Kind.LINK
    if note[0] == "d":
        return entry.kind is Kind.DIRECTORY
    return entry.kind is Kind.FILE and not entry.content


# ------------------------------------------------------------------ writing


def _fill(recorded: Capture, tree: dict[str, Any], path: str, directory: int, notes: dict[str, Any]) -> None:
    for name, node in tree.items():
        if name == "/":
            continue
        inner = f"{path}/{name}"
        if not path and name in NOTES:
            raise PackError(f"{name!r} at the top of a capture is a name of our own")
        entry = pack.decoded(node)
        if entry.kind is Kind.DIRECTORY:
            os.mkdir(name, 0o700, dir_fd=directory)
            made = os.open(name, _OPEN, dir_fd=directory)
            try:
                if isinstance(node, dict):
                    _fill(recorded, node, inner, made, notes)
                else:
                    notes[inner] = node
                os.fchmod(made, entry.mode & 0o1777)
            finally:
                os.close(made)
        elif entry.kind is Kind.LINK:
            target = contained(recorded, inner, entry.target)
            if target != entry.target:
                notes[inner] = node
            os.symlink(target, name, dir_fd=directory)
        else:
            if entry.kind is not Kind.FILE or entry.error:
                notes[inner] = node
            _file(name, entry.content, entry.mode, directory)


def _file(name: str, content: bytes, mode: int, directory: int) -> None:
    descriptor = os.open(name, _NEW, 0o600, dir_fd=directory)
    try:
        while content:
            content = content[os.write(descriptor, content) :]
        os.fchmod(descriptor, mode & 0o777)
    finally:
        os.close(descriptor)


def contained(recorded: Capture, path: str, target: str) -> str:
    """The text of a link at `path` so that following it on disk stays below the directory.

    A target that is absolute, or that climbs above the root on its way through whatever links there are,
    becomes the relative path to where it leads in a file system of which the capture is the root.
    """
    names = [part for part in path.split("/") if part][:-1]
    here = list(names)
    escapes = target.startswith("/")
    if escapes:
        here = []
    todo = [part for part in target.split("/") if part not in ("", ".")][::-1]
    links = 0
    while todo:
        part = todo.pop()
        if part == "..":
            escapes = escapes or not here
            del here[-1:]
            continue
        found = recorded.entry("/".join(here) + "/" + part)
        if found is None or found.kind is not Kind.LINK:
            here.append(part)
            continue
        links += 1
        if links > MAX_LINKS:  # ELOOP, as a link to itself is, whatever else a reader makes of the target
            return path.rpartition("/")[2]
        if found.target.startswith("/"):
            escapes, here = True, []
        todo += [step for step in found.target.split("/") if step not in ("", ".")][::-1]
    if not escapes:
        return target
    return posixpath.relpath("/" + "/".join(here), "/" + "/".join(names))


# ------------------------------------------------------------------ reading


def _walk(root: str, path: str) -> Iterator[tuple[str, Entry]]:
    for name in sorted(os.listdir(root + path)):  # noqa: PTH208  names only
        if not path and name in NOTES:
            continue
        inner = f"{path}/{name}"
        entry, below = _look(root, inner)
        yield inner, entry
        if below:
            shape.check_depth(inner)
            yield from _walk(root, inner)


def _look(root: str, path: str) -> tuple[Entry, bool]:  # noqa: PLR0911  one for each kind
    """The entry at `path`, and whether there is something below it."""
    place = root + path
    found = os.lstat(place)
    mode = modes.S_IMODE(found.st_mode)
    if modes.S_ISDIR(found.st_mode):
        try:
            os.close(os.open(place, _OPEN))
        except OSError as error:
            return Entry(Kind.DIRECTORY, mode, error=_code(error)), False
        return Entry(Kind.DIRECTORY, mode), True
    if modes.S_ISLNK(found.st_mode):
        return Entry(Kind.LINK, 0o777, target=os.readlink(place)), False  # noqa: PTH115  its text as it is
    if modes.S_ISCHR(found.st_mode):
        number = (os.major(found.st_rdev), os.minor(found.st_rdev))
        return Entry(Kind.CHARACTER, mode, rdev=number), False
    if not modes.S_ISREG(found.st_mode):
        return Entry(Kind.OTHER, mode), False
    try:
        return Entry(Kind.FILE, mode, content=slurp(place)), False
    except OSError as error:
        return Entry(Kind.FILE, mode, error=_code(error)), False


def slurp(path: str, limit: int = 1 << 24) -> bytes:
    """The whole content of a file that is no link; EFBIG when it goes on after `limit` bytes."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NOCTTY)
    try:
        chunks: list[bytes] = []
        size = 0
        while True:
            chunk = os.read(descriptor, 1 << 16)
            if not chunk:
                return b"".join(chunks)
            chunks.append(chunk)
            size += len(chunk)
            if size > limit:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
    finally:
        os.close(descriptor)


def _code(error: OSError) -> str:
    return code_name(error.errno)


def code_name(number: int | None) -> str:
    """``EPERM`` for 1, …; what has no name is EIO."""
    return errno.errorcode.get(number or 0, "EIO")
