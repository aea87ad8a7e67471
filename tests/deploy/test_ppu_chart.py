"""What the PPU chart's values become: bare numbers for the daemon, configuration, DaemonSets, Service."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from devplugin.launch import METERED
from devplugin.monitor import add_flags as add_monitor_flags
from devplugin.ppu import flags
from devplugin.ppu.settings import Settings
from devplugin.ppu.words import HOST
from devplugin.settings import GoParser, SettingsError, add_common_flags
from devplugin.vendor import SettingsInput

from .engine import (
    PPU,
    RELEASE,
    Strict,
    arguments,
    container,
    needs_helm,
    objects,
    only,
    plugin,
    refusal,
    texts,
    values,
)

pytestmark = needs_helm


def alibaba(**given: Any) -> dict[str, Any]:
    return {"config": {"data": {"alibaba": given}}}


def configured(given: dict[str, Any] | None = None) -> dict[str, Any]:
    """What the ConfigMap says."""
    found = only(objects(PPU, given), "ConfigMap")
    assert set(found["data"]) == {"device-config.yaml"}
    loaded: dict[str, Any] = yaml.load(found["data"]["device-config.yaml"], Strict)
    assert set(loaded) == {"alibaba"}
    return loaded["alibaba"]


def test_numbers_reach_the_process_without_quotes() -> None:
    """The vendor's chart 0.0.1 passed --device-split-count="2" (ascend_ppu_hami.md G 19, cases.md B69)."""
    words = arguments(PPU)
    assert "--device-split-count=2" in words
    assert "--device-memory-scaling=1" in words
    assert "--device-core-scaling=1" in words
    assert not any('"' in word or "'" in word for word in words)


@pytest.mark.parametrize(
    ("key", "flag"),
    [
        ("deviceSplitCount", "--device-split-count="),
        ("deviceMemoryScaling", "--device-memory-scaling="),
        ("deviceCoreScaling", "--device-core-scaling="),
    ],
)
@pytest.mark.parametrize(("given", "word"), [(4, "4"), (4.0, "4"), ("4", "4")])
def test_a_number_is_the_same_word_however_it_is_given(key: str, flag: str, given: object, word: str) -> None:
    assert f"{flag}{word}" in arguments(PPU, alibaba(**{key: given}))
    assert configured(alibaba(**{key: given}))[key] == 4


@pytest.mark.parametrize(("given", "word"), [(1.5, "1.5"), ("0.25", "0.25"), ("1.0", "1")])
def test_a_factor_keeps_its_fraction(given: object, word: str) -> None:
    assert f"--device-memory-scaling={word}" in arguments(PPU, alibaba(deviceMemoryScaling=given))


def test_a_number_with_quotes_in_it_is_refused_and_named() -> None:
    assert "/config/data/alibaba/deviceSplitCount" in refusal(PPU, alibaba(deviceSplitCount='"2"'))


def test_a_changed_number_changes_its_flag_and_its_line_of_the_configuration() -> None:
    for key in ("deviceSplitCount", "deviceMemoryScaling", "deviceCoreScaling"):
        changed = alibaba(**{key: 3})
        assert len(set(arguments(PPU)) ^ set(arguments(PPU, changed))) == 2
        before, after = configured(), configured(changed)
        assert {name for name in before if before[name] != after[name]} == {key}


def test_the_configuration_holds_every_value_of_its_block() -> None:
    assert configured() == values(PPU)["config"]["data"]["alibaba"]
    assert configured(alibaba(defaultMemory=4_000_000))["defaultMemory"] == 4_000_000
    told = 'on: "quoted" {{ .Values }}'
    assert configured(alibaba(gpuCorePolicy=told))["gpuCorePolicy"] == told


def mounted(given: dict[str, Any] | None = None) -> str:
    volumes = plugin(PPU, given)["spec"]["template"]["spec"]["volumes"]
    (name,) = [one["configMap"]["name"] for one in volumes if "configMap" in one]
    return str(name)


def test_the_configuration_is_mounted_where_the_flag_says() -> None:
    assert mounted() == only(objects(PPU), "ConfigMap")["metadata"]["name"] == "ppu-vgpu-device-plugin-config"
    (mount,) = [m for m in container(plugin(PPU))["volumeMounts"] if m["name"] == "config"]
    assert f"--config-file={mount['mountPath']}/device-config.yaml" in arguments(PPU)
    assert "subPath" not in mount, "a file mounted by subPath is never refreshed"


@pytest.mark.parametrize("more", [{}, {"plugin": {"enabled": False}}])
def test_without_a_configuration_nothing_is_rendered_and_the_value_to_set_is_named(
    more: dict[str, Any],
) -> None:
    said = refusal(PPU, {"config": {"create": False}, **more})
    assert "config.create is false" in said
    assert "config.existingConfigMapName" in said


