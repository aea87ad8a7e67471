"""Directories instead of machines: recorded captures, rendered fixtures, and trees with one file broken."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devplugin.amd.discovery import discover
from devplugin.amd.report import report
from devplugin.amd.settings import Settings
from devplugin.linux import LinuxHost
from gpusim import fixture
from gpusim.export.render import render
from gpusim.machine import Machine

from ..dict_host import DictHost, Link, Special, Tree, directory
from .test_fixtures import every_fixture

BOUND = "/sys/module/amdgpu/drivers/pci:amdgpu"
NODES = "/sys/class/kfd/kfd/topology/nodes"


def look(host: Any, mode: str = "partition") -> dict[str, Any]:
    settings = Settings(mode=mode)
    return report(discover(host, settings), settings)


def both(host: Any) -> list[dict[str, Any]]:
    """The reports of both modes from one pass: discovery does not depend on the mode."""
    inventory = discover(host, Settings())
    return [report(inventory, Settings(mode=mode)) for mode in ("cu", "partition")]


# ---------------------------------------------------------------- captures


@pytest.mark.snapshots
@pytest.mark.parametrize("mode", ["cu", "partition"])
@pytest.mark.parametrize(
    ("capture", "paths"),
    [
        (
            "mi300a-4apu-spx",
            {f"000{g}:02:00.0": f"{BOUND}/000{g}:02:00.0/mem_info_vram_total: ENOENT" for g in range(4)},
        ),
        ("apu-strixpoint-890m", {"0000:c1:00.0": f"{BOUND}: ENOENT"}),
        ("rdna4-rx9070", {"0000:03:00.0": f"card1: {NODES}: ENOENT"}),
        (
            "gcn1-hd7870-radeon-driver",
            {"0000:01:00.0": f"card0: bound to radeon, not to amdgpu: {BOUND}/0000:01:00.0: ENOENT"},
        ),
        (
            "mi355x-8gpu-spx-6.8",
            {f"0000:{b}:00.0": f"{NODES}: ENOENT" for b in ("05", "15", "65", "75", "85", "95", "e5", "f5")},
        ),
    ],
)
def test_a_partial_capture_registers_nothing_and_names_the_first_missing_path(
    snapshots: Path, capture: str, paths: dict[str, str], mode: str
) -> None:
    said = look(LinuxHost(str(snapshots / capture)), mode)
    assert said["registration"] == []
    assert said["resources"] == {}
    assert {s["device"]: s["reason"] for s in said["skipped"]} == paths


@pytest.mark.snapshots
def test_the_uuids_of_the_recorded_server_follow_from_its_serials(snapshots: Path) -> None:
    import json

    from devplugin.amd.topology import read_topology
    from devplugin.amd.uuid import smi_uuid

    capture = snapshots / "mi355x-8gpu-spx-6.8"
    recorded = json.loads((capture / "amd-smi/amdsmi-mi355x.json").read_text())
    nodes = read_topology(LinuxHost(str(capture / "derived"))).gpus
    assert len(nodes) == 8
    for node in nodes:
        assert node.slot is not None
        bdf = f"0000:{node.slot[1]:02x}:00.0"
        assert recorded[bdf] == {"uuid": smi_uuid(node.unique_id, 0x75A3), "type": "AMD Instinct MI355X"}


@pytest.mark.snapshots
def test_63_recorded_nodes_are_told_one_by_one(snapshots: Path) -> None:
    said = look(LinuxHost(str(snapshots / "mi300x-8gpu-cpx")))
    assert len(said["skipped"]) == 63
    assert len({s["device"] for s in said["skipped"]}) == 63


# ---------------------------------------------------------------- rendered trees


@pytest.fixture
def quick_directory(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory where there is one: a rendered CPX node has 9,000 files."""
    memory = Path("/dev/shm")
    made = Path(tempfile.mkdtemp(dir=memory if os.access(memory, os.W_OK) else tmp_path))
    yield made
    shutil.rmtree(made)


def test_a_rendered_fixture_says_what_the_simulated_one_says(fixtures: Path, quick_directory: Path) -> None:
    for number, path in enumerate(every_fixture(fixtures)):
        machine = Machine(fixture.load(str(path)))
        target = quick_directory / str(number)
        render(machine, target)
        for mode in ("cu", "partition"):
            assert look(LinuxHost(str(target)), mode) == look(machine, mode), path.name
        shutil.rmtree(target)


# ---------------------------------------------------------------- one file removed


SECOND_LOOKS = frozenset(["gpu_id", "mem_info_gtt_total", "product_name"])
"""Files that are only asked for when others fail."""


def tree_of(machine: Machine) -> Tree:
    """What discovery looks at, or may look at, as a dict; the rest of a machine cannot matter to it."""
    recorder = Recorder(machine)
    look(recorder)
    tree: Tree = {}

    def keep(path: str) -> None:
        """A path with everything on the way, links as links."""
        done = ""
        todo = [part for part in path.split("/") if part][::-1]
        while todo:
            part = todo.pop()
            if part == "..":
                done = done.rpartition("/")[0]
                continue
            step = f"{done}/{part}"
            try:
                kind = machine.stat(step, follow=False).kind.name
            except OSError:
                return
            if kind == "LINK":
                target = machine.readlink(step)
                tree[step] = Link(target)
                done = "" if target.startswith("/") else done
                todo += [p for p in target.split("/") if p][::-1]
                continue
            done = step
            tree[step] = directory() if kind == "DIRECTORY" else Special("device node")
            if kind == "FILE":
                try:
                    tree[step] = machine.read(step)
                except OSError as error:
                    tree[step] = error.errno or errno.EIO
            if kind == "DIRECTORY":
                for name in SECOND_LOOKS & set(machine.list(step)):
                    tree[f"{step}/{name}"] = machine.read(f"{step}/{name}")

    for verb, path in recorder.asked:
        keep(path)
        if verb == "list":
            try:
                names = machine.list(path)
            except OSError:
                continue
            for name in names:
                keep(f"{path}/{name}")
    return tree


