"""The fixtures that come with the simulator: each is what its name and its first line say."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from gpusim import fixture
from gpusim.amd.products import PRODUCTS
from gpusim.export.render import MARK, render
from gpusim.fixture import dump, load, loads
from gpusim.machine import Machine

NAMES = fixture.names()
MI355X = [name for name in NAMES if name.startswith("mi355x/")]
PROBE_ORDER = ["75", "05", "65", "15", "f5", "85", "e5", "95"]
SHM = "/dev/shm"
KFD = "/sys/class/kfd/kfd/topology/nodes"


@cache
def machine(name: str) -> Machine:
    """One machine a fixture, only looked at."""
    return Machine(load(name))


def state(name: str) -> dict[str, Any]:
    return machine(name).describe()


def gpu_nodes(name: str) -> list[dict[str, Any]]:
    nodes: list[dict[str, Any]] = state(name)["kfd"]["gpu_nodes"]
    return nodes


def properties(name: str, node: int) -> dict[str, int]:
    text = machine(name).read(f"{KFD}/{node}/properties").decode()
    return {key: int(value) for key, value in (line.split() for line in text.splitlines())}


def test_the_set_of_decision_5_is_complete() -> None:
    modes = ["spx", "dpx", "qpx", "cpx"]
    wanted = [f"mi355x/{mode}-{kernel}" for mode in modes for kernel in ("6.8", "6.14")]
    wanted += [
        "mi355x/qpx-6.8-live-flip",
        "mi355x/cpx-6.8-bmc-63",
        "mi355x/spx-6.8-intree",
        "mi355x/qpx-7.0-intree",
    ]
    wanted += ["mi355x/mixed-spx-cpx", "mi355x/vf", "mi355x/numa-unknown"]
    wanted += ["mi300a/spx-intree", "rdna4/rx9070-igpu"]
    assert set(wanted) <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_fixture_says_what_it_is_and_where_its_facts_come_from(name: str) -> None:
    text = fixture.find(name).read_text()
    assert fixture.about(name)
    assert "\nsource:" in text
    assert len(text.splitlines()) <= 60


@pytest.mark.parametrize("name", NAMES)
def test_every_fixture_reads_back_from_its_dump(name: str) -> None:
    assert loads(dump(load(name))) == load(name)


@pytest.mark.parametrize("name", NAMES)
def test_every_fixture_builds_a_node_and_says_nothing_of_a_real_one(name: str) -> None:
    gpus = state(name)["gpus"]
    assert len(gpus) == len(load(name).gpus)
    known = [gpu["unique_id"] for gpu in gpus if int(gpu["unique_id"], 16)]
    assert len(known) == len(set(known))


def expected(name: str) -> int:
    """KFD GPU nodes of the eight-GPU fixtures, from decision 5."""
    by_mode = {"spx": 1, "dpx": 2, "qpx": 4, "cpx": 8}
    mode, _, rest = name.removeprefix("mi355x/").partition("-")
    special = {"6.8": 8, "6.8-live-flip": 24, "6.8-bmc-63": 63, "6.8-intree": 0}
    return special.get(rest, 8 * by_mode.get(mode, 0))


@pytest.mark.parametrize("name", [n for n in MI355X if n.split("/")[1][:3] in ("spx", "dpx", "qpx", "cpx")])
def test_kfd_lists_as_many_gpu_nodes_as_decision_5_says(name: str) -> None:
    assert len(gpu_nodes(name)) == expected(name)
    assert [gpu["bdf"][5:7] for gpu in state(name)["gpus"]] == PROBE_ORDER


@pytest.mark.parametrize("mode", ["spx", "dpx", "qpx", "cpx"])
def test_hidden_partitions_leave_one_node_with_the_whole_gpus_numbers(mode: str) -> None:
    name = f"mi355x/{mode}-6.8"
    for node in gpu_nodes(name):
        found = properties(name, node["node"])
        assert found["simd_count"] // found["simd_per_cu"] == 256
        bank = machine(name).read(f"{KFD}/{node['node']}/mem_banks/0/properties").decode()
        assert "size_in_bytes 309220868096\n" in bank
    home = "/sys/bus/pci/devices/0000:75:00.0"
    assert machine(name).read(f"{home}/current_compute_partition") == f"{mode.upper()}\n".encode()


def test_the_truncated_variant_lacks_the_last_partition_of_each_gpu() -> None:
    parts = [node["partition"] for node in gpu_nodes("mi355x/qpx-6.8-live-flip")]
    assert parts == [0, 1, 2] * 8


def test_the_63rd_is_the_last_where_a_bmc_takes_the_64th_place() -> None:
    nodes = gpu_nodes("mi355x/cpx-6.8-bmc-63")
    last = [node["partition"] for node in nodes if node["gpu"] == "0000:95:00.0"]
    assert last == [0, 1, 2, 3, 4, 5, 6]
    assert [node["minor"] for node in nodes] == list(range(128, 191))


def test_without_a_driver_that_knows_the_gpu_nothing_is_bound() -> None:
    name = "mi355x/spx-6.8-intree"
    assert all(gpu["driver"] is None and not gpu["partitions"] for gpu in state(name)["gpus"])
    with pytest.raises(OSError) as refused:
        machine(name).readlink("/sys/bus/pci/devices/0000:75:00.0/driver")
    assert refused.value.errno == errno.ENOENT


def ids(name: str) -> list[int]:
    return [properties(name, node["node"])["unique_id"] for node in gpu_nodes(name)]


def test_partitions_share_the_unique_id_of_their_gpu_until_kernel_7() -> None:
    shared, own = ids("mi355x/qpx-6.14"), ids("mi355x/qpx-7.0-intree")
    assert len(set(shared)) == 8
    assert len(set(own)) == 32
    assert [f"{value:016x}" for value in shared[::4]] == [
        g["unique_id"] for g in state("mi355x/qpx-6.14")["gpus"]
    ]


def test_a_gpu_is_the_same_one_in_every_fixture_of_its_server() -> None:
    def found(name: str) -> list[tuple[str, str]]:
        return [(gpu["bdf"], gpu["unique_id"]) for gpu in state(name)["gpus"]]

    eight = [name for name in MI355X if len(state(name)["gpus"]) == 8]
    assert len(eight) >= 13
    for name in eight:
        assert found(name) == found(eight[0])


def test_six_whole_gpus_and_two_in_eight_parts() -> None:
    nodes = gpu_nodes("mi355x/mixed-spx-cpx")
    assert len(nodes) == 6 + 16
    assert {node["gpu"] for node in nodes if node["partition"]} == {"0000:e5:00.0", "0000:95:00.0"}


def test_a_virtual_function_shows_its_mode_read_only_and_offers_no_other() -> None:
    host, home = machine("mi355x/vf"), "/sys/bus/pci/devices/0000:05:00.0"
    assert host.read(f"{home}/device") == b"0x75b3\n"
    assert host.stat(f"{home}/current_compute_partition").mode == 0o444
    assert "available_compute_partition" not in host.list(home)
    assert "product_name" not in host.list(home)


def test_numa_is_unknown_in_both_ways() -> None:
    host = machine("mi355x/numa-unknown")
    homes = [f"/sys/bus/pci/devices/{gpu.bdf}" for gpu in load("mi355x/numa-unknown").gpus]
    assert [host.read(f"{home}/numa_node") for home in homes[:2]] == [b"-1\n"] * 2
    assert ["numa_node" in host.list(home) for home in homes[2:]] == [False] * 2


def test_mi300a_has_dot_names_one_domain_each_and_blank_partitions() -> None:
    name = "mi300a/spx-intree"
    found = [properties(name, node["node"]) for node in gpu_nodes(name)]
    assert [(node["domain"], node["location_id"], node["drm_render_minor"]) for node in found] == [
        (0, 512, 128),
        (1, 512, 136),
        (2, 512, 144),
        (3, 512, 152),
    ]
    platform = [n for n in machine(name).list("/sys/devices/platform") if n.startswith("amdgpu_xcp")]
    assert sorted(platform) == sorted(f"amdgpu_xcp.{i}" for i in range(28))


def test_the_card_and_the_igpu_cannot_be_partitioned() -> None:
    host = machine("rdna4/rx9070-igpu")
    for gpu in load("rdna4/rx9070-igpu").gpus:
        assert "current_compute_partition" not in host.list(f"/sys/bus/pci/devices/{gpu.bdf}")
    igpu = properties("rdna4/rx9070-igpu", 2)
    assert (igpu["unique_id"], igpu["device_id"]) == (0, PRODUCTS["STRIX_POINT"].device_id)


# The captures the fixtures are taken from


def test_the_server_has_the_layout_of_the_capture(snapshots: Path) -> None:
    capture = snapshots / "mi355x-8gpu-spx-6.8"
    driver = capture / "sys/module/amdgpu/drivers/pci:amdgpu"
    for gpu in state("mi355x/spx-6.8")["gpus"]:
        there = driver / gpu["bdf"]
        device = gpu["partitions"][0]
        assert sorted(os.listdir(there / "drm")) == [f"card{device['card']}", f"renderD{device['render']}"]
        assert int((there / "numa_node").read_text()) == gpu["numa"]
        for part in gpu["partitions"][1:]:
            assert (capture / "sys/devices/platform" / part["device"]).is_dir()
    platform = [n for n in os.listdir(capture / "sys/devices/platform") if n.startswith("amdgpu_xcp")]
    assert len(platform) == sum(len(gpu["partitions"]) - 1 for gpu in state("mi355x/spx-6.8")["gpus"]) == 56


@pytest.mark.parametrize("node", range(8))
def test_mi300a_properties_are_those_of_the_capture(snapshots: Path, node: int) -> None:
    """All but the ids, which the capture replaced and the fixture invents."""
    text = (snapshots / f"mi300a-4apu-spx/sys/class/kfd/kfd/topology/nodes/{node}/properties").read_text()
    captured = [tuple(line.split()) for line in text.splitlines()]
    ours = [(key, str(value)) for key, value in properties("mi300a/spx-intree", node).items()]
    invented = {"unique_id", "hive_id"}
    assert [pair for pair in ours if pair[0] not in invented] == [
        pair for pair in captured if pair[0] not in invented
    ]


def walk(host: Machine, path: str = "") -> Iterator[tuple[str, str]]:
    for name in host.list(path or "/"):
        inner = f"{path}/{name}"
        kind = host.stat(inner, follow=False).kind.name
        yield inner, kind
        if kind == "DIRECTORY":
            yield from walk(host, inner)


def on_disk(path: str) -> tuple[str, object, int]:
    """Kind, content and mode of a file, as `in_machine` tells them."""
    found = os.lstat(path)
    if stat.S_ISLNK(found.st_mode):
        return "LINK", os.readlink(path), 0
    mode = stat.S_IMODE(found.st_mode)
    if stat.S_ISDIR(found.st_mode):
        return "DIRECTORY", None, mode
    with open(path, "rb") as file:
        return "FILE", file.read(), mode


def in_machine(host: Machine, path: str, kind: str) -> tuple[str, object, int]:
    """The same of the machine; a device node is what it becomes on disk."""
    if kind == "LINK":
        return kind, host.readlink(path), 0
    mode = host.stat(path).mode
    if kind == "CHARACTER":
        return "FILE", b"", mode
    return kind, host.read(path) if kind == "FILE" else None, mode


@pytest.mark.parametrize("name", NAMES)
def test_a_rendered_node_is_the_machine_file_for_file(name: str) -> None:
    host = machine(name)
    # In memory where that is possible, and gone at once: 20,000 files of each fixture wear a disk out.
    with tempfile.TemporaryDirectory(dir=SHM if os.path.isdir(SHM) else None) as out:
        report = render(host, out)
        ours, unreadable = {}, {}
        for path, kind in walk(host):
            try:
                ours[path] = in_machine(host, path, kind)
            except OSError as error:
                unreadable[path] = errno.errorcode[error.errno or 0]
        found = [f"{where}/{name}" for where, inside, files in os.walk(out) for name in inside + files]
        theirs = {path.removeprefix(out): on_disk(path) for path in found if not path.endswith(MARK)}
    assert theirs == ours
    assert dict(report.skipped) == unreadable
