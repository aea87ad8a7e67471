"""GPUs that reset, hang, change drivers, fail to probe; a driver that is late or anew (kernel.md 2.4, 7)."""

from __future__ import annotations

import contextlib
import errno
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpusim.errors import GpusimError
from gpusim.machine import Machine
from gpusim.remote import RemoteMachine
from gpusim.serve import serve
from gpusim.testing.machines import node

from .test_machine import everything

BDF, OTHER = "0000:75:00.0", "0000:05:00.0"
PCI = f"/sys/bus/pci/devices/{BDF}"
NODES = "/sys/class/kfd/kfd/topology/nodes"
OLD = {"kernel": "6.8.0-79-generic", "driver": "in-tree"}


def machine_of(count: int = 2, product: str = "MI355X", **fields: Any) -> Machine:
    return Machine(node(product, count, **fields))


def code_of(action: Any, *arguments: Any) -> int | None:
    with pytest.raises(OSError) as error:
        action(*arguments)
    return error.value.errno


# Reset


def test_a_gpu_in_reset_refuses_what_asks_the_hardware_and_the_others_do_not_notice() -> None:
    machine = machine_of()
    before = everything(machine)
    machine.reset(BDF)
    refused = {}
    for path in (path for path, content in before.items() if isinstance(content, bytes)):
        try:
            machine.read(path)
        except OSError as error:
            refused[path] = error.errno
    home = machine.gpu(BDF).home
    names = {path.removeprefix(f"{home}/") for path in refused if path.startswith(f"{home}/")}
    assert {"unique_id", "gpu_busy_percent", "current_compute_partition", "current_memory_partition"} <= names
    assert "hwmon/hwmon2/temp2_input" in names
    assert not names & {"hwmon/hwmon2/temp2_label", "mem_info_vram_total", "vendor", "numa_node"}
    assert set(refused.values()) == {errno.EPERM}
    assert all(path.startswith(home) for path in refused)
    machine.probe("/dev/dri/renderD128")
    machine.recover(BDF)
    assert everything(machine) == before


@pytest.mark.parametrize(
    ("kernel", "driver", "product", "read", "write"),
    [
        ("6.8.0-79-generic", "in-tree", "MI300X", None, None),
        ("6.14", "in-tree", "MI300X", errno.EPERM, errno.EBUSY),
        ("6.14", "dkms-6.14.14", "MI355X", errno.EPERM, errno.EBUSY),
        ("6.15", "in-tree", "MI355X", errno.EPERM, errno.EPERM),
        ("6.14", "dkms-6.16.13", "MI355X", errno.EPERM, errno.EPERM),
    ],
)
def test_what_partition_files_answer_in_reset_follows_the_release(
    kernel: str, driver: str, product: str, read: int | None, write: int | None
) -> None:
    machine = machine_of(1, product, kernel=kernel, driver=driver)
    machine.reset(BDF)
    if read is None:
        assert machine.read(f"{PCI}/current_compute_partition") == b"SPX\n"
        machine.switch(BDF, "CPX")
        assert machine.gpu(BDF).mode == "CPX"
        return
    assert code_of(machine.read, f"{PCI}/current_compute_partition") == read
    assert code_of(machine.switch, BDF, "CPX") == write
    assert code_of(machine.switch, BDF, "SPX") == write  # before "same mode as current"
    assert code_of(machine.switch, BDF, "TPX") == errno.EINVAL  # after the rules of the silicon
    assert machine.gpu(BDF).mode == "SPX"


# Hang


def test_a_hung_gpu_keeps_what_is_cached_and_answers_nothing_else() -> None:
    machine = machine_of()
    machine.hang(BDF)
    assert code_of(machine.read, f"{PCI}/gpu_busy_percent") == errno.EIO
    assert code_of(machine.read, f"{PCI}/hwmon/hwmon2/power1_input") == errno.EIO
    assert machine.read(f"{PCI}/current_compute_partition") == b"UNKNOWN\n"
    assert machine.read(f"{PCI}/vendor") == b"0x1002\n"
    assert machine.read(f"{PCI}/mem_info_vram_total")
    assert machine.read(f"{PCI}/unique_id")
    assert code_of(machine.probe, "/dev/dri/renderD128") == errno.EIO
    assert code_of(machine.switch, BDF, "CPX") == errno.EIO
    machine.probe("/dev/dri/renderD136")  # the next GPU's
    assert len(machine.list(NODES)) == 10
    machine.recover(BDF)
    machine.probe("/dev/dri/renderD128")


