"""Kubelet and API server together: node status, pods taken up, ended and rejected."""

from __future__ import annotations

import json
import threading

import pytest

from gpusim.cluster.apifaults import Fault
from gpusim.cluster.apistatus import ApiError
from gpusim.cluster.pods import container, pod

from .fake_plugin import RESOURCE, device, devices, eventually, refuse

NODE = "node-1"


@pytest.fixture
def cluster(server, make_kubelet, make_plugin, tmp_path):
    """(store, kubelet, plugin) with the devices published."""

    def make(listed=None, settings=None, **options):
        listed = devices(4) if listed is None else listed
        kubelet = make_kubelet(api=server.url, pods_directory=tmp_path / "pods", **(settings or {}))
        plugin = make_plugin(listed, **options).register()
        healthy = str(sum(d.health == "Healthy" for d in listed))
        assert eventually(lambda: allocatable(server.store) == healthy)
        return server.store, kubelet, plugin

    return make


def allocatable(store, resource=RESOURCE):
    return amounts(store, "allocatable").get(resource)


def amounts(store, field):
    try:
        return store.get("nodes", NODE).get("status", {}).get(field, {})
    except ApiError:
        return {}


def phase(store, name="p"):
    return store.get("pods", name)["status"]["phase"]


def bound(store, name="p", count=1, **more):
    return store.create("pods", pod(name, [container("main", {RESOURCE: count})], node=NODE, **more))


def test_the_kubelet_registers_its_node_and_publishes_devices(cluster):
    store, kubelet, _ = cluster([*devices(3), device("x", health="Unhealthy")])
    node = store.get("nodes", NODE)
    assert node["metadata"]["labels"]["kubernetes.io/hostname"] == NODE
    assert node["status"]["capacity"][RESOURCE] == "4"
    assert node["status"]["allocatable"][RESOURCE] == "3"
    assert [c["status"] for c in node["status"]["conditions"] if c["type"] == "Ready"] == ["True"]
    assert kubelet.allocatable(RESOURCE) == 3


def test_after_the_stream_ends_the_node_shows_capacity_and_nothing_allocatable(cluster):
    store, _, plugin = cluster()
    plugin.stop()
    assert eventually(lambda: allocatable(store) == "0")
    assert amounts(store, "capacity")[RESOURCE] == "4"


def test_after_the_grace_the_node_shows_zero_capacity(cluster):
    now = [0.0]
    store, _, plugin = cluster(settings={"clock": lambda: now[0]})
    plugin.stop()
    assert eventually(lambda: allocatable(store) == "0")
    now[0] += 300
    assert eventually(lambda: amounts(store, "capacity")[RESOURCE] == "0")


def test_annotations_and_labels_of_the_node_are_left_alone(cluster):
    store, _, plugin = cluster()
    store.patch("nodes", NODE, {"metadata": {"annotations": {"a": "b"}}})
    plugin.send(devices(2))
    assert eventually(lambda: allocatable(store) == "2")
    assert store.get("nodes", NODE)["metadata"]["annotations"] == {"a": "b"}


def test_a_kubelet_without_a_checkpoint_zeroes_extended_capacity_of_before(server, make_kubelet):
    status = {"capacity": {RESOURCE: "8", "cpu": "4"}, "allocatable": {RESOURCE: "8", "cpu": "4"}}
    server.store.create("nodes", {"metadata": {"name": NODE}, "status": status})
    make_kubelet(api=server.url)
    assert eventually(lambda: allocatable(server.store) == "0")
    assert amounts(server.store, "capacity")[RESOURCE] == "0"
    assert amounts(server.store, "capacity")["cpu"] == "4"


def test_capacity_somebody_else_published_becomes_allocatable(cluster):
    store, _, _ = cluster()
    store.patch("nodes", NODE, {"status": {"capacity": {"amd.com/gpumem": "1000"}}}, subresource="status")
    assert eventually(lambda: allocatable(store, "amd.com/gpumem") == "1000", timeout=5)


def test_a_bound_pod_is_allocated_and_runs(cluster, tmp_path):
    store, kubelet, plugin = cluster()
    made = bound(store, count=2)
    assert eventually(lambda: phase(store) == "Running")
    status = store.get("pods", "p")["status"]
    (main,) = status["containerStatuses"]
    assert main["ready"]
    assert "running" in main["state"]
    ids = kubelet.admissions[made["metadata"]["uid"]].containers["main"].ids[RESOURCE]
    assert set(plugin.allocations[0]) == set(ids)
    assert main["allocatedResourcesStatus"] == [
        {"name": RESOURCE, "resources": [{"resourceID": i, "health": "Healthy"} for i in ids]}
    ]
    assert "annotations" not in store.get("pods", "p")["metadata"]
    written = json.loads((tmp_path / "pods" / "default_p.json").read_text())
    assert written["containers"]["main"]["envs"] == {"IDS": ",".join(ids)}


