"""Three ways to patch an object: JSON merge patch, strategic merge patch, JSON patch.

Merge patch is RFC 7386, JSON patch RFC 6902. Strategic merge is Kubernetes' own and the Python client's
default for a dict: lists of objects with a merge key are merged by it. We know the keys of the lists
that occur on pods and nodes. All functions return new objects and leave their arguments alone.
"""

from __future__ import annotations

import copy
import re
from typing import Any

from gpusim.cluster.apistatus import ApiError, bad_request

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON = "application/json-patch+json"
TYPES = (JSON, MERGE, STRATEGIC)
_INDEX = re.compile(r"0|[1-9][0-9]{0,9}")
"""RFC 6901's, of a list that can be held."""

_MERGE_KEYS = {
    "addresses": "type",
    "conditions": "type",
    "containers": "name",
    "env": "name",
    "initContainers": "name",
    "ownerReferences": "uid",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
"""Field name → merge key, from the ``patchMergeKey`` tags of k8s.io/api/core/v1; other lists are atomic."""


def apply(kind: str, target: Any, patch: Any) -> Any:
    """Apply a patch of content type `kind` (one of `TYPES`).

    Raises:
        ApiError: 400 for a patch of the wrong shape; 422 for a JSON patch that does not apply.
    """
    if kind == JSON:
        return json_patch(target, patch)
    if not isinstance(patch, dict):
        raise bad_request("a merge patch must be a JSON object")
    return merge(target, patch) if kind == MERGE else strategic(target, patch)


def merge(target: Any, patch: Any) -> Any:
    """RFC 7386: null removes, objects merge, everything else replaces."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value)
    return result


def strategic(target: Any, patch: Any, field: str = "") -> Any:
    """Like `merge`, but lists with a merge key are merged by it; ``$patch: replace|delete`` are known."""
    if isinstance(patch, list):
        key = _MERGE_KEYS.get(field)
        return patch if key is None or not isinstance(target, list) else _merge_list(target, patch, key)
    if not isinstance(patch, dict):
        return patch
    if patch.get("$patch") == "replace":
        return {k: v for k, v in patch.items() if k != "$patch"}
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif not key.startswith("$"):
            result[key] = strategic(result.get(key), value, key)
    return result


def _merge_list(target: list[Any], patch: list[Any], key: str) -> list[Any]:
    result = list(target)
    for item in patch:
        if not isinstance(item, dict) or key not in item:
            raise bad_request(f"a list that merges by {key!r} holds an entry without it")
        at = next((i for i, old in enumerate(result) if old.get(key) == item[key]), None)
        if item.get("$patch") == "delete":
            if at is not None:
                del result[at]
        elif at is None:
            result.append(item)
        else:
            result[at] = strategic(result[at], item)
    return result


def json_patch(target: Any, operations: Any) -> Any:
    """RFC 6902: add, remove, replace, move, copy, test, all or nothing."""
    if not isinstance(operations, list) or not all(isinstance(o, dict) for o in operations):
        raise bad_request("a JSON patch must be a list of operations")
    document = copy.deepcopy(target)
    for operation in operations:
        document = _operate(document, operation)
    return document


def _operate(document: Any, operation: dict[str, Any]) -> Any:
    op, path = operation.get("op"), _pointer(operation.get("path"))
    if op == "test":
        if _find(document, path) != operation.get("value"):
            raise _unprocessable(f"testing value {operation.get('path')} failed")
        return document
    if op in ("move", "copy"):
        source = _pointer(operation.get("from"))
        value = copy.deepcopy(_find(document, source))
        if op == "move":
            document = _remove(document, source)
        return _add(document, path, value)
    if op == "remove":
        return _remove(document, path)
    if op in ("add", "replace"):
        if "value" not in operation:
            raise bad_request(f"JSON patch operation {op} without a value")
        if op == "replace":
            _find(document, path)
            if path:
                document = _remove(document, path)
        return _add(document, path, copy.deepcopy(operation["value"]))
    raise bad_request(f"unknown JSON patch operation {op!r}")


def _pointer(text: Any) -> list[str]:
    if not isinstance(text, str) or (text and not text.startswith("/")):
        raise bad_request(f"{text!r} is no JSON pointer")
    return [part.replace("~1", "/").replace("~0", "~") for part in text.split("/")[1:]]


def _unprocessable(why: str) -> ApiError:
    message = f"the server rejected our request due to an error in our request: {why}"
    return ApiError(422, "Invalid", message)


def _find(document: Any, path: list[str]) -> Any:
    for part in path:
        if isinstance(document, dict) and part in document:
            document = document[part]
        elif isinstance(document, list) and _INDEX.fullmatch(part) and int(part) < len(document):
            document = document[int(part)]
        else:
            raise _unprocessable(f"path /{'/'.join(path)} does not exist")
    return document


def _remove(document: Any, path: list[str]) -> Any:
    _find(document, path)
    if not path:
        return None
    parent = _find(document, path[:-1])
    del parent[int(path[-1]) if isinstance(parent, list) else path[-1]]
    return document


def _add(document: Any, path: list[str], value: Any) -> Any:
    if not path:
        return value
    parent, last = _find(document, path[:-1]), path[-1]
    if isinstance(parent, dict):
        parent[last] = value
    elif isinstance(parent, list) and last == "-":
        parent.append(value)
    elif isinstance(parent, list) and _INDEX.fullmatch(last) and int(last) <= len(parent):
        parent.insert(int(last), value)
    else:
        raise _unprocessable(f"path /{'/'.join(path)} does not exist")
    return document
