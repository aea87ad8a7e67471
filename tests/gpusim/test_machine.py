"""The machine as a host and what can be done to it: callers, processes, hot-plug, forks, files."""

from __future__ import annotations

import errno
import json
from typing import Any

import pytest

from gpusim.errors import GpusimError
from gpusim.machine import Machine
from gpusim.process import DeviceRules
from gpusim.spec import CardSpec
from gpusim.testing.machines import BUSES, node

BDF = "0000:75:00.0"
OTHER = "0000:05:00.0"
NODES = "/sys/class/kfd/kfd/topology/nodes"


def machine_of(count: int = 2, **fields: Any) -> Machine:
    return Machine(node(count=count, **fields))


def everything(machine: Machine) -> dict[str, object]:
    """Every path of the node with what root reads there."""
    found: dict[str, object] = {}
    for path, entry in machine.tree.every_file():
        kind = entry.kind.name
        if kind == "FILE":
            try:
                found[path] = machine.read(path)
            except OSError as error:  # a file that can only be written, or has no value now
                found[path] = error.errno
        elif kind == "LINK":
            found[path] = machine.readlink(path)
        else:
            found[path] = machine.stat(path)
    return found


def code_of(action: Any, *arguments: Any) -> int | None:
    with pytest.raises(OSError) as error:
        action(*arguments)
    return error.value.errno


# Device nodes


def test_device_nodes_carry_udevs_groups_and_modes() -> None:
    machine = machine_of(1)
    for path, numbers in {
        "/dev/dri/card0": (226, 0),
        "/dev/dri/renderD128": (226, 128),
        "/dev/kfd": (machine.driver.kfd_major, 0),
    }.items():
        stat = machine.stat(path)
        assert (stat.kind.name, stat.mode, stat.rdev) == ("CHARACTER", 0o660, numbers)
    gids = [machine.tree.node(path).gid for path in ("/dev/dri/card0", "/dev/dri/renderD128", "/dev/kfd")]
    assert gids[0] != gids[1] == gids[2] != 0


def test_group_members_open_and_others_get_eacces() -> None:
    machine = machine_of(1)
    render = machine.tree.node("/dev/dri/renderD128").gid
    machine.view(uid=1000, gids=(render,)).probe("/dev/dri/renderD128")
    assert code_of(machine.view(uid=1000).probe, "/dev/dri/renderD128") == errno.EACCES
    assert code_of(machine.view(uid=1000, gids=(render,)).probe, "/dev/dri/card0") == errno.EACCES


def test_a_device_cgroup_answers_eperm() -> None:
    machine = machine_of(1)
    container = machine.view(devices=DeviceRules.only((226, 128)))
    container.probe("/dev/dri/renderD128")
    assert code_of(container.probe, "/dev/dri/card0") == errno.EPERM
    assert code_of(container.probe, "/dev/kfd") == errno.EPERM


def test_a_container_reads_only_its_own_kfd_nodes_but_lists_all() -> None:
    # kernel.md 1.8
    machine = machine_of(1, gpu={"mode": "DPX"})
    container = machine.view(devices=DeviceRules.only((226, 129)))
    assert len(container.list(NODES)) == 10
    assert code_of(container.read, f"{NODES}/8/properties") == errno.EPERM
    assert b"drm_render_minor 129\n" in container.read(f"{NODES}/9/properties")
    assert container.read(f"{NODES}/0/properties")
    assert container.read(f"/sys/bus/pci/devices/{BDF}/unique_id")


@pytest.mark.parametrize("seed", range(25))
def test_the_major_of_kfd_is_dynamic_and_told_everywhere_alike(seed: int) -> None:
    machine = machine_of(1, seed=seed)
    major = machine.driver.kfd_major
    assert 234 <= major <= 254
    assert machine.read("/sys/class/kfd/kfd/dev") == f"{major}:0\n".encode()
    assert f"{major} kfd\n".encode() in machine.read("/proc/devices")
    assert machine.tree.resolve(f"/sys/dev/char/{major}:0") == "/sys/devices/virtual/kfd/kfd"


def test_by_path_names_lead_to_the_nodes() -> None:
    machine = machine_of(1)
    resolve = machine.tree.resolve
    assert resolve(f"/dev/dri/by-path/pci-{BDF}-render") == "/dev/dri/renderD128"
    assert resolve("/dev/dri/by-path/platform-amdgpu_xcp_0-card") == "/dev/dri/card1"


# Processes


def test_a_process_holds_what_it_opened_until_it_closes_it() -> None:
    machine = machine_of(1)
    process = machine.process()
    handle = machine.open(f"/dev/dri/by-path/pci-{BDF}-render", process)
    assert handle.path == "/dev/dri/renderD128"
    assert machine.processes.holding((226, 128)) == [process]
    machine.use(handle)
    machine.close(handle)
    assert machine.processes.holding((226, 128)) == []
    assert code_of(machine.use, handle) == errno.EBADF
    assert [e["event"] for e in machine.events[-2:]] == ["opened", "closed"]


