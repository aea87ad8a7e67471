"""Around a node in a test with real sockets: a device plugin's process, and where it finds things.

The kubelet and the API server are `gpusim.cluster`'s; this is the third, and what the three share.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from gpusim.errors import GpusimError

NODE = "node-1"
"""The node's name in the cluster."""
AMD = (
    sys.executable,
    "-c",
    "import sys; from devplugin.launch import amd_device_plugin as go; sys.exit(go())",
)
"""The AMD device plugin of this distribution, as its console script starts it."""
_TMP = "/tmp"  # noqa: S108 - a directory of our own is made in it
_SHORT = 40
"""Characters of a temporary directory that leave enough for the names of sockets."""
_SAID = 4000
"""Bytes of a log that a report shows."""


class PluginProcess:
    """One running device plugin.

    Attributes:
        process: the process.
        log: file with all it printed.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        self.log = log
        with log.open("wb") as stream:
            try:
                self.process = subprocess.Popen(  # noqa: S603 - the test's own command
                    list(command), env=dict(env), stdin=subprocess.DEVNULL, stdout=stream, stderr=stream
                )
            except OSError as error:
                raise GpusimError(f"{command[0]}: cannot be started: {error.strerror}") from error

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None

    def said(self) -> str:
        """The end of what it printed."""
        return self.log.read_bytes()[-_SAID:].decode(errors="replace")

    def end(self, number: int = signal.SIGTERM, timeout: float = 10.0) -> int:
        """Send a signal and wait; its exit status (negative: the signal that ended it)."""
        if self.running:
            self.process.send_signal(number)
        return self.process.wait(timeout)


class Surroundings:
    """A short directory with the sockets of one test, and the plugin processes that use them.

    Attributes:
        directory: of all of it; short, because the path of a socket has at most 107 bytes.
        kubelet: kubelet's device plugin directory.
        socket: where the machine is served.
        kubeconfig: of the API server.
        processes: started so far.
    """

    def __init__(self) -> None:
        usual = tempfile.gettempdir()
        short = usual if len(usual) <= _SHORT or not Path(_TMP).is_dir() else _TMP
        self._temporary = tempfile.TemporaryDirectory(prefix="gpusim", dir=short)
        self.directory = Path(self._temporary.name)
        self.kubelet = self.directory / "kubelet"
        self.socket = self.directory / "machine.sock"
        self.kubeconfig = self.directory / "kubeconfig"
        self.processes: list[PluginProcess] = []

    def __enter__(self) -> Surroundings:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for one in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                one.end()
            if one.running:
                one.end(signal.SIGKILL)
        self._temporary.cleanup()

    def start(
        self, *flags: str, command: Sequence[str] | None = None, env: Mapping[str, str] | None = None
    ) -> PluginProcess:
        """Start a plugin; it is ended after the test.

        Args:
            flags: further words of its command line.
            command: another plugin than the AMD one. ``{kubelet_dir}``, ``{socket}`` (of the machine) and
                ``{kubeconfig}`` in it are replaced.
            env: further variables; NODE_NAME, KUBECONFIG, HOME, PATH and PYTHONPATH are there.

        Raises:
            GpusimError: it cannot be started.
        """
        if command is None:
            command = (*AMD, "-simulate", "unix:{socket}", "-kubelet_dir", "{kubelet_dir}")
        places = {"{kubelet_dir}": self.kubelet, "{socket}": self.socket, "{kubeconfig}": self.kubeconfig}
        filled = []
        for word in command:
            for sign, path in places.items():
                word = word.replace(sign, str(path))  # noqa: PLW2901 - one sign after the other
            filled.append(word)
        inherited = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
        own = {"HOME": str(self.directory), "NODE_NAME": NODE, "KUBECONFIG": str(self.kubeconfig)}
        log = self.directory / f"plugin-{len(self.processes)}.log"
        started = PluginProcess([*filled, *flags], {**inherited, **own, **(env or {})}, log)
        self.processes.append(started)
        return started
