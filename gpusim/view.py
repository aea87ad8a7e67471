"""A node as one caller sees it: the plugin's three seams (host, files, runner) over a tree.

What a caller may is decided in `gpusim.tree`; this only gives it a fixed caller and the seam's names.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass

from gpusim.tree import ROOT, Caller, Stat, Tree


@dataclass(frozen=True, slots=True)
class Completed:
    """What a finished program left: its exit status and what it printed."""

    status: int
    stdout: bytes
    stderr: bytes


class View:
    """A node as one caller sees it; every method raises OSError with the errno that caller gets."""

    def __init__(self, tree: Tree, caller: Caller = ROOT) -> None:
        self.tree = tree
        self.caller = caller

    def read(self, path: str) -> bytes:
        """The whole content of a file."""
        return self.tree.read(path, self.caller)

    def write(self, path: str, data: bytes) -> int:
        """One write(2) to an existing file; the byte count."""
        return self.tree.write(path, data, self.caller)

    def list(self, path: str) -> Sequence[str]:
        """Names in a directory, sorted."""
        return self.tree.list(path, self.caller)

    def readlink(self, path: str) -> str:
        """The text of a link; EINVAL when it is none."""
        return self.tree.readlink(path, self.caller)

    def stat(self, path: str, *, follow: bool = True) -> Stat:
        """What the path leads to; with ``follow=False`` the link itself."""
        return self.tree.stat(path, self.caller, follow=follow)

    def probe(self, path: str, access: str = "rw") -> None:
        """Open a file or device node for ``r``, ``w`` or ``rw``, and close it again."""
        self.tree.probe(path, self.caller, access)

    def put(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Write a whole new file over `path`."""
        self.tree.put(path, data, mode, self.caller)

    def mkdir(self, path: str, mode: int = 0o755) -> None:
        """Make a directory and its parents; no error when it is there."""
        self.tree.makedirs(path, mode, self.caller)

    def rmdir(self, path: str) -> None:
        """Remove one empty directory; a cgroup without processes and children (else EBUSY)."""
        self.tree.rmdir(path, self.caller)

    def unlink(self, path: str) -> None:
        """Remove one file."""
        self.tree.unlink(path, self.caller)

    def rename(self, old: str, new: str) -> None:
        """Give a name to what had another; what had it is replaced at once."""
        self.tree.rename(old, new, self.caller)

    def chmod(self, path: str, mode: int) -> None:
        """Set the permission bits of a file or directory."""
        self.tree.chmod(path, mode, self.caller)

    def symlink(self, target: str, path: str) -> None:
        """Make a symbolic link."""
        self.tree.symlink(target, path, self.caller)

    def copy(self, source: str, target: str, mode: int) -> None:
        """Copy a file's bytes to `target`, as `put` does."""
        self.tree.copy(source, target, mode, self.caller)

    def run(self, argv: Sequence[str], *, timeout: float = 30.0, stdin: bytes = b"") -> Completed:
        """Run a program: an AMD node has none that the plugin calls, so this is ENOENT."""
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), argv[0])