def test_in_a_steady_state_the_kubelet_writes_nothing(cluster, server):
    store, _, _ = cluster()
    bound(store)
    assert eventually(lambda: phase(store) == "Running")
    version = store.shelves.version
    server.requests.clear()
    assert eventually(lambda: len(server.requests.entries("gpusim-kubelet")) >= 5)
    assert {e.verb for e in server.requests.entries("gpusim-kubelet")} <= {"get", "list"}
    assert store.shelves.version == version


def test_a_pod_of_another_node_or_of_none_is_not_taken_up(cluster):
    store, _, plugin = cluster()
    store.create("pods", pod("other", [container("main", {RESOURCE: 1})], node="node-2"))
    store.create("pods", pod("free", [container("main", {RESOURCE: 1})]))
    bound(store)
    assert eventually(lambda: phase(store) == "Running")
    assert phase(store, "other") == phase(store, "free") == "Pending"
    assert len(plugin.allocations) == 1


def test_a_pod_is_taken_up_when_it_is_bound(cluster):
    store, _, _ = cluster()
    store.create("pods", pod("p", [container("main", {RESOURCE: 1})]))
    store.bind("p", NODE)
    assert eventually(lambda: phase(store) == "Running")


def test_a_pod_that_cannot_be_allocated_fails_with_the_reason(cluster):
    store, _, plugin = cluster()
    plugin.on_allocate = refuse("0000:05:00.0 is busy")
    bound(store)
    assert eventually(lambda: phase(store) == "Failed")
    status = store.get("pods", "p")["status"]
    assert status["reason"] == "UnexpectedAdmissionError"
    assert status["message"] == (
        "Pod was rejected: Allocate failed due to rpc error: code = Unknown desc = 0000:05:00.0 is busy, "
        "which is unexpected"
    )


def test_a_failed_pod_is_not_tried_again(cluster):
    store, _, plugin = cluster()
    plugin.on_allocate = refuse("no")
    bound(store)
    assert eventually(lambda: phase(store) == "Failed")
    plugin.on_allocate = plugin.answer
    bound(store, "next")
    assert eventually(lambda: phase(store, "next") == "Running")
    assert phase(store) == "Failed"


@pytest.mark.parametrize("ending", ["finish", "delete", "force"])
def test_a_pod_that_ends_frees_its_devices(cluster, ending):
    store, _, _ = cluster(devices(1))
    bound(store)
    assert eventually(lambda: phase(store) == "Running")
    if ending == "finish":
        store.patch("pods", "p", {"status": {"phase": "Succeeded"}}, subresource="status")
    else:
        store.delete("pods", "p", grace_seconds=0 if ending == "force" else None)
    bound(store, "next")
    assert eventually(lambda: phase(store, "next") == "Running")
    if ending != "finish":
        assert not store.list("pods", fields="metadata.name=p")


def test_health_that_changes_shows_in_the_status_of_the_pod_that_holds_the_device(cluster):
    store, _, plugin = cluster(devices(1))
    bound(store)
    assert eventually(lambda: phase(store) == "Running")

    def health():
        (main,) = store.get("pods", "p")["status"]["containerStatuses"]
        return main["allocatedResourcesStatus"][0]["resources"][0]["health"]

    plugin.send([device("d0", health="Unhealthy")])
    assert eventually(lambda: health() == "Unhealthy")
    plugin.send([])
    assert eventually(lambda: health() == "Unknown")
    plugin.send(devices(1))
    assert eventually(lambda: health() == "Healthy")
    assert phase(store) == "Running"


def test_memory_and_core_resources_the_node_does_not_list_are_ignored(cluster):
    store, _, _ = cluster()
    limits = {RESOURCE: 1, "amd.com/gpumem": 9000, "amd.com/gpucores": 50}
    store.create("pods", pod("p", [container("main", limits)], node=NODE))
    assert eventually(lambda: phase(store) == "Running")


def test_a_resource_the_node_lists_is_a_limit_for_the_sum_of_its_pods(cluster):
    store, kubelet, _ = cluster()
    store.patch("nodes", NODE, {"status": {"capacity": {"amd.com/gpumem": "1000"}}}, subresource="status")
    assert eventually(lambda: allocatable(store, "amd.com/gpumem") == "1000")
    kubelet.wait_for(lambda k: k.capacity(RESOURCE) == 4)

    def ask(name, amount):
        store.create("pods", pod(name, [container("main", {"amd.com/gpumem": amount})], node=NODE))
        assert eventually(lambda: phase(store, name) != "Pending")
        return store.get("pods", name)["status"]

    assert eventually(lambda: "amd.com/gpumem" in kubelet._life.allocatable)
    assert ask("one", 600)["phase"] == "Running"
    refused = ask("two", 600)
    assert refused["reason"] == "OutOfamd.com/gpumem"
    assert "requested: 600, used: 600, capacity: 1000" in refused["message"]
    assert ask("three", 400)["phase"] == "Running"


