"""The real process: how it begins, what it survives, how it ends."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator

import pytest

from devplugin.hami import LOCK
from gpusim.cluster.apifaults import Fault
from gpusim.cluster.pods import Placed, place, pod

from .rig import NODE, Rig, until
from .toyplugin import RESOURCE, TAKEN

pytestmark = pytest.mark.daemon

REGISTER = "hami.io/node-toy-register"


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig() as made:
        made.command = (*made.command, "-root", str(made.root))
        made.things(a="ok 0", b="ok 1")
        yield made


def listed(rig: Rig, count: int = 8) -> bool:
    return rig.kubelet.wait_for(lambda k: k.allocatable(RESOURCE) == count)


def test_from_exec_to_the_first_list_and_the_registration(rig: Rig) -> None:
    rig.kubelet.start()
    plugin = rig.start()
    listed(rig)
    until(lambda: rig.node_annotation(REGISTER))
    until(lambda: plugin.said("operating mode: soft"))
    devices = rig.kubelet.devices(RESOURCE)
    assert {d.id: d.numa for d in devices.values() if d.id in {"a#0", "b#3"}} == {"a#0": (0,), "b#3": (1,)}
    assert {line["level"] for line in plugin.lines()} == {"info"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_a_signal_ends_streams_and_sockets_and_the_process_without_a_traceback(rig: Rig, number: int) -> None:
    rig.kubelet.start()
    plugin = rig.start()
    listed(rig)
    assert len(rig.names()) == 1
    assert plugin.end(number) == 0
    assert rig.names() == []
    rig.kubelet.wait_for(lambda k: k.allocatable(RESOURCE) == 0)
    assert "Traceback" not in plugin.log.read_text()
    assert plugin.said("ending")


def test_a_signal_before_the_node_can_be_read_ends_it_too(rig: Rig) -> None:
    rig.server.down()
    plugin = rig.start()
    until(lambda: plugin.said("cannot be read"))
    assert plugin.end() == 0


def test_the_mode_of_the_node_is_known_before_any_list(rig: Rig) -> None:
    rig.store.patch("nodes", NODE, {"metadata": {"annotations": {"toy.io/mode": "hard"}}})
    rig.server.down()
    rig.kubelet.start()
    plugin = rig.start()
    until(lambda: plugin.said("trying again"))
    time.sleep(0.3)
    assert not rig.kubelet.events or all(event.kind != "registering" for event in rig.kubelet.events)
    rig.server.up()
    listed(rig, 2)
    assert [event.detail["devices"] for event in rig.kubelet.events if event.kind == "list"] == [2]
    assert plugin.said("operating mode: hard")


def test_a_node_object_that_is_made_later_is_waited_for(rig: Rig) -> None:
    rig.store.delete("nodes", NODE)
    rig.kubelet.start()
    plugin = rig.start()
    until(lambda: plugin.said(f"node {NODE} cannot be read"))
    rig.store.create("nodes", {"metadata": {"name": NODE}})
    listed(rig)


def test_a_driver_that_comes_late_is_picked_up_without_a_restart(rig: Rig) -> None:
    for path in (rig.root / "toy").iterdir():
        path.unlink()
    (rig.root / "toy").rmdir()
    rig.kubelet.start()
    plugin = rig.start("-pulse", "1")
    until(lambda: plugin.said("no device to offer"))
    assert rig.names() == []
    rig.things(a="ok")
    listed(rig, 4)
    until(lambda: "a" in (rig.node_annotation(REGISTER) or ""))


def test_health_and_hot_plug_reach_kubelet_and_the_scheduler_at_the_next_pulse(rig: Rig) -> None:
    rig.kubelet.start()
    rig.start("-pulse=1")
    listed(rig)
    rig.things(a="sick 0")
    rig.kubelet.wait_for(lambda k: (k.allocatable(RESOURCE), k.capacity(RESOURCE)) == (4, 8))
    until(lambda: "false" in (rig.node_annotation(REGISTER) or ""))
    rig.things(a="ok 0", c="ok")
    listed(rig, 12)
    (rig.root / "toy" / "a").unlink()
    listed(rig, 8)


def test_a_pod_is_served_through_both_sockets(rig: Rig) -> None:
    rig.kubelet.start()
    rig.start()
    listed(rig)
    made = rig.schedule("p", [Placed("b", "Toy", 1, 5)], resource=RESOURCE, word="toy")
    admission = rig.kubelet.admit(made)
    assert admission.admitted, admission.message
    assert admission.containers["c0"].envs["TOY_CORES"] == '{"b": [0, 1, 2, 3, 4]}'
    assert rig.annotation("p", "hami.io/bind-phase") == "success"
    assert rig.node_annotation(LOCK) is None


def test_a_refusal_reaches_the_pod_with_its_reason(rig: Rig) -> None:
    rig.kubelet.start()
    rig.start()
    listed(rig)
    made = rig.schedule("p", [Placed("b", "Toy", 1, 17)], resource=RESOURCE, word="toy")
    admission = rig.kubelet.admit(made)
    assert not admission.admitted
    assert "b has 16 cores left, not 17" in admission.message
    assert rig.node_annotation(LOCK) is None
    assert any("16 cores left" in event["message"] for event in rig.store.list("events"))


def test_with_the_api_server_away_allocate_is_unavailable_in_time(rig: Rig) -> None:
    rig.kubelet.start()
    rig.start()
    listed(rig)
    made = rig.schedule("p", [Placed("b", "Toy", 1, 1)], resource=RESOURCE, word="toy")
    rig.server.down()
    begun = time.monotonic()
    admission = rig.kubelet.admit(made)
    assert time.monotonic() - begun < 25
    assert not admission.admitted
    assert "refused" in admission.message.lower()
    rig.server.up()
    assert rig.annotation("p", TAKEN) is None


def test_killed_between_patch_and_release_the_next_start_releases_the_lock(rig: Rig) -> None:
    rig.kubelet.start()
    plugin = rig.start()
    listed(rig)
    # hold the patch that would release the lock; the sweep at the start has passed by then
    until(lambda: len([e for e in rig.server.requests.entries("toy") if e.resource == "pods"]) >= 1)
    made = rig.schedule("p", [Placed("a", "Toy", 1, 1)], resource=RESOURCE, word="toy")
    rig.server.faults.add(Fault(verb="get", resource="nodes", agent="toy", nth=2, delay=3.0, action="none"))
    admissions = []
    thread = threading.Thread(target=lambda: admissions.append(rig.kubelet.admit(made)))
    thread.start()
    until(lambda: rig.annotation("p", "hami.io/bind-phase") == "success")
    plugin.end(signal.SIGKILL)
    thread.join(10)
    assert not admissions[0].admitted
    assert rig.node_annotation(LOCK) is not None
    rig.server.faults.clear()
    rig.start()
    until(lambda: rig.node_annotation(LOCK) is None)
    listed(rig)


def test_sockets_a_killed_life_left_behind_are_removed_by_the_next(rig: Rig) -> None:
    rig.kubelet.start()
    plugin = rig.start()
    listed(rig)
    plugin.end(signal.SIGKILL)
    (left,) = rig.names()
    time.sleep(2.1)  # a younger one might be of somebody who has not begun to listen
    second = rig.start()
    listed(rig)
    until(lambda: left not in rig.names())
    until(lambda: second.said(f"removed dead socket {left}"))


def test_a_directory_too_deep_for_a_socket_ends_it_with_one_line(rig: Rig) -> None:
    deep = rig.path / ("d" * 100)
    deep.mkdir()
    plugin = rig.start("-kubelet_dir", str(deep))
    assert plugin.process.wait(10) == 1
    assert plugin.said("the kernel takes 107: shorten -kubelet_dir")
    assert "Traceback" not in plugin.log.read_text()


def test_without_an_api_server_configured_it_ends_with_one_line(rig: Rig) -> None:
    plugin = rig.start(env={"KUBECONFIG": str(rig.path / "nowhere")})
    assert plugin.process.wait(10) == 1
    assert plugin.said("no API server")
    assert "Traceback" not in plugin.log.read_text()


def test_a_lock_whose_pod_is_gone_is_released_at_the_start(rig: Rig) -> None:
    rig.store.create("pods", pod("gone"))
    place(rig.store, "gone", NODE, [[Placed("a", "Toy", 1, 1)]], word="toy")
    rig.store.delete("pods", "gone")
    rig.start()
    until(lambda: rig.node_annotation(LOCK) is None)
