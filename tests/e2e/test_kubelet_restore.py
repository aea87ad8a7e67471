"""Kubelet's scenarios about time and memory with the real daemon: slow dials, the grace, restarts, conflicts.

K7, K13, K16, K17, K19 and K20 of kubelet.md 2 as a right plugin meets them. What a wrong one does (K9, K21,
wrong preferences, a PreStart that fails) is shown with a plugin of the tests' own in tests/gpusim/cluster.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from gpusim.cluster.kubelet import Kubelet
from gpusim.cluster.scheduler_vendors import AMD_MIXED

from ..devplugin.daemon.rig import NODE, until
from .test_kubelet_scenarios import CUS, GPU, PHASE, REGISTER, Node, kinds
from .test_scheduler_lives import CPX, SPX, Cluster, renders, slice_

pytestmark = pytest.mark.daemon

PARTITIONS = {GPU: 32}


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


# -- K7: the dial-back takes its time -----------------------------------------------------------------------


def test_k7_a_dial_back_of_nine_seconds_is_waited_for(stack: ExitStack) -> None:
    node = stack.enter_context(Node())
    node.kubelet.start()
    node.kubelet.faults.dial_delay = 9.0
    node.start()
    node.kubelet.wait_for(lambda k: k.allocatable(GPU) == 8, timeout=20)
    assert node.registrations() == 1
    assert "refused" not in kinds(node.kubelet)


def test_k7_a_dial_back_that_is_too_slow_fails_and_is_tried_again(stack: ExitStack) -> None:
    node = stack.enter_context(Node(dial_timeout=0.3))
    node.kubelet.start()
    node.kubelet.faults.dial_delay = 0.4
    plugin = node.start()
    until(lambda: kinds(node.kubelet).count("refused") >= 2, 20)
    assert plugin.process.poll() is None
    node.kubelet.faults.dial_delay = 0.0
    node.kubelet.wait_for(lambda k: k.allocatable(GPU) == 8, timeout=20)
    until(lambda: len(node.names()) == 1)


# -- K13: five minutes of grace -----------------------------------------------------------------------------


def test_k13_capacity_stays_for_five_minutes_and_comes_back_with_the_plugin(stack: ExitStack) -> None:
    hours = [0.0]
    node = stack.enter_context(Node(clock=lambda: hours[0]))
    node.kubelet = Kubelet(
        node.sockets,
        node=NODE,
        api=node.store,
        numa_nodes=range(8),
        poll_seconds=0.02,
        clock=lambda: hours[0],
    )

    def published() -> tuple[str | None, ...]:
        status = node.store.get("nodes", NODE)["status"]
        return tuple((status.get(field) or {}).get(GPU) for field in ("capacity", "allocatable"))

    node.kubelet.start()
    plugin = node.start()
    until(lambda: published() == ("8", "8"))
    assert plugin.end() == 0
    until(lambda: published() == ("8", "0"))
    hours[0] += 299.0
    time.sleep(0.1)
    assert published() == ("8", "0")
    hours[0] += 1.0
    until(lambda: published() == ("0", "0"))
    assert node.kubelet.resources() == ()
    node.start()
    until(lambda: published() == ("8", "8"))


def test_k13_the_scheduler_removes_the_registration_after_the_grace_and_the_plugin_writes_it_again(
    stack: ExitStack,
) -> None:
    hours = [0.0]
    cluster = Cluster()
    cluster.kubelet = Kubelet(
        cluster.sockets,
        node=NODE,
        api=cluster.store,
        numa_nodes=range(8),
        poll_seconds=0.02,
        clock=lambda: hours[0],
    )
    stack.enter_context(cluster)
    until(lambda: cluster.scheduler.devices.get(NODE))
    cluster.plugin.end()
    cluster.kubelet.wait_for(lambda k: k.allocatable(GPU) == 0)
    time.sleep(0.5)  # two rounds of the scheduler: capacity is what it looks at
    assert cluster.node_annotation(REGISTER)
    hours[0] += 300.0
    until(lambda: cluster.node_annotation(REGISTER) is None)
    cluster.plugin = cluster.launch()
    until(lambda: cluster.node_annotation(REGISTER))
    cluster.create("p", slice_(8192, 25))
    cluster.runs("p")


# -- K16, K17: what is asked of the plugin besides -----------------------------------------------------------


def test_k16_k17_our_preference_is_taken_as_it_is_and_prestart_is_not_asked_for(stack: ExitStack) -> None:
    cluster = stack.enter_context(Cluster())
    cluster.create("p", slice_(1024, 1, 3), slice_(1024, 1, 8))
    cluster.runs("p")
    asked = [event for event in cluster.kubelet.events if event.kind == "preferred"]
    given = [event.detail["ids"] for event in cluster.kubelet.events if event.kind == "allocating"]
    assert [len(ids) for ids in given] == [3, 8]
    assert len({one.partition("#")[0] for one in given[1]}) == 8  # a slot of each GPU (decision 26)
    assert len(asked) == 2
    assert "prestart" not in kinds(cluster.kubelet)


# -- K19: restored from the checkpoint ----------------------------------------------------------------------


def test_k19_a_restarted_kubelet_leaves_running_pods_alone_and_keeps_their_devices(stack: ExitStack) -> None:
    cluster = stack.enter_context(Cluster())
    cluster.create("p", slice_(8192, 25, 2))
    before = cluster.runs("p")["c0"]
    uid = cluster.pod("p")["metadata"]["uid"]
    held = cluster.kubelet.holdings(uid)
    notes = cluster.pod("p")["metadata"]["annotations"]
    cluster.kubelet.restart()
    cluster.kubelet.wait_for(lambda k: k.allocatable(GPU) == 80 and uid in k.admissions)
    assert cluster.kubelet.holdings(uid) == held
    assert cluster.given("p")["c0"] == before
    assert cluster.phase("p") == "Running"
    assert cluster.pod("p")["metadata"]["annotations"] == notes
    assert kinds(cluster.kubelet).count("allocating") == 1
    # a restarted kubelet counts nothing for a moment; a scheduler that looks then removes the registration,
    # and the node is back when the plugin writes it again (D.3)
    cluster.create("q", slice_(8192, 60, 8))
    cluster.runs("q", 45)
    cluster.nothing_twice()


def test_k19_after_a_mode_switch_and_a_reboot_the_old_ids_fail_their_pod_and_new_ones_serve(
    stack: ExitStack,
) -> None:
    cluster = stack.enter_context(Cluster("mi355x/qpx-6.14", "partition", resources=PARTITIONS))
    cluster.create("old", {GPU: 2})
    cluster.runs("old")
    assert all(one.endswith("#qpx") for one in cluster.kubelet.devices(GPU))
    cluster.plugin.end()
    cluster.kubelet.kill()
    for one in {entry["custominfo"]["pciBDF"] for entry in cluster.registered()}:
        cluster.machine.switch(one, "SPX")
    cluster.resources = {GPU: 8}
    cluster.kubelet.reboot()  # pods are looked at before any plugin is there
    assert "no healthy devices present" in cluster.fails("old")
    cluster.plugin = cluster.launch()
    assert all(one.endswith("#spx") for one in cluster.kubelet.devices(GPU))
    # the scheduler may take the new registration away with the old one's capacity: it is written again
    until(lambda: len(cluster.scheduler.devices[NODE].get("amd", ())) == 8, 45)
    assert {one["mode"] for one in cluster.registered()} == {"spx"}
    cluster.create("all", {GPU: 8})
    assert len(renders(cluster.runs("all")["c0"])) == 8


def test_k19_a_whole_gpus_id_outlives_the_switch_but_kubelets_id_does_not(stack: ExitStack) -> None:
    cluster = stack.enter_context(Cluster("mi355x/spx-6.14", "partition", resources={GPU: 8}))
    cluster.create("old", {GPU: 1})
    cluster.runs("old")
    uid = cluster.pod("old")["metadata"]["uid"]
    ((held,),) = [ids for by in cluster.kubelet.holdings(uid).values() for ids in by.values()]
    bdf = held.partition("#")[0]
    cluster.plugin.end()
    cluster.machine.switch(bdf, "DPX")
    cluster.resources = {GPU: 9}
    cluster.plugin = cluster.launch()
    assert held not in cluster.kubelet.devices(GPU)
    assert f"{bdf}#dpx" in cluster.kubelet.devices(GPU)
    assert cluster.phase("old") == "Running"  # kubelet evicts nobody
    assert cluster.kubelet.holdings(uid)["c0"][GPU] == (held,)


# -- K20: two resources in one container --------------------------------------------------------------------


def test_k20_two_names_in_one_container_cannot_be_one_slot_and_nothing_is_kept(stack: ExitStack) -> None:
    cluster = stack.enter_context(
        Cluster(
            "mi355x/mixed-spx-cpx",
            "partition",
            ("-resource_naming_strategy", "mixed"),
            {CPX: 16, SPX: 6},
            vendors=(AMD_MIXED,),
        )
    )
    cluster.create("p", {CPX: 1, SPX: 1})
    assert "no waiting pod has a slot of 1 device(s)" in cluster.fails("p")
    until(lambda: cluster.annotation("p", PHASE) == "failed", 40)
    assert cluster.unlocked()
    assert cluster.annotation("p", CUS) is None
    assert not cluster.kubelet.holdings(cluster.pod("p")["metadata"]["uid"])
    cluster.create("q", {CPX: 16}, {SPX: 6})
    assert sum(len(renders(edits)) for edits in cluster.runs("q").values()) == 22
    assert "env-conflict" not in kinds(cluster.kubelet)
