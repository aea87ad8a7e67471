"""`check_host` holds every way to a node to one contract, and finds what breaks it."""

from __future__ import annotations

import contextlib
import errno
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from devplugin.linux import LinuxHost
from gpusim import fixture
from gpusim.export.render import render
from gpusim.machine import Machine
from gpusim.remote import RemoteMachine
from gpusim.serve import serve
from gpusim.snapshots import pack
from gpusim.snapshots.host import load, open_capture
from gpusim.spec import Cpus
from gpusim.testing.checks import Checked, CheckError, check_host
from gpusim.testing.machines import node

from .private_mount import mounted, needs_fuse


@pytest.fixture
def machine() -> Machine:
    return Machine(node(count=2))


def holding(machine: Machine | RemoteMachine) -> Callable[[str], contextlib.AbstractContextManager[None]]:
    @contextlib.contextmanager
    def hold(path: str) -> Iterator[None]:
        process = machine.process()
        machine.open(path, process)
        yield
        machine.exit(process)

    return hold


# Who keeps it


def test_the_machine_keeps_both_contracts(machine: Machine) -> None:
    checked = check_host(lambda: machine, writes=True, hold=holding(machine))
    assert (checked.files, checked.links, checked.devices, checked.writes) > (1000, 100, 10, 10)


def test_a_view_of_root_keeps_them(machine: Machine) -> None:
    check_host(machine.view, writes=True, hold=holding(machine))


def test_a_served_machine_keeps_them(machine: Machine, tmp_path: Path) -> None:
    with serve(machine, str(tmp_path / "s")):
        remote = RemoteMachine(str(tmp_path / "s"))
        check_host(lambda: remote, writes=True, hold=holding(remote))
        remote.disconnect()


def test_a_rendered_directory_keeps_the_read_contract(machine: Machine, tmp_path: Path) -> None:
    report = render(machine, tmp_path / "node")
    checked = check_host(lambda: LinuxHost(str(tmp_path / "node")))
    assert checked.links == report.links
    assert checked.files > 1000


def test_a_packed_capture_keeps_the_read_contract(machine: Machine, tmp_path: Path) -> None:
    render(machine, tmp_path / "node")
    pack.write(load(tmp_path / "node"), tmp_path / "node.pack")
    assert check_host(lambda: open_capture(tmp_path / "node.pack")).files > 1000


_INSIDE = """
import contextlib, dataclasses, json, os
from devplugin.linux import LinuxHost
from gpusim.spec import Cpus
from gpusim.testing.checks import check_host

@contextlib.contextmanager
def hold(path):
    descriptor = os.open(os.environ["MNT"] + path, os.O_RDWR)
    yield
    os.close(descriptor)

checked = check_host(lambda: LinuxHost(os.environ["MNT"]), writes=True, hold=hold)
print(json.dumps(dataclasses.asdict(checked)))
"""


@needs_fuse
def test_a_mounted_machine_keeps_both_contracts(tmp_path: Path) -> None:
    # A small one: each step of each path is a question to the file system.
    machine = Machine(replace(node(count=1), cpus=Cpus(nodes=1)))
    (tmp_path / "node.yaml").write_text(fixture.dump(machine.spec))
    with mounted(str(tmp_path / "node.yaml"), tmp_path / "mnt") as mount:
        done = mount.run(sys.executable, "-c", _INSIDE)
    assert done.stderr == ""
    checked = Checked(**json.loads(done.stdout))
    here = check_host(lambda: machine, writes=True)
    assert (checked.directories, checked.links, checked.writes) == (here.directories, here.links, here.writes)
    # A device is a file there, which refuses to be read; /dev/null does not.
    assert checked.files == here.files + 1
    assert checked.refused == here.refused + here.devices - 1


# What breaks it


class Broken:
    """A machine with one method replaced."""

    def __init__(self, machine: Machine, **methods: Any) -> None:
        self._machine = machine
        self._methods = methods

    def __getattr__(self, name: str) -> Any:
        return self._methods.get(name) or getattr(self._machine, name)


def _unsorted(machine: Machine) -> dict[str, Any]:
    return {"list": lambda path: machine.list(path)[::-1]}


def _empty_for_missing(machine: Machine) -> dict[str, Any]:
    def read(path: str) -> bytes:
        try:
            return machine.read(path)
        except FileNotFoundError:
            return b""

    return {"read": read}


def _reads_directories(machine: Machine) -> dict[str, Any]:
    return {"read": lambda path: b"" if machine.stat(path).kind.name == "DIRECTORY" else machine.read(path)}


def _follows_always(machine: Machine) -> dict[str, Any]:
    return {"readlink": lambda path: machine.readlink(path) if path.startswith("/dev") else "nowhere/../.."}


def _gap(machine: Machine) -> dict[str, Any]:
    def names(path: str) -> list[str]:
        found = list(machine.list(path))
        return [name for name in found if not (path.endswith("topology/nodes") and name == "3")]

    return {"list": names}


def _forgets_writes(machine: Machine) -> dict[str, Any]:
    return {"write": lambda path, data: len(data)}


def _creates(machine: Machine) -> dict[str, Any]:
    def write(path: str, data: bytes) -> int:
        try:
            return machine.write(path, data)
        except OSError as error:
            if error.errno == errno.ENOENT:
                return len(data)
            raise

    return {"write": write}


def _never_busy(machine: Machine) -> dict[str, Any]:
    def write(path: str, data: bytes) -> int:
        try:
            return machine.write(path, data)
        except OSError as error:
            if error.errno == errno.EBUSY:
                return len(data)
            raise

    return {"write": write}


def _loses_modes(machine: Machine) -> dict[str, Any]:
    return {"put": lambda path, data, mode=0o644: machine.put(path, data)}


@pytest.mark.parametrize(
    ("methods", "rule"),
    [
        (_unsorted, "names are sorted and distinct"),
        (_empty_for_missing, "read of what is not there"),
        (_reads_directories, "a directory cannot be read"),
        (_follows_always, "a "),
        (_gap, "nodes are numbered without a gap"),
        (_forgets_writes, "a mode written is the mode read"),
        (_creates, "write to what is not there"),
        (_never_busy, "no switch while KFD is in use"),
        (_loses_modes, "put keeps the mode"),
    ],
)
def test_a_host_that_breaks_a_rule_is_told_which(
    methods: Callable[[Machine], dict[str, Any]], rule: str, machine: Machine
) -> None:
    host = Broken(machine, **methods(machine))
    with pytest.raises(CheckError, match=f"^{rule}.*expected .*, got "):
        check_host(lambda: host, writes=True, hold=holding(machine))


def test_nothing_at_all_is_no_node(tmp_path: Path) -> None:
    with pytest.raises(CheckError, match="a node has one of /sys, /dev, /proc"):
        check_host(lambda: LinuxHost(str(tmp_path)))


def test_the_write_contract_needs_a_gpu_that_can_be_partitioned() -> None:
    machine = Machine(node("RX9070XT", count=1, driver="in-tree", kernel="6.17"))
    with pytest.raises(CheckError, match="needs a GPU that can be partitioned"):
        check_host(lambda: machine, writes=True)
