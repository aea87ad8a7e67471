"""The oldest and the newest Kubernetes take what is rendered, in every shape a chart has."""

from __future__ import annotations

import copy
import importlib.util
import re
from typing import Any

import pytest
import yaml

from .engine import (
    AMD,
    ASCEND,
    NAMES,
    PPU,
    ROOT,
    Strict,
    Where,
    leaves,
    needs_helm,
    objects,
    over,
    spelled,
    values,
)
from .kinds import complaints, releases
from .knobs import another, context

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("kubernetes_validate") is None, reason="kubernetes-validate is not installed"
)

FULL: dict[str, dict[str, Any]] = {
    AMD: {
        "dp": {
            "cdi": {"enabled": True},
            "muslFailClosed": {"enabled": True},
            "excludeGPUs": ["card1", "0000:06:00.0"],
            "metricsBindAddress": ":9395",
            "hipLogLevel": 2,
            "resources": {"limits": {"memory": 1_000_000_000, "cpu": 1.5}},
            "serviceAccount": {"annotations": {"a": "b"}},
        },
        "monitor": {"enabled": True, "resources": {"limits": {"cpu": "1"}}},
        "imagePullSecrets": [{"name": "secret"}],
        "node_selector_enabled": True,
    },
    ASCEND: {
        "config": {"create": True},
        "vnpuMonitor": {"enabled": True},
        "daemonSet": {"metricsBindAddress": ":9396"},
        "nodeConfig": "nodes:\n  - name: a\n    vDeviceCount: 8\n",
    },
    PPU: {
        "commonAnnotations": {"a": "b"},
        "commonLabels": {"c": "d"},
        "image": {"pullSecrets": [{"name": "secret"}]},
        "plugin": {"metricsBindAddress": ":9396"},
        "monitor": {"resources": {"limits": {"cpu": 1}}},
    },
}
"""Everything a chart can have at once."""

LABELLER = ROOT / "deploy" / "k8s-ds-amdgpu-labeller.yaml"
KNOBS = [(name, path) for name in NAMES for path, _ in leaves(values(name))]


def wrong(documents: list[dict[str, Any]]) -> list[str]:
    return [
        line for release in releases() for document in documents for line in complaints(document, release)
    ]


@needs_helm
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("full", [False, True], ids=["defaults", "everything"])
def test_both_releases_take_what_a_chart_installs(name: str, full: bool) -> None:
    assert wrong(list(objects(name, FULL[name] if full else {}).values())) == []


@needs_helm
@pytest.mark.parametrize("knob", KNOBS, ids=lambda knob: f"{knob[0]}:{spelled(knob[1])}")
def test_both_releases_take_it_with_any_value_changed(knob: tuple[str, Where]) -> None:
    name, path = knob
    changed = over(name, {**context(name, path), path: another(name, path)})
    assert wrong(list(objects(name, changed).values())) == []


def test_both_releases_take_the_labellers_manifest() -> None:
    documents = list(yaml.load_all(LABELLER.read_text(), Strict))
    assert {document["kind"] for document in documents} == {
        "ServiceAccount",
        "ClusterRole",
        "ClusterRoleBinding",
        "DaemonSet",
    }
    assert wrong(documents) == []


@needs_helm
def test_the_newest_release_is_newer_than_the_oldest_and_a_misspelt_field_is_seen_in_both() -> None:
    oldest, newest = releases()
    assert tuple(map(int, newest.split(".")[:2])) > tuple(map(int, oldest.split(".")))
    (good,) = [d for (kind, _), d in objects(AMD).items() if kind == "DaemonSet"]
    bad = copy.deepcopy(good)
    bad["spec"]["template"]["spec"]["containers"][0]["volumeMounts"][0]["mountpath"] = "/x"
    for release in (oldest, newest):
        assert any("mountpath" in line for line in complaints(bad, release))


@needs_helm
def test_a_misspelt_field_of_a_custom_resource_is_seen() -> None:
    for kind, spoil in (("ServiceMonitor", "endpoint"), ("PrometheusRule", "group")):
        (good,) = [d for (of, _), d in objects(ASCEND, FULL[ASCEND]).items() if of == kind]
        assert complaints(good, releases()[0]) == []
        bad = copy.deepcopy(good)
        bad["spec"][spoil] = []
        assert complaints(bad, releases()[0])


@needs_helm
@pytest.mark.parametrize("name", NAMES)
def test_whatever_is_mounted_is_a_volume_and_every_volume_is_mounted(name: str) -> None:
    for (kind, _), document in objects(name, FULL[name]).items():
        if kind != "DaemonSet":
            continue
        pod = document["spec"]["template"]["spec"]
        mounts = [mount for one in pod["containers"] for mount in one["volumeMounts"]]
        assert {mount["name"] for mount in mounts} == {volume["name"] for volume in pod["volumes"]}
        paths = [mount["mountPath"] for mount in mounts]
        assert len(paths) == len(set(paths))


@needs_helm
@pytest.mark.parametrize("name", NAMES)
def test_every_name_an_object_refers_to_is_there(name: str) -> None:
    found = objects(name, FULL[name])
    for (kind, _), document in found.items():
        if kind == "ClusterRoleBinding":
            assert ("ClusterRole", document["roleRef"]["name"]) in found
            for subject in document["subjects"]:
                account = found[(subject["kind"], subject["name"])]
                assert account["metadata"]["namespace"] == subject["namespace"]
        if kind == "DaemonSet":
            pod = document["spec"]["template"]["spec"]
            account = found[("ServiceAccount", pod["serviceAccountName"])]
            assert account["metadata"]["namespace"] == document["metadata"]["namespace"]
            for volume in pod["volumes"]:
                if "configMap" in volume:
                    assert ("ConfigMap", volume["configMap"]["name"]) in found
        if kind == "Service":
            pods = [d["spec"]["template"] for (of, _), d in found.items() if of == "DaemonSet"]
            chosen = [
                pod
                for pod in pods
                if document["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
            ]
            assert len(chosen) == 1


@needs_helm
def test_names_stay_within_what_kubernetes_takes_however_long_they_are_asked_for() -> None:
    for name, over_ in (
        (ASCEND, {"nameOverride": "n" * 80, "fullnameOverride": "f" * 62 + "-g", "daemonSet": {"name": ""}}),
        (PPU, {"nameOverride": "n" * 80}),
        (PPU, {"fullnameOverride": "f" * 54 + "-g"}),
    ):
        for (kind, called), document in objects(name, over_).items():
            assert len(called) <= 63, (kind, called)
            assert re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", called)
            assert all(len(value) <= 63 for value in document["metadata"]["labels"].values())
