"""SIGHUP on an AMD node: a new mode and a new partition reach kubelet without a new process."""

from __future__ import annotations

import signal

import pytest

from ..devplugin.daemon.rig import NODE, until
from .support_node import GPU, Node

pytestmark = pytest.mark.daemon


def test_a_mode_and_a_partition_named_on_the_node_are_carried_out() -> None:
    with Node("mi355x/spx-6.14") as node:
        plugin = node.ready(80)
        annotations = {"hami.io/amd-operating-mode": "partition", "hami.io/amd-compute-partition": "qpx"}
        node.store.patch("nodes", NODE, {"metadata": {"annotations": annotations}})
        plugin.process.send_signal(signal.SIGHUP)
        assert node.kubelet.wait_for(lambda k: k.allocatable(GPU) == 32, timeout=20)
        until(lambda: plugin.said("operating mode: partition"))
        until(lambda: '"mode":"qpx"' in (node.node_annotation("hami.io/node-amd-register") or ""))
        assert plugin.process.poll() is None
        assert plugin.end() == 0
        assert node.names() == []