def test_a_refused_open_leaves_nothing_behind() -> None:
    machine = machine_of(1)
    process = machine.process(devices=DeviceRules())
    assert code_of(machine.open, "/dev/kfd", process) == errno.EPERM
    assert code_of(machine.open, "/dev/dri/renderD131", machine.process()) == errno.ENOENT
    assert process.files == {}
    assert machine.events[-1]["event"] == "probed"


def test_the_end_of_a_process_closes_everything_it_held() -> None:
    machine = machine_of(1)
    process = machine.process()
    for path in ("/dev/kfd", "/dev/dri/renderD128"):
        machine.open(path, process)
    machine.exit(process)
    assert len(machine.processes) == 0
    assert [e["path"] for e in machine.events[-2:]] == ["/dev/kfd", "/dev/dri/renderD128"]


def test_a_probe_of_kfd_does_not_leave_a_context() -> None:
    machine = machine_of(1)
    machine.probe("/dev/kfd")
    machine.switch(BDF, "CPX")


# Hot-plug


def test_a_removed_gpu_is_gone_from_every_list() -> None:
    machine = machine_of(3)
    home = machine.gpu(OTHER).home
    machine.remove(OTHER)
    assert OTHER not in machine.list("/sys/bus/pci/devices")
    assert OTHER not in machine.list("/sys/bus/pci/drivers/amdgpu")
    assert code_of(machine.stat, home) == errno.ENOENT
    assert len([n for n in machine.list("/dev/dri") if n.startswith("renderD")]) == 16
    assert "renderD136" not in machine.list("/sys/class/drm")
    assert "226:136" not in machine.list("/sys/dev/char")
    assert code_of(machine.probe, "/dev/dri/renderD136") == errno.ENOENT
    owners = [(index, found.facts.bdf) for index, found in machine.driver.topology.gpu_nodes()]
    assert owners == [(8, BDF), (9, "0000:65:00.0")]


def test_what_was_open_on_a_removed_gpu_answers_enodev_for_ever() -> None:
    machine = machine_of(2)
    process = machine.process()
    render, card = machine.open("/dev/dri/renderD136", process), machine.open("/dev/dri/card9", process)
    other, kfd = machine.open("/dev/dri/renderD128", process), machine.open("/dev/kfd", process)
    machine.remove(OTHER)
    machine.add(OTHER)
    assert [code_of(machine.use, handle) for handle in (render, card)] == [errno.ENODEV] * 2
    machine.use(other)
    machine.use(kfd)
    again = machine.open("/dev/dri/renderD136", process)
    machine.use(again)
    machine.close(render)
    assert code_of(machine.use, render) == errno.EBADF


def test_a_containers_own_device_node_outlives_the_device_and_answers_enodev() -> None:
    machine = machine_of(2)
    machine.mkdir("/run/containers/a/dev/dri")
    path = "/run/containers/a/dev/dri/renderD136"
    machine.mknod(path, 226, 136)
    machine.probe(path)
    machine.remove(OTHER)
    assert code_of(machine.probe, path) == errno.ENODEV
    machine.add(OTHER)
    machine.probe(path)


def test_numbers_without_a_driver_answer_enxio_and_wrong_minors_enodev() -> None:
    machine = machine_of(1)
    for name, numbers in {
        "a": (509, 0),
        "b": (machine.driver.kfd_major, 1),
        "c": (226, 63),
        "d": (226, 131),
    }.items():
        machine.mknod(f"/run/{name}", *numbers)
    assert code_of(machine.probe, "/run/a") == errno.ENXIO
    assert code_of(machine.probe, "/run/b") == errno.ENODEV
    assert code_of(machine.probe, "/run/c") == errno.ENODEV
    assert code_of(machine.probe, "/run/d") == errno.ENOENT  # a partition SPX does not have


def test_mknod_refuses_what_the_kernel_refuses() -> None:
    machine = machine_of(1)
    assert code_of(machine.mknod, "/sys/x", 226, 0) == errno.EPERM
    assert code_of(machine.mknod, "/dev/kfd", 226, 0) == errno.EEXIST
    assert code_of(machine.mknod, "/nowhere/x", 226, 0) == errno.ENOENT
    assert code_of(machine.mknod, "/dev/kfd/x", 226, 0) == errno.ENOTDIR


def test_a_returning_gpu_takes_the_freed_minors_and_joins_kfd_last_in_the_automatic_mode() -> None:
    machine = machine_of(2, gpu={"mode": "CPX"})
    before = machine.gpu(BDF).drm
    machine.remove(BDF)
    machine.add(BDF)
    gpu = machine.gpu(BDF)
    assert (gpu.drm, gpu.mode) == (before, "SPX")
    assert [found.facts.bdf for _, found in machine.driver.topology.gpu_nodes()] == [OTHER] * 8 + [BDF]


