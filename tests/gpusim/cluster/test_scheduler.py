"""The scheduler at work on an API server: rounds over nodes, one pod at a time, and what fails on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from gpusim.cluster.apifaults import Fault
from gpusim.cluster.apiserver import ApiServer
from gpusim.cluster.pods import LOCK, container, pod
from gpusim.cluster.scheduler import Scheduler
from gpusim.cluster.scheduler_filter import Rules
from gpusim.cluster.scheduler_vendors import AMD, AMD_MIXED
from gpusim.errors import GpusimError

NODE = "n1"
TYPE = "AMD_Instinct_MI300X"
GPU = "amd.com/gpu"
TO_ALLOCATE, ALLOCATED = AMD.to_allocate, AMD.allocated
NOW = 1_800_000_000.0
STAMP = "2027-01-15T08:00:00Z"


def listed(number=2, first=0, **more):
    facts = {"count": 4, "devmem": 1000, "devcore": 100, "type": TYPE, "health": True}
    return [{"id": f"gpu-{first + i}", "index": i, **facts, **more} for i in range(number)]


def offer(store, devices=None, *, name=NODE, capacity=8, resource=GPU, **spec):
    devices = listed() if devices is None else devices
    body = {
        "metadata": {"name": name, "annotations": {AMD.register: json.dumps(devices)}},
        "spec": spec,
        "status": {field: {resource: str(capacity)} for field in ("capacity", "allocatable")},
    }
    store.create("nodes", body)


def count(store, amount, field="capacity"):
    store.patch("nodes", NODE, {"status": {field: {GPU: str(amount)}}}, subresource="status")


def want(store, name="p", *limits, **more):
    asked = limits or ({GPU: 1, "amd.com/gpumem": 100, "amd.com/gpucores": 10},)
    containers = [container(f"c{i}", one) for i, one in enumerate(asked)]
    return store.create("pods", pod(name, containers, **more))


def notes(store, name="p"):
    return store.get("pods", name)["metadata"].get("annotations") or {}


def lock_of(store, name=NODE):
    return (store.get("nodes", name)["metadata"].get("annotations") or {}).get(LOCK)


def finish(store, name="p"):
    """What a plugin and its kubelet do: consume, release, run."""
    store.patch("pods", name, {"metadata": {"annotations": {TO_ALLOCATE: ";"}}})
    store.patch("nodes", NODE, {"metadata": {"annotations": {LOCK: None}}})
    store.patch("pods", name, {"status": {"phase": "Running"}}, subresource="status")


@pytest.fixture
def store(server: ApiServer):
    return server.store


@pytest.fixture
def make(stack, server):
    def made(*, api=None, **settings):
        settings = {
            "now": lambda: NOW,
            "sleep": lambda s: None,
            "retry_seconds": 0.02,
            "poll_seconds": 0.01,
            **settings,
        }
        scheduler = Scheduler(server.url if api is None else api, **settings)
        stack.callback(scheduler.stop)
        return scheduler

    return made


# -- one pod --------------------------------------------------------------------------------------------


def test_a_pod_is_annotated_locked_marked_and_bound_in_that_order(server, store, make):
    offer(store)
    want(store)
    outcome = make().schedule_once("p")
    assert outcome.bound, outcome
    value = f"gpu-1,{TYPE},100,10:;"
    assert notes(store) == {
        "hami.io/vgpu-node": NODE,
        "hami.io/vgpu-time": str(int(NOW)),
        TO_ALLOCATE: value,
        ALLOCATED: value,
        "hami.io/bind-phase": "allocating",
        "hami.io/bind-time": str(int(NOW)),
    }
    placed = store.get("pods", "p")
    assert placed["spec"]["nodeName"] == NODE
    assert placed["metadata"]["labels"] == {"hami.io/vgpu-node": NODE}
    assert lock_of(store) == f"{STAMP},default,p"
    writes = [(e.verb, e.resource, e.subresource) for e in server.requests.entries("gpusim-scheduler")]
    assert [w for w in writes if w[0] in ("patch", "create")] == [
        ("patch", "pods", ""),
        ("patch", "nodes", ""),
        ("patch", "pods", ""),
        ("create", "pods", "binding"),
    ]


def test_the_next_pod_waits_for_the_lock_and_goes_elsewhere_when_the_first_is_served(store, make):
    offer(store, listed(2, count=1))
    want(store, "p")
    want(store, "q")
    scheduler = make(api=store)
    assert scheduler.schedule_once("p").bound
    blocked = scheduler.schedule_once("q")
    assert (blocked.kind, blocked.node) == ("contention", NODE)
    assert "has been locked within 5m0s: node lock contention" in blocked.message
    assert lock_of(store) == f"{STAMP},default,p"
    assert "hami.io/bind-phase" not in notes(store, "q")
    finish(store)
    assert scheduler.schedule_once("q").bound
    assert notes(store, "q")[ALLOCATED].startswith("gpu-0,")


def test_a_pod_that_was_placed_before_is_placed_anew_without_counting_itself(store, make):
    offer(store, listed(1, count=1))
    want(store)
    scheduler = make(api=store)
    store.patch("nodes", NODE, {"metadata": {"annotations": {LOCK: f"{STAMP},default,q"}}})
    want(store, "q")
    assert scheduler.schedule_once("p").kind == "contention"
    assert ALLOCATED in notes(store)
    store.patch("nodes", NODE, {"metadata": {"annotations": {LOCK: None}}})
    assert scheduler.schedule_once("p").bound


def test_a_bound_pod_is_never_placed_again(store, make):
    offer(store)
    want(store)
    scheduler = make(api=store)
    scheduler.schedule_once("p")
    before = store.get("pods", "p")
    again = scheduler.schedule_once("p")
    assert (again.kind, again.message) == ("failed", "pod p is already assigned to node n1")
    assert store.get("pods", "p") == before
    assert scheduler.schedule_once("absent").kind == "failed"


def test_what_ended_and_what_was_deleted_is_free_again(store, make):
    offer(store, listed(1, count=1))
    scheduler = make(api=store)
    for number, ending in enumerate(("Succeeded", "Failed", "deleted")):
        name = f"p{number}"
        want(store, name)
        assert scheduler.schedule_once(name).bound
        finish(store, name)
        want(store, f"q{number}")
        assert scheduler.schedule_once(f"q{number}").message == f"{NODE}: 1/1 CardTimeSlicingExhausted"
        store.delete("pods", f"q{number}")
        if ending == "deleted":
            store.delete("pods", name)
        else:
            store.patch("pods", name, {"status": {"phase": ending}}, subresource="status")
    want(store)
    assert scheduler.schedule_once("p").bound


def test_a_request_in_an_init_container_only_takes_no_lock(store, make):
    offer(store)
    want(store, "p", None, init_containers=[container("i", {GPU: 1})])
    assert make(api=store).schedule_once("p").bound
    assert notes(store)[TO_ALLOCATE] == f"gpu-1,{TYPE},1000,100:;;"
    assert lock_of(store) is None


@pytest.mark.parametrize(
    "limits", [None, {"amd.com/gpumem": 1024}, {GPU: 1, "amd.com/gpucores": 101}], ids=str
)
def test_a_pod_without_a_readable_request_is_bound_and_runs_unaccounted(store, make, limits):
    offer(store)
    want(store, "p", limits)
    assert make(api=store).schedule_once("p").bound
    assert notes(store) == {}
    assert lock_of(store) is None


def test_a_node_that_is_cordoned_or_not_selected_is_no_candidate(store, make):
    offer(store, name="cordoned", unschedulable=True)
    offer(store, listed(2, 2), name="plain")
    scheduler = make(api=store)
    body = pod("p", [container("c", {GPU: 1})])
    body["spec"]["nodeSelector"] = {"zone": "a"}
    store.create("pods", body)
    assert scheduler.schedule_once("p").message == "no node"
    store.patch("nodes", "plain", {"metadata": {"labels": {"zone": "a"}}})
    assert scheduler.schedule_once("p").node == "plain"


def test_an_id_the_grammar_cannot_hold_is_not_written(store, make):
    offer(store, listed(1, id="0000:05:00.0"))
    want(store)
    outcome = make(api=store).schedule_once("p")
    assert outcome.kind == "failed"
    assert "cannot be written" in outcome.message
    assert notes(store) == {}


def test_lost_slots_are_an_option(store, make):
    offer(store)
    want(store, "p", None, {GPU: 1})
    make(api=store, rules=Rules(empty_slots=False)).schedule_once("p")
    assert notes(store)[TO_ALLOCATE] == f"gpu-1,{TYPE},1000,100:;"


# -- what fails on the way --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "placed"),
    [
        (Fault(verb="patch", resource="pods"), False),
        (Fault(verb="patch", resource="nodes", times=None), True),
        (Fault(verb="patch", resource="pods", nth=2), True),
        (Fault(verb="create", resource="pods", subresource="binding"), True),
        (Fault(verb="create", resource="pods", subresource="binding", action="drop"), True),
    ],
    ids=["filter", "lock", "phase", "binding", "binding dropped"],
)
def test_whatever_fails_the_lock_is_given_back_and_the_next_try_succeeds(server, store, make, fault, placed):
    offer(store)
    want(store)
    scheduler = make()
    number = server.faults.add(fault)
    assert scheduler.schedule_once("p").kind == "failed"
    assert "nodeName" not in store.get("pods", "p")["spec"]
    assert (ALLOCATED in notes(store)) == placed
    server.faults.remove(number)
    assert lock_of(store) is None
    assert scheduler.schedule_once("p").bound


def test_a_binding_whose_answer_is_lost_is_bound_and_the_lock_is_given_back(server, store, make):
    offer(store)
    want(store)
    scheduler = make()
    server.faults.add(Fault(verb="create", resource="pods", subresource="binding", action="lose"))
    assert scheduler.schedule_once("p").kind == "failed"
    assert store.get("pods", "p")["spec"]["nodeName"] == NODE
    assert notes(store)["hami.io/bind-phase"] == "allocating"
    assert lock_of(store) is None


def test_a_patch_of_the_filter_whose_answer_is_lost_counts_until_it_is_replaced(server, store, make):
    offer(store, listed(1, count=1))
    want(store, "p")
    want(store, "q")
    scheduler = make()
    server.faults.add(Fault(verb="patch", resource="pods", action="lose"))
    assert scheduler.schedule_once("p").kind == "failed"
    assert scheduler.schedule_once("q").kind == "unschedulable"
    assert scheduler.schedule_once("p").bound


# -- rounds over the nodes ----------------------------------------------------------------------------------


def kinds(scheduler):
    return [event.kind for event in scheduler.events]


def test_a_node_without_capacity_loses_the_registration_that_was_believed(store, make):
    offer(store)
    scheduler = make(api=store)
    scheduler.refresh()
    assert [d.id for d in scheduler.devices[NODE]["amd"]] == ["gpu-0", "gpu-1"]
    count(store, 0)
    scheduler.refresh()
    assert AMD.register not in store.get("nodes", NODE)["metadata"]["annotations"]
    assert scheduler.devices[NODE] == {}
    assert kinds(scheduler) == ["registered", "cleaned"]


def test_a_registration_that_came_before_the_capacity_is_left_alone(store, make):
    offer(store, capacity=0)
    scheduler = make(api=store)
    scheduler.refresh()
    assert AMD.register in store.get("nodes", NODE)["metadata"]["annotations"]
    want(store)
    assert scheduler.schedule_once("p").message == "no node"
    count(store, 8)
    assert scheduler.schedule_once("p").bound


def test_a_clean_up_that_fails_is_made_in_the_next_round(server, store, make):
    offer(store)
    scheduler = make()
    scheduler.refresh()
    count(store, 0)
    server.faults.add(Fault(verb="patch", resource="nodes"))
    want(store)
    assert scheduler.schedule_once("p").kind == "failed"
    scheduler.refresh()
    assert AMD.register not in store.get("nodes", NODE)["metadata"]["annotations"]


def test_newer_releases_believe_what_is_allocatable(store, make):
    offer(store)
    old, new = make(api=store), make(api=store, believes="allocatable")
    old.refresh()
    new.refresh()
    count(store, 0, "allocatable")
    old.refresh()
    assert old.devices[NODE]["amd"]
    new.refresh()
    assert new.devices[NODE] == {}


@pytest.mark.parametrize("text", [None, "[]", "garbage"])
def test_a_registration_that_goes_takes_its_devices_along(store, make, text):
    offer(store)
    scheduler = make(api=store)
    scheduler.refresh()
    store.patch("nodes", NODE, {"metadata": {"annotations": {AMD.register: text}}})
    want(store)
    assert scheduler.schedule_once("p").kind == "unschedulable"
    assert kinds(scheduler) == ["registered", "unregistered"]


def test_a_purely_mixed_node_is_nothing_to_upstream_and_a_node_to_ours(store, make):
    offer(
        store, listed(2, mode="cpx", custominfo={"partitionProfile": "cpx_nps1"}), resource="amd.com/cpx_nps1"
    )
    want(store, "p", {"amd.com/cpx_nps1": 2})
    upstream, ours = make(api=store), make(api=store, vendors=[AMD_MIXED])
    upstream.refresh()
    assert upstream.devices[NODE] == {}
    assert ours.schedule_once("p").bound
    assert notes(store)[ALLOCATED] == f"gpu-1,{TYPE},1000,100:gpu-0,{TYPE},1000,100:;"


def test_b39_ids_that_two_nodes_share_are_told_once_and_kept_apart(store, make):
    offer(store, listed(1, count=1), name="a")
    offer(store, listed(1, count=1), name="b")
    scheduler = make(api=store, rules=Rules("spread"))
    for name in ("p", "q"):
        want(store, name)
        assert scheduler.schedule_once(name).bound
    assert {store.get("pods", n)["spec"]["nodeName"] for n in ("p", "q")} == {"a", "b"}
    assert [e.detail for e in scheduler.events if e.kind == "twins"] == [{"id": "gpu-0", "nodes": ("a", "b")}]


def test_a_node_that_is_gone_is_forgotten(store, make):
    offer(store)
    scheduler = make(api=store)
    scheduler.refresh()
    store.delete("nodes", NODE)
    scheduler.refresh()
    assert scheduler.devices == {}


# -- all pods ---------------------------------------------------------------------------------------------


def bound(store, name):
    return store.get("pods", name)["spec"].get("nodeName")


def test_pending_pods_of_ours_are_bound_and_others_left(store, make):
    offer(store)
    want(store, "mine")
    named = pod("named", [container("c")])
    named["spec"]["schedulerName"] = "hami-scheduler"
    store.create("pods", named)
    store.create("pods", pod("foreign", [container("c")]))
    with make() as scheduler:
        scheduler.wait_for(lambda s: bound(store, "mine") and bound(store, "named"))
        time.sleep(0.05)
    assert bound(store, "foreign") is None


def test_a_pod_waits_for_room_with_the_reason_in_its_status_and_then_runs(store, make):
    offer(store, listed(1, count=1))
    with make() as scheduler:
        want(store, "p")
        scheduler.wait_for(lambda s: bound(store, "p"))
        finish(store)
        want(store, "q")
        scheduler.wait_for(lambda s: store.get("pods", "q")["status"].get("conditions"))
        (condition,) = store.get("pods", "q")["status"]["conditions"]
        assert (condition["type"], condition["reason"]) == ("PodScheduled", "Unschedulable")
        assert condition["message"] == f"unschedulable: {NODE}: 1/1 CardTimeSlicingExhausted"
        time.sleep(0.1)
        assert kinds(scheduler).count("unplaced") == 1
        store.delete("pods", "p")
        scheduler.wait_for(lambda s: bound(store, "q"))


def test_a_new_node_is_used_before_the_next_round_is_due(store, make):
    with make(refresh_seconds=3600) as scheduler:
        want(store)
        scheduler.wait_for(lambda s: "unplaced" in kinds(s))
        offer(store)
        scheduler.wait_for(lambda s: bound(store, "p"))


def test_an_outage_is_waited_for(server, store, make):
    offer(store)
    with make() as scheduler:
        scheduler.wait_for(lambda s: "registered" in kinds(s))
        server.down()
        want(store)
        scheduler.wait_for(lambda s: "api-error" in kinds(s))
        server.up()
        scheduler.wait_for(lambda s: bound(store, "p"))


def test_it_runs_once_and_can_be_started_again(store, make):
    scheduler = make(api=store)
    with scheduler, pytest.raises(GpusimError, match="runs already"):
        scheduler.start()
    offer(store)
    want(store)
    with scheduler:
        scheduler.wait_for(lambda s: bound(store, "p"))
    with pytest.raises(TimeoutError, match="last events:\n  registered"):
        scheduler.wait_for(lambda s: False, timeout=0.05)


@pytest.mark.daemon
def test_the_command_schedules_says_so_and_ends_cleanly(server, store):
    offer(store)
    store.patch("nodes", NODE, {"metadata": {"annotations": {LOCK: f"{STAMP},default,absent"}}})
    want(store)
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "gpusim.cli",
            "scheduler",
            "--apiserver",
            server.url,
            "--gpu-policy",
            "binpack",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout.readline() == f"scheduler ready for {server.url}\n"
        said = [process.stdout.readline() for _ in range(3)]
        assert said == [
            f"registered node={NODE} vendor=amd devices=2\n",
            f"filtered pod=p node={NODE}\n",
            f"bound pod=p node={NODE}\n",
        ]
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(10) == 0
        assert process.stderr.read() == ""
    finally:
        process.kill()
        process.communicate()


@pytest.mark.daemon
def test_an_address_it_cannot_use_is_one_line(server):
    done = subprocess.run(
        [sys.executable, "-m", "gpusim.cli", "scheduler", "--apiserver", "nonsense"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, "gpusim scheduler: 'nonsense': expected http://HOST:PORT\n")
