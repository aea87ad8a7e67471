"""SIGHUP: the same process begins anew, and what kubelet loses meanwhile is short and clean."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from devplugin.hami import LOCK
from gpusim.cluster.apifaults import Fault
from gpusim.cluster.pods import Placed

from .rig import NODE, Plugin, Rig, until
from .toyplugin import RESOURCE

pytestmark = pytest.mark.daemon


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig() as made:
        made.command = (*made.command, "-root", str(made.root))
        made.things(a="ok 0", b="ok 1")
        made.kubelet.start()
        yield made


def listed(rig: Rig, count: int = 8) -> bool:
    return rig.kubelet.wait_for(lambda k: k.allocatable(RESOURCE) == count)


def begun(rig: Rig) -> Plugin:
    plugin = rig.start()
    listed(rig)
    until(lambda: plugin.said("operating mode: soft"))
    return plugin


def mode(rig: Rig, word: str) -> None:
    rig.store.patch("nodes", NODE, {"metadata": {"annotations": {"toy.io/mode": word}}})


def test_annotations_of_the_node_are_read_again_by_the_same_process(rig: Rig) -> None:
    plugin = begun(rig)
    (old,) = rig.names()
    mode(rig, "hard")
    plugin.process.send_signal(signal.SIGHUP)
    listed(rig, 2)
    assert plugin.process.poll() is None
    assert plugin.said("operating mode: hard")
    until(lambda: len(rig.names()) == 1)
    assert rig.names() != [old]
    assert "Traceback" not in plugin.log.read_text()
    assert plugin.end() == 0
    assert rig.names() == []


def test_the_list_is_away_for_a_moment_only(rig: Rig) -> None:
    plugin = begun(rig)

    def count(kind: str) -> int:
        return sum(event.kind == kind for event in rig.kubelet.events)

    lists, ends = count("list"), count("stream-ended")
    plugin.process.send_signal(signal.SIGHUP)
    until(lambda: count("stream-ended") > ends)
    gone = time.monotonic()
    until(lambda: count("list") > lists)
    assert time.monotonic() - gone < 2.0
    assert rig.kubelet.capacity(RESOURCE) == 8


def test_while_the_node_cannot_be_read_the_old_list_stays_and_sigterm_works(rig: Rig) -> None:
    plugin = begun(rig)
    names = rig.names()
    rig.server.down()
    plugin.process.send_signal(signal.SIGHUP)
    until(lambda: plugin.said("cannot be read"))
    time.sleep(0.5)
    assert rig.names() == names
    assert rig.kubelet.allocatable(RESOURCE) == 8
    assert plugin.end() == 0
    assert rig.names() == []
    assert "Traceback" not in plugin.log.read_text()


def test_settings_that_are_refused_leave_those_that_served(rig: Rig) -> None:
    plugin = begun(rig)
    names = rig.names()
    rig.store.patch("nodes", NODE, {"metadata": {"annotations": {"toy.io/mode": "refused"}}})
    plugin.process.send_signal(signal.SIGHUP)
    until(lambda: plugin.said("toy.io/mode=refused: choose another; serving on"))
    assert rig.names() == names
    assert rig.kubelet.allocatable(RESOURCE) == 8
    rig.store.patch("nodes", NODE, {"metadata": {"annotations": {"toy.io/mode": "hard"}}})
    plugin.process.send_signal(signal.SIGHUP)
    until(lambda: rig.kubelet.capacity(RESOURCE) == 2)
    assert plugin.end() == 0


def test_many_in_a_row_end_with_one_socket_and_no_thread_more(rig: Rig) -> None:
    plugin = begun(rig)

    def threads() -> int:
        return len(os.listdir(f"/proc/{plugin.process.pid}/task"))

    def again() -> None:
        before = sum("SIGHUP" in line["event"] for line in plugin.lines())
        plugin.process.send_signal(signal.SIGHUP)
        until(lambda: sum("SIGHUP" in line["event"] for line in plugin.lines()) > before)
        until(lambda: len(rig.names()) == 1)

    for _ in range(3):
        again()
    listed(rig)
    settled = threads()
    for _ in range(5):
        again()
        listed(rig)
    assert threads() <= settled + 3
    for _ in range(20):
        plugin.process.send_signal(signal.SIGHUP)
    time.sleep(0.3)
    assert plugin.end() == 0
    assert rig.names() == []


def test_an_allocate_at_work_is_answered_before_the_list_goes(rig: Rig) -> None:
    plugin = begun(rig)
    until(lambda: len([e for e in rig.server.requests.entries("toy") if e.resource == "pods"]) >= 1)
    made = rig.schedule("p", [Placed("a", "Toy", 1, 3)], resource=RESOURCE, word="toy")
    rig.server.faults.add(Fault(verb="patch", resource="pods", agent="toy", delay=1.5, action="none"))
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(rig.kubelet.admit(made)))
    thread.start()
    time.sleep(0.4)
    plugin.process.send_signal(signal.SIGHUP)
    thread.join(15)
    (admission,) = answers
    assert admission.admitted, admission.message
    assert rig.node_annotation(LOCK) is None
    until(lambda: plugin.said("SIGHUP"))
    rig.server.faults.clear()
    listed(rig)
