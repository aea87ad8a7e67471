"""Scheduler and Ascend plugin share no line: both make the same of one configuration and of each other."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from devplugin.ascend import deviceconfig, runtimeinfo
from devplugin.hami import Pod
from gpusim.cluster.pods import Placed, container, encode, pod
from gpusim.cluster.scheduler_ascend import ascend_vendors, shipped
from gpusim.cluster.scheduler_vendors import Vendor
from gpusim.cluster.scheduler_webhook import admit

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
