"""What the daemon asks of the API server, in few verbs, and the official client that carries them.

`Api` is what the daemon sees: seven verbs over the values of `devplugin.hami`, and six small
errors. `connect` makes one from the official client, which is imported there and only there
(240 ms; its typed `CoreV1Api` another 380 ms and, for a list of 250 pods, 105 MiB: so the client's
generic layer sends the requests, and msgspec reads of each raw body just what the protocol looks
at). Patches are always merge patches; the client's own default would be a strategic one
(libraries.md, "What they really do").

Source of paths, verbs and status codes: the Kubernetes API conventions.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import quote as _quote

import msgspec

from devplugin.hami import Node, Pod
from devplugin.kubejson import (
    annotations_patch,
    capacity_patch,
    labels_patch,
    read_allowed,
    read_labels,
    read_message,
    read_node,
    read_pod,
    read_pods,
)

quote = partial(_quote, safe="")
"""One segment of a path or one value of a selector: a slash in it leads nowhere else."""

T = TypeVar("T")

MERGE_PATCH = "application/merge-patch+json"


class KubeError(Exception):
    """Any answer of the API server that is not the one asked for."""


class NotFound(KubeError):  # noqa: N818 - says what is the matter
    """404: the object is not there (any more)."""


class Conflict(KubeError):  # noqa: N818 - says what is the matter
    """409: the object is not in the version we named. Read it again and decide anew."""


class Gone(KubeError):  # noqa: N818 - says what is the matter
    """410: the version named is too old to be served."""


class Forbidden(KubeError):  # noqa: N818 - says what is the matter
    """401 or 403: the text names verb and resource, and what to grant."""


class Rejected(KubeError):  # noqa: N818 - says what is the matter
    """Another 4xx: the request itself is wrong; repeating it does not help."""


class Unavailable(KubeError):  # noqa: N818 - says what is the matter
    """No answer, 429 or 5xx: nothing is known about what happened; try again later."""


class NoCluster(KubeError):  # noqa: N818 - says what is the matter
    """There is no configuration that names an API server."""


@dataclass(frozen=True, slots=True)
class Reference:
    """The object an event is about."""

    kind: str
    """``Node`` or ``Pod``."""
    name: str
    uid: str
    namespace: str = ""
    """Empty for a node; its events live in ``default``, as kubelet's own do."""


@dataclass(frozen=True, slots=True)
class Saying:
    """What an event says."""

    type: str
    """``Normal`` or ``Warning``."""
    reason: str
    message: str
    name: str | None = None
    """Deterministic object name of an event that is said once (decision 33); None makes one up."""


class Api(Protocol):
    """The verbs the daemon needs. Every one may raise `KubeError`; each has its own deadline."""

    async def node(self, name: str) -> Node:
        """Read one node."""
        ...

    async def pod(self, namespace: str, name: str) -> Pod:
        """Read one pod."""
        ...

    async def pods_on(self, node: str) -> tuple[Pod, ...]:
        """All pods bound to a node, of every phase, in the server's order."""
        ...

    async def patch_pod(
        self,
        namespace: str,
        name: str,
        annotations: Mapping[str, str | None],
        *,
        resource_version: str | None = None,
    ) -> Pod:
        """Set annotations (None removes one) and return the pod as it is then.

        Raises:
            Conflict: `resource_version` was given and is not the pod's any more.
        """
        ...

    async def patch_node(
        self, name: str, annotations: Mapping[str, str | None], *, resource_version: str | None = None
    ) -> Node:
        """The same for a node."""
        ...

    async def patch_node_capacity(self, name: str, capacity: Mapping[str, int | None]) -> None:
        """Set extended resources (None removes one) in capacity and allocatable, through /status."""
        ...

    async def event(self, about: Reference, saying: Saying) -> None:
        """Record an event; one that was said under the same name before is no error (409)."""
        ...


# ------------------------------------------------------------------ speaking to the server


@dataclass(frozen=True, slots=True)
class _Call:
    """One request, and the words for its failure."""

    method: str
    verb: str
    resource: str
    """As a ClusterRole spells it: ``pods``, ``nodes/status``."""
    path: str
    body: dict[str, Any] | None = None


