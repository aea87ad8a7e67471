"""The simulated API server over HTTP: the official client, faults, the log, and what a socket can do."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time

import pytest
from kubernetes import client as kube
from kubernetes import config, watch
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from gpusim.cluster.apiclient import ApiClient
from gpusim.cluster.apifaults import Fault, parse
from gpusim.cluster.apiserver import ApiServer
from gpusim.cluster.apistatus import ApiError, UnreachableError
from gpusim.cluster.pods import container, pod
from gpusim.errors import GpusimError

MERGE = "application/merge-patch+json"


@pytest.fixture
def official(server, tmp_path):
    """The official client, set up from the server's kubeconfig, without retries of its own."""
    settings = kube.Configuration()
    config.load_kube_config(str(server.kubeconfig(tmp_path / "kubeconfig")), client_configuration=settings)
    settings.retries = False
    with kube.ApiClient(settings) as made:
        yield kube.CoreV1Api(made)
        made.rest_client.pool_manager.clear()


@pytest.fixture
def port(server):
    made = ApiClient(server.url, agent="test-agent")
    yield made
    made.close()


def raw(server, method, path, body=None, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    try:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


# -- the official client --------------------------------------------------------------------------------


def test_the_official_client_reads_and_writes_typed_objects(server, official):
    node = official.create_node(kube.V1Node(metadata=kube.V1ObjectMeta(name="n1", labels={"a": "b"})))
    assert node.metadata.creation_timestamp.tzinfo is not None
    assert [n.metadata.name for n in official.list_node(label_selector="a=b").items] == ["n1"]
    made = official.create_namespaced_pod("default", pod("p", [container("main", {"amd.com/gpu": 1})]))
    assert made.spec.containers[0].resources.limits == {"amd.com/gpu": "1"}
    assert made.status.qos_class == "BestEffort"
    assert official.read_namespaced_pod("p", "default").metadata.uid == made.metadata.uid
    listed = official.list_pod_for_all_namespaces(field_selector="spec.nodeName=")
    assert [p.metadata.name for p in listed.items] == ["p"]
    assert int(listed.metadata.resource_version) >= int(made.metadata.resource_version)


def test_the_official_client_reads_raw_bodies(server, official):
    server.store.create("pods", pod("p", node="n1"))
    answer = official.list_pod_for_all_namespaces(field_selector="spec.nodeName=n1", _preload_content=False)
    (item,) = json.loads(answer.data)["items"]
    assert item["metadata"]["name"] == "p"
    assert "kind" not in item


def test_the_official_client_patches_with_every_content_type(server, official):
    server.store.create("nodes", {"metadata": {"name": "n1", "annotations": {"old": "1"}}})
    change = {"metadata": {"annotations": {"old": None, "new": "2"}}}
    patched = official.patch_node("n1", change, _content_type=MERGE)
    assert patched.metadata.annotations == {"new": "2"}
    default = official.patch_node("n1", {"metadata": {"annotations": {"more": "3"}}})
    assert default.metadata.annotations == {"new": "2", "more": "3"}
    steps = [{"op": "replace", "path": "/metadata/annotations/new", "value": "4"}]
    assert official.patch_node("n1", steps).metadata.annotations["new"] == "4"
    status = official.patch_node_status(
        "n1", {"status": {"capacity": {"amd.com/gpu": "8"}}}, _content_type=MERGE
    )
    assert status.status.capacity == {"amd.com/gpu": "8"}


def test_the_official_client_gets_the_errors_it_knows(server, official):
    with pytest.raises(ApiException) as caught:
        official.read_node("none")
    assert caught.value.status == 404
    assert json.loads(caught.value.body)["reason"] == "NotFound"
    server.store.create("nodes", {"metadata": {"name": "n1"}})
    with pytest.raises(ApiException) as caught:
        official.create_node({"metadata": {"name": "n1"}})
    assert (caught.value.status, json.loads(caught.value.body)["reason"]) == (409, "AlreadyExists")
    stale = {"metadata": {"resourceVersion": "1", "annotations": {"a": "b"}}}
    with pytest.raises(ApiException) as caught:
        official.patch_node("n1", stale, _content_type=MERGE)
    assert (caught.value.status, json.loads(caught.value.body)["reason"]) == (409, "Conflict")
    with pytest.raises(ApiException) as caught:
        official.patch_node("n1", {}, _content_type="application/apply-patch+yaml", field_manager="x")
    assert caught.value.status == 415
    with pytest.raises(ApiException) as caught:
        official.delete_collection_node()
    assert caught.value.status == 405


def test_the_official_client_makes_events_with_a_name_or_a_generated_one(server, official):
    about = kube.V1ObjectReference(kind="Node", name="n1", uid="n1", api_version="v1")
    named = kube.CoreV1Event(
        metadata=kube.V1ObjectMeta(name="n1.mode.uid"), involved_object=about, reason="Mode", type="Warning"
    )
    official.create_namespaced_event("default", named)
    with pytest.raises(ApiException) as caught:
        official.create_namespaced_event("default", named)
    assert caught.value.status == 409
    named.metadata = kube.V1ObjectMeta(generate_name="n1.")
    assert official.create_namespaced_event("default", named).metadata.name.startswith("n1.")
    listed = official.list_namespaced_event("default", field_selector="involvedObject.name=n1,reason=Mode")
    assert len(listed.items) == 2


def test_the_official_client_binds_and_deletes(server, official):
    server.store.create("pods", pod("p"))
    binding = kube.V1Binding(
        metadata=kube.V1ObjectMeta(name="p"), target=kube.V1ObjectReference(kind="Node", name="n1")
    )
    # typed, the client cannot read the Status that comes back (kubernetes-client/python#547)
    answer = official.create_namespaced_pod_binding("p", "default", binding, _preload_content=False)
    assert (answer.status, json.loads(answer.data)["status"]) == (201, "Success")
    with pytest.raises(ApiException) as caught:
        official.create_namespaced_binding("default", binding, _preload_content=False)
    assert caught.value.status == 409
    deleted = official.delete_namespaced_pod("p", "default")
    assert deleted.metadata.deletion_grace_period_seconds == 30
    official.delete_namespaced_pod("p", "default", grace_period_seconds=0)
    with pytest.raises(ApiException) as caught:
        official.read_namespaced_pod("p", "default")
    assert caught.value.status == 404


def test_the_official_client_sees_version_and_resources(server, official):
    assert kube.VersionApi(official.api_client).get_code().git_version.startswith("v1.36")
    assert kube.CoreApi(official.api_client).get_api_versions().versions == ["v1"]
    assert {r.name for r in official.get_api_resources().resources} >= {"nodes/status", "pods/binding"}


def test_the_official_client_watches(server, official):
    server.store.create("pods", pod("before"))
    version = official.list_namespaced_pod("default").metadata.resource_version
    seen = []

    def act():
        server.store.create("pods", pod("p"))
        server.store.create("pods", pod("unseen", namespace="kube-system"), "kube-system")
        server.store.bind("p", "n1")
        server.store.delete("pods", "p")

    threading.Timer(0.1, act).start()
    stream = watch.Watch()
    for event in stream.stream(
        official.list_namespaced_pod, "default", resource_version=version, timeout_seconds=5
    ):
        seen.append((event["type"], event["object"].metadata.name))
        if event["type"] == "DELETED":
            stream.stop()
    assert seen == [("ADDED", "p"), ("MODIFIED", "p"), ("DELETED", "p")]


def test_a_watch_with_a_selector_begins_and_ends_with_the_match(server, official):
    server.store.create("pods", pod("p"))
    threading.Timer(0.1, lambda: (server.store.bind("p", "n1"), server.store.delete("pods", "p"))).start()
    stream = watch.Watch()
    seen = [
        event["type"]
        for event in stream.stream(
            official.list_pod_for_all_namespaces, field_selector="spec.nodeName=n1", timeout_seconds=1
        )
    ]
    assert seen == ["ADDED", "DELETED"]


def test_a_watch_from_a_forgotten_version_says_so(server, official):
    for i in range(10_050):
        server.store.patch("namespaces", "default", {"metadata": {"labels": {"i": str(i)}}})
    with pytest.raises(ApiException) as caught:
        list(watch.Watch().stream(official.list_namespace, resource_version="1", timeout_seconds=1))
    assert caught.value.status == 410


# -- paths and bodies ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/healthz", "/livez", "/readyz"])
def test_health_is_ok(server, path):
    assert raw(server, "GET", path) == (200, b"ok")


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("GET", "/", 404),
        ("GET", "/apis/apps/v1/deployments", 404),
        ("GET", "/api/v1/widgets", 404),
        ("GET", "/api/v1/pods/p", 404),
        ("GET", "/api/v1/namespaces/default/pods/p/exec", 404),
        ("GET", "/api/v1/namespaces/default/pods/p/status/x", 404),
        ("POST", "/api/v1/pods", 405),
        ("PUT", "/api/v1/nodes", 405),
        ("DELETE", "/api/v1/nodes", 405),
        ("POST", "/version", 405),
        ("GET", "/api/v1/namespaces/default/bindings", 405),
        ("GET", "/api/v1/namespaces/default/pods/p/binding", 405),
        ("GET", "/api/v1/pods?fieldSelector=spec.image%3Dx", 400),
        ("GET", "/api/v1/pods?watch=1&resourceVersion=x", 400),
        ("GET", "/api/v1/namespaces/default/pods/%2e%2e", 404),
    ],
)
def test_paths_and_methods_that_are_not_served(server, method, path, code):
    assert raw(server, method, path)[0] == code


