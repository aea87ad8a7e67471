"""A vendor's program on a node: what a fixture may say of it, and where it is found when it is run."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence

from gpusim.nodes import Kind
from gpusim.spec import SpecError
from gpusim.tree import Tree

PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
"""Where a program without a slash in its name is looked for."""


_VERSION = re.compile(r"[0-9]+(\.[0-9A-Za-z]+)+")


def check(vendor: str, version: str, status: int, places: Sequence[str]) -> None:
    """Refuse a driver and its tool ``<vendor>-smi`` that cannot be, by the keys of the node: ``npu_driver``.

    Args:
        vendor: ``npu`` or ``ppu``.
        version: of the driver.
        status: what the tool ends with when it refuses.
        places: where it is installed.

    Raises:
        SpecError: the first impossible value.
    """
    if not _VERSION.fullmatch(version):
        raise SpecError(f"{vendor}_driver", f"{version!r} is no version such as 25.5.1")
    if not 0 <= status <= 255:
        raise SpecError(f"{vendor}_smi_status", f"an exit status is 0 to 255, not {status}")
    tool = f"{vendor}-smi"
    for index, path in enumerate(places):
        if not path.startswith("/usr/") or not path.endswith(f"/{tool}") or "//" in path or "/." in path:
            raise SpecError(f"{vendor}_smi[{index}]", f"{path!r} is no path of {tool} below /usr")


def find(tree: Tree, program: str, name: str) -> None:
    """Nothing, when `program` is an executable file called `name`.

    Raises:
        OSError: ENOENT, no such program; EACCES, not executable.
    """
    places = [program] if "/" in program else [f"{directory}/{program}" for directory in PATH]
    code = errno.ENOENT
    for place in places:
        try:
            found = tree.stat(place)
        except OSError:
            continue
        if found.kind is not Kind.FILE or not found.mode & 0o111:
            code = errno.EACCES
        elif place.endswith(f"/{name}"):
            return
    raise OSError(code, os.strerror(code), program)
