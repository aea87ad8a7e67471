"""The refusals of an API server, in the shape every Kubernetes client expects.

A failure is a ``Status`` object with code, reason, message and details. Reasons and messages follow
k8s.io/apimachinery's ``pkg/api/errors``, because clients match on them and people search for them.
"""

from __future__ import annotations

from typing import Any

from gpusim.errors import GpusimError

KINDS = {"nodes": "Node", "pods": "Pod", "events": "Event", "namespaces": "Namespace"}
"""Resource in the URL → kind of its objects."""


class ApiError(GpusimError):
    """The API server said no: `code`, `reason` and message as in the Status object."""

    def __init__(self, code: int, reason: str, message: str, details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details or {}

    def status(self) -> dict[str, Any]:
        """The Status object of the response body."""
        body: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        }
        if self.details:
            body["details"] = self.details
        return body


class UnreachableError(GpusimError):
    """No answer came: the connection was refused, dropped, or timed out."""


def not_found(resource: str, name: str) -> ApiError:
    """404 for a named object."""
    return ApiError(404, "NotFound", f'{resource} "{name}" not found', {"name": name, "kind": resource})


def no_such_resource() -> ApiError:
    """404 for a path under /api that names nothing we serve."""
    return ApiError(404, "NotFound", "the server could not find the requested resource")


def already_exists(resource: str, name: str) -> ApiError:
    """409 on create."""
    return ApiError(
        409, "AlreadyExists", f'{resource} "{name}" already exists', {"name": name, "kind": resource}
    )


def conflict(resource: str, name: str, why: str) -> ApiError:
    """409 on a precondition that does not hold."""
    message = f'Operation cannot be fulfilled on {resource} "{name}": {why}'
    return ApiError(409, "Conflict", message, {"name": name, "kind": resource})


def stale(resource: str, name: str) -> ApiError:
    """409 on an old resourceVersion."""
    why = "the object has been modified; please apply your changes to the latest version and try again"
    return conflict(resource, name, why)


def invalid(resource: str, name: str, *causes: tuple[str, str]) -> ApiError:
    """422; each cause is (field path, message)."""
    kind = KINDS.get(resource, resource)
    listed = [f"{field}: {why}" for field, why in causes]
    text = listed[0] if len(listed) == 1 else f"[{', '.join(listed)}]"
    details = {
        "name": name,
        "kind": kind,
        "causes": [{"reason": "FieldValueInvalid", "message": why, "field": field} for field, why in causes],
    }
    return ApiError(422, "Invalid", f'{kind} "{name}" is invalid: {text}', details)


def bad_request(message: str) -> ApiError:
    """400: the request makes no sense, whatever the state."""
    return ApiError(400, "BadRequest", message)


def method_not_allowed() -> ApiError:
    """405: the resource exists and has no such verb."""
    return ApiError(
        405, "MethodNotAllowed", "the server does not allow this method on the requested resource"
    )


def unsupported_media_type(accepted: tuple[str, ...]) -> ApiError:
    """415: a body in a format the verb does not take."""
    types = ", ".join(accepted)
    message = f"the body of the request was in an unknown format - accepted media types include: {types}"
    return ApiError(415, "UnsupportedMediaType", message)


def gone(message: str) -> ApiError:
    """410: a watch from a version that is no longer remembered."""
    return ApiError(410, "Expired", message)
