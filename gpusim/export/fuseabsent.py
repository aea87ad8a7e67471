"""The FUSE operations to which every node has the same answer, because it has nothing of the kind."""

from __future__ import annotations

import errno
import os
from typing import Any


def error(code: int) -> OSError:
    """An errno as libfuse's callbacks raise it."""
    return OSError(code, os.strerror(code))


class Absent:
    """Extended attributes, ioctls, hard links, room to reserve, and anything held back until a sync."""

    def flush(self, path: str, fh: int) -> int:
        """close(2) of one of several descriptors: nothing was held back."""
        return 0

    def fsync(self, path: str, datasync: int, fh: int) -> int:
        """Nothing was held back."""
        return 0

    def fsyncdir(self, path: str, datasync: int, fh: int) -> int:
        """Nothing was held back."""
        return 0

    def link(self, target: str, source: str) -> int:
        """No file of a node has two names: EPERM, as on kernfs."""
        raise error(errno.EPERM)

    def getxattr(self, path: str, name: str, position: int = 0) -> bytes:
        """EOPNOTSUPP."""
        raise error(errno.EOPNOTSUPP)

    def setxattr(self, path: str, name: str, value: bytes, options: int, position: int = 0) -> int:
        """EOPNOTSUPP."""
        raise error(errno.EOPNOTSUPP)

    def removexattr(self, path: str, name: str) -> int:
        """EOPNOTSUPP."""
        raise error(errno.EOPNOTSUPP)

    def listxattr(self, path: str) -> list[str]:
        """None."""
        return []

    def ioctl(self, path: str, cmd: int, arg: Any, fh: int, flags: int, data: Any) -> int:  # noqa: PLR0917  libfuse's
        """ENOTTY: no driver is behind the devices."""
        raise error(errno.ENOTTY)

    def fallocate(self, path: str, mode: int, offset: int, size: int, fh: int) -> int:
        """EOPNOTSUPP."""
        raise error(errno.EOPNOTSUPP)
