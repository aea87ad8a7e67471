"""dmem files by kernel release: which exist, what a write does, what is read back (kernel.md 4.1 to 4.4)."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gpusim.dmem_parse import UNLIMITED
from gpusim.machine import Machine
from gpusim.spec import GpuSpec
from gpusim.testing.machines import node

A, B = "0000:75:00.0", "0000:05:00.0"
REGION, OTHER = f"drm/{A}/vram", f"drm/{B}/vram"
SIZE = 309220868096
POD = "/sys/fs/cgroup/kubepods.slice"
GIB = 1 << 30

RELEASES = [
    ("6.14", "dkms-6.14.14"),
    ("6.15", "in-tree"),
    ("6.15", "dkms-6.16.13"),
    ("7.0", "in-tree"),
    ("7.0", "dkms-6.16.13"),
    ("7.2", "in-tree"),
    ("7.2", "dkms-6.16.13"),
]
"""Those on which amdgpu has a region; on an in-tree 6.14 it has none, see below."""
OOPSES = {"6.14", "6.15"}
SINGLE = {"7.2"}


def machine_of(kernel: str = "7.0", driver: str = "in-tree", count: int = 2) -> Machine:
    return Machine(node(count=count, kernel=kernel, driver=driver))


def code_of(act: Callable[..., object], *args: Any, **kwargs: Any) -> int | None:
    try:
        act(*args, **kwargs)
    except OSError as error:
        return error.errno
    return None


def value_of(machine: Machine, file: str, region: str = REGION) -> str:
    for line in machine.read(file).decode().splitlines():
        name, _, value = line.partition(" ")
        if name == region:
            return value
    raise AssertionError(f"{region} is not listed")


@pytest.fixture(params=RELEASES, ids=[f"{kernel}-{driver}" for kernel, driver in RELEASES])
def machine(request: pytest.FixtureRequest) -> Machine:
    kernel, driver = request.param
    return machine_of(kernel, driver)


def kernel_of(machine: Machine) -> str:
    return machine.spec.kernel


# Which files


@pytest.mark.parametrize(
    ("kernel", "driver", "regions"),
    [
        ("6.14", "in-tree", 0),
        ("6.14", "dkms-6.14.14", 2),
        ("6.14", "dkms-6.12.12", 0),
        ("6.15", "in-tree", 2),
        ("7.2", "in-tree", 2),
    ],
)
def test_regions_by_driver_and_kernel(kernel: str, driver: str, regions: int) -> None:
    machine = machine_of(kernel, driver)
    both = [f"{REGION} {SIZE}", f"{OTHER} {SIZE}"][:regions]
    assert machine.read("/sys/fs/cgroup/dmem.capacity").decode().splitlines() == both
    assert machine.read(f"{POD}/dmem.max").decode().splitlines() == [
        line.replace(str(SIZE), "max") for line in both
    ]


def test_a_kernel_before_6_14_has_no_dmem_file_at_all() -> None:
    machine = machine_of("6.8.0-136-generic", "dkms-6.14.14")
    assert not [name for name in machine.list(POD) if name.startswith("dmem")]
    assert code_of(machine.write, f"{POD}/dmem.max", b"x 1") == errno.ENOENT
    assert code_of(machine.write, "/sys/fs/cgroup/cgroup.subtree_control", b"+dmem") == errno.EINVAL


def test_capacity_is_of_the_root_and_limits_are_of_the_others(machine: Machine) -> None:
    def found(path: str) -> dict[str, int]:
        return {
            name: machine.stat(f"{path}/{name}").mode
            for name in machine.list(path)
            if name.startswith("dmem")
        }

    assert found("/sys/fs/cgroup") == {"dmem.capacity": 0o444, "dmem.current": 0o444}
    expected = {"dmem.current": 0o444, "dmem.max": 0o644, "dmem.min": 0o644, "dmem.low": 0o644}
    if kernel_of(machine) == "7.2":
        expected["dmem.peak"] = 0o444
    assert found(POD) == expected


def test_files_come_and_go_in_all_children_at_once_and_disabling_drops_limits(machine: Machine) -> None:
    for name in ("a", "b"):
        machine.mkdir(f"{POD}/{name}")
        assert "dmem.max" not in machine.list(f"{POD}/{name}")
    machine.write(f"{POD}/cgroup.subtree_control", b"+dmem")
    for name in ("a", "b"):
        machine.write(f"{POD}/{name}/dmem.max", f"{REGION} 1G".encode())
    machine.write(f"{POD}/cgroup.subtree_control", b"-dmem")
    assert code_of(machine.read, f"{POD}/a/dmem.max") == errno.ENOENT
    assert code_of(machine.write, f"{POD}/b/dmem.max", f"{REGION} 1G".encode()) == errno.ENOENT
    machine.write(f"{POD}/cgroup.subtree_control", b"+dmem")
    assert {value_of(machine, f"{POD}/{name}/dmem.max") for name in ("a", "b")} == {"max"}


def test_every_file_lists_every_region_in_order_of_registration(machine: Machine) -> None:
    assert machine.read(f"{POD}/dmem.max") == f"{REGION} max\n{OTHER} max\n".encode()
    for which in ("min", "low", "current"):
        assert machine.read(f"{POD}/dmem.{which}") == f"{REGION} 0\n{OTHER} 0\n".encode()


def test_partitions_have_no_region_of_their_own() -> None:
    machine = Machine(node(count=1, kernel="7.0", driver="in-tree", gpu={"mode": "CPX"}))
    assert machine.read("/sys/fs/cgroup/dmem.capacity") == f"{REGION} {SIZE}\n".encode()
    machine.switch(A, "DPX")
    assert machine.read("/sys/fs/cgroup/dmem.capacity") == f"{REGION} {SIZE}\n".encode()


# Writes: every case of kernel.md 4.3 and B52, with the errno and what is read back


WRITES: list[tuple[bytes, int | None, str]] = [
    (f"{REGION} 17179869184".encode(), None, "17179869184"),
    (f"{REGION} 17179869184\n".encode(), None, "17179869184"),
    (f"{REGION} max\n".encode(), None, "max"),
    (f"{REGION} 16G".encode(), None, "17179869184"),
    (f"{REGION}\t16g\n".encode(), None, "17179869184"),
    (f"  {REGION} 1M  \n".encode(), None, "1048576"),
    (f"{REGION} 0x10".encode(), None, "16"),
    (f"{REGION} 010".encode(), None, "8"),
    (f"{REGION} K".encode(), None, "0"),
    (f"{REGION} 16E".encode(), None, "0"),
    (f"{REGION} 1000001".encode(), None, "1000001"),  # no page rounding
    (f"{REGION} {SIZE * 2}".encode(), None, str(SIZE * 2)),  # above capacity
    (f"{REGION} {UNLIMITED - 1}".encode(), None, str(UNLIMITED - 1)),
    (f"{REGION} {UNLIMITED}".encode(), None, "max"),
    (f"{REGION} 1P".encode(), None, str(1 << 50)),
    (f"{REGION} 4E".encode(), None, "max"),
    (f"{REGION}0 1".encode(), errno.EINVAL, "5"),
    (f"{REGION.upper()} 1".encode(), errno.EINVAL, "5"),
    (f"{REGION} 16GB".encode(), errno.EINVAL, "5"),
    (f"{REGION} 16GiB".encode(), errno.EINVAL, "5"),
    (f"{REGION} MAX".encode(), errno.EINVAL, "5"),
    (f"{REGION} -1".encode(), errno.EINVAL, "5"),
    (f"{REGION} +1".encode(), errno.EINVAL, "5"),
    (f"{REGION} 1.5G".encode(), errno.EINVAL, "5"),
    (f"{REGION}  1".encode(), errno.EINVAL, "5"),
    (f"{REGION} 1 2".encode(), errno.EINVAL, "5"),
    (f"{REGION} 08".encode(), errno.EINVAL, "5"),
    (b"x" * 4097, errno.E2BIG, "5"),
    (b"17179869184", errno.EINVAL, "5"),  # an unknown region, without a value
    (b"", None, "5"),
]


@pytest.mark.parametrize(("data", "code", "value"), WRITES, ids=[str(data[-24:]) for data, _, _ in WRITES])
def test_a_write_of_one_line(machine: Machine, data: bytes, code: int | None, value: str) -> None:
    for which in ("max", "min", "low"):
        machine.write(f"{POD}/dmem.{which}", f"{REGION} 5".encode())
        if code is None:
            assert machine.write(f"{POD}/dmem.{which}", data) == len(data)
        else:
            assert code_of(machine.write, f"{POD}/dmem.{which}", data) == code
        assert value_of(machine, f"{POD}/dmem.{which}") == value
        assert value_of(machine, f"{POD}/dmem.{which}", OTHER) == ("max" if which == "max" else "0")
    assert not [event for event in machine.events if event["event"] == "oops"]


@pytest.mark.parametrize(
    ("data", "old", "new", "old_code"),
    [
        (f"{REGION} 1\n{OTHER} 2\n", ("1", "2"), ("7", "7"), None),
        (f"\n{REGION} 1\n\n{OTHER} 2", ("1", "2"), ("7", "7"), None),
        (f"{REGION} 1\n{OTHER} 2GB\n", ("1", "7"), ("7", "7"), errno.EINVAL),
        (f"{REGION} 1\nnone 2\n{OTHER} 3", ("1", "7"), ("7", "7"), errno.EINVAL),
        (f"{REGION} 1\n{REGION} 2", ("2", "7"), ("7", "7"), None),
    ],
)
def test_several_lines_are_applied_until_the_first_bad_one_or_refused(
    machine: Machine, data: str, old: tuple[str, str], new: tuple[str, str], old_code: int | None
) -> None:
    file = f"{POD}/dmem.max"
    for region in (REGION, OTHER):
        machine.write(file, f"{region} 7".encode())
    single = kernel_of(machine) in SINGLE
    assert code_of(machine.write, file, data.encode()) == (errno.EINVAL if single else old_code)
    assert (value_of(machine, file), value_of(machine, file, OTHER)) == (new if single else old)


@pytest.mark.parametrize(("data", "code"), [(data, code) for data, code, _ in WRITES])
def test_an_in_tree_6_14_has_no_region_of_amdgpu_and_takes_no_limit(data: bytes, code: int | None) -> None:
    """Unknown region comes before missing value: EINVAL, and never an oops."""
    machine = machine_of("6.14")
    expected = errno.E2BIG if code == errno.E2BIG else errno.EINVAL if data else None
    for which in ("max", "min", "low"):
        assert code_of(machine.write, f"{POD}/dmem.{which}", data) == expected
        assert machine.read(f"{POD}/dmem.{which}") == b""
    assert code_of(machine.write, f"{POD}/dmem.max", REGION.encode()) == errno.EINVAL
    assert code_of(machine.write, f"{POD}/dmem.max", b"\n") is None
    assert not [event for event in machine.events if event["event"] == "oops"]


def test_another_drivers_region_on_6_14_would_oops_as_well() -> None:
    machine = Machine(node(count=1, kernel="6.14", driver="in-tree", dmem_regions=True))
    assert code_of(machine.write, f"{POD}/dmem.max", REGION.encode()) == errno.EINVAL
    assert machine.events[-1]["event"] == "oops"


@pytest.mark.parametrize("data", [b"\n", b"  ", b" \n\n"])
def test_a_blank_write(machine: Machine, data: bytes) -> None:
    expected = errno.EINVAL if kernel_of(machine) in SINGLE else None
    assert code_of(machine.write, f"{POD}/dmem.max", data) == expected


@pytest.mark.parametrize("data", [REGION, f"{REGION}\n", f"{REGION} ", f"  {REGION}\t\n"])
def test_a_region_without_a_value_is_einval_and_an_oops_up_to_6_19(machine: Machine, data: str) -> None:
    machine.write(f"{POD}/dmem.max", f"{REGION} 5".encode())
    assert code_of(machine.write, f"{POD}/dmem.max", data.encode()) == errno.EINVAL
    assert value_of(machine, f"{POD}/dmem.max") == "5"
    oopses = [event["why"] for event in machine.events if event["event"] == "oops"]
    if kernel_of(machine) in OOPSES:
        assert oopses == [f"NULL pointer dereference in dmemcg_limit_write: {REGION!r} has no value"]
    else:
        assert oopses == []


def test_the_last_kernel_that_oopses_is_6_19() -> None:
    found = {}
    for kernel in ("6.18", "6.19.5", "7.0"):
        machine = machine_of(kernel)
        code_of(machine.write, f"{POD}/dmem.max", REGION.encode())
        found[kernel] = any(event["event"] == "oops" for event in machine.events)
    assert found == {"6.18": True, "6.19.5": True, "7.0": False}


def test_a_fork_writes_its_own_oopses() -> None:
    machine = machine_of("6.15")
    fork = machine.fork()
    code_of(fork.write, f"{POD}/dmem.max", REGION.encode())
    assert any(event["event"] == "oops" for event in fork.events)
    assert not any(event["event"] == "oops" for event in machine.events)


def test_files_that_cannot_be_written(machine: Machine) -> None:
    anyone = machine.view(uid=1000)
    line = f"{REGION} 1".encode()
    assert code_of(machine.write, f"{POD}/dmem.current", line) == errno.EINVAL
    assert code_of(machine.write, "/sys/fs/cgroup/dmem.capacity", line) == errno.EINVAL
    assert code_of(machine.write, "/sys/fs/cgroup/dmem.max", line) == errno.ENOENT
    assert code_of(anyone.write, f"{POD}/dmem.current", line) == errno.EACCES
    assert code_of(anyone.write, f"{POD}/dmem.max", line) == errno.EACCES
    assert code_of(machine.view(readonly=True).write, f"{POD}/dmem.max", line) == errno.EROFS
    assert code_of(machine.put, f"{POD}/dmem.max2", b"") == errno.EACCES  # kernfs has no create
    assert anyone.read(f"{POD}/dmem.max") == machine.read(f"{POD}/dmem.max")


def test_inside_a_namespace_the_own_roots_limits_are_not_ones_own(machine: Machine) -> None:
    machine.write(f"{POD}/cgroup.subtree_control", b"+dmem")
    machine.mkdir(f"{POD}/c/below")
    machine.write(f"{POD}/c/cgroup.subtree_control", b"+dmem")
    inside = machine.view(cgroup="/kubepods.slice/c")
    assert code_of(inside.write, f"{POD}/c/dmem.max", f"{REGION} 1".encode()) == errno.EPERM
    inside.write(f"{POD}/c/below/dmem.max", f"{REGION} 1".encode())
    inside.write(f"{POD}/c/cgroup.subtree_control", b"-dmem")


def test_a_removed_group_answers_enodev_to_who_still_has_its_file(machine: Machine) -> None:
    machine.write(f"{POD}/cgroup.subtree_control", b"+dmem")
    machine.mkdir(f"{POD}/c")
    held = machine.tree.node(f"{POD}/c/dmem.max")
    machine.rmdir(f"{POD}/c")
    assert code_of(held.store, f"{REGION} 1".encode(), machine.caller) == errno.ENODEV  # type: ignore[attr-defined]
    assert code_of(machine.write, f"{POD}/c/dmem.max", f"{REGION} 1".encode()) == errno.ENOENT


# Limits and use


def test_lowering_max_below_use_succeeds_and_keeps_the_old_limit(machine: Machine) -> None:
    """B54 as decided: the write seems to work, and what the old limit allows can still be charged."""
    process = machine.process(cgroup="/kubepods.slice")
    machine.open("/dev/kfd", process)
    file = f"{POD}/dmem.max"
    machine.write(file, f"{REGION} 40000000000".encode())
    machine.allocate_vram(process, A, 30000001024)
    used = int(value_of(machine, f"{POD}/dmem.current"))
    line = f"{REGION} 17179869184\n".encode()
    assert machine.write(file, line) == len(line)
    assert value_of(machine, file) == "40000000000"
    assert int(value_of(machine, f"{POD}/dmem.current")) == used
    machine.allocate_vram(process, A, 1 << 20)
    used += 1 << 20
    machine.write(file, f"{REGION} {used - 1}".encode())
    assert value_of(machine, file) == "40000000000"
    machine.write(file, f"{REGION} {used}".encode())
    assert value_of(machine, file) == str(used)
    assert code_of(machine.allocate_vram, process, A, 1) == errno.ENOMEM


def test_min_and_low_take_anything_whatever_is_used_or_allowed_above(machine: Machine) -> None:
    machine.write(f"{POD}/cgroup.subtree_control", b"+dmem")
    machine.mkdir(f"{POD}/c")
    machine.write(f"{POD}/dmem.max", f"{REGION} 1".encode())
    for which in ("min", "low", "max"):
        machine.write(f"{POD}/c/dmem.{which}", f"{REGION} 2G".encode())
        assert value_of(machine, f"{POD}/c/dmem.{which}") == str(2 * GIB)


def test_peak_is_the_highest_use_since_the_group_was_made() -> None:
    machine = machine_of("7.2")
    process = machine.process(cgroup="/kubepods.slice")
    machine.open("/dev/kfd", process)
    machine.free(machine.allocate_vram(process, A, 3 * GIB))
    machine.allocate_vram(process, A, GIB)
    assert value_of(machine, f"{POD}/dmem.current") == str(GIB)
    assert value_of(machine, f"{POD}/dmem.peak") == str(3 * GIB)
    assert code_of(machine.write, f"{POD}/dmem.peak", b"0") == errno.EINVAL


def test_a_whole_card_pod_reads_max_and_its_use_and_an_idle_slice_its_limit_and_zero() -> None:
    """B50, the machine's half: every line is always there, a limit that is none is the word max."""
    machine = machine_of()
    machine.write(f"{POD}/cgroup.subtree_control", b"+dmem")
    for name in ("whole", "slice"):
        machine.mkdir(f"{POD}/{name}")
    process = machine.process(cgroup="/kubepods.slice/whole")
    machine.open("/dev/kfd", process)
    machine.allocate_vram(process, A, GIB)
    machine.write(f"{POD}/slice/dmem.max", f"{REGION} 17179869184\n".encode())
    assert machine.read(f"{POD}/whole/dmem.max") == f"{REGION} max\n{OTHER} max\n".encode()
    assert machine.read(f"{POD}/whole/dmem.current") == f"{REGION} {GIB}\n{OTHER} 0\n".encode()
    assert machine.read(f"{POD}/slice/dmem.max") == f"{REGION} 17179869184\n{OTHER} max\n".encode()
    assert machine.read(f"{POD}/slice/dmem.current") == f"{REGION} 0\n{OTHER} 0\n".encode()


def test_a_limit_written_before_the_first_charge_holds_it() -> None:
    machine = machine_of()
    gpus = tuple(replace(gpu, vram_bytes=GIB, vram_used=0) for gpu in machine.spec.gpus)
    small = Machine(replace(machine.spec, gpus=gpus))
    assert isinstance(small.spec.gpus[0], GpuSpec)
    assert value_of(small, "/sys/fs/cgroup/dmem.capacity") == str(GIB)
    process = small.process(cgroup="/kubepods.slice")
    small.open("/dev/kfd", process)
    small.write(f"{POD}/dmem.max", f"{REGION} 4096".encode())
    small.allocate_vram(process, A, 4096)
    assert code_of(small.allocate_vram, process, A, 1) == errno.ENOMEM
    small.allocate_vram(process, B, 8192)


def test_who_set_only_max_protects_nothing() -> None:
    machine = machine_of()
    machine.write(f"{POD}/dmem.max", f"{REGION} {GIB}\n".encode())
    assert [value_of(machine, f"{POD}/dmem.{name}") for name in ("max", "min", "low")] == [str(GIB), "0", "0"]
