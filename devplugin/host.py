"""The seam: everything a decision may ask of, or do to, the operating system.

Three small protocols. `devplugin.linux` satisfies them for a real node or a directory of files;
`gpusim.Machine` satisfies them for a simulated one. Nothing else in this package touches files,
processes or device nodes.

Paths are absolute POSIX strings of the node (``/sys/class/kfd``), whatever root serves them.
Failures are plain `OSError` with the errno the kernel gives; nothing here invents one.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol


class Kind(Enum):
    """What a path leads to."""

    DIRECTORY = "directory"
    FILE = "file"
    LINK = "link"
    CHARACTER = "character device"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Stat:
    """What `Host.stat` tells: kind, permission bits, size in bytes, and the device number."""

    kind: Kind
    mode: int
    size: int = 0
    rdev: tuple[int, int] | None = None


class Host(Protocol):
    """Read, write, list, link, stat and probe: all that discovery and health need."""

    def read(self, path: str) -> bytes:
        """The whole content of a file, as the kernel hands it out.

        Raises:
            OSError: ENOENT, ENOTDIR, EISDIR, EACCES, EPERM (guarded KFD attribute, GPU in reset), …
        """
        ...

    def write(self, path: str, data: bytes) -> int:
        """One write(2) to an existing file, opened without O_CREAT and O_TRUNC; the byte count.

        Raises:
            OSError: ENOENT, EACCES, EROFS, and whatever the attribute answers (EINVAL, EBUSY, …).
        """
        ...

    def list(self, path: str) -> Sequence[str]:
        """Names in a directory, sorted as text, without ``.`` and ``..``."""
        ...

    def readlink(self, path: str) -> str:
        """The text of a symbolic link; EINVAL when the path is no link."""
        ...

    def stat(self, path: str, *, follow: bool = True) -> Stat:
        """What the path leads to; with ``follow=False`` the link itself."""
        ...

    def probe(self, path: str) -> None:
        """Open a device node for reading and writing, and close it again.

        The node need not be a character device: on a mounted or rendered tree it is a plain file.

        Raises:
            OSError: ENOENT (no such node, or an invalid partition), ENXIO, ENODEV, EPERM, EACCES.
        """
        ...


class Files(Protocol):
    """Files the plugin keeps on the node: CDI specifications, hooks, per-container directories."""

    def put(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Write under a temporary name in the same directory, then rename over `path`."""
        ...

    def mkdir(self, path: str, mode: int = 0o755) -> None:
        """Make a directory and its parents; no error when it is there."""
        ...

    def rmdir(self, path: str) -> None:
        """Remove one empty directory; ENOENT when it is not there, ENOTEMPTY or EBUSY when in use."""
        ...

    def unlink(self, path: str) -> None:
        """Remove one file; ENOENT when it is not there."""
        ...

    def rename(self, old: str, new: str) -> None:
        """rename(2): `new` is replaced at once; ENOENT, ENOTEMPTY (a directory with names in it), …"""
        ...

    def chmod(self, path: str, mode: int) -> None:
        """Set the permission bits of a file or directory; ENOENT, EROFS, EPERM."""
        ...

    def copy(self, source: str, target: str, mode: int) -> None:
        """Copy a file's bytes to `target`, as `put` does."""
        ...


@dataclass(frozen=True, slots=True)
class Completed:
    """What a finished program left: its exit status and what it printed."""

    status: int
    stdout: bytes
    stderr: bytes


class Runner(Protocol):
    """Runs a vendor's tool (`ctr`, `npu-smi`, `ppu-smi`)."""

    def run(self, argv: Sequence[str], *, timeout: float = 30.0, stdin: bytes = b"") -> Completed:
        """Run to completion. Raises OSError (ENOENT, EACCES) and TimeoutError."""
        ...


def words(error: OSError) -> str:
    """What an error says, without the path that the caller prints itself: ``ENOENT``, ``EPERM``, …"""
    return errno.errorcode.get(error.errno or 0, str(error))
