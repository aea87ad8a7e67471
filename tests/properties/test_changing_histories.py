"""Whatever happens to a node, the plugin that watched says what one that starts now would say.

GPUs are switched, pulled, unbound, hung, reset and driven anew; after every step the daemon's walk is made.
Ids of a GPU that nothing happened to never change, and a verdict on health never outlives its cause by more
than the looks it takes (decisions 10, 13, 27; amd.md 4.4).
"""

from __future__ import annotations

import contextlib
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from devplugin.amd.health import UP
from devplugin.amd.inventory import Inventory
from devplugin.amd.settings import Settings
from devplugin.amd.vendor import Amd
from devplugin.answers import Reports
from gpusim.errors import GpusimError
from gpusim.machine import Machine
from gpusim.testing.machines import BUSES, node

BDFS = [f"0000:{bus}:00.0" for bus in BUSES[:3]]
AMD = Amd()

CHOICES = st.builds(
    Settings,
    mode=st.sampled_from(["partition", "cu"]),
    naming=st.sampled_from(["single", "mixed"]),
    pulse=st.just(10),
)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "SPX",
                "QPX",
                "CPX",
                "remove",
                "add",
                "unbind",
                "bind",
                "hang",
                "reset",
                "recover",
                "reload",
                "NPS2",
            ]
        ),
        st.sampled_from(BDFS),
    ),
    max_size=8,
)


def act(machine: Machine, action: str, bdf: str) -> set[str]:
    """Do it, if the node lets us; the GPUs it may have changed."""
    with contextlib.suppress(OSError, GpusimError):
        if action.endswith("PX"):
            machine.switch(bdf, action)
        elif action == "NPS2":
            machine.write(f"/sys/bus/pci/devices/{bdf}/current_memory_partition", b"NPS2")
        elif action == "reload":
            machine.reload()
        else:
            getattr(machine, action)(bdf)
    return set(BDFS) if action == "reload" else {bdf}


def look(machine: Machine, choices: Settings, previous: Inventory | None) -> Inventory:
    return AMD.health(machine, AMD.discover(machine, choices, previous), choices, Reports())


def told(inventory: Inventory, choices: Settings) -> tuple[Any, Any]:
    """The annotation and kubelet's lists."""
    return AMD.registration(inventory, choices, 0.0), AMD.offers(inventory, choices)


def ids(inventory: Inventory, choices: Settings) -> dict[str, tuple[Any, ...]]:
    """BDF → everything that names the GPU to kubelet and the scheduler."""
    found: dict[str, tuple[Any, ...]] = {}
    offered = {
        device.id: name for name, offer in AMD.offers(inventory, choices).items() for device in offer.devices
    }
    for gpu in inventory.gpus:
        keys = {partition.key for partition in gpu.partitions}
        mine = {one: name for one, name in offered.items() if one.partition("#")[0] in keys}
        found[gpu.bdf] = (gpu.id, gpu.ids, gpu.compute, gpu.memory, mine)
    return found


@settings(max_examples=80, deadline=None)
@given(CHOICES, STEPS)
def test_the_watcher_says_what_a_newcomer_would_say(choices: Settings, steps: list[tuple[str, str]]) -> None:
    machine = Machine(node(count=3))
    watched = look(machine, choices, None)
    for action, bdf in steps:
        before = ids(watched, choices)
        touched = act(machine, action, bdf)
        watched = look(machine, choices, watched)
        after = ids(watched, choices)
        for other in set(BDFS) - touched:
            assert after.get(other) == before.get(other)
        if action in ("hang", "reset"):
            assert after.get(bdf) == before.get(bdf)
        sick = {gpu.bdf for gpu in machine.driver.gpus.values() if gpu.hung or gpu.resetting}
        assert sick <= {gpu.bdf for gpu in watched.gpus if not gpu.healthy} | (
            set(BDFS) - {gpu.bdf for gpu in watched.gpus}
        )
    for bdf in BDFS:
        act(machine, "recover", bdf)
    for _ in range(UP):
        watched = look(machine, choices, watched)
    assert all(gpu.healthy for gpu in watched.gpus)
    assert told(watched, choices) == told(look(machine, choices, None), choices)


@settings(max_examples=80, deadline=None)
@given(CHOICES, STEPS)
def test_events_are_few_and_true(choices: Settings, steps: list[tuple[str, str]]) -> None:
    """A GPU is called missing only while it is away, unhealthy only while something is wrong."""
    machine = Machine(node(count=3))
    watched, seen = look(machine, choices, None), None
    _, seen = AMD.events(watched, choices, seen)
    for action, bdf in steps:
        act(machine, action, bdf)
        watched = look(machine, choices, watched)
        events, seen = AMD.events(watched, choices, seen)
        there = {gpu.bdf: gpu.healthy for gpu in watched.gpus}
        for event in events:
            name = next(one for one in BDFS if one in event.message)
            expected = {"AMDGPUMissing": None, "AMDGPUUnhealthy": False, "AMDGPURecovered": True}
            assert there.get(name) is expected[event.reason]
        assert AMD.events(watched, choices, seen)[0] == ()
