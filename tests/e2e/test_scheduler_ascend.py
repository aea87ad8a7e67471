"""Whole lives of Ascend pods: registered by a real daemon, scheduled, allocated, deleted, free again.

The scheduler believes what the daemon registers through their handshake (ascend_ppu_hami.md D.3). AMD's
daemon serves the same node, and one pod asks for both.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import pytest
import yaml

from gpusim.cluster.kubelet_edits import Edits
from gpusim.cluster.scheduler_ascend import MODE_KEY, ascend_vendors, shipped
from gpusim.cluster.scheduler_vendors import AMD
from gpusim.fixture import load
from gpusim.machine import Machine
from gpusim.serve import serve

from ..devplugin.daemon.rig import NODE, Plugin, until
from .test_scheduler_lives import Cluster

pytestmark = pytest.mark.daemon

WORD = "Ascend910B4"
ROW = next(row for row in ascend_vendors() if row.word == WORD)
GPU = {"amd.com/gpu": 1, "amd.com/gpumem": 4096, "amd.com/gpucores": 25}
NPU = {ROW.count: 1, ROW.memory: 8000}
CARD = {ROW.count: 1}
SOFT = {MODE_KEY: "hami-core"}
ASSETS = "/usr/local/hami-vnpu-core-assets"
"""In the plugin's image: the runtime library it installs on soft nodes (A.6)."""
ASCEND = (
    sys.executable,
    "-c",
    "import sys; from devplugin.launch import ascend_device_plugin as go; sys.exit(go())",
)


class Both(Cluster):
    """A node with an MI355X and four 910B4, a daemon for each, and a scheduler that knows both."""

    def __init__(self, *, soft: bool = False, **scheduler: Any) -> None:
        settings = {"vendors": (AMD, *ascend_vendors(shipped(soft=soft))), **scheduler}
        super().__init__(**settings)
        self.npus = Machine(load("ascend/910b4"))
        self.npus.mkdir(ASSETS)
        for name, text in (("libvnpu.so", b"\x7fELF"), ("ld.so.preload", b"/hami-vnpu-core/libvnpu.so\n")):
            self.npus.put(f"{ASSETS}/{name}", text)
        self.server_of_npus = serve(self.npus, str(self.path / "npus.sock"))
        self.config = self.path / "device-config.yaml"
        self.config.write_text(yaml.safe_dump(shipped(soft=soft)))
        self.nodes = self.path / "node-config.yaml"
        self.nodes.write_text("nodes: []\n")

    def __enter__(self) -> Both:
        self.server_of_npus.start()
        with ExitStack() as undo:
            undo.callback(self.server_of_npus.stop)
            super().__enter__()
            undo.callback(super().__exit__, None, None, None)
            self.ascend = self.launch_ascend()
            until(lambda: self.scheduler.devices.get(NODE, {}).get(WORD))
            undo.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        super().__exit__(*exc)
        self.server_of_npus.stop()

    def launch_ascend(self) -> Plugin:
        amd, self.command = self.command, (*ASCEND, "-simulate", f"unix:{self.path}/npus.sock")
        try:
            files = ("--config_file", str(self.config), "--node_config_file", str(self.nodes))
            plugin = self.start(*files)
        finally:
            self.command = amd
        until(lambda: self.kubelet.allocatable(ROW.count) > 0, 20, lambda: str(plugin.lines()[-8:]))
        return plugin

    def cards(self) -> int:
        return len(self.npus.spec.npus)

    def phys(self, edits: Mapping[str, Edits]) -> dict[str, str]:
        return {name: one.envs.get("ASCEND_VISIBLE_DEVICES", "") for name, one in edits.items()}


@pytest.fixture
def make() -> Iterator[Callable[..., Both]]:
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(Both(**settings))