def test_somebody_elses_configuration_is_mounted_and_flags_are_still_passed() -> None:
    given = {
        "config": {
            "create": False,
            "existingConfigMapName": "theirs",
            "data": {"alibaba": {"deviceSplitCount": 5}},
        }
    }
    assert mounted(given) == "theirs"
    assert not any(kind == "ConfigMap" for kind, _ in objects(PPU, given))
    assert "--device-split-count=5" in arguments(PPU, given)
    assert "a flag wins" in texts(PPU, given)["NOTES.txt"]


def settings(
    given: dict[str, Any] | None = None, file: str | None = None
) -> tuple[Settings, tuple[str, ...]]:
    """What the daemon makes of the pod and the ConfigMap of a chart; `file` is somebody else's ConfigMap."""
    if file is None:
        file = only(objects(PPU, given), "ConfigMap")["data"]["device-config.yaml"]
    parser = GoParser("ppu-device-plugin", "")
    add_common_flags(parser)
    flags.add_flags(parser)
    words = [word.replace("$(NODE_NAME)", "a") for word in arguments(PPU, given)]
    args = parser.parse_args(words)
    files = {"/config/device-config.yaml": file.encode()}
    return flags.resolve(
        SettingsInput(args, {"NODE_NAME": "a"}, None, node="a", read=lambda path: files[path])
    )


def test_the_daemon_takes_what_the_chart_passes_and_file_and_flags_agree() -> None:
    assert settings() == (Settings(node_name="a"), ())
    assert settings({"plugin": {"metricsBindAddress": ":9396"}}) == settings()
    for given, wanted in (
        ({"deviceSplitCount": 5}, Settings(node_name="a", split=5)),
        ({"deviceMemoryScaling": "1.5"}, Settings(node_name="a", memory_scaling=1.5)),
        ({"deviceCoreScaling": 0.5}, Settings(node_name="a", core_scaling=0.5)),
        ({"resourceCountName": "other.example/ppu"}, Settings(node_name="a", resource="other.example/ppu")),
        ({"defaultMemory": 5_000_000}, Settings(node_name="a")),
    ):
        assert settings(alibaba(**given)) == (wanted, ())


def test_the_daemon_warns_where_somebody_elses_configuration_differs_from_the_flags() -> None:
    given = {"config": {"create": False, "existingConfigMapName": "theirs"}}
    found, warnings = settings(given, "alibaba: {deviceSplitCount: 4}")
    assert found.split == 2
    assert len(warnings) == 1
    assert "deviceSplitCount" in warnings[0]


