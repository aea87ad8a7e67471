"""What the AMD chart's values become: flags, variables, mounts, the hook's installation, the monitor."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from devplugin import labeller, monitor
from devplugin.amd import flags
from devplugin.amd.discovery import discover
from devplugin.amd.metrics import samples
from devplugin.amd.registration import annotation
from devplugin.amd.settings import Settings
from devplugin.linux import LinuxHost
from devplugin.metered import Watched
from devplugin.settings import GoParser, add_common_flags
from devplugin.vendor import SettingsInput
from gpusim import Machine, load
from gpusim.export.render import render

from .engine import (
    AMD,
    ROOT,
    Strict,
    arguments,
    container,
    get,
    leaves,
    metadata,
    needs_helm,
    objects,
    only,
    over,
    plugin,
    spelled,
    texts,
    values,
    way,
)
from .knobs import another, context

pytestmark = needs_helm

GUIDE: list[dict[str, Any]] = yaml.safe_load((ROOT / "tests" / "guide_amd.yaml").read_text())
FLAGS = [(row["values"][0], row["flags"][0]) for row in GUIDE if len(row["values"]) == 1 and row.get("flags")]
VARIABLES = [(row["values"][0], row["env"][0]) for row in GUIDE if row.get("env")]


def settings(given: dict[str, Any] | None = None) -> Settings:
    """What the daemon makes of the pod that a chart renders."""
    pod = container(plugin(AMD, given))
    parser = GoParser("amd-device-plugin", "")
    add_common_flags(parser)
    flags.add_flags(parser)
    args = parser.parse_args(pod["args"])
    env = {one["name"]: one.get("value", "node") for one in pod["env"]}
    resolved, warnings = flags.resolve(SettingsInput(args, env, None))
    assert warnings == ()
    return resolved


def mounts(given: dict[str, Any] | None = None) -> dict[str, tuple[str, str]]:
    """Path in the plugin's container → path and type on the host."""
    document = plugin(AMD, given)
    hosts = {one["name"]: one["hostPath"] for one in document["spec"]["template"]["spec"]["volumes"]}
    return {
        mount["mountPath"]: (hosts[mount["name"]]["path"], hosts[mount["name"]].get("type", ""))
        for mount in container(document)["volumeMounts"]
    }


def test_defaults_are_what_the_guide_says_a_chart_gives() -> None:
    assert settings() == Settings(node_name="node", pulse=10, hook_path="/usr/local", verbosity=2)


def test_defaults_pass_only_flags_that_the_vendors_plugin_takes_too() -> None:
    page = (ROOT / "docs" / "from-the-go-plugin.md").read_text()
    taken: set[str] = set()
    for names, has in re.findall(r"^\| (`-[^|]+) \| (yes|no)[^|]* \|", page, re.MULTILINE):
        if has == "yes":
            taken |= set(re.findall(r"`-(\w+)`", names))
    used = {word.lstrip("-").partition("=")[0] for word in arguments(AMD)}
    assert len(taken) > 15
    assert used <= taken


@pytest.mark.parametrize(("key", "flag"), FLAGS)
def test_a_value_changes_its_own_flag_and_nothing_else(key: str, flag: str) -> None:
    path = way(AMD, key)
    given = over(AMD, {path: another(AMD, path)})
    before, after = set(arguments(AMD)), set(arguments(AMD, given))
    assert {word.lstrip("-").partition("=")[0] for word in before ^ after} == {flag}
    bare, changed = objects(AMD), objects(AMD, given)
    for document in (bare, changed):
        for (kind, called), daemon_set in document.items():
            if kind == "DaemonSet" and "monitor" not in called:
                daemon_set["spec"]["template"]["spec"]["containers"][0].pop("args")
    assert bare == changed


@pytest.mark.parametrize(("key", "variable"), VARIABLES)
def test_a_value_reaches_its_variable(key: str, variable: str) -> None:
    path = way(AMD, key)
    wanted = another(AMD, path)
    env = {one["name"]: one.get("value") for one in container(plugin(AMD, over(AMD, {path: wanted})))["env"]}
    assert env[variable] == wanted


@pytest.mark.parametrize("path", [p for p, _ in leaves(values(AMD)) if p[0] == "dp"], ids=spelled)
def test_whatever_is_chosen_the_daemon_takes_its_command_line(path: tuple[str | int, ...]) -> None:
    settings(over(AMD, {**context(AMD, path), path: another(AMD, path)}))


