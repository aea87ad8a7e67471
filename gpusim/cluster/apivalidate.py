"""What the API server checks and fills in before it stores an object.

Only what a device plugin, a scheduler or a kubelet can run into: metadata, containers and their extended
resources, quantities of a node, the namespace of an event. Sources: k8s.io/kubernetes
``pkg/apis/core/validation`` and ``pkg/registry/core/pod/strategy.go``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gpusim.cluster import resourcenames as names
from gpusim.cluster.apistatus import KINDS, bad_request, invalid

Object = dict[str, Any]
Causes = list[tuple[str, str]]

ANNOTATIONS_LIMIT = 256 << 10
"""Bytes of all annotation keys and values together (apimachinery ``TotalAnnotationSizeLimitB``)."""

_SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.'"
)


def shape(resource: str, obj: Any) -> None:
    """Refuse a body that could not be decoded into the Go type (400)."""
    kind = KINDS[resource]
    if not isinstance(obj, dict):
        raise bad_request(f"the object provided is not a {kind}")
    if obj.get("kind", kind) != kind or obj.get("apiVersion", "v1") != "v1":
        raise bad_request(
            f"{obj.get('kind')} in version {obj.get('apiVersion')!r} cannot be handled as a {kind}"
        )
    metadata = obj.setdefault("metadata", {})
    if not isinstance(metadata, dict):
        raise _undecodable(kind, "metadata", "ObjectMeta", metadata)
    for field in ("annotations", "labels"):
        values = metadata.get(field)
        if values is None:
            metadata.pop(field, None)
        elif not isinstance(values, dict):
            raise _undecodable(kind, f"metadata.{field}", "map[string]string", values)
        else:
            for key, value in values.items():
                if not isinstance(value, str):
                    raise _undecodable(kind, f"metadata.{field}.{key}", "string", value)
    for field in ("spec", "status"):
        if obj.get(field) is None:
            obj.pop(field, None)
        elif not isinstance(obj[field], dict):
            raise _undecodable(kind, field, f"{kind}{field.capitalize()}", obj[field])


def _undecodable(kind: str, field: str, wanted: str, value: Any) -> Exception:
    have = {dict: "object", list: "array", str: "string", bool: "bool", type(None): "null"}.get(
        type(value), "number"
    )
    return bad_request(
        f'{kind} in version "v1" cannot be handled as a {kind}: json: cannot unmarshal {have} into Go struct '
        f"field {field} of type {wanted}"
    )


def defaults(resource: str, obj: Object) -> None:
    """Fill in, in place, what the server adds at creation; a pod's own status is dropped."""
    if resource == "pods":
        spec = obj.setdefault("spec", {})
        pod_defaults(spec)
        obj["status"] = {"phase": "Pending", "qosClass": qos(spec)}
    elif resource == "namespaces":
        obj["status"] = {"phase": "Active"}
        obj.setdefault("spec", {}).setdefault("finalizers", ["kubernetes"])
    elif resource == "nodes":
        obj.setdefault("spec", {})
        obj.setdefault("status", {})


def pod_defaults(spec: Object) -> None:
    """Fill in, in place, a pod spec as the server decodes it (create and update)."""
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("schedulerName", "default-scheduler")
    for container in _containers(spec):
        _default_requests(container)


def _containers(spec: Mapping[str, Any]) -> list[Object]:
    listed = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    return [c for c in listed if isinstance(c, dict)]


def _default_requests(container: Object) -> None:
    resources = container.get("resources")
    if not isinstance(resources, dict) or not isinstance(resources.get("limits"), dict):
        return
    for which in ("limits", "requests"):
        if isinstance(resources.get(which), dict):
            resources[which] = {k: str(v) for k, v in resources[which].items()}
    requests = dict(resources.get("requests") or {})
    for name, amount in resources["limits"].items():
        requests.setdefault(name, amount)
    resources["requests"] = requests


def qos(spec: Mapping[str, Any]) -> str:
    """``Guaranteed``, ``Burstable`` or ``BestEffort`` from cpu and memory of all containers."""
    named = False
    guaranteed = True
    for container in _containers(spec):
        resources = container.get("resources") or {}
        limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
        for resource in ("cpu", "memory"):
            named = named or resource in limits or resource in requests
            guaranteed = guaranteed and resource in limits and requests.get(resource) == limits[resource]
    if not named:
        return "BestEffort"
    return "Guaranteed" if guaranteed else "Burstable"


def check(resource: str, obj: Object) -> None:
    """Validate the whole object (422, every cause named)."""
    causes: Causes = []
    _metadata(resource, obj["metadata"], causes)
    extra: Callable[[Object, Causes], None] | None = {"pods": _pod, "nodes": _node, "events": _event}.get(
        resource
    )
    if extra is not None:
        extra(obj, causes)
    if causes:
        raise invalid(resource, obj["metadata"].get("name", ""), *causes)


