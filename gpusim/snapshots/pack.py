"""A recorded tree as a value, and as one file: the pack format.

A pack is the line ``gpusim-pack VERSION`` and a zlib stream of JSON:
``{"about": {…}, "commands": [[argv, status, stdout, stderr], …], "tree": {…}}``. In ``tree`` an object is
a directory; its key ``/`` (no file can be called so) is its mode when that is not 0755. A string is the text
of a file of mode 0444, the usual sysfs attribute. Everything else is a list::

    ["f", mode, text]           a file of another mode
    ["e", mode, "EPERM"]        a file that answered this errno when it was read
    ["d", mode, "EACCES"]       a directory that could not be listed
    ["l", target]               a symbolic link
    ["c", mode, major, minor]   a character device
    ["o", mode]                 a socket, a block device

Bytes that are no UTF-8 become lone surrogates (``surrogateescape``), so every file and name comes back as
it was. Errnos go by name: numbers differ between architectures. A pack of a newer version is refused.

Loading is one ``json.loads`` and one pass over the names (performance.md, "Load a packed capture").
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import stat
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple, Union

from gpusim.snapshots.shape import PackError, checked

__all__ = [
    "Capture",
    "Command",
    "Entry",
    "Kind",
    "PackError",
    "capture",
    "dumps",
    "is_pack",
    "loads",
    "read",
    "write",
]

MAGIC = b"gpusim-pack "
VERSION = 1
MAX_BYTES = 1 << 28
"""What a pack may unfold to; an eight-GPU node in CPX is 12 MB."""

DIRECTORY_MODE = 0o755
FILE_MODE = 0o444

Json = Union[str, int, list[Any], dict[str, Any]]


class Kind(Enum):
    """What a path leads to: the member names of `gpusim.nodes.Kind`, which needs a newer Python."""

    DIRECTORY = "directory"
    FILE = "file"
    LINK = "link"
    CHARACTER = "character device"
    OTHER = "other"


class Entry(NamedTuple):
    """One name of a recorded tree."""

    kind: Kind
    mode: int
    content: bytes = b""
    target: str = ""
    """Of a link."""
    error: str = ""
    """Errno name that reading the file, or listing the directory, gave: ``EPERM``, ``ETIMEDOUT``, …"""
    rdev: tuple[int, int] | None = None
    """Of a character device."""


class Command(NamedTuple):
    """A program that was run when the node was recorded, and what it left."""

    argv: tuple[str, ...]
    status: int
    stdout: bytes
    stderr: bytes


class Capture(NamedTuple):
    """A recorded tree, in the form it has in a pack."""

    tree: dict[str, Any]
    about: dict[str, Any]
    """Who recorded it and how, JSON-able: ``recorder``, ``scrubbed``, …; no identifiers."""
    commands: tuple[Command, ...] = ()

    def entries(self) -> Iterator[tuple[str, Entry]]:
        """(path, entry) of everything below the root, directories before what is in them, by name."""
        todo: list[tuple[str, Json]] = [("", self.tree)]
        while todo:
            path, node = todo.pop()
            if path:
                yield path, decoded(node)
            if isinstance(node, dict):
                names = sorted((name for name in node if name != "/"), reverse=True)
                todo.extend((f"{path}/{name}", node[name]) for name in names)

    def entry(self, path: str) -> Entry | None:
        """What was recorded at a canonical path; None when nothing was. No link is followed."""
        node: Any = self.tree
        for name in path.split("/"):
            if name:
                node = node.get(name) if isinstance(node, dict) else None
        return None if node is None else decoded(node)


def capture(
    entries: Mapping[str, Entry] | Iterable[tuple[str, Entry]],
    about: Mapping[str, Any] | None = None,
    commands: Iterable[Command] = (),
) -> Capture:
    """The capture that holds `entries` (absolute canonical path → entry); missing parents are 0755.

    Raises:
        PackError: a path leads through something that is no directory, or a name is no file name.
    """
    tree: dict[str, Any] = {}
    pairs = entries.items() if isinstance(entries, Mapping) else entries
    for path, entry in sorted(pairs):
        names = [name for name in path.split("/") if name]
        where = tree
        for name in names[:-1]:
            where = where.setdefault(name, {})
            if not isinstance(where, dict):
                raise PackError(f"{path}: lies below {name!r}, which is no directory")
        if not names:
            if entry.mode != DIRECTORY_MODE:
                tree["/"] = entry.mode
            continue
        where[names[-1]] = encoded(entry)
    checked(tree)
    return Capture(tree, dict(about or {}), tuple(commands))


def encoded(entry: Entry) -> Json:  # noqa: PLR0911  one for each form
    """An entry as it stands in a pack; a directory without its names."""
    mode = entry.mode & 0o7777
    if entry.kind is Kind.DIRECTORY:
        if entry.error:
            return ["d", mode, entry.error]
        return {} if mode == DIRECTORY_MODE else {"/": mode}
    if entry.kind is Kind.FILE:
        if entry.error:
            return ["e", mode, entry.error]
        text = entry.content.decode("utf-8", "surrogateescape")
        return text if mode == FILE_MODE else ["f", mode, text]
    if entry.kind is Kind.LINK:
        return ["l", entry.target]
    if entry.kind is Kind.CHARACTER and entry.rdev is not None:
        return ["c", mode, *entry.rdev]
    return ["o", mode]


def decoded(node: Json) -> Entry:  # noqa: PLR0911  one for each form
    """The entry that a pack's node says."""
    if isinstance(node, str):
        return Entry(Kind.FILE, FILE_MODE, node.encode("utf-8", "surrogateescape"))
    if isinstance(node, dict):
        return Entry(Kind.DIRECTORY, node.get("/", DIRECTORY_MODE))
    assert isinstance(node, list)
    tag, first = node[0], node[1]
    if tag == "f":
        return Entry(Kind.FILE, first, node[2].encode("utf-8", "surrogateescape"))
    if tag == "l":
        return Entry(Kind.LINK, 0o777, target=first)
    if tag == "e":
        return Entry(Kind.FILE, first, error=node[2])
    if tag == "d":
        return Entry(Kind.DIRECTORY, first, error=node[2])
    if tag == "c":
        return Entry(Kind.CHARACTER, first, rdev=(node[2], node[3]))
    return Entry(Kind.OTHER, first)


