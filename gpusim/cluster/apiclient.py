"""The kubelet's end of the API: a few verbs over HTTP with the standard library.

The simulated kubelet is no place for the official client (it would hide what a plugin's use of it does),
and needs six verbs only. One connection per thread, re-opened when the server dropped it.
"""

from __future__ import annotations

import http.client
import select
import threading
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from gpusim.cluster import apipatch
from gpusim.cluster.apistatus import ApiError, UnreachableError
from gpusim.cluster.apistore import CLUSTER_SCOPED
from gpusim.errors import GpusimError

Object = dict[str, Any]
Objects = list[Object]


class ApiClient:
    """Satisfies `apiport.Api` against a served API server.

    Args:
        url: ``http://host:port``.
        agent: User-Agent, by which the server's log tells who asked.
        timeout: seconds for connecting and for each read.
    """

    def __init__(self, url: str, *, agent: str = "gpusim", timeout: float = 10.0) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise GpusimError(f"{url!r}: expected http://HOST:PORT")
        self.url = url
        self._host, self._port = parts.hostname, parts.port or 80
        self._agent, self._timeout = agent, timeout
        self._local = threading.local()
        self._lock = threading.Lock()
        self._open: set[http.client.HTTPConnection] = set()

    def create(self, resource: str, body: Object, namespace: str = "default") -> Object:
        """See `apiport.Api.create`."""
        return self._ask("POST", _path(resource, namespace), body)

    def get(self, resource: str, name: str, namespace: str = "default") -> Object:
        """See `apiport.Api.get`."""
        return self._ask("GET", _path(resource, namespace, name))

    def list(
        self, resource: str, namespace: str | None = None, *, fields: str = "", labels: str = ""
    ) -> Objects:
        """See `apiport.Api.list`."""
        query = {k: v for k, v in (("fieldSelector", fields), ("labelSelector", labels)) if v}
        path = _path(resource, namespace) + (f"?{urlencode(query)}" if query else "")
        found: Objects = self._ask("GET", path)["items"]
        return found

    def patch(
        self, resource: str, name: str, body: Object, namespace: str = "default", *, subresource: str = ""
    ) -> Object:
        """See `apiport.Api.patch`."""
        return self._ask("PATCH", _path(resource, namespace, name, subresource), body, apipatch.MERGE)

    def delete(
        self, resource: str, name: str, namespace: str = "default", *, grace_seconds: int | None = 0
    ) -> None:
        """See `apiport.Api.delete`."""
        options = {} if grace_seconds is None else {"gracePeriodSeconds": grace_seconds}
        self._ask("DELETE", _path(resource, namespace, name), options)

    def bind(self, name: str, node: str, namespace: str = "default") -> None:
        """See `apiport.Api.bind`."""
        body = {"metadata": {"name": name}, "target": {"apiVersion": "v1", "kind": "Node", "name": node}}
        self._ask("POST", _path("pods", namespace, name, "binding"), body)

    def close(self) -> None:
        """Close the connections of all threads."""
        with self._lock:
            for connection in self._open:
                connection.close()
            self._open.clear()

    def _ask(self, method: str, path: str, body: Any = None, content: str = "application/json") -> Object:
        raw = None if body is None else msgspec.json.encode(body)
        headers = {"User-Agent": self._agent, "Accept": "application/json"}
        if raw is not None:
            headers["Content-Type"] = content
        connection, reused = self._connection()
        try:
            code, answer = self._exchange(connection, method, path, raw, headers)
        except (OSError, http.client.HTTPException) as error:
            self._discard(connection)
            # a kept connection may have died between two requests: one more try, if repeating is harmless
            if reused and method == "GET":
                return self._ask(method, path, body, content)
            raise UnreachableError(f"{method} {self.url}{path}: {type(error).__name__}: {error}") from error
        try:
            decoded = msgspec.json.decode(answer)
        except (msgspec.DecodeError, RecursionError) as error:
            raise UnreachableError(f"{method} {self.url}{path}: answer {code} is no JSON") from error
        if code >= 400:
            raise ApiError(
                code, decoded.get("reason", ""), decoded.get("message", ""), decoded.get("details")
            )
        result: Object = decoded
        return result

    @staticmethod
    def _exchange(
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        raw: bytes | None,
        headers: dict[str, str],
    ) -> tuple[int, bytes]:
        connection.request(method, path, raw, headers)
        response = connection.getresponse()
        return response.status, response.read()

    def _connection(self) -> tuple[http.client.HTTPConnection, bool]:
        kept = getattr(self._local, "connection", None)
        if kept is not None and kept.sock is not None:
            if not select.select([kept.sock], [], [], 0)[0]:
                return kept, True
            self._discard(kept)  # the server said something unasked: it hung up
        made = http.client.HTTPConnection(self._host, self._port, timeout=self._timeout)
        self._local.connection = made
        with self._lock:
            self._open.add(made)
        return made, False

    def _discard(self, connection: http.client.HTTPConnection) -> None:
        connection.close()
        self._local.connection = None
        with self._lock:
            self._open.discard(connection)


def _path(resource: str, namespace: str | None, name: str = "", subresource: str = "") -> str:
    parts = ["/api/v1"]
    if resource not in CLUSTER_SCOPED and namespace is not None:
        parts += ["namespaces", quote(namespace, safe="")]
    parts.append(resource)
    if name:
        parts.append(quote(name, safe=""))
    if subresource:
        parts.append(subresource)
    return "/".join(parts)
