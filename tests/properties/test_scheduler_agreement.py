"""Scheduler and plugin share no line: what one writes the other reads, number by number."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devplugin.amd.discovery import discover
from devplugin.amd.offer import offers
from devplugin.amd.registration import annotation
from devplugin.amd.settings import Settings
from devplugin.hami import codec
from devplugin.hami.lock import parse_lock
from gpusim import fixture
from gpusim.cluster.pods import Placed, container, encode, pod
from gpusim.cluster.scheduler_devices import Registered, registered
from gpusim.cluster.scheduler_filter import Rules, choose
from gpusim.cluster.scheduler_ledger import decode
from gpusim.cluster.scheduler_lock import parse, value_of
from gpusim.cluster.scheduler_vendors import AMD, AMD_MIXED
from gpusim.machine import Machine

INT32 = st.integers(0, 2**31 - 1)
slots = st.lists(
    st.lists(
        st.builds(
            Placed,
            st.text("abcdef0123456789-_#", min_size=1, max_size=40),
            st.text("AMD Instinct_MI355X-", min_size=1, max_size=20),
            INT32,
            INT32,
        ),
        max_size=3,
    ),
    max_size=4,
)


@given(slots)
def test_the_plugin_reads_the_slots_that_the_scheduler_writes(written: list[list[Placed]]) -> None:
    read = codec.decode(encode(written))
    assert [[(d.id, d.type, d.memory_mib, d.cores) for d in slot] for slot in read] == [
        [(d.id, d.type, d.memory_mib, d.cores) for d in slot] for slot in written
    ]
    # and what the plugin leaves of them the scheduler still reads
    for number in range(len(written)):
        left = decode(codec.erase(encode(written), number))
        assert left[number] == ()
        assert len(left) == len(written) + 1


names = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?", fullmatch=True)


@given(st.integers(0, 4_000_000_000), names, names)
def test_the_plugin_reads_the_lock_that_the_scheduler_takes(now: int, namespace: str, name: str) -> None:
    value = value_of(now, namespace, name)
    read = parse_lock(value)
    assert (read.namespace, read.name) == (namespace, name)
    assert (parse(value).since, parse(value).namespace, parse(value).name) == (now, namespace, name)


def node_of(name: str, settings: Settings) -> tuple[tuple[Registered, ...], dict[str, int]]:
    """(what the scheduler reads of a fixture's node, what kubelet is offered by resource)."""
    inventory = discover(Machine(fixture.load(name)), settings)
    text = annotation(inventory, settings)
    offered = {resource: len(offer.devices) for resource, offer in offers(inventory, settings).items()}
    node = {"metadata": {"name": "n", "annotations": {AMD.register: text}}}
    return (registered(node, AMD) if text != "[]" else ()), offered


@pytest.mark.parametrize("mode", ["cu", "partition"])
@pytest.mark.parametrize("name", fixture.names())
def test_every_registered_device_can_be_scheduled_once_and_whole(name: str, mode: str) -> None:
    devices, offered = node_of(name, Settings(mode=mode))
    assert sum(device.count for device in devices) == sum(offered.values())
    if not devices:
        return
    body = pod("p", [container("c", {"amd.com/gpu": len(devices)})])
    choice = choose(body, (AMD,), {"n": {"amd": devices}}, {}, Rules())
    (slot,) = choice.slots["amd"]
    assert {d.id for d in slot} == {device.id for device in devices}
    assert all(d.memory_mib and d.cores for d in slot)
    again = pod("q", [container("c", {"amd.com/gpu": len(devices) + 1})])
    assert choose(again, (AMD,), {"n": {"amd": devices}}, {}, Rules()).reasons == {
        "n": "NodeInsufficientDevice"
    }


@pytest.mark.parametrize("name", fixture.names())
def test_under_mixed_names_the_scheduler_knows_as_many_of_each_type_as_kubelet(name: str) -> None:
    # in cu mode a registration does not say how a GPU is partitioned, and nobody outside can tell
    devices, offered = node_of(name, Settings(mode="partition", naming="mixed"))
    for resource, count in offered.items():
        profile = AMD_MIXED.profile(resource)
        assert profile is not None
        if profile:
            assert sum(device.count for device in devices if device.is_a(profile)) == count
