"""What the protocol looks at in the JSON bodies of pods and nodes, and nothing else of them.

A list of 250 pods is read on every Allocate: msgspec picks the named fields out of the raw body and
skips the rest, where the client's typed models would build all of it (176 ms and 105 MiB;
libraries.md, "What they really do"). Field names are those of the Kubernetes core/v1 objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from devplugin.hami import Node, Pod


class _Meta(msgspec.Struct, rename="camel"):
    name: str
    namespace: str = ""
    uid: str = ""
    annotations: dict[str, str] | None = None
    resource_version: str = ""
    deletion_timestamp: str | None = None


class _Resources(msgspec.Struct):
    limits: dict[str, str | int | float] | None = None


class _Container(msgspec.Struct):
    name: str
    image: str = ""
    resources: _Resources | None = None


class _PodSpec(msgspec.Struct, rename="camel"):
    node_name: str = ""
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None


class _Waiting(msgspec.Struct):
    reason: str = ""


class _State(msgspec.Struct):
    waiting: _Waiting | None = None


class _ContainerStatus(msgspec.Struct):
    name: str
    container_id: str = msgspec.field(default="", name="containerID")
    state: _State | None = None


class _PodStatus(msgspec.Struct, rename="camel"):
    phase: str = ""
    qos_class: str = ""
    container_statuses: list[_ContainerStatus] | None = None
    init_container_statuses: list[_ContainerStatus] | None = None


class _Pod(msgspec.Struct):
    metadata: _Meta
    spec: _PodSpec = msgspec.field(default_factory=_PodSpec)
    status: _PodStatus = msgspec.field(default_factory=_PodStatus)


class _PodList(msgspec.Struct):
    items: list[_Pod] | None = None


class _NodeStatus(msgspec.Struct):
    capacity: dict[str, str] | None = None
    allocatable: dict[str, str] | None = None


class _Node(msgspec.Struct):
    metadata: _Meta
    status: _NodeStatus = msgspec.field(default_factory=_NodeStatus)


class _LabelMeta(msgspec.Struct):
    labels: dict[str, str] | None = None


class _Labelled(msgspec.Struct):
    metadata: _LabelMeta


class _Status(msgspec.Struct):
    message: str = ""


class _Verdict(msgspec.Struct):
    allowed: bool = False


class _Review(msgspec.Struct):
    status: _Verdict


_pod = msgspec.json.Decoder(_Pod)
_pods = msgspec.json.Decoder(_PodList)
_node = msgspec.json.Decoder(_Node)
_labelled = msgspec.json.Decoder(_Labelled)
_status = msgspec.json.Decoder(_Status)
_review = msgspec.json.Decoder(_Review)

_T = TypeVar("_T")


def _read(decoder: msgspec.json.Decoder[_T], body: bytes) -> _T:
    """Decode; nesting beyond the stack is what it is elsewhere: no answer that can be read."""
    try:
        return decoder.decode(body)
    except RecursionError:
        raise msgspec.DecodeError("nested too deeply") from None


def _to_pod(raw: _Pod) -> Pod:
    meta = raw.metadata
    statuses = (*(raw.status.init_container_statuses or ()), *(raw.status.container_statuses or ()))
    containers = raw.spec.containers or []
    init = raw.spec.init_containers or []
    return Pod(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        node=raw.spec.node_name,
        phase=raw.status.phase,
        annotations=meta.annotations or {},
        qos=raw.status.qos_class,
        containers=tuple(c.name for c in containers),
        init_containers=tuple(c.name for c in init),
        images={c.name: c.image for c in (*init, *containers)},
        limits={
            c.name: {resource: str(amount) for resource, amount in c.resources.limits.items()}
            for c in (*init, *containers)
            if c.resources and c.resources.limits
        },
        container_ids={
            # ``containerd://<id>``; empty until the runtime made it.
            status.container_id.rpartition("://")[2]: status.name
            for status in statuses
            if status.container_id
        },
        waiting={
            status.name: status.state.waiting.reason
            for status in statuses
            if status.state and status.state.waiting
        },
        resource_version=meta.resource_version,
        deleting=meta.deletion_timestamp is not None,
    )


def read_pod(body: bytes) -> Pod:
    """A pod from its JSON body; raises msgspec.ValidationError or DecodeError."""
    return _to_pod(_read(_pod, body))


def read_pods(body: bytes) -> tuple[Pod, ...]:
    """The pods of a list from its JSON body, as `read_pod`."""
    return tuple(_to_pod(raw) for raw in _read(_pods, body).items or ())


def read_node(body: bytes) -> Node:
    """A node from its JSON body, as `read_pod`."""
    raw = _read(_node, body)
    return Node(
        name=raw.metadata.name,
        uid=raw.metadata.uid,
        annotations=raw.metadata.annotations or {},
        capacity=raw.status.capacity or {},
        allocatable=raw.status.allocatable or {},
        resource_version=raw.metadata.resource_version,
    )


def read_labels(body: bytes) -> dict[str, str]:
    """The labels of any object from its JSON body, as `read_pod`."""
    return _read(_labelled, body).metadata.labels or {}


def read_allowed(body: bytes) -> bool:
    """The verdict of a SelfSubjectAccessReview from its JSON body, as `read_pod`."""
    return _read(_review, body).status.allowed


def read_message(body: bytes) -> str:
    """The server's own words in a Status body; the beginning of the body when it is none."""
    try:
        return _read(_status, body).message
    except msgspec.MsgspecError:
        return body[:200].decode("utf-8", "replace").strip()


def annotations_patch(annotations: Mapping[str, str | None], resource_version: str | None) -> dict[str, Any]:
    """Merge patch that sets annotations, removes those that are None, and names the version it is for."""
    meta: dict[str, Any] = {"annotations": dict(annotations)}
    if resource_version is not None:
        meta["resourceVersion"] = resource_version
    return {"metadata": meta}


def labels_patch(labels: Mapping[str, str | None]) -> dict[str, Any]:
    """Merge patch that sets labels and removes those that are None."""
    return {"metadata": {"labels": dict(labels)}}


def capacity_patch(capacity: Mapping[str, int | None]) -> dict[str, Any]:
    """Merge patch for a node's status; quantities are strings there."""
    amounts = {key: None if value is None else str(value) for key, value in capacity.items()}
    return {"status": {"capacity": amounts, "allocatable": amounts}}