def test_an_init_container_shows_as_completed(cluster):
    store, _, _ = cluster()
    store.create(
        "pods",
        pod(
            "p",
            [container("main", {RESOURCE: 1})],
            init_containers=[container("init", {RESOURCE: 1})],
            node=NODE,
        ),
    )
    assert eventually(lambda: phase(store) == "Running")
    (init,) = store.get("pods", "p")["status"]["initContainerStatuses"]
    assert init["state"]["terminated"]["exitCode"] == 0


def test_a_prestart_error_keeps_the_pod_pending_until_it_goes_away(cluster):
    store, _, plugin = cluster(prestart=True)
    plugin.on_prestart = refuse("reset failed")
    bound(store)

    def waiting():
        listed = store.get("pods", "p")["status"].get("containerStatuses") or [{"state": {}}]
        return listed[0]["state"].get("waiting", {}).get("reason")

    assert eventually(lambda: waiting() == "CreateContainerConfigError")
    assert phase(store) == "Pending"
    plugin.on_prestart = lambda ids: None
    assert eventually(lambda: phase(store) == "Running")
    assert len(plugin.allocations) == 1


def test_running_pods_survive_a_kubelet_restart_and_are_not_allocated_again(cluster, make_plugin):
    store, kubelet, plugin = cluster()
    made = bound(store)
    assert eventually(lambda: phase(store) == "Running")
    before = kubelet.holdings(made["metadata"]["uid"])
    version = store.get("pods", "p")["metadata"]["resourceVersion"]
    kubelet.restart()
    assert eventually(lambda: allocatable(store) == "0")
    make_plugin(devices(4)).register()
    assert eventually(lambda: allocatable(store) == "4")
    assert phase(store) == "Running"
    assert kubelet.holdings(made["metadata"]["uid"]) == before
    assert len(plugin.allocations) == 1
    # health was unknown in between, so the status was written; nothing else of the pod changed
    assert int(store.get("pods", "p")["metadata"]["resourceVersion"]) >= int(version)


def test_after_a_reboot_running_pods_fail_while_the_plugin_is_away(cluster):
    store, kubelet, plugin = cluster()
    bound(store)
    assert eventually(lambda: phase(store) == "Running")
    plugin.stop()
    kubelet.reboot()
    assert eventually(lambda: phase(store) == "Failed")
    assert store.get("pods", "p")["status"]["reason"] == "UnexpectedAdmissionError"


def test_a_pod_deleted_while_the_kubelet_was_away_holds_nothing(cluster):
    store, kubelet, _ = cluster()
    made = bound(store)
    assert eventually(lambda: phase(store) == "Running")
    kubelet.kill()
    store.delete("pods", "p")
    kubelet.start()
    assert kubelet.wait_for(lambda k: k.holdings(made["metadata"]["uid"]) == {})


def test_a_hanging_allocate_leaves_the_node_s_status_alive(cluster):
    store, _, plugin = cluster()
    held = threading.Event()
    plugin.on_allocate = lambda ids: held.wait(20) and plugin.answer(ids)
    bound(store)
    assert eventually(lambda: len(plugin.allocations) == 1)
    plugin.send(devices(3))
    assert eventually(lambda: allocatable(store) == "3")
    bound(store, "next")
    assert not eventually(lambda: phase(store, "next") != "Pending", timeout=0.2)
    held.set()
    assert eventually(lambda: phase(store, "next") == "Running")


def test_a_kubelet_killed_in_allocate_takes_the_pod_up_again_when_it_is_back(cluster, make_plugin):
    store, kubelet, plugin = cluster()
    held = threading.Event()
    plugin.on_allocate = lambda ids: held.wait(20) and plugin.answer(ids)
    bound(store)
    assert eventually(lambda: len(plugin.allocations) == 1)
    kubelet.kill()
    held.set()
    assert phase(store) == "Pending"
    kubelet.start()
    assert eventually(lambda: phase(store) == "Failed")  # its plugin has not come back


def test_an_api_server_that_is_down_delays_and_loses_nothing(cluster, server):
    store, kubelet, plugin = cluster()
    server.down()
    bound(store)
    plugin.send(devices(2))
    assert kubelet.wait_for(lambda k: any(e.kind == "api-error" for e in k.events))
    server.up()
    assert eventually(lambda: phase(store) == "Running")
    assert eventually(lambda: allocatable(store) == "2")


@pytest.mark.parametrize("action", ["error", "drop", "lose"])
def test_a_status_patch_that_fails_is_made_again_without_a_second_allocate(cluster, server, action):
    store, _, plugin = cluster()
    server.faults.add(Fault(verb="patch", resource="pods", subresource="status", action=action, times=3))
    bound(store)
    assert eventually(lambda: phase(store) == "Running")
    assert eventually(lambda: not server.faults.describe())
    assert len(plugin.allocations) == 1


def test_the_kubelet_works_on_a_store_of_this_process_too(make_kubelet, make_plugin, server):
    store = server.store
    make_kubelet(api=store)
    make_plugin(devices(1)).register()
    assert eventually(lambda: allocatable(store) == "1")
    bound(store)
    assert eventually(lambda: phase(store) == "Running")
    assert server.requests.entries() == []
