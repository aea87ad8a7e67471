"""DRM minors: the allocator, and the numbers real nodes show (kernel.md 2.6, 3)."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from gpusim.amd.drm import Minors, Nodes
from gpusim.machine import Machine
from gpusim.spec import CardSpec, Cpus, GpuSpec, NodeSpec
from gpusim.testing.machines import node


def dri(machine: Machine, prefix: str) -> list[int]:
    """Minors of /dev/dri/<prefix>N, ascending."""
    return sorted(int(n.removeprefix(prefix)) for n in machine.list("/dev/dri") if n.startswith(prefix))


def drm_of(machine: Machine, device: str) -> list[str]:
    return list(machine.list(f"{device}/drm"))


# The allocator


def test_the_first_devices_get_card0_and_renderd128_and_count_up() -> None:
    minors = Minors(extended=True)
    assert [minors.allocate(render=True) for _ in range(3)] == [Nodes(0, 128), Nodes(1, 129), Nodes(2, 130)]


def test_a_display_without_rendering_takes_a_card_only() -> None:
    minors = Minors(extended=True)
    assert minors.allocate(render=False) == Nodes(0, None)
    assert minors.allocate(render=True) == Nodes(1, 128)


def test_the_65th_device_of_a_type_is_refused_without_extended_minors() -> None:
    minors = Minors(extended=False)
    for _ in range(64):
        minors.allocate(render=True)
    with pytest.raises(OSError) as refused:
        minors.allocate(render=False)
    assert refused.value.errno == errno.ENOSPC


def test_a_refused_device_gives_its_render_minor_back() -> None:
    minors = Minors(extended=False)
    bmc = minors.allocate(render=False)
    for _ in range(63):
        minors.allocate(render=True)
    with pytest.raises(OSError):
        minors.allocate(render=True)
    minors.release(bmc)
    assert minors.allocate(render=True) == Nodes(0, 191)


def test_extended_minors_start_at_192_first_come_for_both_types() -> None:
    minors = Minors(extended=True)
    minors.allocate(render=False)
    for _ in range(63):
        minors.allocate(render=True)
    assert minors.allocate(render=True) == Nodes(192, 191)
    assert minors.allocate(render=True) == Nodes(194, 193)


def test_freed_minors_are_the_next_to_be_given_lowest_first() -> None:
    minors = Minors(extended=True)
    given = [minors.allocate(render=True) for _ in range(70)]
    for nodes in (given[66], given[5], given[3]):
        minors.release(nodes)
    again = [minors.allocate(render=True) for _ in range(3)]
    assert again[:2] == [given[3], given[5]]
    assert set(again[2].minors) == set(given[66].minors)


def test_a_copied_allocator_goes_its_own_way() -> None:
    minors = Minors(extended=True)
    minors.allocate(render=True)
    twin = minors.copy()
    minors.allocate(render=True)
    assert twin.allocate(render=True) == Nodes(1, 129)


# Numbers of real nodes


@pytest.mark.parametrize("mode", ["SPX", "DPX", "QPX", "CPX"])
def test_a_gpu_has_eight_minors_whatever_its_mode(mode: str) -> None:
    machine = Machine(node(gpu={"mode": mode}))
    assert dri(machine, "renderD") == list(range(128, 192))
    assert dri(machine, "card") == list(range(64))


def test_a_bmc_shifts_the_cards_by_one_and_leaves_the_render_nodes() -> None:
    # dump mi300x-8gpu-dpx-nps1-devices-map and case B26: card1/128, card9/136, card17/144, card25.
    machine = Machine(node(count=4, bmc=True, gpu={"mode": "DPX"}))
    homes = [gpu.home for gpu in machine.driver.gpus.values()]
    assert [drm_of(machine, home) for home in homes] == [
        ["card1", "renderD128"],
        ["card9", "renderD136"],
        ["card17", "renderD144"],
        ["card25", "renderD152"],
    ]


def test_card_0_belongs_to_the_bmc_which_has_no_render_node() -> None:
    # case B05: 0 and 128 are real numbers of different devices.
    machine = Machine(node(bmc=True))
    bmc = machine.driver.cards[0].home
    assert drm_of(machine, bmc) == ["card0"]
    assert machine.read("/sys/class/drm/card0/device/vendor") == b"0x1a03\n"
    assert machine.read("/sys/class/drm/renderD128/device/vendor") == b"0x1002\n"
    assert machine.list("/sys/class/drm/card0-VGA-1") == [
        "device",
        "enabled",
        "status",
        "subsystem",
        "uevent",
    ]


@pytest.mark.parametrize(
    ("number", "render", "card"), [(29, 162, 34), (36, 170, 42), (38, 172, 44), (39, 173, 45)]
)
@pytest.mark.parametrize("bmc", [False, True])
def test_xcp_numbers_map_to_minors_as_on_the_dotted_mi300x(
    number: int, render: int, card: int, bmc: bool
) -> None:
    # dump mi300x-8gpu-cpx-xcp-dot-names: 29 -> renderD162, 38 -> renderD172, 39 -> card46 beside a BMC.
    machine = Machine(
        node("MI300X", kernel="6.8.0-79-generic", driver="in-tree", bmc=bmc, gpu={"mode": "CPX"})
    )
    found = drm_of(machine, f"/sys/devices/platform/amdgpu_xcp.{number}")
    assert found == [f"card{card + bmc}", f"renderD{render}"]


def test_tpx_on_an_mi300a_leaves_the_blanks_behind_partition_2() -> None:
    # kernel.md 2.6 [cap]: TPX shows renderD128..135, of which 131.. are blanks.
    apu = node("MI300A", 1, kernel="6.8.0-79-generic", driver="in-tree", gpu={"mode": "TPX"})
    machine = Machine(apu)
    assert dri(machine, "renderD") == list(range(128, 136))
    opens = []
    for minor in range(128, 136):
        try:
            machine.probe(f"/dev/dri/renderD{minor}")
            opens.append(minor)
        except FileNotFoundError:
            pass
    assert opens == [128, 129, 130]


def test_63_of_64_a_bmc_and_the_64_limit_cost_the_last_partition() -> None:
    # case B03; kernel.md 2.6: 55 platform devices, render nodes 128..190, 63 KFD nodes.
    spec = node("MI300X", kernel="6.8.0-79-generic", driver="in-tree", bmc=True, gpu={"mode": "CPX"})
    machine = Machine(spec)
    assert dri(machine, "renderD") == list(range(128, 191))
    assert dri(machine, "card") == list(range(64))
    assert len([n for n in machine.list("/sys/devices/platform") if n.startswith("amdgpu_xcp")]) == 55
    assert len(machine.list("/sys/class/kfd/kfd/topology/nodes")) == 8 + 63
    skipped = [e for e in machine.events if e["event"] == "xcp skipped"]
    assert skipped == [
        {
            "event": "xcp skipped",
            "gpu": "0000:95:00.0",
            "partition": 7,
            "why": "Skip xcp node #7 when out of drm node resource.",
        }
    ]


def test_without_the_display_card_all_64_are_there_again() -> None:
    spec = node("MI300X", kernel="6.8.0-79-generic", driver="in-tree", gpu={"mode": "CPX"})
    assert len(Machine(spec).list("/sys/class/kfd/kfd/topology/nodes")) == 8 + 64


def test_with_extended_minors_the_last_partition_is_card192_and_renderd191() -> None:
    machine = Machine(node(bmc=True, gpu={"mode": "CPX"}))
    assert drm_of(machine, "/sys/devices/platform/amdgpu_xcp_55") == ["card192", "renderD191"]
    assert len(machine.list("/sys/class/kfd/kfd/topology/nodes")) == 8 + 64


def test_the_old_limit_can_be_forced_on_a_new_kernel() -> None:
    machine = Machine(node(bmc=True, minors_per_type=64, gpu={"mode": "CPX"}))
    assert max(dri(machine, "renderD")) == 190


def test_another_render_capable_card_between_the_gpus_shifts_what_comes_after() -> None:
    other = CardSpec("i915", "0000:02:00.0", 0x8086, 0x56C0, before=1)
    machine = Machine(node(count=2, cards=(other,)))
    first, second = (gpu.home for gpu in machine.driver.gpus.values())
    assert drm_of(machine, first) == ["card0", "renderD128"]
    assert drm_of(machine, machine.driver.cards[0].home) == ["card8", "renderD136"]
    assert drm_of(machine, second) == ["card9", "renderD137"]


def test_a_gpu_that_finds_no_minor_at_all_is_not_bound() -> None:
    displays = tuple(CardSpec("i915", f"0002:{bus:02x}:00.0", 0x8086, 0x56C0) for bus in range(64))
    machine = Machine(node(count=1, cards=displays, minors_per_type=64))
    gpu = machine.gpu("0000:75:00.0")
    assert gpu.driver is None
    assert machine.events[-1]["errno"] == "ENOSPC"
    assert "drm" not in machine.list(gpu.home)


def test_old_in_tree_kernels_list_a_control_link_beside_the_card_of_the_pci_device_only() -> None:
    machine = Machine(node("MI300A", 4, kernel="6.8.0-79-generic", driver="in-tree"))
    homes = [gpu.home for gpu in machine.driver.gpus.values()]
    assert [drm_of(machine, home)[1] for home in homes] == [
        "controlD64",
        "controlD72",
        "controlD80",
        "controlD88",
    ]
    assert machine.readlink(f"{homes[1]}/drm/controlD72") == "card8"
    assert drm_of(machine, "/sys/devices/platform/amdgpu_xcp.0") == ["card1", "renderD129"]


# Against captures


@pytest.mark.snapshots
def test_the_mi300a_capture_has_the_same_drm_directories(snapshots: Path) -> None:
    """32 DRM devices of four APUs in SPX, 28 of them platform devices without a KFD node (case B02)."""
    base = snapshots / "mi300a-4apu-spx" / "sys"
    gpus = tuple(GpuSpec("MI300A", f"{domain:04x}:02:00.0", numa=domain) for domain in range(4))
    machine = Machine(NodeSpec("apus", "6.8.0-79-generic", gpus=gpus, cpus=Cpus(nodes=4)))
    captured = sorted((base / "devices/platform").glob("amdgpu_xcp*"))
    assert len(captured) == 28
    for directory in captured:
        names = sorted(entry.name for entry in (directory / "drm").iterdir())
        assert drm_of(machine, f"/sys/devices/platform/{directory.name}") == names
    bound = base / "module/amdgpu/drivers/pci:amdgpu"
    for directory in sorted(bound.iterdir()):
        names = sorted(entry.name for entry in (directory / "drm").iterdir())
        assert drm_of(machine, f"/sys/module/amdgpu/drivers/pci:amdgpu/{directory.name}") == names
    listing = (snapshots / "mi300a-4apu-spx" / "dev-listing.inferred.txt").read_text()
    nodes = [line.rpartition("/")[2] for line in listing.splitlines() if line.startswith("/dev/dri/")]
    assert sorted(nodes) == [name for name in machine.list("/dev/dri") if name != "by-path"]


@pytest.mark.snapshots
def test_the_mi355x_capture_has_the_same_names(snapshots: Path) -> None:
    """Eight MI355X behind a BMC: cards 1, 9, …, 57 and platform devices 0..55."""
    base = snapshots / "mi355x-8gpu-spx-6.8" / "sys"
    machine = Machine(node(kernel="6.8.0-136-generic", bmc=True, kfd_partitions="hidden"))
    bound = base / "module/amdgpu/drivers/pci:amdgpu"
    for directory in sorted(bound.iterdir()):
        names = sorted(entry.name for entry in (directory / "drm").iterdir())
        device = f"/sys/bus/pci/drivers/amdgpu/{directory.name}"
        assert drm_of(machine, device) == names
        for file in ("available_compute_partition", "available_memory_partition", "current_memory_partition"):
            assert machine.read(f"{device}/{file}") == (directory / file).read_bytes()
    platform = sorted(entry.name for entry in (base / "devices/platform").iterdir())
    assert [n for n in machine.list("/sys/devices/platform") if n.startswith("amdgpu_xcp")] == platform
