"""`helm`, as far as the pages use it: values are merged and charts rendered by the real engine.

install, upgrade, uninstall, lint and template. What a release holds is applied to
the cluster of the page.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from .cluster import Cluster, Object, RefusedError
from .words import Words, parse

_FLAGS = {"-n": "namespace", "--set": "set", "-f": "values"}
_REUSE = ("--reuse-values", "--reset-then-reuse-values")
"""Both keep what was given; they differ in whose defaults are below, and a chart has one version here."""
_SWITCHES = {"--create-namespace", *_REUSE, "--strict"}


def run(cluster: Cluster, argv: list[str], cwd: Path, stdin: str) -> str:
    """What it prints; raises RefusedError."""
    del stdin
    words = parse(argv, _FLAGS, _SWITCHES)
    verb, *rest = words.plain
    namespace = words.one("namespace", "default")
    if verb in ("install", "upgrade"):
        return _install(cluster, verb, rest, words, namespace, cwd)
    if verb == "uninstall":
        release = cluster.releases.pop((namespace, rest[0]), None)
        if release is None:
            raise RefusedError(f"uninstall: Release not loaded: {rest[0]}: release: not found")
        for one in release["objects"]:
            cluster.remove(one)
        return f'release "{rest[0]}" uninstalled\n'
    if verb == "lint":
        return _lint(rest[0], words, cwd)
    if verb == "template":
        given = _given(words, cwd)
        found, _ = _render(rest[1], rest[0], namespace, given, cwd)
        return "".join(f"---\n{yaml.safe_dump(one, sort_keys=False)}" for one in found)
    raise AssertionError(f"helm {verb}: not in this stand-in")


def _install(cluster: Cluster, verb: str, rest: list[str], words: Words, namespace: str, cwd: Path) -> str:
    name, chart = rest
    known = {one["metadata"]["name"] for one in cluster.store.list("namespaces")} | {"default"}
    if namespace not in known:
        if not words.has("--create-namespace"):
            raise RefusedError(f'create: failed to create: namespaces "{namespace}" not found')
        cluster.store.create("namespaces", {"metadata": {"name": namespace}})
    before = cluster.releases.get((namespace, name))
    if verb == "install" and before is not None:
        raise RefusedError("INSTALLATION FAILED: cannot re-use a name that is still in use")
    if verb == "upgrade" and before is None:
        raise RefusedError(f'UPGRADE FAILED: "{name}" has no deployed releases')
    given = _given(words, cwd)
    if before is not None and any(map(words.has, _REUSE)):
        given = _merged(before["given"], given)
    found, notes = _render(chart, name, namespace, given, cwd)
    order = {"Namespace": 0, "ConfigMap": 1}
    for one in sorted(found, key=lambda one: order.get(one["kind"], 2)):
        cluster.apply(one)
    for old in (before or {"objects": []})["objects"]:
        if not any(_same(old, new) for new in found):
            cluster.remove(old)
    cluster.releases[namespace, name] = {"given": given, "objects": found}
    return f"NAME: {name}\nNAMESPACE: {namespace}\nSTATUS: deployed\nNOTES:\n{notes}\n"


def _render(chart: str, name: str, namespace: str, given: Object, cwd: Path) -> tuple[list[Object], str]:
    import helm_python

    try:
        rendered = helm_python.Chart.load(cwd / chart).render(given, name=name, namespace=namespace)
    except helm_python.HelmError as error:
        raise RefusedError(str(error)) from error
    found = []
    notes = ""
    for path, text in rendered.items():
        if path.endswith("NOTES.txt"):
            notes = text
            continue
        found += [one for one in yaml.safe_load_all(text) if one is not None]
    return found, notes


def _lint(chart: str, words: Words, cwd: Path) -> str:
    import helm_python

    report = helm_python.lint(cwd / chart, _given(words, cwd), strict=words.has("--strict"))
    if report["errors"]:
        raise RefusedError("\n".join(map(str, report["errors"])))
    return f"==> Linting {chart}\n\n1 chart(s) linted, 0 chart(s) failed\n"


def _given(words: Words, cwd: Path) -> Object:
    import helm_python

    given: Object = {}
    for file in words.all("values"):
        given = _merged(given, yaml.safe_load((cwd / file).read_text()) or {})
    for text in words.all("set"):
        given = _merged(given, helm_python.parse_set_string(text))
    return given


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> Object:
    result = copy.deepcopy(dict(below))
    for key, value in above.items():
        old = result.get(key)
        result[key] = _merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return result


def _same(one: Object, other: Object) -> bool:
    def key(of: Object) -> tuple[str, str, str]:
        return of["kind"], of["metadata"].get("namespace", ""), of["metadata"]["name"]

    return key(one) == key(other)
