"""What a board says of itself, what the PCI core tells, and amdgpu's small files (kernel.md 3)."""

from __future__ import annotations

import errno
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusim.amd.pcicore import local_cpus, mask
from gpusim.machine import Machine
from gpusim.spec import Cpus, GpuSpec, NodeSpec
from gpusim.testing.machines import node

BDF = "0000:75:00.0"
PCI = f"/sys/bus/pci/devices/{BDF}"
FRU = {"product_name", "product_number", "serial_number", "fru_id", "manufacturer"}


def one(product: str = "MI355X", kernel: str = "6.15", driver: str = "in-tree", **gpu: Any) -> Machine:
    return Machine(node(product, 1, kernel=kernel, driver=driver, gpu=gpu))


def text(machine: Machine, name: str, bdf: str = BDF) -> str:
    return machine.read(f"/sys/bus/pci/devices/{bdf}/{name}").decode()


# The board


@pytest.mark.parametrize("product", ["MI210", "MI300X", "MI308X", "MI325X", "MI350X", "MI355X"])
def test_an_instinct_board_names_itself_its_maker_and_its_numbers(product: str) -> None:
    machine = one(product)
    assert set(machine.list(PCI)) >= FRU
    assert product in text(machine, "product_name")
    assert text(machine, "manufacturer") == "AMD\n"
    assert re.fullmatch(r"102-G\d{5}-00\n", text(machine, "product_number"))
    for name in ("serial_number", "fru_id"):
        assert re.fullmatch(r"\d{12}\n", text(machine, name))


@pytest.mark.parametrize(
    "product",
    ["MI300A", "MI300X-VF", "MI350X-VF", "MI355X-VF", "STRIX_POINT", "PHOENIX", "RX9070XT", "RX7600"],
)
def test_guests_apus_and_consumer_cards_have_no_board_texts(product: str) -> None:
    assert not FRU & set(one(product, "7.0").list(PCI))


def test_serial_numbers_follow_the_seed_and_no_two_boards_share_one() -> None:
    machine = Machine(node(count=8))
    serials = [text(machine, "serial_number", bdf) for bdf in machine.driver.gpus]
    assert len(set(serials)) == 8
    again = Machine(node(count=8))
    assert [text(again, "serial_number", bdf) for bdf in again.driver.gpus] == serials
    other = Machine(node(count=8, seed=2))
    assert not set(serials) & {text(other, "serial_number", bdf) for bdf in other.driver.gpus}


def test_older_drivers_make_empty_files_for_a_card_without_eeprom() -> None:
    # rdna2-rx6900xt: product_name and product_number are there and hold an empty line.
    old = one("RX6900XT", "6.5")
    assert [text(old, name) for name in ("product_name", "product_number")] == ["\n", "\n"]
    assert not FRU & set(one("RX6900XT", "6.8").list(PCI))
    assert not FRU & set(one("STRIX_POINT", "6.5").list(PCI))


def test_board_texts_need_amdgpu() -> None:
    assert not FRU & set(one(bound="vfio-pci").list(PCI))


# The PCI core


def test_cpus_near_a_gpu_are_those_of_its_numa_node() -> None:
    machine = one(numa=3)  # eight nodes of 96 CPUs
    assert text(machine, "local_cpulist") == "288-383\n"
    digits = text(machine, "local_cpus").strip().replace(",", "")
    assert (len(digits), int(digits, 16)) == (192, (1 << 96) - 1 << 288)
    assert text(one(numa=-1), "local_cpulist") == "0-767\n"


@pytest.mark.parametrize(
    ("low", "high", "count", "shown"),
    [
        (0, 19, 20, "fffff"),  # apu-strixpoint-890m
        (0, 15, 32, "0000ffff"),  # rdna2-rx6900xt
        (32, 63, 64, "ffffffff,00000000"),
        (0, 0, 1, "1"),
    ],
)
def test_a_cpu_mask_has_a_digit_for_four_cpus_and_a_comma_between_words(
    low: int, high: int, count: int, shown: str
) -> None:
    assert mask(low, high, count) == shown


@given(st.integers(1, 16), st.integers(1, 200), st.data())
def test_list_and_mask_name_the_same_cpus(nodes: int, threads: int, data: st.DataObject) -> None:
    numa = data.draw(st.integers(-1, nodes - 1))
    low, high = local_cpus(Cpus(nodes=nodes, threads_per_node=threads), numa)
    shown = mask(low, high, nodes * threads)
    assert all(len(word) == 8 for word in shown.split(",")[1:])
    value = int(shown.replace(",", ""), 16)
    assert [cpu for cpu in range(nodes * threads) if value >> cpu & 1] == list(range(low, high + 1))


@pytest.mark.parametrize(
    ("product", "bits"), [("MI355X", 48), ("MI210", 48), ("RX6900XT", 44), ("PHOENIX", 44)]
)
def test_a_gpu_reaches_48_or_44_address_bits(product: str, bits: int) -> None:
    assert text(one(product), "dma_mask_bits") == f"{bits}\n"


