"""XCP platform devices: names, numbers, what they show and what they hide (kernel.md 2.6)."""

from __future__ import annotations

import errno

import pytest

from gpusim.amd.xcp import Slots
from gpusim.machine import Machine
from gpusim.testing.machines import node

DOTTED = {"kernel": "6.8.0-79-generic", "driver": "in-tree"}
PLATFORM = "/sys/devices/platform"


def xcps(machine: Machine) -> list[str]:
    names = [name for name in machine.list(PLATFORM) if name.startswith("amdgpu_xcp")]
    return sorted(names, key=lambda name: int(name[len("amdgpu_xcp") + 1 :]))


@pytest.mark.parametrize(
    ("product", "kernel", "driver", "separator"),
    [
        ("MI300X", "6.8.0-79-generic", "in-tree", "."),
        ("MI300X", "6.8.0-79-generic", "dkms-6.14.14", "_"),
        ("MI300X", "6.10", "in-tree", "_"),
        ("MI355X", "6.14", "in-tree", "_"),
        ("MI355X", "6.8.0-136-generic", "dkms-6.14.14", "_"),
    ],
)
def test_the_driver_decides_between_dot_and_underscore(
    product: str, kernel: str, driver: str, separator: str
) -> None:
    # case B01: dot and underscore name the same thing.
    machine = Machine(node(product, 1, kernel=kernel, driver=driver))
    assert xcps(machine) == [f"amdgpu_xcp{separator}{number}" for number in range(7)]


@pytest.mark.parametrize("separator", [".", "_"])
def test_one_gpu_in_cpx_has_seven_platform_devices_and_eight_kfd_nodes(separator: str) -> None:
    # case B01's input, under both names.
    rules = DOTTED if separator == "." else {}
    machine = Machine(node("MI300X", 1, gpu={"mode": "CPX"}, **rules))
    assert machine.read("/sys/bus/pci/devices/0000:75:00.0/current_compute_partition") == b"CPX\n"
    for number in range(7):
        names = machine.list(f"{PLATFORM}/amdgpu_xcp{separator}{number}/drm")
        assert names == [f"card{number + 1}", f"renderD{number + 129}"]
    minors = [node.minor for _, node in machine.driver.topology.gpu_nodes()]
    assert minors == list(range(128, 136))


def test_in_spx_the_platform_devices_are_there_and_no_kfd_node_names_them() -> None:
    # case B02: four APUs, 28 platform devices, KFD minors 128, 136, 144, 152 only.
    machine = Machine(node("MI300A", 4, **DOTTED))
    assert len(xcps(machine)) == 28
    assert [node.minor for _, node in machine.driver.topology.gpu_nodes()] == [128, 136, 144, 152]


def test_a_platform_device_shows_nothing_of_its_gpu() -> None:
    machine = Machine(node(count=1))
    assert machine.list(f"{PLATFORM}/amdgpu_xcp_0") == [
        "driver_override",
        "drm",
        "modalias",
        "power",
        "subsystem",
        "uevent",
    ]
    assert machine.read(f"{PLATFORM}/amdgpu_xcp_3/modalias") == b"platform:amdgpu_xcp_3\n"
    assert machine.read(f"{PLATFORM}/amdgpu_xcp_3/uevent") == b"MODALIAS=platform:amdgpu_xcp_3\n"


def test_dotted_devices_share_one_modalias() -> None:
    machine = Machine(node("MI300X", 1, **DOTTED))
    assert machine.read(f"{PLATFORM}/amdgpu_xcp.3/modalias") == b"platform:amdgpu_xcp\n"


def test_the_drm_class_leads_to_the_platform_device_and_back() -> None:
    machine = Machine(node(count=1))
    resolve = machine.tree.resolve
    home = f"{PLATFORM}/amdgpu_xcp_0"
    assert resolve("/sys/class/drm/renderD129") == f"{home}/drm/renderD129"
    assert resolve("/sys/class/drm/renderD129/device") == home
    assert resolve("/sys/class/drm/renderD129/subsystem") == "/sys/class/drm"
    assert resolve("/sys/dev/char/226:129") == f"{home}/drm/renderD129"
    assert resolve("/sys/bus/platform/devices/amdgpu_xcp_0") == home
    assert resolve(f"{home}/subsystem") == "/sys/bus/platform"


