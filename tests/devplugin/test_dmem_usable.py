"""Whether dmem can be used here: amd.md 7 and 14.9, decision 31."""

from __future__ import annotations

from dataclasses import replace

import pytest

from devplugin.amd.caps import dmem_state
from devplugin.amd.inventory import Inventory
from devplugin.amd.notices import notices
from devplugin.amd.settings import Settings
from devplugin.dmem import Usable, region_of, regions, usable

from .dict_host import DictHost, Tree, directory
from .small_nodes import found, gpu_node, machine, pci_gpu

ROOT = "/sys/fs/cgroup"
CONTROLLERS: Tree = {f"{ROOT}/cgroup.controllers": "cpuset cpu io memory dmem pids\n"}
KUBEPODS: Tree = {f"{ROOT}/kubepods.slice": directory()}
CAPACITY: Tree = {
    f"{ROOT}/dmem.capacity": "drm/0000:03:00.0/vram 206141652992\n"
    "drm/0000:06:00.0/vram 17163091968\ndrm/0000:0a:00.0/vram0 8514437120\n"
}


@pytest.mark.parametrize(
    ("tree", "ok", "reason"),
    [
        (CONTROLLERS | KUBEPODS, True, ""),
        ({}, False, f"{ROOT}/cgroup.controllers: ENOENT"),
        (
            {f"{ROOT}/cgroup.controllers": "cpu memory\n"} | KUBEPODS,
            False,
            f"{ROOT}/cgroup.controllers does not list",
        ),
        (
            {f"{ROOT}/cgroup.controllers": "cpu dmem2\n"} | KUBEPODS,
            False,
            f"{ROOT}/cgroup.controllers does not list",
        ),
        (CONTROLLERS, False, f"{ROOT}/kubepods.slice: ENOENT"),
        (CONTROLLERS | {f"{ROOT}/kubepods": directory()}, False, f"{ROOT}/kubepods.slice: ENOENT"),
        (CONTROLLERS | {f"{ROOT}/kubepods.slice": ""}, False, f"{ROOT}/kubepods.slice is no directory"),
    ],
)
def test_usable_takes_the_controller_and_kubelets_slice(tree: Tree, ok: bool, reason: str) -> None:
    said = usable(DictHost(tree))
    assert said.ok is ok
    assert said.reason.startswith(reason)
    assert "\n" not in said.reason


def test_a_region_is_taken_from_the_file_in_its_own_spelling() -> None:
    known = regions(DictHost(CAPACITY))
    assert region_of("0000:06:00.0", known) == "drm/0000:06:00.0/vram"
    assert region_of("0000:06:00.0", ("DRM/0000:06:00.0/VRAM",)) == "DRM/0000:06:00.0/VRAM"
    assert region_of("0000:99:00.0", known) is None
    assert region_of("0000:0a:00.0", known) is None
    assert region_of("0000:06:00.0", regions(DictHost({}))) is None


def test_in_tree_614_has_the_controller_and_no_region_and_says_so_once() -> None:
    host = machine(
        CONTROLLERS,
        KUBEPODS,
        {f"{ROOT}/dmem.capacity": ""},
        pci_gpu("0000:03:00.0", 0, 128),
        pci_gpu("0000:06:00.0", 1, 129),
        gpu_node(1, 128, 0x300, 64),
        gpu_node(2, 129, 0x600, 64),
    )
    inventory = found(host)
    state = dmem_state(inventory, Settings())
    assert not state.ok
    assert state.reason.startswith("no GPU has a region in dmem.capacity")
    assert [line for line in notices(inventory, Settings()) if "dmem" in line] == [
        f"dmem: off: {state.reason}"
    ]
    one = replace(inventory, dmem_regions=("drm/0000:06:00.0/vram",))
    state = dmem_state(one, Settings())
    assert state == Usable(True, "no region in dmem.capacity, so not limited: 0000:03:00.0")
    assert f"dmem: on: {state.reason}" in notices(one, Settings())


def test_the_flag_switches_it_off_with_that_reason() -> None:
    inventory = Inventory(dmem=Usable(True, ""))
    assert dmem_state(inventory, Settings()) == Usable(True, "")
    assert dmem_state(inventory, Settings(dmem_backend=False)) == Usable(
        False, "switched off by -dmem_backend=false"
    )


def test_bytes_that_are_no_text_are_read_past() -> None:
    host = DictHost({f"{ROOT}/dmem.capacity": b"\xff 1\ndrm/0000:03:00.0/vram 2\n"})
    assert "drm/0000:03:00.0/vram" in regions(host)


def test_a_node_that_can_has_no_reason() -> None:
    assert usable(DictHost(CONTROLLERS | KUBEPODS)) == Usable(True, "")
