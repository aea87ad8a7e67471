"""`Machine.install`: code that knows nothing but `open` and `os` sees the node in pyfakefs."""

from __future__ import annotations

import errno
import glob
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyfakefs.fake_filesystem_unittest import Patcher

from gpusim.errors import GpusimError
from gpusim.machine import Machine
from gpusim.testing.machines import node

MODE = "/sys/bus/pci/drivers/amdgpu/0000:75:00.0/current_compute_partition"
NODES = "/sys/class/kfd/kfd/topology/nodes"


@pytest.fixture
def machine() -> Machine:
    return Machine(node(count=1))


@pytest.fixture
def fake(machine: Machine) -> Iterator[Patcher]:
    with Patcher() as patcher:
        assert patcher.fs is not None
        machine.install(patcher.fs)
        yield patcher


def error_of(action: object) -> int | None:
    with pytest.raises(OSError) as raised:
        action()  # type: ignore[operator]
    return raised.value.errno


def write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def test_every_file_reads_as_in_the_machine(machine: Machine, fake: Patcher) -> None:
    compared = 0
    for top in ("/sys/class", "/sys/bus", "/sys/devices", "/proc"):
        for directory, _, names in os.walk(top):
            for name in names:
                path = f"{directory}/{name}"
                if os.path.islink(path):
                    assert os.readlink(path) == machine.readlink(path)
                    continue
                try:
                    expected = machine.read(path)
                except OSError as refused:
                    if machine.stat(path).mode & 0o444:
                        assert error_of(lambda path=path: Path(path).read_bytes()) == refused.errno
                    continue
                assert Path(path).read_bytes() == expected, path
                compared += 1
    assert compared > 500


def test_a_write_switches_the_partition_and_the_next_look_shows_it(machine: Machine, fake: Patcher) -> None:
    before = len(os.listdir(NODES))
    write(MODE, "cpx\n")
    assert machine.gpu("0000:75:00.0").mode == "CPX"
    assert Path(MODE).read_text() == "CPX\n"
    assert len(os.listdir(NODES)) == before + 7
    assert len(glob.glob(f"{NODES}/*/properties")) == before + 7
    machine.switch("0000:75:00.0", "SPX")
    assert not os.path.exists(f"{NODES}/{before}")


def test_a_write_without_truncation_hands_over_what_was_written_only(machine: Machine, fake: Patcher) -> None:
    seen: list[bytes] = []
    store = machine.write
    machine.write = lambda path, data: seen.append(data) or store(path, data)  # type: ignore[method-assign]
    descriptor = os.open(MODE, os.O_WRONLY)
    os.write(descriptor, b"DPX")
    os.close(descriptor)
    with open(MODE, "a") as file:
        file.write("QPX\n")
    with open(MODE, "r+") as file:
        assert file.read() == "QPX\n"
    assert seen == [b"DPX", b"QPX\n"]


def test_refusals_have_the_kernels_errno(machine: Machine, fake: Patcher) -> None:
    assert error_of(lambda: write(MODE, "nonsense")) == errno.EINVAL
    holder = machine.process()
    machine.open("/dev/kfd", holder)
    assert error_of(lambda: write(MODE, "CPX\n")) == errno.EBUSY
    machine.exit(holder)
    write(MODE, "CPX\n")
    assert error_of(lambda: write(f"{NODES}/0/gpu_id", "1")) == errno.EACCES
    assert error_of(lambda: write(f"{NODES}/0/new", "1")) == errno.EACCES
    assert error_of(lambda: os.mkdir(f"{NODES}/77")) == errno.EPERM
    assert error_of(lambda: os.unlink(f"{NODES}/0/gpu_id")) == errno.EPERM
    assert error_of(lambda: os.listdir(f"{NODES}/99")) == errno.ENOENT


def test_cgroups_are_made_in_the_machine_and_gone_with_it(machine: Machine, fake: Patcher) -> None:
    os.mkdir("/sys/fs/cgroup/kubepods.slice/pod")
    assert "pod" in machine.list("/sys/fs/cgroup/kubepods.slice")
    assert "cgroup.procs" in os.listdir("/sys/fs/cgroup/kubepods.slice/pod")
    machine.rmdir("/sys/fs/cgroup/kubepods.slice/pod")
    assert "pod" not in os.listdir("/sys/fs/cgroup/kubepods.slice")


def test_opening_a_device_asks_the_driver(machine: Machine, fake: Patcher) -> None:
    node_of_card = "/dev/dri/renderD128"
    with open(node_of_card, "r+b"):
        pass
    machine.mknod("/dev/own", 226, 128)
    assert os.path.exists("/dev/own")
    machine.remove("0000:75:00.0")
    assert not os.path.exists(node_of_card)
    assert error_of(lambda: Path("/dev/own").read_bytes()) == errno.ENODEV


def test_another_callers_refusals_are_the_codes_refusals(machine: Machine) -> None:
    from gpusim.export.pyfakefs import install

    with Patcher() as patcher:
        assert patcher.fs is not None
        install(machine.view(uid=1000), patcher.fs)
        assert Path(MODE).read_text() == "SPX\n"
        assert error_of(lambda: write(MODE, "CPX\n")) == errno.EACCES


def test_a_second_node_is_refused(machine: Machine, fake: Patcher) -> None:
    assert fake.fs is not None
    with pytest.raises(GpusimError, match="is in the fake file system already"):
        machine.install(fake.fs)
