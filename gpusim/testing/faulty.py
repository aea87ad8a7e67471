"""A host with a plan of faults in front: what the caller sees is the host's answer, or what goes wrong.

It wraps anything host-shaped: a `Machine`, a view of one, a served one, a directory. What is no file
operation (``switch``, ``process``, ``describe``, …) goes straight to the host.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any

from gpusim.errors import GpusimError
from gpusim.testing.clock import Clock
from gpusim.testing.faults import Fault, Plan

_ERRNOS = {"eio": errno.EIO, "eperm": errno.EPERM, "ebusy": errno.EBUSY}
_ACTIONS = {"unplug": "remove", "plug": "add", "hang": "hang", "reset": "reset", "recover": "recover"}
_PAGE = 4096
_Strikes = list[Fault]
"""Faults that are due for one operation."""


class Faulty:
    """Host, files and runner of `host`, as `plan` lets them through.

    Args:
        host: asked for everything.
        plan: its faults of host and machine; the others are for `faults.arm`.
        clock: what slow operations let pass; a new one without.

    Attributes:
        struck: every fault that struck, with operation and path, in order.

    Raises:
        GpusimError: a fault acts on a GPU, and the host has no such action.
    """

    def __init__(self, host: Any, plan: Plan = Plan(), *, clock: Clock | None = None) -> None:  # noqa: B008 - a value
        self.host = host
        self.plan = plan
        self.clock = clock or Clock()
        self.struck: list[tuple[Fault, str, str]] = []
        self._due = plan.on("host", "machine")
        self._seen = [0] * len(self._due)
        self._gone: list[str] = []
        for fault in plan.on("machine"):
            if not callable(getattr(host, _ACTIONS[fault.verb], None)):
                raise GpusimError(
                    f"fault {fault.verb}: {type(host).__name__} has no {_ACTIONS[fault.verb]}()"
                )

    def __getattr__(self, name: str) -> Any:
        if name == "host":  # before __init__ has run: copying, unpickling
            raise AttributeError(name)
        return getattr(self.host, name)

    def fork(self) -> Faulty:
        """An independent host in the same state, with the same faults still to come."""
        twin = Faulty.__new__(Faulty)
        twin.host, twin.plan, twin.clock = self.host.fork(), self.plan, self.clock.fork()
        twin.struck, twin._due = self.struck.copy(), self._due
        twin._seen, twin._gone = self._seen.copy(), self._gone.copy()
        return twin

    # Host

    def read(self, path: str) -> bytes:
        """The content, perhaps cut or padded."""
        strikes = self._strike("read", path)
        content = bytes(self._answer("read", path, strikes, lambda: self.host.read(path)))
        for fault in strikes:
            if fault.verb == "truncate":
                content = content[: fault.size]
            elif fault.verb == "pad":
                size = fault.size or _PAGE
                content += bytes(-len(content) % size)
        return content

    def write(self, path: str, data: bytes) -> int:
        """One write(2)."""
        return int(self._do("write", path, lambda: self.host.write(path, data)))

    def list(self, path: str) -> Sequence[str]:
        """Names, without those that vanished before."""
        strikes = self._strike("list", path)
        here = path.rstrip("/")
        names = [
            name
            for name in self._answer("list", path, strikes, lambda: self.host.list(path))
            if f"{here}/{name}" not in self._gone
        ]
        for fault in strikes:
            if fault.verb == "vanish" and names:
                name = fault.name or names[-1]
                if name in names:
                    self._gone.append(f"{here}/{name}")
        return names

    def readlink(self, path: str) -> str:
        """The text of a link."""
        return str(self._do("readlink", path, lambda: self.host.readlink(path)))

    def stat(self, path: str, *, follow: bool = True) -> Any:
        """What the path leads to."""
        return self._do("stat", path, lambda: self.host.stat(path, follow=follow))

    def probe(self, path: str) -> None:
        """Open and close a device node."""
        self._do("probe", path, lambda: self.host.probe(path))

    # Files

    def put(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Write a whole new file over `path`; what had vanished there is there again."""
        self._do("put", path, lambda: self.host.put(path, data, mode), makes=True)

    def mkdir(self, path: str, mode: int = 0o755) -> None:
        """Make a directory and its parents."""
        self._do("mkdir", path, lambda: self.host.mkdir(path, mode), makes=True)

    def rmdir(self, path: str) -> None:
        """Remove one empty directory."""
        self._do("rmdir", path, lambda: self.host.rmdir(path))

    def unlink(self, path: str) -> None:
        """Remove one file."""
        self._do("unlink", path, lambda: self.host.unlink(path))

    def rename(self, old: str, new: str) -> None:
        """Give a name to what had another; what vanished as `new` is there again."""
        self._do("rename", old, lambda: self.host.rename(old, new))
        self._there_again(new)

    def chmod(self, path: str, mode: int) -> None:
        """Set permission bits."""
        self._do("chmod", path, lambda: self.host.chmod(path, mode))

    def copy(self, source: str, target: str, mode: int) -> None:
        """Copy a file's bytes; what had vanished as `target` is there again."""
        self._do("copy", source, lambda: self.host.copy(source, target, mode))
        self._there_again(target)

    # Runner

    def run(self, argv: Sequence[str], *, timeout: float = 30.0, stdin: bytes = b"") -> Any:
        """Run a program; its name is the path that faults match. A slow one exceeds its time, too.

        Raises:
            TimeoutError: a fault takes at least `timeout` seconds.
        """
        strikes = self._strike("run", argv[0])
        if sum(fault.seconds for fault in strikes if fault.verb == "slow") >= timeout:
            self.clock.advance(timeout)
            raise TimeoutError(f"{argv[0]}: no answer within {timeout} s")
        return self._answer(
            "run", argv[0], strikes, lambda: self.host.run(argv, timeout=timeout, stdin=stdin)
        )

    # Striking

    def _do(self, operation: str, path: str, act: Callable[[], Any], *, makes: bool = False) -> Any:
        strikes = self._strike(operation, path)
        if makes:
            self._there_again(path)
        return self._answer(operation, path, strikes, act)

    def _there_again(self, path: str) -> None:
        """Something was made under a name that had vanished."""
        if path in self._gone:
            self._gone.remove(path)

    def _strike(self, operation: str, path: str) -> _Strikes:
        """Count an operation against every fault; those that are due."""
        due: _Strikes = []
        for place, fault in enumerate(self._due):
            if fault.operation not in ("*", operation) or not fnmatchcase(path, fault.path):
                continue
            self._seen[place] += 1
            past = self._seen[place] - fault.nth
            if past >= 0 and (fault.times is None or past < fault.times):
                due.append(fault)
                self.struck.append((fault, operation, path))
        return due

    def _answer(self, operation: str, path: str, strikes: _Strikes, act: Callable[[], Any]) -> Any:
        """What the host answers, after what comes before it, and with what happens behind it."""
        for fault in strikes:
            if fault.verb == "slow":
                self.clock.advance(fault.seconds)
        try:
            for fault in strikes:
                if fault.verb in _ERRNOS:
                    raise OSError(_ERRNOS[fault.verb], os.strerror(_ERRNOS[fault.verb]), path)
            if self._gone and any(path == gone or path.startswith(gone + "/") for gone in self._gone):
                raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            return act()
        finally:
            for fault in strikes:
                if fault.where == "machine":
                    self._act(fault)

    def _act(self, fault: Fault) -> None:
        """Do something to a GPU; fine when it is in that state, or gone, already."""
        try:
            getattr(self.host, _ACTIONS[fault.verb])(fault.gpu)
        except (OSError, GpusimError):
            self.struck.pop(max(i for i, entry in enumerate(self.struck) if entry[0] is fault))
