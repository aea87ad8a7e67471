"""A mounted node is to programs what a real one is (`gpusim mount`), and the machine follows what they do."""

from __future__ import annotations

import errno
import glob
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpusim import fixture
from gpusim.export import fuse
from gpusim.machine import Machine
from gpusim.serve import serve
from gpusim.testing.machines import node

from .private_mount import GPUSIM, PRIVATE, SECONDS, Mounted, mounted, needs_fuse

BDF = "0000:75:00.0"
MODE = f"sys/bus/pci/drivers/amdgpu/{BDF}/current_compute_partition"
NODES = "sys/class/kfd/kfd/topology/nodes"


@pytest.fixture
def machine() -> Machine:
    return Machine(node(count=2))


@pytest.fixture
def live(machine: Machine, tmp_path: Path) -> Iterator[Mounted]:
    """The machine of this test, mounted."""
    with serve(machine, str(tmp_path / "s")), mounted(f"unix:{tmp_path}/s", tmp_path / "mnt") as mount:
        yield mount


@pytest.fixture
def twin(machine: Machine, tmp_path: Path) -> Iterator[Mounted]:
    """An equal machine, mounted: many times faster than one behind a socket."""
    (tmp_path / "node.yaml").write_text(fixture.dump(machine.spec))
    with mounted(str(tmp_path / "node.yaml"), tmp_path / "mnt") as mount:
        yield mount


def mountinfo() -> str:
    return Path("/proc/self/mountinfo").read_text()


@needs_fuse
def test_every_name_mode_owner_link_and_byte_is_the_machines(machine: Machine, twin: Mounted) -> None:
    compared = 0
    for path, _ in machine.tree.every_file():
        here, there = machine.stat(path, follow=False), os.lstat(twin.root + path)
        assert (there.st_mode & 0o7777, there.st_uid, there.st_gid) == (here.mode, here.uid, here.gid), path
        assert there.st_size == here.size, path
        if here.kind.name == "LINK":
            assert os.readlink(twin.root + path) == machine.readlink(path)
        elif here.kind.name == "DIRECTORY":
            assert sorted(os.listdir(twin.root + path)) == machine.list(path)
        elif here.kind.name == "FILE":
            try:
                expected: bytes | int | None = machine.read(path)
            except OSError as refused:
                expected = refused.errno
            try:
                got: bytes | int | None = Path(twin.root + path).read_bytes()
            except OSError as refused:
                got = refused.errno
            assert got == expected, path
            compared += 1
        else:
            assert os.path.isfile(twin.root + path), "a device is a regular file: the host's has its number"
    assert compared > 1000


@needs_fuse
def test_the_tools_people_use_see_the_node_as_on_linux(machine: Machine, twin: Mounted) -> None:
    names = [path for path, _ in machine.tree.every_file()]
    found = twin.shell("find $MNT -mindepth 1 | wc -l; find $MNT -type d -mindepth 1 | wc -l").stdout.split()
    directories = [name for name in names if machine.stat(name, follow=False).kind.name == "DIRECTORY"]
    assert [int(count) for count in found] == [len(names), len(directories)]
    listed = twin.shell("ls -lR $MNT")
    assert (listed.returncode, listed.stderr) == (0, "")
    assert "-rw-rw---- 1 root" in listed.stdout
    grepped = twin.shell(f"grep -rl '^simd_count 1024$' $MNT/{NODES}/").stdout.splitlines()
    assert len(grepped) == 2
    assert twin.shell(f"cat $MNT/{NODES}/*/gpu_id").stdout.split()[-2:] == [
        machine.read(f"/{NODES}/{place}/gpu_id").decode().strip() for place in (8, 9)
    ]
    script = f"import glob; print(len(glob.glob('{twin.directory}/{NODES}/**/properties', recursive=True)))"
    assert int(twin.run(sys.executable, "-c", script).stdout) == len(
        [
            name
            for name in names
            if name.startswith(machine.tree.resolve(f"/{NODES}")) and "/properties" in name
        ]
    )


