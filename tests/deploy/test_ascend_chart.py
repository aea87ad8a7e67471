"""What the Ascend chart's values become: ConfigMaps, image, RuntimeClass, what Prometheus Operator reads."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from devplugin.ascend import flags
from devplugin.ascend.idle import CHECKPOINT
from devplugin.ascend.settings import HOOK, SHARED_REGION, Settings
from devplugin.ascend.smi import PLACES
from devplugin.settings import GoParser, SettingsError, add_common_flags
from devplugin.vendor import SettingsInput
from gpusim.ascend import chips

from .engine import (
    ASCEND,
    NAMESPACE,
    ROOT,
    Strict,
    arguments,
    container,
    needs_helm,
    objects,
    only,
    plugin,
    refusal,
    texts,
)
from .relabel import scraped

pytestmark = needs_helm

METRICS = {
    "hami_host_gpu_memory_used_bytes": {"device_index", "device_uuid", "device_type"},
    "hami_host_gpu_utilization_ratio": {"device_index", "device_uuid", "device_type"},
    "hami_vgpu_memory_used_bytes": {"namespace", "pod", "container", "vdevice_index", "device_uuid"},
    "hami_vgpu_memory_limit_bytes": {"namespace", "pod", "container", "vdevice_index", "device_uuid"},
    "hami_container_device_utilization_ratio": {
        "namespace",
        "pod",
        "container",
        "vdevice_index",
        "device_uuid",
    },
}
"""Of the monitor, those the rules read (ascend_ppu_hami.md B.8)."""

RULES = {
    "kantaloupe_gpu_mem_used": ("hami_host_gpu_memory_used_bytes", True),
    "kantaloupe_gpu_core_used": ("hami_host_gpu_utilization_ratio", False),
    "kantaloupe_workload_gpumem_used": ("hami_vgpu_memory_used_bytes", True),
    "kantaloupe_workload_gpumem_allocated": ("hami_vgpu_memory_limit_bytes", True),
    "kantaloupe_workload_gpucore_used": ("hami_container_device_utilization_ratio", False),
}
"""Recorded name → series, and whether it is in MiB (B.8)."""


def config_maps(given: dict[str, Any]) -> dict[str, str]:
    """Volume → ConfigMap the plugin's pod mounts."""
    volumes = plugin(ASCEND, given)["spec"]["template"]["spec"]["volumes"]
    return {one["name"]: one["configMap"]["name"] for one in volumes if "configMap" in one}


@pytest.mark.parametrize(
    ("config", "mounted", "made"),
    [
        ({}, "hami-scheduler-device", False),
        ({"existingDeviceConfigMapName": "theirs", "deviceConfigMapName": "mine"}, "theirs", False),
        (
            {"create": True, "existingDeviceConfigMapName": "theirs", "deviceConfigMapName": "mine"},
            "mine",
            True,
        ),
        ({"create": True}, "hami-scheduler-device", True),
    ],
)
def test_the_config_map_that_is_made_is_the_one_that_is_mounted(
    config: dict[str, Any], mounted: str, made: bool
) -> None:
    assert config_maps({"config": config})["ascend-config"] == mounted
    assert (("ConfigMap", mounted) in objects(ASCEND, {"config": config})) is made


def device_config(**given: Any) -> dict[str, Any]:
    found = objects(ASCEND, {"config": {"create": True}, **given})[("ConfigMap", "hami-scheduler-device")]
    loaded: dict[str, Any] = yaml.load(found["data"]["device-config.yaml"], Strict)
    return loaded["vnpus"]


def test_the_bundled_configuration_has_every_chip_with_its_numbers_and_templates() -> None:
    found = {entry["chipName"]: entry for entry in device_config()["configs"]}
    known = {chip.label: chip for chip in chips.CHIPS.values()}
    assert set(found) == set(known)
    for name, entry in found.items():
        chip = known[name]
        assert entry["memoryAllocatable"] == chip.memory_mib
        assert entry["memoryCapacity"] == (24576 if name == "310P3" else chip.memory_mib)
        assert (entry["aiCore"], entry.get("aiCPU", 0)) == (chip.ai_cores, chip.ai_cpus)
        assert [
            (one["name"], one["memory"], one["aiCore"], one.get("aiCPU", 0)) for one in entry["templates"]
        ] == [(one.name, one.memory_mib, one.ai_cores, one.ai_cpus) for one in chip.templates]
        word = entry["commonWord"]
        assert entry["resourceName"] == f"huawei.com/{word}"
        assert entry["resourceMemoryName"] == f"huawei.com/{word}-memory"
        assert entry["resourceCoreName"] == f"huawei.com/{word}-core"
    assert found["310P3"]["commonWord"] == "Ascend310P"
    assert found["Ascend910"]["commonWord"] == "Ascend910C"


