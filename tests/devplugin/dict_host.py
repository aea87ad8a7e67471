"""A node as a dict of paths: the smallest `Host` a discovery test can be built on.

A value is a file's text, an `OSError` number raised on read (the name still lists and stats), `DIR` for a
directory of its own, `CHR` for a device node, or `Link`. Parents of every path are directories.
"""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from devplugin.host import Kind, Stat

DIR = "directory"
CHR = "device node"


@dataclass(frozen=True)
class Special:
    """DIR or CHR."""

    kind: str


@dataclass(frozen=True)
class Link:
    """A symbolic link by the text of its target."""

    target: str


Value = str | bytes | int | Special | Link
Tree = dict[str, Value]


def device_node() -> Special:
    return Special(CHR)


def directory() -> Special:
    return Special(DIR)


class DictHost:
    """Serves a dict of paths; records what was asked."""

    def __init__(self, tree: Mapping[str, Value]) -> None:
        self.tree = dict(tree)
        self.asked: list[tuple[str, str]] = []
        self._listed: tuple[str, ...] | None = None
        self._names: dict[str, set[str]] = {}

    def _children(self) -> dict[str, set[str]]:
        """Names in every directory; made anew when a path came or went."""
        names = tuple(self.tree)
        if self._listed != names:
            self._listed, self._names = names, {"/": set()}
            for path in names:
                below = path
                while below != "/":
                    parent = posixpath.dirname(below)
                    self._names.setdefault(parent, set()).add(posixpath.basename(below))
                    below = parent
        return self._names

    def _find(self, path: str, *, follow: bool = True) -> tuple[str, Value]:
        """(real path, what is there), every link on the way followed."""
        children = self._children()
        done = "/"
        todo = [part for part in path.split("/") if part][::-1]
        hops = 0
        while todo:
            part = todo.pop()
            if part == "..":
                done = posixpath.dirname(done)
                continue
            here = self.tree.get(done)
            if here is not None and here != Special(DIR) and done not in children:
                raise _error(errno.ENOTDIR, path)
            step = posixpath.join(done, part)
            value = self.tree.get(step)
            if isinstance(value, Link) and (todo or follow):
                hops += 1
                if hops > 40:
                    raise _error(errno.ELOOP, path)
                if value.target.startswith("/"):
                    done = "/"
                todo += [p for p in value.target.split("/") if p][::-1]
                continue
            if value is None and step not in children:
                raise _error(errno.ENOENT, path)
            done = step
        if done in children and not isinstance(self.tree.get(done), Link):
            return done, Special(DIR)
        return done, self.tree[done]

    def read(self, path: str) -> bytes:
        self.asked.append(("read", path))
        _, value = self._find(path)
        if isinstance(value, int):
            raise _error(value, path)
        if value == Special(DIR):
            raise _error(errno.EISDIR, path)
        if isinstance(value, (Special, Link)):
            raise _error(errno.EINVAL, path)
        return value.encode() if isinstance(value, str) else value

    def write(self, path: str, data: bytes) -> int:
        raise _error(errno.EROFS, path)

    def list(self, path: str) -> Sequence[str]:
        self.asked.append(("list", path))
        real, value = self._find(path)
        if isinstance(value, int):
            raise _error(value, path)
        if value != Special(DIR):
            raise _error(errno.ENOTDIR, path)
        return sorted(self._children().get(real, ()))

    def readlink(self, path: str) -> str:
        self.asked.append(("readlink", path))
        _, value = self._find(path, follow=False)
        if not isinstance(value, Link):
            raise _error(errno.EINVAL, path)
        return value.target

    def stat(self, path: str, *, follow: bool = True) -> Stat:
        self.asked.append(("stat", path))
        _, value = self._find(path, follow=follow)
        if isinstance(value, Link):
            return Stat(Kind.LINK, 0o777)
        if value == Special(DIR):
            return Stat(Kind.DIRECTORY, 0o755)
        if value == Special(CHR):
            return Stat(Kind.CHARACTER, 0o660, 0, (226, 128))
        return Stat(Kind.FILE, 0o444, 4096)

    def probe(self, path: str) -> None:
        self.asked.append(("probe", path))
        self._find(path)


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