def failure(call: _Call, status: int, body: bytes, whose: str = "plugin") -> KubeError:
    """The error for an HTTP status that is not 2xx; the server's own message is kept.

    `whose` ClusterRole lacks the right: a monitor and a labeller have accounts of their own.
    """
    what = f"{call.verb} {call.resource} ({call.path}): HTTP {status}: {read_message(body) or 'no message'}"
    if status == 401:
        return Forbidden(
            f"{what}; the API server does not accept our credentials: check the service account token"
        )
    if status == 403:
        return Forbidden(
            f"{what}; grant verb {call.verb!r} on {call.resource!r} in the {whose}'s ClusterRole"
        )
    kinds: dict[int, type[KubeError]] = {404: NotFound, 409: Conflict, 410: Gone, 429: Unavailable}
    return kinds.get(status, Unavailable if status >= 500 else Rejected)(what)


class OfficialClient:
    """`Api` over an `ApiClient` of the official package, its blocking calls in four threads."""

    def __init__(self, client: Any, *, component: str, deadline: float = 5.0) -> None:
        self._client = client
        self._component = component
        self._deadline = deadline
        self._threads = ThreadPoolExecutor(max_workers=4, thread_name_prefix="api")

    async def node(self, name: str) -> Node:  # noqa: D102 - as in `Api`, and so below
        return await self._ask(read_node, _Call("GET", "get", "nodes", f"/api/v1/nodes/{quote(name)}"))

    async def pod(self, namespace: str, name: str) -> Pod:  # noqa: D102
        return await self._ask(read_pod, _Call("GET", "get", "pods", _pod_path(namespace, name)))

    async def pods_on(self, node: str) -> tuple[Pod, ...]:  # noqa: D102
        path = f"/api/v1/pods?fieldSelector=spec.nodeName%3D{quote(node)}"
        return await self._ask(read_pods, _Call("GET", "list", "pods", path))

    async def patch_pod(  # noqa: D102
        self,
        namespace: str,
        name: str,
        annotations: Mapping[str, str | None],
        *,
        resource_version: str | None = None,
    ) -> Pod:
        body = annotations_patch(annotations, resource_version)
        return await self._ask(read_pod, _Call("PATCH", "patch", "pods", _pod_path(namespace, name), body))

    async def patch_node(  # noqa: D102
        self, name: str, annotations: Mapping[str, str | None], *, resource_version: str | None = None
    ) -> Node:
        body = annotations_patch(annotations, resource_version)
        return await self._ask(
            read_node, _Call("PATCH", "patch", "nodes", f"/api/v1/nodes/{quote(name)}", body)
        )

    async def patch_node_capacity(self, name: str, capacity: Mapping[str, int | None]) -> None:  # noqa: D102
        path = f"/api/v1/nodes/{quote(name)}/status"
        await self._ask(read_node, _Call("PATCH", "patch", "nodes/status", path, capacity_patch(capacity)))

    async def may(self, verb: str, resource: str) -> bool:
        """Whether our account has a right, of the core group and in all namespaces; not part of `Api`."""
        kind, _, sub = resource.partition("/")
        asked = {"verb": verb, "resource": kind, "subresource": sub}
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {key: value for key, value in asked.items() if value}},
        }
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        return await self._ask(read_allowed, _Call("POST", "create", "selfsubjectaccessreviews", path, body))

    async def node_labels(self, name: str) -> Mapping[str, str]:
        """A node's labels; the node labeller's, not part of `Api`."""
        return await self._ask(read_labels, _Call("GET", "get", "nodes", f"/api/v1/nodes/{quote(name)}"))

    async def patch_node_labels(self, name: str, labels: Mapping[str, str | None]) -> None:
        """Set labels of a node; None removes one."""
        call = _Call("PATCH", "patch", "nodes", f"/api/v1/nodes/{quote(name)}", labels_patch(labels))
        await self._ask(read_labels, call)

    async def event(self, about: Reference, saying: Saying) -> None:  # noqa: D102
        now = time.time()
        namespace = about.namespace or "default"
        body = _event(about, saying, namespace, self._component, now)
        call = _Call("POST", "create", "events", f"/api/v1/namespaces/{quote(namespace)}/events", body)
        try:
            await self._ask(bytes, call)
        except Conflict:
            return

    async def _ask(self, read: Callable[[bytes], T], call: _Call) -> T:
        loop = asyncio.get_running_loop()
        try:
            # The sockets have the same deadline; this one also covers a server that trickles bytes.
            async with asyncio.timeout(self._deadline + 1.0):
                status, body = await loop.run_in_executor(self._threads, self._send, call)
        except TimeoutError as error:
            raise Unavailable(
                f"{call.verb} {call.resource}: no answer within {self._deadline:g} s"
            ) from error
        if not 200 <= status < 300:
            raise failure(call, status, body, self._component.rpartition("-")[2])
        try:
            return read(body)
        except msgspec.MsgspecError as error:
            raise Unavailable(f"{call.verb} {call.resource}: cannot read the answer: {error}") from error

    def _send(self, call: _Call) -> tuple[int, bytes]:
        import urllib3.exceptions

        headers = {"Accept": "application/json"}
        if call.body is not None:
            headers["Content-Type"] = MERGE_PATCH if call.method == "PATCH" else "application/json"
        attempts = 2 if call.method == "GET" else 1  # a kept-alive connection may have died unseen
        for attempt in range(attempts):
            method, url, head, _, post = self._client.param_serialize(
                call.method, call.path, header_params=dict(headers), auth_settings=["BearerToken"]
            )
            try:
                answer = self._client.call_api(
                    method, url, head, call.body, post, _request_timeout=self._deadline
                )
                return int(answer.status), bytes(answer.read())
            except urllib3.exceptions.ProtocolError as error:
                if attempt + 1 == attempts:
                    raise Unavailable(f"{call.verb} {call.resource}: {error}") from error
            except (urllib3.exceptions.ReadTimeoutError, urllib3.exceptions.ConnectTimeoutError) as error:
                if isinstance(error, urllib3.exceptions.NewConnectionError):  # refused, and no timeout
                    raise Unavailable(f"{call.verb} {call.resource}: {error}") from error
                raise Unavailable(_silent(call, self._deadline)) from error
            except Exception as error:  # the client lets urllib3, ssl, socket and its own errors through
                raise Unavailable(f"{call.verb} {call.resource}: {type(error).__name__}: {error}") from error
        raise AssertionError("unreachable")