@pytest.mark.parametrize(
    ("method", "body", "content", "code"),
    [
        ("POST", b"{", "application/json", 400),
        ("POST", b"\xff\xfe", "application/json", 400),
        ("POST", b"[]", "application/json", 400),
        ("POST", b"{}", "application/yaml", 415),
        ("POST", b"{}", "application/json; charset=utf-8", 422),
        ("PATCH", b"{}", "application/json", 415),
        ("PATCH", b"{}", "", 415),
        ("DELETE", b"[]", "application/json", 400),
        ("DELETE", b'{"gracePeriodSeconds":"x"}', "application/json", 400),
    ],
)
def test_bodies_that_are_refused(server, method, body, content, code):
    path = "/api/v1/nodes" if method == "POST" else "/api/v1/nodes/n1"
    headers = {"Content-Type": content} if content else {}
    status, answer = raw(server, method, path, body, **headers)
    assert status == code
    assert json.loads(answer)["kind"] == "Status"


def test_a_dry_run_is_refused_rather_than_done(server):
    status, _ = raw(server, "POST", "/api/v1/nodes?dryRun=All", b'{"metadata":{"name":"n"}}')
    assert status == 400
    assert server.store.list("nodes") == []


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"POST /api/v1/nodes HTTP/1.1\r\nContent-Length: x\r\n\r\n", 400),
        (b"POST /api/v1/nodes HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n", 413),
        (b"POST /api/v1/nodes HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 411),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * (1 << 17) + b"\r\n\r\n", 431),
    ],
)
def test_what_is_no_request_is_answered_and_hung_up_on(server, sent, code):
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection:
        connection.sendall(sent)
        assert connection.recv(64).startswith(f"HTTP/1.1 {code} ".encode())


