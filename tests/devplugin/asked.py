"""A node that remembers what its program was asked, and files of a dict, for every vendor's tests."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from devplugin.host import Completed
from gpusim.machine import Machine


def reader(files: Mapping[str, str | bytes]) -> Callable[[str], bytes]:
    """Reads these files; any other is ENOENT, as open(2) says it."""

    def read(path: str) -> bytes:
        if path not in files:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        text = files[path]
        return text.encode() if isinstance(text, str) else text

    return read


class Asked:
    """A node that remembers what its program was asked, and can be given answers of its own."""

    def __init__(self, machine: Machine, answers: Mapping[str, str] | None = None) -> None:
        self.machine, self.answers = machine, dict(answers or {})
        self.commands: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.machine, name)

    def run(self, argv: Sequence[str], *, timeout: float = 30.0, stdin: bytes = b"") -> Completed:
        words = " ".join(argv[1:])
        self.commands.append(words)
        if words in self.answers:
            return Completed(0, self.answers[words].encode(), b"")
        done = self.machine.run(argv, timeout=timeout, stdin=stdin)
        return Completed(done.status, done.stdout, done.stderr)
