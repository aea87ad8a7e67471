"""What is found and what is left out: amd.md 14.1 and 14.8, the discovery cases of cases.md."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from devplugin.amd.discovery import discover
from devplugin.amd.settings import Settings

from ..dict_host import DictHost, Link, Tree, device_node, directory
from ..small_nodes import (
    BOUND,
    NODES,
    cpu_node,
    found,
    gpu_node,
    lines,
    machine,
    offered,
    pci_gpu,
    pci_link,
    reasons,
    registered,
    xcp,
)

MI355X_VRAM = 309220868096
TYPED = {
    "current_compute_partition": "CPX",
    "current_memory_partition": "NPS1",
    "available_compute_partition": "SPX, DPX, QPX, CPX",
}


def partitioned(
    mode: str, count: int, *, spell: str = "amdgpu_xcp_{}", listed: int | None = None
) -> list[Tree]:
    """One MI300X at 05:00.0 in a mode of `count` partitions, of which KFD lists `listed`."""
    files = TYPED | {"current_compute_partition": mode}
    parts = [cpu_node(0), pci_gpu("0000:05:00.0", 1, 128, unique_id="e3a9f1b2c4d50617", **files)]
    parts += [xcp(spell.format(p - 1), 1 + p, 128 + p) for p in range(1, 8)]
    parts += [
        gpu_node(1 + p, 128 + p, 0x500 | p, 304 // count, num_xcc=8 // count, unique_id=0xE3A9F1B2C4D50617)
        for p in range(count if listed is None else listed)
    ]
    return parts


# ---------------------------------------------------------------- partitions


@pytest.mark.parametrize("spell", ["amdgpu_xcp.{}", "amdgpu_xcp_{}"])
def test_b01_partitions_are_found_under_both_spellings_and_keep_the_kernels_name(spell: str) -> None:
    host = machine(*partitioned("CPX", 8, spell=spell))
    ids = offered(host, mode="partition")["amd.com/gpu"]
    assert ids == ["0000:05:00.0#cpx", *(f"{spell.format(n)}#cpx" for n in range(7))]


def test_b02_partition_devices_without_kfd_node_are_no_partitions() -> None:
    """Four MI300A in SPX have 28 XCP devices; KFD names minors 128, 136, 144, 152."""
    parts = [cpu_node(0)]
    for g in range(4):
        parts.append(
            pci_gpu(f"000{g}:02:00.0", 8 * g, 128 + 8 * g, **TYPED | {"current_compute_partition": "SPX"})
        )
        parts += [xcp(f"amdgpu_xcp.{7 * g + p - 1}", 8 * g + p, 128 + 8 * g + p) for p in range(1, 8)]
        parts.append(gpu_node(4 + g, 128 + 8 * g, 512, 228, domain=g, num_xcc=6, device_id=0x74A0))
    inventory = found(machine(*parts))
    assert [gpu.bdf for gpu in inventory.gpus] == [f"000{g}:02:00.0" for g in range(4)]
    assert all(gpu.whole for gpu in inventory.gpus)
    assert inventory.skipped == ()


def test_b03_the_missing_last_partition_is_told_and_not_invented() -> None:
    inventory = found(machine(*partitioned("CPX", 8, listed=7)), mode="partition")
    (gpu,) = inventory.gpus
    assert [p.number for p in gpu.partitions] == list(range(7))
    assert reasons(inventory) == {"0000:05:00.0/7": f"no KFD node for partition 7 of cpx: {NODES}"}
    assert len(registered(machine(*partitioned("CPX", 8, listed=7)), mode="partition")) == 7


def test_b08_both_partitions_of_dpx_are_listed_with_the_same_parent() -> None:
    host = machine(
        pci_gpu("0000:07:00.0", 1, 128, **TYPED | {"current_compute_partition": "DPX"}),
        xcp("amdgpu_xcp_0", 2, 129),
        gpu_node(2, 128, 0x700, 152, num_xcc=4, bank=103070826496),
        gpu_node(3, 129, 0x701, 152, num_xcc=4, bank=103070826496),
    )
    entries = registered(host, mode="partition")
    assert [(e["devcore"], e["devmem"], e["mode"], e["custominfo"]["pciBDF"]) for e in entries] == [
        (152, 98304, "dpx", "0000:07:00.0")
    ] * 2


def test_b11_partitions_that_report_the_whole_bank_still_share_one_gpus_memory() -> None:
    host = machine(
        pci_gpu(
            "0000:75:00.0",
            1,
            128,
            mem_info_vram_total=MI355X_VRAM,
            **TYPED | {"current_compute_partition": "DPX"},
        ),
        xcp("amdgpu_xcp_0", 2, 129),
        *(
            gpu_node(2 + p, 128 + p, 0x7500 | p, 128, num_xcc=4, bank=MI355X_VRAM, device_id=0x75A3)
            for p in (0, 1)
        ),
    )
    assert [e["devmem"] for e in registered(host, mode="partition")] == [147456, 147456]


def test_b25_kfd_with_one_full_node_per_gpu_gives_whole_devices_in_the_files_mode() -> None:
    parts: list[Tree] = [cpu_node(0)]
    for g in range(8):
        parts.append(
            pci_gpu(f"0000:{g:02x}:00.0", 1 + 8 * g, 128 + 8 * g, mem_info_vram_total=MI355X_VRAM, **TYPED)
        )
        parts += [xcp(f"amdgpu_xcp_{7 * g + p - 1}", 1 + 8 * g + p, 128 + 8 * g + p) for p in range(1, 8)]
        parts.append(gpu_node(1 + g, 128 + 8 * g, g << 8, 256, device_id=0x75A3, num_xcc=8))
    host = machine(*parts)
    entries = registered(host, mode="partition")
    assert {(e["mode"], e["devcore"], e["devmem"], e["count"]) for e in entries} == {("cpx", 256, 294896, 1)}
    assert len(entries) == 8
    inventory = found(host)
    assert inventory.skipped == ()
    assert len([w for w in inventory.warnings if "says cpx" in w]) == 1


@pytest.mark.parametrize("listed", [1, 2, 3])
def test_a_live_flip_that_lost_nodes_never_offers_the_whole_gpu_beside_the_rest(listed: int) -> None:
    (gpu,) = (inventory := found(machine(*partitioned("QPX", 4, listed=listed)), mode="partition")).gpus
    assert (gpu.whole, gpu.ways, len(gpu.partitions)) == (False, 4, listed)
    assert list(reasons(inventory)) == [f"0000:05:00.0/{n}" for n in range(listed, 4)]
    assert all(identifier != gpu.id for identifier in gpu.ids)


def test_a_single_node_that_is_not_partition_0_keeps_its_number() -> None:
    tree = machine(*partitioned("QPX", 4)).tree
    for node in (1, 2, 4):
        tree = {path: value for path, value in tree.items() if not path.startswith(f"{NODES}/{node}/")}
    (gpu,) = (inventory := found(DictHost(tree))).gpus
    assert [(p.number, p.key) for p in gpu.partitions] == [(2, "amdgpu_xcp_1")]
    assert list(reasons(inventory)) == ["0000:05:00.0/0", "0000:05:00.0/1", "0000:05:00.0/3"]


@pytest.mark.parametrize("text", ["UNKNOWN", "", "garbage", None])
def test_a_mode_file_without_a_mode_leaves_it_to_kfd(text: str | None) -> None:
    tree = machine(*partitioned("QPX", 4)).tree
    path = f"{BOUND}/0000:05:00.0/current_compute_partition"
    del tree[path]
    if text is not None:
        tree[path] = text
    (gpu,) = (inventory := found(DictHost(tree))).gpus
    assert (gpu.compute, gpu.ways) == ("qpx", 4)
    assert any("names no mode" in warning for warning in inventory.warnings)


def test_kfd_wins_over_a_mode_file_that_names_another_mode() -> None:
    (gpu,) = (inventory := found(machine(*partitioned("CPX", 4)))).gpus
    assert (gpu.compute, gpu.ways, len(gpu.partitions)) == ("qpx", 4, 4)
    assert len(inventory.warnings) == 1


def test_without_a_product_row_the_banks_tell_how_a_gpu_is_cut() -> None:
    host = machine(
        pci_gpu("0000:05:00.0", 1, 128, **TYPED),
        *(xcp(f"amdgpu_xcp_{p}", 2 + p, 129 + p) for p in range(5)),
        *(
            gpu_node(1 + p, 128 + p, 0x500 | p, 38, num_xcc=1, device_id=0x7FFF, bank=206141652992 // 6)
            for p in range(5)
        ),
    )
    (gpu,) = (inventory := found(host)).gpus
    assert (gpu.ways, gpu.compute, gpu.total_xccs) == (6, "cpx", 6)
    assert list(reasons(inventory)) == ["0000:05:00.0/5"]


def test_virtual_functions_of_one_slot_are_gpus_of_their_own() -> None:
    host = machine(
        *(pci_gpu(f"0000:03:02.{f}", 1 + f, 128 + f, mem_info_vram_total=MI355X_VRAM) for f in (0, 1)),
        *(gpu_node(1 + f, 128 + f, 0x310 | f, 256, device_id=0x75B3, unique_id=5 + f) for f in (0, 1)),
    )
    inventory = found(host)
    assert [(g.bdf, g.whole, g.cus) for g in inventory.gpus] == [
        ("0000:03:02.0", True, 256),
        ("0000:03:02.1", True, 256),
    ]


def test_a_gpu_at_a_function_of_its_own_keeps_its_address() -> None:
    host = machine(pci_gpu("0000:03:00.3", 1, 128), gpu_node(1, 128, 0x303, 304))
    (gpu,) = found(host).gpus
    assert (gpu.bdf, gpu.whole, gpu.partitions[0].number) == ("0000:03:00.3", True, 0)


# ---------------------------------------------------------------- minors, cards, device nodes


def test_b05_a_card_without_render_node_borrows_nothing() -> None:
    host = machine(
        pci_gpu("0000:03:00.0", 0, 128),
        pci_gpu("0000:04:00.0", 1, None),
        gpu_node(1, 128, 0x300, 304),
    )
    inventory = found(host)
    assert [gpu.bdf for gpu in inventory.gpus] == ["0000:03:00.0"]
    assert list(reasons(inventory)) == ["0000:04:00.0"]
    assert [(e["devcore"], e["devmem"]) for e in registered(host)] == [(304, 196592)]


def test_b06_a_gpu_node_with_minor_0_gives_no_device_and_a_diagnostic() -> None:
    inventory = found(machine(cpu_node(0), pci_gpu("0000:05:00.0", 1, 128), gpu_node(1, 0, 0x500, 304)))
    assert inventory.gpus == ()
    assert "drm_render_minor is 0" in reasons(inventory)["0000:05:00.0"]


def test_b26_card_and_render_minor_are_two_counters() -> None:
    host = machine(
        *(
            pci_gpu(f"0000:{bus:02x}:00.0", card, render)
            for bus, card, render in ((5, 1, 128), (6, 9, 136), (7, 17, 144))
        ),
        *(
            gpu_node(1 + i, render, bus << 8, 304)
            for i, (bus, render) in enumerate(((5, 128), (6, 136), (7, 144)))
        ),
    )
    assert [(p.card, p.render_minor) for g in found(host).gpus for p in g.partitions] == [
        (1, 128),
        (9, 136),
        (17, 144),
    ]


def test_a_partition_without_card_node_has_no_card_and_never_card_0() -> None:
    tree = machine(*partitioned("DPX", 2)).tree
    del tree["/sys/devices/platform/amdgpu_xcp_0/drm/card2"]
    (gpu,) = found(DictHost(tree)).gpus
    assert [p.card for p in gpu.partitions] == [1, None]


def test_a_card_whose_device_node_is_missing_is_not_handed_out() -> None:
    tree = machine(*partitioned("DPX", 2)).tree
    del tree["/dev/dri/card2"]
    assert [p.card for p in found(DictHost(tree)).gpus[0].partitions] == [1, None]


def test_two_kfd_nodes_with_one_render_minor_are_both_refused() -> None:
    host = machine(*partitioned("DPX", 2))
    host.tree |= gpu_node(2, 128, 0x501, 152, num_xcc=4)
    inventory = found(host)
    assert inventory.gpus == ()
    assert all("named by several KFD nodes" in why for why in reasons(inventory).values())


@pytest.mark.parametrize(
    ("path", "lost"),
    [
        ("/dev/dri/renderD128", ["0000:05:00.0/0"]),
        ("/dev/dri/renderD130", ["0000:05:00.0/2"]),
        ("/sys/devices/platform/amdgpu_xcp_1/drm/renderD130", ["0000:05:00.0/2"]),
        ("/dev/kfd", [f"0000:05:00.0/{n}" for n in range(4)]),
        (f"{BOUND}/0000:05:00.0/mem_info_vram_total", [f"0000:05:00.0/{n}" for n in range(4)]),
        (f"{NODES}/3/properties", ["0000:05:00.0/2"]),
    ],
)
def test_whatever_is_missing_only_its_devices_go_and_the_reason_names_the_path(
    path: str, lost: list[str]
) -> None:
    tree = machine(*partitioned("QPX", 4)).tree
    del tree[path]
    inventory = found(DictHost(tree))
    why = reasons(inventory)
    assert list(why) == lost
    assert all(path.replace("amdgpu_xcp_1", "amdgpu_xcp*") in text for text in why.values())
    assert sum(len(g.partitions) for g in inventory.gpus) == 4 - len(lost)


def test_kfd_and_render_nodes_are_never_opened() -> None:
    host = machine(*partitioned("CPX", 8))
    found(host)
    assert {verb for verb, path in host.asked if path.startswith("/dev/kfd")} == {"stat"}
    assert not any(verb == "probe" for verb, _ in host.asked)


def test_no_file_is_read_twice() -> None:
    host = machine(*partitioned("CPX", 8))
    found(host)
    assert len(host.asked) == len(set(host.asked))


# ---------------------------------------------------------------- identity


def test_b14a_two_gpus_with_unique_id_0_have_different_ids() -> None:
    host = machine(
        *(pci_gpu(f"0000:{bus:02x}:00.0", bus, 128 + bus, mem_info_vram_total=17163091968) for bus in (3, 4)),
        *(gpu_node(bus, 128 + bus, bus << 8, 80, unique_id=0, device_id=0x73BF, num_xcc=1) for bus in (3, 4)),
    )
    inventory = found(host, node_name="n1")
    assert [gpu.id for gpu in inventory.gpus] == ["AMD-n1-0000-03-00-0", "AMD-n1-0000-04-00-0"]
    assert [gpu.partitions[0].rocr_name for gpu in inventory.gpus] == [None, None]


def test_b14b_partitions_that_share_a_unique_id_have_ids_of_their_own_and_no_rocr_name() -> None:
    (gpu,) = found(machine(*partitioned("CPX", 8))).gpus
    assert len(set(gpu.ids)) == 8
    assert {p.rocr_name for p in gpu.partitions} == {None}
    assert gpu.ids[3] == "e30374a1-0000-1000-80a9-f1b2c4d50617"


def test_partitions_with_a_unique_id_each_keep_the_same_ids_and_get_rocr_names() -> None:
    shared = found(machine(*partitioned("QPX", 4))).gpus[0]
    host = machine(*partitioned("QPX", 4))
    for p in range(4):
        host.tree |= gpu_node(1 + p, 128 + p, 0x500 | p, 76, num_xcc=2, unique_id=0xABC0 + p)
    (gpu,) = found(host).gpus
    assert gpu.ids == shared.ids
    assert [p.rocr_name for p in gpu.partitions] == [f"GPU-{0xABC0 + p:016x}" for p in range(4)]


def test_unique_id_0_of_the_kfd_node_leaves_only_the_rocr_name_empty() -> None:
    """amd.md 14.8: the GPU is registered all the same."""
    host = machine(
        pci_gpu("0000:75:00.0", 1, 128, unique_id="08da82c12ef81b5d", mem_info_vram_total=MI355X_VRAM),
        gpu_node(8, 128, 0x7500, 256, device_id=0x75A3, unique_id=0),
    )
    (gpu,) = found(host).gpus
    assert gpu.id == "08ff75a3-0000-1000-80da-82c12ef81b5d"
    assert gpu.partitions[0].rocr_name is None


def test_two_gpus_with_one_serial_are_both_refused_and_never_merged() -> None:
    host = machine(
        *(pci_gpu(f"0000:{bus:02x}:00.0", bus, 128 + bus, unique_id="00000000000000aa") for bus in (3, 4, 5)),
        *(gpu_node(bus, 128 + bus, bus << 8, 304, unique_id=0xAA) for bus in (3, 4)),
        gpu_node(5, 133, 0x500, 304, unique_id=0xAA, device_id=0x74A5),
    )
    inventory = found(host)
    assert [gpu.bdf for gpu in inventory.gpus] == ["0000:05:00.0"]
    why = reasons(inventory)
    assert why["0000:03:00.0"] == "id 00ff74a1-0000-1000-8000-0000000000aa is also that of 0000:04:00.0"
    assert list(why) == ["0000:03:00.0", "0000:04:00.0"]


def test_a_gpu_in_reset_keeps_its_id_from_the_last_pass() -> None:
    """unique_id answers EPERM in reset (kernel.md 3): a new id would lose track of its pods."""
    host = machine(*partitioned("SPX", 1))
    before = discover(host, Settings())
    host.tree[f"{BOUND}/0000:05:00.0/unique_id"] = errno.EPERM
    assert discover(host, Settings(), before).gpus == before.gpus
    fresh = discover(host, Settings())
    assert fresh.gpus == ()
    assert "unique_id: EPERM" in reasons(fresh)["0000:05:00.0"]


def test_without_the_pci_file_kfds_serial_stands_in_only_where_it_is_the_gpus_own() -> None:
    with_file = found(machine(*partitioned("QPX", 4))).gpus[0].id
    shared = machine(*partitioned("QPX", 4))
    del shared.tree[f"{BOUND}/0000:05:00.0/unique_id"]
    assert found(shared).gpus[0].id == with_file
    apart = machine(*partitioned("QPX", 4))
    del apart.tree[f"{BOUND}/0000:05:00.0/unique_id"]
    for p in range(4):
        apart.tree |= gpu_node(1 + p, 128 + p, 0x500 | p, 76, num_xcc=2, unique_id=0xABC0 + p)
    inventory = found(apart)
    assert inventory.gpus == ()
    assert all("unique_id: ENOENT" in why for why in reasons(inventory).values())
    assert len(inventory.skipped) == 4


def test_b39_no_id_of_a_gpu_without_serial_is_equal_across_nodes() -> None:
    host = machine(pci_gpu("0000:03:00.0", 0, 128), gpu_node(1, 128, 0x300, 64, unique_id=0))
    ids = {found(host, node_name=name).gpus[0].id for name in ("a", "b", "c")}
    assert len(ids) == 3


# ---------------------------------------------------------------- NUMA, memory, names


@pytest.mark.parametrize("text", ["-2", "zero", "", "999999", errno.EACCES, None])
def test_a_numa_node_that_is_not_told_keeps_the_gpu_with_minus_1_and_a_warning(text: Any) -> None:
    host = machine(pci_gpu("0000:05:00.0", 1, 128), gpu_node(1, 128, 0x500, 304))
    path = f"{BOUND}/0000:05:00.0/numa_node"
    if text is None:
        del host.tree[path]
    else:
        host.tree[path] = text
    (gpu,) = (inventory := found(host)).gpus
    assert gpu.numa == -1
    assert any("numa_node" in warning for warning in inventory.warnings)


def test_numa_minus_1_from_the_kernel_is_kept_without_a_warning() -> None:
    host = machine(pci_gpu("0000:05:00.0", 1, 128, numa_node=-1), gpu_node(1, 128, 0x500, 304))
    (gpu,) = (inventory := found(host)).gpus
    assert gpu.numa == -1
    assert inventory.warnings == ()


def test_b13_an_apu_registers_its_vram_and_says_what_is_not_counted() -> None:
    host = machine(
        pci_gpu(
            "0000:c1:00.0",
            1,
            128,
            mem_info_vram_total=536870912,
            mem_info_gtt_total=16441004032,
            numa_node=-1,
        ),
        gpu_node(1, 128, 0xC100, 12, gfx_target_version=110500, device_id=0x150E, unique_id=0, num_xcc=1)
        | {f"{NODES}/1/mem_banks/0/properties": lines({"size_in_bytes": 16441004032})},
    )
    inventory = found(host)
    assert [e["devmem"] for e in registered(host)] == [512]
    assert "mem_info_vram_total, 512 MiB; mem_info_gtt_total, 15679 MiB" in inventory.warnings[0]


@pytest.mark.parametrize("text", ["0", "1048575", "-1", "abc", "", "9" * 25, str((2**31) << 20)])
def test_a_vram_size_that_cannot_be_is_refused(text: str) -> None:
    inventory = found(
        machine(pci_gpu("0000:05:00.0", 1, 128, mem_info_vram_total=text), gpu_node(1, 128, 0x500, 304))
    )
    assert inventory.gpus == ()
    assert "mem_info_vram_total" in reasons(inventory)["0000:05:00.0"]


@pytest.mark.parametrize(("mib", "cus", "good"), [(16384, 0, False), (16384, 32, True)])
def test_capacity_needs_compute_units(mib: int, cus: int, good: bool) -> None:
    host = machine(
        pci_gpu("0000:05:00.0", 1, 128, mem_info_vram_total=mib << 20), gpu_node(1, 128, 0x500, cus)
    )
    inventory = found(host)
    assert [(g.vram_bytes >> 20, g.cus) for g in inventory.gpus] == ([(mib, cus)] if good else [])
    assert bool(inventory.skipped) is not good


@pytest.mark.parametrize(
    ("device", "name", "market"),
    [
        (0x75A3, "anything", "AMD Instinct MI355X"),
        (0x7FFF, "AMD Some; Card: 7, OAM", "AMD Some Card 7 OAM"),
        (0x7FFF, "", "amd-gpu"),
        (0x7FFF, None, "amd-gpu"),
        (0x7FFF, "\0\0", "amd-gpu"),
    ],
)
def test_the_type_is_the_market_name_else_product_name_else_amd_gpu(
    device: int, name: str | None, market: str
) -> None:
    host = machine(
        pci_gpu("0000:05:00.0", 1, 128, product_name=name), gpu_node(1, 128, 0x500, 304, device_id=device)
    )
    assert found(host).gpus[0].market_name == market


# ---------------------------------------------------------------- partition types


def test_b24_no_mode_file_no_mode_and_a_vf_is_not_partitionable() -> None:
    host = machine(
        pci_gpu("0000:05:00.0", 1, 128),
        pci_gpu("0000:06:00.0", 2, 129, current_compute_partition="SPX", current_memory_partition="NPS1"),
        gpu_node(1, 128, 0x500, 104, gfx_target_version=90010, device_id=0x740F, num_xcc=1),
        gpu_node(2, 129, 0x600, 304, device_id=0x74B5),
    )
    plain, vf = found(host).gpus
    assert (plain.compute, plain.partition_type, plain.partitionable) == ("", "", False)
    assert (vf.compute, vf.partition_type, vf.partitionable) == ("spx", "", False)
    for naming in ("single", "mixed"):
        assert list(offered(host, naming=naming)) == ["amd.com/gpu"]


@pytest.mark.parametrize(
    ("text", "word", "warned"),
    [
        (None, "", False),
        ("NPS1\n", "nps1", False),
        (directory(), "", True),
        (errno.EPERM, "", True),
        ("UNKNOWN", "", False),
    ],
)
def test_partition_file_missing_is_silent_unreadable_is_not(text: Any, word: str, warned: bool) -> None:
    host = machine(pci_gpu("0000:05:00.0", 1, 128), gpu_node(1, 128, 0x500, 304))
    if text is not None:
        host.tree[f"{BOUND}/0000:05:00.0/current_memory_partition"] = text
    inventory = found(host)
    assert inventory.gpus[0].memory == word
    assert bool(inventory.warnings) is warned


# ---------------------------------------------------------------- whole trees


def test_discovery_state_reset_no_gpu_leaks_into_the_next() -> None:
    """amd.md 14.1: 03 whole, 83 without render node, c3 not in KFD, xcp_1 without drm, xcp_2 in KFD."""
    host = machine(
        pci_gpu("0000:03:00.0", 0, 128, **TYPED | {"current_compute_partition": "DPX"}),
        {f"{BOUND}/0000:03:00.0/drm/ttm": directory()},
        pci_gpu("0000:83:00.0", 1, None),
        pci_gpu("0000:c3:00.0", 2, 130),
        {"/sys/devices/platform/amdgpu_xcp_1/uevent": ""},
        xcp("amdgpu_xcp_2", None, 129),
        gpu_node(1, 128, 0x300, 152, num_xcc=4),
        gpu_node(2, 129, 0x301, 152, num_xcc=4),
    )
    inventory = found(host)
    (gpu,) = inventory.gpus
    assert [(p.key, p.node, p.render_minor, p.card) for p in gpu.partitions] == [
        ("0000:03:00.0", 1, 128, 0),
        ("amdgpu_xcp_2", 2, 129, None),
    ]
    assert list(reasons(inventory)) == ["0000:83:00.0", "0000:c3:00.0"]


def test_b17_without_the_driver_there_is_nothing_and_it_appears_later_by_itself() -> None:
    host = DictHost({})
    empty = discover(host, Settings())
    assert (empty.gpus, empty.skipped, registered(host), offered(host)) == ((), (), [], {})
    host.tree |= machine(*partitioned("SPX", 1)).tree
    assert len(discover(host, Settings(), empty).gpus) == 1


def test_gpus_of_other_drivers_and_unbound_ones_are_told() -> None:
    host = machine(
        pci_link("0000:01:00.0", "vfio-pci", vendor="0x1002", **{"class": "0x120000"}),
        pci_link("0000:02:00.0", None, vendor="0x1002", **{"class": "0x030000"}),
        pci_link("0000:03:00.0", "radeon", vendor="0x1002", **{"class": "0x030000"}),
        pci_link("0000:04:00.1", "snd_hda_intel", vendor="0x1002", **{"class": "0x040300"}),
        pci_link("0000:05:00.0", "nvidia", vendor="0x10de", **{"class": "0x030200"}),
        cpu_node(0),
    )
    why = reasons(found(host))
    assert list(why) == ["0000:01:00.0", "0000:02:00.0", "0000:03:00.0"]
    assert why["0000:01:00.0"].startswith("bound to vfio-pci")
    assert why["0000:02:00.0"].startswith("no driver is bound: /sys/bus/pci/devices/0000:02:00.0/driver")
    assert why["0000:03:00.0"].startswith("bound to radeon")


def test_a_kfd_node_without_pci_directory_is_told_by_its_address() -> None:
    inventory = found(machine(cpu_node(0), pci_gpu("0000:99:00.0", 9, 200), gpu_node(1, 128, 0x500, 304)))
    assert reasons(inventory)["0000:05:00.0"] == f"{BOUND}/0000:05:00.0: ENOENT"


def test_foreign_nodes_the_device_cgroup_hides_are_told_and_the_own_one_is_offered() -> None:
    """kernel.md 1.8: a container sees every directory and may read the nodes of its own devices only."""
    host = machine(*partitioned("QPX", 4))
    for node in (1, 2, 4):
        host.tree[f"{NODES}/{node}/properties"] = errno.EPERM
        host.tree[f"{NODES}/{node}/gpu_id"] = errno.EPERM
    inventory = found(host)
    assert [p.number for g in inventory.gpus for p in g.partitions] == [2]
    assert all(f"{NODES}/1/properties: EPERM and 2 more" in why for why in reasons(inventory).values())


def test_a_stale_platform_device_without_drm_does_no_harm() -> None:
    host = machine(*partitioned("DPX", 2), {"/sys/devices/platform/amdgpu_xcp.0/uevent": ""})
    assert len(found(host).gpus[0].partitions) == 2


def test_a_pci_directory_behind_links_is_followed() -> None:
    host = machine(*partitioned("SPX", 1))
    moved = {
        p.replace(f"{BOUND}/0000:05:00.0", "/sys/devices/pci0000:00/0000:05:00.0"): v
        for p, v in host.tree.items()
    }
    moved[f"{BOUND}/0000:05:00.0"] = Link("../../../../devices/pci0000:00/0000:05:00.0")
    assert found(DictHost(moved)) == found(host)


def test_order_is_kfds_and_skipped_is_sorted() -> None:
    host = machine(
        *(pci_gpu(f"0000:{bus:02x}:00.0", i, 128 + i) for i, bus in enumerate((0x75, 0x05, 0x65))),
        *(gpu_node(1 + i, 128 + i, bus << 8, 304) for i, bus in enumerate((0x75, 0x05, 0x65))),
    )
    assert [g.bdf for g in found(host).gpus] == ["0000:75:00.0", "0000:05:00.0", "0000:65:00.0"]
    del host.tree["/dev/kfd"]
    assert list(reasons(found(host))) == ["0000:05:00.0", "0000:65:00.0", "0000:75:00.0"]


def test_dmem_regions_are_read_only_where_dmem_can_be_used() -> None:
    host = machine(*partitioned("SPX", 1))
    host.tree |= {
        "/sys/fs/cgroup/cgroup.controllers": "cpu memory dmem\n",
        "/sys/fs/cgroup/dmem.capacity": "drm/0000:05:00.0/vram 206141652992\n",
    }
    assert found(host).dmem_regions == ()
    host.tree["/sys/fs/cgroup/kubepods.slice"] = directory()
    assert found(host).dmem_regions == ("drm/0000:05:00.0/vram",)


def test_a_device_node_that_is_a_directory_is_no_device() -> None:
    host = machine(*partitioned("SPX", 1))
    host.tree["/dev/dri/renderD128"] = directory()
    assert "no device node" in reasons(found(host))["0000:05:00.0"]
    host.tree["/dev/dri/renderD128"] = device_node()
    assert found(host).skipped == ()


AVAILABLE = f"{BOUND}/0000:05:00.0/available_compute_partition"


@pytest.mark.parametrize(
    ("put", "why"),
    [(directory(), "EISDIR"), (Link(AVAILABLE), "ELOOP")],
    ids=["directory", "loop"],
)
def test_a_gpu_of_which_nobody_can_tell_whether_it_can_be_partitioned_is_skipped(put: Any, why: str) -> None:
    host = machine(*partitioned("CPX", 8))
    real = next(path for path in host.tree if path.endswith("/available_compute_partition"))
    host.tree[real] = put if put == directory() else Link(real)
    inventory = found(host, mode="partition")
    assert inventory.gpus == ()
    assert len(inventory.skipped) == 8
    assert {skipped.reason for skipped in inventory.skipped} == {f"{AVAILABLE}: {why}"}


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
def test_only_a_file_that_is_not_there_makes_a_partitioned_gpu_soft(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = machine(*partitioned("CPX", 8))
    real = host.stat

    def stat(path: str, *, follow: bool = True) -> Any:
        if path.endswith("/available_compute_partition"):
            raise OSError(number, "told", path)
        return real(path, follow=follow)

    monkeypatch.setattr(host, "stat", stat)
    inventory = found(host, mode="partition")
    assert inventory.gpus == ()
    assert {s.reason for s in inventory.skipped} == {f"{AVAILABLE}: {errno.errorcode[number]}"}
    number = errno.ENOENT
    (gpu,) = found(host, mode="partition").gpus
    assert not gpu.partitionable
