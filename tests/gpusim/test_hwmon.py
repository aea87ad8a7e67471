"""The sensors each generation has (kernel.md 3), as files of the machine."""

from __future__ import annotations

import pytest

from gpusim.amd.hwmonrows import readings
from gpusim.amd.products import PRODUCTS
from gpusim.fixture import load
from gpusim.kernel import behaviour
from gpusim.machine import Machine
from gpusim.testing.machines import node


def sensors(fixture: str, bdf: str) -> dict[str, str]:
    machine = Machine(load(fixture))
    home = f"/sys/bus/pci/devices/{bdf}/hwmon"
    (chip,) = machine.list(home)
    assert machine.read(f"{home}/{chip}/name") == b"amdgpu\n"
    assert machine.readlink(f"{home}/{chip}/device") == f"../../../{bdf}"
    assert machine.list(f"{home}/{chip}/device/hwmon") == [chip]
    return {
        name: machine.read(f"{home}/{chip}/{name}").decode().strip()
        for name in machine.list(f"{home}/{chip}")
        if name not in ("device", "power", "subsystem")
    }


@pytest.mark.parametrize("fixture", ["mi355x/qpx-6.14", "mi355x/qpx-7.0-intree"])
def test_instinct_has_no_edge_sensor_and_no_average_power(fixture: str) -> None:
    found = sensors(fixture, "0000:75:00.0")
    assert (found["temp2_label"], found["temp3_label"], found["power1_label"]) == ("junction", "mem", "PPT")
    assert int(found["power1_input"]) > 0
    assert not {"temp1_input", "temp1_label", "power1_average"} & set(found)


def test_a_radeon_has_three_temperatures_and_an_average_power() -> None:
    found = sensors("rdna4/rx9070-igpu", "0000:03:00.0")
    assert [found[f"temp{n}_label"] for n in (1, 2, 3)] == ["edge", "junction", "mem"]
    assert found["power1_average"] == "49000000"
    assert "power1_input" not in found


def test_a_small_apu_has_one_temperature_and_both_powers() -> None:
    found = sensors("rdna4/rx9070-igpu", "0000:c1:00.0")
    assert (found["temp1_input"], found["power1_average"], found["power1_input"]) == (
        "38000",
        "9087000",
        "9087000",
    )
    assert "temp2_input" not in found


@pytest.mark.parametrize("product", ["MI210", "VEGA10"])
def test_instinct_before_mi300_has_three_temperatures_and_an_average_power(product: str) -> None:
    # kernel.md 3: older MI200.
    machine = Machine(node(product, 1, kernel="6.8.0-79-generic"))
    home = f"{machine.gpu('0000:75:00.0').home}/hwmon"
    (chip,) = machine.list(home)
    names = set(machine.list(f"{home}/{chip}"))
    assert {"temp1_input", "temp2_input", "temp3_input", "power1_average"} <= names
    assert "power1_input" not in names


@pytest.mark.parametrize(
    "product", ["MI300X", "MI308X", "MI325X", "MI300A", "MI350X", "MI350X-VF", "MI300X-VF"]
)
def test_mi300_and_mi350_have_no_fan_no_edge_and_no_voltage(product: str) -> None:
    names = set(readings(PRODUCTS[product], behaviour("6.14", "in-tree")))
    assert not [name for name in names if name.startswith(("fan", "pwm", "in0", "in1", "temp1"))]
    assert {"power1_input", "power1_label", "temp2_label", "temp3_label"} <= names
    # The host sets what a guest may draw.
    assert ("power1_cap" in names) is not product.endswith("-VF")


def test_kernel_7_adds_the_boards_voltage() -> None:
    assert sensors("mi350x/vf", "0000:05:00.0")["in2_label"] == "vddboard"
    assert "in2_label" not in sensors("mi350x/spx-6.8", "0000:08:00.0")


def test_a_limit_stands_below_the_one_that_switches_off() -> None:
    for product in PRODUCTS.values():
        row = readings(product, behaviour("7.0", "in-tree"))
        for name, critical in row.items():
            if name.endswith("_crit"):
                assert (
                    int(row[name.replace("_crit", "_emergency")])
                    > int(critical)
                    > int(row[f"{name[:5]}_input"])
                )
        if "power1_cap" in row:
            assert int(row["power1_cap_min"]) <= int(row["power1_cap"]) <= int(row["power1_cap_max"])


def test_the_class_lists_the_sensors_of_every_gpu_amdgpu_drives() -> None:
    machine = Machine(node(count=3, gpu={}))
    chips = machine.list("/sys/class/hwmon")
    assert [machine.read(f"/sys/class/hwmon/{chip}/name") for chip in chips] == [b"amdgpu\n"] * 3
    for chip, gpu in zip(chips, machine.driver.gpus.values(), strict=True):
        assert machine.tree.resolve(f"/sys/class/hwmon/{chip}/device") == gpu.home
        assert machine.tree.resolve(f"/sys/class/hwmon/{chip}/subsystem") == "/sys/class/hwmon"
    machine.remove("0000:05:00.0")
    assert len(machine.list("/sys/class/hwmon")) == 2
    assert "hwmon" not in Machine(node(count=1, gpu={"bound": "vfio-pci"})).list("/sys/class")


def test_only_a_gpu_that_amdgpu_drives_has_sensors() -> None:
    machine = Machine(load("mi355x/spx-6.8-intree"))
    assert "hwmon" not in machine.list("/sys/bus/pci/devices/0000:75:00.0")
    partition = Machine(load("mi355x/qpx-6.14"))
    assert "hwmon" not in partition.list("/sys/devices/platform/amdgpu_xcp_0")