def test_two_requests_in_one_packet_are_both_answered(server):
    one = b"GET /healthz HTTP/1.1\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection:
        connection.sendall(one + one.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        answers = b"".join(iter(lambda: connection.recv(4096), b""))
    assert answers.count(b"200 OK") == 2


# -- faults and the log --------------------------------------------------------------------------------


def test_the_nth_matching_request_is_struck_and_no_other(server, port):
    server.store.create("nodes", {"metadata": {"name": "n"}})
    server.faults.add(Fault(verb="patch", resource="nodes", nth=2, code=409))
    outcomes = []
    for i in range(4):
        port.get("nodes", "n")
        try:
            port.patch("nodes", "n", {"metadata": {"annotations": {"i": str(i)}}})
            outcomes.append(200)
        except ApiError as error:
            outcomes.append(error.code)
            assert error.reason == "Conflict"
    assert outcomes == [200, 409, 200, 200]
    assert server.store.get("nodes", "n")["metadata"]["annotations"] == {"i": "3"}
    assert server.faults.describe() == []


@pytest.mark.parametrize(("action", "done"), [("drop", False), ("lose", True), ("error", False)])
def test_a_lost_answer_differs_from_a_dropped_request_in_what_was_done(server, port, action, done):
    server.faults.add(Fault(verb="create", action=action))
    with pytest.raises((UnreachableError, ApiError)):
        port.create("nodes", {"metadata": {"name": "n"}})
    assert bool(server.store.list("nodes")) is done


def test_a_fault_may_last_until_it_is_removed(server, port):
    number = server.faults.add(Fault(action="drop", times=None))
    for _ in range(3):
        with pytest.raises(UnreachableError):
            port.list("nodes")
    server.faults.remove(number)
    assert port.list("nodes") == []


def test_latency_delays_only_what_matches(server, port):
    server.faults.add(Fault(resource="pods", action="none", delay=0.2))
    began = time.monotonic()
    port.list("nodes")
    assert time.monotonic() - began < 0.15
    port.list("pods")
    assert time.monotonic() - began >= 0.2


def test_a_fault_can_be_aimed_at_one_agent(server, port):
    server.faults.add(Fault(agent="somebody-else", times=None))
    assert port.list("nodes") == []


def test_the_official_client_sees_dropped_connections_as_transport_errors(server, official):
    server.faults.add(Fault(action="drop"))
    with pytest.raises(HTTPError):
        official.list_node()
    assert official.list_node().items == []


def test_faults_are_programmed_over_http_too(server, port):
    status, answer = raw(server, "POST", "/faults", json.dumps({"verb": "list", "code": 503, "times": None}))
    assert status == 200
    assert json.loads(answer)[0]["code"] == 503
    with pytest.raises(ApiError) as caught:
        port.list("nodes")
    assert caught.value.reason == "ServiceUnavailable"
    assert json.loads(raw(server, "GET", "/faults")[1])[0]["seen"] == 1
    assert json.loads(raw(server, "DELETE", "/faults")[1]) == []
    assert port.list("nodes") == []


@pytest.mark.parametrize(
    "wrong",
    [{"verbs": "get"}, {"nth": 0}, {"nth": "1"}, {"action": "explode"}, {"code": 200}, {"times": 0},
     {"delay": -1}, {"verb": 3}, {"nth": True}, []],
)  # fmt: skip
def test_a_fault_that_makes_no_sense_is_refused(server, wrong):
    with pytest.raises(GpusimError):
        parse(wrong)
    assert raw(server, "POST", "/faults", json.dumps(wrong))[0] == 400
    assert server.faults.describe() == []


def test_the_log_shows_requests_as_a_cluster_role_lists_them(server, port):
    server.store.create("nodes", {"metadata": {"name": "n"}})
    server.store.create("pods", pod("p"))
    port.list("pods", fields="spec.nodeName=n")
    port.patch("nodes", "n", {}, subresource="status")
    port.bind("p", "n")
    with pytest.raises(ApiError):
        port.get("nodes", "none")
    raw(server, "GET", "/api/v1/nodes")  # another agent
    assert server.requests.verbs("test-agent") == {
        ("pods", "list"),
        ("nodes/status", "patch"),
        ("pods/binding", "create"),
        ("nodes", "get"),
    }
    assert [e.code for e in server.requests.entries("test-agent")] == [200, 200, 201, 404]
    over_http = json.loads(raw(server, "GET", "/requests?agent=test-agent")[1])
    assert [e["name"] for e in over_http] == ["", "n", "p", "none"]
    raw(server, "DELETE", "/requests")
    assert server.requests.entries() == []


def test_a_server_that_is_down_refuses_and_comes_back_on_the_same_port(server, port):
    server.store.create("nodes", {"metadata": {"name": "n"}})
    port.list("nodes")
    server.down()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port), timeout=1)
    with pytest.raises(UnreachableError):
        port.list("nodes")
    server.up()
    server.up()
    assert len(port.list("nodes")) == 1