def test_products_without_partitions_have_no_platform_device() -> None:
    machine = Machine(node("RX9070XT", 2, kernel="6.14", driver="in-tree"))
    assert xcps(machine) == []
    assert [len(gpu.drm) for gpu in machine.driver.gpus.values()] == [1, 1]


def test_a_guest_has_seven_blank_platform_devices_too() -> None:
    # kernel.md 2.6 [cap C350VF]: an SPX VF with amdgpu_xcp_0..6.
    assert len(xcps(Machine(node("MI355X-VF", 1, kernel="7.0", driver="in-tree")))) == 7


# The cap of 64


def test_nine_partitionable_gpus_fit_and_the_tenth_fails_to_probe() -> None:
    machine = Machine(node(count=10))
    gpus = list(machine.driver.gpus.values())
    assert [gpu.bound for gpu in gpus] == [True] * 9 + [False]
    assert len(xcps(machine)) == 63
    assert machine.events[-1] == {
        "event": "probe failed",
        "device": gpus[-1].bdf,
        "errno": "ENODEV",
        "why": "no amdgpu_xcp platform device left",
    }
    assert "driver" not in machine.list(gpus[-1].home)
    # What it had taken before is free again.
    machine.remove(gpus[0].bdf)
    machine.remove(gpus[-1].bdf)
    machine.add(gpus[-1].bdf)
    assert gpus[-1].bound
    assert gpus[-1].drm[0].render == 128


# Numbers over time


def test_since_6_10_the_lowest_free_number_is_taken_again() -> None:
    machine = Machine(node(count=3))
    machine.remove("0000:05:00.0")
    assert xcps(machine) == [f"amdgpu_xcp_{n}" for n in (*range(7), *range(14, 21))]
    machine.add("0000:05:00.0")
    assert xcps(machine) == [f"amdgpu_xcp_{n}" for n in range(21)]


def test_before_6_10_numbers_only_grow_and_old_devices_stay_without_drm() -> None:
    machine = Machine(node("MI300X", 2, **DOTTED))
    machine.remove("0000:75:00.0")
    assert len(xcps(machine)) == 14
    assert "drm" not in machine.list(f"{PLATFORM}/amdgpu_xcp.0")
    assert "drm" in machine.list(f"{PLATFORM}/amdgpu_xcp.7")
    machine.add("0000:75:00.0")
    assert len(xcps(machine)) == 21
    assert machine.gpu("0000:75:00.0").platform == tuple(range(14, 21))
    # The DRM core reuses its minors all the same.
    assert machine.list(f"{PLATFORM}/amdgpu_xcp.14/drm") == ["card1", "renderD129"]


def test_before_6_10_enough_replugging_uses_the_64_devices_up() -> None:
    machine = Machine(node("MI300X", 1, **DOTTED))
    for _ in range(8):
        machine.remove("0000:75:00.0")
        machine.add("0000:75:00.0")
        assert machine.gpu("0000:75:00.0").bound
    machine.remove("0000:75:00.0")
    machine.add("0000:75:00.0")
    assert not machine.gpu("0000:75:00.0").bound
    assert machine.events[-1]["errno"] == "ENODEV"


def test_slots_that_are_undone_are_given_again() -> None:
    for lowest_free in (True, False):
        slots = Slots(lowest_free=lowest_free, freed=lowest_free)
        slots.take("a", 1)
        slots.undo(slots.take("a", 2))
        assert slots.take("b", 1) == 1


def test_slots_refuse_the_65th_device_with_enodev() -> None:
    slots = Slots(lowest_free=True, freed=True)
    for number in range(64):
        assert slots.take("gpu", number) == number
    with pytest.raises(OSError) as refused:
        slots.take("gpu", 65)
    assert refused.value.errno == errno.ENODEV
