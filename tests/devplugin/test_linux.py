"""The real end of the seam on temporary trees: the root holds, errnos are the kernel's, programs end."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from devplugin.host import Files, Host, Kind, Runner
from devplugin.linux import LinuxHost


def fails(number: int, call: Callable[[], object]) -> None:
    with pytest.raises(OSError) as raised:
        call()
    assert raised.value.errno == number


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    real = root / "sys/devices/virtual/kfd/kfd/topology"
    real.mkdir(parents=True)
    (real / "generation_id").write_bytes(b"9\n\0\0")
    (root / "sys/class/kfd").mkdir(parents=True)
    (root / "sys/class/kfd/kfd").symlink_to("../../devices/virtual/kfd/kfd")
    (root / "sys/class/kfd/absolute").symlink_to("/sys/devices/virtual/kfd/kfd")
    (root / "etc").mkdir()
    (root / "etc/up").symlink_to("../../../../../../etc/inside")
    (root / "etc/inside").write_text("inside")
    (root / "etc/loop").symlink_to("loop")
    (root / "etc/dangling").symlink_to("/nowhere")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/inside").write_text("OUTSIDE")
    return root


def test_it_satisfies_all_three_protocols(tree: Path) -> None:
    host: Host = LinuxHost(str(tree))
    files: Files = LinuxHost(str(tree))
    runner: Runner = LinuxHost(str(tree))
    assert host and files and runner


def test_reading_gives_the_bytes_as_they_are(tree: Path) -> None:
    host = LinuxHost(str(tree))
    assert host.read("/sys/devices/virtual/kfd/kfd/topology/generation_id") == b"9\n\0\0"
    (tree / "big").write_bytes(b"x" * 300_000)
    assert len(host.read("/big")) == 300_000
    (tree / "empty").write_bytes(b"")
    assert host.read("/empty") == b""


@pytest.mark.parametrize("name", ["kfd", "absolute"])
def test_relative_and_absolute_links_lead_inside_the_root(tree: Path, name: str) -> None:
    host = LinuxHost(str(tree))
    for _ in range(2):
        assert host.read(f"/sys/class/kfd/{name}/topology/generation_id") == b"9\n\0\0"
        assert host.list(f"/sys/class/kfd/{name}") == ["topology"]
        assert host.stat(f"/sys/class/kfd/{name}").kind is Kind.DIRECTORY
        assert host.stat(f"/sys/class/kfd/{name}", follow=False).kind is Kind.LINK
    assert host.readlink("/sys/class/kfd/kfd") == "../../devices/virtual/kfd/kfd"


def test_no_number_of_dots_leaves_the_root(tree: Path) -> None:
    host = LinuxHost(str(tree))
    assert host.read("/etc/up") == b"inside"
    assert host.read("/../../etc/inside") == b"inside"
    assert host.read("/etc/../../../etc/inside") == b"inside"
    assert "root" not in host.list("/..")


def test_every_failure_has_the_kernels_errno(tree: Path) -> None:
    host = LinuxHost(str(tree))
    fails(errno.ENOENT, lambda: host.read("/etc/nothing"))
    fails(errno.ENOENT, lambda: host.read("/nothing/below"))
    fails(errno.ENOENT, lambda: host.read("/etc/dangling"))
    fails(errno.ENOTDIR, lambda: host.read("/etc/inside/below"))
    fails(errno.EISDIR, lambda: host.read("/etc"))
    fails(errno.ELOOP, lambda: host.read("/etc/loop"))
    fails(errno.ELOOP, lambda: host.stat("/etc/loop"))
    fails(errno.ENOTDIR, lambda: host.list("/etc/inside"))
    fails(errno.ENOENT, lambda: host.list("/nothing"))
    fails(errno.EINVAL, lambda: host.readlink("/etc/inside"))
    fails(errno.ENOENT, lambda: host.stat("/etc/dangling"))
    fails(errno.ENOENT, lambda: host.write("/etc/nothing", b"x"))
    fails(errno.ENOENT, lambda: host.probe("/dev/dri/renderD128"))
    fails(errno.ENOENT, lambda: host.unlink("/etc/nothing"))


def test_a_root_that_is_not_there_is_an_empty_machine() -> None:
    fails(errno.ENOENT, lambda: LinuxHost("/nonexistent/tree").read("/sys/class/kfd"))


def test_writing_neither_creates_nor_truncates(tree: Path) -> None:
    host = LinuxHost(str(tree))
    (tree / "dmem.max").write_text("0123456789")
    assert host.write("/dmem.max", b"ab") == 2
    assert (tree / "dmem.max").read_text() == "ab23456789"


def test_a_tree_that_changes_is_read_as_it_is_now(tree: Path) -> None:
    host = LinuxHost(str(tree))
    path = "/sys/class/kfd/kfd/topology/nodes/1/properties"
    fails(errno.ENOENT, lambda: host.read(path))
    node = tree / "sys/devices/virtual/kfd/kfd/topology/nodes/1"
    node.mkdir(parents=True)
    (node / "properties").write_text("a 1")
    assert host.read(path) == b"a 1"
    (node / "properties").unlink()
    fails(errno.ENOENT, lambda: host.read(path))
    node.rmdir()
    fails(errno.ENOENT, lambda: host.read(path))
    fails(errno.ENOENT, lambda: host.list("/sys/class/kfd/kfd/topology/nodes/1"))


def test_stat_tells_kind_mode_size_and_device_number(tree: Path) -> None:
    host = LinuxHost(str(tree))
    (tree / "etc/inside").chmod(0o640)
    said = host.stat("/etc/inside")
    assert (said.kind, said.mode, said.size, said.rdev) == (Kind.FILE, 0o640, 6, None)
    null = LinuxHost().stat("/dev/null")
    assert (null.kind, null.rdev) == (Kind.CHARACTER, (1, 3))
    os.mkfifo(tree / "fifo")
    assert host.stat("/fifo").kind is Kind.OTHER


def test_probing_opens_and_closes_and_takes_plain_files_too(tree: Path) -> None:
    host = LinuxHost(str(tree))
    host.probe("/etc/inside")
    LinuxHost().probe("/dev/null")
    before = len(os.listdir("/proc/self/fd"))
    host.probe("/etc/inside")
    assert len(os.listdir("/proc/self/fd")) == before
    os.mkfifo(tree / "fifo")
    host.probe("/fifo")  # O_NONBLOCK: nobody at the other end must not hang us


def test_put_replaces_atomically_and_keeps_no_part(tree: Path) -> None:
    host = LinuxHost(str(tree))
    host.mkdir("/var/run/cdi")
    host.put("/var/run/cdi/amd.json", b"one", 0o600)
    first = os.stat(tree / "var/run/cdi/amd.json").st_ino
    host.put("/var/run/cdi/amd.json", b"two")
    done = os.stat(tree / "var/run/cdi/amd.json")
    assert (tree / "var/run/cdi/amd.json").read_bytes() == b"two"
    assert stat.S_IMODE(done.st_mode) == 0o644
    assert done.st_ino != first
    assert host.list("/var/run/cdi") == ["amd.json"]
    fails(errno.ENOENT, lambda: host.put("/no/such/dir/file", b""))


def test_put_over_a_link_replaces_the_link(tree: Path) -> None:
    host = LinuxHost(str(tree))
    host.put("/etc/up", b"own")
    assert (tree / "etc/up").read_bytes() == b"own"
    assert not (tree / "etc/up").is_symlink()
    assert (tree / "etc/inside").read_text() == "inside"


def test_mkdir_makes_parents_and_is_content_with_what_is_there(tree: Path) -> None:
    host = LinuxHost(str(tree))
    host.mkdir("/a/b/c")
    host.mkdir("/a/b/c")
    host.mkdir("/sys/class/kfd/absolute/made")
    assert (tree / "sys/devices/virtual/kfd/kfd/made").is_dir()
    fails(errno.ENOTDIR, lambda: host.mkdir("/etc/inside"))


def test_rmdir_removes_one_empty_directory_of_the_tree(tree: Path) -> None:
    host = LinuxHost(str(tree))
    host.mkdir("/tmp/check/inner")
    fails(errno.ENOTEMPTY, lambda: host.rmdir("/tmp/check"))
    host.rmdir("/tmp/check/inner")
    host.rmdir("/tmp/check")
    assert "check" not in host.list("/tmp")
    fails(errno.ENOENT, lambda: host.rmdir("/tmp/check"))
    fails(errno.ENOTDIR, lambda: host.rmdir("/etc/inside"))
    (tree / "tmp/way").symlink_to("/etc")
    fails(errno.ENOTDIR, lambda: host.rmdir("/tmp/way"))


def test_copy_and_unlink(tree: Path) -> None:
    host = LinuxHost(str(tree))
    host.copy("/etc/inside", "/etc/copy", 0o555)
    assert stat.S_IMODE(os.stat(tree / "etc/copy").st_mode) == 0o555
    host.unlink("/etc/copy")
    assert "copy" not in host.list("/etc")


def test_a_program_runs_to_its_end() -> None:
    done = LinuxHost().run(["/bin/sh", "-c", "cat; echo err >&2; exit 3"], stdin=b"in")
    assert (done.status, done.stdout, done.stderr) == (3, b"in", b"err\n")
    fails(errno.ENOENT, lambda: LinuxHost().run(["/no/such/program"]))


def test_a_program_out_of_time_dies_with_its_children(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    with pytest.raises(TimeoutError):
        LinuxHost().run(["/bin/sh", "-c", f"sleep 60 & echo $! > {mark}; wait"], timeout=0.5)
    child = int(mark.read_text())
    for _ in range(100):
        try:
            state = Path(f"/proc/{child}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except FileNotFoundError:
            return
        if state in "ZX":
            return
        time.sleep(0.02)
    pytest.fail("the child outlived its process group")


def test_under_another_root_no_program_of_this_machine_runs(tree: Path) -> None:
    fails(errno.ENOENT, lambda: LinuxHost(str(tree)).run(["/bin/sh", "-c", "true"]))
    fails(errno.ENOENT, lambda: LinuxHost(str(tree)).run(["sh"]))


PARTS = st.sampled_from(["a", "b", "..", ".", "l", "m", ""])
TARGETS = st.lists(PARTS, min_size=1, max_size=5).map("/".join).filter(bool)


@given(st.lists(PARTS, max_size=6), TARGETS, TARGETS, st.booleans(), st.booleans())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_path_over_any_two_links_reads_outside(
    tmp_path: Path, parts: list[str], one: str, two: str, abs_one: bool, abs_two: bool
) -> None:
    outside = tmp_path / "a"
    if not outside.exists():
        outside.mkdir()
        (outside / "secret").write_text("OUT")
        (tmp_path / "t/a/b").mkdir(parents=True)
        for at in ("a", "a/b"):
            (tmp_path / "t" / at / "secret").write_text("in")
    root = tmp_path / "t"
    for name, target, absolute in (("l", one, abs_one), ("a/m", two, abs_two)):
        (root / name).unlink(missing_ok=True)
        (root / name).symlink_to(f"/{target}" if absolute else target)
    path = "/" + "/".join([*parts, "secret"])
    try:
        assert LinuxHost(str(root)).read(path) == b"in"
    except OSError as error:
        assert error.errno in (errno.ENOENT, errno.ELOOP, errno.ENOTDIR)
