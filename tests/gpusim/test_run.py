"""`gpusim run`: any program on a node, nothing of it outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpusim.export import namespace
from gpusim.export.namespace import Namespace, NamespaceError
from gpusim.machine import Machine
from gpusim.serve import serve
from gpusim.testing.machines import node

from .private_mount import GPUSIM, SECONDS, needs_fuse

NODE = "mi355x/spx-6.14"
MODE = "/sys/bus/pci/drivers/amdgpu/0000:75:00.0/current_compute_partition"
PLUGIN = "import sys; from devplugin.launch import amd_device_plugin as go; sys.exit(go())"


def run(*command: str, on: str = NODE, **named: object) -> subprocess.CompletedProcess[str]:
    argv = [*GPUSIM, "run", on, "--", *command]
    return subprocess.run(argv, check=False, capture_output=True, text=True, timeout=SECONDS, **named)  # type: ignore[call-overload,no-any-return]


def outside() -> tuple[str, list[str], list[str]]:
    """What a run could leave: mounts, names in /dev, scratch directories."""
    mounts = Path("/proc/self/mountinfo").read_text()
    return mounts, sorted(os.listdir("/dev")), sorted(os.listdir(os.environ["TMPDIR"]))


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where runs make their scratch directories: other tests beside this one have theirs."""
    (tmp_path / "scratch").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    return tmp_path / "scratch"


def until(holds: Callable[[], bool]) -> None:
    for _ in range(SECONDS * 20):
        if holds():
            return
        time.sleep(0.05)
    raise AssertionError("it did not come to pass")


@needs_fuse
def test_a_script_switches_a_gpu_and_sees_its_partitions_at_once() -> None:
    before = outside()
    done = run(
        "bash",
        "-c",
        f"""
        ls /sys/class/kfd/kfd/topology/nodes | wc -l
        exec 3<>/dev/kfd; echo CPX > {MODE} || echo busy
        exec 3>&-; echo CPX > {MODE}
        cat {MODE}; ls /sys/class/kfd/kfd/topology/nodes | wc -l
        ls /dev/dri | grep -c renderD; cat /sys/class/drm/renderD128/dev; ls -d /sys/fs/cgroup/kubepods.slice
        uname -s; cat /proc/sys/kernel/osrelease
        """,
    )
    said = done.stdout.split()
    assert said[1:3] == ["busy", "CPX"], done
    assert int(said[3]) == int(said[0]) + 7
    assert said[5:8] == ["226:128", "/sys/fs/cgroup/kubepods.slice", "Linux"]
    assert "Device or resource busy" in done.stderr
    assert outside() == before


