"""Each value that reaches a daemon changes exactly its own setting, as the daemon's dry run tells it.

The pod is the rendered one: its command line and environment, its ConfigMaps laid at their mount paths under
a directory that stands for the container's root.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from devplugin.amd.vendor import Amd
from devplugin.ascend.vendor import Ascend
from devplugin.launch import main
from devplugin.ppu.vendor import Ppu

from .engine import (
    AMD,
    ASCEND,
    PPU,
    Where,
    container,
    leaves,
    needs_helm,
    objects,
    over,
    plugin,
    spelled,
    values,
)
from .knobs import another, context

pytestmark = needs_helm

VENDORS = {AMD: Amd, ASCEND: Ascend, PPU: Ppu}
ALWAYS: dict[str, dict[Where, Any]] = {AMD: {}, ASCEND: {("config", "create"): True}, PPU: {}}
"""A configuration that a chart does not make cannot be laid."""


def settings(name: str, given: Mapping[str, Any], root: Path) -> dict[str, Any]:
    """Every setting with its value and source, of a dry run in the pod's root."""
    root.mkdir()
    document = plugin(name, given)
    pod = container(document)
    found = objects(name, given)
    for volume in document["spec"]["template"]["spec"]["volumes"]:
        if "configMap" not in volume:
            continue
        data = found[("ConfigMap", volume["configMap"]["name"])]["data"]
        (mount,) = [one for one in pod["volumeMounts"] if one["name"] == volume["name"]]
        for key, text in data.items():
            inside = mount["mountPath"] if mount.get("subPath") == key else f"{mount['mountPath']}/{key}"
            file = root / inside.lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
    env = {one["name"]: one.get("value", "a") for one in pod["env"]}
    words = [word.replace("$(NODE_NAME)", env["NODE_NAME"]) for word in pod["args"]]
    out = io.StringIO()
    assert main(VENDORS[name](), [*words, "-root", str(root), "-dry_run"], env=env, out=out) == 0
    told: dict[str, Any] = json.loads(out.getvalue())["settings"]
    return told


REACHES: dict[str, dict[str, str]] = {
    AMD: {
        "dp.operatingMode": "operating_mode",
        "dp.computePartition": "compute_partition",
        "dp.hostHookPath": "host_hook_path",
        "dp.logVerbosity": "v",
        "dp.healthPulse": "pulse",
        "dp.splitCount": "split_count",
        "dp.reportNodeCapacity": "report_node_capacity",
        "dp.allocatorPolicy": "allocator_policy",
        "dp.dmemBackend": "dmem_backend",
        "dp.muslFailClosed.containerdSocket": "containerd_socket",
        "dp.excludeGPUs": "exclude_gpus",
        "dp.deviceMemoryScaling": "device_memory_scaling",
        "dp.hipLogLevel": "hip_log_level",
        "dp.resourceNamingStrategy": "resource_naming_strategy",
        "dp.cdi.enabled": "cdi_spec_dir",
        "dp.cdi.specDir": "cdi_spec_dir",
        "dp.metricsBindAddress": "metrics_bind_address",
    },
    ASCEND: {
        "hamiVnpuCore.enabled": "mode",
        "daemonSet.metricsBindAddress": "metrics_bind_address",
    },
    PPU: {
        "config.data.alibaba.deviceSplitCount": "device-split-count",
        "config.data.alibaba.deviceMemoryScaling": "device-memory-scaling",
        "config.data.alibaba.deviceCoreScaling": "device-core-scaling",
        "config.data.alibaba.resourceCountName": "resource",
        "plugin.metricsBindAddress": "metrics_bind_address",
    },
}
"""Value → the one setting it decides; every other value decides none."""

ELSEWHERE = {
    "dp.muslFailClosed.enabled",
    "daemonSet.args[0]",
    "daemonSet.args[1]",
    "daemonSet.args[2]",
    "daemonSet.args[3]",
    "daemonSet.args[4]",
    "config.create",
    "config.existingConfigMapName",
    "nodeConfig",
    "nodeConfigMap.create",
    "plugin.enabled",
}
"""Tests of their own below, or nothing to lay: a configuration of somebody else, no plugin."""

KNOBS = [
    (name, path) for name in VENDORS for path, _ in leaves(values(name)) if spelled(path) not in ELSEWHERE
]


def differing(before: Mapping[str, Any], after: Mapping[str, Any]) -> set[str]:
    assert set(before) == set(after)
    return {setting for setting in before if before[setting]["value"] != after[setting]["value"]}


@pytest.mark.parametrize("knob", KNOBS, ids=lambda knob: f"{knob[0]}:{spelled(knob[1])}")
def test_a_value_changes_exactly_the_setting_it_is_for(knob: tuple[str, Where], tmp_path: Path) -> None:
    name, path = knob
    before = {**ALWAYS[name], **context(name, path)}
    told = [
        settings(name, over(name, given), tmp_path / str(number))
        for number, given in enumerate((before, {**before, path: another(name, path)}))
    ]
    reached = REACHES[name].get(spelled(path))
    assert differing(*told) == ({reached} if reached else set())
    if reached and another(name, path) not in ("", True, False):
        assert told[1][reached]["source"] != "default"


def test_the_look_into_images_changes_its_three_settings(tmp_path: Path) -> None:
    given = {"dp": {"muslFailClosed": {"enabled": True}}}
    bare, found = (settings(AMD, one, tmp_path / str(n)) for n, one in enumerate(({}, given)))
    assert differing(bare, found) == {"musl_fail_closed", "ctr_path", "containerd_socket"}


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("nodes: [{name: a, hami-vnpu-core: true}]", {"mode"}),
        ("nodes: [{name: a, vDeviceCount: 6}]", {"shares"}),
        ("nodes: [{name: a, filterDevices: {index: [1]}}]", {"filtered"}),
        ("nodes: [{name: b, hami-vnpu-core: true}]", set()),
    ],
)
def test_what_differs_on_a_node_changes_that_nodes_settings(
    text: str, changed: set[str], tmp_path: Path
) -> None:
    given = over(ASCEND, ALWAYS[ASCEND])
    bare = settings(ASCEND, given, tmp_path / "bare")
    found = settings(ASCEND, {**given, "nodeConfig": text}, tmp_path / "node")
    assert differing(bare, found) == changed
    assert all(found[setting]["source"] == "file /node-config.yaml" for setting in changed)


def test_the_command_line_of_the_ascend_plugin_can_be_replaced(tmp_path: Path) -> None:
    given = over(ASCEND, ALWAYS[ASCEND])
    words = [*values(ASCEND)["daemonSet"]["args"], "--check_idle_vnpu_interval=90"]
    words[2] = "--v=5"
    found = settings(ASCEND, {**given, "daemonSet": {"args": words}}, tmp_path / "more")
    bare = settings(ASCEND, given, tmp_path / "bare")
    assert differing(bare, found) == {"v", "check_idle_vnpu_interval"}


def test_every_value_of_the_table_is_one_of_its_chart() -> None:
    for name, told in REACHES.items():
        known = {spelled(path) for path, _ in leaves(values(name))}
        assert set(told) <= known
