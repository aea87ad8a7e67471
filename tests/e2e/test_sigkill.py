"""SIGKILL at twenty moments around an Allocate and a start: the same as in process, with everything real.

Decision 19 over real sockets. The API server answers the plugin slowly, so that every kill hits something:
before the pod patch, with it on the wire, after it, before and after the lock goes, in the first sweep.
"""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Sequence

import pytest

from gpusim.cluster.apifaults import Fault
from gpusim.cluster.pods import Placed

from ..devplugin.daemon.rig import until
from .support_node import AGENT, Node

pytestmark = pytest.mark.daemon

SLOTS = 80
"""Eight GPUs, ten sharers each."""
DELAY = 0.06
"""Seconds the API server takes for each of the plugin's requests."""


def _wishes(node: Node, random: random.Random) -> list[Sequence[Placed]]:
    """One to three containers on the first two GPUs, where they could collide."""
    cut = [node.gpu(at, 32, cores=random.randint(1, 8)) for at in (0, 1)]
    return random.choice(
        [
            [[cut[0]]],
            [[cut[0]], [cut[1]]],
            [[], [cut[0]]],
            [[cut[1], cut[0]], [cut[0]]],
            [[cut[0]], [cut[0]], [cut[1]]],
        ]
    )


def _events(node: Node, *kinds: str) -> int:
    return sum(event.kind in kinds for event in node.kubelet.events)


@pytest.mark.timeout(240)
def test_twenty_kills_around_allocates_and_starts_leave_nothing_wrong_behind() -> None:
    random_ = random.Random(19)
    running: dict[str, list[Sequence[Placed]]] = {}
    ends: Counter[str] = Counter()
    reached: set[tuple[str, ...]] = set()
    kills = 0
    with Node("mi355x/qpx-6.14") as node:
        plugin = node.ready(SLOTS)
        node.server.faults.add(Fault(agent=AGENT, action="none", delay=DELAY, times=None))
        for number in range(16):
            name, slots = f"p{number}", _wishes(node, random_)
            before, begun = len(node.asked_of_plugin()), _events(node, "allocating")
            settled = _events(node, "admitted", "rejected")
            node.run(name, *slots)
            until(lambda n=begun: _events(node, "allocating") > n)
            # Two reads and a patch for each container, two calls for the lock: kill after some of them.
            calls = 3 * sum(bool(slot) for slot in slots) + 2
            wanted = before + random_.randint(0, calls)
            until(
                lambda n=wanted, e=settled: (
                    len(node.asked_of_plugin()) >= n or _events(node, "admitted", "rejected") > e
                )
            )
            time.sleep(random_.uniform(0.0, DELAY))
            plugin.end(signal.SIGKILL)
            kills += 1
            reached.add(tuple(sorted(node.asked_of_plugin()[before:])))
            node.recorded()
            if number % 4 == 3:  # and again, somewhere in its start or first sweep
                plugin = node.start()
                time.sleep(random_.uniform(0.3, 1.2))
                plugin.end(signal.SIGKILL)
                kills += 1
                node.recorded()
            plugin = node.ready(SLOTS)
            phase = node.settled(name)["status"]["phase"]
            ends[phase] += 1
            if phase == "Running":
                running[name] = slots
            assert node.at_rest() < 30.0
            if number % 3 == 2:  # one that nobody disturbs: it must find room beside all the others
                running[f"q{number}"] = [[node.gpu(0, 32, cores=8)]]
                node.run(f"q{number}", *running[f"q{number}"])
                assert node.settled(f"q{number}")["status"]["phase"] == "Running"
            if len(running) > 5:
                gone = random_.choice(sorted(running))
                running.pop(gone)
                node.api.delete("pods", gone, grace_seconds=0)
            held = node.recorded()
            assert set(held) == set(running)
            for one, placed in running.items():
                assert node.given(one, *placed) == held[one], one
    assert kills == 20
    assert ends["Failed"] >= 3, ends
    assert len(reached) >= 4, "the kills all hit the same place"
