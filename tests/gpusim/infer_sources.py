"""A machine of which parts are hidden, padded or replaced, for the tests of infer, diff and verify."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from gpusim.machine import Machine
from gpusim.nodes import Stat
from gpusim.snapshots.walk import place

RELEASES = ("/proc/*", "/sys/module/amdgpu/version", "/sys/module/amdgpu/srcversion")
"""What says kernel and driver outright."""
PAGE = 4096


class Partial:
    """A machine seen through a bad recorder.

    Args:
        machine: the node.
        without: globs of paths that were not recorded.
        replaced: path → bytes that stand there instead.
        padded: texts are filled to a page with NUL.
    """

    def __init__(
        self,
        machine: Machine,
        without: Sequence[str] = (),
        replaced: Mapping[str, bytes] | None = None,
        *,
        padded: bool = False,
    ) -> None:
        self.machine = machine
        self._without = tuple(without)
        self._replaced = {place(path): data for path, data in (replaced or {}).items()}
        self._padded = padded

    def _check(self, path: str) -> None:
        if any(fnmatchcase(path, glob) or fnmatchcase(path, f"{glob}/*") for glob in self._without):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    def read(self, path: str) -> bytes:
        self._check(path)
        data = self._replaced.get(place(path))
        data = self.machine.read(path) if data is None else data
        return data.ljust(PAGE, b"\0") if self._padded else data

    def list(self, path: str) -> Sequence[str]:
        self._check(path)
        below = path.rstrip("/")
        return [
            name
            for name in self.machine.list(path)
            if not any(fnmatchcase(f"{below}/{name}", g) for g in self._without)
        ]

    def readlink(self, path: str) -> str:
        self._check(path)
        return self.machine.readlink(path)

    def stat(self, path: str, *, follow: bool = True) -> Stat:
        self._check(path)
        return self.machine.stat(path, follow=follow)
