"""Kubelet's scenarios K1 to K23 (kubelet.md 2), as far as this step has them, against real daemon processes.

The AMD plugin on a simulated MI355X node, between the simulated kubelet and API server; where a list has
to change quickly (K11, K12) the same daemon with the toy vendor, whose pulse is a second.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from devplugin.hami import LOCK
from devplugin.kubeletapi import api_pb2, api_pb2_grpc
from gpusim.cluster.apifaults import Fault
from gpusim.cluster.kubelet import Kubelet
from gpusim.cluster.pods import Placed
from gpusim.fixture import load
from gpusim.machine import Machine
from gpusim.serve import serve

from ..devplugin.daemon.rig import NODE, TOY, Rig, until
from ..devplugin.daemon.toyplugin import RESOURCE as THING

pytestmark = pytest.mark.daemon

GPU = "amd.com/gpu"
REGISTER = "hami.io/node-amd-register"
CUS = "hami.io/amd-cu-allocated"
PHASE = "hami.io/bind-phase"
AMD = (
    sys.executable,
    "-c",
    "import sys; from devplugin.launch import amd_device_plugin as go; sys.exit(go())",
)


class Node(Rig):
    """A rig whose plugin is AMD's, on one served machine that has the memory hook installed."""

    def __init__(self, fixture: str = "mi355x/spx-6.14", mode: str = "partition", **kubelet: Any) -> None:
        environment = {"OPERATING_MODE": mode, "HOST_HOOK_PATH": "/usr/local"}
        super().__init__(AMD, environment, **{"numa_nodes": range(8), **kubelet})
        self.machine = Machine(load(fixture))
        self.machine.mkdir("/usr/local/vgpu")
        self.machine.put("/usr/local/vgpu/libamvgpu.so", b"\x7fELF")
        self.server_of_machine = serve(self.machine, str(self.path / "machine.sock"))
        self.command = (*AMD, "-simulate", f"unix:{self.path}/machine.sock")

    def __enter__(self) -> Node:
        self.server_of_machine.start()
        super().__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self.server_of_machine.stop()
        super().__exit__(*exc)

    def registered(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(until(lambda: self.node_annotation(REGISTER)))
        return found

    def gpus(self, *which: int, share: int = 1) -> list[Placed]:
        known = self.registered()
        return [
            Placed(
                known[i]["id"], known[i]["type"], known[i]["devmem"] // share, known[i]["devcore"] // share
            )
            for i in which
        ]

    def admit(self, name: str, *slots: list[Placed]) -> Any:
        return self.kubelet.admit(self.schedule(name, *slots, resource=GPU, word="amd"))

    def listed(self, count: int = 8) -> bool:
        return self.kubelet.wait_for(lambda k: (k.capacity(GPU), k.allocatable(GPU)) == (count, count))

    def registrations(self) -> int:
        return sum(event.kind == "registered" for event in self.kubelet.events)


@pytest.fixture
def node() -> Iterator[Node]:
    with Node() as made:
        yield made


def kinds(kubelet: Kubelet, resource: str = GPU) -> list[str]:
    return [event.kind for event in kubelet.events if event.resource == resource]


def test_k1_register_list_prefer_allocate_and_release(node: Node) -> None:
    node.kubelet.start()
    plugin = node.start()
    node.listed()
    assert plugin.said("operating mode: partition") or until(lambda: plugin.said("operating mode: partition"))
    admission = node.admit("p", node.gpus(2))
    assert admission.admitted, admission.message
    envs = admission.containers["c0"].envs
    assert envs["HIP_VISIBLE_DEVICES"] == "0"
    assert node.annotation("p", PHASE) == "success"
    assert node.node_annotation(LOCK) is None
    order = kinds(node.kubelet)
    assert order.index("registering") < order.index("connected") < order.index("list")
    assert order.index("allocating") < order.index("allocated")
    assert plugin.end() == 0
    node.kubelet.wait_for(lambda k: k.allocatable(GPU) == 0)


def test_k2_kubelets_socket_comes_late(node: Node) -> None:
    plugin = node.start()
    until(lambda: plugin.said("is kubelet installed?") or plugin.said("waiting for kubelet.sock"))
    node.kubelet.start(late=1.0)
    node.listed()
    assert node.registrations() == 1


def test_k3_kubelet_restarts_and_wipes_the_sockets(node: Node) -> None:
    node.kubelet.start()
    node.start()
    node.listed()
    before = node.names()
    node.kubelet.restart()
    node.listed()
    assert set(node.names()).isdisjoint(before)
    assert any(event.kind == "socket-removed" for event in node.kubelet.events)
    assert node.admit("p", node.gpus(0)).admitted


def test_a_registration_deleted_while_kubelet_was_away_comes_back_with_it(node: Node) -> None:
    node.kubelet.start()
    node.start()
    node.listed()
    until(lambda: node.node_annotation(REGISTER))
    node.store.patch("nodes", NODE, {"metadata": {"annotations": {REGISTER: None}}})
    node.kubelet.restart()
    node.listed()
    until(lambda: node.node_annotation(REGISTER), 5)


def test_k4_kubelet_dies_and_its_socket_file_stays(node: Node) -> None:
    node.kubelet.start()
    plugin = node.start()
    node.listed()
    node.kubelet.kill()
    assert (node.sockets / "kubelet.sock").exists()
    # killed a moment earlier, it is the Register that fails
    until(lambda: plugin.said("kubelet ended the stream") or plugin.said("Register: UNAVAILABLE"))
    time.sleep(0.5)  # it knocks meanwhile, and nobody is there
    node.kubelet.start()
    node.listed()
    assert plugin.process.poll() is None


def test_k5_the_stream_is_cancelled_and_both_live(node: Node) -> None:
    node.kubelet.start()
    node.start()
    node.listed()
    assert node.kubelet.cancel_stream(GPU)
    node.kubelet.wait_for(lambda k: "stream-ended" in kinds(k))
    node.listed()
    assert node.registrations() == 2
    assert len(node.names()) == 1


def test_k6_the_options_call_fails_once(node: Node) -> None:
    node.kubelet.start()
    node.kubelet.faults.options_failures = 1
    node.start()
    node.listed()
    assert kinds(node.kubelet).count("refused") == 1


def test_k8_the_version_is_refused_until_kubelet_knows_it(node: Node) -> None:
    node.kubelet.start()
    node.kubelet.faults.accepted_version = "v9"
    plugin = node.start()
    until(lambda: kinds(node.kubelet).count("refused") >= 3)
    until(lambda: plugin.said("Register: UNKNOWN"))
    assert plugin.process.poll() is None
    node.kubelet.faults.accepted_version = "v1beta1"
    node.listed()


@pytest.mark.parametrize("generation", ["1.36", "main"])
def test_k10_two_instances_overlap_and_the_old_one_ends_last(generation: str) -> None:
    with Node(generation=generation) as node:
        node.kubelet.start()
        old = node.start()
        node.listed()
        node.start()
        node.kubelet.wait_for(lambda k: kinds(k).count("list") >= 2)
        assert len(node.names()) == 2
        assert old.end() == 0
        # 1.36 takes the new one down with the old one's stream; then it must come back by itself
        end = "stream-ended" if generation == "1.36" else "watch-over"
        node.kubelet.wait_for(lambda k: end in kinds(k))
        node.kubelet.wait_for(lambda k: k.allocatable(GPU) == 8, timeout=15)
        time.sleep(1.0)
        node.listed()
        assert len(node.names()) == 1
        assert node.admit("p", node.gpus(0)).admitted


@pytest.fixture
def toy() -> Iterator[Rig]:
    with Rig(TOY) as made:
        made.command = (*made.command, "-root", str(made.root), "-pulse", "1", "-slots", "1")
        made.things(a="ok", b="ok", c="ok")
        made.kubelet.start()
        yield made


def test_k11_the_full_list_shrinks_and_grows(toy: Rig) -> None:
    toy.start()
    toy.kubelet.wait_for(lambda k: k.capacity(THING) == 3)
    (toy.root / "toy" / "b").unlink()
    toy.kubelet.wait_for(lambda k: sorted(k.devices(THING)) == ["a#0", "c#0"])
    toy.things(b="ok", d="ok")
    toy.kubelet.wait_for(lambda k: sorted(k.devices(THING)) == ["a#0", "b#0", "c#0", "d#0"])
    assert kinds(toy.kubelet, THING).count("registered") == 1
    assert [e.detail["devices"] for e in toy.kubelet.events if e.kind == "list"] == [3, 2, 4]


def test_k12_unhealthy_devices_recover(toy: Rig) -> None:
    toy.start()
    toy.kubelet.wait_for(lambda k: k.allocatable(THING) == 3)
    toy.things(a="sick")
    toy.kubelet.wait_for(lambda k: (k.capacity(THING), k.allocatable(THING)) == (3, 2))
    assert toy.kubelet.devices(THING)["a#0"].health == "Unhealthy"
    toy.things(a="ok")
    toy.kubelet.wait_for(lambda k: k.allocatable(THING) == 3)
    assert [e.detail["healthy"] for e in toy.kubelet.events if e.kind == "list"] == [3, 2, 3]


def test_k14_the_answer_follows_the_annotation_whatever_the_order_of_ids() -> None:
    answers, orders = [], set()
    for seed in (1, 2, 3):
        with Node(seed=seed) as node:
            node.kubelet.start()
            node.start()
            node.listed()
            wanted = node.gpus(5, 1, 3)
            admission = node.admit("p", wanted)
            assert admission.admitted, admission.message
            edits = admission.containers["c0"]
            answers.append((dict(edits.envs), tuple(edits.devices)))
            (event,) = [event for event in node.kubelet.events if event.kind == "allocating"]
            orders.add(event.detail["ids"])
    assert len(orders) > 1
    assert answers[0] == answers[1] == answers[2]


def test_k14_after_a_restart_an_allocate_for_a_served_slot_gives_nothing_away() -> None:
    with Node("mi355x/spx-6.14", mode="cu") as node:
        node.kubelet.start()
        first = node.start()
        node.listed(80)
        admission = node.admit("p", node.gpus(0, share=4))
        assert admission.admitted, admission.message
        before = node.pod("p")["metadata"]["annotations"]
        ids = next(event.detail["ids"] for event in node.kubelet.events if event.kind == "allocating")
        first.end(signal.SIGKILL)
        node.kubelet.wait_for(lambda k: k.allocatable(GPU) == 0)
        node.start()
        node.listed(80)
        endpoint = [event.detail["endpoint"] for event in node.kubelet.events if event.kind == "registered"][
            -1
        ]
        with grpc.insecure_channel(f"unix:{node.sockets}/{endpoint}") as channel:
            request = api_pb2.AllocateRequest(
                container_requests=[api_pb2.ContainerAllocateRequest(devices_ids=ids)]
            )
            with pytest.raises(grpc.RpcError) as refused:
                api_pb2_grpc.DevicePluginStub(channel).Allocate(request, timeout=25)
        assert refused.value.code() == grpc.StatusCode.FAILED_PRECONDITION
        assert node.pod("p")["metadata"]["annotations"] == before


def test_k15_an_api_server_that_hangs_does_not_hang_admission_for_long(node: Node) -> None:
    node.kubelet.start()
    node.start()
    node.listed()
    wanted = node.gpus(0)
    hang = Fault(
        verb="list", resource="pods", agent="amd-device-plugin", times=None, delay=60.0, action="none"
    )
    node.server.faults.add(hang)
    begun = time.monotonic()
    admission = node.admit("p", wanted)
    assert 5 < time.monotonic() - begun < 25
    assert not admission.admitted
    assert "no answer within 5 s" in admission.message
    assert node.annotation("p", PHASE) == "allocating"
    assert node.annotation("p", CUS) is None


def test_k15_while_an_allocate_waits_lists_and_the_next_admission_go_on(toy: Rig) -> None:
    toy.start()
    toy.kubelet.wait_for(lambda k: k.allocatable(THING) == 3)
    until(lambda: toy.node_annotation("hami.io/node-toy-register"))
    made = toy.schedule("p", [Placed("a", "Toy", 1, 1)], resource=THING, word="toy")
    toy.server.faults.add(Fault(verb="list", resource="pods", agent="toy", delay=3.0, action="none"))
    admissions: list[Any] = []
    thread = threading.Thread(target=lambda: admissions.append(toy.kubelet.admit(made)))
    thread.start()
    until(lambda: "allocating" in kinds(toy.kubelet, THING))
    toy.things(c="sick")
    toy.kubelet.wait_for(lambda k: k.allocatable(THING) == 2)
    assert thread.is_alive()
    thread.join(20)
    assert admissions[0].admitted, admissions[0].message


def test_k18_devices_of_unknown_numa_node_carry_no_topology() -> None:
    with Node("mi355x/numa-unknown", topology_policy="best-effort") as node:
        node.kubelet.start()
        node.start()
        node.listed(16)
        assert {one["numa"] for one in node.registered()} == {-1}  # it stays in the annotation
        assert {device.numa for device in node.kubelet.devices(GPU).values()} == {()}
        assert "unknown-numa" not in kinds(node.kubelet)
        assert node.admit("p", node.gpus(0)).admitted


def test_k18_devices_of_two_numa_nodes_are_aligned_by_kubelet() -> None:
    with Node("mi300x/cpx-6.8-bmc-63", topology_policy="single-numa-node") as node:
        node.kubelet.start()
        node.start()
        node.listed(63)
        devices = node.kubelet.devices(GPU)
        assert {device.numa for device in devices.values()} == {(0,), (1,)}
        first = [i for i, one in enumerate(node.registered()) if one.get("numa", 0) == 0]
        admission = node.admit("p", node.gpus(*first[:20]))
        assert admission.admitted, admission.message
        taken = next(event.detail["ids"] for event in node.kubelet.events if event.kind == "allocating")
        assert len(taken) == 20
        assert len({devices[one].numa for one in taken}) == 1


@pytest.mark.parametrize("kind", ["regular file", "directory"])
def test_k22_something_else_lies_where_kubelets_socket_should_be(node: Node, kind: str) -> None:
    node.sockets.mkdir()
    path = node.sockets / "kubelet.sock"
    if kind == "directory":
        path.mkdir()
    else:
        path.write_text("stale")
    (node.sockets / "amd.com_gpu").write_text("another plugin's stale file")
    (node.sockets / "amd.com_gpu-1-0123abcd.sock").mkdir()
    plugin = node.start()
    until(lambda: plugin.said(f"a {kind} is there"))
    (path.rmdir if kind == "directory" else path.unlink)()
    node.kubelet.start()
    node.listed()
    assert (node.sockets / "amd.com_gpu").exists()
    assert (node.sockets / "amd.com_gpu-1-0123abcd.sock").is_dir()


def test_k23_a_directory_too_deep_for_a_socket_is_refused_with_the_length(node: Node) -> None:
    deep = node.path / ("d" * 90)
    deep.mkdir()
    plugin = node.start("-kubelet_dir", str(deep))
    assert plugin.process.wait(20) == 1
    assert plugin.said("the kernel takes 107: shorten -kubelet_dir")
    assert "Traceback" not in plugin.log.read_text()