# ------------------------------------------------------------------ one file


def dumps(recorded: Capture) -> bytes:
    """The bytes of a pack; the same capture always gives the same."""
    body = json.dumps(to_json(recorded), separators=(",", ":"), sort_keys=True)
    return MAGIC + f"{VERSION}\n".encode() + zlib.compress(body.encode(), 9)


def loads(data: bytes, name: str = "the pack") -> Capture:
    """The capture in a pack's bytes.

    Args:
        data: the whole file.
        name: what errors call it.

    Raises:
        PackError: it is none, is damaged, or is of a newer version.
    """
    if not data.startswith(MAGIC):
        raise PackError(f"{name}: is no packed capture (gpusim record and gpusim pack make them)")
    head, _, rest = data.partition(b"\n")
    text = head[len(MAGIC) :]
    if not text.isdigit() or len(text) > 9:
        raise PackError(f"{name}: its first line names no version of the pack format")
    known_version(int(text), name)
    try:
        unzip = zlib.decompressobj()
        body = unzip.decompress(rest, MAX_BYTES)
        if unzip.unconsumed_tail:
            raise PackError(f"{name}: unfolds to more than {MAX_BYTES >> 20} MiB; it is no capture of a node")
        if not unzip.eof:
            raise PackError(f"{name}: is cut short")
        if unzip.unused_data:
            raise PackError(f"{name}: has bytes after its end")
        with _uncollected():
            return from_json(json.loads(body))
    except (zlib.error, ValueError, RecursionError) as error:
        raise PackError(f"{name}: is damaged: {error}") from None
    except PackError as error:
        raise error if str(error).startswith(name) else PackError(f"{name}: is damaged: {error}") from None


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Thousands of new dicts without a cycle among them: searching for one would double the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def known_version(version: int, name: str) -> None:
    """Refuse what was written by a newer gpusim.

    Raises:
        PackError: `version` is above ours, or none there ever was.
    """
    if version > VERSION:
        raise PackError(
            f"{name}: has pack format {version}, this gpusim reads up to {VERSION}; use a newer gpusim"
        )
    if version < 1:
        raise PackError(f"{name}: has pack format {version}, which never was")


def to_json(recorded: Capture) -> dict[str, Any]:
    """A capture as JSON's types."""
    commands = [
        [list(c.argv), c.status, c.stdout.decode("utf-8", "surrogateescape"), _text(c.stderr)]
        for c in recorded.commands
    ]
    return {"about": recorded.about, "commands": commands, "tree": recorded.tree}


def from_json(value: Any) -> Capture:
    """The capture that JSON's types say.

    Raises:
        PackError: they do not say one.
    """
    if not isinstance(value, dict) or not isinstance(value.get("tree"), dict):
        raise PackError("there is no tree in it")
    about = value.get("about", {})
    if not isinstance(about, dict):
        raise PackError("what it is about is no object")
    checked(value["tree"])
    return Capture(value["tree"], about, commands_from_json(value.get("commands", [])))


def commands_from_json(value: Any) -> tuple[Command, ...]:
    """The commands in a pack or beside a directory.

    Raises:
        PackError: they are malformed.
    """
    try:
        return tuple(
            Command(
                tuple(_text(_bytes(str(word))) for word in argv), int(status), _bytes(stdout), _bytes(stderr)
            )
            for argv, status, stdout, stderr in value
        )
    except (TypeError, ValueError, AttributeError, OverflowError):
        raise PackError("its commands are malformed") from None


def read(path: str | os.PathLike[str]) -> Capture:
    """The capture in a packed file.

    Raises:
        PackError: as `loads`.
        OSError: it cannot be read.
    """
    with open(path, "rb") as file:  # noqa: PTH123  Path costs more than the reading
        return loads(file.read(), os.fspath(path))


def is_pack(path: str | os.PathLike[str]) -> bool:
    """Whether a file begins as packs of any version do; OSError when it cannot be read."""
    with open(path, "rb") as file:  # noqa: PTH123
        return file.read(len(MAGIC)) == MAGIC


def write(recorded: Capture, path: str | os.PathLike[str]) -> int:
    """Write a packed file, at once and whole: an interruption leaves what was there; the size in bytes.

    Raises:
        PackError: as `refuse_irregular`.
        OSError: the directory is missing, read-only, full, …
    """
    refuse_irregular(path)
    data = dumps(recorded)
    target = Path(path)
    descriptor, part = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(part).chmod(0o644)
        Path(part).replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(part).unlink()
        raise
    return len(data)


def refuse_irregular(path: str | os.PathLike[str]) -> None:
    """Refuse what renaming a file over it would destroy: a device, a pipe, a link (``/dev/stdout`` is one).

    Raises:
        PackError: something is there that is no regular file. Links are not followed.
    """
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return  # nothing is there, or writing says what is wrong
    if not stat.S_ISREG(mode):
        raise PackError(f"{os.fspath(path)}: is no regular file, and is not replaced")


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
