"""cgroup v2 as files: who hands down what, who may be where, what goes when (kernel.md 4.5 and 5)."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest

from gpusim.cgroup import CONTROLLERS
from gpusim.machine import Machine
from gpusim.testing.machines import node

ROOT = "/sys/fs/cgroup"
POD = f"{ROOT}/kubepods.slice"
BDF = "0000:75:00.0"
REGION = f"drm/{BDF}/vram"
MIB = 1 << 20

RELEASES = [
    (kernel, driver)
    for kernel in ("6.14", "6.15", "7.0", "7.2")
    for driver in ("in-tree", "dkms-6.14.14", "dkms-6.16.13")
]


def machine_of(kernel: str = "7.0", driver: str = "in-tree") -> Machine:
    return Machine(node(count=1, kernel=kernel, driver=driver))


@pytest.fixture(params=RELEASES, ids=[f"{kernel}-{driver}" for kernel, driver in RELEASES])
def machine(request: pytest.FixtureRequest) -> Machine:
    return machine_of(*request.param)


@pytest.fixture
def one() -> Machine:
    """A machine of one release, for what no release changes."""
    return machine_of()


def code_of(act: Callable[..., object], *args: Any, **kwargs: Any) -> int | None:
    try:
        act(*args, **kwargs)
    except OSError as error:
        return error.errno
    return None


def words(machine: Machine, file: str) -> list[str]:
    return machine.read(file).decode().split()


# Controllers


def test_the_root_lists_dmem_last_where_the_kernel_has_it(machine: Machine) -> None:
    text = machine.read(f"{ROOT}/cgroup.controllers")
    assert text == b"cpuset cpu io memory hugetlb pids rdma misc dmem\n"
    assert machine.read(f"{ROOT}/cgroup.subtree_control") == text
    assert machine.read(f"{POD}/cgroup.controllers") == text
    assert machine.read(f"{POD}/cgroup.subtree_control") == b"\n"


def test_the_root_of_a_kernel_before_6_14_does_not() -> None:
    machine = machine_of("6.8.0-136-generic", "dkms-6.14.14")
    assert words(machine, f"{ROOT}/cgroup.controllers") == list(CONTROLLERS)
    assert code_of(machine.write, f"{POD}/cgroup.subtree_control", b"+cpu +dmem") == errno.EINVAL
    assert words(machine, f"{POD}/cgroup.subtree_control") == []


def test_a_child_may_use_what_its_parent_hands_down_and_nothing_else(one: Machine) -> None:
    one.mkdir(f"{POD}/a/b")
    one.write(f"{POD}/cgroup.subtree_control", b"+dmem +cpu")
    assert words(one, f"{POD}/a/cgroup.controllers") == ["cpu", "dmem"]  # the root's order
    assert words(one, f"{POD}/a/b/cgroup.controllers") == []
    one.write(f"{POD}/a/cgroup.subtree_control", b"+dmem")
    assert words(one, f"{POD}/a/b/cgroup.controllers") == ["dmem"]


WRITES: list[tuple[bytes, int | None, list[str]]] = [
    (b"+dmem", None, ["cpu", "dmem"]),
    (b"+dmem\n", None, ["cpu", "dmem"]),
    (b"  +dmem   +memory \n", None, ["cpu", "memory", "dmem"]),
    (b"+dmem +dmem", None, ["cpu", "dmem"]),
    (b"+dmem -dmem", None, ["cpu"]),  # the last word of a name holds
    (b"-dmem +dmem", None, ["cpu", "dmem"]),
    (b"+dmem -cpu", None, ["dmem"]),
    (b"+cpu", None, ["cpu"]),  # on already
    (b"-dmem", None, ["cpu"]),  # off already
    (b"\n", None, ["cpu"]),
    (b"", None, ["cpu"]),
    (b"dmem", errno.EINVAL, ["cpu"]),
    (b"*dmem", errno.EINVAL, ["cpu"]),
    (b"+DMEM", errno.EINVAL, ["cpu"]),
    (b"+vram", errno.EINVAL, ["cpu"]),
    (b"+ dmem", errno.EINVAL, ["cpu"]),
    (b"+", errno.EINVAL, ["cpu"]),
    (b"+dmem,+cpu", errno.EINVAL, ["cpu"]),
    (b"+dmem\n+memory", errno.EINVAL, ["cpu"]),  # only blanks separate
    (b"+dmem +vram", errno.EINVAL, ["cpu"]),
    (b"+vram -cpu", errno.EINVAL, ["cpu"]),
    (b"+dmem +io", errno.ENOENT, ["cpu"]),  # io is not handed down to it
    (b"+io -cpu", errno.ENOENT, ["cpu"]),
    (b"-io +dmem", None, ["cpu", "dmem"]),  # what is off needs not be there
    (b" " * 4097, errno.E2BIG, ["cpu"]),
]


@pytest.mark.parametrize(("data", "code", "after"), WRITES, ids=[str(data[:20]) for data, _, _ in WRITES])
def test_a_write_to_subtree_control_is_all_or_nothing(
    machine: Machine, data: bytes, code: int | None, after: list[str]
) -> None:
    machine.mkdir(f"{POD}/a")
    machine.write(f"{POD}/cgroup.subtree_control", b"+cpu +memory +dmem")
    control = f"{POD}/a/cgroup.subtree_control"
    machine.write(control, b"+cpu")
    machine.mkdir(f"{POD}/a/b")
    if code is None:
        assert machine.write(control, data) == len(data)
    else:
        assert code_of(machine.write, control, data) == code
    assert words(machine, control) == after
    assert ("dmem.max" in machine.list(f"{POD}/a/b")) == ("dmem" in after)


def test_what_the_parent_does_not_hand_down_is_enoent(machine: Machine) -> None:
    machine.mkdir(f"{POD}/a")
    assert code_of(machine.write, f"{POD}/a/cgroup.subtree_control", b"+dmem") == errno.ENOENT
    machine.write(f"{POD}/cgroup.subtree_control", b"+dmem")
    machine.write(f"{POD}/a/cgroup.subtree_control", b"+dmem")
    assert words(machine, f"{POD}/a/cgroup.subtree_control") == ["dmem"]


def test_a_group_with_processes_hands_nothing_down_but_the_root_may(machine: Machine) -> None:
    machine.process()
    machine.write(f"{ROOT}/cgroup.subtree_control", b"-misc")
    machine.write(f"{ROOT}/cgroup.subtree_control", b"+misc")
    process = machine.process(cgroup="/kubepods.slice")
    assert code_of(machine.write, f"{POD}/cgroup.subtree_control", b"+dmem") == errno.EBUSY
    assert code_of(machine.write, f"{POD}/cgroup.subtree_control", b"+cpu +dmem") == errno.EBUSY
    assert words(machine, f"{POD}/cgroup.subtree_control") == []
    machine.exit(process)
    machine.write(f"{POD}/cgroup.subtree_control", b"+dmem")


def test_a_controller_a_child_still_hands_down_cannot_be_taken_away(machine: Machine) -> None:
    machine.mkdir(f"{POD}/a/b")
    machine.write(f"{POD}/cgroup.subtree_control", b"+dmem +cpu")
    machine.write(f"{POD}/a/cgroup.subtree_control", b"+dmem")
    assert code_of(machine.write, f"{POD}/cgroup.subtree_control", b"-cpu -dmem") == errno.EBUSY
    assert words(machine, f"{POD}/cgroup.subtree_control") == ["cpu", "dmem"]
    machine.write(f"{POD}/a/cgroup.subtree_control", b"-dmem")
    machine.write(f"{POD}/cgroup.subtree_control", b"-cpu -dmem")
    assert words(machine, f"{POD}/cgroup.subtree_control") == []


def _has_region(machine: Machine) -> bool:
    return machine.read(f"{ROOT}/dmem.capacity") != b""


# Threaded subtrees: dmem is a domain controller


def test_dmem_cannot_be_enabled_inside_a_threaded_subtree(machine: Machine) -> None:
    machine.mkdir(f"{POD}/a/b/c")
    machine.write(f"{POD}/cgroup.subtree_control", b"+dmem +cpu")
    machine.write(f"{POD}/a/b/cgroup.type", b"threaded\n")
    assert machine.read(f"{POD}/a/cgroup.type") == b"domain threaded\n"
    assert machine.read(f"{POD}/a/b/cgroup.type") == b"threaded\n"
    assert machine.read(f"{POD}/a/b/c/cgroup.type") == b"domain invalid\n"
    for group, code in (("a", errno.EOPNOTSUPP), ("a/b", errno.ENOENT), ("a/b/c", errno.ENOENT)):
        assert code_of(machine.write, f"{POD}/{group}/cgroup.subtree_control", b"+dmem") == code
    machine.write(f"{POD}/a/cgroup.subtree_control", b"+cpu")
    assert code_of(machine.write, f"{POD}/a/cgroup.subtree_control", b"+dmem") == errno.EOPNOTSUPP
    assert words(machine, f"{POD}/a/b/cgroup.controllers") == ["cpu"]
    assert "dmem.max" not in machine.list(f"{POD}/a/b")
    assert code_of(machine.process, cgroup="/kubepods.slice/a/b/c") == errno.EOPNOTSUPP
    machine.process(cgroup="/kubepods.slice/a")
    assert code_of(machine.read, f"{POD}/a/b/cgroup.procs") == errno.EOPNOTSUPP


def test_a_group_that_hands_dmem_down_has_no_threaded_children(one: Machine) -> None:
    one.mkdir(f"{POD}/a/b")
    one.write(f"{POD}/cgroup.subtree_control", b"+dmem")
    one.write(f"{POD}/a/cgroup.subtree_control", b"+dmem")
    assert code_of(one.write, f"{POD}/a/b/cgroup.type", b"threaded") == errno.EOPNOTSUPP
    assert code_of(one.write, f"{POD}/a/b/cgroup.type", b"domain") == errno.EINVAL
    assert "cgroup.type" not in one.list(ROOT)


def test_a_threads_file_moves_only_within_one_domain(one: Machine) -> None:
    one.mkdir(f"{POD}/a/b")
    one.write(f"{POD}/a/b/cgroup.type", b"threaded")
    process = one.process(cgroup="/kubepods.slice/a")
    one.write(f"{POD}/a/b/cgroup.threads", b"%d" % process.pid)
    assert words(one, f"{POD}/a/b/cgroup.threads") == [str(process.pid)]
    assert words(one, f"{POD}/a/cgroup.procs") == [str(process.pid)]  # the thread root shows its process
    assert code_of(one.write, f"{ROOT}/cgroup.threads", b"%d" % process.pid) == errno.EOPNOTSUPP


# Processes


def test_a_process_is_in_one_group_and_may_be_moved(machine: Machine) -> None:
    machine.mkdir(f"{POD}/a")
    first, second = machine.process(), machine.process(cgroup="kubepods.slice/a")
    assert words(machine, f"{ROOT}/cgroup.procs") == [str(first.pid)]
    machine.move(first, "/kubepods.slice/a")
    assert words(machine, f"{ROOT}/cgroup.procs") == []
    assert words(machine, f"{POD}/a/cgroup.procs") == [str(second.pid), str(first.pid)]
    assert first.cgroup == second.cgroup == "/kubepods.slice/a"
    assert machine.read(f"/proc/{first.pid}/cgroup") == b"0::/kubepods.slice/a\n"
    assert machine.read(f"{POD}/cgroup.events") == b"populated 1\nfrozen 0\n"
    machine.exit(first)
    machine.exit(second)
    assert machine.read(f"{POD}/cgroup.events") == b"populated 0\nfrozen 0\n"


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"x", errno.EINVAL),
        (b"", None),  # a zero-length write does nothing
        (b"\n", errno.EINVAL),
        (b"-1", errno.EINVAL),
        (b"1 2", errno.EINVAL),
        (b"4294967296", errno.EINVAL),
        (b"08", errno.EINVAL),
        (b"1_000", errno.EINVAL),
        (b"999999", errno.ESRCH),
        (b"0", None),  # whoever writes
    ],
)
def test_what_is_no_pid_is_refused(one: Machine, data: bytes, code: int | None) -> None:
    one.process()
    assert code_of(one.write, f"{POD}/cgroup.procs", data) == code
    assert words(one, f"{POD}/cgroup.procs") == []


def test_pids_are_numbers_of_c(one: Machine) -> None:
    process = one.process()
    for text in (f"0x{process.pid:x}", f"0{process.pid:o}", f" +{process.pid}\n"):
        one.move(process, "/")
        one.write(f"{POD}/cgroup.procs", text.encode())
        assert process.cgroup == "/kubepods.slice"


def test_no_process_comes_to_a_group_that_hands_controllers_down(machine: Machine) -> None:
    machine.write(f"{POD}/cgroup.subtree_control", b"+dmem")
    process = machine.process()
    assert code_of(machine.process, cgroup="/kubepods.slice") == errno.EBUSY
    assert code_of(machine.move, process, "/kubepods.slice") == errno.EBUSY
    assert process.cgroup == "/"
    assert code_of(machine.move, process, "/none") == errno.ENOENT
    assert code_of(machine.process, cgroup="/none") == errno.ENOENT
    machine.move(process, "/")  # the root takes everybody


def test_a_zombie_is_in_no_procs_file_and_keeps_its_line_in_proc(one: Machine) -> None:
    one.mkdir(f"{POD}/a")
    process = one.process(cgroup="/kubepods.slice/a")
    one.exit(process, reap=False)
    assert words(one, f"{POD}/a/cgroup.procs") == []
    assert one.read(f"/proc/{process.pid}/cgroup") == b"0::/kubepods.slice/a\n"
    one.write(f"{ROOT}/cgroup.procs", b"%d" % process.pid)
    assert one.read(f"/proc/{process.pid}/cgroup") == b"0::/kubepods.slice/a\n"
    one.rmdir(f"{POD}/a")
    assert one.read(f"/proc/{process.pid}/cgroup") == b"0::/kubepods.slice/a (deleted)\n"
    one.mkdir(f"{POD}/a")  # a group of the same name is another one
    assert one.read(f"/proc/{process.pid}/cgroup") == b"0::/kubepods.slice/a (deleted)\n"
    one.reap(process)
    assert code_of(one.read, f"/proc/{process.pid}/cgroup") == errno.ENOENT
    assert code_of(one.write, f"{ROOT}/cgroup.procs", b"%d" % process.pid) == errno.ESRCH


def test_kill_ends_everybody_below(one: Machine) -> None:
    one.mkdir(f"{POD}/a/b")
    outside = one.process()
    for group in ("a", "a/b", "a/b"):
        one.process(cgroup=f"/kubepods.slice/{group}")
    one.kill("/kubepods.slice/a")
    assert [process.pid for process in one.processes] == [outside.pid]
    assert code_of(one.kill, "/kubepods.slice/c") == errno.ENOENT


# Making and removing


def test_a_group_is_removed_when_nobody_is_in_it_or_below(machine: Machine) -> None:
    machine.mkdir(f"{POD}/a/b")
    process = machine.process(cgroup="/kubepods.slice/a/b")
    assert code_of(machine.rmdir, f"{POD}/a") == errno.EBUSY
    assert code_of(machine.rmdir, f"{POD}/a/b") == errno.EBUSY
    machine.move(process, "/kubepods.slice/a")
    machine.rmdir(f"{POD}/a/b")
    assert code_of(machine.rmdir, f"{POD}/a") == errno.EBUSY
    machine.exit(process)
    machine.rmdir(f"{POD}/a")
    assert code_of(machine.rmdir, f"{POD}/a") == errno.ENOENT
    assert code_of(machine.rmdir, ROOT) == errno.EBUSY
    assert code_of(machine.rmdir, f"{POD}/cgroup.procs") == errno.ENOTDIR
    assert code_of(machine.unlink, f"{POD}/cgroup.procs") == errno.EPERM


def test_names_that_cannot_be_made(one: Machine) -> None:
    one.mkdir(f"{POD}/a")
    assert code_of(one.tree.mkdir, f"{POD}/a") == errno.EEXIST
    assert code_of(one.tree.mkdir, f"{POD}/cgroup.procs") == errno.EEXIST
    assert code_of(one.tree.mkdir, f"{POD}/x/y") == errno.ENOENT
    assert code_of(one.mkdir, f"{POD}/a\nb") == errno.EINVAL
    assert code_of(one.view(uid=1000).mkdir, f"{POD}/b") == errno.EACCES
    assert code_of(one.view(readonly=True).mkdir, f"{POD}/b") == errno.EROFS
    assert code_of(one.view(readonly=True).rmdir, f"{POD}/a") == errno.EROFS


def test_a_removed_group_stays_charged_and_is_counted_as_dying_until_it_is_freed() -> None:
    machine = machine_of("7.2")
    machine.write(f"{POD}/cgroup.subtree_control", b"+dmem")
    machine.mkdir(f"{POD}/a")
    machine.write(f"{POD}/a/dmem.max", f"{REGION} 16M".encode())
    process = machine.process(cgroup="/kubepods.slice/a")
    machine.open("/dev/kfd", process)
    made = machine.allocate_vram(process, BDF, 8 * MIB)
    machine.move(process, "/")
    assert machine.read(f"{POD}/a/dmem.current") == f"{REGION} {8 * MIB}\n".encode()
    machine.rmdir(f"{POD}/a")
    charged = f"{REGION} {8 * MIB}\n".encode()
    assert machine.read(f"{POD}/dmem.current") == machine.read(f"{ROOT}/dmem.current") == charged
    assert machine.read(f"{POD}/cgroup.stat") == b"nr_descendants 0\nnr_dying_descendants 1\n"
    machine.mkdir(f"{POD}/a")
    assert machine.read(f"{POD}/a/dmem.current") == f"{REGION} 0\n".encode()
    assert machine.read(f"{POD}/a/dmem.max") == f"{REGION} max\n".encode()
    machine.free(made)
    assert machine.read(f"{ROOT}/dmem.current") == f"{REGION} 0\n".encode()
    assert machine.read(f"{POD}/cgroup.stat") == b"nr_descendants 1\nnr_dying_descendants 0\n"


# Delegation


def test_a_delegated_group_is_its_users_but_for_its_limits(machine: Machine) -> None:
    machine.write(f"{POD}/cgroup.subtree_control", b"+dmem")
    machine.mkdir(f"{POD}/u")
    machine.delegate("/kubepods.slice/u", 1000, 1000)
    user = machine.view(uid=1000, gids=(1000,))
    assert code_of(user.write, f"{POD}/u/dmem.max", b"x 1") == errno.EACCES
    assert code_of(user.write, f"{POD}/u/dmem.min", b"x 1") == errno.EACCES
    user.write(f"{POD}/u/cgroup.subtree_control", b"+dmem")
    user.mkdir(f"{POD}/u/own")
    assert code_of(user.write, f"{POD}/u/own/dmem.max", b"none 1") == errno.EINVAL  # its own file
    if _has_region(machine):
        user.write(f"{POD}/u/own/dmem.max", f"{REGION} 1".encode())
    user.mkdir(f"{POD}/u/two")
    process = machine.process(uid=1000, cgroup="/kubepods.slice/u/own")
    user.write(f"{POD}/u/two/cgroup.procs", b"%d" % process.pid)
    assert process.cgroup == "/kubepods.slice/u/two"
    stranger = machine.process()
    # the common ancestor is not the user's
    assert code_of(user.write, f"{POD}/u/two/cgroup.procs", b"%d" % stranger.pid) == errno.EACCES
    assert code_of(user.mkdir, f"{POD}/v") == errno.EACCES
    assert code_of(machine.delegate, "/none", 1) == errno.ENOENT


def test_inside_a_namespace_a_process_outside_cannot_be_fetched(one: Machine) -> None:
    one.mkdir(f"{POD}/c")
    inside = one.view(cgroup="kubepods.slice/c")
    stranger, own = one.process(), one.process(cgroup="/kubepods.slice/c")
    assert code_of(inside.write, f"{POD}/c/cgroup.procs", b"%d" % stranger.pid) == errno.ENOENT
    inside.mkdir(f"{POD}/c/d")
    inside.write(f"{POD}/c/d/cgroup.procs", b"%d" % own.pid)
    assert code_of(inside.write, f"{POD}/cgroup.procs", b"%d" % own.pid) == errno.ENOENT
    assert code_of(inside.write, f"{POD}/c/cgroup.type", b"threaded") == errno.EPERM


@pytest.mark.parametrize(
    ("root", "text"),
    [
        (None, "/kubepods.slice/c/d"),
        ("/", "/kubepods.slice/c/d"),
        ("/kubepods.slice", "/c/d"),
        ("/kubepods.slice/c/d", "/"),
        ("/kubepods.slice/c/d/e", "/.."),
        ("/kubepods.slice/x", "/../c/d"),
        ("/system.slice/docker.scope", "/../../kubepods.slice/c/d"),
        ("/kubepods.slice/c/dd", "/../d"),
    ],
)
def test_a_path_in_proc_is_relative_to_the_readers_namespace(
    one: Machine, root: str | None, text: str
) -> None:
    one.mkdir(f"{POD}/c/d")
    process = one.process(cgroup="/kubepods.slice/c/d")
    zombie = one.process(cgroup="/kubepods.slice/c/d")
    one.exit(zombie, reap=False)
    view = one.view(cgroup=root)
    assert view.read(f"/proc/{process.pid}/cgroup").decode() == f"0::{text}\n"
    one.move(process, "/")
    one.rmdir(f"{POD}/c/d")
    assert view.read(f"/proc/{zombie.pid}/cgroup").decode() == f"0::{text} (deleted)\n"


# Forks


def test_a_fork_has_a_hierarchy_of_its_own(one: Machine) -> None:
    one.write(f"{POD}/cgroup.subtree_control", b"+dmem")
    one.mkdir(f"{POD}/a")
    one.mkdir(f"{POD}/gone")
    one.delegate("/kubepods.slice/a", 1000)
    one.write(f"{POD}/a/dmem.max", f"{REGION} 5".encode())
    process = one.process(cgroup="/kubepods.slice/a")
    zombie = one.process(cgroup="/kubepods.slice/gone")
    one.exit(zombie, reap=False)
    one.rmdir(f"{POD}/gone")
    fork = one.fork()
    for path in (f"{POD}/a/dmem.max", f"/proc/{process.pid}/cgroup", f"/proc/{zombie.pid}/cgroup"):
        assert fork.read(path) == one.read(path)
    fork.view(uid=1000).mkdir(f"{POD}/a/b")
    fork.write(f"{POD}/a/dmem.max", f"{REGION} 6".encode())
    fork.kill("/kubepods.slice/a")
    assert one.read(f"{POD}/a/dmem.max") == f"{REGION} 5\n".encode()
    assert "b" not in one.list(f"{POD}/a")
    assert words(one, f"{POD}/a/cgroup.procs") == [str(process.pid)]