def test_only_a_gpu_that_amdgpu_drives_can_hang_reset_or_recover() -> None:
    machine = machine_of()
    machine.unbind(BDF)
    for action in (machine.hang, machine.reset, machine.recover):
        with pytest.raises(GpusimError, match="not bound to amdgpu"):
            action(BDF)


# Bind and unbind


def test_an_unbound_gpu_stays_on_the_bus_and_nowhere_else() -> None:
    machine = machine_of()
    process = machine.process()
    handle = machine.open("/dev/dri/renderD128", process)
    machine.unbind(BDF)
    assert "drm" not in machine.list(PCI)
    assert code_of(machine.readlink, f"{PCI}/driver") == errno.ENOENT
    assert BDF not in machine.list("/sys/bus/pci/drivers/amdgpu")
    left = set(machine.list("/sys/class/drm"))
    assert left == {"version", *(f"card{n}" for n in range(8, 16)), *(f"renderD{n}" for n in range(136, 144))}
    assert len(machine.list(NODES)) == 9
    assert code_of(machine.use, handle) == errno.ENODEV
    assert code_of(machine.unbind, BDF) == errno.ENODEV


def test_a_gpu_goes_to_vfio_pci_and_back() -> None:
    machine = machine_of()
    before = machine.list("/dev/dri")
    machine.unbind(BDF)
    machine.bind(BDF, "vfio-pci")
    assert machine.readlink(f"{PCI}/driver").endswith("/bus/pci/drivers/vfio-pci")
    assert "current_compute_partition" not in machine.list(PCI)
    assert code_of(machine.bind, BDF) == errno.EBUSY
    machine.reload()  # it has a driver, so amdgpu does not ask for it
    assert machine.gpu(BDF).driver == "vfio-pci"
    machine.unbind(BDF)
    machine.bind(BDF)
    assert machine.list("/dev/dri") == before
    assert machine.gpu(BDF).bound


def test_a_removed_gpu_can_neither_be_bound_nor_unbound() -> None:
    machine = machine_of()
    machine.remove(BDF)
    assert code_of(machine.bind, BDF) == errno.ENODEV
    assert code_of(machine.unbind, BDF) == errno.ENODEV


# Probe failure


def test_a_gpu_whose_firmware_fails_looks_unbound_until_it_is_mended() -> None:
    machine = machine_of()
    machine.fail_probe(BDF)
    assert machine.gpu(BDF).bound  # what is bound stays so
    machine.unbind(BDF)
    assert code_of(machine.bind, BDF) == errno.EINVAL
    assert machine.gpu(BDF).driver is None
    machine.reload()
    assert [gpu.bdf for gpu in machine.driver.gpus.values() if gpu.bound] == [OTHER]
    assert machine.events[-2]["event"] == "probe failed"
    machine.fail_probe(BDF, False)
    machine.bind(BDF)
    assert machine.gpu(BDF).bound


# The driver


def test_without_the_driver_there_is_no_trace_of_it_and_afterwards_all_is_back() -> None:
    machine = machine_of(gpu={"mode": "SPX"})
    before = everything(machine)
    kfd = f"{machine.driver.kfd_major} kfd"
    assert kfd in machine.read("/proc/devices").decode()
    machine.unload()
    for path in (
        "/sys/module/amdgpu",
        "/sys/class/kfd",
        "/dev/kfd",
        "/dev/dri",
        "/sys/bus/pci/drivers/amdgpu",
    ):
        assert code_of(machine.stat, path) == errno.ENOENT, path
    assert machine.list("/sys/class/drm") == ["version"]
    assert kfd not in machine.read("/proc/devices").decode()
    assert not [name for name in machine.list("/sys/devices/platform") if name.startswith("amdgpu_xcp")]
    assert b"vram" not in machine.read("/sys/fs/cgroup/dmem.capacity")
    assert code_of(machine.unload) == errno.ENOENT
    machine.load()
    assert code_of(machine.load) == errno.EEXIST
    assert everything(machine) == before


