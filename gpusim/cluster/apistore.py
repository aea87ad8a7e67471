"""The verbs of the API server on its objects: what create, patch, delete and bind mean.

Callable directly (tests, the in-process kubelet) and used by the HTTP side, so that both obey the same
rules. Sources: k8s.io/apiserver ``pkg/registry/generic`` and k8s.io/kubernetes ``pkg/registry/core``.
Stricter than the original in one point: a patch of ``/status`` changes nothing but the status (the
original lets labels and annotations through for pods and nodes).
"""

from __future__ import annotations

import copy
import random
import threading
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from gpusim.cluster import apipatch, apiselect, apivalidate
from gpusim.cluster.apishelves import Change, Key, Shelves
from gpusim.cluster.apistatus import (
    KINDS,
    already_exists,
    bad_request,
    conflict,
    invalid,
    no_such_resource,
    not_found,
    stale,
)

Object = dict[str, Any]
Objects = list[Object]

CLUSTER_SCOPED = frozenset({"nodes", "namespaces"})
NAMESPACED = frozenset({"pods", "events"})
RESOURCES = ("nodes", "namespaces", "pods", "events")
TERMINAL = frozenset({"Succeeded", "Failed"})
_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"
"""Alphabet of generated names (apimachinery ``rand.SafeEncodeString``)."""