def _metadata(resource: str, metadata: Object, causes: Causes) -> None:
    name = metadata.get("name", "")
    if resource == "namespaces":
        if not names.is_dns_label(name):
            causes.append(
                ("metadata.name", f'Invalid value: "{name}": a lowercase RFC 1123 label is required')
            )
    elif not names.is_subdomain(name):
        causes.append(("metadata.name", f'Invalid value: "{name}": {_SUBDOMAIN_RULE}'))
    annotations, labels = metadata.get("annotations") or {}, metadata.get("labels") or {}
    causes.extend(
        ("metadata.annotations", f'Invalid value: "{key}": name part must consist of alphanumeric characters')
        for key in annotations
        if not names.is_qualified(key.lower())
    )
    total = sum(len(k.encode()) + len(v.encode()) for k, v in annotations.items())
    if total > ANNOTATIONS_LIMIT:
        causes.append(("metadata.annotations", f"Too long: may not be more than {ANNOTATIONS_LIMIT} bytes"))
    for key, value in labels.items():
        if not names.is_qualified(key):
            causes.append(
                ("metadata.labels", f'Invalid value: "{key}": name part must consist of alphanumerics')
            )
        if not names.is_label_value(value):
            causes.append(
                ("metadata.labels", f'Invalid value: "{value}": a valid label must be an empty string or…')
            )


def _pod(obj: Object, causes: Causes) -> None:
    spec = obj.get("spec") or {}
    if not spec.get("containers"):
        causes.append(("spec.containers", "Required value"))
    seen: set[str] = set()
    for field in ("initContainers", "containers"):
        for i, container in enumerate(spec.get(field) or ()):
            path = f"spec.{field}[{i}]"
            if not isinstance(container, dict):
                raise bad_request(f"{path} is not an object")
            name = container.get("name", "")
            if not names.is_dns_label(name):
                causes.append(
                    (f"{path}.name", f'Invalid value: "{name}": a lowercase RFC 1123 label is required')
                )
            elif name in seen:
                causes.append((f"{path}.name", f'Duplicate value: "{name}"'))
            seen.add(name)
            if not container.get("image"):
                causes.append((f"{path}.image", "Required value"))
            _resources(path, container.get("resources") or {}, causes)


def _resources(path: str, resources: Mapping[str, Any], causes: Causes) -> None:
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for which, amounts in (("limits", limits), ("requests", requests)):
        for name, amount in amounts.items():
            field = f"{path}.resources.{which}[{name}]"
            try:
                value = names.exact(amount)
            except ValueError:
                raise bad_request(
                    f"{field}: quantities must match the regular expression "
                    "'^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
                ) from None
            if value < 0:
                causes.append((field, f'Invalid value: "{amount}": must be greater than or equal to 0'))
            elif names.is_extended(name) and value.denominator != 1:
                causes.append((field, f'Invalid value: "{amount}": must be an integer'))
    for name, amount in requests.items():
        if names.is_extended(name) and limits.get(name) != amount:
            why = f'Invalid value: "{amount}": must be equal to {name} limit of {limits.get(name)}'
            causes.append(
                (
                    f"{path}.resources.requests",
                    why if name in limits else "Limit must be set for non overcommitable resources",
                )
            )


def _node(obj: Object, causes: Causes) -> None:
    status = obj.get("status") or {}
    for which in ("capacity", "allocatable"):
        amounts = status.get(which)
        if amounts is None:
            continue
        if not isinstance(amounts, dict):
            raise bad_request(f"status.{which} is not an object")
        for name, amount in amounts.items():
            try:
                value = names.exact(amount)
            except ValueError:
                raise bad_request(f"status.{which}[{name}]: {amount!r} is no quantity") from None
            if value < 0:
                causes.append((f"status.{which}[{name}]", f'Invalid value: "{amount}": must be >= 0'))
        status[which] = {name: str(amount) for name, amount in amounts.items()}


def _event(obj: Object, causes: Causes) -> None:
    about = obj.get("involvedObject")
    if not isinstance(about, dict):
        raise bad_request("Event without involvedObject")
    namespace = about.get("namespace", "")
    if namespace != obj["metadata"]["namespace"] and not (
        namespace == "" and obj["metadata"]["namespace"] in ("default", "kube-system")
    ):
        causes.append(
            ("involvedObject.namespace", f'Invalid value: "{namespace}": does not match event.namespace')
        )


def pod_update(old: Object, new: Object) -> None:
    """Refuse (422) what may not change on a pod: all of spec but images, tolerations and deadlines."""
    before, after = _fixed(old.get("spec") or {}), _fixed(new.get("spec") or {})
    if before != after:
        why = (
            "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"
            "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations`"
        )
        raise invalid("pods", old["metadata"]["name"], ("spec", why))


def _fixed(spec: Mapping[str, Any]) -> Object:
    kept = {k: v for k, v in spec.items() if k not in ("activeDeadlineSeconds", "tolerations")}
    for field in ("containers", "initContainers"):
        if field in kept:
            kept[field] = [{k: v for k, v in c.items() if k != "image"} for c in kept[field] or ()]
    return kept
