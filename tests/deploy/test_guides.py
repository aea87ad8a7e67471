"""The vendors' tables of values against values.yaml and schema, both ways; and each chart's own table."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from .engine import (
    AMD,
    ASCEND,
    CHARTS,
    NAMES,
    PPU,
    ROOT,
    arguments,
    leaves,
    metadata,
    needs_helm,
    over,
    rule,
    spelled,
    values,
    way,
)

TESTS = ROOT / "tests"
TABLES = {AMD: "guide_amd_chart.yaml", ASCEND: "guide_ascend.yaml", PPU: "guide_ppu.yaml"}
GUIDES: dict[str, dict[str, dict[str, Any]]] = {
    name: {row["key"]: row for row in yaml.safe_load((TESTS / file).read_text())}
    for name, file in TABLES.items()
}
OURS = {
    AMD: {"dp.resourceNamingStrategy", "dp.metricsBindAddress"},
    ASCEND: {"daemonSet.metricsBindAddress"},
    PPU: {"plugin.metricsBindAddress"},
}
PYTHON: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "bool": (bool,),
    "int": (int,),
    "float": (int, float),
    "list": (list,),
    "object": (dict,),
}
JSON = {
    "string": "string",
    "bool": "boolean",
    "int": "integer",
    "float": "number",
    "list": "array",
    "object": "object",
}
ROWS = [(name, row) for name in NAMES for row in GUIDES[name].values()]


@pytest.mark.parametrize("found", ROWS, ids=lambda found: f"{found[0]}:{found[1]['key']}")
def test_a_row_of_the_guide_is_a_value_with_its_type_and_default(found: tuple[str, dict[str, Any]]) -> None:
    name, row = found
    flat = {spelled(path): value for path, value in leaves(values(name))}
    default = flat[row["key"]]
    assert default == row["default"]
    assert isinstance(default, PYTHON[row["type"]])
    assert isinstance(default, bool) == (row["type"] == "bool")
    assert JSON[row["type"]] in kinds(rule(name, way(name, row["key"])))


def kinds(told: dict[str, Any]) -> set[str]:
    """JSON types that a rule takes."""
    if "enum" in told:
        return {"string" for word in told["enum"] if isinstance(word, str)}
    if "anyOf" in told:
        return set().union(*(kinds(one) for one in told["anyOf"]))
    if not set(told) - {"definitions"}:
        return set(JSON.values())
    found = told.get("type", [])
    return {found} if isinstance(found, str) else set(found)


@pytest.mark.parametrize("name", NAMES)
def test_a_value_that_is_in_no_guide_is_marked_as_ours(name: str) -> None:
    flat = {spelled(path) for path, _ in leaves(values(name))}
    assert flat - set(GUIDES[name]) == OURS[name]
    for source in (CHARTS / name / "values.yaml", CHARTS / name / "README.md"):
        assert source.read_text().count("(ours)") == len(OURS[name]) + 1, (
            "each, and the sentence that says so"
        )


@needs_helm
@pytest.mark.parametrize("name", NAMES)
def test_values_of_the_vendors_release_are_enough_as_reuse_values_gives_them(name: str) -> None:
    """An upgrade with `--reuse-values` has the old chart's defaults, which lack what is ours."""
    absent = dict.fromkeys(way(name, key) for key in OURS[name])
    config = {("config", "create"): True} if name == ASCEND else {}
    assert arguments(name, over(name, {**config, **absent})) == arguments(name, over(name, config))


@pytest.mark.parametrize("name", NAMES)
def test_the_schema_has_no_key_that_values_have_not(name: str) -> None:
    def walk(told: Any, tree: Any, place: str) -> None:
        for key, inner in rule_properties(told).items():
            if place == "" and key == "global":
                continue
            assert key in tree, f"{place}.{key}"
            if isinstance(tree[key], dict) and tree[key] and inner.get("additionalProperties") is False:
                walk(inner, tree[key], f"{place}.{key}")

    def rule_properties(told: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = told.get("properties", {})
        return found

    from .engine import schema

    free = (
        "resources",
        "updateStrategy",
        "securityContext",
    )  # objects of Kubernetes, known wholly to the schema
    root = schema(name)
    assert set(root["properties"]) - {"global"} == set(values(name))
    for key, told in root["properties"].items():
        if key in values(name) and key not in free and isinstance(values(name)[key], dict):
            trimmed = {
                **told,
                "properties": {k: v for k, v in rule_properties(told).items() if k not in free},
            }
            walk(trimmed, values(name)[key], key)


def test_the_amd_guides_own_rows_agree_with_the_chart() -> None:
    flat = {spelled(path): value for path, value in leaves(values(AMD))}
    rows: list[dict[str, Any]] = yaml.safe_load((TESTS / "guide_amd.yaml").read_text())
    compared = 0
    for row in rows:
        for key, told in zip(row["values"], row["defaults"], strict=True):
            if key == "dp.image.tag":
                assert (flat[key], told) == ("", "appVersion")
                continue
            default = flat[key]
            shown = str(default).lower() if isinstance(default, bool) else str(default)
            assert ("empty" if default in ("", []) else shown) == told, key
            compared += 1
        for key in row.get("ours", ()):
            if key.startswith("dp."):
                assert key in flat
    assert compared >= 20


@pytest.mark.parametrize(
    ("name", "version", "app", "kubernetes"),
    [
        (ASCEND, "0.2.1", "v1.4.1", ">=1.20.0-0"),
        (PPU, "0.0.1", "1.0.2", ">=1.20.0-0"),
    ],
)
def test_charts_have_the_versions_of_the_vendors_releases(
    name: str, version: str, app: str, kubernetes: str
) -> None:
    found = metadata(name)
    assert (found["name"], found["version"], str(found["appVersion"])) == (name, version, app)
    assert found["kubeVersion"] == kubernetes


def test_the_amd_chart_has_the_version_of_the_programs_here() -> None:
    import tomllib

    ours = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert (metadata(AMD)["version"], metadata(AMD)["appVersion"]) == (ours, ours)


@pytest.mark.parametrize("name", NAMES)
def test_a_charts_readme_lists_every_value_with_its_default(name: str) -> None:
    import json

    lines = (CHARTS / name / "README.md").read_text().splitlines()
    rows = [re.fullmatch(r"\| `([^`]+)` \| `([^`]*)` \| (.+) \|", line) for line in lines]
    told = {row[1]: row[2] for row in rows if row is not None}
    flat = {spelled(path): json.dumps(value, ensure_ascii=False) for path, value in leaves(values(name))}
    assert told == flat
