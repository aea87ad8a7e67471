"""Where a path leads: links, ``..``, search permission, and the errno of a lookup that fails.

After Linux ``fs/namei.c`` (link_path_walk, step_into, filename_parentat). Resolved directories are
remembered until a way that was walked moves (`gpusim.nodes.GENERATION`): a read then costs two look-ups.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from gpusim.nodes import GENERATION, Caller, Dir, Link, Node

MAX_LINKS = 40
"""MAXSYMLINKS of include/linux/namei.h: the 41st link of one walk is ELOOP."""
PATH_MAX = 4096
"""Bytes of a path with its NUL."""
NAME_MAX = 255
"""Bytes of one name on tmpfs; kernfs has no limit and answers ENOENT."""
REMEMBERED = 50_000
"""Directories kept before the memory is emptied: a GPU node has about 9,000, but spellings are endless."""
LONG = 256
"""Characters of a directory's path up to which it is remembered: far below PATH_MAX in any encoding, and few
enough levels to look up one in the other. The longest of a GPU node has about 120."""
READ, WRITE, SEARCH = 4, 2, 1
"""Permission bits, as in a mode's last digit."""
_NOTHING: Mapping[str, Node] = MappingProxyType({})


@dataclass(slots=True)
class Place:
    """Where a walk ended: the directories from the root down, their names, and the node itself."""

    dirs: list[Dir]
    names: list[str]
    node: Node

    @property
    def path(self) -> str:
        """Canonical."""
        return "/" + "/".join(self.names)


@dataclass(slots=True)
class Spot:
    """A name to be made or removed: its directory, that directory's path, and how the name was written."""

    directory: Dir
    where: str
    name: str
    slash: bool

    @property
    def path(self) -> str:
        """Canonical path of the name, there or not."""
        return f"{self.where.rstrip('/')}/{self.name}"

    @property
    def special(self) -> bool:
        """The path ended in ``/``, ``.`` or ``..`` and nothing else."""
        return self.name in ("", ".", "..")


def fail(code: int, path: str) -> OSError:
    """The OSError of an errno, with the path as filename."""
    return OSError(code, os.strerror(code), path)


def permits(node: Node, caller: Caller, want: int) -> bool:
    """Mode bits for the caller; root may always (CAP_DAC_OVERRIDE: nothing here is executed)."""
    if caller.uid == 0:
        return True
    if node.uid == caller.uid:
        bits = node.mode >> 6
    elif node.gid in caller.gids:
        bits = node.mode >> 3
    else:
        bits = node.mode
    return bits & want == want


