"""Setting a pod's limits: amd.md 7 and 14.9, cases.md B52 and B54, kernel.md 4.3 and 5, decision 30."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

import pytest

from devplugin.dmem import Outcome, pod_group, set_limits
from gpusim.machine import Machine
from gpusim.testing.machines import node

from .dict_host import DictHost, directory
from .podgroups import make_group

UID = "06076004-3cf7-4399-bffd-d7c3596543b3"
PLAIN = "06076004_3cf7_4399_bffd_d7c3596543b3"
ROOT = "/sys/fs/cgroup"
GROUP = pod_group(UID, "Burstable")
MAX = f"{GROUP}/dmem.max"
FIRST, SECOND = "drm/0000:75:00.0/vram", "drm/0000:05:00.0/vram"
GIB = 1 << 30


@pytest.mark.parametrize(
    ("uid", "qos", "path"),
    [
        (UID, "Guaranteed", f"kubepods-pod{PLAIN}.slice"),
        (UID, "", f"kubepods-pod{PLAIN}.slice"),
        (UID, "Unheard", f"kubepods-pod{PLAIN}.slice"),
        (UID, "Burstable", f"kubepods-burstable.slice/kubepods-burstable-pod{PLAIN}.slice"),
        (UID, "BestEffort", f"kubepods-besteffort.slice/kubepods-besteffort-pod{PLAIN}.slice"),
        ("ab" * 16, "Guaranteed", f"kubepods-pod{'ab' * 16}.slice"),
    ],
)
def test_a_pods_cgroup_is_where_kubelets_systemd_driver_makes_it(uid: str, qos: str, path: str) -> None:
    assert pod_group(uid, qos) == f"{ROOT}/kubepods.slice/{path}"


@pytest.mark.parametrize("uid", ["", "a/b", "..", "-a", "a-", "a\n", "ü", "a" * 200])
def test_what_is_no_uid_gets_into_no_path(uid: str) -> None:
    with pytest.raises(ValueError, match="is no pod uid"):
        pod_group(uid, "Guaranteed")


@pytest.fixture(params=["6.14", "6.15", "7.0", "7.2"])
def machine(request: pytest.FixtureRequest) -> Machine:
    return Machine(node(kernel=request.param))


def lines(machine: Machine) -> dict[str, str]:
    text = machine.read(MAX).decode()
    return {line.split()[0]: line.split()[1] for line in text.splitlines()}


def test_on_every_kernel_all_limits_are_written_and_others_left(machine: Machine) -> None:
    make_group(machine, GROUP)
    outcome = set_limits(machine, GROUP, {FIRST: 2 * GIB, SECOND: 3 * GIB})
    assert outcome == Outcome(replaced={FIRST: "max", SECOND: "max"})
    assert outcome.holds
    found = lines(machine)
    assert (found.pop(FIRST), found.pop(SECOND)) == (str(2 * GIB), str(3 * GIB))
    assert set(found.values()) == {"max"}
    assert len(found) == 6


class Watching:
    """A host that tells what was written, and may answer for the kernel."""

    def __init__(self, machine: Machine, answer: Callable[[bytes], None] = lambda data: None) -> None:
        self._machine = machine
        self._answer = answer
        self.written: list[bytes] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._machine, name)

    def write(self, path: str, data: bytes) -> int:
        self.written.append(data)
        self._answer(data)
        return self._machine.write(path, data)


def test_one_line_a_write_and_none_for_what_holds(machine: Machine) -> None:
    make_group(machine, GROUP)
    host = Watching(machine)
    set_limits(host, GROUP, {FIRST: GIB, SECOND: GIB})  # type: ignore[arg-type]
    assert host.written == [f"{FIRST} {GIB}\n".encode(), f"{SECOND} {GIB}\n".encode()]
    assert set_limits(host, GROUP, {FIRST: GIB, SECOND: GIB}) == Outcome()  # type: ignore[arg-type]
    assert set_limits(host, GROUP, {FIRST: GIB, SECOND: 2 * GIB}).holds  # type: ignore[arg-type]
    assert host.written[2:] == [f"{SECOND} {2 * GIB}\n".encode()]


def test_a_limit_below_use_is_seen_to_be_kept_out_and_taken_once_memory_is_freed(machine: Machine) -> None:
    make_group(machine, GROUP)
    process = machine.process(cgroup=GROUP.removeprefix(ROOT))
    machine.open("/dev/dri/renderD128", process)
    held = machine.allocate_vram(process, "0000:75:00.0", 3 * GIB)
    outcome = set_limits(machine, GROUP, {FIRST: GIB, SECOND: GIB})
    assert outcome == Outcome(replaced={SECOND: "max"}, kept={FIRST: "max"})
    assert not outcome.holds
    assert set_limits(machine, GROUP, {FIRST: 3 * GIB}).replaced == {FIRST: "max"}  # equal to use is taken
    assert set_limits(machine, GROUP, {FIRST: GIB}).kept == {FIRST: str(3 * GIB)}
    machine.free(held)
    assert set_limits(machine, GROUP, {FIRST: GIB}).holds
    with pytest.raises(OSError) as caught:
        machine.allocate_vram(process, "0000:75:00.0", 2 * GIB)
    assert caught.value.errno == errno.ENOMEM


def test_no_cgroup_and_no_file_are_told_apart(machine: Machine) -> None:
    assert set_limits(machine, GROUP, {FIRST: GIB}) == Outcome(no_group=True)
    make_group(machine, GROUP, dmem=False)
    assert set_limits(machine, GROUP, {FIRST: GIB}) == Outcome(no_file=True)


def test_what_is_not_there_is_not_limited(machine: Machine) -> None:
    assert not set_limits(machine, GROUP, {FIRST: GIB}).holds
    make_group(machine, GROUP, dmem=False)
    assert not set_limits(machine, GROUP, {FIRST: GIB}).holds


def test_a_cgroup_removed_between_look_and_write_is_gone(machine: Machine) -> None:
    make_group(machine, GROUP)

    def remove(_: bytes) -> None:
        machine.rmdir(GROUP)
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))

    host = Watching(machine, remove)
    assert set_limits(host, GROUP, {FIRST: GIB}) == Outcome(no_group=True)  # type: ignore[arg-type]


def test_a_region_that_went_is_not_written_and_the_others_are(machine: Machine) -> None:
    make_group(machine, GROUP)
    machine.remove("0000:75:00.0")
    outcome = set_limits(machine, GROUP, {FIRST: GIB, SECOND: GIB})
    assert outcome.failed == {FIRST: f"{MAX} does not list it (any more)"}
    assert outcome.replaced == {SECOND: "max"}
    machine.add("0000:75:00.0")  # a fresh region without limits
    assert set_limits(machine, GROUP, {FIRST: GIB, SECOND: GIB}).replaced == {FIRST: "max"}


def test_a_region_that_goes_right_after_the_write_has_no_limit(machine: Machine) -> None:
    make_group(machine, GROUP)

    class Losing(Watching):
        def write(self, path: str, data: bytes) -> int:
            written = super().write(path, data)
            machine.remove("0000:75:00.0")
            return written

    assert set_limits(Losing(machine), GROUP, {FIRST: GIB}) == Outcome(kept={FIRST: "nothing"})  # type: ignore[arg-type]


def test_a_line_that_is_no_text_hides_no_other() -> None:
    host = DictHost({GROUP: directory(), MAX: b"\xff 1\n" + f"{FIRST} {GIB}\n".encode()})
    assert set_limits(host, GROUP, {FIRST: GIB}) == Outcome()


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.EINVAL, errno.EPERM])
def test_a_refused_write_is_told_by_region(number: int) -> None:
    machine = Machine(node())
    make_group(machine, GROUP)

    def refuse(data: bytes) -> None:
        if data.startswith(FIRST.encode()):
            raise OSError(number, os.strerror(number))

    outcome = set_limits(Watching(machine, refuse), GROUP, {FIRST: GIB, SECOND: GIB})  # type: ignore[arg-type]
    assert outcome.failed == {FIRST: f"{MAX}: {errno.errorcode[number]}"}
    assert outcome.replaced == {SECOND: "max"}
    assert not outcome.holds


def test_a_file_that_cannot_be_read_fails_every_limit() -> None:
    host = DictHost({GROUP: directory(), MAX: errno.EACCES})
    assert set_limits(host, GROUP, {FIRST: 1, SECOND: 2}).failed == {
        FIRST: f"{MAX}: EACCES",
        SECOND: f"{MAX}: EACCES",
    }