def _silent(call: _Call, seconds: float) -> str:
    return f"{call.verb} {call.resource}: no answer within {seconds:g} s"


def _pod_path(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{quote(namespace)}/pods/{quote(name)}"


def _event(about: Reference, saying: Saying, namespace: str, component: str, now: float) -> dict[str, Any]:
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
    involved = {"apiVersion": "v1", "kind": about.kind, "name": about.name, "uid": about.uid}
    if about.namespace:
        involved["namespace"] = about.namespace
    return {
        "apiVersion": "v1",
        "kind": "Event",
        # client-go names an event <object>.<hex of nanoseconds>.
        "metadata": {"name": saying.name or f"{about.name}.{int(now * 1e9):x}", "namespace": namespace},
        "involvedObject": involved,
        "type": saying.type,
        "reason": saying.reason,
        "message": saying.message[:1024],  # the API server refuses longer ones
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
        "source": {"component": component, "host": about.name if about.kind == "Node" else ""},
        "reportingComponent": component,
    }


def connect(kubeconfig: str | None, *, component: str, deadline: float = 5.0) -> OfficialClient:
    """An `Api` by `kubeconfig` (a path), else ``~/.kube/config``, else the pod's service account.

    Raises:
        NoCluster: none of the three is there, or the one that is cannot be read.
    """
    from kubernetes.client import ApiClient, Configuration
    from kubernetes.config import ConfigException, load_incluster_config, load_kube_config

    configuration = Configuration()
    # urllib3's own retries repeat connects behind our back and hide how long a call may take.
    configuration.retries = False
    try:
        if kubeconfig:
            load_kube_config(config_file=kubeconfig, client_configuration=configuration)
        else:
            try:
                load_kube_config(config_file="~/.kube/config", client_configuration=configuration)
            except ConfigException:
                load_incluster_config(client_configuration=configuration)
    except Exception as error:  # whatever a broken YAML file, a missing certificate, … raises
        why = _refusal(kubeconfig, str(error) if isinstance(error, ConfigException) else "")
        raise NoCluster(f"no API server: {why}; set KUBECONFIG, or run in a pod") from error
    client = ApiClient(configuration)
    client.user_agent = component
    return OfficialClient(client, component=component, deadline=deadline)


def _refusal(kubeconfig: str | None, told: str) -> str:
    """Why there is no configuration: `told` are the client's words where they are meant for people."""
    if not kubeconfig:
        return f"~/.kube/config and the pod's service account: {told or 'the file is no kubeconfig'}"
    try:
        Path(kubeconfig).read_bytes()
    except OSError as error:
        return f"{kubeconfig}: {error.strerror}"
    return f"{kubeconfig} is no kubeconfig" + (f": {told}" if told else "")
