"""A vendor's program on a node: what a fixture may say of it, how it fails, and where it is found."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence
from typing import ClassVar

from gpusim.errors import GpusimError
from gpusim.nodes import Kind
from gpusim.spec import SpecError
from gpusim.tree import Tree
from gpusim.view import Completed

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


class Breakable:
    """The vendor's devices of a node, whose tool can be made to fail in any of its forms.

    Attributes:
        tool: its name.
        forms: what it can be asked for.
        refusal: what is raised.
        exit_status: what it ends with when it refuses or fails.
        broken: form (``""``: every form without a failure of its own) → what it prints instead of working.
    """

    tool: ClassVar[str]
    forms: ClassVar[tuple[str, ...]]
    refusal: ClassVar[type[GpusimError]]
    exit_status: int
    broken: dict[str, str]

    def fail(self, form: str, output: str | None, status: int) -> None:
        """Let a form of the tool print `output` and end with `status`; None: let it work again.

        Raises:
            GpusimError: `refusal`: there is no such form; no exit status.
        """
        if form and form not in self.forms:
            raise self.refusal(f"{self.tool} has no form {form!r}; it has {', '.join(self.forms)}")
        if not 0 <= status <= 255:
            raise self.refusal(f"an exit status of {self.tool} is 0 to 255, not {status}")
        self.exit_status = status
        if output is None:
            self.broken.pop(form, None)
        else:
            self.broken[form] = output

    def failure(self, form: str) -> Completed | None:
        """How a form fails; None: it works."""
        output = self.broken.get(form, self.broken.get(""))
        return None if output is None else Completed(self.exit_status, output.encode(), b"")


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
