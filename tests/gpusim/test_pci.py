"""The PCI directory of a GPU by release, product and SR-IOV state (kernel.md 2, 3 and 7)."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from gpusim.amd.pci import gpu_entries, homes
from gpusim.kernel import behaviour
from gpusim.machine import Machine
from gpusim.spec import Cpus, GpuSpec, NodeSpec
from gpusim.testing.machines import node

BDF = "0000:75:00.0"
PCI = f"/sys/bus/pci/devices/{BDF}"
PARTITION_FILES = {
    "available_compute_partition",
    "current_compute_partition",
    "available_memory_partition",
    "current_memory_partition",
}


def one(product: str = "MI355X", kernel: str = "6.14", driver: str = "in-tree", **gpu: Any) -> Machine:
    return Machine(node(product, 1, kernel=kernel, driver=driver, gpu=gpu))


def partition_files(machine: Machine) -> set[str]:
    return PARTITION_FILES & set(machine.list(PCI))


def text(machine: Machine, name: str) -> str:
    return machine.read(f"{PCI}/{name}").decode()


def mode(machine: Machine, name: str) -> int:
    return machine.stat(f"{PCI}/{name}").mode


# Where it hangs


def test_every_route_leads_to_the_same_directory() -> None:
    machine = one()
    home = machine.gpu(BDF).home
    for route in (
        PCI,
        f"/sys/bus/pci/drivers/amdgpu/{BDF}",
        f"/sys/module/amdgpu/drivers/pci:amdgpu/{BDF}",
        "/sys/class/drm/card0/device",
        "/sys/class/drm/renderD128/device",
        "/sys/dev/char/226:128/device",
    ):
        assert machine.tree.resolve(route) == home
    assert machine.readlink("/sys/module/amdgpu/drivers/pci:amdgpu") == "../../../bus/pci/drivers/amdgpu"
    assert machine.tree.resolve(f"{home}/driver/module") == "/sys/module/amdgpu"
    assert machine.tree.resolve(f"{home}/subsystem") == "/sys/bus/pci"


def test_every_link_of_the_tree_leads_somewhere() -> None:
    machine = Machine(node(count=2, bmc=True))
    for path, found in machine.tree.every_file():
        if found.kind.name == "LINK":
            machine.stat(path)


def test_devices_on_one_root_bus_get_root_ports_of_their_own() -> None:
    found = homes(["0000:61:00.0", "0000:65:00.0", "0003:00:04.0", "0000:10:00.0"])
    assert found == {
        "0000:61:00.0": "/sys/devices/pci0000:60/0000:60:01.1/0000:61:00.0",
        "0000:65:00.0": "/sys/devices/pci0000:60/0000:60:02.1/0000:65:00.0",
        "0003:00:04.0": "/sys/devices/pci0003:00/0003:00:04.0",
        "0000:10:00.0": "/sys/devices/pci0000:00/0000:00:01.1/0000:10:00.0",
    }


def test_a_root_port_is_a_bridge_to_whoever_scans_the_bus() -> None:
    machine = one()
    assert machine.list("/sys/bus/pci/devices") == ["0000:70:01.1", BDF]
    assert machine.read("/sys/bus/pci/devices/0000:70:01.1/class") == b"0x060400\n"


# What stands in it


def test_identity_of_an_mi355x() -> None:
    machine = one()
    assert {name: text(machine, name) for name in ("vendor", "device", "class", "revision")} == {
        "vendor": "0x1002\n",
        "device": "0x75a3\n",
        "class": "0x120000\n",
        "revision": "0x00\n",
    }
    assert text(machine, "subsystem_device") == "0x75a3\n"
    assert text(machine, "uevent") == (
        "DRIVER=amdgpu\nPCI_CLASS=120000\nPCI_ID=1002:75A3\nPCI_SUBSYS_ID=1002:75A3\n"
        f"PCI_SLOT_NAME={BDF}\nMODALIAS=pci:v00001002d000075A3sv00001002sd000075A3bc12sc00i00\n"
    )


def test_uevent_of_a_display_class_has_no_leading_zero() -> None:
    # apu-strixpoint-890m and rdna2-rx6900xt print PCI_CLASS=38000 and 30000.
    assert "PCI_CLASS=38000\n" in text(one("STRIX_POINT"), "uevent")
    assert "bc03sc80i00\n" in text(one("STRIX_POINT"), "modalias")


def test_memory_totals_are_the_whole_gpus_in_every_mode() -> None:
    machine = one(mode="CPX", vram_used=7 << 30)
    assert text(machine, "mem_info_vram_total") == "309220868096\n"
    assert text(machine, "mem_info_vis_vram_total") == "309220868096\n"
    assert text(machine, "mem_info_vram_used") == f"{7 << 30}\n"


def test_memory_in_use_is_what_the_gpu_uses_now() -> None:
    machine = one()
    machine.gpu(BDF).vram_used = 12345
    assert text(machine, "mem_info_vram_used") == "12345\n"
    assert text(machine, "mem_info_vis_vram_used") == "12345\n"


def test_a_small_bar_shows_256_mib_of_the_memory() -> None:
    machine = Machine(node(count=1, large_bar=False))
    assert text(machine, "mem_info_vis_vram_total") == f"{256 << 20}\n"
    small = Machine(node("STRIX_POINT", 1, large_bar=False, gpu={"vram_bytes": 128 << 20, "vram_used": 0}))
    assert text(small, "mem_info_vis_vram_total") == f"{128 << 20}\n"


def test_a_unique_id_is_sixteen_lower_case_digits() -> None:
    assert text(one(unique_id=0xAB0001), "unique_id") == "0000000000ab0001\n"


def test_the_file_of_a_unique_id_that_is_0_is_absent() -> None:
    assert "unique_id" not in one(unique_id=0).list(PCI)
    assert "unique_id" not in one("STRIX_POINT").list(PCI)


def test_a_product_name_needs_a_fru_eeprom() -> None:
    # kernel.md 3: a guest, an APU and most gaming cards have none.
    assert text(one("MI300X"), "product_name") == "AMD Instinct MI300X OAM\n"
    for product in ("MI355X-VF", "MI300A", "STRIX_POINT", "RX9070XT"):
        assert "product_name" not in one(product).list(PCI)


def test_link_speed_follows_the_host_unless_the_product_decides() -> None:
    assert text(one(), "current_link_speed") == "32.0 GT/s PCIe\n"
    assert text(one("STRIX_POINT"), "max_link_speed") == "16.0 GT/s PCIe\n"
    assert text(Machine(node(count=1, pcie_generation=3)), "current_link_speed") == "8.0 GT/s PCIe\n"


# NUMA node


def test_numa_node_may_be_known_unknown_or_no_file() -> None:
    assert text(one(numa=3), "numa_node") == "3\n"
    assert text(one(numa=-1), "numa_node") == "-1\n"
    assert "numa_node" not in one(numa=None).list(PCI)


@pytest.mark.parametrize(("data", "value"), [(b"5", 5), (b"5\n", 5), (b"-1\n", -1), (b"+2", 2)])
def test_root_may_write_an_online_numa_node(data: bytes, value: int) -> None:
    machine = one()
    assert machine.write(f"{PCI}/numa_node", data) == len(data)
    assert text(machine, "numa_node") == f"{value}\n"


@pytest.mark.parametrize("data", [b"8", b"-2", b"two", b"\n", b" 3", b"1_0", b"3\n\n"])
def test_any_other_numa_node_is_einval(data: bytes) -> None:
    machine = one()
    with pytest.raises(OSError) as refused:
        machine.write(f"{PCI}/numa_node", data)
    assert refused.value.errno == errno.EINVAL
    assert text(machine, "numa_node") == "0\n"


# Partition files


@pytest.mark.parametrize(
    ("product", "kernel", "driver", "files"),
    [
        # kernel.md 2.2 and 2.4, one line per column and SR-IOV state.
        ("MI300X", "6.8.0-79-generic", "in-tree", PARTITION_FILES - {"available_memory_partition"}),
        ("MI300X", "6.12", "in-tree", PARTITION_FILES - {"available_memory_partition"}),
        ("MI300X", "6.13", "in-tree", PARTITION_FILES),
        ("MI355X", "6.14", "in-tree", PARTITION_FILES - {"available_memory_partition"}),
        ("MI355X", "6.15", "in-tree", PARTITION_FILES),
        ("MI355X", "6.8.0-136-generic", "dkms-6.14.14", PARTITION_FILES),
        ("MI300A", "6.14", "in-tree", PARTITION_FILES - {"available_memory_partition"}),
        ("MI355X-VF", "7.0", "in-tree", {"current_compute_partition", "current_memory_partition"}),
        ("RX9070XT", "6.14", "in-tree", set()),
        ("STRIX_POINT", "6.14", "in-tree", set()),
    ],
)
def test_which_partition_files_exist(product: str, kernel: str, driver: str, files: set[str]) -> None:
    assert partition_files(one(product, kernel, driver)) == files


def test_a_guest_up_to_6_12_has_no_partition_file_at_all() -> None:
    # kernel.md 2.2 and 7. No in-tree driver of that age binds the one guest product, so ask the view.
    machine = one("MI355X-VF", "7.0")
    old = behaviour("6.12", "in-tree")
    assert not PARTITION_FILES & set(gpu_entries(machine.gpu(BDF), machine.spec, old, machine.driver))


def test_the_guests_mode_file_is_read_only_even_for_root() -> None:
    # case B24: no available_compute_partition, current reads SPX.
    machine = one("MI355X-VF", "7.0")
    assert mode(machine, "current_compute_partition") == 0o444
    with pytest.raises(PermissionError) as refused:
        machine.write(f"{PCI}/current_compute_partition", b"CPX")
    assert refused.value.errno == errno.EACCES
    assert text(machine, "current_compute_partition") == "SPX\n"


@pytest.mark.parametrize(
    ("product", "kernel", "nps", "listed"),
    [
        ("MI300X", "6.8.0-79-generic", 1, "SPX, DPX, QPX, CPX\n"),
        ("MI300X", "6.8.0-79-generic", 4, "SPX, DPX, QPX, CPX\n"),  # static: also what NPS4 refuses
        ("MI300X", "6.14", 1, "SPX, DPX, QPX, CPX\n"),
        ("MI300X", "6.14", 4, "QPX, CPX\n"),
        ("MI300A", "6.8.0-79-generic", 1, "SPX, TPX, CPX\n"),
        ("MI300A", "6.14", 1, "SPX, TPX, CPX\n"),
        ("MI355X", "6.15", 2, "DPX\n"),
    ],
)
def test_available_compute_partition(product: str, kernel: str, nps: int, listed: str) -> None:
    legal = {1: "SPX", 2: "DPX", 4: "CPX"}[nps]
    machine = one(product, kernel, nps=nps, mode=legal)
    assert text(machine, "available_compute_partition") == listed
    assert mode(machine, "available_compute_partition") == 0o444


@pytest.mark.parametrize(
    ("product", "kernel", "listed", "writable"),
    [
        ("MI300X", "6.12", None, False),
        ("MI300X", "6.13", "NPS1, NPS4\n", True),
        ("MI355X", "6.14", None, False),
        ("MI355X", "6.15", "NPS1, NPS2\n", True),
        ("MI300A", "6.15", None, False),
    ],
)
def test_memory_partition_files(product: str, kernel: str, listed: str | None, writable: bool) -> None:
    machine = one(product, kernel)
    assert mode(machine, "current_memory_partition") == (0o644 if writable else 0o444)
    assert text(machine, "current_memory_partition") == "NPS1\n"
    if listed is not None:
        assert text(machine, "available_memory_partition") == listed


# Devices without amdgpu


@pytest.mark.parametrize("bound", [None, "vfio-pci"])
def test_a_gpu_without_amdgpu_has_only_what_the_pci_core_shows(bound: str | None) -> None:
    machine = one(bound=bound)
    names = set(machine.list(PCI))
    assert not names & (PARTITION_FILES | {"drm", "unique_id", "mem_info_vram_total", "product_name"})
    assert {"vendor", "device", "numa_node"} <= names
    if bound:
        assert machine.tree.resolve(f"{PCI}/driver") == "/sys/bus/pci/drivers/vfio-pci"
        assert machine.list(f"/sys/bus/pci/drivers/{bound}") == [BDF]
    else:
        assert "driver" not in names
    assert not text(machine, "uevent").startswith("DRIVER=") or bound


def test_an_mi355x_on_an_old_in_tree_driver_is_on_the_bus_and_nothing_else() -> None:
    # kernel.md 0; decision 5, spx-6.8-intree.
    machine = Machine(node(kernel="6.8.0-136-generic", driver="in-tree"))
    names = set(machine.list(PCI))
    assert {"vendor", "device", "class"} <= names
    assert not names & {"driver", "drm", "current_compute_partition"}
    assert machine.list("/sys/bus/pci/drivers/amdgpu") == ["module"]
    assert machine.list("/sys/class/drm") == ["version"]
    assert "dri" not in machine.list("/dev")
    # The module is loaded, so /dev/kfd and the CPU nodes are there.
    machine.probe("/dev/kfd")
    assert machine.list("/sys/class/kfd/kfd/topology/nodes") == [str(n) for n in range(8)]
    assert [e["errno"] for e in machine.events] == ["EINVAL"] * 8


def test_a_node_without_amd_gpus_has_no_module_and_no_kfd() -> None:
    machine = Machine(NodeSpec("plain", "6.14", bmc=True, cpus=Cpus()))
    assert machine.list("/sys/module") == []
    assert machine.list("/sys/class") == ["drm"]
    assert machine.list("/dev") == ["dri", "null"]
    assert [name for name in machine.list("/dev/dri") if name != "by-path"] == ["card0"]


def test_vfio_alone_does_not_load_the_module() -> None:
    machine = one(bound="vfio-pci")
    assert machine.list("/sys/module") == []
    assert "kfd" not in machine.list("/dev")


def test_the_module_tells_its_version_only_out_of_tree() -> None:
    # kernel.md 0 [cap I157].
    assert one(driver="dkms-6.14.14").read("/sys/module/amdgpu/version") == b"6.14.14\n"
    in_tree = one()
    assert "version" not in in_tree.list("/sys/module/amdgpu")
    assert len(in_tree.read("/sys/module/amdgpu/srcversion").strip()) == 23


def test_one_node_can_hold_gpus_of_different_products() -> None:
    gpus = (GpuSpec("RX9070XT", "0000:03:00.0"), GpuSpec("STRIX_POINT", "0000:c1:00.0"))
    machine = Machine(NodeSpec("desk", "6.14", gpus=gpus, cpus=Cpus(nodes=1)))
    devices = [machine.read(f"/sys/bus/pci/devices/{gpu.bdf}/device") for gpu in gpus]
    assert devices == [b"0x7550\n", b"0x150e\n"]
