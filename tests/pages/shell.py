"""The shell of somebody who reads a page and types what it says: one bash for the whole page.

Variables, directories and background jobs stay from one command to the next. What is asked of a cluster is
asked again for a while when the answer is not yet the one the page shows: kubelet and plugin take a moment.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from .blocks import Command, agrees

SECONDS = 150.0
"""For one command."""
PATIENCE = 45.0
"""For what the cluster takes to show."""

_ASKS = re.compile(r"\bkubectl\b.* (get|logs)\b|\bgpusim (ledger|show)\b|-check\b")


class Shell:
    """A bash in its own session; a context manager that ends everything it started.

    Args:
        place: where it works.
        env: all of its environment.
    """

    def __init__(self, place: Path, env: Mapping[str, str]) -> None:
        self._place = place
        self._notes = place / ".shell"
        self._notes.mkdir()
        self._jobs: list[int] = []
        self._count = 0
        self._bash = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=place,
            env=dict(env),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> Shell:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for group in (*self._jobs, self._bash.pid):
            for number in (signal.SIGTERM, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(group, number)
                    time.sleep(0.2 if number == signal.SIGTERM else 0)
        assert self._bash.stdin is not None
        self._bash.stdin.close()
        self._bash.wait(10)

    def run(self, command: Command) -> None:
        """Run it as printed; what it prints and how it ends must be as the page says."""
        patience = time.monotonic() + (PATIENCE if _ASKS.search(command.text) else 0)
        while True:
            status, printed = self._once(command.text)
            good = status == command.status and agrees(command.shown, printed)
            if good or time.monotonic() > patience:
                break
            time.sleep(0.3)
        assert status == command.status, f"{command}\nexit status {status}\n" + "\n".join(printed)
        assert agrees(command.shown, printed), f"{command}\nprinted:\n" + "\n".join(printed)

    def serve(self, command: Command, sign: str) -> None:
        """Run what does not end by itself until it has printed a sign that it works; then interrupt it."""
        out, pid = self._note("out"), self._note("pid")
        self._type(f"set -m; {{ {command.bare}\n}} </dev/null >{out} 2>&1 & echo $! >{pid}; set +m")
        group = int(self._await(pid))
        self._jobs.append(group)
        end = time.monotonic() + SECONDS
        while not re.search(sign, out.read_text() if out.exists() else ""):
            assert time.monotonic() < end, f"{command}\nnever said {sign!r}:\n{out.read_text()}"
            time.sleep(0.05)
        os.killpg(group, signal.SIGINT)

    def _once(self, text: str) -> tuple[int, list[str]]:
        out, ended = self._note("out"), self._note("status")
        self._type(f"{{ {text}\n}} </dev/null >{out} 2>&1; echo $? >{ended}")
        status = int(self._await(ended))
        if re.search(r"&\s*(#.*)?$", text):  # its first line says that it is ready
            with contextlib.suppress(AssertionError):
                self._await(out, 10)
        return status, out.read_text(errors="replace").splitlines()

    def _note(self, kind: str) -> Path:
        self._count += 1
        return self._notes / f"{self._count}.{kind}"

    def _type(self, text: str) -> None:
        assert self._bash.stdin is not None
        self._bash.stdin.write(text + "\n")
        self._bash.stdin.flush()

    def _await(self, path: Path, seconds: float = SECONDS) -> str:
        """The first line of a file, once it is there."""
        end = time.monotonic() + seconds
        while not (path.exists() and path.read_text().endswith("\n")):
            assert time.monotonic() < end, f"{path}: nothing within {seconds:g} s"
            assert self._bash.poll() is None, "the shell has ended"
            time.sleep(0.01)
        return path.read_text().splitlines()[0]
