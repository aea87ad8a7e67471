"""The verbs of the simulated API server as Python calls, wherever it runs.

`apistore.Store` answers them in this process, `apiclient.ApiClient` over HTTP; the simulated kubelet
and the placing of pods are written against this and work with either.
"""

from __future__ import annotations

from typing import Any, Protocol

Object = dict[str, Any]
"""A Kubernetes object as plain JSON values."""
Objects = list[Object]


class Api(Protocol):
    """Resources are named as in the URL: ``nodes``, ``pods``, ``events``, ``namespaces``.

    Every call raises `ApiError` with the code the server gives (404, 409, 422, …); the client also
    raises `UnreachableError` when there was no answer. Objects handed out belong to the caller.
    """

    def create(self, resource: str, body: Object, namespace: str = "default") -> Object:
        """Create; 409 AlreadyExists, 422 Invalid, 404 when the namespace is not there."""
        ...

    def get(self, resource: str, name: str, namespace: str = "default") -> Object:
        """One object; 404."""
        ...

    def list(
        self, resource: str, namespace: str | None = None, *, fields: str = "", labels: str = ""
    ) -> Objects:
        """Objects in order of namespace and name; `fields` and `labels` are selectors as text."""
        ...

    def patch(
        self, resource: str, name: str, body: Object, namespace: str = "default", *, subresource: str = ""
    ) -> Object:
        """JSON merge patch; a resourceVersion inside is a precondition (409). ``status`` or ``""``."""
        ...

    def delete(
        self, resource: str, name: str, namespace: str = "default", *, grace_seconds: int | None = 0
    ) -> None:
        """Delete; grace 0 at once, None as the server decides (a bound pod waits for its kubelet)."""
        ...

    def bind(self, name: str, node: str, namespace: str = "default") -> None:
        """Create the pod's Binding; 409 when it is bound or being deleted."""
        ...
