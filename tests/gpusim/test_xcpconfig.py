"""compute_partition_config/ tells what each mode would give, and switches nothing (kernel.md 2.5)."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusim.amd.products import PRODUCTS
from gpusim.amd.xcpconfig import resources, share
from gpusim.machine import Machine
from gpusim.testing.machines import node

BDF = "0000:75:00.0"
PCI = f"/sys/bus/pci/devices/{BDF}"
CONFIG = f"{PCI}/compute_partition_config"
AMD_SMI = {"XCC": "xcc", "DECODER": "dec", "DMA": "dma", "JPEG": "jpeg"}


def one(product: str = "MI355X", kernel: str = "6.15", driver: str = "in-tree", **gpu: Any) -> Machine:
    return Machine(node(product, 1, kernel=kernel, driver=driver, gpu=gpu))


def text(machine: Machine, name: str) -> str:
    return machine.read(f"{CONFIG}/{name}").decode().strip()


def shares(machine: Machine) -> dict[str, tuple[int, int]]:
    return {
        kind: (int(text(machine, f"{kind}/num_inst")), int(text(machine, f"{kind}/num_shared")))
        for kind in ("xcc", "dma", "dec", "jpeg")
    }


def select(machine: Machine, data: bytes) -> None:
    machine.write(f"{CONFIG}/xcp_config", data)


@pytest.mark.snapshots
def test_shares_and_memory_modes_of_an_mi355x_are_those_amd_smi_recorded(snapshots: Path) -> None:
    path = snapshots / "mi355x-8gpu-spx-6.8/amd-smi/amdsmi-partition-g0-mi355x.json"
    rows = json.loads(path.read_text())["partition_profiles"]
    machine = one(kernel="6.8.0-136-generic", driver="dkms-6.14.14")
    compared, mode = 0, ""
    for row in rows:
        if row["accelerator_type"]:
            mode = row["accelerator_type"].rstrip("*")
            select(machine, mode.encode())
            assert text(machine, "supported_nps_configs").replace(" ", "") == row["memory_partition_caps"]
        wanted = (row["resource_instances"], row["resources_shared"])
        assert shares(machine)[AMD_SMI[row["resource_type"]]] == wanted, (mode, row["resource_type"])
        compared += 1
    assert compared == 16


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        # mi300x-partition-profiles; CPX: kernel.md 2.5.
        ("SPX", {"xcc": (8, 1), "dma": (16, 1), "dec": (4, 1), "jpeg": (32, 1)}),
        ("DPX", {"xcc": (4, 1), "dma": (8, 1), "dec": (2, 1), "jpeg": (16, 1)}),
        ("CPX", {"xcc": (1, 1), "dma": (2, 1), "dec": (1, 2), "jpeg": (8, 2)}),
    ],
)
def test_shares_of_an_mi300x(mode: str, expected: dict[str, tuple[int, int]]) -> None:
    machine = one("MI300X")
    select(machine, mode.encode())
    assert shares(machine) == expected


def test_selecting_switches_nothing() -> None:
    machine = one()
    select(machine, b"cpx and more\n")
    assert text(machine, "xcp_config") == "CPX"
    assert machine.read(f"{PCI}/current_compute_partition") == b"SPX\n"
    assert len(machine.list("/sys/class/kfd/kfd/topology/nodes")) == 8 + 1


def test_the_selection_starts_as_the_mode_the_driver_loaded_in_and_stays_over_a_switch() -> None:
    machine = one(mode="QPX")
    assert text(machine, "xcp_config") == "QPX"
    machine.switch(BDF, "DPX")
    assert text(machine, "xcp_config") == "QPX"


@pytest.mark.parametrize("data", [b"TPX", b" SPX", b"CP", b"\n", b"NPS1"])
def test_a_mode_the_silicon_has_not_is_einval(data: bytes) -> None:
    machine = one()
    with pytest.raises(OSError) as refused:
        select(machine, data)
    assert refused.value.errno == errno.EINVAL
    assert text(machine, "xcp_config") == "SPX"


def test_every_mode_of_the_silicon_is_listed_whatever_the_memory_mode() -> None:
    assert text(one("MI300X", mode="CPX", nps=4), "supported_xcp_configs") == "SPX, DPX, QPX, CPX"
    assert text(one("MI300A"), "supported_xcp_configs") == "SPX, TPX, CPX"
    assert text(one("MI308X"), "supported_xcp_configs") == "SPX, DPX, CPX"


def test_memory_modes_are_those_that_go_with_the_selected_mode() -> None:
    machine = one()
    found = {}
    for mode in ("SPX", "DPX", "QPX", "CPX"):
        select(machine, mode.encode())
        found[mode] = text(machine, "supported_nps_configs")
    assert found == {"SPX": "NPS1", "DPX": "NPS1, NPS2", "QPX": "NPS1", "CPX": "NPS1"}


def test_no_list_of_memory_modes_where_the_driver_knows_none() -> None:
    # kernel.md 2.4: in-tree 6.14 has no list for GC 9.5.0; APUs and guests never.
    for machine in (one(kernel="6.14"), one("MI300A"), one("MI350X-VF", "7.0")):
        assert "supported_nps_configs" not in machine.list(CONFIG)


def test_modes_are_0400_0444_and_0644() -> None:
    machine = one()

    def mode(name: str) -> int:
        return machine.stat(f"{CONFIG}/{name}").mode

    assert mode("xcp_config") == 0o644
    assert {mode("supported_xcp_configs"), mode("supported_nps_configs")} == {0o444}
    for kind in ("xcc", "dma", "dec", "jpeg"):
        assert {mode(f"{kind}/num_inst"), mode(f"{kind}/num_shared")} == {0o400}
    with pytest.raises(PermissionError) as refused:
        machine.view(uid=1000).read(f"{CONFIG}/xcc/num_inst")
    assert refused.value.errno == errno.EACCES


@pytest.mark.parametrize(
    ("product", "kernel", "driver", "there"),
    [
        ("MI300X", "6.12", "in-tree", False),
        ("MI300X", "6.13", "in-tree", True),
        ("MI355X", "6.8.0-136-generic", "dkms-6.14.14", True),
        ("MI210", "6.15", "in-tree", False),
        ("RX9070XT", "6.15", "in-tree", False),
    ],
)
def test_the_directory_needs_a_partitionable_gpu_and_a_driver_of_late_2024(
    product: str, kernel: str, driver: str, there: bool
) -> None:
    assert ("compute_partition_config" in one(product, kernel, driver).list(PCI)) is there


@given(
    st.sampled_from([p for p in PRODUCTS.values() if p.partitionable]),
    st.sampled_from(["SPX", "DPX", "TPX", "QPX", "CPX"]),
)
def test_all_partitions_together_have_the_whole_gpu(product: Any, mode: str) -> None:
    if mode not in product.modes():
        return
    parts = product.partitions(mode)
    for blocks, each in resources(product).values():
        instances, shared = share(blocks, each, parts)
        assert instances >= 1
        # Whole blocks for everyone, or one block among several; at most what the GPU has.
        assert instances * parts // shared <= blocks * each


# xcp/


def metrics(machine: Machine) -> list[bool]:
    partitions = [f"/sys/devices/platform/amdgpu_xcp_{number}" for number in range(7)]
    return ["xcp_metrics" in machine.list(f"{home}/xcp") for home in (PCI, *partitions)]


def test_only_valid_partitions_have_metrics_and_a_switch_moves_them() -> None:
    machine = one(kernel="6.17")
    assert metrics(machine) == [True] + [False] * 7
    machine.switch(BDF, "QPX")
    assert metrics(machine) == [True] * 4 + [False] * 4
    machine.switch(BDF, "CPX")
    assert metrics(machine) == [True] * 8
    machine.switch(BDF, "DPX")
    assert metrics(machine) == [True] * 2 + [False] * 6


def test_a_gpu_that_was_pulled_has_its_metrics_again_when_it_is_back() -> None:
    machine = one(kernel="6.17", mode="CPX")
    assert metrics(machine) == [True] * 8
    machine.remove(BDF)
    machine.add(BDF)
    assert metrics(machine) == [True] + [False] * 7  # back in the automatic mode


@pytest.mark.parametrize(
    ("kernel", "driver", "there"),
    [
        ("6.15", "in-tree", False),
        ("6.17", "in-tree", True),
        ("6.8.0-136-generic", "dkms-6.14.14", False),
        ("6.8.0-136-generic", "dkms-6.16.13", True),
    ],
)
def test_the_directory_is_there_by_driver(kernel: str, driver: str, there: bool) -> None:
    machine = one("MI355X", kernel, driver)
    assert ("xcp" in machine.list(PCI)) is there
    assert ("xcp" in machine.list("/sys/devices/platform/amdgpu_xcp_0")) is there


def test_a_gpu_that_cannot_be_partitioned_has_no_xcp_directory() -> None:
    assert "xcp" not in one("MI210", "6.17").list(PCI)
