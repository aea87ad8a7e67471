"""The processes of a play: started by their commands in bin/, shown, logged, and ended with it.

Everything lives in a temporary directory and is gone afterwards, whatever happens.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from gpusim.cluster.apiclient import ApiClient
from gpusim.errors import GpusimError
from gpusim.remote import RemoteMachine

BIN = Path(__file__).resolve().parent.parent.parent / "bin"
NODE = "demo-node"


class DemoError(GpusimError):
    """A step did not come about; the text says which, and what the process concerned printed last."""


class Stage:
    """The processes of one run, their logs, and what to do when one of them dies."""

    def __init__(self, scratch: Path, console: Console) -> None:
        self.scratch = scratch
        self.console = console
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *command: str, env: dict[str, str] | None = None) -> None:
        """Start a command of bin/ with its output in a log file, and show the line that does it."""
        shown = " ".join([*(f"{k}={v}" for k, v in (env or {}).items()), "bin/" + command[0], *command[1:]])
        self.console.print(
            f"[dim]$ {shown.replace(str(self.scratch), '$DIR')}[/dim]", soft_wrap=True, highlight=False
        )
        with (self.scratch / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(  # noqa: S603  # our own commands
                [str(BIN / command[0]), *command[1:]],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )

    def stop(self, name: str) -> None:
        """Ask a process to end, and make it after five seconds."""
        process = self._running.pop(name)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def stop_all(self) -> None:
        """End everything, the newest first."""
        for name in reversed(list(self._running)):
            self.stop(name)

    def until(self, what: str, condition: Callable[[], Any], seconds: float = 30.0) -> Any:
        """Wait for a condition's first true value; a process that died meanwhile ends the wait."""
        deadline = time.monotonic() + seconds
        with self.console.status(f"waiting for {what} …"):
            while time.monotonic() < deadline:
                with contextlib.suppress(OSError, GpusimError):
                    if value := condition():
                        return value
                dead = next((n for n, p in self._running.items() if p.poll() is not None), None)
                if dead is not None:
                    raise DemoError(f"{dead} ended while waiting for {what}\n{self.tail(dead)}")
                time.sleep(0.05)
        raise DemoError(f"{what}: not within {seconds:g} s\n" + "\n".join(map(self.tail, self._running)))

    def tail(self, name: str) -> str:
        """The last lines of a process's log."""
        lines = (self.scratch / f"{name}.log").read_text(errors="replace").splitlines()[-8:]
        return "\n".join(f"  {name}: {line}" for line in lines)

    def logged(self, name: str, words: str) -> str | None:
        """The last log line of a process that holds these words."""
        lines = (self.scratch / f"{name}.log").read_text(errors="replace").splitlines()
        return next((line for line in reversed(lines) if words in line), None)


def node_and_cluster(stage: Stage, fixture: str, *, containers: bool = False) -> ApiClient:
    """Serve a fixture as a machine, with an API server and a kubelet beside it.

    Args:
        stage: where.
        fixture: name or path.
        containers: whether kubelet starts containers on the machine, as a vendor's container runtime needs.
    """
    console, scratch = stage.console, stage.scratch
    console.rule(f"a node: {fixture}")
    stage.start("machine", "gpusim", "serve", fixture, "--socket", f"{scratch}/node.sock")
    config = ["--kubeconfig", f"{scratch}/kubeconfig", "--node", NODE]
    stage.start("apiserver", "gpusim", "apiserver", "--port", "0", *config)
    stage.until("the machine's socket", (scratch / "node.sock").exists)
    stage.until("the API server's kubeconfig", (scratch / "kubeconfig").exists)
    cluster = yaml.safe_load((scratch / "kubeconfig").read_text())["clusters"][0]["cluster"]
    api = ApiClient(cluster["server"], agent="bin/demo")
    (scratch / "kubelet").mkdir()
    kubelet = ["--dir", f"{scratch}/kubelet", "--apiserver", api.url, "--node", NODE]
    if containers:
        kubelet += ["--machine", f"unix:{scratch}/node.sock"]
    stage.start("kubelet", "gpusim", "kubelet", *kubelet, "--pods-dir", f"{scratch}/pods")
    return api


def machine(stage: Stage) -> RemoteMachine:
    """The served machine."""
    return RemoteMachine(str(stage.scratch / "node.sock"))


def lay(stage: Stage, path: str, data: bytes, mode: int = 0o555) -> None:
    """Put a stand-in for a closed library on the simulated node, as the image or the installer would."""
    node = machine(stage)
    node.mkdir(path.rsplit("/", 1)[0])
    node.put(path, data, mode)


def allocatable(api: ApiClient, resource: str) -> int:
    """What kubelet reports the node has of a resource."""
    return int((api.get("nodes", NODE).get("status", {}).get("allocatable") or {}).get(resource, 0))


@contextlib.contextmanager
def stage_for(console: Console) -> Iterator[Stage]:
    """A stage in a temporary directory whose processes end with it, whatever happens."""
    with tempfile.TemporaryDirectory(prefix="gpusim-demo-") as scratch:
        stage = Stage(Path(scratch), console)
        try:
            yield stage
        finally:
            stage.stop_all()
