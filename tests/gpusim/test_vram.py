"""Who has which VRAM, where it shows, and how it ends (kernel.md 1.1, 1.8, 4.4, 6, 7)."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest

from gpusim.amd.vram import PAGE
from gpusim.errors import GpusimError
from gpusim.machine import Allocation, Machine
from gpusim.process import DeviceRules, Process
from gpusim.testing.machines import node

A, B = "0000:75:00.0", "0000:05:00.0"
REGION, OTHER = f"drm/{A}/vram", f"drm/{B}/vram"
ROOT = "/sys/fs/cgroup"
POD = f"{ROOT}/kubepods.slice"
MIB = 1 << 20
VRAM, BASE, GTT = 64 * MIB, MIB, 32 * MIB


def machine_of(kernel: str = "7.0", driver: str = "in-tree", mode: str = "SPX", count: int = 2) -> Machine:
    gpu = {"vram_bytes": VRAM, "vram_used": BASE, "gtt_bytes": GTT, "mode": mode}
    return Machine(node(count=count, kernel=kernel, driver=driver, gpu=gpu))


def code_of(act: Callable[..., object], *args: Any, **kwargs: Any) -> int | None:
    try:
        act(*args, **kwargs)
    except OSError as error:
        return error.errno
    return None


def used(machine: Machine, bdf: str = A, what: str = "vram") -> int:
    """What amdgpu says is in use, without what was at boot."""
    found = int(machine.read(f"/sys/bus/pci/devices/{bdf}/mem_info_{what}_used"))
    return found - (BASE if what == "vram" else 0)


def charged(machine: Machine, group: str = ROOT, region: str = REGION) -> int | None:
    """The region's line in a group's dmem.current; None: no such line."""
    for line in machine.read(f"{group}/dmem.current").decode().splitlines():
        name, value = line.split()
        if name == region:
            return int(value)
    return None


def worker(machine: Machine, *paths: str, cgroup: str = "/", devices: DeviceRules | None = None) -> Process:
    process = machine.process(devices, cgroup=cgroup)
    for path in paths or ("/dev/kfd",):
        machine.open(path, process)
    return process


def last(machine: Machine, event: str) -> dict[str, object]:
    return next(e for e in reversed(machine.events) if e["event"] == event)


# Where it shows


def test_an_allocation_shows_in_sysfs_kfd_and_dmem_and_freeing_restores_all() -> None:
    machine = machine_of("6.14", "dkms-6.14.14")
    bank = "/sys/class/kfd/kfd/topology/nodes/8/mem_banks/0/used_memory"
    process = worker(machine, cgroup="/kubepods.slice")
    number = machine.read("/sys/class/kfd/kfd/topology/nodes/8/gpu_id").decode().strip()
    asked = f"/sys/class/kfd/kfd/proc/{process.pid}/vram_{number}"
    before = {path: machine.read(path) for path in (bank, asked)}
    made = machine.allocate_vram(process, A, 8 * MIB)
    assert (made.place, made.bytes, made.cgroup) == ("vram", 8 * MIB, "/kubepods.slice")
    assert used(machine) == charged(machine) == charged(machine, POD) == 8 * MIB
    assert int(machine.read(bank)) == BASE + 8 * MIB
    assert machine.read(asked) == f"{8 * MIB}\n".encode()
    assert used(machine, B) == charged(machine, POD, OTHER) == 0
    machine.free(made)
    assert used(machine) == charged(machine) == charged(machine, POD) == 0
    assert {path: machine.read(path) for path in (bank, asked)} == before
    assert made.place == "freed"
    with pytest.raises(GpusimError, match="freed"):
        machine.free(made)


def test_whole_pages_are_taken() -> None:
    machine = machine_of()
    process = worker(machine)
    assert machine.allocate_vram(process, A, 1).bytes == PAGE
    assert machine.allocate_vram(process, A, PAGE + 1).bytes == 2 * PAGE
    assert used(machine) == charged(machine) == 3 * PAGE
    for size in (0, -1):
        assert code_of(machine.allocate_vram, process, A, size) == errno.EINVAL


def test_visible_vram_in_use_does_not_exceed_a_small_bar() -> None:
    spec = node(count=1, kernel="7.0", driver="in-tree", large_bar=False)
    machine = Machine(spec)
    process = worker(machine)
    machine.allocate_vram(process, A, 1 << 30)
    total = int(machine.read(f"/sys/bus/pci/devices/{A}/mem_info_vis_vram_total"))
    assert int(machine.read(f"/sys/bus/pci/devices/{A}/mem_info_vis_vram_used")) == total == 256 * MIB


def test_partitions_share_the_gpus_region_and_its_file() -> None:
    machine = machine_of(mode="QPX")
    process = worker(machine, cgroup="/kubepods.slice")
    machine.allocate_vram(process, 129, 2 * MIB)
    machine.allocate_vram(process, 131, 3 * MIB)
    assert used(machine) == charged(machine, POD) == 5 * MIB
    shown = [
        int(machine.read(f"/sys/class/kfd/kfd/proc/{process.pid}/{name}"))
        for name in machine.list(f"/sys/class/kfd/kfd/proc/{process.pid}")
        if name.startswith("vram_")
    ]
    assert len(shown) == 8
    assert sorted(shown)[-2:] == [2 * MIB, 3 * MIB]
    assert sum(shown) == 5 * MIB


def test_a_description_tells_who_has_what() -> None:
    machine = machine_of()
    process = worker(machine, cgroup="/kubepods.slice")
    made = machine.allocate_vram(process, A, MIB)
    told: Any = machine.describe()
    assert told["gpus"][0]["vram_used"] == BASE + MIB
    (one,) = [p for p in told["processes"] if p["pid"] == process.pid]
    assert one["cgroup"] == "/kubepods.slice"
    assert [a["number"] for a in one["allocations"]] == [made.number]


# Without the controller, without a region


@pytest.mark.parametrize(
    ("kernel", "driver"),
    [("6.8.0-136-generic", "dkms-6.14.14"), ("6.14", "in-tree"), ("6.14", "dkms-6.12.12")],
)
def test_without_a_region_memory_is_counted_but_charged_to_nobody(kernel: str, driver: str) -> None:
    machine = machine_of(kernel, driver)
    process = worker(machine, cgroup="/kubepods.slice")
    made = machine.allocate_vram(process, A, 8 * MIB)
    assert used(machine) == 8 * MIB
    assert made.cgroup == ""
    if machine.rules.dmem_controller:
        assert machine.read(f"{POD}/dmem.current") == b""
    assert code_of(machine.allocate_vram, process, A, VRAM) == errno.ENOMEM
    machine.exit(process)
    assert used(machine) == 0


def test_a_group_without_the_controller_charges_the_next_above() -> None:
    machine = machine_of()
    machine.mkdir(f"{POD}/a/b")
    process = worker(machine, cgroup="/kubepods.slice/a/b")
    machine.write(f"{POD}/dmem.max", f"{REGION} 8M".encode())
    assert machine.allocate_vram(process, A, 8 * MIB).cgroup == "/kubepods.slice"
    assert code_of(machine.allocate_vram, process, A, 1) == errno.ENOMEM


# Running out


def test_a_full_gpu_is_enomem_and_nothing_is_charged() -> None:
    machine = machine_of()
    process = worker(machine, cgroup="/kubepods.slice")
    machine.allocate_vram(process, A, VRAM - BASE)
    assert used(machine) == charged(machine) == VRAM - BASE
    other = worker(machine, "/dev/dri/renderD128", cgroup="/kubepods.slice")
    assert code_of(machine.allocate_vram, other, A, 1) == errno.ENOMEM
    assert last(machine, "out of memory")["why"] == "VRAM is full"
    assert charged(machine) == VRAM - BASE
    machine.exit(process)
    assert machine.allocate_vram(other, A, VRAM - BASE).place == "vram"


@pytest.mark.parametrize("level", ["/kubepods.slice", "/kubepods.slice/a", "/kubepods.slice/a/b"])
def test_a_limit_at_any_level_is_enomem_and_the_limiting_group_is_named(level: str) -> None:
    machine = machine_of()
    machine.write(f"{POD}/cgroup.subtree_control", b"+dmem")
    machine.mkdir(f"{POD}/a/b")
    machine.write(f"{POD}/a/cgroup.subtree_control", b"+dmem")
    process = worker(machine, cgroup="/kubepods.slice/a/b")
    machine.write(f"{ROOT}{level}/dmem.max", f"{REGION} 8M".encode())
    machine.allocate_vram(process, A, 8 * MIB)  # exactly the limit
    assert code_of(machine.allocate_vram, process, A, 1) == errno.ENOMEM
    assert last(machine, "out of memory")["why"] == f"dmem.max of {level}"
    for group in ("", "/kubepods.slice", "/kubepods.slice/a", "/kubepods.slice/a/b"):
        assert charged(machine, ROOT + group) == 8 * MIB
    machine.allocate_vram(process, B, 16 * MIB)  # a limit is of one region


def test_a_parents_usage_is_the_sum_of_its_children_and_its_limit_holds_for_them_together() -> None:
    machine = machine_of()
    machine.write(f"{POD}/cgroup.subtree_control", b"+dmem")
    for name in ("a", "b"):
        machine.mkdir(f"{POD}/{name}")
        machine.write(f"{POD}/{name}/dmem.max", f"{REGION} 1G".encode())  # more than the parent: no check
    machine.write(f"{POD}/dmem.max", f"{REGION} 10M".encode())
    first, second = (worker(machine, cgroup=f"/kubepods.slice/{name}") for name in ("a", "b"))
    machine.allocate_vram(first, A, 6 * MIB)
    machine.allocate_vram(second, A, 4 * MIB)
    assert charged(machine, POD) == 10 * MIB
    assert code_of(machine.allocate_vram, second, A, 1) == errno.ENOMEM
    machine.exit(first)
    machine.allocate_vram(second, A, 6 * MIB)
    assert (charged(machine, f"{POD}/a"), charged(machine, f"{POD}/b")) == (0, 10 * MIB)


def test_two_slices_of_one_gpu_share_the_pods_one_line() -> None:
    """B55 as decided: one region per GPU, so one limit, whatever partition a process works on."""
    machine = machine_of(mode="CPX")
    assert machine.read(f"{POD}/dmem.max") == f"{REGION} max\n{OTHER} max\n".encode()
    machine.write(f"{POD}/dmem.max", f"{REGION} 6M".encode())
    process = worker(machine, cgroup="/kubepods.slice")
    machine.allocate_vram(process, 129, 3 * MIB)
    machine.allocate_vram(process, 130, 3 * MIB)
    assert code_of(machine.allocate_vram, process, 131, 1) == errno.ENOMEM


def test_a_partition_has_its_share_though_the_memory_is_one_pool() -> None:
    machine = machine_of(mode="DPX")
    process = worker(machine)
    share = (VRAM - BASE) // 2
    nodes = {n.minor: n.bytes for _, n in machine.driver.topology.gpu_nodes(A)}
    machine.allocate_vram(process, 128, share // PAGE * PAGE)
    assert code_of(machine.allocate_vram, process, 128, nodes[128]) == errno.ENOMEM
    assert last(machine, "out of memory")["why"] == f"partition 0 has {nodes[128]} bytes"
    machine.allocate_vram(process, 129, MIB)


def test_where_system_memory_does_short_vram_falls_back_in_silence_and_uncharged() -> None:
    machine = machine_of()
    process = worker(machine, cgroup="/kubepods.slice")
    machine.write(f"{POD}/dmem.max", f"{REGION} 4M".encode())
    made = machine.allocate_vram(process, A, 8 * MIB, gtt_ok=True)
    assert (made.place, made.cgroup) == ("gtt", "")
    assert (used(machine), charged(machine), used(machine, what="gtt")) == (0, 0, 8 * MIB)
    assert not [e for e in machine.events if e["event"] == "out of memory"]
    assert machine.allocate_vram(process, A, 4 * MIB, gtt_ok=True).place == "vram"
    assert code_of(machine.allocate_vram, process, A, GTT, gtt_ok=True) == errno.ENOMEM
    machine.free(made)
    assert used(machine, what="gtt") == 0


def test_an_apu_has_no_vram_to_give_and_gives_system_memory() -> None:
    """B13: KFD memory of an APU is GTT; what dmem knows as VRAM is not touched."""
    machine = Machine(node("STRIX_POINT", count=1, kernel="7.0", driver="in-tree"))
    process = worker(machine, cgroup="/kubepods.slice")
    before = used(machine)
    made = machine.allocate_vram(process, A, 8 * MIB)
    assert (made.place, used(machine) - before, charged(machine)) == ("gtt", 0, 0)
    assert used(machine, what="gtt") == 8 * MIB


# How a process may: KFD, or the render node


def test_nothing_open_is_ebadf_and_a_render_node_alone_is_enough() -> None:
    machine = machine_of()
    process = machine.process()
    assert code_of(machine.allocate_vram, process, A, MIB) == errno.EBADF
    handle = machine.open("/dev/dri/renderD128", process)
    made = machine.allocate_vram(process, 128, MIB)
    assert (made.handle, made.gpu_id) == (handle.number, 0)
    assert code_of(machine.allocate_vram, process, B, MIB) == errno.EBADF
    assert str(process.pid) not in machine.list("/sys/class/kfd/kfd/proc")
    with pytest.raises(GpusimError, match="no GPU at"):
        machine.allocate_vram(process, "0000:99:00.0", 1)
    assert code_of(machine.allocate_vram, process, 255, 1) == errno.ENODEV


def test_a_directory_for_each_process_with_a_context_names_the_nodes_it_may_use() -> None:
    """kernel.md 6: fixed when /dev/kfd is opened, whatever the device cgroup becomes."""
    machine = machine_of(mode="DPX")
    kfd = machine.driver.kfd_major
    rules = DeviceRules.parse(f"c {kfd}:0 rw", "c 226:129 rw")
    process = worker(machine, devices=rules)
    nodes = [n.gpu_id for _, n in machine.driver.topology.gpu_nodes() if n.minor == 129]
    names = machine.list(f"/sys/class/kfd/kfd/proc/{process.pid}")
    assert [name for name in names if name.startswith("vram_")] == [f"vram_{gpu_id}" for gpu_id in nodes]
    machine.allocate_vram(process, 129, MIB)
    for hidden in (128, 136, B):
        assert code_of(machine.allocate_vram, process, hidden, MIB) == errno.EINVAL
    handle = next(iter(process.files.values()))
    machine.close(handle)
    assert str(process.pid) not in machine.list("/sys/class/kfd/kfd/proc")
    assert used(machine) == 0


def test_the_device_cgroup_decides_what_is_opened_and_which_node_is_read() -> None:
    machine = machine_of("6.14", "dkms-6.14.14", mode="DPX")
    kfd = machine.driver.kfd_major
    rules = DeviceRules.parse(f"c {kfd}:0 rw", "c 226:129 rw", "c 226:128 r")
    inside = machine.view(devices=rules)
    nodes = "/sys/class/kfd/kfd/topology/nodes"
    for name in ("gpu_id", "properties", "mem_banks/0/properties", "mem_banks/0/used_memory"):
        assert code_of(inside.read, f"{nodes}/8/{name}") == errno.EPERM  # read alone is not enough
        assert inside.read(f"{nodes}/9/{name}")
    process = machine.process(rules)
    assert code_of(machine.open, "/dev/dri/renderD128", process) == errno.EPERM
    machine.open("/dev/dri/renderD129", process)
    machine.open("/dev/kfd", process)
    assert code_of(machine.open, "/dev/kfd", machine.process(DeviceRules())) == errno.EPERM
    # no cgroup guards the PCI directory: everybody reads the use of all
    assert inside.read(f"/sys/bus/pci/devices/{A}/mem_info_vram_used")


def test_two_opens_of_kfd_are_one_context_and_the_last_close_ends_it() -> None:
    machine = machine_of()
    process = worker(machine, "/dev/kfd", "/dev/kfd", "/dev/dri/renderD128")
    machine.allocate_vram(process, A, MIB)
    first, second, render = process.files.values()
    machine.close(first)
    machine.close(render)
    assert used(machine) == MIB
    machine.close(second)
    assert used(machine) == charged(machine) == 0


def test_closing_the_render_node_frees_what_was_made_through_it() -> None:
    machine = machine_of()
    process = worker(machine, "/dev/dri/renderD128", "/dev/dri/renderD128")
    first, second = process.files.values()
    machine.allocate_vram(process, 128, MIB)
    machine.close(second)
    assert used(machine) == MIB
    machine.close(first)
    assert used(machine) == charged(machine) == 0


def test_the_end_of_a_process_frees_everything_it_had() -> None:
    machine = machine_of(mode="DPX")
    process = worker(machine, "/dev/kfd", "/dev/dri/renderD136", cgroup="/kubepods.slice")
    other = worker(machine)
    kept = machine.allocate_vram(other, A, MIB)
    machine.allocate_vram(process, 129, MIB)
    machine.allocate_vram(process, A, MIB)
    machine.evict(machine.allocate_vram(process, B, MIB))
    machine.occupy(process, 129, 7)
    machine.exit(process, reap=False)
    assert machine.vram.allocations == {kept.number: kept}
    assert used(machine) == charged(machine) == MIB
    assert charged(machine, POD) == used(machine, B) == used(machine, B, "gtt") == 0
    assert machine.vram.occupied == {}


def test_cu_occupancy_is_of_one_process_on_one_node() -> None:
    machine = machine_of(mode="CPX")
    process = worker(machine)
    number = next(n.gpu_id for _, n in machine.driver.topology.gpu_nodes(A) if n.minor == 131)
    file = f"/sys/class/kfd/kfd/proc/{process.pid}/stats_{number}/cu_occupancy"
    assert machine.read(file) == b"0\n"
    machine.occupy(process, 131, 32)
    assert machine.read(file) == b"32\n"
    for cus in (33, -1):
        assert code_of(machine.occupy, process, 131, cus) == errno.EINVAL
    assert code_of(machine.occupy, machine.process(), 131, 1) == errno.EINVAL


# Charges stay where they were made


def test_a_charge_stays_with_the_group_of_the_time_when_the_process_moves() -> None:
    machine = machine_of()
    machine.write(f"{POD}/cgroup.subtree_control", b"+dmem")
    for name in ("a", "b"):
        machine.mkdir(f"{POD}/{name}")
    process = worker(machine, cgroup="/kubepods.slice/a")
    first = machine.allocate_vram(process, A, 2 * MIB)
    machine.move(process, "/kubepods.slice/b")
    second = machine.allocate_vram(process, A, 3 * MIB)
    assert (first.cgroup, second.cgroup) == ("/kubepods.slice/a", "/kubepods.slice/b")
    assert (charged(machine, f"{POD}/a"), charged(machine, f"{POD}/b")) == (2 * MIB, 3 * MIB)
    machine.free(first)
    assert (charged(machine, f"{POD}/a"), charged(machine, f"{POD}/b")) == (0, 3 * MIB)
    assert charged(machine, POD) == 3 * MIB


def test_eviction_uncharges_and_whoever_brings_it_back_is_charged() -> None:
    machine = machine_of()
    machine.write(f"{POD}/cgroup.subtree_control", b"+dmem")
    for name in ("a", "b"):
        machine.mkdir(f"{POD}/{name}")
    owner, other = (worker(machine, cgroup=f"/kubepods.slice/{name}") for name in ("a", "b"))
    made = machine.allocate_vram(owner, A, 4 * MIB)
    number = machine.read("/sys/class/kfd/kfd/topology/nodes/8/gpu_id").decode().strip()
    assert code_of(machine.restore, made) == errno.EINVAL
    machine.evict(made)
    assert (made.place, made.cgroup) == ("gtt", "")
    assert (used(machine), charged(machine), used(machine, what="gtt")) == (0, 0, 4 * MIB)
    # KFD goes on counting what was asked for
    assert machine.read(f"/sys/class/kfd/kfd/proc/{owner.pid}/vram_{number}") == f"{4 * MIB}\n".encode()
    assert code_of(machine.evict, made) == errno.EINVAL
    machine.write(f"{POD}/b/dmem.max", f"{REGION} 1M".encode())
    assert code_of(machine.restore, made, other) == errno.ENOMEM
    assert made.place == "gtt"
    machine.write(f"{POD}/b/dmem.max", f"{REGION} max".encode())
    machine.restore(made, other)
    assert (charged(machine, f"{POD}/a"), charged(machine, f"{POD}/b")) == (0, 4 * MIB)
    machine.exit(owner)
    assert charged(machine, f"{POD}/b") == used(machine) == used(machine, what="gtt") == 0


def test_a_lower_limit_holds_once_enough_is_freed() -> None:
    """B54 and decision 30, to the end: written again after freeing, the limit is taken."""
    machine = machine_of()
    process = worker(machine, cgroup="/kubepods.slice")
    big, _ = machine.allocate_vram(process, A, 20 * MIB), machine.allocate_vram(process, A, 10 * MIB)
    line, file = f"{REGION} 16M\n".encode(), f"{POD}/dmem.max"
    machine.write(file, line)
    assert machine.read(file).startswith(f"{REGION} max\n".encode())
    machine.allocate_vram(process, A, MIB)
    machine.free(big)
    machine.write(file, line)
    assert machine.read(file).startswith(f"{REGION} {16 * MIB}\n".encode())
    machine.allocate_vram(process, A, 5 * MIB)
    assert code_of(machine.allocate_vram, process, A, 1) == errno.ENOMEM


# Hot-plug and switches


def test_a_switch_does_not_touch_the_region_or_its_limits() -> None:
    machine = machine_of()
    machine.write(f"{POD}/dmem.max", f"{REGION} 8M".encode())
    process = worker(machine, "/dev/dri/renderD128", cgroup="/kubepods.slice")
    machine.allocate_vram(process, A, MIB)
    machine.switch(A, "CPX")
    assert machine.read(f"{POD}/dmem.max") == f"{REGION} {8 * MIB}\n{OTHER} max\n".encode()
    assert charged(machine, POD) == used(machine) == MIB
    lost = worker(machine, "/dev/dri/renderD129")
    machine.switch(A, "SPX")
    assert code_of(machine.allocate_vram, lost, 129, MIB) == errno.ENODEV


def test_an_open_render_node_keeps_the_line_of_an_unplugged_gpu() -> None:
    machine = machine_of()
    process = worker(machine, "/dev/dri/renderD128", "/dev/dri/card0", cgroup="/kubepods.slice")
    made = machine.allocate_vram(process, A, 4 * MIB)
    machine.write(f"{POD}/dmem.max", f"{REGION} 8M".encode())
    machine.remove(A)
    assert made.lost
    assert machine.read(f"{POD}/dmem.max") == f"{REGION} {8 * MIB}\n{OTHER} max\n".encode()
    assert charged(machine, POD) == 4 * MIB
    for act in (machine.evict, machine.restore):
        assert code_of(act, made) == errno.ENODEV
    assert code_of(machine.allocate_vram, process, A, 1) == errno.ENODEV
    render, card = process.files.values()
    assert code_of(machine.use, render) == errno.ENODEV
    machine.close(render)
    assert charged(machine, POD) == 0
    machine.close(card)
    assert charged(machine, POD) is None
    assert machine.read(f"{ROOT}/dmem.capacity") == f"{OTHER} {VRAM}\n".encode()
    assert code_of(machine.write, f"{POD}/dmem.max", f"{REGION} 1".encode()) == errno.EINVAL


def test_a_returning_gpu_registers_a_fresh_region_last_and_empty() -> None:
    machine = machine_of()
    process = worker(machine, "/dev/kfd", "/dev/dri/renderD128", cgroup="/kubepods.slice")
    machine.allocate_vram(process, A, 40 * MIB)
    machine.write(f"{POD}/dmem.max", f"{REGION} 50M".encode())
    machine.remove(A)
    machine.add(A)
    # the old line is there until the last descriptor goes; the new one, of the same name, is behind it
    lines = machine.read(f"{POD}/dmem.current").decode().splitlines()
    assert lines == [f"{REGION} {40 * MIB}", f"{OTHER} 0", f"{REGION} 0"]
    assert used(machine) == 0
    machine.exit(process)
    assert machine.read(f"{POD}/dmem.max") == f"{OTHER} max\n{REGION} max\n".encode()
    again = worker(machine, cgroup="/kubepods.slice")
    machine.allocate_vram(again, A, 40 * MIB)
    assert charged(machine, POD) == used(machine) == 40 * MIB


def test_what_an_unplugged_gpu_held_does_not_count_when_it_returns() -> None:
    machine = machine_of()
    holder = worker(machine, "/dev/kfd")
    made = machine.allocate_vram(holder, A, 40 * MIB)
    machine.remove(A)
    machine.add(A)
    again = worker(machine)
    machine.allocate_vram(again, A, 50 * MIB)
    machine.free(made)
    assert used(machine) == charged(machine) == 50 * MIB
    assert code_of(machine.allocate_vram, holder, A, 1) == errno.EINVAL  # its context does not know it


# Forks


def test_a_fork_accounts_for_itself() -> None:
    machine = machine_of()
    process = worker(machine, "/dev/kfd", cgroup="/kubepods.slice")
    made = machine.allocate_vram(process, A, 4 * MIB)
    gone = worker(machine, "/dev/dri/renderD136")
    machine.remove(B)
    fork = machine.fork()
    twin: Allocation = fork.vram.get(made.number)
    fork.free(twin)
    fork.exit(fork.processes.get(gone.pid))
    assert (charged(fork, POD), used(fork)) == (0, 0)
    assert charged(fork, POD, OTHER) is None
    assert (charged(machine, POD), used(machine), charged(machine, POD, OTHER)) == (4 * MIB, 4 * MIB, 0)
    number = machine.read("/sys/class/kfd/kfd/topology/nodes/8/gpu_id").decode().strip()
    path = f"/sys/class/kfd/kfd/proc/{process.pid}/vram_{number}"
    assert (fork.read(path), machine.read(path)) == (b"0\n", f"{4 * MIB}\n".encode())
    assert fork.allocate_vram(fork.processes.get(process.pid), A, MIB).number == made.number + 1
    with pytest.raises(GpusimError, match="not of this node"):
        fork.free(made)
