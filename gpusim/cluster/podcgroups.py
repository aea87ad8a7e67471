"""The cgroups of pods, as kubelet and a container runtime make them on a node.

Names by cgroup driver, runtime, ``--cgroup-root`` and nesting (kernel.md 5; kubelet `ToSystemd` and
`ToCgroupfs` in cm/cgroup_manager_linux.go). Controllers are handed down along the path as runc's library
does it for kubelet too: it writes ``+`` for every controller of the root, one by one where all together fail
(kernel.md 4.5; libcontainer cgroups/fs2/create.go). Everything goes through files, so a served machine will
do as well.
"""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from gpusim.cluster.apivalidate import qos
from gpusim.errors import GpusimError
from gpusim.nodes import Kind, Stat

Object = dict[str, Any]

ROOT = "/sys/fs/cgroup"
DRIVERS = ("systemd", "cgroupfs")
QOS = ("Guaranteed", "Burstable", "BestEffort")
KUBELETS = ("cpuset", "cpu", "memory", "hugetlb", "pids")
"""Controllers kubelet itself manages: all that a runtime hands down which does not do as runc does."""
PAUSE = "POD"
"""The sandbox under which kubelet's world names it."""


@dataclass(frozen=True, slots=True)
class _Runtime:
    scope: str
    """Before the id in a systemd scope."""
    group: str
    """Before the id under the cgroupfs driver."""
    scheme: str
    """Of a containerID in a pod's status."""
    monitor: str = ""
    """Before the id in the scope of the process that watches a container."""


RUNTIMES = {
    "containerd": _Runtime("cri-containerd-", "", "containerd://"),
    "cri-o": _Runtime("crio-", "crio-", "cri-o://", "crio-conmon-"),
    "cri-dockerd": _Runtime("docker-", "", "docker://"),
}


class Node(Protocol):
    """What is needed of a machine, of this process or served."""

    def read(self, path: str) -> bytes:
        """Content of a file."""
        ...

    def write(self, path: str, data: bytes) -> int:
        """One write(2)."""
        ...

    def list(self, path: str) -> Sequence[str]:
        """Names in a directory."""
        ...

    def stat(self, path: str) -> Stat:
        """What is at a path."""
        ...

    def mkdir(self, path: str, mode: int = 0o755) -> None:
        """A directory and its parents."""
        ...

    def rmdir(self, path: str) -> None:
        """Remove a cgroup."""
        ...

    def kill(self, cgroup: str) -> None:
        """End every process in a cgroup and below it."""
        ...


@dataclass(frozen=True, slots=True)
class Layout:
    """How a node names the cgroups of its pods. All paths are below /sys/fs/cgroup, as the host sees them."""

    driver: str = "systemd"
    """kubelet's cgroup driver, ``systemd`` or ``cgroupfs``."""
    runtime: str = "containerd"
    """``containerd``, ``cri-o`` or ``cri-dockerd``."""
    cgroup_root: str = ""
    """kubelet's ``--cgroup-root``, ``/kubelet`` in kind."""
    node: str = ""
    """Cgroup of the container that is the node, ``/system.slice/docker-<id>.scope``; empty on a host."""
    hands_down: bool = True
    """Every controller is handed down along the path, as runc does; else only those kubelet manages."""

    def __post_init__(self) -> None:
        if self.driver not in DRIVERS or self.runtime not in RUNTIMES:
            known = f"{', '.join(DRIVERS)}; {', '.join(RUNTIMES)}"
            raise GpusimError(f"cgroup driver {self.driver!r}, runtime {self.runtime!r}: known are {known}")

    @property
    def kubepods(self) -> str:
        """The group of all pods."""
        return self._path()

    def pod(self, uid: str, qos: str) -> str:
        """The group of a pod; `qos` is one of `QOS`, and Guaranteed pods have no level of their own."""
        level = [] if qos == QOS[0] else [qos.lower()]
        return self._path(*level, f"pod{uid}")

    def container(self, pod: str, id_: str) -> str:
        """The group of a container or sandbox in the pod group `pod`."""
        runtime = RUNTIMES[self.runtime]
        if self.driver == "systemd":
            return f"{pod}/{runtime.scope}{id_}.scope"
        return f"{pod}/{runtime.group}{id_}"

    def identity(self, id_: str) -> str:
        """The containerID a pod's status carries."""
        return f"{RUNTIMES[self.runtime].scheme}{id_}"

    def _path(self, *parts: str) -> str:
        names = [*filter(None, self.cgroup_root.split("/")), "kubepods", *parts]
        if self.driver == "systemd":
            # each slice's name repeats its ancestors', dashes of a part's own become underscores
            escaped = [name.replace("-", "_") for name in names]
            names = ["-".join(escaped[: end + 1]) + ".slice" for end in range(len(escaped))]
        above = self.node.strip("/")
        return "/" + "/".join([above, *names] if above else names)


@dataclass(frozen=True, slots=True)
class PodGroups:
    """What `create` made."""

    uid: str
    path: str
    """The pod's group, ``/kubepods.slice/…``."""
    layout: Layout
    containers: Mapping[str, str] = field(default_factory=dict)
    """Container name → its group; the sandbox is `PAUSE`."""
    ids: Mapping[str, str] = field(default_factory=dict)
    """Container name → 64 hexadecimal digits."""

    def identity(self, name: str) -> str:
        """The containerID of a container, as ``containerd://<id>``."""
        return self.layout.identity(self.ids[name])