def test_a_returning_guest_keeps_the_mode_its_host_chose() -> None:
    machine = Machine(node("MI355X-VF", 1, kernel="7.0", driver="in-tree", gpu={"mode": "DPX"}))
    machine.remove(BDF)
    machine.add(BDF)
    assert machine.gpu(BDF).mode == "DPX"


def test_a_returning_gpu_has_the_numa_node_that_firmware_says() -> None:
    machine = machine_of(1)
    machine.write(f"/sys/bus/pci/devices/{BDF}/numa_node", b"5")
    machine.remove(BDF)
    machine.add(BDF)
    assert machine.read(f"/sys/bus/pci/devices/{BDF}/numa_node") == b"0\n"


def test_another_device_may_take_the_freed_minors_first() -> None:
    machine = machine_of(2)
    first, second = (machine.gpu(bdf).drm for bdf in (BDF, OTHER))
    machine.remove(BDF)
    machine.remove(OTHER)
    machine.add(OTHER)
    machine.add(BDF)
    assert (machine.gpu(OTHER).drm, machine.gpu(BDF).drm) == (first, second)


def test_after_a_removal_beside_a_bmc_the_missing_partition_appears() -> None:
    # The freed minors of any GPU let the last one complete its eight when it probes again.
    machine = machine_of(8, bmc=True, minors_per_type=64)
    last = f"0000:{BUSES[-1]}:00.0"
    assert len(machine.gpu(last).drm) == 7
    machine.remove(BDF)
    machine.remove(last)
    machine.add(last)
    assert len(machine.gpu(last).drm) == 8
    machine.add(BDF)
    assert len(machine.gpu(BDF).drm) == 7


def test_removing_twice_or_adding_what_is_there_is_the_callers_mistake() -> None:
    machine = machine_of(1)
    with pytest.raises(GpusimError, match="plugged in already"):
        machine.add(BDF)
    machine.remove(BDF)
    with pytest.raises(GpusimError, match="not plugged in"):
        machine.remove(BDF)
    with pytest.raises(GpusimError, match=BDF):
        machine.remove("0000:ff:00.0")
    assert code_of(machine.switch, BDF, "CPX") == errno.ENOENT


def test_the_last_gpu_takes_dev_dri_with_it() -> None:
    machine = machine_of(1)
    machine.remove(BDF)
    assert machine.list("/dev") == ["kfd", "null"]
    machine.add(BDF)
    assert machine.list("/dev") == ["dri", "kfd", "null"]


def test_an_unbound_gpu_can_come_and_go() -> None:
    machine = machine_of(1, gpu={"bound": "vfio-pci"})
    machine.remove(BDF)
    machine.add(BDF)
    assert machine.gpu(BDF).driver == "vfio-pci"


# Forks


def test_a_fork_is_equal_and_goes_its_own_way() -> None:
    machine = machine_of(2)
    machine.put("/etc/note", b"one")
    fork = machine.fork()
    assert everything(fork) == everything(machine)
    before, events = everything(machine), list(machine.events)
    fork.switch(BDF, "CPX")
    fork.write(f"/sys/bus/pci/devices/{BDF}/current_memory_partition", b"NPS2")
    fork.put("/etc/note", b"two")
    fork.remove(OTHER)
    fork.gpu(BDF).vram_used = 5
    fork.process()
    assert everything(machine) == before
    assert everything(machine.fork()) == before  # a new tree, so nothing remembered speaks for the state
    assert machine.events == events
    assert machine.driver.requested_nps == {}
    assert machine.driver.topology is not fork.driver.topology
    assert len(machine.processes) == 0
    machine.switch(OTHER, "DPX")
    assert not fork.gpu(OTHER).present


def test_a_fork_has_the_same_processes_and_what_they_hold() -> None:
    machine = machine_of(2)
    process = machine.process()
    handle = machine.open("/dev/kfd", process)
    gone = machine.open("/dev/dri/renderD136", process)
    machine.remove(OTHER)
    fork = machine.fork()
    assert code_of(fork.switch, BDF, "CPX") == errno.EBUSY
    assert code_of(fork.use, fork.processes.handle(gone.number)) == errno.ENODEV
    fork.close(fork.processes.handle(handle.number))
    fork.switch(BDF, "CPX")
    assert code_of(machine.switch, BDF, "CPX") == errno.EBUSY


def test_a_forks_device_nodes_ask_the_forks_driver() -> None:
    machine = machine_of(2)
    machine.mkdir("/run/c")
    machine.mknod("/run/c/render", 226, 136)
    machine.mknod("/dev/extra", 226, 128)
    fork = machine.fork()
    fork.remove(OTHER)
    machine.probe("/run/c/render")
    assert code_of(fork.probe, "/run/c/render") == errno.ENODEV
    fork.probe("/dev/extra")