def test_the_bundled_configuration_is_the_example_for_those_without_the_chart() -> None:
    example = yaml.load((ROOT / "deploy" / "examples" / "ascend-device-config.yaml").read_text(), Strict)
    assert device_config() == example["vnpus"]


def test_soft_slices_are_turned_on_in_the_bundled_configuration_only() -> None:
    assert device_config()["hamiVnpuCore"] is False
    assert device_config(hamiVnpuCore={"enabled": True})["hamiVnpuCore"] is True
    alone = {"hamiVnpuCore": {"enabled": True}}
    assert objects(ASCEND, alone) == objects(ASCEND)
    assert "hamiVnpuCore.enabled has no effect" in texts(ASCEND, alone)["NOTES.txt"]


@pytest.mark.parametrize(
    "text",
    [
        "nodes: []",
        "nodes:\n- name: a\n  hami-vnpu-core: true\n  filterDevices: {index: [0, 3]}\n",
        "  # indented\nnodes: []",
        "nodes: [] # {{ .Values.image }}",
        "",
    ],
)
def test_the_node_configuration_arrives_word_for_word(text: str) -> None:
    found = objects(ASCEND, {"nodeConfig": text})[("ConfigMap", "hami-device-node-config")]
    assert found["data"] == {"node-config.yaml": text}


def test_a_node_configuration_of_somebody_else_is_mounted_and_not_made() -> None:
    given = {"nodeConfigMap": {"create": False, "name": "theirs"}}
    assert config_maps(given)["ascend-node-config"] == "theirs"
    assert not any(kind == "ConfigMap" for kind, _ in objects(ASCEND, given))


def test_pods_are_replaced_when_a_configuration_changes() -> None:
    def sums(given: dict[str, Any]) -> dict[str, str]:
        found: dict[str, str] = plugin(ASCEND, given)["spec"]["template"]["metadata"]["annotations"]
        return found

    assert sums({}) == sums({})
    assert (
        sums({"nodeConfig": "nodes: [{name: a}]"})["checksum/node-config"] != sums({})["checksum/node-config"]
    )
    soft = {"config": {"create": True}, "hamiVnpuCore": {"enabled": True}}
    assert sums(soft)["checksum/config"] != sums({"config": {"create": True}})["checksum/config"]


DIGEST = "sha256:" + "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("image", "whole"),
    [
        ({}, "ghcr.io/dynamia-ai/ascend-device-plugin:v1.4.1"),
        ({"tag": ""}, "ghcr.io/dynamia-ai/ascend-device-plugin:v1.4.1"),
        ({"tag": "v2"}, "ghcr.io/dynamia-ai/ascend-device-plugin:v2"),
        ({"tag": "v2", "digest": DIGEST}, f"ghcr.io/dynamia-ai/ascend-device-plugin@{DIGEST}"),
        ({"repository": "here.example:5000/a", "tag": "x"}, "here.example:5000/a:x"),
    ],
)
def test_a_digest_wins_over_the_tag(image: dict[str, str], whole: str) -> None:
    assert container(plugin(ASCEND, {"image": image}))["image"] == whole


def test_the_command_line_is_the_guides_and_names_files_that_are_mounted() -> None:
    words = arguments(ASCEND)
    assert words == [
        "--config_file",
        "/device-config.yaml",
        "--v=4",
        "--node_config_file",
        "/node-config.yaml",
    ]
    mounted = {mount["mountPath"]: mount for mount in container(plugin(ASCEND))["volumeMounts"]}
    for path in ("/device-config.yaml", "/node-config.yaml"):
        assert mounted[path]["subPath"] == path[1:]
    assert arguments(ASCEND, {"daemonSet": {"args": ["--version"]}}) == ["--version"]


def settings(given: dict[str, Any]) -> Settings:
    """What the daemon makes of the pod and the ConfigMaps of a chart, on node a."""
    found = objects(ASCEND, {"config": {"create": True}, **given})
    document = plugin(ASCEND, {"config": {"create": True}, **given})
    maps = {
        one["name"]: found[("ConfigMap", one["configMap"]["name"])]["data"]
        for one in document["spec"]["template"]["spec"]["volumes"]
        if "configMap" in one
    }
    files = {
        mount["mountPath"]: maps[mount["name"]][mount["subPath"]]
        for mount in container(document)["volumeMounts"]
        if mount["name"] in maps
    }
    parser = GoParser("ascend-device-plugin", "")
    add_common_flags(parser)
    flags.add_flags(parser)
    args = parser.parse_args(container(document)["args"])
    resolved, warnings = flags.resolve(
        SettingsInput(args, {"NODE_NAME": "a"}, None, node="a", read=lambda path: files[path].encode())
    )
    assert warnings == ()
    return resolved