@needs_fuse
def test_what_programs_need_of_a_machine_is_still_there() -> None:
    done = run(
        "bash",
        "-c",
        """
        set -e
        echo lost > /dev/null; head -c 4 /dev/zero | wc -c; head -c 4 /dev/urandom | wc -c
        cat /sys/devices/system/cpu/online; ls /sys/class/net | grep -x lo; cat /dev/stdin
        touch /dev/shm/gpusim-test && rm /dev/shm/gpusim-test; test -d /dev/pts; test -c /dev/tty
        [ ! -e /sys/class/block ] || ls /sys/class/block > /dev/null
        """,
        input="typed\n",
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == [
        "4",
        "4",
        Path("/sys/devices/system/cpu/online").read_text().strip(),
        "lo",
        "typed",
    ]


@needs_fuse
def test_the_plugin_finds_the_node_at_the_root() -> None:
    here = run(sys.executable, "-c", PLUGIN, "-root", "/", "-dry_run")
    simulated = [sys.executable, "-c", PLUGIN, "-simulate", NODE, "-dry_run"]
    there = subprocess.run(simulated, check=True, capture_output=True, text=True, timeout=SECONDS)
    assert here.returncode == 0, here.stderr
    found, expected = json.loads(here.stdout), json.loads(there.stdout)
    assert found["registration"] == expected["registration"]
    assert len(found["registration"]) == 8
    assert all(device["health"] for device in found["registration"])


@needs_fuse
@pytest.mark.parametrize(
    ("command", "status", "says"),
    [
        (("true",), 0, ""),
        (("sh", "-c", "exit 7"), 7, ""),
        (("sh", "-c", "kill -KILL $$"), 128 + signal.SIGKILL, ""),
        (("no-such-program",), 127, "gpusim: no-such-program: No such file or directory\n"),
        (("/etc/passwd",), 126, "gpusim: /etc/passwd: Permission denied\n"),
        (("sh", "-c", "yes | head -1 >/dev/null; exit ${PIPESTATUS:-0}"), 0, ""),
    ],
)
def test_the_exit_status_is_the_programs(command: tuple[str, ...], status: int, says: str) -> None:
    done = run(*command)
    assert (done.returncode, done.stderr) == (status, says)


@needs_fuse
def test_a_served_machine_is_changed_from_inside_and_seen_from_outside(tmp_path: Path) -> None:
    machine = Machine(node(count=1))
    with serve(machine, str(tmp_path / "s")):
        assert run("bash", "-c", f"echo qpx > {MODE}", on=f"unix:{tmp_path}/s").returncode == 0
    assert machine.gpu("0000:75:00.0").mode == "QPX"
    assert len(machine.processes) == 0


@needs_fuse
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_reaches_the_program_and_everything_is_cleaned_up(number: int, tmp_path: Path) -> None:
    before = outside()
    script = f"trap 'echo caught; exit 5' TERM INT HUP; touch {tmp_path}/ready; while :; do sleep 0.05; done"
    started = subprocess.Popen(
        [*GPUSIM, "run", NODE, "--", "bash", "-c", script], stdout=subprocess.PIPE, text=True
    )
    until((tmp_path / "ready").exists)
    assert outside()[0] == before[0], "while it runs, nothing is mounted here"
    started.send_signal(number)
    assert started.communicate(timeout=SECONDS)[0] == "caught\n"
    assert started.returncode == 5
    assert outside() == before


@needs_fuse
def test_when_it_is_killed_the_program_and_the_file_system_end_too(tmp_path: Path, scratch: Path) -> None:
    script = f"echo $$ > {tmp_path}/pid; mv {tmp_path}/pid {tmp_path}/ready; exec sleep 1000"
    started = subprocess.Popen([*GPUSIM, "run", NODE, "--", "bash", "-c", script])
    until((tmp_path / "ready").exists)
    program = int((tmp_path / "ready").read_text())
    root = Path(f"/proc/{program}/root/dev/kfd")
    assert root.exists()
    before = Path("/proc/self/mountinfo").read_text()
    started.kill()
    started.wait(SECONDS)
    until(lambda: not Path(f"/proc/{program}").exists())
    assert Path("/proc/self/mountinfo").read_text() == before
    # SIGKILL leaves the scratch directory, an empty one: nothing was ever mounted on it here.
    (left,) = scratch.iterdir()
    assert os.listdir(left) == []


@needs_fuse
def test_runs_beside_each_other_have_nodes_of_their_own() -> None:
    command = ["bash", "-c", f"echo CPX > {MODE}; sleep 1; cat {MODE}"]
    first = subprocess.Popen([*GPUSIM, "run", NODE, "--", *command], stdout=subprocess.PIPE, text=True)
    second = run("bash", "-c", f"sleep 1; cat {MODE}")
    assert first.communicate(timeout=SECONDS)[0] == "CPX\n"
    assert second.stdout == "SPX\n"


@needs_fuse
def test_without_root_it_says_what_is_missing() -> None:
    user = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
    code = (
        "import sys; sys.path[:0] = sys.argv.pop(1).split(':'); from gpusim.cli import main; sys.exit(main())"
    )
    command = [*user, sys.executable, "-c", code, ":".join(sys.path), "run", NODE, "--", "true"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=SECONDS, cwd="/")
    if os.stat("/dev/fuse").st_mode & 0o006 == 0o006:
        pytest.skip("everybody may open /dev/fuse here")
    assert (done.returncode, done.stderr) == (
        1,
        "gpusim: mounting needs /dev/fuse, which this user may not open: run as root\n",
    )


def test_nothing_is_ever_mounted_in_the_hosts_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    monkeypatch.setattr(namespace, "_call", lambda name, *_: called.append(name))
    # unshare "succeeds" without leaving: whoever trusted it would mount here.
    with pytest.raises(NamespaceError, match="still in the mount namespace of the host"):
        Namespace.enter()
    assert called == ["unshare"]
    with pytest.raises(NamespaceError, match="nothing is mounted"):
        Namespace(os.readlink("/proc/self/ns/mnt")).bind("/sys", "/dev")
    assert called == ["unshare"]


def test_a_machine_that_may_not_leave_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(name: str, *_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(namespace, "_call", refused)
    with pytest.raises(NamespaceError, match=r"Operation not permitted; run as root \(CAP_SYS_ADMIN\)"):
        Namespace.enter()