class Recorder:
    """Passes everything on to a host and remembers the questions."""

    def __init__(self, host: Any) -> None:
        self._host = host
        self.asked: list[tuple[str, str]] = []

    def __getattr__(self, verb: str) -> Any:
        def ask(path: str, **how: Any) -> Any:
            self.asked.append((verb, path))
            return getattr(self._host, verb)(path, **how)

        return ask


BROKEN = [
    "mi355x/qpx-7.0-intree",
    "mi355x/qpx-6.8-live-flip",
    "mi355x/qpx-6.8",
    "mi355x/numa-unknown",
    "mi300a/spx-intree",
    "rdna4/rx9070-igpu",
    "mi355x/vf",
]
"""Unique ids per partition and shared, partitions listed, lost and hidden, soft GPUs, APUs, VFs."""


def removable(tree: Tree) -> list[str]:
    """Every file, link and device node, and the DRM entries, which are directories in sysfs."""
    return sorted(p for p, v in tree.items() if v != directory() or "/drm/card" in p or "/drm/render" in p)


def identity(said: dict[str, Any]) -> dict[str, str]:
    """Registered id → PCI address."""
    return {entry["id"]: entry["custominfo"]["pciBDF"] for entry in said["registration"]}


def compute(said: dict[str, Any]) -> dict[str, int]:
    """PCI address → registered compute units."""
    out: dict[str, int] = {}
    for entry in said["registration"]:
        bdf = entry["custominfo"]["pciBDF"]
        out[bdf] = out.get(bdf, 0) + entry["devcore"]
    return out


def check_loss(before: dict[str, Any], after: dict[str, Any], path: str) -> None:
    """Nothing is invented, and just the GPUs that lost compute units have something in `skipped`."""
    old, new = identity(before), identity(after)
    gone = {bdf for bdf, cus in compute(before).items() if compute(after).get(bdf, 0) < cus}
    told = {s["device"] for s in after["skipped"]} - {s["device"] for s in before["skipped"]}
    assert {device.partition("/")[0] for device in told} == gone, path
    assert all(compute(after)[bdf] <= compute(before)[bdf] for bdf in compute(after)), path
    if path.endswith("available_compute_partition"):
        # Without it the GPU counts as a VF (decision 13): the same GPU, soft, under its own whole id.
        assert {new[identifier] for identifier in set(new) - set(old)} <= {
            old[identifier] for identifier in set(old) - set(new)
        }
    else:
        assert set(new) <= set(old), path


@pytest.mark.parametrize("name", BROKEN)
def test_with_any_one_file_gone_only_its_devices_go(name: str) -> None:
    tree = tree_of(Machine(fixture.load(name)))
    whole = both(DictHost(tree))
    assert whole == both(Machine(fixture.load(name)))
    for path in removable(tree):
        rest = {other: v for other, v in tree.items() if other != path and not other.startswith(path + "/")}
        for before, after in zip(whole, both(DictHost(rest)), strict=True):
            check_loss(before, after, path)


@pytest.mark.parametrize(
    "value", [b"", b"\xff\x00garbage\n" * 9, directory(), errno.EPERM, errno.EIO], ids=str
)
def test_with_any_one_file_spoilt_nothing_is_raised_and_no_gpu_is_invented(value: Any) -> None:
    tree = tree_of(Machine(fixture.load("mi355x/numa-unknown")))
    gpus = set(identity(look(DictHost(tree))).values())
    for path in removable(tree):
        after = look(DictHost(tree | {path: value}))
        assert set(identity(after).values()) <= gpus, path


@given(st.data())
def test_a_tree_with_random_damage_is_survived(data: st.DataObject) -> None:
    tree = DAMAGED.copy()
    paths = sorted(tree)
    for _ in range(data.draw(st.integers(1, 6))):
        path = data.draw(st.sampled_from(paths))
        damage = data.draw(
            st.one_of(
                st.none(),
                st.binary(max_size=40),
                st.sampled_from([errno.EPERM, errno.ENODEV, errno.EIO]),
                st.just(directory()),
                st.sampled_from([Link("."), Link("/"), Link("nowhere"), Link("../0/properties")]),
            )
        )
        if damage is None:
            tree.pop(path, None)
        else:
            tree[path] = damage
    inventory = discover(DictHost(tree), Settings())
    for gpu in inventory.gpus:
        assert len(gpu.ids) == len(gpu.partitions) == len({p.render_minor for p in gpu.partitions})
        assert all(0 <= p.number < gpu.ways for p in gpu.partitions)
    for mode in ("cu", "partition"):
        said = report(inventory, Settings(mode=mode))
        keys = [device["id"] for devices in said["resources"].values() for device in devices]
        assert len(keys) == len(set(keys))
        assert len(identity(said)) == len(said["registration"])
        for gpu in inventory.gpus:
            shares = [e["devmem"] for e in said["registration"] if e["custominfo"]["pciBDF"] == gpu.bdf]
            assert sum(shares) <= -(-gpu.vram_bytes // 2**30) * 1024, "more memory than the card has"


def _damaged() -> Iterator[tuple[str, Any]]:
    machine = Machine(fixture.load("mi355x/numa-unknown"))
    yield from tree_of(machine).items()


DAMAGED: Tree = dict(_damaged())