def test_a_kept_connection_that_the_server_closed_is_no_obstacle_to_a_write(server, port):
    port.create("nodes", {"metadata": {"name": "n"}})
    server.down()
    server.up()
    assert port.patch("nodes", "n", {"metadata": {"labels": {"a": "b"}}})["metadata"]["labels"] == {"a": "b"}


def test_an_outage_of_some_seconds_can_be_asked_for_over_http(server, port):
    assert raw(server, "POST", "/faults", b'{"down_seconds": 0.3}')[0] == 200
    time.sleep(0.15)
    with pytest.raises(UnreachableError):
        port.list("nodes")
    end = time.monotonic() + 5
    while True:
        try:
            assert port.list("nodes") == []
            break
        except UnreachableError:
            assert time.monotonic() < end
            time.sleep(0.02)


@pytest.mark.parametrize("seconds", ["1", -1, True])
def test_an_outage_is_a_number_of_seconds(server, seconds):
    assert raw(server, "POST", "/faults", json.dumps({"down_seconds": seconds}))[0] == 400


# -- life ---------------------------------------------------------------------------------------------------


def test_the_kubeconfig_is_private_and_leaves_no_temporary_file(server, tmp_path):
    path = server.kubeconfig(tmp_path / "kubeconfig")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [p.name for p in tmp_path.iterdir()] == ["kubeconfig"]


