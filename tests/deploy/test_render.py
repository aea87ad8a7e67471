"""Helm lints and renders every chart, with its defaults and with each value changed once."""

from __future__ import annotations

import pytest

from .engine import (
    AMD,
    ASCEND,
    CHARTS,
    NAMES,
    PPU,
    RELEASE,
    Where,
    arguments,
    container,
    leaves,
    metadata,
    needs_helm,
    objects,
    over,
    plugin,
    spelled,
    texts,
    values,
    way,
)
from .knobs import NEEDS, another, context

pytestmark = needs_helm

KNOBS = [(name, path) for name in NAMES for path, _ in leaves(values(name))]


def lint(name: str, given: dict[str, object]) -> list[dict[str, object]]:
    import helm_python

    report = helm_python.lint(CHARTS / name, given, strict=True, namespace="place")
    assert report["total_charts_linted"] == 1
    assert report["errors"] == []
    return [found for found in report["messages"] if found["severity"] != 1]


@pytest.mark.parametrize("name", NAMES)
def test_a_chart_is_linted_and_rendered_with_its_defaults(name: str) -> None:
    assert lint(name, {}) == []
    assert plugin(name)["kind"] == "DaemonSet"
    assert "NOTES.txt" in texts(name)


@pytest.mark.parametrize("knob", KNOBS, ids=lambda knob: f"{knob[0]}:{spelled(knob[1])}")
def test_every_value_can_be_changed_and_then_something_else_is_installed(knob: tuple[str, Where]) -> None:
    name, path = knob
    before = context(name, path)
    after = {**before, path: another(name, path)}
    assert lint(name, over(name, after)) == []
    assert objects(name, over(name, after)) != objects(name, over(name, before))


@pytest.mark.parametrize("name", NAMES)
def test_a_value_that_needs_another_is_a_value_and_does_nothing_alone(name: str) -> None:
    for key in NEEDS[name]:
        path = way(name, key)
        if path in context(name, path):
            continue
        if key == "config.create":
            continue  # refused alone: test_ppu_chart.py
        assert objects(name, over(name, {path: another(name, path)})) == objects(name), key


@pytest.mark.parametrize("name", NAMES)
def test_nothing_in_a_chart_depends_on_the_cluster_it_is_rendered_for(name: str) -> None:
    for file in (CHARTS / name).rglob("*"):
        if file.is_file():
            assert ".Capabilities" not in file.read_text()
            assert "lookup" not in file.read_text()


@pytest.mark.parametrize(
    ("name", "key"),
    [
        (AMD, "dp.healthPulse"),
        (AMD, "dp.splitCount"),
        (PPU, "config.data.alibaba.deviceSplitCount"),
        (PPU, "config.data.alibaba.defaultMemory"),
        (PPU, "config.data.alibaba.memoryFactor"),
    ],
)
@pytest.mark.parametrize("given", [1_000_000, 2_000_001.0, 4_294_967_296, "3000000"])
def test_large_numbers_keep_all_their_digits(name: str, key: str, given: object) -> None:
    rendered = "\n".join(texts(name, over(name, {way(name, key): given})).values())
    assert f"{int(float(str(given)))}" in rendered
    assert "e+" not in rendered


@pytest.mark.parametrize(
    ("name", "key"),
    [(AMD, "dp.resources"), (AMD, "dp.securityContext.privileged"), (PPU, "monitor.resources")],
)
def test_large_numbers_inside_a_block_keep_their_digits_too(name: str, key: str) -> None:
    block = {"limits": {"memory": 8_000_000_000}}
    given = (
        {"dp": {"securityContext": {"runAsUser": 2_000_000_000.0}}}
        if "Context" in key
        else over(name, {way(name, key): block})
    )
    rendered = "\n".join(texts(name, given).values())
    assert "000000000" in rendered
    assert "e+" not in rendered


@pytest.mark.parametrize("name", NAMES)
def test_objects_carry_the_release_and_pods_are_left_alone_by_hamis_webhook(name: str) -> None:
    for document in objects(name).values():
        labels = document["metadata"]["labels"]
        assert labels["app.kubernetes.io/instance"] == RELEASE
        assert labels["helm.sh/chart"] == f"{name}-{metadata(name)['version']}"
    for (kind, _), document in objects(name).items():
        if kind == "DaemonSet":
            pod = document["spec"]["template"]
            assert pod["metadata"]["labels"]["hami.io/webhook"] == "ignore"
            wanted = document["spec"]["selector"]["matchLabels"]
            assert wanted.items() <= pod["metadata"]["labels"].items()
            assert pod["spec"]["priorityClassName"] == "system-node-critical"


def test_no_two_daemon_sets_of_a_chart_select_the_same_pods() -> None:
    for name, given in ((AMD, {"monitor": {"enabled": True}}), (PPU, {})):
        found = [document for (kind, _), document in objects(name, given).items() if kind == "DaemonSet"]
        assert len(found) == 2
        selectors = [document["spec"]["selector"]["matchLabels"] for document in found]
        assert selectors[0] != selectors[1]


@pytest.mark.parametrize(
    ("name", "key"),
    [
        (AMD, "dp.metricsBindAddress"),
        (ASCEND, "daemonSet.metricsBindAddress"),
        (PPU, "plugin.metricsBindAddress"),
    ],
)
def test_probes_come_with_the_flag_that_serves_them(name: str, key: str) -> None:
    kinds = ("startupProbe", "livenessProbe", "readinessProbe")
    bare = container(plugin(name))
    assert not any("metrics_bind_address" in word for word in arguments(name))
    assert not any(kind in bare for kind in kinds)
    given = over(name, {way(name, key): ":9444"})
    probed = container(plugin(name, given))
    assert any(word.lstrip("-") == "metrics_bind_address=:9444" for word in probed["args"])
    for kind in kinds:
        asked = probed[kind]["httpGet"]
        assert asked["path"] == "/healthz"
        (port,) = [port["containerPort"] for port in probed["ports"] if port["name"] == asked["port"]]
        assert port == 9444
