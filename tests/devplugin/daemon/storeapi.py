"""A host of a few files, and the API server's port over a store in this process."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from devplugin import kube
from devplugin.hami import Node, Pod
from devplugin.host import Kind, Stat
from devplugin.kubejson import annotations_patch, read_node, read_pod, read_pods
from gpusim.cluster.apistatus import ApiError
from gpusim.cluster.apistore import Store


class DictHost:
    """A host of plain files; what the daemon's walks need of one."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self.files = dict(files)
        self.threads: set[str] = set()

    def _missing(self, path: str) -> NoReturn:
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    def read(self, path: str) -> bytes:
        self.threads.add(threading.current_thread().name)
        return self.files[path].encode() if path in self.files else self._missing(path)

    def list(self, path: str) -> Sequence[str]:
        names = {key[len(path) + 1 :].partition("/")[0] for key in self.files if key.startswith(path + "/")}
        return sorted(names) or self._missing(path)

    def stat(self, path: str, *, follow: bool = True) -> Stat:
        return Stat(Kind.FILE, 0o644) if path in self.files else self._missing(path)

    def write(self, path: str, data: bytes) -> int:
        raise OSError(errno.EACCES, "read-only", path)

    def readlink(self, path: str) -> str:
        return self._missing(path)

    def probe(self, path: str) -> None:
        self.stat(path)


class StoreApi:
    """`devplugin.kube.Api` over a store in this process, with a place to cut before and after each call.

    `cut(number, when, call)` is asked before (``"before"``) and after (``"after"``) every call and may
    raise; `calls` lists what was asked, in order.
    """

    def __init__(self, store: Store, cut: Callable[[int, str, str], None] | None = None) -> None:
        self.store = store
        self.cut = cut
        self.calls: list[str] = []

    def _do(self, call: str, work: Callable[[], Any]) -> Any:
        number = len(self.calls)
        self.calls.append(call)
        if self.cut:
            self.cut(number, "before", call)
        try:
            result = work()
        except ApiError as error:
            failed = kube._Call("", call, "", "")
            raise kube.failure(failed, error.code, json.dumps(error.status()).encode()) from error
        if self.cut:
            self.cut(number, "after", call)
        return result

    async def node(self, name: str) -> Node:
        return self._do("get node", lambda: read_node(_json(self.store.get("nodes", name))))

    async def pod(self, namespace: str, name: str) -> Pod:
        return self._do("get pod", lambda: read_pod(_json(self.store.get("pods", name, namespace))))

    async def pods_on(self, node: str) -> tuple[Pod, ...]:
        def work() -> tuple[Pod, ...]:
            return read_pods(_json({"items": self.store.list("pods", fields=f"spec.nodeName={node}")}))

        return self._do("list pods", work)

    async def patch_pod(
        self,
        namespace: str,
        name: str,
        annotations: Mapping[str, str | None],
        *,
        resource_version: str | None = None,
    ) -> Pod:
        body = annotations_patch(annotations, resource_version)
        return self._do("patch pod", lambda: read_pod(_json(self.store.patch("pods", name, body, namespace))))

    async def patch_node(
        self, name: str, annotations: Mapping[str, str | None], *, resource_version: str | None = None
    ) -> Node:
        body = annotations_patch(annotations, resource_version)
        return self._do("patch node", lambda: read_node(_json(self.store.patch("nodes", name, body))))

    async def patch_node_capacity(self, name: str, capacity: Mapping[str, int | None]) -> None:
        amounts = {key: None if value is None else str(value) for key, value in capacity.items()}
        body = {"status": {"capacity": amounts, "allocatable": amounts}}
        self._do("patch status", lambda: self.store.patch("nodes", name, body, subresource="status"))

    async def event(self, about: kube.Reference, saying: kube.Saying) -> None:
        namespace = about.namespace or "default"
        name = saying.name or f"{about.name}.{len(self.calls):x}"
        body = {
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": {"kind": about.kind, "name": about.name, "uid": about.uid},
            "type": saying.type,
            "reason": saying.reason,
            "message": saying.message,
        }
        if about.namespace:
            body["involvedObject"]["namespace"] = namespace
        try:
            self._do("create event", lambda: self.store.create("events", body, namespace))
        except kube.Conflict:
            return


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()