def test_the_driver_stays_while_a_process_holds_any_device_of_it() -> None:
    machine = machine_of()
    for path in ("/dev/kfd", "/dev/dri/renderD128", "/dev/dri/card8"):
        process = machine.process()
        machine.open(path, process)
        assert code_of(machine.unload) == errno.EBUSY
        machine.exit(process)
    process = machine.process()
    machine.open("/dev/dri/renderD128", process)
    machine.remove(BDF)
    assert code_of(machine.reload) == errno.EBUSY
    machine.exit(process)
    machine.reload()


def test_a_memory_mode_asked_for_holds_after_a_reload_with_the_automatic_compute_mode() -> None:
    machine = machine_of()
    machine.switch(BDF, "QPX")
    machine.write(f"{PCI}/current_memory_partition", b"NPS2")
    machine.reload()
    # one hive: its last request is every GPU's (kernel.md 2.4)
    assert {(gpu.mode, gpu.nps) for gpu in machine.driver.gpus.values()} == {("DPX", 2)}
    assert machine.read(f"{PCI}/current_memory_partition") == b"NPS2\n"
    assert len(machine.list(NODES)) == 8 + 4
    machine.reload()
    assert {(gpu.mode, gpu.nps) for gpu in machine.driver.gpus.values()} == {("DPX", 2)}


def test_a_compute_mode_does_not_outlive_the_driver() -> None:
    machine = machine_of()
    machine.switch(BDF, "CPX")
    machine.reload()
    assert machine.gpu(BDF).mode == "SPX"


def test_partition_devices_that_old_kernels_leave_behind_go_with_the_module() -> None:
    machine = machine_of(2, "MI300X", **OLD)
    machine.remove(BDF)
    machine.add(BDF)
    names = [name for name in machine.list("/sys/devices/platform") if name.startswith("amdgpu_xcp")]
    assert len(names) == 21
    machine.reload()
    names = [name for name in machine.list("/sys/devices/platform") if name.startswith("amdgpu_xcp")]
    assert sorted(names) == sorted(f"amdgpu_xcp.{n}" for n in range(14))


def test_a_gpu_plugged_in_without_the_driver_waits_for_it() -> None:
    machine = machine_of()
    machine.unload()
    machine.remove(BDF)
    machine.add(BDF)
    assert machine.gpu(BDF).driver is None
    machine.load()
    assert machine.gpu(BDF).bound


def test_memory_of_processes_is_gone_with_the_driver_and_regions_come_back_empty() -> None:
    machine = machine_of()
    used = machine.gpu(BDF).vram_used
    machine.reload()
    assert machine.gpu(BDF).vram_used == used
    assert machine.read("/sys/fs/cgroup/dmem.capacity").decode().count("vram") == 2


def test_a_fork_keeps_the_state_and_goes_its_own_way() -> None:
    machine = machine_of()
    machine.hang(BDF)
    machine.fail_probe(OTHER)
    twin = machine.fork()
    assert twin.gpu(BDF).hung
    assert twin.gpu(OTHER).probe_fails
    assert twin.describe() == machine.describe()
    assert code_of(twin.probe, "/dev/dri/renderD128") == errno.EIO
    twin.recover(BDF)
    assert code_of(machine.probe, "/dev/dri/renderD128") == errno.EIO
    twin.unload()
    assert machine.stat("/dev/kfd")
    assert code_of(twin.fork().stat, "/dev/kfd") == errno.ENOENT
    assert code_of(machine.probe, "/dev/dri/renderD128") == errno.EIO