def test_the_daemon_reads_the_bundled_configuration_with_the_charts_command_line() -> None:
    found = settings({})
    assert (found.soft, found.verbosity, len(found.chips)) == (False, 4, len(chips.CHIPS))
    assert settings({"hamiVnpuCore": {"enabled": True}}).soft is True
    assert settings({"daemonSet": {"metricsBindAddress": ":9396"}}) == found


def test_the_daemon_reads_what_differs_on_its_node() -> None:
    text = "nodes:\n- name: a\n  hami-vnpu-core: true\n  vDeviceCount: 8\n  filterDevices: {index: [3]}\n"
    found = settings({"nodeConfig": text})
    assert (found.soft, found.count, found.filtered_cards) == (True, 8, frozenset({3}))
    assert settings({"nodeConfig": text.replace("a\n", "b\n", 1)}) == settings({})


def test_a_command_line_without_the_configuration_is_refused_by_the_daemon() -> None:
    with pytest.raises(SettingsError, match="--config_file"):
        settings({"daemonSet": {"args": ["--v=4"]}})


def test_the_plugin_sees_what_the_vendors_manifest_shows_it_and_device_nodes_that_come_later() -> None:
    """Mounts of C.1; /dev is ours: in a container's own /dev a driver that is loaded later never shows."""
    document = plugin(ASCEND)
    hosts = {one["name"]: one.get("hostPath") for one in document["spec"]["template"]["spec"]["volumes"]}
    found = {
        mount["mountPath"]: (hosts[mount["name"]].get("type", ""), mount.get("readOnly", False))
        for mount in container(document)["volumeMounts"]
        if hosts[mount["name"]] is not None
    }
    assert found.pop("/dev") == ("", False)
    assert not container(document)["terminationMessagePath"].startswith(tuple(found)), "none of the host's"
    assert found == {
        "/var/lib/kubelet/device-plugins": ("", False),
        "/var/lib/kubelet/pod-resources": ("", False),
        "/usr/local/Ascend/driver": ("", True),
        "/usr/local/sbin": ("DirectoryOrCreate", True),
        "/var/log/mindx-dl/devicePlugin": ("DirectoryOrCreate", False),
        "/tmp": ("", False),
        "/usr/local/hami-shared-region": ("DirectoryOrCreate", False),
        "/usr/local/hami-vnpu-core": ("DirectoryOrCreate", False),
    }
    assert container(document)["securityContext"] == {"privileged": True, "readOnlyRootFilesystem": False}


def test_whatever_the_daemon_keeps_on_the_host_is_the_hosts() -> None:
    mounted = [mount["mountPath"] for mount in container(plugin(ASCEND))["volumeMounts"]]
    for path in (HOOK, SHARED_REGION, CHECKPOINT, *PLACES[:2]):
        assert any(path == place or path.startswith(f"{place}/") for place in mounted), path


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({}, "hami-ascend-device-plugin"),
        ({"daemonSet": {"name": ""}}, "ascend-device-plugin"),
        ({"daemonSet": {"name": ""}, "nameOverride": "npu"}, "npu"),
        ({"daemonSet": {"name": ""}, "nameOverride": "npu", "fullnameOverride": "whole"}, "whole"),
    ],
)
def test_the_daemon_set_is_named_by_the_first_name_there_is(given: dict[str, Any], name: str) -> None:
    assert plugin(ASCEND, given)["metadata"]["name"] == name


def test_the_runtime_class_names_the_handler() -> None:
    given = {"runtimeClass": {"name": "npu", "handler": "ascend-docker"}}
    assert only(objects(ASCEND, given), "RuntimeClass")["handler"] == "ascend-docker"
    assert ("RuntimeClass", "npu") in objects(ASCEND, given)
    assert not any(kind == "RuntimeClass" for kind, _ in objects(ASCEND, {"runtimeClass": {"create": False}}))


def monitored(**given: Any) -> dict[tuple[str, str], dict[str, Any]]:
    return objects(ASCEND, {"vnpuMonitor": {"enabled": True, **given}})