@pytest.mark.parametrize(
    ("given", "field", "wanted"),
    [
        ({"splitCount": 4}, "split_count", 4),
        ({"splitCount": "4"}, "split_count", 4),
        ({"operatingMode": "partition"}, "mode", "partition"),
        ({"computePartition": "qpx"}, "compute_partition", "qpx"),
        ({"allocatorPolicy": "spread"}, "allocator_policy", "spread"),
        ({"allocatorPolicy": ""}, "allocator_policy", "besteffort"),
        ({"dmemBackend": False}, "dmem_backend", False),
        ({"deviceMemoryScaling": 1.5}, "memory_scaling", 1.5),
        ({"deviceMemoryScaling": "2"}, "memory_scaling", 2.0),
        ({"reportNodeCapacity": True}, "report_capacity", True),
        ({"cdi": {"enabled": True}}, "cdi_dir", "/var/run/cdi"),
        ({"muslFailClosed": {"enabled": True}}, "musl_fail_closed", True),
        ({"resourceNamingStrategy": "mixed"}, "naming", "mixed"),
        ({"hipLogLevel": 3}, "hip_log_level", 3),
        ({"hipLogLevel": "4"}, "hip_log_level", 4),
        ({"logVerbosity": 5}, "verbosity", 5),
        ({"healthPulse": 0}, "pulse", 0),
        ({"hostHookPath": "/opt/hook/"}, "hook_path", "/opt/hook"),
        ({"excludeGPUs": "card1, 0000:06:00.0"}, "exclude", ("card1", "0000:06:00.0")),
        ({"excludeGPUs": ["card1", "0000:06:00.0"]}, "exclude", ("card1", "0000:06:00.0")),
    ],
)
def test_a_value_arrives_in_the_daemons_settings(given: dict[str, Any], field: str, wanted: object) -> None:
    found, bare = settings({"dp": given}), settings()
    assert getattr(found, field) == wanted
    different = {name for name in Settings.__slots__ if getattr(found, name) != getattr(bare, name)}
    assert different <= {field}


def test_the_level_of_the_hooks_log_is_not_passed_when_it_is_the_librarys_own() -> None:
    assert not any("hip_log_level" in word for word in arguments(AMD))
    assert not any("hip_log_level" in word for word in arguments(AMD, {"dp": {"hipLogLevel": "0"}}))


def test_the_image_has_the_charts_version_and_one_that_is_named_wins() -> None:
    assert (
        container(plugin(AMD))["image"]
        == f"ghcr.io/project-hami/amd-device-plugin:{metadata(AMD)['appVersion']}"
    )
    named = {"dp": {"image": {"repository": "here.example/amd", "tag": "main"}}, "monitor": {"enabled": True}}
    images = {
        container(document)["image"]
        for (kind, _), document in objects(AMD, named).items()
        if kind == "DaemonSet"
    }
    assert images == {"here.example/amd:main"}


def test_the_daemon_set_is_called_as_the_guides_commands_call_it() -> None:
    assert ("DaemonSet", "amd-gpu-device-plugin-daemonset") in objects(AMD)
    assert f"ds/{only(objects(AMD), 'DaemonSet')['metadata']['name']}" in texts(AMD)["NOTES.txt"]


def test_only_one_plugin_is_on_a_node_while_it_is_updated() -> None:
    strategy = plugin(AMD)["spec"]["updateStrategy"]
    assert strategy == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}}


def test_the_hook_is_installed_after_the_start_below_the_hosts_hook_path() -> None:
    given = {"dp": {"hostHookPath": "/opt/hook/"}}
    command = container(plugin(AMD, given))["lifecycle"]["postStart"]["exec"]["command"]
    assert command == ["/opt/hami/bin/amd-vgpu-init.sh", "/opt/hook/vgpu"]
    assert mounts(given)["/opt/hook/vgpu"] == ("/opt/hook/vgpu", "DirectoryOrCreate")
    assert "lifecycle" not in container(plugin(AMD, {"dp": {"hookInstaller": {"enabled": False}}}))


def test_the_plugin_sees_kubelet_sysfs_devices_and_the_exporter_and_no_more_by_default() -> None:
    assert set(mounts()) == {
        "/var/lib/kubelet/device-plugins",
        "/sys",
        "/dev",
        "/var/lib/amd-metrics-exporter",
        "/usr/local/vgpu",
    }
    assert all(inside == host for inside, (host, _) in mounts().items())
    assert mounts()["/var/lib/amd-metrics-exporter"][1] == "DirectoryOrCreate"


def test_cdi_mounts_the_directory_its_specification_is_written_to() -> None:
    given = {"dp": {"cdi": {"enabled": True, "specDir": "/etc/cdi"}}}
    assert mounts(given)["/etc/cdi"] == ("/etc/cdi", "DirectoryOrCreate")
    assert "-cdi_spec_dir=/etc/cdi" in arguments(AMD, given)