def test_a_served_machine_has_the_same_actions_and_answers(tmp_path: Path) -> None:
    here, there = machine_of(), machine_of()
    with serve(there, str(tmp_path / "s")):
        far = RemoteMachine(str(tmp_path / "s"))
        for act in (
            lambda host: host.reset(BDF),
            lambda host: host.hang(OTHER),
            lambda host: host.recover(BDF),
            lambda host: host.load(),
            lambda host: host.fail_probe(BDF),
            lambda host: host.unbind(BDF),
            lambda host: host.bind(BDF),
            lambda host: host.fail_probe(BDF, False),
            lambda host: host.bind(BDF, "vfio-pci"),
            lambda host: host.unload(),
            lambda host: host.unload(),
            lambda host: host.unbind(BDF),
            lambda host: host.bind(BDF),
            lambda host: host.load(),
            lambda host: host.reload(),
        ):
            outcomes = []
            for host in (here, far):
                try:
                    act(host)
                    outcomes.append(None)
                except OSError as error:
                    outcomes.append(error.errno)
            assert outcomes[0] == outcomes[1]
            assert here.describe() == far.describe()
        assert [event["event"] for event in far.events] == [event["event"] for event in here.events]
        far.disconnect()


ACTIONS = st.sampled_from(
    [
        *("remove", "add", "unbind", "bind", "vfio", "load", "unload", "reset", "hang", "recover"),
        *("break", "mend", "SPX", "QPX", "CPX", "open", "exit", "NPS1", "NPS2"),
    ]
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(ACTIONS, st.sampled_from([BDF, OTHER])), max_size=20))
def test_whatever_happens_the_files_and_the_state_agree(history: list[tuple[str, str]]) -> None:
    """KFD lists what is bound, minors are nobody's twice, and after a mending reload all is there."""
    machine = machine_of()
    clients: list[Any] = []
    for action, bdf in history:
        with contextlib.suppress(OSError, GpusimError):
            perform(machine, clients, action, bdf)
        gpus = machine.driver.gpus.values()
        drm = [minor for gpu in gpus for nodes in gpu.drm for minor in nodes.minors]
        assert len(drm) == len(set(drm))
        assert all(gpu.bound == bool(gpu.drm) for gpu in gpus)
        assert all(gpu.present for gpu in gpus if gpu.driver)
        listed = {found.facts.bdf for _, found in machine.driver.topology.gpu_nodes()}
        assert listed == {gpu.bdf for gpu in gpus if gpu.bound}
        assert machine.driver.loaded or not listed
        regions = machine.read("/sys/fs/cgroup/dmem.capacity").decode()
        assert all(f"drm/{gpu.bdf}/vram" in regions for gpu in gpus if gpu.bound)
        assert machine.fork().describe() == machine.describe()
    for process in clients:
        machine.exit(process)
    for gpu in list(machine.driver.gpus.values()):
        machine.fail_probe(gpu.bdf, False)
        if not gpu.present:
            machine.add(gpu.bdf)
        if gpu.driver not in (None, "amdgpu"):
            machine.unbind(gpu.bdf)
    if machine.driver.loaded:
        machine.unload()
    assert "dri" not in machine.list("/dev")
    assert machine.read("/sys/fs/cgroup/dmem.capacity") == b""
    machine.load()
    assert {gpu.driver for gpu in machine.driver.gpus.values()} == {"amdgpu"}
    assert machine.gpu(BDF).drm[0].render == 128


def perform(machine: Machine, clients: list[Any], action: str, bdf: str) -> None:
    if action == "open":
        process = machine.process()
        clients.append(process)
        minor = machine.gpu(bdf).drm[0].render if machine.gpu(bdf).drm else 0
        machine.open(f"/dev/dri/renderD{minor}", process)
    elif action == "exit":
        if clients:
            machine.exit(clients.pop())
    elif action in ("load", "unload"):
        getattr(machine, action)()
    elif action in ("break", "mend"):
        machine.fail_probe(bdf, action == "break")
    elif action == "vfio":
        machine.bind(bdf, "vfio-pci")
    elif action.startswith("NPS"):
        machine.write(f"/sys/bus/pci/devices/{bdf}/current_memory_partition", action.encode())
    elif action in ("SPX", "QPX", "CPX"):
        machine.switch(bdf, action)
    else:
        getattr(machine, action)(bdf)
