"""The file tree of a simulated node."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpusim.nodes import (
    ROOT, Attr, Caller, CharDev, Dir, File, Guard, Kind, Link, Node, Opener, Release, Show, Stat, Store,
)


@dataclass(frozen=True, slots=True)
class Opened:
    """What `Tree.open` leaves with the caller: to be released exactly once."""

    path: str
    """Canonical."""
    node: Node
    rdev: tuple[int, int] | None
    release: Release | None


class Tree:
    """A root directory and every file operation on it, for whoever asks (default: host root).

    All methods raise OSError with errno and the path as asked for as filename.
    """

    def __init__(self, root: Dir) -> None: ...
    def read(self, path: str, caller: Caller = ROOT) -> bytes: ...
    def write(self, path: str, data: bytes, caller: Caller = ROOT) -> int: ...
    def list(self, path: str, caller: Caller = ROOT) -> list[str]: ...
    def readlink(self, path: str, caller: Caller = ROOT) -> str: ...
    def stat(self, path: str, caller: Caller = ROOT, *, follow: bool = True) -> Stat: ...
    def probe(self, path: str, caller: Caller = ROOT) -> None: ...
    def open(self, path: str, caller: Caller = ROOT, access: str = "rw") -> Opened: ...
    def put(self, path: str, data: bytes, mode: int = 0o644, caller: Caller = ROOT) -> None: ...
    def mkdir(self, path: str, mode: int = 0o755, caller: Caller = ROOT) -> None:
        """One mkdir(2): EEXIST, ENOENT."""
    def makedirs(self, path: str, mode: int = 0o755, caller: Caller = ROOT) -> None:
        """With parents, no error when it is there: the seam's Files.mkdir."""
    def symlink(self, target: str, path: str, caller: Caller = ROOT) -> None: ...
    def unlink(self, path: str, caller: Caller = ROOT) -> None: ...
    def rename(self, old: str, new: str, caller: Caller = ROOT) -> None: ...
    def copy(self, source: str, target: str, mode: int, caller: Caller = ROOT) -> None: ...
    def node(self, path: str, *, follow: bool = True) -> Node:
        """The node itself, no permission asked."""
    def resolve(self, path: str) -> str:
        """The canonical path, no permission asked."""
    def every_file(self) -> Iterator[tuple[str, Node]]:
        """(path, node) of every node below the root, directories before their content, links not followed."""
