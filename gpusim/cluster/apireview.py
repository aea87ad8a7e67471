"""What a client may do: SelfSubjectAccessReview, answered by the faults that forbid.

The simulated API server has no accounts and no roles. What a real one would not grant is a fault that
answers 403 for ever; a review that asks for such a request is told no. Kind, fields and the 201 are those of
``authorization.k8s.io/v1``, which every authenticated user may create (role ``system:basic-user``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpusim.cluster.apifaults import Call, Faults
from gpusim.cluster.apirouter import Request, Response, answer, refusal
from gpusim.cluster.apistatus import bad_request, method_not_allowed

PATH = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


def review(request: Request, faults: Faults, decode: Callable[[bytes], Any]) -> Response | None:
    """The answer to a review; None when the request is none.

    Args:
        request: as it came.
        faults: what is forbidden.
        decode: reads a JSON body; None when it is none.
    """
    if request.path.rstrip("/") != PATH:
        return None
    if request.method != "POST":
        return refusal(method_not_allowed())
    body = decode(request.body)
    asked = body.get("spec", {}).get("resourceAttributes") if isinstance(body, dict) else None
    if not isinstance(asked, dict) or not all(isinstance(word, str) for word in asked.values()):
        return refusal(bad_request("spec.resourceAttributes: an object of texts is required"))
    words = {key: asked.get(key, "") for key in ("verb", "resource", "subresource", "namespace", "name")}
    allowed = not faults.forbids(Call(**words, agent=request.headers.get("user-agent", "")))
    return answer(
        201,
        {
            "kind": "SelfSubjectAccessReview",
            "apiVersion": "authorization.k8s.io/v1",
            "metadata": {},
            "spec": {"resourceAttributes": asked},
            "status": {"allowed": allowed},
        },
    )
