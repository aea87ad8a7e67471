"""The containers of admitted pods on a simulated node: their cgroups, and one process in each.

What kubelet and the container runtime do after admission, as far as a machine shows it: pod and container
groups (`gpusim.cluster.podcgroups`), and a process that may open exactly the devices its container was
given (kernel.md 6). Without a machine nothing of this happens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpusim.cluster import podcgroups
from gpusim.cluster.kubelet_edits import Edits
from gpusim.cluster.kubelet_requests import lasting
from gpusim.cluster.podcgroups import Layout
from gpusim.machine import Machine
from gpusim.nodes import Kind
from gpusim.process import DeviceRule, DeviceRules
from gpusim.remote import RemoteMachine

Object = dict[str, Any]

COMMON = (DeviceRule(1, 3), DeviceRule(1, 5), DeviceRule(1, 7), DeviceRule(1, 8), DeviceRule(1, 9))
"""null, zero, full, random, urandom: every runtime allows them."""


class PodProcesses:
    """Starts and ends the containers of one node.

    Args:
        machine: the node, of this process or served.
        layout: how it names cgroups.
    """

    def __init__(self, machine: Machine | RemoteMachine, layout: Layout) -> None:
        self.machine = machine
        self.layout = layout

    def start(self, pod: Object, containers: Mapping[str, Edits]) -> None:
        """Make the pod's groups and a process in each container that keeps running, and in the sandbox.

        Raises:
            OSError: what the machine's files answer.
        """
        made = podcgroups.create(self.machine, pod, lasting(pod), self.layout)
        for name, path in made.containers.items():
            rules = self._rules(containers[name]) if name in containers else DeviceRules(COMMON)
            self.machine.process(rules, cgroup=path)

    def end(self, pod: Object) -> None:
        """End everything of a pod. Fine when there is nothing."""
        podcgroups.remove_tree(self.machine, podcgroups.pod_path(pod, self.layout))

    def orphan(self, uid: str) -> None:
        """End everything of a pod of which only the uid is known. Fine when there is nothing."""
        for qos in podcgroups.QOS:
            podcgroups.remove_tree(self.machine, self.layout.pod(uid, qos))

    def clear(self) -> None:
        """The node rebooted: no pod's group or process is left."""
        top = f"{podcgroups.ROOT}{self.layout.kubepods}"
        try:
            names = self.machine.list(top)
        except FileNotFoundError:
            return
        for name in names:
            if self.machine.stat(f"{top}/{name}").kind is Kind.DIRECTORY:
                podcgroups.remove_tree(self.machine, f"{self.layout.kubepods}/{name}")

    def _rules(self, edits: Edits) -> DeviceRules:
        """The container's device cgroup: what its edits name and the host has."""
        found = list(COMMON)
        for node in edits.devices:
            rdev = self.machine.stat(node.host_path).rdev
            if rdev is not None:
                found.append(DeviceRule(*rdev, node.permissions))
        return DeviceRules(tuple(found))
