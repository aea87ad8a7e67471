"""The register annotation: amd.md 3.1, 14.1 (custominfo) and 14.8; decisions 6 to 10, 14."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from devplugin.amd.discovery import discover
from devplugin.amd.inventory import Inventory
from devplugin.amd.registration import ANNOTATION, annotation, node_patch
from devplugin.amd.settings import Settings

from ..dict_host import DictHost, Tree
from ..small_nodes import BOUND, cpu_node, gpu_node, machine, pci_gpu, registered, xcp
from .builders import cut_gpu, inventory, soft_gpu

MI355X_VRAM = 309220868096
MODES = {"SPX": 1, "DPX": 2, "QPX": 4, "CPX": 8}
PROFILES = [
    {"ProfileIndex": 0, "Type": "SPX", "MemoryCaps": "NPS1", "NumPartitions": 1, "XCCPerPartition": 8},
    {"ProfileIndex": 1, "Type": "DPX", "MemoryCaps": "NPS1,NPS2", "NumPartitions": 2, "XCCPerPartition": 4},
    {"ProfileIndex": 2, "Type": "QPX", "MemoryCaps": "NPS1", "NumPartitions": 4, "XCCPerPartition": 2},
    {"ProfileIndex": 3, "Type": "CPX", "MemoryCaps": "NPS1", "NumPartitions": 8, "XCCPerPartition": 1},
]


def mi355x(mode: str) -> DictHost:
    """One MI355X with the serial of amd.md 14.8, BMC on card0."""
    count = MODES[mode]
    parts: list[Tree] = [
        cpu_node(0),
        pci_gpu(
            "0000:75:00.0",
            1,
            128,
            mem_info_vram_total=MI355X_VRAM,
            unique_id="08da82c12ef81b5d",
            numa_node=3,
            current_compute_partition=mode,
            current_memory_partition="NPS1",
            available_compute_partition="SPX, DPX, QPX, CPX",
        ),
    ]
    parts += [xcp(f"amdgpu_xcp_{p - 1}", 1 + p, 128 + p) for p in range(1, 8)]
    parts += [
        gpu_node(
            1 + p,
            128 + p,
            0x7500 | p,
            256 // count,
            num_xcc=8 // count,
            device_id=0x75A3,
            gfx_target_version=90500,
            unique_id=637966063454657373,
        )
        for p in range(count)
    ]
    return machine(*parts)


def test_cu_mode_annotation_byte_for_byte() -> None:
    text = annotation(discover(mi355x("SPX"), Settings()), Settings())
    profiles = json.dumps(PROFILES, separators=(",", ":"))
    assert text == (
        '[{"id":"08ff75a3-0000-1000-80da-82c12ef81b5d","index":1,"count":10,"devmem":294896,"devcore":256,'
        '"type":"AMD Instinct MI355X","numa":3,"health":true,"devicevendor":"amd",'
        f'"custominfo":{{"computeQueues":24,"cuPerWGP":1,"partitionProfiles":{profiles},"pciBDF":"0000:75:00.0"}}}}]'
    )


def test_the_documented_example_of_an_mi300x_vf() -> None:
    """The VF of amd.md 3.1: card0, numa 0 and the mode are left out as zero values."""
    host = machine(
        pci_gpu("0000:83:00.0", 0, 128, unique_id="8e1bb56457addd1b", mem_info_vram_total=196288 << 20),
        gpu_node(1, 128, 0x8300, 304, device_id=0x74B5),
    )
    assert annotation(discover(host, Settings()), Settings()) == (
        '[{"id":"8eff74b5-0000-1000-801b-b56457addd1b","count":10,"devmem":196288,"devcore":304,'
        '"type":"AMD Instinct MI300X VF","health":true,"devicevendor":"amd",'
        '"custominfo":{"computeQueues":24,"cuPerWGP":1,"pciBDF":"0000:83:00.0"}}]'
    )


@pytest.mark.parametrize(
    ("mode", "memory", "cus"),
    [("SPX", 294896, 256), ("DPX", 147456, 128), ("QPX", 73728, 64), ("CPX", 36864, 32)],
)
def test_partition_mode_numbers_of_the_guides_table(mode: str, memory: int, cus: int) -> None:
    entries = registered(mi355x(mode), mode="partition")
    assert len(entries) == MODES[mode]
    assert {(e["devmem"], e["devcore"], e["mode"], e["count"]) for e in entries} == {
        (memory, cus, mode.lower(), 1)
    }
    assert len({e["id"] for e in entries}) == len(entries)


def test_a_partition_carries_its_profile_and_its_parents_address() -> None:
    for number, entry in enumerate(registered(mi355x("QPX"), mode="partition")):
        assert entry["id"] == f"08{number:02x}75a3-0000-1000-80da-82c12ef81b5d"
        assert entry["index"] == 1 + number
        assert entry["numa"] == 3
        assert entry["custominfo"] == {
            "computeQueues": 24,
            "cuPerWGP": 1,
            "partitionProfile": "qpx_nps1",
            "pciBDF": "0000:75:00.0",
        }


def test_a_whole_gpu_keeps_its_id_in_every_mode_and_carries_all_profiles() -> None:
    (soft,) = registered(mi355x("QPX"))
    (hard,) = registered(mi355x("SPX"), mode="partition")
    assert soft["id"] == hard["id"] == "08ff75a3-0000-1000-80da-82c12ef81b5d"
    assert "#" not in hard["id"]
    assert soft["custominfo"]["partitionProfiles"] == hard["custominfo"]["partitionProfiles"] == PROFILES
    assert (hard["mode"], hard["count"]) == ("spx", 1)
    assert "mode" not in soft


def test_cu_mode_on_a_partitioned_gpu_is_one_device_with_all_compute_units() -> None:
    (entry,) = registered(mi355x("CPX"))
    assert (entry["devcore"], entry["devmem"], entry["count"]) == (256, 294896, 10)


def test_entries_are_sorted_by_key_as_text() -> None:
    keys = [entry["index"] for entry in registered(mi355x("CPX"), mode="partition")]
    assert keys == [1, 2, 3, 4, 5, 6, 7, 8]
    host = machine(
        *(pci_gpu(f"0000:{bus:02x}:00.0", i, 128 + i) for i, bus in enumerate((0x75, 0x05, 0x65))),
        *(gpu_node(1 + i, 128 + i, bus << 8, 304) for i, bus in enumerate((0x75, 0x05, 0x65))),
    )
    assert [e["custominfo"]["pciBDF"] for e in registered(host)] == [
        "0000:05:00.0",
        "0000:65:00.0",
        "0000:75:00.0",
    ]


def test_b24_a_vf_in_partition_mode_stays_soft_without_mode_or_profiles() -> None:
    host = mi355x("SPX")
    del host.tree[f"{BOUND}/0000:75:00.0/available_compute_partition"]
    (entry,) = registered(host, mode="partition")
    assert (entry["count"], entry.get("mode")) == (10, None)


@pytest.mark.parametrize(
    ("gfx", "split", "unit"), [(120001, 2, 2), (120000, 2, 2), (100306, 10, 2), (90402, 10, 1), (None, 10, 1)]
)
def test_gfx_version_decides_default_split_and_work_group_unit(
    gfx: int | None, split: int, unit: int
) -> None:
    host = machine(pci_gpu("0000:08:00.0", 1, 128), gpu_node(1, 128, 0x800, 64, gfx_target_version=gfx))
    (entry,) = registered(host)
    assert (entry["count"], entry["custominfo"]["cuPerWGP"]) == (split, unit)
    assert registered(host, split_count=4)[0]["count"] == 4


@pytest.mark.parametrize(("queues", "shown"), [(4, 4), (0, None), (None, None)])
def test_custominfo_compute_queues_only_when_there_are_any(queues: int | None, shown: int | None) -> None:
    host = machine(pci_gpu("0000:08:00.0", 1, 128), gpu_node(1, 128, 0x800, 64, num_cp_queues=queues))
    assert registered(host)[0]["custominfo"].get("computeQueues") == shown


def test_numa_minus_1_stays_in_the_annotation_and_zero_is_left_out() -> None:
    host = machine(pci_gpu("0000:08:00.0", 1, 128, numa_node=-1), gpu_node(1, 128, 0x800, 64))
    assert registered(host)[0]["numa"] == -1
    host.tree[f"{BOUND}/0000:08:00.0/numa_node"] = "0\n"
    assert "numa" not in registered(host)[0]


def test_xgmi_peers_are_the_other_gpus_of_the_hive() -> None:
    from .test_links import mi210

    entries = registered(mi210(set(range(2, 10))))
    assert all(e["custominfo"]["xgmiPeers"] == sorted(e["custominfo"]["xgmiPeers"]) for e in entries)
    assert entries[0]["custominfo"]["xgmiPeers"] == ["0000:13:00.0", "0000:14:00.0", "0000:15:00.0"]


def test_nothing_found_writes_an_empty_array_which_clears_a_stale_registration() -> None:
    inventory = discover(DictHost({}), Settings())
    assert node_patch(inventory, Settings()).annotations == {ANNOTATION: "[]"}


def test_tpx_of_an_mi300a_is_three_partitions() -> None:
    """A mode that the old profile table did not know counted as one partition; here KFD counts."""
    host = machine(
        pci_gpu(
            "0000:02:00.0",
            0,
            128,
            mem_info_vram_total=128 << 30,
            current_compute_partition="TPX",
            current_memory_partition="NPS1",
            available_compute_partition="SPX, TPX, CPX",
        ),
        *(xcp(f"amdgpu_xcp_{p - 1}", p, 128 + p) for p in (1, 2)),
        *(gpu_node(1 + p, 128 + p, 0x200 | p, 76, num_xcc=2, device_id=0x74A0) for p in range(3)),
    )
    entries = registered(host, mode="partition")
    assert {(e["mode"], e["devcore"], e["devmem"]) for e in entries} == {("tpx", 76, (128 << 10) // 3)}


# ------------------------------------------------------------------ node capacity


def test_capacity_is_memory_and_cus_of_healthy_gpus_as_registered() -> None:
    of = inventory(
        soft_gpu("a", cus=64, mib=16304),
        soft_gpu("b", cus=32, mib=8192, render=129),
        replace(soft_gpu("sick", cus=128, mib=32768, render=130), healthy=False),
    )
    on = Settings(report_capacity=True)
    assert node_patch(of, on).capacity == {"amd.com/gpumem": 16304 + 8192, "amd.com/gpucores": 96}
    assert node_patch(of, replace(on, memory_scaling=1.5)).capacity["amd.com/gpumem"] == 24456 + 12288


def test_capacity_of_partitions_is_theirs() -> None:
    of = inventory(cut_gpu("g", compute="qpx", ways=4, cus=64))
    settings = Settings(report_capacity=True, mode="partition")
    assert node_patch(of, settings).capacity == {"amd.com/gpumem": 4 * 73728, "amd.com/gpucores": 256}


def test_without_a_gpu_reported_capacity_is_nothing_and_switched_off_it_is_removed() -> None:
    assert node_patch(Inventory(), Settings(report_capacity=True)).capacity == {
        "amd.com/gpumem": 0,
        "amd.com/gpucores": 0,
    }
    assert node_patch(inventory(soft_gpu("a")), Settings()).capacity == {
        "amd.com/gpumem": None,
        "amd.com/gpucores": None,
    }
