"""From an HTTP request to a verb on the store, and back to bytes: no sockets here.

Paths, parameters and bodies of the core/v1 API as the official clients use them; what is not served
answers as a real server does (404, 405, 415). Source: kubernetes.io API reference, v1.36.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote

import msgspec

from gpusim.cluster import apipatch
from gpusim.cluster.apifaults import Call
from gpusim.cluster.apistatus import (
    KINDS,
    ApiError,
    bad_request,
    method_not_allowed,
    no_such_resource,
    unsupported_media_type,
)
from gpusim.cluster.apistore import CLUSTER_SCOPED, NAMESPACED, RESOURCES, Store

Object = dict[str, Any]

VERSION = {
    "major": "1",
    "minor": "36",
    "gitVersion": "v1.36.2+gpusim",
    "gitCommit": "",
    "gitTreeState": "",
    "buildDate": "2026-01-01T00:00:00Z",
    "goVersion": "",
    "compiler": "",
    "platform": "linux/amd64",
}

_VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]
_SUBRESOURCES = {("nodes", "status"), ("pods", "status"), ("namespaces", "status"), ("pods", "binding")}


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request; header names in lower case."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes = b""

    @property
    def path(self) -> str:
        """The path, still percent-encoded."""
        return self.target.partition("?")[0]

    @property
    def query(self) -> dict[str, str]:
        """Parameters; the last of a name wins."""
        return dict(parse_qsl(self.target.partition("?")[2], keep_blank_values=True))


@dataclass(frozen=True, slots=True)
class Watch:
    """A watch to be streamed."""

    resource: str
    namespace: str | None
    fields: str
    labels: str
    since: int | None
    """None: begin with what is there."""
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Response:
    """Status and body; `watch` set means: stream that instead of the body."""

    code: int
    body: bytes = b""
    content_type: str = "application/json"
    watch: Watch | None = None


def number(text: str) -> bool:
    """Whether a text is a number a client can mean: plain digits, few enough for 64 bits."""
    return text.isascii() and text.isdecimal() and len(text) < 20


def answer(code: int, obj: Any) -> Response:
    """A JSON response."""
    return Response(code, msgspec.json.encode(obj))


def refusal(error: ApiError) -> Response:
    """The Status response of an error."""
    return answer(error.code, error.status())


def discovery(request: Request) -> Response | None:
    """Answers that need no object: health, version, API lists; None when the path is another."""
    path = request.path.rstrip("/") or "/"
    body: Any
    if path in ("/healthz", "/readyz", "/livez"):
        return Response(200, b"ok", "text/plain; charset=utf-8")
    if path == "/version":
        body = VERSION
    elif path == "/api":
        body = {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
    elif path == "/apis":
        body = {"kind": "APIGroupList", "apiVersion": "v1", "groups": []}
    elif path == "/api/v1":
        body = {"kind": "APIResourceList", "groupVersion": "v1", "resources": _resource_list()}
    elif path.startswith("/api/v1/"):
        return None
    elif path.startswith(("/api/", "/apis/")):
        return refusal(no_such_resource())
    else:
        return Response(404, b"404 page not found\n", "text/plain; charset=utf-8")
    return answer(200, body) if request.method == "GET" else refusal(method_not_allowed())


def _resource_list() -> list[Object]:
    main = [
        {"name": r, "singularName": "", "namespaced": r in NAMESPACED, "kind": KINDS[r], "verbs": _VERBS}
        for r in RESOURCES
    ]
    subs = [
        {
            "name": f"{r}/{s}",
            "singularName": "",
            "namespaced": r in NAMESPACED,
            "kind": "Binding" if s == "binding" else KINDS[r],
            "verbs": ["create"] if s == "binding" else ["get", "patch", "update"],
        }
        for r, s in sorted(_SUBRESOURCES)
    ]
    return main + subs


def classify(request: Request) -> Call:
    """What a request under /api/v1 asks, in RBAC's words.

    Raises:
        ApiError: 404 for a path that is no resource of ours, 405 for a verb it has not.
    """
    parts = [unquote(p) for p in request.path.removeprefix("/api/v1/").rstrip("/").split("/")]
    namespace = ""
    if len(parts) >= 3 and parts[0] == "namespaces" and parts[2] in (*NAMESPACED, "bindings"):
        namespace, parts = parts[1], parts[2:]
    resource, name, subresource = (*parts, "", "")[:3]
    if len(parts) > 3 or not all(parts):
        raise no_such_resource()
    if resource == "bindings" and namespace and not name:  # the older way to bind
        resource, subresource = "pods", "binding"
        if request.method != "POST":
            raise method_not_allowed()
    elif (
        resource not in RESOURCES
        or (subresource and (resource, subresource) not in _SUBRESOURCES)
        or (resource in NAMESPACED and name and not namespace)
    ):
        raise no_such_resource()
    verb = _verb(request, resource, namespace, name, subresource)
    return Call(verb, resource, subresource, namespace, name, request.headers.get("user-agent", ""))


def _verb(request: Request, resource: str, namespace: str, name: str, subresource: str) -> str:
    if subresource == "binding":
        verbs = {"POST": "create"}
    elif subresource:
        verbs = {"GET": "get", "PUT": "update", "PATCH": "patch"}
    elif name:
        verbs = {"GET": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
    else:
        verbs = {"GET": "watch" if request.query.get("watch") in ("1", "true") else "list"}
        if namespace or resource in CLUSTER_SCOPED:
            verbs["POST"] = "create"
    verb = verbs.get(request.method)
    if verb is None:
        raise method_not_allowed()
    return verb


def carry_out(store: Store, call: Call, request: Request) -> Response:
    """Do what was asked.

    Raises:
        ApiError: the refusal.
    """
    if request.query.get("dryRun"):
        raise bad_request("the simulated API server has no dry run")
    if call.verb == "get":
        return answer(200, store.peek(call.resource, call.name, call.namespace))
    if call.verb in ("list", "watch"):
        return _list(store, call, request.query)
    if call.verb == "delete":
        return _delete(store, call, request)
    return _write(store, call, request)


def _write(store: Store, call: Call, request: Request) -> Response:
    resource, name, namespace = call.resource, call.name, call.namespace
    kind = _media_type(request)
    accepted = apipatch.TYPES if call.verb == "patch" else ("application/json",)
    if kind not in accepted and (kind or call.verb == "patch"):
        raise unsupported_media_type(accepted)
    body = _decode(request.body)
    if call.verb == "patch":
        new = store.amend(resource, name, body, namespace, subresource=call.subresource, kind=kind)
        return answer(200, new)
    if not isinstance(body, dict):
        raise bad_request(f"the object provided is unrecognized (must be of type {KINDS[resource]})")
    if call.subresource == "binding":
        metadata = body.get("metadata")
        named = metadata.get("name", "") if isinstance(metadata, dict) else ""
        store.assign(name or named, body, namespace)
        done = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
        return answer(201, done)
    if call.verb == "update":
        return answer(200, store.replace(resource, name, body, namespace, subresource=call.subresource))
    return answer(201, store.make(resource, body, namespace))


def _list(store: Store, call: Call, query: Mapping[str, str]) -> Response:
    namespace = call.namespace or None
    fields, labels = query.get("fieldSelector", ""), query.get("labelSelector", "")
    if call.verb == "watch":
        since = query.get("resourceVersion", "")
        seconds = query.get("timeoutSeconds", "")
        if not number(since or "0") or not number(seconds or "0"):
            raise bad_request("resourceVersion and timeoutSeconds of a watch must be numbers")
        store.select(call.resource, namespace, fields=fields, labels=labels)  # refuse a bad selector now
        watch = Watch(
            call.resource, namespace, fields, labels, int(since or 0) or None, float(seconds or 0) or None
        )
        return Response(200, watch=watch)
    items, version = store.select(call.resource, namespace, fields=fields, labels=labels)
    listed = {
        "kind": f"{KINDS[call.resource]}List",
        "apiVersion": "v1",
        "metadata": {"resourceVersion": str(version)},
        # items of a list carry no kind of their own
        "items": [{k: v for k, v in o.items() if k not in ("kind", "apiVersion")} for o in items],
    }
    return answer(200, listed)


def _delete(store: Store, call: Call, request: Request) -> Response:
    options = _decode(request.body) if request.body else {}
    if not isinstance(options, dict):
        raise bad_request("DeleteOptions must be an object")
    grace = options.get("gracePeriodSeconds", request.query.get("gracePeriodSeconds"))
    if grace is not None and not number(str(grace)):
        raise bad_request(f"gracePeriodSeconds {grace!r} is no number")
    conditions = options.get("preconditions") or {}
    last, gone = store.drop(
        call.resource,
        call.name,
        call.namespace,
        grace_seconds=None if grace is None else int(grace),
        uid=conditions.get("uid"),
        version=conditions.get("resourceVersion"),
    )
    if call.resource == "pods" or not gone:
        return answer(200, last)
    details = {"name": call.name, "kind": call.resource, "uid": last["metadata"]["uid"]}
    return answer(
        200, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}
    )


def _media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _decode(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise bad_request(f"the body is no JSON: {error}") from None
