"""A node's surroundings for a real daemon process: kubelet, API server, and the process itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpusim.cluster.apiserver import ApiServer
from gpusim.cluster.kubelet import Kubelet
from gpusim.cluster.pods import Placed, container, place, pod

NODE = "node-1"
TOY = (sys.executable, str(Path(__file__).parent / "toyplugin.py"))


class Plugin:
    """One daemon process; its log lines are JSON objects in a file."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        self.log = log
        with log.open("wb") as stream:
            self.process = subprocess.Popen(
                list(command), env=dict(env), stdin=subprocess.DEVNULL, stdout=stream, stderr=stream
            )

    def lines(self) -> list[dict[str, Any]]:
        found = []
        for line in self.log.read_text().splitlines():
            try:
                found.append(json.loads(line))
            except json.JSONDecodeError:
                found.append({"event": line, "level": "raw"})
        return found

    def said(self, text: str) -> bool:
        return any(text in line["event"] for line in self.lines())

    def end(self, number: int = signal.SIGTERM, timeout: float = 10.0) -> int:
        """Send a signal to this one process and wait for it; its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(timeout)


class Rig:
    """A cluster of one node in this process, and plugin processes beside it; a context manager."""

    def __init__(
        self, command: Sequence[str] = TOY, env: Mapping[str, str] | None = None, **kubelet: Any
    ) -> None:
        # short: a socket path has 107 bytes, and pytest's own directories are deep
        self._directory = tempfile.TemporaryDirectory(prefix="rig")
        self.path = Path(self._directory.name)
        self.root = self.path / "root"
        self.root.mkdir()
        self.sockets = self.path / "dp"
        self.command, self.env = tuple(command), dict(env or {})
        self.server = ApiServer()
        self.store = self.server.store
        self.kubelet = Kubelet(self.sockets, node=NODE, **kubelet)
        self.plugins: list[Plugin] = []

    def __enter__(self) -> Rig:
        self.server.start()
        self.store.create("nodes", {"metadata": {"name": NODE}})
        self.server.kubeconfig(self.path / "kubeconfig")
        return self

    def __exit__(self, *exc: object) -> None:
        for plugin in self.plugins:
            if plugin.process.poll() is None:
                plugin.process.kill()
                plugin.process.wait()
        self.kubelet.stop()
        self.server.stop()
        self._directory.cleanup()

    def things(self, **things: str) -> None:
        """What the toy node has: name → text of its file, all at once."""
        folder = self.root / "toy"
        folder.mkdir(exist_ok=True)
        for name, text in things.items():
            (folder / name).write_text(text)

    def start(self, *flags: str, env: Mapping[str, str] | None = None) -> Plugin:
        """Start one plugin process on this node."""
        surroundings = {
            **{name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ},
            "HOME": str(self.path),
            "NODE_NAME": NODE,
            "KUBECONFIG": str(self.path / "kubeconfig"),
            **self.env,
            **(env or {}),
        }
        command = [*self.command, "-kubelet_dir", str(self.sockets), *flags]
        plugin = Plugin(command, surroundings, self.path / f"log-{len(self.plugins)}")
        self.plugins.append(plugin)
        return plugin

    def names(self) -> list[str]:
        """Plugin sockets that lie in kubelet's directory."""
        return sorted(path.name for path in self.sockets.glob("*.sock") if path.name != "kubelet.sock")

    def schedule(
        self, name: str, *slots: Sequence[Placed], resource: str, word: str, **more: Any
    ) -> dict[str, Any]:
        """Create a pod that asks for these devices, and do the scheduler's half."""
        containers = [
            container(f"c{i}", {resource: len(slot)} if slot else None) for i, slot in enumerate(slots)
        ]
        self.store.create("pods", pod(name, containers))
        return place(self.store, name, NODE, slots, word=word, **more)

    def pod(self, name: str) -> dict[str, Any]:
        return self.store.get("pods", name)

    def annotation(self, name: str, key: str) -> str | None:
        value: str | None = (self.pod(name)["metadata"].get("annotations") or {}).get(key)
        return value

    def node_annotation(self, key: str) -> str | None:
        value: str | None = (self.store.get("nodes", NODE)["metadata"].get("annotations") or {}).get(key)
        return value


def until(what: Callable[[], Any], seconds: float = 10.0, why: Callable[[], str] = lambda: "") -> Any:
    """Poll until it is true; the value."""
    end = time.monotonic() + seconds
    while not (value := what()):
        if time.monotonic() > end:
            raise TimeoutError(why() or f"not within {seconds} s")
        time.sleep(0.01)
    return value