def test_a_device_without_driver_is_not_enabled_and_has_no_interrupt() -> None:
    machine = one(bound=None)
    assert (text(machine, "enable"), text(machine, "dma_mask_bits")) == ("0\n", "32\n")
    assert "msi_irqs" not in machine.list(PCI)
    driven = one()
    (irq,) = driven.list(f"{PCI}/msi_irqs")
    assert text(driven, "irq") == f"{irq}\n"


def test_the_first_display_is_the_boot_vga_unless_a_bmc_is_there() -> None:
    gpus = (GpuSpec("RX7900XTX", "0000:03:00.0"), GpuSpec("RX7600", "0000:08:00.0"))

    def boot(**fields: Any) -> list[str]:
        machine = Machine(NodeSpec("desk", "6.14", gpus=gpus, cpus=Cpus(nodes=1), **fields))
        return [text(machine, "boot_vga", gpu.bdf) for gpu in gpus]

    assert boot() == ["1\n", "0\n"]
    assert boot(bmc=True) == ["0\n", "0\n"]
    assert "boot_vga" not in one().list(PCI)


def test_error_counters_belong_to_devices_in_a_slot() -> None:
    counted = text(one(), "aer_dev_correctable").splitlines()
    assert counted[-1] == "TOTAL_ERR_COR 0"
    assert all(line.endswith(" 0") for line in counted)
    assert not [name for name in one("STRIX_POINT").list(PCI) if name.startswith("aer_")]


def test_a_delay_that_has_no_value_is_eio() -> None:
    with pytest.raises(OSError) as refused:
        text(one("STRIX_POINT"), "power/autosuspend_delay_ms")
    assert refused.value.errno == errno.EIO
    assert text(one("RX6900XT"), "power/autosuspend_delay_ms") == "5000\n"


# amdgpu's own


def test_firmware_versions_are_those_kfd_prints() -> None:
    # apu-strixpoint-890m prints 0x20 and 0x0e where KFD prints 32 and 14.
    machine = one(fw_version=32810, sdma_fw_version=12)
    assert text(machine, "fw_version/mec_fw_version") == "0x0000802a\n"
    assert text(machine, "fw_version/sdma_fw_version") == "0x0000000c\n"


def test_isolation_has_one_value_per_partition() -> None:
    machine = one(mode="QPX")
    assert text(machine, "enforce_isolation") == "0 0 0 0\n"
    machine.write(f"{PCI}/enforce_isolation", b"1 0 0 1\n")
    assert text(machine, "enforce_isolation") == "1 0 0 1\n"
    assert text(one("STRIX_POINT"), "enforce_isolation") == "0\n"


@pytest.mark.parametrize("data", [b"1", b"1 1 1 1 1", b"2 0 0 0", b"on", b"-1 0 0 0", b"\n"])
def test_any_other_isolation_is_einval(data: bytes) -> None:
    machine = one(mode="QPX")
    with pytest.raises(OSError) as refused:
        machine.write(f"{PCI}/enforce_isolation", data)
    assert refused.value.errno == errno.EINVAL
    assert text(machine, "enforce_isolation") == "0 0 0 0\n"


def test_the_cleaner_can_only_be_run_and_only_on_a_partition_there_is() -> None:
    machine = one(mode="DPX")
    assert machine.stat(f"{PCI}/run_cleaner_shader").mode == 0o200
    with pytest.raises(PermissionError):
        text(machine, "run_cleaner_shader")
    assert machine.write(f"{PCI}/run_cleaner_shader", b"1\n") == 2
    with pytest.raises(OSError) as refused:
        machine.write(f"{PCI}/run_cleaner_shader", b"2\n")
    assert refused.value.errno == errno.EINVAL


def test_a_performance_level_is_kept_and_an_unknown_one_refused() -> None:
    machine = one("RX9070XT")
    machine.write(f"{PCI}/power_dpm_force_performance_level", b"manual\n")
    assert text(machine, "power_dpm_force_performance_level") == "manual\n"
    with pytest.raises(OSError) as refused:
        machine.write(f"{PCI}/power_dpm_force_performance_level", b"warp")
    assert refused.value.errno == errno.EINVAL


def test_reset_masks_are_those_of_small_apus_on_newer_kernels() -> None:
    assert text(one("STRIX_POINT"), "compute_reset_mask") == "queue full \n"
    assert text(one("STRIX_POINT"), "sdma_reset_mask") == "full \n"
    assert "compute_reset_mask" not in one("STRIX_POINT", "6.12").list(PCI)


def test_a_small_apu_counts_no_memory_load_and_no_replays() -> None:
    names = set(one("STRIX_POINT").list(PCI))
    assert not names & {"mem_busy_percent", "pcie_replay_count"}
    assert {"gpu_busy_percent", "vcn_busy_percent"} <= names
    assert set(one("MI300A").list(PCI)) >= {"mem_busy_percent", "pcie_replay_count"}


def test_a_gpu_of_a_hive_tells_its_place_on_the_mesh() -> None:
    # mi355x-8gpu-spx-6.8: oam_id in probe order.
    machine = Machine(node(count=8))
    places = [text(machine, "xgmi_physical_id", bdf).strip() for bdf in machine.driver.gpus]
    assert places == ["4", "6", "5", "7", "0", "2", "1", "3"]
    assert "xgmi_physical_id" not in one().list(PCI)
