"""The containers of admitted pods on a simulated node: their cgroups, and one process in each.

What kubelet and the container runtime do after admission, as far as a machine shows it: pod and container
groups (`gpusim.cluster.podcgroups`), and a process that may open exactly the devices its container was
given (kernel.md 6). A pod that names a RuntimeClass is started by that handler, which may give it more, or
fail. Without a machine nothing of this happens.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpusim.cluster import podcgroups
from gpusim.cluster.containerruntimes import ContainerRuntime
from gpusim.cluster.kubelet_edits import Edits
from gpusim.cluster.kubelet_requests import Asking, containers, uid
from gpusim.cluster.podcgroups import Layout, container_id
from gpusim.errors import GpusimError
from gpusim.machine import Machine
from gpusim.nodes import Kind
from gpusim.process import DeviceRule, DeviceRules
from gpusim.remote import RemoteMachine

Object = dict[str, Any]

COMMON = (DeviceRule(1, 3), DeviceRule(1, 5), DeviceRule(1, 7), DeviceRule(1, 8), DeviceRule(1, 9))
"""null, zero, full, random, urandom: every runtime allows them."""

_CREATE_FAILED = (
    "failed to create containerd task: failed to create shim task: OCI runtime create failed: "
    "runc create failed: unable to start container process"
)
"""What containerd and runc put before a hook's own words."""


@dataclass(slots=True)
class Outcome:
    """How far the start of a pod came.

    Attributes:
        running: containers that run, those that ran before too.
        failures: container → why it could not be started; those after an init container were not tried.
        sandbox: why not even the sandbox could be made.
    """

    running: list[str] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    sandbox: str = ""


class PodProcesses:
    """Starts and ends the containers of one node.

    Args:
        machine: the node, of this process or served.
        layout: how it names cgroups.
        runtimes: handlers of RuntimeClasses by name, which are the classes' names too.
    """

    def __init__(
        self,
        machine: Machine | RemoteMachine,
        layout: Layout,
        runtimes: Mapping[str, ContainerRuntime] | None = None,
    ) -> None:
        self.machine = machine
        self.layout = layout
        self._runtimes = dict(runtimes or {})

    def start(self, pod: Object, edits: Mapping[str, Edits], running: Collection[str] = ()) -> Outcome:
        """Make the pod's groups and a process in each container that keeps running, and in the sandbox.

        Args:
            pod: the pod object.
            edits: what plugins gave each container.
            running: containers that run already and are left alone; init containers have passed then.

        Raises:
            OSError: what the machine's files answer.
        """
        handler = (pod.get("spec") or {}).get("runtimeClassName") or ""
        if handler and handler not in self._runtimes:
            # containerd's words, internal/cri/server/podsandbox
            return Outcome(sandbox=f'failed to get sandbox runtime: no runtime for "{handler}" is configured')
        runtime = self._runtimes.get(handler)
        outcome = Outcome(list(running))
        made = podcgroups.create(self.machine, pod, (), self.layout)
        pause = made.containers[podcgroups.PAUSE]
        if not self.machine.read(f"{podcgroups.ROOT}{pause}/cgroup.procs"):  # else it is there from before
            self.machine.process(DeviceRules(COMMON), cgroup=pause)
        for one in containers(pod):
            if one.name in running or (one.passing and running):
                continue
            try:
                given = self._start(pod, one, edits.get(one.name, Edits()), runtime)
            except GpusimError as error:
                outcome.failures[one.name] = f"{_CREATE_FAILED}: {error}"
                if one.init:
                    break
                continue
            if one.passing:
                self._stop(pod, [one.name], runtime)
                continue
            made = podcgroups.start(self.machine, made, one.name)
            rules = self._rules(edits.get(one.name, Edits()), given)
            self.machine.process(rules, cgroup=made.containers[one.name])
            outcome.running.append(one.name)
        return outcome

    def _start(
        self, pod: Object, one: Asking, edits: Edits, runtime: ContainerRuntime | None
    ) -> tuple[str, ...]:
        """What the handler gives a container: paths of device nodes."""
        if runtime is None:
            return ()
        # The pod's own variables come after the plugins' and win (kubelet's GenerateRunContainerOptions).
        environ = {**edits.envs, **_variables(pod, one.name)}
        return runtime.start(container_id(uid(pod), one.name), environ, edits.mounts).devices

    def end(self, pod: Object) -> None:
        """End everything of a pod. Fine when there is nothing."""
        handler = (pod.get("spec") or {}).get("runtimeClassName") or ""
        self._stop(pod, [one.name for one in containers(pod)], self._runtimes.get(handler))
        podcgroups.remove_tree(self.machine, podcgroups.pod_path(pod, self.layout))

    def orphan(self, pod_uid: str, names: Iterable[str]) -> None:
        """End everything of a pod of which only uid and containers are known. Fine when there is nothing."""
        for name in names:
            for runtime in self._runtimes.values():
                runtime.stop(container_id(pod_uid, name))
        for qos in podcgroups.QOS:
            podcgroups.remove_tree(self.machine, self.layout.pod(pod_uid, qos))

    def _stop(self, pod: Object, names: Iterable[str], runtime: ContainerRuntime | None) -> None:
        if runtime is not None:
            for name in names:
                runtime.stop(container_id(uid(pod), name))

    def clear(self) -> None:
        """The node rebooted: no pod's group or process is left."""
        for runtime in self._runtimes.values():
            runtime.clear()
        top = f"{podcgroups.ROOT}{self.layout.kubepods}"
        try:
            names = self.machine.list(top)
        except FileNotFoundError:
            return
        for name in names:
            if self.machine.stat(f"{top}/{name}").kind is Kind.DIRECTORY:
                podcgroups.remove_tree(self.machine, f"{self.layout.kubepods}/{name}")

    def _rules(self, edits: Edits, given: Iterable[str]) -> DeviceRules:
        """The container's device cgroup: what its edits and its handler name and the host has."""
        found = list(COMMON)
        nodes = [(node.host_path, node.permissions) for node in edits.devices]
        for path, permissions in (*nodes, *((path, "rwm") for path in given)):
            rdev = self.machine.stat(path).rdev
            if rdev is not None:
                found.append(DeviceRule(*rdev, permissions))
        return DeviceRules(tuple(found))


def _variables(pod: Object, container: str) -> dict[str, str]:
    """The variables a pod's spec sets for a container by value."""
    spec = pod.get("spec") or {}
    return {
        env["name"]: str(env.get("value", ""))
        for key in ("initContainers", "containers")
        for one in spec.get(key) or ()
        if one["name"] == container
        for env in one.get("env") or ()
        if "valueFrom" not in env
    }
