"""Field and label selectors of list and watch.

Field selectors know the fields a real API server indexes for each resource and refuse others with 400
(k8s.io/kubernetes pkg/apis/core/v1/conversion.go). Label selectors:
``k=v``, ``k==v``, ``k!=v``, ``k``, ``!k``, ``k in (…)``, ``k notin (…)``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gpusim.cluster.apistatus import bad_request

Object = dict[str, Any]
Predicate = Callable[[Object], bool]

FIELDS: Mapping[str, frozenset[str]] = {
    "pods": frozenset(
        {
            "metadata.name",
            "metadata.namespace",
            "spec.hostNetwork",
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "status.nominatedNodeName",
            "status.phase",
            "status.podIP",
        }
    ),
    "nodes": frozenset({"metadata.name", "spec.unschedulable"}),
    "namespaces": frozenset({"metadata.name", "status.phase"}),
    "events": frozenset(
        {
            "involvedObject.apiVersion",
            "involvedObject.fieldPath",
            "involvedObject.kind",
            "involvedObject.name",
            "involvedObject.namespace",
            "involvedObject.resourceVersion",
            "involvedObject.uid",
            "metadata.name",
            "metadata.namespace",
            "reason",
            "reportingComponent",
            "type",
        }
    ),
}

_SET = re.compile(r"^(?P<key>[^\s!=,()]+)\s+(?P<op>in|notin)\s*\((?P<values>[^()]*)\)$")
_EQUAL = re.compile(r"^(?P<key>[^\s!=,()]+)\s*(?P<op>==|=|!=)\s*(?P<value>[^\s!=,()]*)$")
_EXISTS = re.compile(r"^(?P<no>!?)\s*(?P<key>[^\s!=,()]+)$")


def fields(resource: str, selector: str) -> Predicate:
    """A predicate for a field selector; an absent field reads as the empty string.

    Raises:
        ApiError: 400 for a field this resource has no index for, or bad syntax.
    """
    terms: list[tuple[list[str], str, bool]] = []
    for term in filter(None, selector.split(",")):
        match = _EQUAL.match(term.strip())
        if match is None:
            raise bad_request(
                f'Unable to find "v1, Resource={resource}" that match field selector "{selector}"'
            )
        if match["key"] not in FIELDS[resource]:
            raise bad_request(f"field label not supported: {match['key']}")
        terms.append((match["key"].split("."), match["value"], match["op"] != "!="))
    return lambda obj: all((_text(obj, path) == value) is wanted for path, value, wanted in terms)


def _text(obj: Object, path: list[str]) -> str:
    value: Any = obj
    for part in path:
        value = value.get(part) if isinstance(value, dict) else None
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def labels(selector: str) -> Predicate:
    """A predicate for a label selector.

    Raises:
        ApiError: 400 for bad syntax.
    """
    tests = [_label(term.strip()) for term in _terms(selector) if term.strip()]
    return lambda obj: all(test(obj["metadata"].get("labels") or {}) for test in tests)


def _terms(selector: str) -> Iterator[str]:
    """What commas part; not those inside of parentheses."""
    start, inside = 0, False
    for at, sign in enumerate(selector):
        if sign in "()":
            inside = sign == "("
        elif sign == "," and not inside:
            yield selector[start:at]
            start = at + 1
    yield selector[start:]


def _label(term: str) -> Callable[[Mapping[str, str]], bool]:
    if match := _SET.match(term):
        key, wanted = match["key"], match["op"] == "in"
        values = {v.strip() for v in match["values"].split(",")}
        return lambda have: (have.get(key) in values) is wanted
    if match := _EQUAL.match(term):
        key, value, equal = match["key"], match["value"], match["op"] != "!="
        return lambda have: (have.get(key) == value) is equal
    if match := _EXISTS.match(term):
        key, present = match["key"], not match["no"]
        return lambda have: (key in have) is present
    raise bad_request(f"unable to parse requirement: {term!r}")