class Walk:
    """Looks paths up below one root directory."""

    def __init__(self, root: Dir) -> None:
        self.root = root
        self._generation = -1
        # What is in a directory, by the path it was asked for. The mappings are the directories' own: names
        # come and go in them, and a directory that gets another mapping says `touch`.
        self._known: dict[str, dict[str, Node]] = {}
        # The subset whose way everybody may search: only these are remembered for non-root callers.
        self._plain: dict[str, dict[str, Node]] = {}

    def find(self, path: str, caller: Caller, *, follow: bool = True) -> Node:
        """The node a path leads to. ENOENT, ENOTDIR, ELOOP, EACCES, ENAMETOOLONG.

        Args:
            path: what to look up.
            caller: who asks.
            follow: whether a link that is the last component is followed.
        """
        if self._generation != GENERATION[0]:
            self._forget()
        known = self._plain if caller.uid else self._known
        head, _, name = path.rpartition("/")
        node = (known.get(head) or self._learn(head, known, caller)).get(name)
        if node is None or (follow and isinstance(node, Link)):
            return self.place(path, caller, follow=follow).node
        return node

    def _forget(self) -> None:
        self._generation = GENERATION[0]
        # "" is the root, of absolute and relative paths alike.
        self._known = {"": self.root.kids()}
        self._plain = {"": self.root.kids()} if _open_to_all(self.root) else {}

    def _learn(self, path: str, known: dict[str, dict[str, Node]], caller: Caller) -> Mapping[str, Node]:
        """What is in a directory, looked up in the one above it; both are remembered.

        Nothing for all that is not plain (a missing name, ``.``, ``..``, a closed directory): `place` knows.
        """
        above, _, name = path.rpartition("/")
        if not name or len(path) > LONG:
            return _NOTHING
        node = (known.get(above) or self._learn(above, known, caller)).get(name)
        if not isinstance(node, Dir):
            if caller.uid or not isinstance(node, Link):  # links of others may lead through closed places
                return _NOTHING
            try:
                node = self.place(path, caller).node
            except OSError:
                return _NOTHING
            if not isinstance(node, Dir):
                return _NOTHING
        if caller.uid and not _open_to_all(node):
            return _NOTHING
        if len(known) > REMEMBERED:
            known.clear()
            self._generation = -1
        node.walked = True
        known[path] = kids = node.kids()
        return kids

    def spot(self, path: str, caller: Caller) -> Spot:
        """Walk to the directory of the last name, which need not exist (LOOKUP_PARENT)."""
        _check(path, path)
        body = path.rstrip("/")
        head, _, name = body.rpartition("/")
        place = self.place(f"{head}/", caller, asked=path)
        directory = place.dirs[-1]
        _search(directory, caller, path)
        return Spot(directory, place.path, name, slash=len(body) < len(path))

    def place(self, path: str, caller: Caller, *, follow: bool = True, asked: str | None = None) -> Place:
        """The whole walk: links, ``..``, search permission, and the right errno.

        Args:
            path: what to look up.
            caller: who asks.
            follow: whether a link that is the last component is followed.
            asked: the filename for errors; default `path`.
        """
        asked = path if asked is None else asked
        _check(path, asked)
        dirs = [self.root]
        names: list[str] = []
        links = 0
        todo = path.split("/")
        todo.reverse()
        while todo:
            name = todo.pop()
            if not name:
                continue  # "//", or a trailing slash: a non-directory was refused before it got here
            directory = dirs[-1]
            _search(directory, caller, asked)
            if name == ".":
                continue
            if name == "..":
                if names:
                    names.pop()
                    dirs.pop()
                continue
            node = directory.kids().get(name)
            if node is None:
                long = directory.writable and len(os.fsencode(name)) > NAME_MAX
                raise fail(errno.ENAMETOOLONG if long else errno.ENOENT, asked)
            if isinstance(node, Link) and (follow or todo):
                links += 1
                if links > MAX_LINKS:
                    raise fail(errno.ELOOP, asked)
                if node.target.startswith("/"):
                    dirs, names = [self.root], []
                todo.extend(reversed(node.target.split("/")))
            elif isinstance(node, Dir):
                node.walked = True
                dirs.append(node)
                names.append(name)
            elif todo:
                raise fail(errno.ENOTDIR, asked)
            else:
                return Place(dirs, [*names, name], node)
        return Place(dirs, names, dirs[-1])


def _open_to_all(directory: Dir) -> bool:
    return directory.mode & 0o111 == 0o111


def _search(directory: Dir, caller: Caller, asked: str) -> None:
    if caller.uid and not permits(directory, caller, SEARCH):
        raise fail(errno.EACCES, asked)


def _check(path: str, asked: str) -> None:
    """What getname() refuses before any lookup."""
    if "\0" in path:
        raise ValueError("embedded null byte in path")
    if not path:
        raise fail(errno.ENOENT, asked)
    if len(os.fsencode(path)) >= PATH_MAX:
        raise fail(errno.ENAMETOOLONG, asked)


def measure(spot: Spot, path: str) -> None:
    """ENAMETOOLONG for a name that tmpfs could not hold."""
    if spot.directory.writable and len(os.fsencode(spot.name)) > NAME_MAX:
        raise fail(errno.ENAMETOOLONG, path)
