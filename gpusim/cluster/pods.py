"""Pod objects, and what a HAMi scheduler writes when it places one.

The demo and the end-to-end tests need pods that arrive at a node as they do in a cluster: annotated,
locked and bound. This is the writing half of a scheduler only: the caller names the devices and
nothing is fitted or scored. Keys, grammar and order of the writes: ascend_ppu_hami.md D.4, D.5, D.7
and D.8. The encoder is our own, so that it can be compared with the plugin's.
"""

from __future__ import annotations

import time
import uuid as uuids
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gpusim.cluster.apiport import Api
from gpusim.cluster.apistatus import ApiError
from gpusim.errors import GpusimError

Object = dict[str, Any]

LOCK = "hami.io/mutex.lock"
"""Node annotation ``<RFC 3339 time>,<namespace>,<pod>`` (D.7)."""
VGPU_NODE = "hami.io/vgpu-node"
VGPU_TIME = "hami.io/vgpu-time"
BIND_PHASE = "hami.io/bind-phase"
BIND_TIME = "hami.io/bind-time"
_INT32 = 1 << 31
_LOCK_TRIES = 5
_LOCK_PAUSE = 0.1
"""Seconds; doubles (D.7)."""


class PlacementError(GpusimError):
    """A pod could not be placed: the node is locked by another, or a device cannot be written."""


@dataclass(frozen=True, slots=True)
class Placed:
    """One device of one container as the scheduler writes it: ``id,type,MiB,cores``."""

    id: str
    type: str
    memory_mib: int
    cores: int
    """Compute units for AMD (D.10), percent for the other vendors."""


def to_allocate_key(word: str) -> str:
    """``hami.io/<word>-devices-to-allocate``; `word` is ``amd``, ``Ascend910B4``, ``ppu``, … (D.1)."""
    return f"hami.io/{word}-devices-to-allocate"


def allocated_key(word: str) -> str:
    """``hami.io/<word>-devices-allocated``: the same value, never erased (D.4)."""
    return f"hami.io/{word}-devices-allocated"


def encode(slots: Sequence[Sequence[Placed]]) -> str:
    """Slots of all containers, init containers first, in the grammar of D.5.

    Every device ends in ``:`` and every container in ``;``; a container without devices is the bare
    ``;``.

    Raises:
        PlacementError: an id or type holds a character of the grammar or is empty, or a number does
            not fit a non-negative int32.
    """
    return "".join("".join(f"{_device(d)}:" for d in slot) + ";" for slot in slots)


def _device(device: Placed) -> str:
    for text in (device.id, device.type):
        if not text or any(c in text for c in ",:;"):
            raise PlacementError(
                f"{text!r} cannot be written: ids and types are not empty and hold none of , : ;"
            )
    for number in (device.memory_mib, device.cores):
        if not 0 <= number < _INT32:
            raise PlacementError(f"{number} of device {device.id} does not fit the protocol's int32")
    return f"{device.id},{device.type},{device.memory_mib},{device.cores}"


def container(
    name: str,
    limits: Mapping[str, int | str] | None = None,
    *,
    image: str = "registry.example/rocm:latest",
    restartable: bool = False,
) -> Object:
    """A container with limits (``{"amd.com/gpu": 1, "amd.com/gpumem": 8192}``).

    `restartable` makes a side-car of an init container: it keeps running beside the pod's containers.
    """
    made: Object = {"name": name, "image": image}
    if limits:
        made["resources"] = {"limits": {key: str(value) for key, value in limits.items()}}
    if restartable:
        made["restartPolicy"] = "Always"
    return made