def test_metrics_are_exposed_only_when_they_are_asked_for_and_each_part_can_be_left_out() -> None:
    kinds = {"Service", "ServiceMonitor", "PrometheusRule"}
    assert not kinds & {kind for kind, _ in objects(ASCEND)}
    assert kinds <= {kind for kind, _ in monitored()}
    assert "ServiceMonitor" not in {kind for kind, _ in monitored(serviceMonitor={"create": False})}
    assert "PrometheusRule" not in {kind for kind, _ in monitored(prometheusRule={"create": False})}


def test_the_service_is_headless_and_the_monitor_finds_it() -> None:
    found = monitored()
    service, monitor = only(found, "Service"), only(found, "ServiceMonitor")
    assert service["spec"]["clusterIP"] == "None"
    assert [(port["name"], port["port"], port["targetPort"]) for port in service["spec"]["ports"]] == [
        ("monitorport", 9395, "monitorport")
    ]
    assert {"name": "monitorport", "containerPort": 9395} in container(plugin(ASCEND))["ports"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert monitor["spec"]["namespaceSelector"]["matchNames"] == [NAMESPACE]
    assert monitor["spec"]["jobLabel"] in service["metadata"]["labels"]
    assert [one["port"] for one in monitor["spec"]["endpoints"]] == ["monitorport"]


DISCOVERED = {
    "namespace": NAMESPACE,
    "pod": "hami-ascend-device-plugin-x7",
    "container": "device-plugin",
    "job": "ascend-device-plugin",
    "__meta_kubernetes_pod_node_name": "npu-node-1",
}
WORKLOAD = {
    "__name__": "hami_vgpu_memory_used_bytes",
    "namespace": "team",
    "pod": "training",
    "container": "main",
    "device_uuid": "u",
}


def test_metrics_name_the_workloads_pod_and_not_the_plugins() -> None:
    """The report of ascend_ppu_hami.md G 20."""
    (endpoint,) = only(monitored(), "ServiceMonitor")["spec"]["endpoints"]
    stored = scraped(endpoint, WORKLOAD, DISCOVERED)
    assert {name: stored[name] for name in ("namespace", "pod", "container")} == {
        "namespace": "team",
        "pod": "training",
        "container": "main",
    }
    assert (stored["exported_namespace"], stored["exported_pod"]) == ("team", "training")
    assert (stored["node"], stored["job"]) == ("npu-node-1", "ascend-device-plugin")
    lost = scraped({"port": "monitorport"}, WORKLOAD, DISCOVERED)
    assert lost["pod"] == "hami-ascend-device-plugin-x7", "what the report saw, without the rules"


def test_a_series_of_the_host_gets_no_workload() -> None:
    (endpoint,) = only(monitored(), "ServiceMonitor")["spec"]["endpoints"]
    host = {"__name__": "hami_host_gpu_memory_used_bytes", "device_uuid": "u"}
    stored = scraped(endpoint, host, DISCOVERED)
    assert "exported_pod" not in stored
    assert stored["node"] == "npu-node-1"


def test_recording_rules_are_those_of_the_vendor_over_what_the_monitor_exports() -> None:
    (group,) = only(monitored(), "PrometheusRule")["spec"]["groups"]
    assert (group["name"], group["interval"], group["labels"]) == ("ascend-vnpu", "15s", {"vendor": "ascend"})
    found = {one["record"]: one["expr"] for one in group["rules"]}
    assert set(found) == set(RULES)
    for record, expression in found.items():
        match = re.fullmatch(
            r'label_replace\((\w+)( / 1024 / 1024)?, "UUID", "\$1", "device_uuid", "\(\.\*\)"\)', expression
        )
        assert match is not None, expression
        assert (match[1], match[2] is not None) == RULES[record]
        assert "device_uuid" in METRICS[match[1]]


def test_what_prometheus_operator_reads_stands_in_its_namespace_with_its_labels() -> None:
    found = monitored(
        serviceMonitor={"namespace": "watch", "labels": {"release": "mine", "helm.sh/chart": "theirs"}},
        prometheusRule={"namespace": "rules"},
    )
    monitor, rule = only(found, "ServiceMonitor")["metadata"], only(found, "PrometheusRule")["metadata"]
    assert (monitor["namespace"], rule["namespace"]) == ("watch", "rules")
    assert monitor["labels"]["release"] == "mine"
    assert monitor["labels"]["helm.sh/chart"] == "theirs"
    assert {"release": "prometheus", "role": "recording-rules", "vendor": "ascend"}.items() <= rule[
        "labels"
    ].items()


def test_the_port_of_the_monitor_is_not_given_to_the_plugins_own_page() -> None:
    assert "metricsBindAddress" in refusal(ASCEND, {"daemonSet": {"metricsBindAddress": ":9395"}})
