"""Putting the memory hook's library from the image onto the node.

The DaemonSet's postStart runs ``amd-device-plugin -install_hook SRC:DST`` on every start of the pod, while
running workloads have the old file mapped: so it is replaced by rename, never rewritten, and left alone
when it is the same (amd.md 1.3).
"""

from __future__ import annotations

import errno
import hashlib
from dataclasses import dataclass
from typing import Protocol

from devplugin.host import Files, Host, words

MODE = 0o555
"""Readable and executable by everybody, writable by nobody (amd.md 1.3)."""


class Place(Host, Files, Protocol):
    """Where source and target are."""


class HookError(Exception):
    """The hook cannot be installed; one line with path and remedy."""


@dataclass(frozen=True, slots=True)
class HookPaths:
    """Where the library comes from and where it goes; absolute."""

    source: str
    target: str
    """A file, or with a slash at its end (or where a directory is) the directory that gets the file."""


@dataclass(frozen=True, slots=True)
class Installed:
    """What `install` did."""

    target: str
    changed: bool
    sha256: str

    def __str__(self) -> str:
        """One line for the log."""
        return f"{self.target}: {'installed' if self.changed else 'up to date'}, sha256 {self.sha256}"


def parse(text: str) -> HookPaths:
    """``SRC:DST`` as two absolute paths.

    Raises:
        HookError: anything else.
    """
    source, colon, target = text.partition(":")
    if not colon or ":" in target or not all(_absolute(path) for path in (source, target)):
        raise HookError("use SRC:DST, two absolute paths without . or .. in them")
    return HookPaths(source, target)


def install(place: Place, paths: HookPaths) -> Installed:
    """Have the target be the source, byte for byte and with mode 0555.

    Raises:
        HookError: the source is missing, unreadable or empty, or the target cannot be written.
    """
    data = _source(place, paths.source)
    digest = hashlib.sha256(data).hexdigest()
    try:
        target = _target(place, paths)
        if _is(place, target, digest):
            return Installed(target, False, digest)
        place.mkdir(target.rpartition("/")[0] or "/", 0o755)
        place.put(target, data, MODE)
    except OSError as error:
        raise HookError(
            f"{error.filename or paths.target}: {words(error)}: the hook cannot be installed there; "
            "is the host directory mounted writable?"
        ) from error
    return Installed(target, True, digest)


def _source(place: Place, path: str) -> bytes:
    try:
        data = place.read(path)
    except OSError as error:
        raise HookError(
            f"{path}: {words(error)}: no hook library to install; was the image built with it?"
        ) from error
    if not data:
        raise HookError(f"{path}: empty: no hook library to install; was the image built with it?")
    return data


def _target(place: Place, paths: HookPaths) -> str:
    """The file to make."""
    inside = paths.target.endswith("/")
    if not inside:
        try:
            inside = place.stat(paths.target).kind.name == "DIRECTORY"
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                raise
    return f"{paths.target.rstrip('/')}/{paths.source.rpartition('/')[2]}" if inside else paths.target


def _is(place: Place, target: str, digest: str) -> bool:
    """Whether the target is there, a plain file with our mode, and says the same."""
    try:
        found = place.stat(target, follow=False)
        if found.kind.name != "FILE" or found.mode != MODE:
            return False
        return hashlib.sha256(place.read(target)).hexdigest() == digest
    except OSError:
        return False


def _absolute(path: str) -> bool:
    parts = path.split("/")
    return parts[0] == "" and any(parts) and ".." not in parts and path.isprintable()