@needs_fuse
def test_a_held_kfd_makes_a_switch_busy_until_it_is_closed(machine: Machine, live: Mounted) -> None:
    done = live.shell(
        f"""
        exec 3<>$MNT/dev/kfd
        echo QPX > $MNT/{MODE}; echo "status $?"
        exec 3>&-
        echo QPX > $MNT/{MODE}; echo "status $?"
        cat $MNT/{MODE}
        """
    )
    assert done.stdout.splitlines() == ["status 1", "status 0", "QPX"]
    assert "Device or resource busy" in done.stderr
    assert machine.gpu(BDF).mode == "QPX"
    assert len(machine.processes) == 0, "the process that stood for the shell ended with its last file"


@needs_fuse
def test_a_vanished_node_is_gone_at_once_and_a_held_file_of_it_is_dead(
    machine: Machine, live: Mounted
) -> None:
    machine.switch(BDF, "CPX")
    last = sorted(os.listdir(f"{live.root}/{NODES}"), key=int)[-1]
    path = f"{live.root}/{NODES}/{last}/gpu_id"
    held = os.open(path, os.O_RDONLY)
    assert os.read(held, 100)
    Path(f"{live.root}/{MODE}").write_text("SPX")
    assert not os.path.exists(path)
    assert last not in os.listdir(f"{live.root}/{NODES}")
    assert glob.glob(f"{live.root}/{NODES}/{last}*") == []
    with pytest.raises(OSError) as raised:
        os.pread(held, 100, 0)
    assert raised.value.errno == errno.ENODEV
    os.close(held)


@needs_fuse
def test_kernel_directories_refuse_what_only_the_kernel_may(live: Mounted) -> None:
    gpu = f"$MNT/sys/bus/pci/drivers/amdgpu/{BDF}"
    for command in (
        f"touch {gpu}/new",
        f"echo 1 > {gpu}/new",
        f"rm -f {gpu}/vendor",
        f"chmod 600 {gpu}/vendor",
        f"chown 12 {gpu}/vendor",
        f"mkdir {gpu}/new",
        f"rmdir {gpu}/power",
        f"ln -s a {gpu}/new",
        f"ln {gpu}/vendor {gpu}/new",
        f"mv {gpu}/vendor {gpu}/new",
        f"mknod {gpu}/new c 1 3",
        f"echo 1 > {gpu}/vendor",
    ):
        refused = live.shell(command)
        assert refused.returncode, command
        assert "not permitted" in refused.stderr or "Permission denied" in refused.stderr, (
            command,
            refused.stderr,
        )
    assert live.shell(f"echo XXX > $MNT/{MODE}").stderr.endswith("Invalid argument\n")
    assert live.shell("getfattr -d /dev/null; setfattr -n user.a -v b $MNT/sys").returncode


@needs_fuse
def test_users_get_what_their_user_and_groups_may(machine: Machine, live: Mounted) -> None:
    render = machine.stat("/dev/dri/renderD128").gid

    def as_user(script: str, group: int) -> subprocess.CompletedProcess[str]:
        # The shell stands in the mount already: the directories above are pytest's and closed to others.
        user = f"setpriv --reuid 1000 --regid 1000 --groups {group}"
        return live.shell(f"cd $MNT && exec {user} bash -c '{script}'")

    assert as_user(f"cat {MODE}", 1000).stdout == "SPX\n"
    assert "Permission denied" in as_user(f"echo CPX > {MODE}", 1000).stderr
    assert "Permission denied" in as_user("exec 3<>dev/dri/renderD128", 1000).stderr
    assert as_user("exec 3<>dev/dri/renderD128", render).returncode == 0
    assert as_user("test -w dev/kfd", 1000).returncode == 1
    assert as_user("test -w dev/kfd", render).returncode == 0