def test_the_look_into_images_gets_ctr_socket_and_data_and_sees_mounts_made_later() -> None:
    given = {"dp": {"muslFailClosed": {"enabled": True, "ctrPath": "/usr/bin/ctr"}}}
    found = mounts(given)
    assert found["/opt/amd-gpu-ctr-host/ctr"] == ("/usr/bin/ctr", "File")
    assert "-ctr_path=/opt/amd-gpu-ctr-host/ctr" in arguments(AMD, given)
    propagated = {
        mount["mountPath"]
        for mount in container(plugin(AMD, given))["volumeMounts"]
        if mount.get("mountPropagation") == "HostToContainer"
    }
    assert propagated == {"/run/k3s/containerd", "/var/lib/rancher/rke2/agent/containerd"}
    for path in propagated:
        assert found[path] == (path, "Directory")
    socket = get(values(AMD), ("dp", "muslFailClosed", "containerdSocket"))
    assert f"-containerd_socket={socket}" in arguments(AMD, given)
    assert not any("ctr" in word or "containerd" in word for word in arguments(AMD))


def test_pods_run_everywhere_unless_a_selector_is_asked_for() -> None:
    assert "nodeSelector" not in plugin(AMD)["spec"]["template"]["spec"]
    chosen = plugin(AMD, {"node_selector_enabled": True})["spec"]["template"]["spec"]["nodeSelector"]
    assert chosen == values(AMD)["node_selector"]


def test_without_an_account_of_its_own_the_pod_has_the_namespaces_and_the_notes_say_so() -> None:
    given = {"dp": {"serviceAccount": {"create": False}}}
    assert "serviceAccountName" not in plugin(AMD, given)["spec"]["template"]["spec"]
    assert "No RBAC was made" in texts(AMD, given)["NOTES.txt"]
    assert "No RBAC was made" not in texts(AMD)["NOTES.txt"]


def watched(given: dict[str, Any] | None = None) -> dict[str, Any]:
    found = objects(AMD, {"monitor": {"enabled": True, **(given or {})}})
    return found[("DaemonSet", "amd-gpu-vgpu-monitor-daemonset")]


def test_the_monitor_takes_its_command_line_and_reads_what_is_mounted() -> None:
    pod = container(watched())
    parser = GoParser("vgpu-monitor", "")
    monitor.add_flags(parser)
    args = parser.parse_args(pod["args"])
    assert (args.metrics_bind_address, args.cgroup_root, args.drm_root) == (
        ":9394",
        "/host/sys/fs/cgroup",
        "/host/sys/class/drm",
    )
    paths = {mount["mountPath"] for mount in pod["volumeMounts"]}
    assert paths == {args.cgroup_root, args.drm_root, "/host/sys/devices"}
    assert all(mount["readOnly"] for mount in pod["volumeMounts"])
    assert [one["name"] for one in pod["env"]] == ["NODE_NAME"]
    assert pod["command"] == ["k8s-vgpu-monitor"]


def test_what_the_monitor_sees_through_its_mounts_is_what_the_node_shows(tmp_path: Path) -> None:
    machine = Machine(load("mi355x/qpx-6.14"))
    render(machine, tmp_path / "node")
    document = watched()
    hosts = {one["name"]: one["hostPath"]["path"] for one in document["spec"]["template"]["spec"]["volumes"]}
    for mount in container(document)["volumeMounts"]:
        inside = tmp_path / "pod" / mount["mountPath"].lstrip("/")
        shutil.copytree(tmp_path / "node" / hosts[mount["name"]].lstrip("/"), inside, symlinks=True)
    inventory = discover(machine, Settings(), None)
    told = Watched("node", annotation(inventory, Settings()))
    seen = replace(told, cgroup_root="/host/sys/fs/cgroup", drm_root="/host/sys/class/drm")
    found = samples(LinuxHost(str(tmp_path / "pod")), seen)
    assert found == samples(machine, told)
    assert found.problems == ()
    assert len(found.samples) > len(inventory.gpus) * 4


@pytest.mark.parametrize(
    ("address", "reachable"), [(":9500", True), ("0.0.0.0:9500", True), ("127.0.0.1:9500", False)]
)
def test_the_monitors_port_is_that_of_its_address_and_told_only_when_others_reach_it(
    address: str, reachable: bool
) -> None:
    document = watched({"metricsBindAddress": address})
    assert [port["containerPort"] for port in container(document)["ports"]] == [9500]
    annotations = document["spec"]["template"]["metadata"].get("annotations", {})
    assert (annotations.get("prometheus.io/port") == "9500") is reachable
    assert ("livenessProbe" in container(document)) is reachable


def test_the_labeller_of_the_manifest_takes_its_command_line() -> None:
    manifest = ROOT / "deploy" / "k8s-ds-amdgpu-labeller.yaml"
    (daemon_set,) = [d for d in yaml.load_all(manifest.read_text(), Strict) if d["kind"] == "DaemonSet"]
    pod = container(daemon_set)
    args = labeller._parser().parse_args(pod["args"])
    asked = {name for name in labeller.GENERATORS if getattr(args, name)}
    assert asked == {"vram", "cu-count", "simd-count", "device-id", "family", "product-name"}
    assert [one["name"] for one in pod["env"]] == ["DS_NODE_NAME"]
    assert pod["image"] == container(plugin(AMD))["image"]