# cgroup, proc, ordinary files


@pytest.mark.parametrize(
    ("kernel", "driver", "controller", "regions"),
    [
        ("6.8.0-136-generic", "dkms-6.14.14", False, 0),
        ("6.14", "in-tree", True, 0),  # kernel.md 4.1: pure in-tree 6.14 registers nothing
        ("6.14", "dkms-6.14.14", True, 2),
        ("6.15", "in-tree", True, 2),
    ],
)
def test_dmem_by_kernel_and_driver(kernel: str, driver: str, controller: bool, regions: int) -> None:
    machine = machine_of(2, kernel=kernel, driver=driver)
    controllers = machine.read("/sys/fs/cgroup/cgroup.controllers").decode().split()
    assert ("dmem" in controllers) == controller
    if controller:
        assert controllers[-1] == "dmem"
        lines = machine.read("/sys/fs/cgroup/dmem.capacity").decode().splitlines()
        assert lines == [f"drm/{bdf}/vram 309220868096" for bdf in (BDF, OTHER)][:regions]
    else:
        assert code_of(machine.read, "/sys/fs/cgroup/dmem.capacity") == errno.ENOENT


def test_a_region_leaves_with_its_gpu_and_returns_last() -> None:
    machine = machine_of(2)
    machine.remove(BDF)
    machine.add(BDF)
    lines = machine.read("/sys/fs/cgroup/dmem.capacity").decode().splitlines()
    assert [line.split("/")[1] for line in lines] == [OTHER, BDF]


def test_a_fixture_may_say_that_no_region_is_registered() -> None:
    assert machine_of(2, dmem_regions=False).read("/sys/fs/cgroup/dmem.capacity") == b""


@pytest.mark.parametrize(("driver", "name"), [("systemd", "kubepods.slice"), ("cgroupfs", "kubepods")])
def test_the_group_of_all_pods(driver: str, name: str) -> None:
    machine = machine_of(1, cgroup_driver=driver)
    assert machine.stat(f"/sys/fs/cgroup/{name}").kind.name == "DIRECTORY"


def test_the_running_kernel_is_told() -> None:
    assert machine_of(1, kernel="6.14.0-2-test").read("/proc/sys/kernel/osrelease") == b"6.14.0-2-test\n"


def test_programs_keep_files_where_they_may() -> None:
    machine = machine_of(1)
    machine.mkdir("/var/run/cdi")
    machine.put("/var/run/cdi/amd.json", b"{}")
    machine.mkdir("/usr/local/vgpu")
    machine.copy("/var/run/cdi/amd.json", "/usr/local/vgpu/copy", 0o600)
    assert machine.read("/usr/local/vgpu/copy") == b"{}"
    machine.unlink("/var/run/cdi/amd.json")
    assert machine.list("/var/run/cdi") == []
    assert code_of(machine.put, "/sys/new", b"") == errno.EACCES
    assert code_of(machine.view(readonly=["/usr"]).put, "/usr/local/vgpu/x", b"") == errno.EROFS


def test_a_program_that_is_not_installed_is_enoent() -> None:
    machine = machine_of(1)
    assert code_of(machine.run, ["amd-smi", "list"]) == errno.ENOENT


# Describing


def test_a_description_can_be_written_as_json_and_tells_every_partition() -> None:
    card = CardSpec("i915", "0000:02:00.0", 0x8086, 0x56C0, before=2)
    machine = machine_of(2, bmc=True, cards=(card,), gpu={"mode": "DPX"})
    machine.open(
        "/dev/kfd", machine.process(devices=DeviceRules.only((226, 128), (machine.driver.kfd_major, 0)))
    )
    described = json.loads(json.dumps(machine.describe()))
    assert json.loads(json.dumps(machine.events))
    first = described["gpus"][0]["partitions"]
    assert [(p["partition"], p["device"], p["card"], p["render"]) for p in first[:3]] == [
        (0, BDF, 1, 128),
        (1, "amdgpu_xcp_0", 2, 129),
        (2, "amdgpu_xcp_1", 3, 130),
    ]
    assert [p["valid"] for p in first] == [True, True] + [False] * 6
    assert [c["card"] for c in described["cards"]] == [0, 17]
    assert [n["minor"] for n in described["kfd"]["gpu_nodes"]] == [128, 129, 136, 137]
    assert described["processes"][0]["open"] == [{"handle": 1, "path": "/dev/kfd"}]


def test_the_same_description_gives_the_same_node_byte_for_byte() -> None:
    spec = node(bmc=True, gpu={"mode": "QPX"})
    first, second = Machine(spec), Machine(spec)
    assert everything(first) == everything(second)
    assert first.events == second.events
