"""PPU-HAMi-core on the host: what has to lie there for a container to be limited, and what the image brings.

The library is closed (decision 58) and its file names are its own affair: the preload list beside it, which
every container gets as its /etc/ld.so.preload, names what is loaded. The linker passes over a library that is
not there, and the container would be unlimited without a word; so all that the list names below the mounted
directory has to be there, and it has to name something (decisions 50 and 53).
"""

from __future__ import annotations

import re

from devplugin.host import Host, Kind, words
from devplugin.ppu.inventory import Library
from devplugin.ppu.words import ASSETS, HOST, INSIDE, PRELOAD

_PLAIN = re.compile(r"[0-9A-Za-z_+-][0-9A-Za-z_.+-]*(?:/[0-9A-Za-z_+-][0-9A-Za-z_.+-]*)*")
_LONGEST = 1 << 16
_DEPTH = 2
"""Directories below each other among the image's files."""


def look(host: Host) -> Library:
    """What is on the host now."""
    path = f"{HOST}/{PRELOAD}"
    try:
        text = host.read(path)
    except OSError as error:
        return Library((path,), f"{path}: {words(error)}")
    names = preloaded(text)
    if not names:
        return Library((path,), f"{path}: names no library below {INSIDE}")
    files = (path, *(f"{HOST}/{name}" for name in names))
    for file in files[1:]:
        try:
            host.stat(file)
        except OSError as error:
            return Library(files, f"{file}: {words(error)}, and {path} names it")
    return Library(files)


def preloaded(data: bytes) -> tuple[str, ...]:
    """Libraries below the mounted directory, relative to it; glibc parts the list by blanks and colons."""
    text = data[:_LONGEST].decode("utf-8", "replace")
    entries = (word for line in text.splitlines() for word in re.split(r"[ \t:]+", line.partition("#")[0]))
    inside = (word.removeprefix(f"{INSIDE}/") for word in entries if word.startswith(f"{INSIDE}/"))
    return tuple(dict.fromkeys(name for name in inside if _PLAIN.fullmatch(name)))


def assets(host: Host) -> tuple[str, ...]:
    """Files that the image has of it, the preload list last: it must not name what is not there yet."""
    names = _files(host, ASSETS, _DEPTH)
    return tuple(sorted(names, key=lambda name: (name == PRELOAD, name)))


def _files(host: Host, directory: str, depth: int) -> list[str]:
    """Paths of the files below a directory, relative to it."""
    found: list[str] = []
    try:
        names = [name for name in host.list(directory) if _PLAIN.fullmatch(name)]
        for name in names:
            if host.stat(f"{directory}/{name}").kind.name == Kind.FILE.name:
                found.append(name)
            elif depth:
                found += (f"{name}/{below}" for below in _files(host, f"{directory}/{name}", depth - 1))
    except OSError:
        return found
    return found