def test_a_stopped_server_can_be_started_again_with_its_objects(stack):
    server = stack.enter_context(ApiServer())
    server.store.create("nodes", {"metadata": {"name": "n"}})
    url = server.url
    server.stop()
    server.stop()
    server.start()
    assert server.url == url
    client = ApiClient(url)
    stack.callback(client.close)
    assert len(client.list("nodes")) == 1
    with pytest.raises(GpusimError, match="runs already"):
        server.start()


def test_a_port_that_is_taken_is_an_error_that_names_it(server):
    with pytest.raises(GpusimError, match=f"cannot listen on 127.0.0.1:{server.port}"):
        ApiServer(server.port).start()


def test_faults_of_a_stopped_server_are_an_error():
    with pytest.raises(GpusimError, match="not running"):
        ApiServer().down()


def test_many_clients_at_once_lose_no_update(server):
    server.store.create("nodes", {"metadata": {"name": "n"}})

    def work(worker):
        client = ApiClient(server.url)
        for i in range(50):
            client.patch("nodes", "n", {"metadata": {"annotations": {f"w{worker}": str(i)}}})
        client.close()

    threads = [threading.Thread(target=work, args=(w,)) for w in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert server.store.get("nodes", "n")["metadata"]["annotations"] == {f"w{w}": "49" for w in range(6)}


def test_of_racing_compare_and_swaps_exactly_one_wins(server):
    version = server.store.create("nodes", {"metadata": {"name": "n"}})["metadata"]["resourceVersion"]
    won = []

    def work(worker):
        client = ApiClient(server.url)
        try:
            client.patch(
                "nodes", "n", {"metadata": {"resourceVersion": version, "annotations": {"by": worker}}}
            )
            won.append(worker)
        except ApiError as error:
            assert error.code == 409
        client.close()

    threads = [threading.Thread(target=work, args=(str(w),)) for w in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert server.store.get("nodes", "n")["metadata"]["annotations"]["by"] == won[0]


@pytest.mark.parametrize("url", ["https://127.0.0.1:1", "127.0.0.1:1", "http://"])
def test_an_address_that_is_no_plain_http_is_refused(url):
    with pytest.raises(GpusimError, match="expected http"):
        ApiClient(url)


# -- commands --------------------------------------------------------------------------------------

RUN = """
import argparse, sys
from gpusim.cluster import {module} as module
parser = argparse.ArgumentParser()
module.add_arguments(parser)
sys.exit(module.run(parser.parse_args()))
"""


def command(stack, module, *arguments):
    process = subprocess.Popen(
        [sys.executable, "-c", RUN.format(module=module), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    stack.callback(lambda: (process.kill(), process.communicate()))
    return process


@pytest.mark.daemon
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_api_server_and_kubelet_as_processes_say_they_are_ready_and_clean_up(stack, tmp_path, number):
    kubeconfig, directory = tmp_path / "kubeconfig", tmp_path / "device-plugins"
    apiserver = command(stack, "apiserver", "--kubeconfig", kubeconfig, "--node", "n1")
    ready = apiserver.stdout.readline()
    assert ready.startswith("apiserver ready at http://127.0.0.1:")
    url = ready.split()[-1]
    kubelet = command(stack, "kubelet", "--dir", directory, "--apiserver", url, "--node", "n1")
    assert kubelet.stdout.readline() == f"kubelet ready on {directory}/kubelet.sock for node n1\n"
    client = ApiClient(url)
    stack.callback(client.close)
    end = time.monotonic() + 10
    while not (client.get("nodes", "n1")["status"].get("conditions")):
        assert time.monotonic() < end
        time.sleep(0.02)
    for process in (kubelet, apiserver):
        os.kill(process.pid, number)
        assert process.wait(10) == 0
        assert process.stderr.read() == ""
    assert not kubeconfig.exists()
    assert not (directory / "kubelet.sock").exists()


@pytest.mark.daemon
def test_a_command_that_cannot_start_says_why_in_one_line(stack, server, tmp_path):
    taken = command(stack, "apiserver", "--port", server.port)
    assert taken.wait(10) == 1
    assert taken.stderr.read().startswith("gpusim apiserver: cannot listen on 127.0.0.1")
    (tmp_path / "d" / "kubelet.sock").mkdir(parents=True)
    blocked = command(stack, "kubelet", "--dir", tmp_path / "d")
    assert blocked.wait(10) == 1
    assert blocked.stderr.read().startswith("gpusim kubelet: cannot listen on ")
    (tmp_path / "file").write_text("")
    none = command(stack, "kubelet", "--dir", tmp_path / "file")
    assert none.wait(10) == 1
    assert none.stderr.read() == (
        f"gpusim kubelet: --dir {tmp_path}/file: {tmp_path}/file: File exists; "
        "name a directory that is there or can be made, and written\n"
    )


def test_a_number_longer_than_any_is_refused_as_no_number(server: ApiServer) -> None:
    huge = "9" * 5000
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as raw:
        raw.sendall(f"GET /api/v1/nodes HTTP/1.1\r\nContent-Length: {huge}\r\n\r\n".encode())
        assert raw.recv(4096).startswith(b"HTTP/1.1 400 ")
    for query in (
        f"watch=1&resourceVersion={huge}",
        f"watch=1&timeoutSeconds={huge}",
        "watch=1&resourceVersion=1e3",
    ):
        with socket.create_connection(("127.0.0.1", server.port), timeout=5) as raw:
            raw.sendall(f"GET /api/v1/nodes?{query} HTTP/1.1\r\nConnection: close\r\n\r\n".encode())
            assert raw.recv(4096).startswith(b"HTTP/1.1 400 ")
