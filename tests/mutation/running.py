"""Runs tests on a changed module: one forked process a mutant, two outcomes and a time limit.

What makes it quick: all that does not depend on the module is loaded once, before the forks; the tests that
noticed earlier changes of the same function come first; and Hypothesis does not shrink what it found.
"""

from __future__ import annotations

import ast
import gc
import importlib.abc
import importlib.machinery
import importlib.util
import json
import math
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import pytest

from .mutants import Change, Mutant

SURVIVED, KILLED, SLOW = "survived", "killed", "slow"
"""`SLOW`: the tests did not end in time, so the change was noticed."""
_LEAST = 2
"""Seconds of CPU that a test of a mutant may take at least."""
_SLOWER = 8
"""… and how many times as many as on the unchanged module, whatever else the machine does meanwhile."""
_WAITING = 10
"""Seconds of waiting for each of these: nothing of the accounting waits, so that is long enough."""
_MEMORY = 4 << 30
"""Bytes of address space that a mutant may take."""


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


class History:
    """Pytest plugin of one child: the likeliest tests first, which one failed, and how long each takes.

    Args:
        noticed: how often each test, by its id, noticed a change: first the count for changes of the same
            function, then that for all.
        usual: seconds of CPU that each test took on the unchanged module.
        failed: where the id of the test that fails is written.
    """

    def __init__(
        self, noticed: tuple[Counter[str], Counter[str]], usual: Mapping[str, float], failed: Path
    ) -> None:
        self._noticed, self._usual, self._failed = noticed, usual, failed
        self.took: dict[str, float] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Stable: what never noticed anything stays in the order of the files."""
        items.sort(key=lambda item: [-count[item.nodeid] for count in self._noticed])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """SIGPROF, whose default is to end the process, when a test takes far more than usual."""
        limit = max(_LEAST, _SLOWER * self._usual.get(item.nodeid, 60))
        begun = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, limit)
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            self.took[item.nodeid] = time.process_time() - begun

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Called for each phase of each test."""
        if report.failed:
            self._failed.write_text(report.nodeid)


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
        self.limit = 60
        """Seconds of CPU that a mutant may take."""
        self._noticed: dict[str, Counter[str]] = {}
        """Function → test → number of its changes that the test noticed."""
        self._usual: dict[str, float] = {}
        self._scratch = Path()
        package = module.partition(".")[0]
        for name in [name for name in sys.modules if name.partition(".")[0] == package]:
            del sys.modules[name]  # loaded for the module before, which was of another package

    def unchanged(self) -> str:
        """The outcome without a change; it sets the time limit of the others and loads what they share."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        ((_, result),) = self.run([self._same()], 1)
        used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
        self.limit = max(_LEAST, math.ceil(_SLOWER * used))
        return result

    def _same(self) -> Mutant:
        root = ast.parse(self.file.read_text())
        return Mutant(0, 0, "", "", "", Change(root, root, "body", 0, root.body[0], root.body[0]))

    def run(self, chosen: Sequence[Mutant], jobs: int) -> Iterator[tuple[Mutant, str]]:
        """Each mutant with its outcome, in the order of their ends."""
        from hypothesis import Phase, settings

        # As tests/conftest.py's quick profile, but a failure is all there is to know.
        settings.register_profile(
            "mutation",
            max_examples=40,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.explicit, Phase.generate],
            report_multiple_bugs=False,
        )
        waiting, running = list(reversed(chosen)), dict[int, tuple[Mutant, float]]()
        with tempfile.TemporaryDirectory(prefix="mutation") as scratch:
            self._scratch = Path(scratch)
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
            self._share()

    def _reap(self, running: dict[int, tuple[Mutant, float]]) -> Iterator[tuple[Mutant, str]]:
        time.sleep(0.01)
        for pid, (mutant, begun) in list(running.items()):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                del running[pid]
                failed = self._scratch / f"{mutant.number}.failed"
                if failed.exists():
                    self._noticed.setdefault(mutant.where, Counter())[failed.read_text()] += 1
                slow = os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGPROF, signal.SIGXCPU)
                yield mutant, SLOW if slow else SURVIVED if status == 0 else KILLED
            elif time.monotonic() - begun > _WAITING * self.limit:
                os.killpg(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                del running[pid]
                yield mutant, SLOW

    def _share(self) -> None:
        """Load for all forks to come what the unchanged tests loaded and what is not built on the module."""
        loaded = self._scratch / "loaded"
        if not loaded.exists():
            return
        self._usual = json.loads((self._scratch / "took").read_text())
        ours = ("tests", self.module.partition(".")[0])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name in loaded.read_text().splitlines():
                if name.partition(".")[0] not in ours:
                    with suppress(Exception):
                        importlib.import_module(name)
        assert self.module not in sys.modules
        gc.collect()
        gc.freeze()

    def _fork(self, mutant: Mutant) -> int:
        sys.stdout.flush()
        pid = os.fork()
        if pid:
            return pid
        status = 70
        try:
            os.setpgid(0, 0)
            resource.setrlimit(resource.RLIMIT_CPU, (self.limit, self.limit + 1))
            resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
            status = self._test(mutant)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)

    def _test(self, mutant: Mutant) -> int:
        """In the child: 0 when every test passed."""
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, 1)
        os.dup2(sink, 2)
        os.chdir(self.root)
        assert self.module not in sys.modules
        before = set(sys.modules)
        sys.meta_path.insert(0, Changed(self.module, self.file, mutant.tree))
        own = self._scratch / f"{mutant.number}"
        own.mkdir()
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(own / "hypothesis")
        os.environ["HYPOTHESIS_PROFILE"] = "mutation"
        noticed = self._noticed.get(mutant.where, Counter()), sum(self._noticed.values(), Counter[str]())
        history = History(noticed, self._usual, self._scratch / f"{mutant.number}.failed")
        # Plain asserts: what is loaded already cannot be rewritten, and nobody reads the words.
        words = ["-x", "-q", "--assert=plain", "--hypothesis-seed=1", f"--basetemp={own}/tmp"]
        status = int(pytest.main([*words, *self.tests], plugins=[history]))
        if not mutant.number:
            (self._scratch / "took").write_text(json.dumps(history.took))
            (self._scratch / "loaded").write_text("\n".join(sorted(set(sys.modules) - before)))
        return status
