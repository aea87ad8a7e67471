"""Values the schema refuses, and the words it does that with: they name the key."""

from __future__ import annotations

import math
from typing import Any

import pytest

from .engine import (
    AMD,
    ASCEND,
    NAMES,
    PPU,
    Where,
    get,
    leaves,
    needs_helm,
    over,
    refusal,
    rule,
    spelled,
    values,
    way,
)

WRONG: tuple[Any, ...] = ({"no": {"such": "thing"}}, 'not "this"', -3, 2.5, [[]], True)
"""For every rule one of them breaks it, unless it takes any text."""

KNOBS = [(name, path) for name in NAMES for path, _ in leaves(values(name))]


def named(text: str, path: Where) -> bool:
    """Whether a refusal names a key, as a JSON pointer or a parent that holds it."""
    pointer = "/" + "/".join(str(part).replace("~", "~0").replace("/", "~1") for part in path)
    return f"'{pointer}'" in text or f"'{pointer}/" in text


@needs_helm
@pytest.mark.parametrize("knob", KNOBS, ids=lambda knob: f"{knob[0]}:{spelled(knob[1])}")
def test_a_value_of_the_wrong_kind_is_refused_with_its_key(knob: tuple[str, Where]) -> None:
    import jsonschema

    name, path = knob
    checked = jsonschema.Draft7Validator(rule(name, path))
    wrong = next(value for value in WRONG if not checked.is_valid(value))
    assert named(refusal(name, over(name, {path: wrong})), path)


@needs_helm
@pytest.mark.parametrize(
    ("name", "key", "bad"),
    [
        (AMD, "dp.operatingMode", "Partition"),
        (AMD, "dp.computePartition", "octx"),
        (AMD, "dp.allocatorPolicy", "nearest"),
        (AMD, "dp.resourceNamingStrategy", "both"),
        (AMD, "dp.splitCount", -1),
        (AMD, "dp.splitCount", "2.5"),
        (AMD, "dp.splitCount", '"2"'),
        (AMD, "dp.healthPulse", "10s"),
        (AMD, "dp.hipLogLevel", 5),
        (AMD, "dp.hipLogLevel", "-1"),
        (AMD, "dp.deviceMemoryScaling", 0),
        (AMD, "dp.deviceMemoryScaling", "0.0"),
        (AMD, "dp.deviceMemoryScaling", "NaN"),
        (AMD, "dp.deviceMemoryScaling", -1.5),
        (AMD, "dp.dmemBackend", "false"),
        (AMD, "dp.cdi.specDir", "var/run/cdi"),
        (AMD, "dp.hostHookPath", ""),
        (AMD, "dp.excludeGPUs", ["0000:06:00.0,card1"]),
        (AMD, "dp.excludeGPUs", "card1;card2"),
        (AMD, "dp.excludeGPUs", ["06:00.0"]),
        (AMD, "dp.excludeGPUs", 1),
        (AMD, "dp.metricsBindAddress", "127.0.0.1:9395"),
        (AMD, "dp.image.tag", "latest amd"),
        (AMD, "monitor.metricsBindAddress", "9394"),
        (ASCEND, "image.digest", "sha256:123"),
        (ASCEND, "daemonSet.metricsBindAddress", ":9395"),
        (ASCEND, "nodeConfig", {"nodes": []}),
        (ASCEND, "nodeSelector.ascend", True),
        (ASCEND, "vnpuMonitor.serviceMonitor.interval", "15"),
        (ASCEND, "vnpuMonitor.serviceMonitor.path", "metrics"),
        (ASCEND, "config.deviceConfigMapName", ""),
        (PPU, "config.data.alibaba.deviceSplitCount", 0),
        (PPU, "config.data.alibaba.deviceSplitCount", '"2"'),
        (PPU, "config.data.alibaba.deviceMemoryScaling", '"1"'),
        (PPU, "config.data.alibaba.deviceMemoryScaling", "1,5"),
        (PPU, "config.data.alibaba.deviceCoreScaling", 0),
        (PPU, "config.data.alibaba.resourceCountName", "ppu"),
        (PPU, "monitor.service.type", "nodeport"),
        (PPU, "plugin.metricsBindAddress", ":9394"),
        (PPU, "monitor.service.nodePort", 70000),
        (PPU, "nodeSelector.alibabappu", True),
        (PPU, "plugin.resources.limits.cpu", "half"),
    ],
)
def test_a_value_the_program_or_the_cluster_would_refuse_is_refused_before(
    name: str, key: str, bad: Any
) -> None:
    assert named(refusal(name, over(name, {way(name, key): bad})), way(name, key))


@needs_helm
@pytest.mark.parametrize("name", NAMES)
def test_a_key_that_is_none_is_refused_by_name_wherever_it_stands(name: str) -> None:
    parents = {path[:-1] for path, _ in leaves(values(name))}
    closed = 0
    for parent in sorted(parents, key=str):
        if any(isinstance(part, int) for part in parent) or not isinstance(get(values(name), parent), dict):
            continue
        if rule(name, parent).get("additionalProperties") is False:
            closed += 1
            assert "'splitCuont'" in refusal(name, over(name, {(*parent, "splitCuont"): 2}))
    assert closed >= 7


@needs_helm
@pytest.mark.parametrize("name", NAMES)
def test_a_parent_chart_may_hand_down_its_globals(name: str) -> None:
    from .engine import objects

    assert objects(name, {"global": {"registry": "elsewhere"}}) == objects(name)


@needs_helm
@pytest.mark.parametrize("good", ["2", "1.5", "0.25", 1, 1.0, 3.75, "10.50"])
def test_factors_may_be_numbers_or_text_as_set_gives_them(good: Any) -> None:
    from .engine import arguments

    for name, key, flag in (
        (AMD, "dp.deviceMemoryScaling", "-device_memory_scaling="),
        (PPU, "config.data.alibaba.deviceMemoryScaling", "--device-memory-scaling="),
        (PPU, "config.data.alibaba.deviceCoreScaling", "--device-core-scaling="),
    ):
        (word,) = [w for w in arguments(name, over(name, {way(name, key): good})) if w.startswith(flag)]
        assert math.isclose(float(word.removeprefix(flag)), float(good))
        assert word.removeprefix(flag) == f"{float(good):g}"


@pytest.mark.parametrize("name", NAMES)
def test_the_defaults_satisfy_a_schema_that_knows_each_of_them(name: str) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    from .engine import schema

    jsonschema.Draft7Validator.check_schema(schema(name))
    jsonschema.Draft7Validator(schema(name)).validate(values(name))
    for path, default in leaves(values(name)):
        told = rule(name, path)
        assert set(told) - {"definitions"}, spelled(path)
        jsonschema.Draft7Validator(told).validate(default)
