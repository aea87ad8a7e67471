"""Runs tests on a changed module: one forked process a mutant, two outcomes and a time limit."""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import importlib.util
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

from .mutants import Mutant

SURVIVED, KILLED, SLOW = "survived", "killed", "slow"
"""`SLOW`: the tests did not end in time, so the change was noticed."""
_LEAST = 20
"""Seconds that a mutant may take at least."""
_SLOWER = 8
"""… and how many times longer than the unchanged module: the machine may be busy."""


class Changed(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from a changed syntax tree, and all others as ever."""

    def __init__(self, module: str, file: Path, tree: ast.Module) -> None:
        self.module, self.file, self.tree = module, file, tree

    def find_spec(
        self, name: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self.module:
            return None
        return importlib.util.spec_from_file_location(name, self.file, loader=self)

    def create_module(self, spec: object) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self.tree, str(self.file), "exec"), module.__dict__)


class Runner:
    """The tests of one module.

    Args:
        root: the checkout.
        module: dotted name of the module that is changed.
        tests: files, below the checkout.
    """

    def __init__(self, root: Path, module: str, tests: Sequence[str]) -> None:
        self.root, self.module, self.tests = root, module, tests
        self.file = root / (module.replace(".", "/") + ".py")
        self.limit = 600.0

    def unchanged(self) -> str:
        """The outcome without a change; it sets the time limit of the others."""
        begun = time.monotonic()
        ((_, result),) = self.run([self._same()], 1)
        self.limit = max(_LEAST, _SLOWER * (time.monotonic() - begun))
        return result

    def _same(self) -> Mutant:
        return Mutant(0, 0, "", "", "", ast.parse(self.file.read_text()))

    def run(self, chosen: Sequence[Mutant], jobs: int) -> Iterator[tuple[Mutant, str]]:
        """Each mutant with its outcome, in the order of their ends."""
        import hypothesis  # noqa: F401 - once, for all forks
        import pytest  # noqa: F401

        waiting, running = list(reversed(chosen)), dict[int, tuple[Mutant, float]]()
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    mutant = waiting.pop()
                    running[self._fork(mutant)] = (mutant, time.monotonic())
                yield from self._reap(running)
        finally:
            for pid in running:
                os.killpg(pid, signal.SIGKILL)
                os.waitpid(pid, 0)

    def _reap(self, running: dict[int, tuple[Mutant, float]]) -> Iterator[tuple[Mutant, str]]:
        time.sleep(0.02)
        for pid, (mutant, begun) in list(running.items()):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                del running[pid]
                yield mutant, SURVIVED if status == 0 else KILLED
            elif time.monotonic() - begun > self.limit:
                os.killpg(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                del running[pid]
                yield mutant, SLOW

    def _fork(self, mutant: Mutant) -> int:
        sys.stdout.flush()
        pid = os.fork()
        if pid:
            return pid
        status = 70
        try:
            os.setpgid(0, 0)
            status = self._test(mutant)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)

    def _test(self, mutant: Mutant) -> int:
        """In the child: 0 when every test passed."""
        import pytest

        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, 1)
        os.dup2(sink, 2)
        os.chdir(self.root)
        assert self.module not in sys.modules
        sys.meta_path.insert(0, Changed(self.module, self.file, mutant.tree))
        with tempfile.TemporaryDirectory(prefix="mutant") as scratch:
            os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = scratch
            # Plain asserts: what is loaded already cannot be rewritten, and nobody reads the words.
            words = ["-x", "-q", "--assert=plain", "--hypothesis-seed=1", f"--basetemp={scratch}/tmp"]
            return int(pytest.main([*words, *self.tests]))