def pod(
    name: str,
    containers: Sequence[Object] | None = None,
    *,
    namespace: str = "default",
    init_containers: Sequence[Object] = (),
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    node: str | None = None,
    uid: str | None = None,
) -> Object:
    """A pod as JSON; one container ``main`` without limits unless given.

    A uid is made here so that the pod can be admitted without an API server too; the API server
    replaces it by its own, as always. `node` sets ``spec.nodeName`` at creation (no scheduler).
    """
    metadata: Object = {"name": name, "namespace": namespace, "uid": uid or str(uuids.uuid4())}
    if annotations:
        metadata["annotations"] = dict(annotations)
    if labels:
        metadata["labels"] = dict(labels)
    spec: Object = {"containers": list(containers) if containers is not None else [container("main")]}
    if init_containers:
        spec["initContainers"] = list(init_containers)
    if node is not None:
        spec["nodeName"] = node
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def place(
    api: Api,
    name: str,
    node: str,
    slots: Sequence[Sequence[Placed]],
    *,
    namespace: str = "default",
    word: str = "amd",
    now: float | None = None,
    lock: bool = True,
    bind: bool = True,
) -> Object:
    """Write what the scheduler writes for an existing, unbound pod, and bind it to `node`.

    Filter: one patch with the node (annotation and label), the time and both device annotations.
    Bind: node lock, one patch with bind-phase ``allocating`` and bind-time, the Binding. When the
    bind half fails the lock is released and the phase stays ``allocating`` (D.8).

    Args:
        api: the store itself, or an `ApiClient` to a served one.
        name: the pod.
        node: the node.
        slots: the devices of each container, init containers first.
        namespace: the pod's.
        word: the vendor's word in the annotation keys.
        now: unix seconds; the clock's unless given.
        lock: False leaves the lock alone (only init containers ask for devices, D.7).
        bind: False stops before the Binding, so that no kubelet takes the pod up yet.

    Returns:
        The pod as it is afterwards.

    Raises:
        PlacementError: the node is locked by another pod.
        ApiError: no such pod or node, already bound, …
    """
    stamp = time.time() if now is None else now
    value = encode(slots)
    annotations = {
        VGPU_NODE: node,
        VGPU_TIME: str(int(stamp)),
        to_allocate_key(word): value,
        allocated_key(word): value,
    }
    api.patch(
        "pods", name, {"metadata": {"annotations": annotations, "labels": {VGPU_NODE: node}}}, namespace
    )
    if lock:
        take_lock(api, node, name, namespace=namespace, now=stamp)
    try:
        bound = {BIND_PHASE: "allocating", BIND_TIME: str(int(stamp))}
        api.patch("pods", name, {"metadata": {"annotations": bound}}, namespace)
        if bind:
            api.bind(name, node, namespace)
    except ApiError:
        if lock:
            release_lock(api, node, name, namespace=namespace)
        raise
    return api.get("pods", name, namespace)


def take_lock(
    api: Api, node: str, name: str, *, namespace: str = "default", now: float | None = None
) -> None:
    """Set the node lock for a pod; fine when that pod holds it already (its time is kept).

    The patch carries the node's resourceVersion. Kubelet and the plugins write to the node as well, so a
    409 is met with a fresh look, up to five tries (D.7).

    Raises:
        PlacementError: somebody else holds it. Expiry is the scheduler's business, not ours.
        ApiError: 409 at every try, no such node, …
    """
    for attempt in range(_LOCK_TRIES):
        found = api.get("nodes", node)
        held = (found["metadata"].get("annotations") or {}).get(LOCK)
        if held is not None:
            if held.endswith(f",{namespace},{name}"):
                return
            raise PlacementError(f"node {node} is locked by {held!r}")
        value = f"{_rfc3339(time.time() if now is None else now)},{namespace},{name}"
        version = found["metadata"]["resourceVersion"]
        patch = {"metadata": {"resourceVersion": version, "annotations": {LOCK: value}}}
        try:
            api.patch("nodes", node, patch)
        except ApiError as error:
            if error.code != 409 or attempt + 1 == _LOCK_TRIES:
                raise
            time.sleep(_LOCK_PAUSE * 2**attempt)
        else:
            return


def release_lock(api: Api, node: str, name: str, *, namespace: str = "default") -> None:
    """Remove the node lock if this pod holds it; anybody else's is left alone (D.7)."""
    held = (api.get("nodes", node)["metadata"].get("annotations") or {}).get(LOCK)
    if held is not None and held.endswith(f",{namespace},{name}"):
        api.patch("nodes", node, {"metadata": {"annotations": {LOCK: None}}})


def _rfc3339(seconds: float) -> str:
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
