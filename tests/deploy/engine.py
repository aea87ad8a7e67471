"""The charts, rendered by the real Helm engine, and values by their path.

The engine's wheel is for x86-64 Linux only: elsewhere what needs it is skipped with that reason.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import re
from collections.abc import Hashable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
CHARTS = ROOT / "deploy" / "charts"
AMD, ASCEND, PPU = NAMES = ("amd-gpu", "ascend-device-plugin", "ppu-vgpu-device-plugin")
RELEASE, NAMESPACE = "release", "place"

Where = tuple[str | int, ...]
"""A value's way through dicts and lists."""
Objects = dict[tuple[str, str], dict[str, Any]]
"""Rendered objects by kind and name."""

needs_helm = pytest.mark.skipif(
    importlib.util.find_spec("helm_python") is None,
    reason="no Helm engine: helm-python-sdk has a wheel for x86-64 Linux only",
)


class Strict(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML whose mappings name every key once: Helm's own parser keeps the last one silently."""


def _mapping(loader: Strict, node: yaml.MappingNode) -> dict[Hashable, Any]:
    keys = [loader.construct_object(key) for key, _ in node.value]
    assert len(keys) == len(set(keys)), f"a key stands twice: {keys}"
    return loader.construct_mapping(node, deep=True)


Strict.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


@cache
def _chart(name: str) -> Any:
    import helm_python

    return helm_python.Chart.load(CHARTS / name)


@cache
def _default_values(name: str) -> str:
    return json.dumps(yaml.load((CHARTS / name / "values.yaml").read_text(), Strict))


def values(name: str) -> dict[str, Any]:
    """A chart's values.yaml."""
    found: dict[str, Any] = json.loads(_default_values(name))
    return found


@cache
def schema(name: str) -> dict[str, Any]:
    """A chart's values.schema.json."""
    found: dict[str, Any] = json.loads((CHARTS / name / "values.schema.json").read_text())
    return found


@cache
def metadata(name: str) -> dict[str, Any]:
    """Chart.yaml."""
    found: dict[str, Any] = yaml.load((CHARTS / name / "Chart.yaml").read_text(), Strict)
    return found


def texts(name: str, over: Mapping[str, Any] | None = None) -> dict[str, str]:
    """Template → what it became; raises the engine's error when it refuses."""
    rendered = _chart(name).render(dict(over or {}), name=RELEASE, namespace=NAMESPACE)
    return {path.rpartition("/templates/")[2]: text for path, text in rendered.items() if text.strip()}


def objects(name: str, over: Mapping[str, Any] | None = None) -> Objects:
    """Everything that would be installed; the caller's own copy."""
    return copy.deepcopy(_objects(name, json.dumps(over or {})))


@cache
def _objects(name: str, over: str) -> Objects:
    found: Objects = {}
    for path, text in texts(name, json.loads(over)).items():
        if path == "NOTES.txt":
            continue
        for document in yaml.load_all(text, Strict):
            if document is not None:
                key = (document["kind"], document["metadata"]["name"])
                assert key not in found, key
                found[key] = document
    return found


def refusal(name: str, over: Mapping[str, Any]) -> str:
    """The engine's words for values it does not render."""
    import helm_python

    with pytest.raises(helm_python.HelmError) as caught:
        texts(name, over)
    return str(caught.value)


def only(found: Objects, kind: str) -> dict[str, Any]:
    """The one object of a kind."""
    (one,) = [document for (of, _), document in found.items() if of == kind]
    return one


def container(daemon_set: Mapping[str, Any]) -> dict[str, Any]:
    """The one container of its pods."""
    (one,) = daemon_set["spec"]["template"]["spec"]["containers"]
    return dict(one)


def plugin(name: str, over: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The plugin's DaemonSet."""
    (one,) = [
        document
        for (kind, called), document in objects(name, over).items()
        if kind == "DaemonSet" and "monitor" not in called
    ]
    return one


def arguments(name: str, over: Mapping[str, Any] | None = None) -> list[str]:
    """The plugin's command line, as the process gets it."""
    words: list[str] = container(plugin(name, over))["args"]
    assert all(isinstance(word, str) for word in words)
    return words


# Values by their path


def leaves(value: Any, way: Where = ()) -> Iterator[tuple[Where, Any]]:
    """Every value that is no dict or list, and every empty one, with its path."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from leaves(inner, (*way, key))
    elif isinstance(value, list) and value:
        for index, inner in enumerate(value):
            yield from leaves(inner, (*way, index))
    else:
        yield way, value


def spelled(way: Where) -> str:
    """As the guides write it: ``daemonSet.args[0]``."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in way).lstrip(".")


def way(name: str, key: str) -> Where:
    """The path that a guide spells, of a chart's values."""
    known = {spelled(path): path for path, _ in leaves(values(name))}
    return known[key]


def over(name: str, changed: Mapping[Where, Any]) -> dict[str, Any]:
    """Overrides as somebody would give them: single keys of dicts, lists as a whole."""
    result: dict[str, Any] = {}
    for path, value in changed.items():
        at = next((index for index, part in enumerate(path) if isinstance(part, int)), len(path))
        place, inside = path[:at], path[at:]
        node = result
        for part in place[:-1]:
            node = node.setdefault(str(part), {})
        last = str(place[-1])
        if not inside:
            node[last] = value
            continue
        target = node[last] = node.get(last, copy.deepcopy(get(values(name), place)))
        for step in inside[:-1]:
            target = target[step]
        target[inside[-1]] = value
    return result


def get(tree: Any, path: Where) -> Any:
    """What is at a path."""
    for part in path:
        tree = tree[part]
    return tree


def rule(name: str, path: Where) -> dict[str, Any]:
    """The part of the schema that a value must satisfy, with the definitions it refers to."""
    root = schema(name)
    node: dict[str, Any] = root
    for part in path:
        node = _resolved(root, node)
        if isinstance(part, int):
            node = node["items"]
        else:
            properties = node.get("properties", {})
            node = properties[part] if part in properties else node.get("additionalProperties", {})
        assert isinstance(node, dict), spelled(path)
    return {**_resolved(root, node), "definitions": root.get("definitions", {})}


def _resolved(root: Mapping[str, Any], node: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in node:
        match = re.fullmatch(r"#/definitions/(\w+)", node["$ref"])
        assert match is not None
        found: dict[str, Any] = root["definitions"][match[1]]
        return found
    return node
