"""One node with cards of three vendors, a daemon for each, and pods that ask for all of them at once."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from gpusim.cluster.kubelet_edits import Edits
from gpusim.cluster.scheduler_vendors import AMD

from ..devplugin.daemon.rig import NODE, until
from .support_ascend import program
from .support_ppu import PHASE, PpuNode

pytestmark = pytest.mark.daemon

OTHERS = ("amd", "ascend")
GPU = {AMD.count: 1, AMD.memory: 4096, AMD.cores: 25}
KEYS = {
    "amd": ("hami.io/node-amd-register",),
    "ascend": ("hami.io/node-register-Ascend910B4", "hami.io/node-handshake-Ascend910B4", "hami-vnpu-core"),
    "ppu": ("hami.io/node-register-ppu", "hami.io/node-handshake-ppu"),
}
SLOTS = {
    "amd": "hami.io/amd-devices-to-allocate",
    "ascend": "hami.io/Ascend910B4-devices-to-allocate",
    "ppu": "hami.io/ppu-devices-to-allocate",
}


@pytest.fixture
def make() -> Iterator[Callable[..., PpuNode]]:
    with ExitStack() as stack:
        yield lambda **named: stack.enter_context(PpuNode("mixed/three-vendors", others=OTHERS, **named))


Make = Callable[..., PpuNode]


def npu(node: PpuNode) -> dict[str, int]:
    return {node.npu.count: 1, node.npu.memory: 8000}


def told(node: PpuNode) -> dict[str, Any]:
    """What each vendor's cards are to the scheduler."""
    return {name: json.loads(node.node_annotation(keys[0]) or "[]") for name, keys in KEYS.items()}


def vendors_of(edits: Edits) -> set[str]:
    """Whose devices a container can reach, by what only that vendor gives."""
    marks = {"amd": "HIP_VISIBLE_DEVICES", "ascend": "ASCEND_VISIBLE_DEVICES", "ppu": "HGGC_LEDGER_PATH"}
    return {name for name, mark in marks.items() if mark in edits.envs}


def test_every_daemon_registers_its_own_cards_and_no_others(make: Make) -> None:
    node = make()
    found = told(node)
    assert {name: len(cards) for name, cards in found.items()} == {"amd": 1, "ascend": 1, "ppu": 1}
    assert found["ppu"][0]["id"] == next(iter(node.machine.ppus)).uuid
    assert found["ascend"][0]["id"] == next(iter(node.machine.npus)).uuid
    for resource in (AMD.count, node.npu.count, node.row.count):
        assert node.kubelet.allocatable(resource) == node.kubelet.capacity(resource) > 0
    sockets = {name.partition("_")[0] for name in node.names()}
    assert sockets == {"amd.com", "huawei.com", "alibaba.com"}


def test_one_pod_gets_devices_of_all_three_in_one_container_and_in_three(make: Make) -> None:
    node = make()
    node.create("one", {**GPU, **npu(node), **node.ppus(memory=1000, cores=10)})
    edits = node.runs("one", 60)
    assert vendors_of(edits["c0"]) == {"amd", "ascend", "ppu"}
    assert edits["c0"].conflicts == ()
    assert node.cards(edits["c0"])[0][1] == 1000
    node.create("three", GPU, node.ppus(memory=2000, cores=10), npu(node))
    edits = node.runs("three", 60)
    assert [vendors_of(edits[name]) for name in ("c0", "c1", "c2")] == [{"amd"}, {"ppu"}, {"ascend"}]
    assert node.cards(edits["c1"])[0][1] == 2000
    for name in ("one", "three"):
        assert node.annotation(name, PHASE) == "success"
        assert all(not set(node.annotation(name, key) or "") - set(";") for key in SLOTS.values())
    assert node.unlocked()
    assert [one for one in node.events() if one[0] == "AllocateRefused"] == []


def test_one_vendor_that_refuses_fails_the_pod_and_leaves_nothing_of_it(make: Make) -> None:
    node = make(hook=False)
    node.create("p", GPU, npu(node), node.ppus(memory=1000))
    assert "nothing would limit" in node.fails("p")
    assert node.unlocked()
    node.delete("p")
    node.create("q", {**GPU, **npu(node)})
    assert vendors_of(node.runs("q", 60)["c0"]) == {"amd", "ascend"}


@pytest.mark.parametrize("victim", ["ppu", "amd", "ascend"])
def test_a_daemon_that_dies_disturbs_no_other_vendor_and_comes_back(make: Make, victim: str) -> None:
    node = make()
    asked = {"amd": GPU, "ascend": npu(node), "ppu": node.ppus(memory=1000)}
    before = told(node)
    node.daemons[victim].end(signal.SIGKILL)
    others = {name: limits for name, limits in asked.items() if name != victim}
    node.create("p", *others.values())
    edits = node.runs("p", 60)
    assert [vendors_of(edits[f"c{i}"]) for i in range(2)] == [{name} for name in others]
    assert {name: told(node)[name] for name in others} == {name: before[name] for name in others}
    node.daemons[victim] = getattr(node, f"launch_{victim}")()
    until(lambda: told(node) == before)
    node.believed()
    node.create("q", asked[victim])
    assert vendors_of(node.runs("q", 60)["c0"]) == {victim}
    assert node.unlocked()


def test_what_one_vendors_uninstall_removes_is_its_own(make: Make) -> None:
    node = make()
    files = {
        "ppu": (f"--config-file={node.path}/device-config.yaml",),
        "ascend": (f"--config_file={node.path}/device-config.yaml",),
        "amd": (),
    }
    for name, flags in files.items():
        node.daemons.pop(name).end()
        command = (*program(f"{name}_device_plugin"), "-simulate", f"unix:{node.socket}", "-cleanup")
        done = subprocess.run(
            [*command, "-kubelet_dir", str(node.sockets), *flags],
            env={"NODE_NAME": NODE, "KUBECONFIG": f"{node.path}/kubeconfig", "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        gone = {key for key in KEYS[name] if node.node_annotation(key) is None}
        assert gone == set(KEYS[name]), done.stdout
        left = [key for other in node.daemons for key in KEYS[other]]
        assert all(node.node_annotation(key) for key in left)


def test_a_late_driver_of_one_vendor_keeps_no_other_waiting(make: Make) -> None:
    node = make()
    node.machine.ppu_unload()
    node.create("p", {**GPU, **npu(node)})
    assert vendors_of(node.runs("p", 60)["c0"]) == {"amd", "ascend"}
    node.machine.ppu_load()
    node.create("q", node.ppus(memory=1000))
    assert vendors_of(node.runs("q", 60)["c0"]) == {"ppu"}