class Store:
    """All objects of a cluster. Satisfies `apiport.Api`; what it hands out is the caller's own copy.

    Args:
        now: unix seconds, for creation and deletion times.
        seed: of generated names.
    """

    def __init__(self, *, now: Callable[[], float] = time.time, seed: int = 1) -> None:
        self.shelves = Shelves(RESOURCES)
        self._now = now
        self._random = random.Random(seed)
        for name in ("default", "kube-system"):
            self.make("namespaces", {"metadata": {"name": name}}, "")

    # -- in-process use: copies in, copies out ------------------------------------------------------

    def create(self, resource: str, body: Object, namespace: str = "default") -> Object:
        """See `apiport.Api.create`."""
        return copy.deepcopy(self.make(resource, copy.deepcopy(body), namespace))

    def get(self, resource: str, name: str, namespace: str = "default") -> Object:
        """See `apiport.Api.get`."""
        return copy.deepcopy(self.peek(resource, name, namespace))

    def list(
        self, resource: str, namespace: str | None = None, *, fields: str = "", labels: str = ""
    ) -> Objects:
        """See `apiport.Api.list`."""
        return copy.deepcopy(self.select(resource, namespace, fields=fields, labels=labels)[0])

    def patch(
        self,
        resource: str,
        name: str,
        body: Any,
        namespace: str = "default",
        *,
        subresource: str = "",
        kind: str = apipatch.MERGE,
    ) -> Object:
        """See `apiport.Api.patch`; `kind` is the content type of the patch."""
        body = copy.deepcopy(body)
        return copy.deepcopy(self.amend(resource, name, body, namespace, subresource=subresource, kind=kind))

    def update(
        self, resource: str, name: str, body: Object, namespace: str = "default", *, subresource: str = ""
    ) -> Object:
        """Replace the whole object (or its status); 409 on an old resourceVersion in `body`."""
        body = copy.deepcopy(body)
        return copy.deepcopy(self.replace(resource, name, body, namespace, subresource=subresource))

    def delete(
        self, resource: str, name: str, namespace: str = "default", *, grace_seconds: int | None = 0
    ) -> None:
        """See `apiport.Api.delete`."""
        self.drop(resource, name, namespace, grace_seconds=grace_seconds)

    def bind(self, name: str, node: str, namespace: str = "default") -> None:
        """See `apiport.Api.bind`."""
        self.assign(name, {"target": {"kind": "Node", "name": node}}, namespace)

    def subscribe(self, hear: Callable[[Change], None], since: int | None = None) -> Callable[[], None]:
        """See `Shelves.subscribe`: changes in order, called with the store locked."""
        return self.shelves.subscribe(hear, since)

    @property
    def lock(self) -> threading.RLock:
        """Hold it to make several calls one step."""
        return self.shelves.lock

    # -- the rules; objects handed out here are the stored ones and must not be changed ---------------

    def peek(self, resource: str, name: str, namespace: str = "default") -> Object:
        """The stored object itself."""
        found = self.shelves.find(resource, self._key(resource, name, namespace))
        if found is None:
            raise not_found(resource, name)
        return found

    def select(
        self, resource: str, namespace: str | None = None, *, fields: str = "", labels: str = ""
    ) -> tuple[Objects, int]:
        """The stored objects that match, and the version at which this was so."""
        self._known(resource)
        by_field, by_label = apiselect.fields(resource, fields), apiselect.labels(labels)
        with self.shelves.lock:
            found = [o for o in self.shelves.scan(resource, namespace) if by_field(o) and by_label(o)]
            return found, self.shelves.version

    def make(self, resource: str, body: Object, namespace: str) -> Object:
        """Create from a body we may keep."""
        self._known(resource)
        apivalidate.shape(resource, body)
        metadata = body["metadata"]
        if metadata.pop("resourceVersion", None):
            raise bad_request("resourceVersion should not be set on objects to be created")
        self._namespace(resource, metadata, namespace)
        with self.shelves.lock:
            if resource in NAMESPACED and self.shelves.find("namespaces", ("", namespace)) is None:
                raise not_found("namespaces", namespace)
            if not metadata.get("name"):
                if not metadata.get("generateName"):
                    why = "Required value: name or generateName is required"
                    raise invalid(resource, "", ("metadata.name", why))
                metadata["name"] = metadata["generateName"] + "".join(self._random.choices(_SUFFIX, k=5))
            apivalidate.defaults(resource, body)
            apivalidate.check(resource, body)
            key = self._key(resource, metadata["name"], namespace)
            if self.shelves.find(resource, key) is not None:
                raise already_exists(resource, metadata["name"])
            for field in ("deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"):
                metadata.pop(field, None)
            metadata["uid"] = str(uuid.uuid4())
            metadata["creationTimestamp"] = self._timestamp()
            body.setdefault("apiVersion", "v1")
            body.setdefault("kind", KINDS[resource])
            return self.shelves.put(resource, key, body)

    def amend(
        self,
        resource: str,
        name: str,
        body: Any,
        namespace: str,
        *,
        subresource: str = "",
        kind: str = apipatch.MERGE,
    ) -> Object:
        """Patch with a body we may keep."""
        with self.shelves.lock:
            old = self.peek(resource, name, namespace)
            new = apipatch.apply(kind, old, body)
            if not isinstance(new, dict):
                raise bad_request("the patch leaves no object")
            return self._store(resource, old, new, subresource)

    def replace(
        self, resource: str, name: str, body: Object, namespace: str, *, subresource: str = ""
    ) -> Object:
        """Update with a body we may keep."""
        apivalidate.shape(resource, body)
        if resource == "pods":
            apivalidate.pod_defaults(body.setdefault("spec", {}))
        with self.shelves.lock:
            old = self.peek(resource, name, namespace)
            self._namespace(resource, body["metadata"], namespace)
            if body["metadata"].get("name") != name:
                raise bad_request(
                    f"the name of the object ({body['metadata'].get('name', '')}) does not match the name "
                    f"on the URL ({name})"
                )
            return self._store(resource, old, body, subresource)

    def _store(self, resource: str, old: Object, new: Object, subresource: str) -> Object:
        if subresource not in ("", "status") or (
            subresource and resource not in ("pods", "nodes", "namespaces")
        ):
            raise no_such_resource()
        # A patch shares what it did not touch with the old version: own the levels written below.
        new = {**new}
        new["metadata"] = {**new["metadata"]} if isinstance(new.get("metadata"), dict) else {}
        apivalidate.shape(resource, new)
        before, after = old["metadata"], new["metadata"]
        name = before["name"]
        if after.get("name") != name or after.get("namespace") != before.get("namespace"):
            raise invalid(resource, name, ("metadata.name", "Invalid value: field is immutable"))
        if after.get("resourceVersion") not in (None, "", before["resourceVersion"]):
            raise stale(resource, name)
        if after.get("uid") not in (None, "", before["uid"]):
            why = f"Precondition failed: UID in precondition: {after['uid']}, in object meta: {before['uid']}"
            raise conflict(resource, name, why)
        for field in ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"):
            if field in before:
                after[field] = before[field]
            else:
                after.pop(field, None)
        if subresource == "status":
            new = {**old, "metadata": {**before}, "status": dict(new.get("status") or {})}
        elif resource in ("pods", "nodes", "namespaces"):
            new["status"] = dict(old.get("status") or {})
        after = new["metadata"]
        if resource == "pods":
            apivalidate.pod_update(old, new)
        apivalidate.check(resource, new)
        after["resourceVersion"] = before["resourceVersion"]
        if new == old:  # the original writes nothing either, and the version stays
            return old
        return self.shelves.put(resource, self._key(resource, name, before.get("namespace", "")), new)

    def drop(
        self,
        resource: str,
        name: str,
        namespace: str,
        *,
        grace_seconds: int | None,
        uid: str | None = None,
        version: str | None = None,
    ) -> tuple[Object, bool]:
        """Delete; returns the object and whether it is gone.

        A pod that is bound and not finished stays with a deletionTimestamp until its kubelet deletes
        it with grace 0; a second delete can only shorten the grace.
        """
        with self.shelves.lock:
            old = self.peek(resource, name, namespace)
            metadata = old["metadata"]
            if uid not in (None, metadata["uid"]):
                why = f"the UID in the precondition ({uid}) does not match that in record ({metadata['uid']})"
                raise conflict(resource, name, why)
            if version not in (None, metadata["resourceVersion"]):
                why = f"the ResourceVersion in the precondition ({version}) does not match the record's"
                raise conflict(resource, name, why)
            grace = self._grace(old, grace_seconds) if resource == "pods" else 0
            key = self._key(resource, name, namespace)
            if grace == 0:
                if resource == "namespaces":
                    for inside in RESOURCES:
                        for obj in list(self.shelves.scan(inside, name)) if inside in NAMESPACED else ():
                            self.shelves.remove(inside, (name, obj["metadata"]["name"]))
                return self.shelves.remove(resource, key), True
            if metadata.get("deletionGracePeriodSeconds", grace + 1) <= grace:
                return old, False
            marked = {**metadata, "deletionGracePeriodSeconds": grace}
            marked["deletionTimestamp"] = self._timestamp(grace)
            return self.shelves.put(resource, key, {**old, "metadata": marked}), False

    @staticmethod
    def _grace(pod: Object, asked: int | None) -> int:
        if not pod["spec"].get("nodeName") or pod["status"].get("phase") in TERMINAL:
            return 0
        return max(0, pod["spec"].get("terminationGracePeriodSeconds", 30) if asked is None else asked)

    def assign(self, name: str, binding: Object, namespace: str) -> Object:
        """Bind a pod to a node (``pods/binding``)."""
        target = binding.get("target")
        if not isinstance(target, dict) or not target.get("name"):
            raise invalid("pods/binding", name, ("target.name", "Required value"))
        if target.get("kind", "Node") != "Node":
            raise invalid("pods/binding", name, ("target.kind", f'Unsupported value: "{target["kind"]}"'))
        metadata = binding.get("metadata") or {}
        with self.shelves.lock:
            old = self.peek("pods", name, namespace)
            if metadata.get("uid") not in (None, "", old["metadata"]["uid"]):
                raise conflict(
                    "pods/binding", name, "Precondition failed: UID in precondition does not match"
                )
            if old["metadata"].get("deletionTimestamp"):
                raise conflict(
                    "pods/binding", name, f"pod {name} is being deleted, cannot be assigned to a host"
                )
            if old["spec"].get("nodeName"):
                why = f'pod {name} is already assigned to node "{old["spec"]["nodeName"]}"'
                raise conflict("pods/binding", name, why)
            conditions = [c for c in old["status"].get("conditions", ()) if c.get("type") != "PodScheduled"]
            scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": self._timestamp()}
            new = {
                **old,
                "metadata": {**old["metadata"]},
                "spec": {**old["spec"], "nodeName": target["name"]},
                "status": {**old["status"], "conditions": [*conditions, scheduled]},
            }
            if metadata.get("annotations"):
                new["metadata"]["annotations"] = {
                    **(old["metadata"].get("annotations") or {}),
                    **metadata["annotations"],
                }
            return self.shelves.put("pods", (namespace, name), new)

    def _known(self, resource: str) -> None:
        if resource not in RESOURCES:
            raise no_such_resource()

    def _key(self, resource: str, name: str, namespace: str) -> Key:
        self._known(resource)
        return ("" if resource in CLUSTER_SCOPED else namespace, name)

    @staticmethod
    def _namespace(resource: str, metadata: Object, namespace: str) -> None:
        if resource in CLUSTER_SCOPED:
            if metadata.pop("namespace", None):
                raise bad_request(
                    "the namespace of the provided object does not match the namespace sent on the request"
                )
        elif metadata.setdefault("namespace", namespace) != namespace:
            raise bad_request(
                "the namespace of the provided object does not match the namespace sent on the request"
            )

    def _timestamp(self, later: float = 0) -> str:
        return datetime.fromtimestamp(int(self._now() + later), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
