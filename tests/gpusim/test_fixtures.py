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


def test_every_product_has_a_fixture() -> None:
    assert {gpu.product for name in NAMES for gpu in load(name).gpus} == set(PRODUCTS)


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


def banks(name: str, node: int) -> int:
    text = machine(name).read(f"{KFD}/{node}/mem_banks/0/properties").decode()
    return int(next(line for line in text.splitlines() if line.startswith("size_in_bytes")).split()[1])


def links(name: str, node: int, kind: str) -> list[dict[str, int]]:
    home = f"{KFD}/{node}/{kind}"
    found = [
        machine(name).read(f"{home}/{i}/properties").decode()
        for i in sorted(machine(name).list(home), key=int)
    ]
    return [{key: int(value) for key, value in map(str.split, text.splitlines())} for text in found]


def test_mi308x_has_four_partitions_with_memory_of_their_own_each() -> None:
    # kernel.md 1.4, 1.5 and 1.6 (C308); amd.md 14.
    name = "mi308x/cpx-nps4"
    nodes = gpu_nodes(name)
    assert [node["node"] for node in nodes] == list(range(2, 34))
    assert [node["minor"] for node in nodes[:8]] == [128, 129, 130, 131, 136, 137, 138, 139]
    assert [banks(name, node) for node in range(2, 6)] == [51539607552] * 3 + [51522830336]
    first = properties(name, 2)
    assert [properties(name, node)["location_id"] for node in range(2, 6)] == [2560, 2561, 2562, 2563]
    assert (first["simd_count"], first["num_xcc"], first["caches_count"]) == (80, 1, 46)
    assert (first["num_sdma_engines"], first["num_sdma_xgmi_engines"]) == (2, 0)
    assert (first["p2p_links_count"], first["io_links_count"]) == (1, 32)
    assert machine(name).read("/sys/class/kfd/kfd/topology/generation_id") == b"33\n"
    assert "recommended_sdma_engine_id_mask" not in links(name, 2, "io_links")[0]
    assert links(name, 2, "io_links")[0]["min_bandwidth"] == 312


def test_mi210_has_two_hives_and_pcie_between_them() -> None:
    # kfd.md 1 (C210): links, masks, weights.
    name = "mi210/two-hives"
    assert [properties(name, node)["location_id"] for node in range(2, 6)] == [0x6300, 0x4300, 0x0300, 0x2600]
    first, last = properties(name, 2), properties(name, 9)
    assert (first["io_links_count"], first["p2p_links_count"], first["caches_count"]) == (4, 5, 217)
    assert first["hive_id"] != last["hive_id"]
    assert machine(name).read(f"{KFD}/2/name") == b"aldebaran\n"
    cpu, *mesh = links(name, 2, "io_links")
    assert (cpu["min_bandwidth"], cpu["max_bandwidth"], cpu["recommended_sdma_engine_id_mask"]) == (
        312,
        32000,
        3,
    )
    assert {
        (link["type"], link["weight"], link["max_bandwidth"], link["recommended_sdma_engine_id_mask"])
        for link in mesh
    } == {(11, 15, 50000, 28)}
    assert [link["node_to"] for link in mesh] == [3, 4, 5]
    other_cpu, *across = links(name, 9, "p2p_links")
    assert (other_cpu["weight"], other_cpu["recommended_sdma_engine_id_mask"]) == (52, 0)
    assert {
        (
            link["type"],
            link["weight"],
            link["max_bandwidth"],
            link["recommended_sdma_engine_id_mask"],
            link["flags"],
        )
        for link in across
    } == {(2, 72, 0, 3, 3)}
    # Towards a node that is made afterwards KFD has no mask yet.
    assert {link["recommended_sdma_engine_id_mask"] for link in links(name, 2, "p2p_links")} == {0}
    assert "current_compute_partition" not in machine(name).list("/sys/bus/pci/devices/0000:63:00.0")


def test_mi325x_lacks_its_64th_partition_beside_a_bmc() -> None:
    assert len(gpu_nodes("mi325x/cpx-bmc-63")) == 63


def test_an_mi350x_guest_has_the_numbers_of_the_noted_one() -> None:
    # kernel.md 1.5, 1.6, 2.2 and 7 (C350VF).
    name, home = "mi350x/vf", "/sys/bus/pci/devices/0000:05:00.0"
    found = properties(name, 1)
    wanted = {
        "simd_count": 1024,
        "array_count": 32,
        "cu_per_simd_array": 9,
        "lds_size_in_kb": 160,
        "num_sdma_engines": 2,
        "num_sdma_xgmi_engines": 14,
        "num_cp_queues": 30,
        "max_engine_clk_fcompute": 2200,
        "fw_version": 32810,
        "sdma_fw_version": 12,
        "capability": 741843584,
        "capability2": 0,
        "debug_prop": 1494,
        "cwsr_size": 22687744,
        "ctl_stack_size": 12288,
        "hive_id": 0,
        "num_xcc": 8,
        "caches_count": 546,
        "max_engine_clk_ccompute": 0,
    }
    assert {key: found[key] for key in wanted} == wanted
    assert banks(name, 1) == 308902100992
    host = machine(name)
    assert found["unique_id"] == int(host.read(f"{home}/unique_id"), 16)
    assert (host.read(f"{home}/device"), host.read(f"{home}/subsystem_device")) == (b"0x75b0\n", b"0x75a0\n")
    assert len([n for n in host.list("/sys/devices/platform") if n.startswith("amdgpu_xcp_")]) == 7
    assert state(name)["gpus"][0]["partitions"][0]["card"] == 1
    # kernel.md 3: a guest of this generation has neither an edge sensor nor an average power.
    (chip,) = host.list(f"{home}/hwmon")
    assert not {"temp1_input", "power1_average"} & set(host.list(f"{home}/hwmon/{chip}"))


def test_an_mi300x_guest_is_the_one_of_the_recorded_registration() -> None:
    # amd.md 3.1: 196288 MiB, 304 CUs, 24 queues at 0000:83:00.0, card 1.
    name = "mi300x/vf"
    found = properties(name, 1)
    assert (found["simd_count"] // found["simd_per_cu"], found["num_cp_queues"]) == (304, 24)
    assert machine(name).read("/sys/bus/pci/devices/0000:83:00.0/mem_info_vram_total") == b"%d\n" % (
        196288 << 20
    )
    assert state(name)["gpus"][0]["partitions"][0]["card"] == 1


def test_apus_have_their_memory_behind_the_gtt() -> None:
    # case B13
    for name, vram, gtt in (
        ("apu/strixpoint-890m", 536870912, 16441004032),
        ("apu/phoenix-780m", 4294967296, 31433977856),
    ):
        host, home = machine(name), f"/sys/bus/pci/devices/{load(name).gpus[0].bdf}"
        assert banks(name, 1) == gtt
        assert host.read(f"{home}/mem_info_vram_total") == b"%d\n" % vram
        assert host.read(f"{home}/mem_info_gtt_total") == b"%d\n" % gtt
        assert "unique_id" not in host.list(home)


def test_a_card_that_radeon_holds_is_no_gpu() -> None:
    name = "gcn1/hd7870-radeon"
    assert state(name)["gpus"] == []
    assert gpu_nodes(name) == []
    assert "amdgpu" not in machine(name).list("/sys/module")
    assert machine(name).tree.resolve("/sys/class/drm/card0/device/driver") == "/sys/bus/pci/drivers/radeon"


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
