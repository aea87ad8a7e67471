"""The API server's port, through the official client, against a served API server."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devplugin import kube
from devplugin.hami import Node, Pod
from devplugin.kubejson import read_message, read_node, read_pod, read_pods
from gpusim.cluster.apifaults import Fault
from gpusim.cluster.apiserver import ApiServer
from gpusim.cluster.pods import container, pod


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as running:
        running.store.create("nodes", {"metadata": {"name": "n1", "annotations": {"keep": "me"}}})
        yield running


@pytest.fixture
def api(server: ApiServer, tmp_path: Path) -> kube.Api:
    return kube.connect(str(server.kubeconfig(tmp_path / "kc")), component="toy-plugin", deadline=2.0)


def ask(work: Any) -> Any:
    async def go() -> Any:
        return await work

    return asyncio.run(go())


def test_a_node_is_read_with_what_the_protocol_looks_at(server: ApiServer, api: kube.Api) -> None:
    server.store.patch("nodes", "n1", {"status": {"capacity": {"toy.io/x": "3"}}}, subresource="status")
    node = ask(api.node("n1"))
    assert isinstance(node, Node)
    assert node.name == "n1"
    assert dict(node.annotations) == {"keep": "me"}
    assert node.capacity["toy.io/x"] == "3"
    stored = server.store.get("nodes", "n1")["metadata"]
    assert (node.uid, node.resource_version) == (stored["uid"], stored["resourceVersion"])


def test_a_pod_is_read_with_containers_images_phase_and_deletion(server: ApiServer, api: kube.Api) -> None:
    server.store.create(
        "pods",
        pod(
            "p",
            [container("c0", image="img:1"), container("c1", image="img:2")],
            init_containers=[container("i0", image="init:1")],
            annotations={"a": "b"},
            node="n1",
        ),
    )
    got = ask(api.pod("default", "p"))
    assert isinstance(got, Pod)
    assert (got.namespace, got.name, got.node, got.phase, got.deleting) == (
        "default",
        "p",
        "n1",
        "Pending",
        False,
    )
    assert got.containers == ("c0", "c1")
    assert got.init_containers == ("i0",)
    assert dict(got.images) == {"i0": "init:1", "c0": "img:1", "c1": "img:2"}
    assert dict(got.annotations) == {"a": "b"}
    server.store.delete("pods", "p", grace_seconds=None)
    assert ask(api.pod("default", "p")).deleting


def test_only_the_pods_of_the_node_are_listed(server: ApiServer, api: kube.Api) -> None:
    server.store.create("nodes", {"metadata": {"name": "n2"}})
    server.store.create("pods", pod("here", node="n1"))
    server.store.create("pods", pod("there", node="n2"))
    server.store.create("pods", pod("nowhere"))
    assert [one.name for one in ask(api.pods_on("n1"))] == ["here"]


def test_a_patch_sets_and_removes_annotations_and_leaves_the_others(server: ApiServer, api: kube.Api) -> None:
    node = ask(api.patch_node("n1", {"new": "x", "gone": None}))
    assert dict(node.annotations) == {"keep": "me", "new": "x"}
    node = ask(api.patch_node("n1", {"new": None}))
    assert dict(node.annotations) == {"keep": "me"}


def test_labels_of_a_node_are_read_set_and_removed(server: ApiServer, api: kube.OfficialClient) -> None:
    assert ask(api.node_labels("n1")) == {}
    ask(api.patch_node_labels("n1", {"amd.com/gpu.vram": "288G", "zone": "here"}))
    ask(api.patch_node_labels("n1", {"amd.com/gpu.vram": None}))
    assert ask(api.node_labels("n1")) == {"zone": "here"}
    assert ask(api.node("n1")).annotations == {"keep": "me"}
    with pytest.raises(kube.NotFound):
        ask(api.node_labels("n2"))


def test_every_patch_is_a_merge_patch(server: ApiServer, api: kube.Api) -> None:
    # the client's own default is a strategic one, which this server, like a real one, treats differently
    seen = []
    real = api._client.call_api  # type: ignore[attr-defined]

    def spy(method: str, url: str, headers: Any, *rest: Any, **more: Any) -> Any:
        seen.append((method, headers.get("Content-Type")))
        return real(method, url, headers, *rest, **more)

    api._client.call_api = spy  # type: ignore[attr-defined]
    server.store.create("pods", pod("p", node="n1"))
    ask(api.patch_pod("default", "p", {"a": "b"}))
    ask(api.patch_node("n1", {"a": "b"}))
    ask(api.patch_node_capacity("n1", {"toy.io/x": 1}))
    assert seen == [("PATCH", "application/merge-patch+json")] * 3


def test_a_patch_for_another_version_is_a_conflict_and_changes_nothing(
    server: ApiServer, api: kube.Api
) -> None:
    server.store.create("pods", pod("p", node="n1"))
    read = ask(api.pod("default", "p"))
    ask(api.patch_pod("default", "p", {"first": "1"}, resource_version=read.resource_version))
    with pytest.raises(
        kube.Conflict, match=r"patch pods \(/api/v1/namespaces/default/pods/p\): HTTP 409: .*modified"
    ):
        ask(api.patch_pod("default", "p", {"second": "2"}, resource_version=read.resource_version))
    assert dict(ask(api.pod("default", "p")).annotations) == {"first": "1"}


def test_capacity_goes_to_both_lists_through_the_status_and_can_be_removed(
    server: ApiServer, api: kube.Api
) -> None:
    ask(api.patch_node_capacity("n1", {"toy.io/mem": 2**40, "toy.io/gone": None}))
    node = ask(api.node("n1"))
    assert node.capacity["toy.io/mem"] == node.allocatable["toy.io/mem"] == str(2**40)
    ask(api.patch_node_capacity("n1", {"toy.io/mem": None}))
    assert "toy.io/mem" not in ask(api.node("n1")).capacity


def test_an_event_about_a_pod_and_one_about_a_node_arrive_where_people_look(
    server: ApiServer, api: kube.Api
) -> None:
    ask(api.event(kube.Reference("Pod", "p", "u-1", "default"), kube.Saying("Warning", "Why", "because")))
    ask(api.event(kube.Reference("Node", "n1", "n1"), kube.Saying("Normal", "Fine", "x" * 5000)))
    about_pod, about_node = sorted(
        server.store.list("events"), key=lambda e: e["involvedObject"]["kind"], reverse=True
    )
    assert about_pod["metadata"]["namespace"] == about_node["metadata"]["namespace"] == "default"
    assert about_pod["involvedObject"]["uid"] == "u-1"
    assert (about_pod["type"], about_pod["reason"], about_pod["message"]) == ("Warning", "Why", "because")
    assert about_pod["source"]["component"] == "toy-plugin"
    assert len(about_node["message"]) == 1024


def test_an_event_of_the_same_name_was_said_already(server: ApiServer, api: kube.Api) -> None:
    saying = kube.Saying("Warning", "Once", "only", name="n1.once.u")
    for _ in range(3):
        ask(api.event(kube.Reference("Node", "n1", "n1"), saying))
    assert len(server.store.list("events")) == 1


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (400, kube.Rejected),
        (401, kube.Forbidden),
        (403, kube.Forbidden),
        (404, kube.NotFound),
        (409, kube.Conflict),
        (410, kube.Gone),
        (422, kube.Rejected),
        (429, kube.Unavailable),
        (500, kube.Unavailable),
        (503, kube.Unavailable),
    ],
)
def test_every_status_has_its_error_with_verb_resource_and_the_servers_words(
    server: ApiServer, api: kube.Api, code: int, error: type[Exception]
) -> None:
    server.faults.add(Fault(verb="get", resource="nodes", code=code, message="so it is", times=None))
    with pytest.raises(error, match=rf"get nodes .*HTTP {code}: so it is"):
        ask(api.node("n1"))


def test_a_missing_right_is_named_with_the_remedy(server: ApiServer, api: kube.Api) -> None:
    server.faults.add(Fault(verb="patch", resource="nodes", subresource="status", code=403))
    with pytest.raises(
        kube.Forbidden, match="grant verb 'patch' on 'nodes/status' in the plugin's ClusterRole"
    ):
        ask(api.patch_node_capacity("n1", {"toy.io/x": 1}))


def test_a_server_that_is_down_is_unavailable_at_once_and_usable_again_afterwards(
    server: ApiServer, api: kube.Api
) -> None:
    ask(api.node("n1"))
    server.down()
    begun = time.monotonic()
    with pytest.raises(kube.Unavailable, match="refused"):
        ask(api.node("n1"))
    assert time.monotonic() - begun < 2.0
    server.up()
    assert ask(api.node("n1")).name == "n1"


def test_a_kept_connection_that_died_unseen_does_not_fail_a_read(server: ApiServer, api: kube.Api) -> None:
    ask(api.node("n1"))
    server.faults.add(Fault(verb="get", resource="nodes", action="drop"))
    assert ask(api.node("n1")).name == "n1"


def test_a_write_whose_answer_was_lost_is_not_repeated_behind_our_back(
    server: ApiServer, api: kube.Api
) -> None:
    server.faults.add(Fault(verb="patch", resource="nodes", action="lose"))
    with pytest.raises(kube.Unavailable):
        ask(api.patch_node("n1", {"a": "b"}))
    assert [e.verb for e in server.requests.entries("toy-plugin")] == ["patch"]
    assert ask(api.node("n1")).annotations["a"] == "b"


def test_a_server_that_never_answers_is_given_up_at_the_deadline() -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        from kubernetes.client import ApiClient, Configuration

        configuration = Configuration()
        configuration.host = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        configuration.retries = False
        deaf_api = kube.OfficialClient(ApiClient(configuration), component="toy", deadline=0.3)
        begun = time.monotonic()
        with pytest.raises(kube.Unavailable, match=r"get nodes: no answer within 0\.3 s"):
            ask(deaf_api.node("n1"))
        assert time.monotonic() - begun < 2.0


def test_without_any_configuration_the_error_says_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(kube.NoCluster, match="set KUBECONFIG"):
        kube.connect(None, component="toy")
    with pytest.raises(kube.NoCluster, match="missing"):
        kube.connect(str(tmp_path / "missing"), component="toy")
    broken = tmp_path / "broken"
    broken.write_text("][")
    with pytest.raises(kube.NoCluster, match="broken"):
        kube.connect(str(broken), component="toy")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("root:x:0:0:root:/root:/bin/sh\n", "{} is no kubeconfig"),
        ("- 1\n", "{} is no kubeconfig"),
        ("", "{} is no kubeconfig"),
        ("kind: Config\n", "{} is no kubeconfig"),
        (None, "{}: No such file or directory"),
    ],
)
def test_a_file_that_is_no_kubeconfig_is_named_in_plain_words(
    text: str | None, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "kc"
    if text is not None:
        path.write_text(text)
    with pytest.raises(kube.NoCluster) as refused:
        kube.connect(str(path), component="toy")
    assert str(refused.value).startswith(f"no API server: {said.format(path)}")
    assert "\n" not in str(refused.value)
    for word in ("NoneType", "indices", "object", "attribute"):
        assert word not in str(refused.value)


def test_a_directory_is_no_kubeconfig(tmp_path: Path) -> None:
    with pytest.raises(kube.NoCluster, match=f"no API server: {tmp_path}: Is a directory; set KUBECONFIG"):
        kube.connect(str(tmp_path), component="toy")


def test_the_configuration_of_the_home_directory_is_used_when_none_is_named(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".kube").mkdir()
    server.kubeconfig(tmp_path / ".kube" / "config")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert ask(kube.connect(None, component="toy").node("n1")).name == "n1"


def test_importing_the_port_loads_neither_client_nor_grpc() -> None:
    heavy = "('kubernetes', 'grpc', 'urllib3')"
    code = f"import sys, devplugin.kube; print(*[m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_asking_never_loads_the_clients_models_of_core_v1(server: ApiServer, tmp_path: Path) -> None:
    config = server.kubeconfig(tmp_path / "kc")
    code = (
        "import asyncio, sys\n"
        "from devplugin.kube import connect\n"
        f"asyncio.run(connect({str(config)!r}, component='t').node('n1'))\n"
        "print(len([m for m in sys.modules if m.startswith('kubernetes.client.models.v1_')]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 10


def test_nulls_and_missing_parts_of_objects_are_read_as_empty() -> None:
    meta = {"name": "x", "annotations": None}
    assert read_pod(json.dumps({"metadata": meta}).encode()).annotations == {}
    assert read_node(json.dumps({"metadata": meta, "status": {"capacity": None}}).encode()).capacity == {}
    assert read_pods(b'{"items": null}') == ()
    assert read_message(b"<html>bad gateway</html>") == "<html>bad gateway</html>"


def test_a_body_that_is_no_pod_is_unavailable_not_a_crash(server: ApiServer, api: kube.Api) -> None:
    api._client.call_api = lambda *a, **k: type(
        "R", (), {"status": 200, "read": lambda self: b'{"metadata": 7}'}
    )()  # type: ignore[attr-defined]
    with pytest.raises(kube.Unavailable, match=r"cannot read the answer: .*metadata"):
        ask(api.pod("default", "p"))
