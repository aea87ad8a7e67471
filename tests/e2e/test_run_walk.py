"""The guide's switch walk with the real daemon under `gpusim run`: it knows of /sys and /dev, not of us.

guide-amd.md, operating modes: drain the node, annotate it, restart the plugin, look at what can be allocated.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..devplugin.daemon.rig import NODE, until
from ..gpusim.private_mount import needs_fuse
from .support_node import COMMAND, GPU
from .support_node import Node as Simulated

pytestmark = pytest.mark.daemon


class Node(Simulated):
    """A node whose plugin is started as on a real one: ``-root /``, in the node's mount namespace."""

    def __init__(self) -> None:
        super().__init__(mode="cu", hook=False)
        served = f"unix:{self.path}/machine.sock"
        self.command = (sys.executable, "-m", "gpusim.cli", "run", served, "--", *COMMAND, "-root", "/")
        # What it would keep on the host's disk goes to the rig's: the mount namespace is for /sys and /dev.
        self.env["HOST_HOOK_PATH"] = str(self.path / "host")

    def health(self) -> dict[str, str]:
        """kubelet's ids → health."""
        return {device.id: device.health for device in self.kubelet.devices(GPU).values()}


@pytest.fixture
def node() -> Iterator[Node]:
    with Node() as made:
        yield made


@needs_fuse
def test_drain_annotate_restart_check_allocatable(node: Node) -> None:
    mounts = Path("/proc/self/mountinfo").read_text()
    plugin = node.ready(80)
    assert until(lambda: plugin.said("operating mode: cu"))
    assert set(node.health().values()) == {"Healthy"}
    assert not node.api.list("pods"), "drained"
    node.api.patch(
        "nodes",
        NODE,
        {
            "metadata": {
                "annotations": {
                    "hami.io/amd-operating-mode": "partition",
                    "hami.io/amd-compute-partition": "cpx",
                }
            }
        },
    )
    assert plugin.end(timeout=30) == 0
    plugin = node.ready(64)
    assert until(lambda: plugin.said("operating mode: partition"))
    assert {gpu.mode for gpu in node.machine.driver.gpus.values()} == {"CPX"}
    assert set(node.health().values()) == {"Healthy"}
    assert sum("switched: from spx to cpx" in line["event"] for line in plugin.lines()) == 8

    # "…only one GPU": by amd-smi, with the plugin down and no mode asked for.
    assert plugin.end(timeout=30) == 0
    node.machine.switch(next(iter(node.machine.driver.gpus)), "SPX")
    node.api.patch("nodes", NODE, {"metadata": {"annotations": {"hami.io/amd-compute-partition": None}}})
    plugin = node.ready(57)
    assert set(node.health().values()) == {"Healthy"}
    assert plugin.end(timeout=30) == 0
    assert Path("/proc/self/mountinfo").read_text() == mounts
