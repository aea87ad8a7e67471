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
from gpusim.walk import MAX_LINKS

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

    What vanished is gone by whatever way its directory is reached: paths are compared as the host's links
    lead. Where a link vanished, what it led to stays.

    Raises:
        GpusimError: a fault acts on a GPU, and the host has no such action or no such GPU.
    """

    def __init__(self, host: Any, plan: Plan = Plan(), *, clock: Clock | None = None) -> None:  # noqa: B008 - a value
        self.host = host
        self.plan = plan
        self.clock = clock or Clock()
        self.struck: list[tuple[Fault, str, str]] = []
        self._due = plan.on("host", "machine")
        self._seen = [0] * len(self._due)
        self._gone: list[str] = []
        """Canonical paths of what vanished."""
        for fault in plan.on("machine"):
            if not callable(getattr(host, _ACTIONS[fault.verb], None)):
                raise GpusimError(
                    f"fault {fault.verb}: {type(host).__name__} has no {_ACTIONS[fault.verb]}()"
                )
        _on_this_node(plan, host)

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
        names = list(self._answer("list", path, strikes, lambda: self.host.list(path)))
        vanishes = [fault for fault in strikes if fault.verb == "vanish"]
        if self._gone or vanishes:
            here = self._way(path)[-1]
            names = [name for name in names if f"{here}/{name}" not in self._gone]
            for name in [fault.name or names[-1] for fault in vanishes if names]:
                if name in names:
                    self._gone.append(f"{here}/{name}")
        return names

    def readlink(self, path: str) -> str:
        """The text of a link."""
        return str(self._do("readlink", path, lambda: self.host.readlink(path), follow=False))

    def stat(self, path: str, *, follow: bool = True) -> Any:
        """What the path leads to."""
        return self._do("stat", path, lambda: self.host.stat(path, follow=follow), follow=follow)

    def probe(self, path: str) -> None:
        """Open and close a device node."""
        self._do("probe", path, lambda: self.host.probe(path))

    # Files

    def put(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Write a whole new file over `path`; what had vanished there is there again."""
        self._do("put", path, lambda: self.host.put(path, data, mode), makes=True, follow=False)

    def mkdir(self, path: str, mode: int = 0o755) -> None:
        """Make a directory and its parents."""
        self._do("mkdir", path, lambda: self.host.mkdir(path, mode), makes=True, follow=False)

    def rmdir(self, path: str) -> None:
        """Remove one empty directory."""
        self._do("rmdir", path, lambda: self.host.rmdir(path), follow=False)

    def unlink(self, path: str) -> None:
        """Remove one file."""
        self._do("unlink", path, lambda: self.host.unlink(path), follow=False)

    def rename(self, old: str, new: str) -> None:
        """Give a name to what had another; what vanished as `new` is there again."""
        self._do("rename", old, lambda: self.host.rename(old, new), follow=False)
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

    def _do(
        self, operation: str, path: str, act: Callable[[], Any], *, makes: bool = False, follow: bool = True
    ) -> Any:
        strikes = self._strike(operation, path)
        if makes:
            self._there_again(path)
        return self._answer(operation, path, strikes, act, follow=follow)

    def _there_again(self, path: str) -> None:
        """Something was made under a name that had vanished."""
        if self._gone and (found := self._way(path, follow=False)[-1]) in self._gone:
            self._gone.remove(found)

    def _way(self, path: str, *, follow: bool = True) -> Sequence[str]:
        """Canonical paths of all that a walk comes through, links too; last the one that it leads to.

        Args:
            path: as it was asked for.
            follow: whether a link that is its last name is followed.
        """
        way, here, links = [""], "", 0
        todo = path.split("/")[::-1]
        while todo:
            name = todo.pop()
            if name in ("", "."):
                continue
            if name == "..":
                here = here.rpartition("/")[0]
                way.append(here)
                continue
            way.append(f"{here}/{name}")
            target = self._target(way[-1]) if (todo or follow) and links < MAX_LINKS else None
            if target is None:
                here = way[-1]
                continue
            links += 1
            here = "" if target.startswith("/") else here
            way.append(here)
            todo += target.split("/")[::-1]
        return way

    def _target(self, path: str) -> str | None:
        """The text of a link; None: it is none, or cannot be read."""
        try:
            return str(self.host.readlink(path))
        except OSError:
            return None

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

    def _answer(
        self, operation: str, path: str, strikes: _Strikes, act: Callable[[], Any], *, follow: bool = True
    ) -> Any:
        """What the host answers, after what comes before it, and with what happens behind it."""
        for fault in strikes:
            if fault.verb == "slow":
                self.clock.advance(fault.seconds)
        try:
            for fault in strikes:
                if fault.verb in _ERRNOS:
                    raise OSError(_ERRNOS[fault.verb], os.strerror(_ERRNOS[fault.verb]), path)
            looked_up = operation != "run" or "/" in path  # a program without directory is looked up in PATH
            if self._gone and looked_up and not set(self._gone).isdisjoint(self._way(path, follow=follow)):
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


def _on_this_node(plan: Plan, host: Any) -> None:
    """Whether the GPUs of a plan are on the node; a plan alone cannot know.

    Raises:
        GpusimError: one is not.
    """
    named = [fault for fault in plan.on("machine") if fault.gpu]
    if not named:
        return
    spec = getattr(host, "spec", None)
    if spec is not None:
        there = [str(gpu.bdf) for gpu in spec.gpus]
    elif callable(getattr(host, "describe", None)):
        there = [str(gpu["bdf"]) for gpu in host.describe()["gpus"]]
    else:
        return  # nobody can tell
    for fault in named:
        if fault.gpu not in there:
            known = f"it has {', '.join(there)}" if there else "it has none"
            raise GpusimError(f"fault {fault.verb}: the node has no GPU at {fault.gpu!r:.60}; {known}")
