"""Where a program of a node is found when it is run: the names a shell would try, and what refuses it."""

from __future__ import annotations

import errno
import os

from gpusim.nodes import Kind
from gpusim.tree import Tree

PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
"""Where a program without a slash in its name is looked for."""


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