@needs_fuse
def test_ordinary_directories_take_files_as_a_disk_does(machine: Machine, live: Mounted) -> None:
    done = live.shell(
        """
        set -e
        cd $MNT/run
        echo one > a; echo two >> a; cat a
        mv a b; chmod 640 b; stat -c %a b; ln -s b c; cat c
        dd if=/dev/zero of=b bs=1 seek=2 count=1 conv=notrunc status=none; od -An -c b
        truncate -s 2 b; wc -c < b
        mkdir d; rmdir d; rm b c; ls
        """
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == [
        "one",
        "two",
        "640",
        "one",
        "two",
        "o",
        "n",
        "\\0",
        "\\n",
        "t",
        "w",
        "o",
        "\\n",
        "2",
    ]
    assert machine.list("/run") == []


@needs_fuse
def test_cgroups_are_made_limited_and_removed(machine: Machine, tmp_path: Path) -> None:
    limited = Machine(node(count=1, kernel="6.17", driver="in-tree"))
    with serve(limited, str(tmp_path / "s")), mounted(f"unix:{tmp_path}/s", tmp_path / "mnt") as mount:
        done = mount.shell(
            f"""
            cd $MNT/sys/fs/cgroup/kubepods.slice
            echo +dmem > cgroup.subtree_control
            mkdir pod && echo 'drm/{BDF}/vram 1048576' > pod/dmem.max && cat pod/dmem.max
            """
        )
        assert done.stdout == f"drm/{BDF}/vram 1048576\n", done.stderr
        assert limited.read("/sys/fs/cgroup/kubepods.slice/pod/dmem.max").decode() == done.stdout
        assert mount.shell("rmdir $MNT/sys/fs/cgroup/kubepods.slice/pod").returncode == 0
        assert "pod" not in limited.list("/sys/fs/cgroup/kubepods.slice")


@needs_fuse
def test_a_device_cannot_be_read_and_null_is_null(live: Mounted) -> None:
    assert "Invalid argument" in live.shell("cat $MNT/dev/dri/renderD128").stderr
    assert live.shell("echo x > $MNT/dev/null && cat $MNT/dev/null").stdout == ""


@needs_fuse
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_unmounts_and_leaves_nothing(number: int, tmp_path: Path) -> None:
    before = mountinfo()
    with mounted("mi355x/spx-6.14", tmp_path / "mnt") as mount:
        assert os.listdir(f"{mount.root}/sys/class/kfd") == ["kfd"]
        assert mountinfo() == before
        assert mount.end(number) == 0
    assert mountinfo() == before
    assert os.listdir(tmp_path / "mnt") == []


@needs_fuse
def test_umount_ends_it(tmp_path: Path) -> None:
    with mounted("mi355x/spx-6.14", tmp_path / "mnt") as mount:
        assert mount.shell("umount $MNT").returncode == 0
        assert mount.server.wait(SECONDS) == 0


@needs_fuse
def test_a_server_that_went_away_is_an_io_error(tmp_path: Path) -> None:
    served = serve(Machine(node(count=1)), str(tmp_path / "s"))
    with served, mounted(f"unix:{tmp_path}/s", tmp_path / "mnt") as mount:
        served.stop()
        assert "Input/output error" in mount.shell(f"cat $MNT/{MODE}").stderr


@needs_fuse
@pytest.mark.parametrize(
    ("directory", "why"),
    [
        ("missing", "No such file or directory"),
        ("full", "is not empty (it holds file)"),
        ("full/file", "Not a dir"),
    ],
)
def test_a_directory_that_cannot_be_mounted_on_is_refused(directory: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    command = [*PRIVATE, *GPUSIM, "mount", "mi355x/spx-6.14", str(tmp_path / directory)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 1
    assert why in done.stderr
    assert done.stderr.count("\n") == 1


def test_without_bindings_or_library_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mfusepy", None)
    with pytest.raises(fuse.MountError, match=r"pip install 'gpusim\[mount\]'"):
        fuse.load()

    def no_library(name: str, *_: object) -> SimpleNamespace:
        if name == "mfusepy":
            raise OSError("Unable to find libfuse")
        return real(name, *_)

    import builtins

    real = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", no_library)
    with pytest.raises(fuse.MountError, match="apt install fuse3"):
        fuse.load()
