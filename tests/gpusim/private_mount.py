"""A node mounted where nobody else sees it: `gpusim mount` in a mount namespace of its own.

The tests' own namespace, which may be the machine's, has no mount of ours at any time. They look in through
/proc/PID/root, or run programs inside with nsenter.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpusim.export import fuse

GPUSIM = (sys.executable, "-m", "gpusim.cli")
PRIVATE = ("unshare", "-m", "--propagation", "private")
"""Whatever is mounted by what follows is seen by it alone."""
SECONDS = 60


def why_not() -> str | None:
    """Why nothing can be mounted here; None: it can."""
    try:
        fuse.load()
    except fuse.MountError as error:
        return str(error)
    if shutil.which("unshare") is None or shutil.which("nsenter") is None:
        return "unshare(1) and nsenter(1) are not installed"
    tried = subprocess.run([*PRIVATE, "true"], check=False, capture_output=True)
    return None if tried.returncode == 0 else "no mount namespaces here: run as root"


_WHY_NOT = why_not()
needs_fuse = pytest.mark.skipif(_WHY_NOT is not None, reason=f"cannot mount here: {_WHY_NOT}")


@dataclass
class Mounted:
    """A mount in a namespace of its own."""

    server: subprocess.Popen[str]
    directory: str

    @property
    def root(self) -> str:
        """The mounted node, as seen from the tests' own namespace."""
        return f"/proc/{self.server.pid}/root{self.directory}"

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """A program in the namespace; ``MNT`` is in its environment."""
        inside = ["nsenter", "-t", str(self.server.pid), "-m", "--", "env", f"MNT={self.directory}"]
        return subprocess.run([*inside, *argv], check=False, capture_output=True, text=True, timeout=SECONDS)

    def shell(self, script: str) -> subprocess.CompletedProcess[str]:
        """A shell script in the namespace."""
        return self.run("bash", "-c", script)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal; the exit code."""
        self.server.send_signal(number)
        return self.server.wait(SECONDS)


@contextlib.contextmanager
def mounted(node: str, directory: Path) -> Iterator[Mounted]:
    """`gpusim mount NODE DIRECTORY`, ready."""
    directory.mkdir(exist_ok=True)
    server = subprocess.Popen(
        [*PRIVATE, *GPUSIM, "mount", node, str(directory)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == f"mounted {node} on {directory}\n"
        yield Mounted(server, str(directory))
    finally:
        if server.poll() is None:
            server.terminate()
        server.wait(SECONDS)
        if server.stdout is not None:
            server.stdout.close()