def test_template_pods_fill_every_card_and_what_is_deleted_is_free(make: Callable[..., Both]) -> None:
    both = make()
    shares = 4 * both.cards()
    for number in range(shares):
        both.create(f"p{number}", NPU)
    given = [both.runs(f"p{number}", 60)["c0"].envs for number in range(shares)]
    assert {envs["ASCEND_VNPU_SPECS"] for envs in given} == {"vir05_1c_8g"}
    counted = [envs["ASCEND_VISIBLE_DEVICES"] for envs in given]
    assert {phy: counted.count(phy) for phy in counted} == dict.fromkeys(set(counted), 4)
    assert len(set(counted)) == both.cards()
    both.create("late", NPU)
    until(lambda: both.said("unplaced", "late"))
    assert both.phase("late") == "Pending"
    both.delete("p0")
    assert both.runs("late")["c0"].envs["ASCEND_VISIBLE_DEVICES"] == counted[0]
    assert both.unlocked()


def test_one_pod_of_both_vendors_gets_both_and_the_lock_is_free_afterwards(
    make: Callable[..., Both],
) -> None:
    both = make()
    both.create("p", {**GPU, **NPU}, None, {**NPU})
    edits = both.runs("p", 30)
    assert edits["c0"].envs["HIP_VISIBLE_DEVICES"] == "0"
    assert both.phys(edits)["c0"].isdigit()
    assert both.phys(edits)["c1"] == ""
    assert "HIP_VISIBLE_DEVICES" not in edits["c2"].envs
    assert both.phys(edits)["c2"].isdigit()
    assert both.unlocked()
    assert both.annotation("p", "hami.io/bind-phase") == "success"
    both.create("q", GPU)
    both.create("r", CARD)
    assert both.phys(both.runs("r", 30))["c0"] not in set(both.phys(edits).values())
    both.runs("q", 30)
    assert both.unlocked()


def test_a_registration_that_the_plugin_did_not_report_is_not_read(make: Callable[..., Both]) -> None:
    both = make()
    registered = json.loads(str(both.node_annotation(ROW.register)))
    assert len(registered) == both.cards()
    until(lambda: str(both.node_annotation(ROW.handshake)).startswith("Requesting_"))
    believed = both.scheduler.devices[NODE][WORD]
    # somebody rewrites the registration: without the handshake nobody looks
    cut = json.dumps(registered[:1])
    both.store.patch("nodes", NODE, {"metadata": {"annotations": {ROW.register: cut}}})
    both.scheduler.refresh()
    assert both.scheduler.devices[NODE][WORD] == believed


def test_soft_pods_share_a_card_by_percent_and_memory(make: Callable[..., Both]) -> None:
    both = make(soft=True)
    for number in range(3):
        limits = {ROW.count: 1, ROW.memory: 10000, ROW.cores: 30}
        both.create(f"p{number}", limits, annotations={**SOFT, "hami.io/gpu-scheduler-policy": "binpack"})
    given = [both.runs(f"p{number}", 30)["c0"].envs for number in range(3)]
    assert {envs["NPU_MEM_QUOTA"] for envs in given} == {"10000"}
    assert {envs["NPU_PRIORITY"] for envs in given} == {"30"}
    assert len({envs["ASCEND_VISIBLE_DEVICES"] for envs in given}) == 1
    assert not any("ASCEND_VNPU_SPECS" in envs for envs in given)


def test_g1_pods_created_together_get_each_their_own_template(make: Callable[..., Both]) -> None:
    both = make()
    sizes = {"small": (8000, "vir05_1c_8g"), "large": (16000, "vir10_3c_16g"), "whole": (32768, None)}
    for name, (memory, _) in sizes.items():
        for number in range(2):
            both.create(f"{name}{number}", {ROW.count: 1, ROW.memory: memory})
    for name, (_, template) in sizes.items():
        for number in range(2):
            envs = both.runs(f"{name}{number}", 30)["c0"].envs
            assert envs.get("ASCEND_VNPU_SPECS") == template
    assert both.unlocked()
