"""Whole lives of pods where everything is real: what a container gets, what the pod says, what is left.

AMD plugin processes on a served machine, kubelet and API server on sockets. Expected values are worked out
from the machine's own files; cases B31, B40, B72 as decided (decisions 12, 16, 17, 20, 22 to 24).
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import grpc
import pytest

from devplugin.kubeletapi import api_pb2, api_pb2_grpc
from gpusim.cluster.apifaults import Fault
from gpusim.cluster.pods import VGPU_NODE, Placed, container, place, pod

from ..devplugin.daemon.rig import NODE, until
from .support_node import AGENT, GPU, HOOK, Node
from .support_oracle import ALLOCATED, LOCK, PHASE, RECORD, TO_ALLOCATE

pytestmark = pytest.mark.daemon

IN_CONTAINER = "/usr/local/vgpu/libamvgpu.so"


@pytest.fixture(scope="module")
def shared() -> Iterator[Node]:
    with Node("mi355x/spx-6.14") as node:
        node.ready(80)
        yield node


@pytest.fixture
def cu(shared: Node) -> Iterator[Node]:
    """Eight GPUs in cu mode, nobody on them; whatever a test leaves is removed."""
    yield shared
    shared.server.faults.clear()
    shared.kubelet.faults.allocate_delay = 0.0
    for one in shared.api.list("pods"):
        shared.api.delete("pods", one["metadata"]["name"], grace_seconds=0)
    until(lambda: not shared.recorded())
    until(lambda: shared.lock() is None, 30)
    shared.kubelet.wait_for(lambda k: not any(k.holdings(uid) for uid in k.admissions))


def rocr(node: Node, *bdfs: str) -> str:
    """The names by which ROCr knows whole GPUs (decision 12)."""
    by_bdf = {agent.bdf: agent for agent in node.facts().agents.values()}
    return ",".join(f"GPU-{by_bdf[bdf].unique:016x}" for bdf in bdfs)


def bdf(node: Node, device: Placed) -> str:
    return node.facts().devices[device.id].bdf


def paths(node: Node, *bdfs: str) -> list[str]:
    """/dev/kfd, then card and render node of each GPU, by the links in sysfs."""
    found = ["/dev/kfd"]
    for one in bdfs:
        names = sorted(node.machine.list(f"/sys/bus/pci/devices/{one}/drm"))
        found += [f"/dev/dri/{name}" for name in names if name.startswith(("card", "renderD"))]
    return found


def events(node: Node, name: str) -> list[dict[str, Any]]:
    return [e for e in node.api.list("events") if e["involvedObject"]["name"] == name]


def unlocked_after(node: Node, before: int, patches: int) -> bool:
    """Whether the plugin patched pods so often since then, and the node after the last of them.

    Its registration is a patch of the node, too, and may come at any time.
    """
    wrote = node.asked_of_plugin()[before:]
    last = max((i for i, one in enumerate(wrote) if one == "patch pods"), default=len(wrote))
    return wrote.count("patch pods") == patches and "patch nodes" in wrote[last:]


def test_a_slice_gets_its_cores_its_memory_limit_and_the_hook_and_frees_them_at_its_end(cu: Node) -> None:
    device = cu.gpu(3, 4)
    before = len(cu.asked_of_plugin())
    cu.run("slice", [device])
    found = cu.settled("slice")
    assert found["status"]["phase"] == "Running"
    edits = cu.edits("slice")["c0"]
    assert edits.envs == {
        "ROCR_VISIBLE_DEVICES": rocr(cu, bdf(cu, device)),
        "HIP_VISIBLE_DEVICES": "0",
        "HSA_CU_MASK": "0:0-63",
        "HIP_DEVICE_MEMORY_LIMIT_0": "73724m",
        "LD_AUDIT": IN_CONTAINER,
    }
    assert [(m.host_path, m.container_path, m.read_only) for m in edits.mounts] == [
        (HOOK, IN_CONTAINER, True)
    ]
    assert [(d.host_path, d.container_path, d.permissions) for d in edits.devices] == [
        (path, path, "rw") for path in paths(cu, bdf(cu, device))
    ]
    annotations = found["metadata"]["annotations"]
    text = f"{device.id},{device.type},73724,64:;"
    assert annotations[ALLOCATED] == text
    assert annotations[TO_ALLOCATE] == ";"
    assert json.loads(annotations[RECORD]) == {device.id: "0-63"}
    assert annotations[PHASE] == "success"
    assert cu.lock() is None
    assert unlocked_after(cu, before, patches=1), "one patch, then the lock (decision 19)"

    cu.api.patch("pods", "slice", {"status": {"phase": "Succeeded"}}, subresource="status")
    cu.run("next", [device])
    assert cu.settled("next")["status"]["phase"] == "Running"
    assert cu.edits("next")["c0"].envs["HSA_CU_MASK"] == "0:0-63", "an ended pod holds nothing"


def test_a_whole_gpu_gets_all_cores_and_no_hook_and_nobody_beside_it(cu: Node) -> None:
    device = cu.gpu(5)
    cu.run("whole", [device])
    found = cu.settled("whole")
    assert found["status"]["phase"] == "Running"
    edits = cu.edits("whole")["c0"]
    assert edits.envs == {
        "ROCR_VISIBLE_DEVICES": rocr(cu, bdf(cu, device)),
        "HIP_VISIBLE_DEVICES": "0",
        "HSA_CU_MASK": "0:0-255",
    }
    assert not edits.mounts
    assert [d.host_path for d in edits.devices] == paths(cu, bdf(cu, device))
    assert RECORD not in found["metadata"]["annotations"]
    assert found["metadata"]["annotations"][PHASE] == "success"
    assert cu.lock() is None

    cu.run("beside", [cu.gpu(5, 4)])
    assert cu.settled("beside")["status"]["phase"] == "Failed"
    (said,) = events(cu, "beside")
    assert "default/whole" in said["message"], "who holds the cores is named"


def test_two_containers_get_their_own_cores_and_the_lock_goes_with_the_last(cu: Node) -> None:
    one, other = cu.gpu(0, 8), cu.gpu(0, 4)
    before = len(cu.asked_of_plugin())
    cu.run("two", [], [one], [other])
    found = cu.settled("two")
    assert found["status"]["phase"] == "Running"
    given = cu.edits("two")
    assert not given["c0"].envs
    assert given["c1"].envs["HSA_CU_MASK"] == "0:0-31"
    assert given["c2"].envs["HSA_CU_MASK"] == "0:32-95"
    assert given["c2"].envs["HIP_DEVICE_MEMORY_LIMIT_0"] == "73724m"
    assert json.loads(found["metadata"]["annotations"][RECORD]) == {one.id: "0-95"}
    assert found["metadata"]["annotations"][TO_ALLOCATE] == ";;;"
    assert found["metadata"]["annotations"][PHASE] == "success"
    assert unlocked_after(cu, before, patches=2)
    assert cu.recorded()["two"] == cu.given("two", [], [one], [other])


def test_a_slice_without_hook_and_dmem_is_refused_told_and_holds_nobody_up() -> None:
    with Node("mi355x/spx-6.8", hook=False) as node:  # no dmem controller, so nothing else could limit it
        node.ready(80)
        node.run("bare", [node.gpu(1, 4)])
        found = node.settled("bare")
        assert (found["status"]["phase"], found["status"]["reason"]) == ("Failed", "UnexpectedAdmissionError")
        assert f"the memory hook {HOOK} is not on the host" in found["status"]["message"]
        assert found["metadata"]["annotations"][PHASE] == "failed"
        assert RECORD not in found["metadata"]["annotations"]
        (said,) = events(node, "bare")
        assert (said["type"], said["reason"]) == ("Warning", "AllocateRefused")
        assert HOOK in said["message"]
        assert said["involvedObject"]["uid"] == found["metadata"]["uid"]
        assert node.lock() is None
        node.run("whole", [node.gpu(1)])
        assert node.settled("whole")["status"]["phase"] == "Running", "a whole GPU needs no hook"
        node.machine.put(HOOK, b"\x7fELF")
        node.run("later", [node.gpu(2, 4)])
        assert node.settled("later")["status"]["phase"] == "Running", "no restart is needed"


def test_b31_the_answer_follows_the_annotation_and_only_the_number_of_ids_counts(cu: Node) -> None:
    devices = [cu.gpu(index, 8) for index in (6, 1, 4, 0, 7, 2, 5, 3)]
    cards = [bdf(cu, device) for device in devices]
    chosen = [f"{cards[card]}#{slot}" for card, slot in enumerate((1, 1, 6, 2, 9))]
    chosen += [f"{cards[0]}#{slot}" for slot in (7, 6, 2)]  # eight ids of five cards
    cu.kubelet.faults.allocate_delay = 4.0  # kubelet's own call comes when all is over
    cu.run("eight", devices)
    (socket,) = cu.names()
    options = [("grpc.default_authority", "localhost")]
    with closing(grpc.insecure_channel(f"unix:{cu.sockets}/{socket}", options=options)) as channel:
        stub = api_pb2_grpc.DevicePluginStub(channel)

        def allocate(ids: list[str]) -> Any:
            part = api_pb2.ContainerAllocateRequest(devices_ids=ids)
            request = api_pb2.AllocateRequest(container_requests=[part])
            return stub.Allocate(request, timeout=20).container_responses[0]

        with pytest.raises(grpc.RpcError, match="default/eight: its slots have 8 device") as refused:
            allocate(chosen[:7])
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert cu.annotation("eight", PHASE) == "allocating"
        assert cu.lock() is not None
        answer = allocate(chosen)
    assert answer.envs["ROCR_VISIBLE_DEVICES"] == rocr(cu, *cards)
    assert answer.envs["HSA_CU_MASK"] == ";".join(f"{i}:0-31" for i in range(8))
    assert [device.host_path for device in answer.devices] == paths(cu, *cards)
    assert cu.annotation("eight", PHASE) == "success"
    # kubelet asks once more, for a slot that is served: nothing is given twice
    assert cu.settled("eight")["status"]["phase"] == "Failed"
    assert not cu.recorded()


def test_b40_devices_chosen_on_another_node_are_refused_with_both_names(cu: Node) -> None:
    elsewhere = Placed("c6ff75a3-0000-1000-802a-c130ee448403", "AMD Instinct MI355X", 1024, 8)
    cu.api.create("pods", pod("lost", [container("c0", {GPU: 1})]))
    place(cu.api, "lost", NODE, [[elsewhere]], bind=False)
    cu.api.patch("pods", "lost", {"metadata": {"annotations": {VGPU_NODE: "node-a"}}})
    cu.api.bind("lost", NODE)
    found = cu.settled("lost")
    assert found["status"]["phase"] == "Failed"
    for word in ("node-a", NODE, elsewhere.id):
        assert word in found["status"]["message"]
    assert found["metadata"]["annotations"][PHASE] == "failed"
    assert cu.lock() is None
    (said,) = events(cu, "lost")
    assert said["message"] in found["status"]["message"]
    uid = found["metadata"]["uid"]
    assert not cu.kubelet.holdings(uid)


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_b72_after_a_restart_masks_are_counted_in_the_container_and_do_not_overlap(
    cu: Node, end: signal.Signals
) -> None:
    first, second = cu.gpu(0, 4), cu.gpu(1, 4)
    cu.run("a", [first])
    assert cu.settled("a")["status"]["phase"] == "Running"
    cu.plugins[-1].end(end)
    cu.ready(80)
    cu.run("b", [second, first])
    assert cu.settled("b")["status"]["phase"] == "Running"
    envs = cu.edits("b")["c0"].envs
    assert envs["ROCR_VISIBLE_DEVICES"] == rocr(cu, bdf(cu, second), bdf(cu, first))
    assert envs["HSA_CU_MASK"] == "0:0-63;1:64-127"
    assert json.loads(cu.annotation("b", RECORD) or "") == {first.id: "64-127", second.id: "0-63"}
    held = cu.recorded()
    assert held == {"a": cu.given("a", [first]), "b": cu.given("b", [second, first])}


def test_with_the_api_server_away_allocate_is_unavailable_in_time_and_nothing_changed(cu: Node) -> None:
    cu.api.create("pods", pod("cut", [container("c0", {GPU: 1})]))
    cu.server.faults.add(Fault(agent=AGENT, action="drop", times=None))
    device = cu.gpu(2, 4)
    begun = time.monotonic()
    place(cu.api, "cut", NODE, [[device]])
    found = cu.settled("cut", 40)
    assert time.monotonic() - begun < 25.0
    assert found["status"]["phase"] == "Failed"
    assert "code = Unavailable" in found["status"]["message"]
    annotations = found["metadata"]["annotations"]
    assert annotations[TO_ALLOCATE] == annotations[ALLOCATED]
    assert annotations[PHASE] == "allocating"
    assert RECORD not in annotations
    assert (cu.lock() or "").endswith(",default,cut")
    ended = time.monotonic()
    cu.server.faults.clear()
    until(lambda: cu.lock() is None and cu.annotation("cut", PHASE) == "failed", 30)
    assert time.monotonic() - ended < 30.0


def test_a_pod_nobody_placed_gets_no_slot_of_a_shared_gpu(cu: Node) -> None:
    cu.api.create("pods", pod("stray", [container("c0", {GPU: 1})], node=NODE))
    found = cu.settled("stray")
    assert found["status"]["phase"] == "Failed"
    assert "no pod waits for shared device" in found["status"]["message"]


@pytest.fixture(scope="module")
def partitioned() -> Iterator[Node]:
    with Node("mi355x/qpx-6.14", mode="partition", hook=False) as node:
        node.ready(32)
        yield node


def test_a_partition_is_given_whole_by_index_and_without_mask_limit_or_hook(partitioned: Node) -> None:
    node = partitioned
    facts = node.facts()
    agents = sorted(
        (agent for agent in facts.agents.values() if agent.bdf == "0000:05:00.0"),
        key=lambda agent: agent.node,
    )
    indexes = [i for i, device in enumerate(facts.devices.values()) if device.bdf == "0000:05:00.0"]
    assert len(agents) == len(indexes) == 4
    wanted = [node.gpu(indexes[2]), node.gpu(indexes[0])]
    before = len(node.asked_of_plugin())
    node.run("hard", wanted)
    found = node.settled("hard")
    assert found["status"]["phase"] == "Running"
    edits = node.edits("hard")["c0"]
    # The four partitions share a unique_id, so ROCr knows them by number, counted in KFD order (decision 12).
    assert edits.envs == {"ROCR_VISIBLE_DEVICES": "1,0", "HIP_VISIBLE_DEVICES": "0,1"}
    assert not edits.mounts
    given = [d.host_path for d in edits.devices]
    assert given[0] == "/dev/kfd"
    renders = [path for path in given if "renderD" in path]
    assert renders == [f"/dev/dri/renderD{agents[2].render}", f"/dev/dri/renderD{agents[0].render}"]
    assert RECORD not in found["metadata"]["annotations"]
    assert found["metadata"]["annotations"][PHASE] == "success"
    assert unlocked_after(node, before, patches=1)
    assert node.lock() is None

    node.run("again", [wanted[0]])
    assert node.settled("again")["status"]["phase"] == "Failed", "a partition is given once"
    node.api.delete("pods", "hard", grace_seconds=0)
    node.run("later", [wanted[0]])
    assert node.settled("later")["status"]["phase"] == "Running"


def test_a_pod_nobody_placed_gets_the_partition_kubelet_chose(partitioned: Node) -> None:
    node = partitioned
    node.api.create("pods", pod("plain", [container("c0", {GPU: 1})], node=NODE))
    found = node.settled("plain")
    assert found["status"]["phase"] == "Running"
    (edits,) = node.edits("plain").values()
    (key,) = (one.partition("#")[0] for one in edits.ids[GPU])
    (render,) = (d.host_path for d in edits.devices if "renderD" in d.host_path)
    directory = f"/sys/bus/pci/devices/{key}" if ":" in key else f"/sys/devices/platform/{key}"
    assert render.removeprefix("/dev/dri/") in node.machine.list(f"{directory}/drm")
    assert "HSA_CU_MASK" not in edits.envs
    assert LOCK not in (node.api.get("nodes", NODE)["metadata"]["annotations"])
