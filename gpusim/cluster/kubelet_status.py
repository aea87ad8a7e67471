"""What the kubelet writes to the API server: the node's status and a pod's, as merge patches.

Pure functions. Node: capacity and allocatable of plugin resources; a resource whose grace ended is set to 0;
other extended resources somebody published are copied into allocatable (kubelet v1.36
``pkg/kubelet/nodestatus``). Pod: phases, container statuses, and the health of allocated devices
(``allocatedResourcesStatus``, on by default in 1.36).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from typing import Any

from gpusim.cluster.kubelet_edits import Admission
from gpusim.cluster.kubelet_requests import Asking, containers
from gpusim.cluster.podcgroups import Layout, container_id
from gpusim.cluster.resourcenames import is_extended

Object = dict[str, Any]

BASE = {"cpu": "192", "memory": "2Ti", "pods": "250"}
"""Capacity of the simulated node beside its devices, where the node object does not say."""
Health = Callable[[str, str], str]
"""(resource, device id) → ``Healthy``, ``Unhealthy`` or ``Unknown``."""


def timestamp(seconds: float) -> str:
    """RFC 3339 with whole seconds, as metav1.Time."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def new_node(name: str) -> Object:
    """The node object a kubelet registers itself with."""
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}


def node_patch(
    node: Object,
    totals: Mapping[str, tuple[int, int]],
    removed: Collection[str],
    *,
    recreated: bool,
    now: float,
) -> Object | None:
    """The patch of ``/status`` that makes a node show what the device table says; None when it does.

    Args:
        node: as the API server has it.
        totals: resource → (capacity, allocatable).
        removed: resources whose grace ended.
        recreated: the kubelet found no checkpoint, so extended capacity of before is not true any more.
        now: unix seconds.
    """
    status = node.get("status") or {}
    capacity = {**BASE, **(status.get("capacity") or {})}
    if recreated:
        capacity = {r: "0" if is_extended(r) else amount for r, amount in capacity.items()}
    capacity.update(dict.fromkeys(removed, "0"))
    capacity.update({resource: str(amount) for resource, (amount, _) in totals.items()})
    allocatable = {**capacity, **{resource: str(amount) for resource, (_, amount) in totals.items()}}
    patch: Object = {}
    for field, wanted in (("capacity", capacity), ("allocatable", allocatable)):
        have = status.get(field) or {}
        changed = {r: amount for r, amount in wanted.items() if have.get(r) != amount}
        changed.update(dict.fromkeys(set(have) - set(wanted)))
        if changed:
            patch[field] = changed
    if not any(c.get("type") == "Ready" for c in status.get("conditions") or ()):
        patch["conditions"] = [
            *(status.get("conditions") or ()),
            {
                "type": "Ready",
                "status": "True",
                "reason": "KubeletReady",
                "message": "kubelet is posting ready status",
                "lastTransitionTime": timestamp(now),
            },
        ]
    return {"status": patch} if patch else None


def rejected(admission: Admission, now: float) -> Object:
    """Status of a pod that was not admitted."""
    return {
        "phase": "Failed",
        "reason": admission.reason,
        "message": f"Pod was rejected: {admission.message}",
        "startTime": timestamp(now),
    }


def accepted(
    pod: Object, admission: Admission, health: Health, now: float, layout: Layout | None = None
) -> Object:
    """Status of an admitted pod: Running, or Pending while something keeps a container from starting.

    `layout` gives containers the ids of the runtime it names; default containerd's.
    """
    since = (pod.get("status") or {}).get("startTime") or timestamp(now)
    up = not admission.waits
    statuses: dict[bool, list[Object]] = {True: [], False: []}
    images = {
        c["name"]: c.get("image", "")
        for field in ("initContainers", "containers")
        for c in pod["spec"].get(field) or ()
    }
    for one in containers(pod):
        statuses[one.init].append(
            _container(
                pod, one, images[one.name], admission=admission, health=health, since=since, layout=layout
            )
        )
    flag = "True" if up else "False"
    status: Object = {
        "phase": "Running" if up else "Pending",
        "startTime": since,
        "conditions": [
            {"type": kind, "status": value, "lastTransitionTime": since}
            for kind, value in (
                ("PodReadyToStartContainers", "True"),
                ("Initialized", flag),
                ("Ready", flag),
                ("ContainersReady", flag),
                ("PodScheduled", "True"),
            )
        ],
        "containerStatuses": statuses[False],
    }
    if statuses[True]:
        status["initContainerStatuses"] = statuses[True]
    return status


def _container(
    pod: Object,
    one: Asking,
    image: str,
    *,
    admission: Admission,
    health: Health,
    since: str,
    layout: Layout | None,
) -> Object:
    name, passing = one.name, one.passing
    identity = (layout or Layout()).identity(container_id(str(pod["metadata"]["uid"]), name))
    state: Object = {"running": {"startedAt": since}}
    waiting = _waiting(pod, one, admission)
    if waiting is not None:
        state = {"waiting": waiting}
    elif passing:
        ended = {"exitCode": 0, "reason": "Completed", "startedAt": since, "finishedAt": since}
        state = {"terminated": {**ended, "containerID": identity}}
    status: Object = {
        "name": name,
        "image": image,
        "imageID": image,
        "containerID": "" if waiting else identity,
        "ready": not waiting,
        "started": not waiting and not passing,
        "restartCount": 0,
        "state": state,
    }
    edits = admission.containers.get(name)
    if edits is not None and edits.ids:
        status["allocatedResourcesStatus"] = [
            {
                "name": resource,
                "resources": [
                    {"resourceID": id_, "health": health(resource, id_)} for id_ in edits.ids[resource]
                ],
            }
            for resource in sorted(edits.ids)
        ]
    return status


def _waiting(pod: Object, one: Asking, admission: Admission) -> Object | None:
    """Why a container does not run, in kubelet's words; None: nothing keeps it.

    StartContainer fails after the container was created, so the reason is RunContainerError; what comes
    after an init container that failed waits for it (pkg/kubelet/kuberuntime).
    """
    if admission.blocked:
        return {"reason": "CreateContainerConfigError", "message": admission.blocked}
    if admission.sandbox:
        return {"reason": "ContainerCreating"}
    if one.name in admission.failures:
        return {"reason": "RunContainerError", "message": admission.failures[one.name]}
    order = list(containers(pod))
    stuck = next((other for other in order if other.init and other.name in admission.failures), None)
    if stuck is not None and order.index(one) > order.index(stuck):
        return {"reason": "PodInitializing"}
    return None