def test_what_the_vendors_chart_rendered_is_refused_by_the_daemon_and_the_chart_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    parser = GoParser("ppu-device-plugin", "")
    flags.add_flags(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(['--device-split-count="2"'])
    said = capsys.readouterr().err
    assert "device-split-count" in said
    assert "chart" in said
    with pytest.raises(SettingsError, match="chart"):
        settings(file="alibaba: {deviceMemoryScaling: '\"1\"'}")


def test_pods_are_replaced_when_the_configuration_changes() -> None:
    def total(given: dict[str, Any]) -> str:
        return str(plugin(PPU, given)["spec"]["template"]["metadata"]["annotations"]["checksum/config"])

    assert total({}) == total({})
    assert total(alibaba(defaultMemory=1)) != total({})


@pytest.mark.parametrize(
    ("image", "whole"),
    [
        ({}, "ghcr.io/dynamia-ai/ppu-device-plugin:v1.0.2"),
        ({"tag": "1.0.3"}, "ghcr.io/dynamia-ai/ppu-device-plugin:1.0.3"),
        ({"repository": "here.example/ppu"}, "here.example/ppu:v1.0.2"),
    ],
)
def test_both_daemons_have_one_image_whose_tag_is_v_and_the_apps_version(
    image: dict[str, str], whole: str
) -> None:
    found = [d for (kind, _), d in objects(PPU, {"image": image}).items() if kind == "DaemonSet"]
    assert [container(one)["image"] for one in found] == [whole, whole]


def test_objects_have_the_vendors_names_whatever_the_release_is_called() -> None:
    found = set(objects(PPU))
    assert {
        ("DaemonSet", "ppu-vgpu-device-plugin"),
        ("DaemonSet", "ppu-vgpu-device-plugin-monitor"),
        ("Service", "ppu-vgpu-device-plugin-monitor"),
        ("ConfigMap", "ppu-vgpu-device-plugin-config"),
    } <= found
    assert not any(RELEASE in name for _, name in found)
    assert sum(kind == "ServiceAccount" for kind, _ in found) == 2
    assert not any(kind in ("ServiceMonitor", "PrometheusRule") for kind, _ in found)


def test_everything_is_in_the_chosen_namespace() -> None:
    def places(given: dict[str, Any]) -> set[str]:
        found = objects(PPU, given).values()
        bound = {s["namespace"] for d in found if d["kind"] == "ClusterRoleBinding" for s in d["subjects"]}
        return bound | {d["metadata"]["namespace"] for d in found if not d["kind"].startswith("ClusterRole")}

    assert places({}) == {"hami-system"}
    assert places({"namespaceOverride": "ppus"}) == {"ppus"}
    assert places({"namespaceOverride": ""}) == {"place"}
    assert "which must exist" in texts(PPU)["NOTES.txt"]
    assert "which must exist" not in texts(PPU, {"namespaceOverride": ""})["NOTES.txt"]


def test_common_labels_and_annotations_are_on_every_object_and_pod_and_break_nothing() -> None:
    given = {
        "commonLabels": {"team": "ai", "app.kubernetes.io/component": "mine", "hami.io/webhook": "see"},
        "commonAnnotations": {"note": "yes", "checksum/config": "mine"},
    }
    for (kind, _), document in objects(PPU, given).items():
        places = [document["metadata"]]
        if kind == "DaemonSet":
            places.append(document["spec"]["template"]["metadata"])
            assert document["spec"]["selector"]["matchLabels"].items() <= places[1]["labels"].items()
            assert places[1]["labels"]["hami.io/webhook"] == "ignore"
        for place in places:
            assert place["labels"]["team"] == "ai"
            assert place["labels"]["app.kubernetes.io/component"] != "mine"
            assert place["annotations"]["note"] == "yes"


@pytest.mark.parametrize(
    ("service", "port"),
    [
        ({}, {"port": 31992, "nodePort": 31992}),
        ({"type": "ClusterIP"}, {"port": 31992}),
        ({"type": "LoadBalancer", "nodePort": 0, "port": "9394"}, {"port": 9394}),
        ({"nodePort": "30001"}, {"port": 31992, "nodePort": 30001}),
    ],
)
def test_the_service_leads_to_the_monitor_on_9394(service: dict[str, Any], port: dict[str, int]) -> None:
    found = only(objects(PPU, {"monitor": {"service": service}}), "Service")["spec"]
    assert found["type"] == service.get("type", "NodePort")
    assert found["ports"] == [{"name": "metrics", "targetPort": 9394, **port}]


def test_each_daemon_has_the_account_of_its_own_name() -> None:
    for (kind, name), document in objects(PPU).items():
        if kind == "DaemonSet":
            assert document["spec"]["template"]["spec"]["serviceAccountName"] == name
        if kind == "ClusterRoleBinding":
            assert [subject["name"] for subject in document["subjects"]] == [name]
            assert document["roleRef"]["name"] == name


def test_either_daemon_can_be_left_out_with_all_that_is_its_own() -> None:
    whole = set(objects(PPU))
    plugin_only = set(objects(PPU, {"monitor": {"enabled": False}}))
    monitor_only = set(objects(PPU, {"plugin": {"enabled": False}}))
    assert plugin_only | monitor_only == whole
    assert plugin_only & monitor_only == {("ConfigMap", "ppu-vgpu-device-plugin-config")}
    assert not any("monitor" in name for _, name in plugin_only)


def test_both_daemons_are_privileged_on_the_hosts_network() -> None:
    for (kind, _), document in objects(PPU).items():
        if kind == "DaemonSet":
            pod = document["spec"]["template"]["spec"]
            assert pod["hostNetwork"] is True
            assert pod["dnsPolicy"] == "ClusterFirstWithHostNet", "or the API server has no name there"
            assert container(document)["securityContext"] == {"privileged": True}


def test_the_monitor_only_reads_what_the_plugin_writes() -> None:
    def core(name: str) -> dict[str, Any]:
        document = objects(PPU)[("DaemonSet", name)]
        (mount,) = [m for m in container(document)["volumeMounts"] if m["name"] == "ppu-hami-core"]
        assert mount["mountPath"] == HOST
        return mount

    assert "readOnly" not in core("ppu-vgpu-device-plugin")
    assert core("ppu-vgpu-device-plugin-monitor")["readOnly"] is True
    monitor = container(objects(PPU)[("DaemonSet", "ppu-vgpu-device-plugin-monitor")])
    assert monitor["command"] == ["vgpu-monitor"]
    parser = GoParser("vgpu-monitor", "")
    add_monitor_flags(parser, METERED)
    args = parser.parse_args(monitor["args"])
    assert (args.vendor, args.metrics_bind_address) == ("ppu", ":9394")