def qos_class(pod: Object) -> str:
    """A pod's QoS class: its status says, else CPU and memory of its containers decide."""
    told = (pod.get("status") or {}).get("qosClass")
    if told:
        return str(told)
    spec = pod.get("spec") or {}
    return qos(
        {key: [_defaulted(c) for c in spec.get(key) or ()] for key in ("initContainers", "containers")}
    )


def _defaulted(container: Object) -> Object:
    """A request that is not named is its limit, as the API server fills it in."""
    resources = container.get("resources") or {}
    limits = resources.get("limits") or {}
    requests = {**limits, **(resources.get("requests") or {})}
    return {**container, "resources": {"limits": limits, "requests": requests}}


def container_id(uid: str, name: str, attempt: int = 0) -> str:
    """A container's id: 64 hexadecimal digits, the same for the same pod, name and start."""
    return hashlib.sha256(f"{uid}/{name}/{attempt}".encode()).hexdigest()


def pod_path(pod: Object, layout: Layout) -> str:
    """Where the group of a pod object is."""
    return layout.pod(str(pod["metadata"]["uid"]), qos_class(pod))


def create(
    machine: Node,
    pod: Object,
    containers: Iterable[str] | Mapping[str, str] | None = None,
    layout: Layout | None = None,
    *,
    pause: bool = True,
) -> PodGroups:
    """Make the groups of a pod: its own, the sandbox's and one for each container.

    Args:
        machine: the node.
        pod: object with ``metadata.uid``.
        containers: names, or name → id; None: all that the pod's spec names, init containers first.
        layout: how the node names them; None: systemd and containerd.
        pause: the sandbox has a group.

    Raises:
        OSError: what the machine's files answer.
    """
    layout = layout or Layout()
    uid = str(pod["metadata"]["uid"])
    made = PodGroups(uid, pod_path(pod, layout), layout)
    enter(machine, made.path, layout)
    if containers is None:
        spec = pod.get("spec") or {}
        containers = [c["name"] for key in ("initContainers", "containers") for c in spec.get(key) or ()]
    names = containers if isinstance(containers, Mapping) else {n: container_id(uid, n) for n in containers}
    if pause:
        made = start(machine, made, PAUSE)
    for name, id_ in names.items():
        made = start(machine, made, name, id_)
    return made


def start(machine: Node, pod: PodGroups, name: str, id_: str | None = None) -> PodGroups:
    """Make the group of one more container, or of a container's next start.

    What was limited on the pod's group holds for it, what was on the container's former one does not
    (kernel.md 5).
    """
    id_ = id_ or container_id(pod.uid, name)
    path = pod.layout.container(pod.path, id_)
    enter(machine, path, pod.layout)
    monitor = RUNTIMES[pod.layout.runtime].monitor
    if monitor and pod.layout.driver == "systemd":
        enter(machine, f"{pod.path}/{monitor}{id_}.scope", pod.layout)
    return PodGroups(pod.uid, pod.path, pod.layout, {**pod.containers, name: path}, {**pod.ids, name: id_})


def systemd_inside(machine: Node, container: str, layout: Layout | None = None) -> tuple[str, str]:
    """The groups systemd makes below a container's that runs it; returns ``init.scope``'s and the slice's."""
    below = (f"{container}/init.scope", f"{container}/system.slice")
    for path in below:
        enter(machine, path, layout or Layout())
    return below


def enter(machine: Node, path: str, layout: Layout) -> None:
    """Make a group and its parents, handing controllers down to it from the root on."""
    known = machine.read(f"{ROOT}/cgroup.controllers").decode().split()
    wanted = [name for name in known if layout.hands_down or name in KUBELETS]
    current = ROOT
    for name in path.strip("/").split("/"):
        _hand_down(machine, f"{current}/cgroup.subtree_control", wanted)
        current = f"{current}/{name}"
        machine.mkdir(current)


def _hand_down(machine: Node, control: str, names: Sequence[str]) -> None:
    if set(names) <= set(machine.read(control).decode().split()):
        return  # saves a write that changes nothing
    try:
        machine.write(control, " ".join(f"+{name}" for name in names).encode())
    except OSError:
        for name in names:
            with suppress(OSError):
                machine.write(control, f"+{name}".encode())


def stop(machine: Node, pod: PodGroups, name: str) -> PodGroups:
    """End a container: its processes and its groups go, what was charged in them with the processes."""
    remove_tree(machine, pod.containers[name])
    monitor = RUNTIMES[pod.layout.runtime].monitor
    if monitor:
        remove_tree(machine, f"{pod.path}/{monitor}{pod.ids[name]}.scope")
    return PodGroups(
        pod.uid,
        pod.path,
        pod.layout,
        {n: path for n, path in pod.containers.items() if n != name},
        {n: id_ for n, id_ in pod.ids.items() if n != name},
    )


def remove(machine: Node, pod: PodGroups) -> None:
    """End a pod: everything in its group, and the group. Fine when it is gone."""
    remove_tree(machine, pod.path)


def remove_tree(machine: Node, path: str) -> None:
    """End every process in a group and below it, and remove all of it, leaves first. Fine when it is gone."""
    try:
        machine.kill(path)
        _remove(machine, f"{ROOT}/{path.strip('/')}")
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise


def _remove(machine: Node, directory: str) -> None:
    for name in machine.list(directory):
        if machine.stat(f"{directory}/{name}").kind is Kind.DIRECTORY:
            _remove(machine, f"{directory}/{name}")
    machine.rmdir(directory)
