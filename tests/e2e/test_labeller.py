"""The node labeller as a real process, on a served machine, against a served API server."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpusim.cluster.apifaults import Fault
from gpusim.cluster.apiserver import ApiServer
from gpusim.fixture import load
from gpusim.machine import Machine
from gpusim.serve import serve

from ..devplugin.daemon.rig import Plugin, until

pytestmark = pytest.mark.daemon

NODE = "node-a"
PROGRAM = (
    sys.executable,
    "-c",
    "import sys; from devplugin.launch import node_labeller as go; sys.exit(go())",
)
SHIPPED = ("-vram", "-cu-count", "-simd-count", "-device-id", "-family", "-product-name")
"""Arguments of the DaemonSet that comes with the labeller (amd.md 12)."""
FOREIGN = {"kubernetes.io/hostname": NODE, "amd.com/cpu": "zen5", "amd.com/gpu": "yes"}
STALE = {"amd.com/gpu.vram": "64G", "beta.amd.com/gpu.vram.64G": "8", "amd.com/gpu.firmware": "old"}


class Surroundings:
    """A cluster of one node and a served machine; labellers are processes beside it."""

    def __init__(self, path: Path, fixture: str = "mi355x/spx-6.14") -> None:
        self.path = path
        self.server = ApiServer()
        self.machine = Machine(load(fixture))
        self.served = serve(self.machine, str(path / "machine.sock"))
        self.processes: list[Plugin] = []

    def __enter__(self) -> Surroundings:
        self.server.start()
        self.served.start()
        self.server.store.create("nodes", {"metadata": {"name": NODE, "labels": {**FOREIGN, **STALE}}})
        self.server.kubeconfig(self.path / "kubeconfig")
        return self

    def __exit__(self, *exc: object) -> None:
        for plugin in self.processes:
            if plugin.process.poll() is None:
                plugin.process.kill()
                plugin.process.wait()
        self.served.stop()
        self.server.stop()

    def start(self, *flags: str) -> Plugin:
        surroundings = {
            **{name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ},
            "HOME": str(self.path),
            "DS_NODE_NAME": NODE,
            "KUBECONFIG": str(self.path / "kubeconfig"),
        }
        command = [*PROGRAM, "-simulate", f"unix:{self.path}/machine.sock", "-poll", "1", *(flags or SHIPPED)]
        plugin = Plugin(command, surroundings, self.path / f"log-{len(self.processes)}")
        self.processes.append(plugin)
        return plugin

    def labels(self) -> dict[str, str]:
        found: dict[str, str] | None = self.server.store.get("nodes", NODE)["metadata"].get("labels")
        return found or {}

    def patches(self) -> int:
        return sum(entry.verb == "patch" for entry in self.server.requests.entries("amd-node-labeller"))

    def label(self, name: str) -> str | None:
        return self.labels().get(f"amd.com/gpu.{name}")


@pytest.fixture
def around() -> Iterator[Surroundings]:
    with tempfile.TemporaryDirectory(prefix="lab") as path, Surroundings(Path(path)) as made:
        yield made


def test_labels_appear_stale_ones_go_and_foreign_ones_stay(around: Surroundings) -> None:
    labeller = around.start()
    until(lambda: around.label("vram") == "288G")
    found = around.labels()
    assert {name: found[name] for name in FOREIGN} == FOREIGN
    assert {
        name.removeprefix("amd.com/gpu."): v for name, v in found.items() if name.startswith("amd.com/gpu.")
    } == {
        "vram": "288G",
        "cu-count": "256",
        "simd-count": "1024",
        "device-id": "75a3",
        "family": "AI",
        "product-name": "AMD_Instinct_MI355X_OAM",
    }
    assert found["beta.amd.com/gpu.vram.288G"] == "8"
    assert "beta.amd.com/gpu.vram.64G" not in found
    assert around.server.requests.verbs("amd-node-labeller") == {("nodes", "get"), ("nodes", "patch")}
    assert labeller.end() == 0
    assert around.labels() == found, "the labels stay when it ends"


def test_labels_follow_a_switch_by_another_tool(around: Surroundings) -> None:
    around.start(*SHIPPED, "-compute-memory-partition")
    until(lambda: around.label("compute-memory-partition") == "spx_nps1")
    for bdf in list(around.machine.driver.gpus):
        around.machine.switch(bdf, "DPX")
    until(lambda: around.label("compute-memory-partition") == "dpx_nps1")
    until(lambda: around.label("vram") == "144G")
    assert around.labels()["beta.amd.com/gpu.cu-count.128"] == "16"
    assert not [name for name in around.labels() if "288G" in name or "spx" in name]


def test_a_restart_patches_nothing(around: Surroundings) -> None:
    first = around.start()
    until(lambda: around.label("vram") == "288G")
    assert first.end() == 0
    around.server.requests.clear()
    around.start()
    until(lambda: around.server.requests.entries("amd-node-labeller"))
    time.sleep(1.5)
    assert around.patches() == 0


def test_an_api_server_that_is_down_or_breaks_in_the_middle_is_waited_for(around: Surroundings) -> None:
    around.server.down()
    labeller = around.start()
    until(lambda: labeller.said("trying again"))
    around.server.faults.add(Fault(verb="patch", resource="nodes", nth=1, code=500))
    around.server.up()
    until(lambda: around.label("vram") == "288G")
    assert around.patches() == 2
    assert labeller.process.poll() is None


def test_a_node_that_joins_late_is_labelled_then(around: Surroundings) -> None:
    around.server.store.delete("nodes", NODE)
    labeller = around.start()
    until(lambda: labeller.said("HTTP 404"))
    around.server.store.create("nodes", {"metadata": {"name": NODE}})
    until(lambda: around.label("vram") == "288G")


def test_no_node_name_is_exit_1_and_an_unknown_flag_exit_2(tmp_path: Path) -> None:
    def run(*words: str) -> Any:
        env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
        if "PYTHONPATH" in os.environ:
            env["PYTHONPATH"] = os.environ["PYTHONPATH"]
        return subprocess.run(
            [*PROGRAM, *words], env=env, capture_output=True, text=True, check=False, timeout=60
        )

    unnamed = run("-vram")
    assert (unnamed.returncode, unnamed.stderr.count("\n")) == (1, 1)
    assert "DS_NODE_NAME" in unnamed.stderr
    assert run("-v4").returncode == 2
    assert run("-vram", "-dry_run", "-root", str(tmp_path)).stdout == "{}\n"
