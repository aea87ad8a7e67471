"""Scheduler and Ascend plugin share no line: both make the same of one configuration and of each other."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from devplugin.answers import OfferedDevice
from devplugin.ascend import deviceconfig, runtimeinfo
from devplugin.ascend.discovery import discover
from devplugin.ascend.offer import offers
from devplugin.ascend.registration import node_patch
from devplugin.ascend.settings import Settings
from devplugin.hami import Pod
from gpusim import fixture
from gpusim.cluster.pods import Placed, container, encode, pod
from gpusim.cluster.scheduler_ascend import MODE_KEY, ascend_vendors, shipped
from gpusim.cluster.scheduler_devices import Registered, registered
from gpusim.cluster.scheduler_filter import Rules, choose
from gpusim.cluster.scheduler_vendors import Vendor
from gpusim.cluster.scheduler_webhook import admit
from gpusim.machine import Machine

ROWS = {row.word: row for row in ascend_vendors()}
CHIPS = {chip.word: chip for chip in deviceconfig.parse(yaml.safe_dump(shipped()).encode()).chips}


def test_both_know_the_same_chips_by_the_same_resources_and_keys() -> None:
    assert list(ROWS) == list(CHIPS)
    for word, row in ROWS.items():
        keys = runtimeinfo.vocabulary(word)
        assert row.count == CHIPS[word].resource
        assert (row.register, row.handshake) == (keys.register, keys.handshake)
        assert (row.to_allocate, row.allocated) == (keys.to_allocate, keys.allocated)


@pytest.mark.parametrize("soft", [True, False])
@pytest.mark.parametrize("older", [True, False], ids=["list", "mapping"])
def test_both_read_the_mode_out_of_either_layout(soft: bool, older: bool) -> None:
    config = shipped(soft=soft)
    if older:
        config = {"vnpus": config["vnpus"]["configs"], "hamiVnpuCore": soft}
    assert deviceconfig.parse(yaml.safe_dump(config).encode()).soft is soft
    assert {row.soft for row in ascend_vendors(config)} == {soft}


def told(row: Vendor, slots: tuple[tuple[Placed, ...], ...]) -> Pod:
    """A pod as the plugin sees it after the filter's patch."""
    assert row.notes is not None
    annotations = {**row.notes(slots, False, 1), row.allocated: encode(slots)}
    return Pod(namespace="default", name="p", uid="u", node="n", phase="Pending", annotations=annotations)


@given(st.sampled_from(sorted(ROWS)), st.lists(st.integers(1, 70000), min_size=1, max_size=4))
def test_every_size_that_is_admitted_is_a_template_the_plugin_knows_or_a_whole_card(
    word: str, sizes: list[int]
) -> None:
    row, chip = ROWS[word], CHIPS[word]
    known = {template.name: template.memory_mib for template in chip.templates}
    given_ = []
    for size in sizes:
        body = pod("p", [container("c", {row.count: 1, row.memory: size})])
        result = admit(body, (row,))
        if not result.denied:
            (one,) = result.pod["spec"]["containers"]
            given_.append(int(one["resources"]["limits"][row.memory]))
    slots = tuple((Placed(f"npu-{n}", word, size, 0),) for n, size in enumerate(given_))
    read = runtimeinfo.entries(told(row, slots), word)
    assert [(entry.uuid, entry.memory_mib) for entry in read] == [
        (f"npu-{n}", size) for n, size in enumerate(given_)
    ]
    for entry in read:
        assert entry.memory_mib == (known[entry.template] if entry.template else chip.allocatable_mib)


FIXTURES = [name for name in fixture.names() if name.startswith("ascend/")]


def node_of(name: str, *, soft: bool) -> tuple[Vendor, tuple[Registered, ...], list[OfferedDevice]]:
    """(the chip's row, what the scheduler reads of a fixture's node, what kubelet is offered)."""
    settings = Settings(chips=tuple(CHIPS.values()), soft=soft)
    inventory = discover(Machine(fixture.load(name)), settings, None)
    assert inventory.chip is not None, inventory.trouble
    row = ROWS[inventory.chip.word]
    annotations = node_patch(inventory, settings, 0.0).annotations
    (offer,) = offers(inventory, settings).values()
    assert offer.resource == row.count
    node = {"metadata": {"name": "n", "annotations": dict(annotations)}}
    return row, registered(node, row), list(offer.devices)


@pytest.mark.parametrize("soft", [True, False], ids=["soft", "template"])
@pytest.mark.parametrize("name", FIXTURES)
def test_every_registered_card_that_is_well_can_be_scheduled_once_and_whole(name: str, soft: bool) -> None:
    row, devices, offered = node_of(name, soft=soft)
    assert sum(device.count for device in devices) == len(offered)
    assert all(device.soft is soft for device in devices)
    well = [device for device in devices if device.healthy]
    mode = {MODE_KEY: "hami-core"} if soft else None
    body = pod("p", [container(f"c{i}", {row.count: 1}) for i in range(len(well))], annotations=mode)
    choice = choose(body, (row,), {"n": {row.word: devices}}, {}, Rules())
    given_ = [device for slot in choice.slots[row.word] for device in slot]
    assert {device.id for device in given_} == {device.id for device in well}
    assert all(device.memory_mib == CHIPS[row.word].allocatable_mib for device in given_)
    more = pod("q", [container(f"c{i}", {row.count: 1}) for i in range(len(well) + 1)], annotations=mode)
    assert choose(more, (row,), {"n": {row.word: devices}}, {}, Rules()).node == ""


@pytest.mark.parametrize("name", FIXTURES)
def test_a_node_takes_as_many_of_the_smallest_template_as_kubelet_is_offered(name: str) -> None:
    row, devices, offered = node_of(name, soft=False)
    smallest = CHIPS[row.word].templates[0]
    healthy = sum(device.healthy for device in offered)
    limits = {row.count: 1, row.memory: smallest.memory_mib}
    for more, fits in ((0, True), (1, False)):
        body = pod("p", [container(f"c{i}", limits) for i in range(healthy + more)])
        assert bool(choose(body, (row,), {"n": {row.word: devices}}, {}, Rules()).node) == fits
