"""The sensors each generation has (kernel.md 3), as files of the machine."""

from __future__ import annotations

import pytest

from gpusim.fixture import load
from gpusim.machine import Machine


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


def test_only_a_gpu_that_amdgpu_drives_has_sensors() -> None:
    machine = Machine(load("mi355x/spx-6.8-intree"))
    assert "hwmon" not in machine.list("/sys/bus/pci/devices/0000:75:00.0")
    partition = Machine(load("mi355x/qpx-6.14"))
    assert "hwmon" not in partition.list("/sys/devices/platform/amdgpu_xcp_0")
