"""The dashboard and the alert rules load, and ask only for what the monitor exports."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from devplugin.amd.metrics import SERIES

from .conftest import ROOT

FOLDER = ROOT / "deploy" / "monitoring"
LABELS = {series.name: set(series.labels) for series in SERIES}

FUNCTIONS = {"sum", "count", "max_over_time"}
WORDS = {"by", "on", "unless", "and"}
FORMATS = {"humanizePercentage", "humanize1024"}


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / "dashboard.json").read_text())
    return found


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def asked() -> Iterator[tuple[str, str, str]]:
    """(where, expression, text that names its labels)."""
    for panel in dashboard()["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"], target["legendFormat"]
    for rule in rules():
        yield rule["alert"], rule["expr"], " ".join(rule["annotations"].values())


def names(expression: str) -> set[str]:
    """Every identifier of an expression that is neither label, function nor keyword."""
    bare = re.sub(r'"[^"]*"', "", expression)
    bare = re.sub(r"\{[^}]*\}|\[[^]]*\]|\b(?:by|on)\s*\([^)]*\)", "", bare)
    return set(re.findall(r"[A-Za-z_:][A-Za-z0-9_:]*", bare)) - FUNCTIONS - WORDS


ASKED = list(asked())


@pytest.mark.parametrize(("where", "expression", "text"), ASKED, ids=[f"{one[0]}" for one in ASKED])
def test_every_metric_and_label_is_exported(where: str, expression: str, text: str) -> None:
    used = names(expression)
    assert used, where
    assert used <= set(LABELS), used - set(LABELS)
    for metric, matchers in re.findall(r"([a-z_]+)\{([^}]*)\}", expression):
        for label in re.findall(r"([a-z_]+)\s*(?:=~|!~|!=|=)", matchers):
            assert label in LABELS[metric], (metric, label)
    joined = {
        label
        for group in re.findall(r"\b(?:by|on)\s*\(([^)]*)\)", expression)
        for label in re.split(r"[,\s]+", group)
        if label
    }
    for label in joined:
        assert any(label in LABELS[metric] for metric in used), (label, used)
    for label in re.findall(r"\{\{\s*(?:\$labels\.)?([a-z_]+)\s*\}\}", text):
        assert any(label in LABELS[metric] for metric in used), (label, used)
    assert set(re.findall(r"\|\s*(\w+)", text)) <= FORMATS


@pytest.mark.parametrize("bad", ["hami_vgpu_memory_used_byte", "sum(nope)", 'up{node="x"} == 0'])
def test_the_check_would_see_a_name_nobody_exports(bad: str) -> None:
    assert not names(bad) <= set(LABELS)


def test_every_series_is_on_the_dashboard() -> None:
    shown = {name for panel in dashboard()["panels"] for t in panel["targets"] for name in names(t["expr"])}
    assert shown == set(LABELS)


def test_variables_come_from_exported_labels() -> None:
    variables = {one["name"]: one for one in dashboard()["templating"]["list"]}
    for name, one in variables.items():
        if one["type"] == "query":
            found = re.fullmatch(r"label_values\(([a-z_]+)(?:\{.*\})?, ([a-z_]+)\)", one["query"]["query"])
            assert found is not None, one
            assert (found[2] in LABELS[found[1]], found[2]) == (True, name)
            assert one["definition"] == one["query"]["query"]
    expressions = json.dumps(dashboard()["panels"])
    assert set(re.findall(r"\$\{?([a-z]+)", expressions)) == set(variables)


def test_panels_do_not_overlap_and_have_units_and_numbers_of_their_own() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    units = {"none", "bytes", "percent", "percentunit", "celsius", "watt"}
    assert {panel["fieldConfig"]["defaults"]["unit"] for panel in panels} <= units


def test_rules_have_what_an_alert_needs_and_cover_what_can_go_wrong() -> None:
    by_name = {rule["alert"]: rule for rule in rules()}
    assert len(by_name) == len(rules())
    for rule in by_name.values():
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
        assert set(rule["annotations"]) == {"summary", "description"}
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert re.fullmatch(r"[0-9]+[smh]", rule["for"])
    assert {
        "VgpuContainerNearMemoryLimit",
        "VgpuGpuMemoryNearlyFull",
        "VgpuCollectFailing",
        "VgpuGpuMissing",
    } <= set(by_name)


def test_expressions_are_balanced() -> None:
    for where, expression, _ in ASKED:
        for opening, closing in ("()", "[]", "{}"):
            assert expression.count(opening) == expression.count(closing), where
