"""The command line: what it prints, what it refuses, which code it ends with, and that it cleans up."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpusim import fixture, hosts
from gpusim.cli import main
from gpusim.cli.extras import remedy
from gpusim.errors import GpusimError, NoServerError
from gpusim.fixture import load
from gpusim.machine import Machine
from gpusim.remote import RemoteMachine
from gpusim.serve import Server

Output = pytest.CaptureFixture[str]


@pytest.fixture
def directory() -> Iterator[Path]:
    """Short, because a socket path has at most 107 bytes."""
    found = Path(tempfile.mkdtemp(prefix="cli-"))
    yield found
    shutil.rmtree(found)


@pytest.fixture
def served(directory: Path) -> Iterator[str]:
    """A served machine with eight GPUs in SPX, as the command line names it."""
    with Server(Machine(load("mi355x/spx-6.14")), str(directory / "s")):
        yield f"unix:{directory}/s"


def run(*argv: str) -> int:
    return main(list(argv))


def result(output: Output, *argv: str) -> Any:
    code = run(*argv)
    out, err = output.readouterr()
    assert (code, err) == (0, "")
    return json.loads(out)


def complaint(output: Output, *argv: str) -> str:
    code = run(*argv)
    out, err = output.readouterr()
    assert (code, out) == (1, "")
    assert "Traceback" not in err
    assert err.startswith("gpusim: ")
    return err


# Looking


def test_show_prints_every_gpu_partition_and_node(capsys: Output) -> None:
    assert run("show", "mi355x/cpx-6.8-bmc-63") == 0
    lines = capsys.readouterr().out.splitlines()
    assert "kernel 6.8.0-79-generic" in lines[0]
    assert "63 GPU nodes" in lines[0]
    assert re.search(r"^ +0 +0000:75:00.0 +MI355X +CPX/NPS1 +0 +300 of 294896 MiB$", lines[2])
    assert re.search(r"^ +0 +0000:75:00.0 +1 +128 +8 +13364$", lines[3])
    assert re.search(r"^ +7 +no DRM device +- +- +- +-$", lines[-2])
    assert lines[-1] == "card0: 0000:03:00.0, driver ast"
    assert len(lines) == 2 + 8 * 9 + 1


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mi355x/spx-6.8-intree", "no driver"),
        ("mi355x/numa-unknown", "no file"),
        ("mi355x/qpx-6.8", "(hidden)"),
        ("rdna4/rx9070-igpu", "STRIX_POINT"),
        ("mi300a/spx-intree", "0003:02:00.0"),
    ],
)
def test_show_says_what_is_odd_about_a_node(capsys: Output, name: str, words: str) -> None:
    assert run("show", name) == 0
    assert words in capsys.readouterr().out


def test_show_is_a_table_on_a_terminal(capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "160")
    assert run("show", "mi355x/qpx-6.14") == 0
    out = capsys.readouterr().out
    assert "━" in out
    assert "amdgpu_xcp_55" not in out
    assert "amdgpu_xcp_51" in out


def test_show_as_json_is_the_machines_own_description(capsys: Output, served: str) -> None:
    name = "mi355x/mixed-spx-cpx"
    assert result(capsys, "show", name, "--json") == Machine(load(name)).describe()
    assert result(capsys, "show", served, "--json")["name"] == "mi355x/spx-6.14"


def test_fixtures_lists_every_one_with_its_sentence(capsys: Output) -> None:
    listed = result(capsys, "fixtures", "--json")
    assert [entry["name"] for entry in listed] == list(fixture.names())
    assert all(entry["about"] for entry in listed)
    assert run("fixtures") == 0
    assert len(capsys.readouterr().out.splitlines()) == len(listed)


def test_render_writes_the_tree_and_says_so(capsys: Output, tmp_path: Path) -> None:
    told = result(capsys, "render", "rdna4/rx9070-igpu", str(tmp_path / "out"), "--json")
    assert told["files"] > 100
    assert told["devices"] == 6
    assert (tmp_path / "out/sys/class/kfd/kfd/topology/nodes/1/gpu_id").read_text().strip().isdigit()
    assert "not empty" in complaint(capsys, "render", "rdna4/rx9070-igpu", str(tmp_path / "out"))
    assert run("render", "rdna4/rx9070-igpu", str(tmp_path / "out"), "--force") == 0
    assert "device nodes as empty files" in capsys.readouterr().out


def test_render_takes_a_served_machine(capsys: Output, directory: Path) -> None:
    here = result(capsys, "render", "rdna4/rx9070-igpu", str(directory / "here"), "--json")
    with Server(Machine(load("rdna4/rx9070-igpu")), str(directory / "s")):
        there = result(capsys, "render", f"unix:{directory}/s", str(directory / "there"), "--json")
    assert {**here, "directory": ""} == {**there, "directory": ""}
    compare = ["diff", "-r", "--no-dereference", directory / "here", directory / "there"]
    assert subprocess.run(compare, check=False).returncode == 0


# Doing


@pytest.mark.parametrize("gpu", ["0000:15:00.0", "card25", "3"])
def test_a_gpu_is_named_by_address_card_or_place(capsys: Output, served: str, gpu: str) -> None:
    assert result(capsys, "set", served, "mode", gpu, "qpx", "--json") == {
        "gpu": "0000:15:00.0",
        "was": "SPX",
        "mode": "QPX",
        "kfd_nodes": [15, 16, 17, 18],
    }


def test_set_says_what_became_of_the_gpu(capsys: Output, served: str) -> None:
    assert run("set", served, "mode", "0", "DPX") == 0
    assert capsys.readouterr().out == "0000:75:00.0: DPX (was SPX); KFD nodes 15 to 16\n"
    assert run("set", served, "mode", "0", "SPX") == 0
    assert capsys.readouterr().out == "0000:75:00.0: SPX (was DPX); KFD node 15\n"


def test_a_busy_switch_names_the_process_and_how_to_end_it(capsys: Output, served: str) -> None:
    held = result(capsys, "open", served, "/dev/kfd", "--json")
    assert held["path"] == "/dev/kfd"
    assert run("show", served) == 0
    assert f"process {held['pid']} (uid 0) holds /dev/kfd" in capsys.readouterr().out
    told = complaint(capsys, "set", served, "mode", "0", "QPX")
    assert "EBUSY" in told
    remedy = re.search(r"`gpusim (close .*?)`", told)
    assert remedy
    assert run(*remedy[1].split()) == 0
    capsys.readouterr()
    assert result(capsys, "set", served, "mode", "0", "QPX", "--json")["mode"] == "QPX"


def test_several_holders_are_named_as_several_and_every_printed_command_can_be_pasted(
    capsys: Output, directory: Path
) -> None:
    (directory / "a b").mkdir()
    with Server(Machine(load("mi355x/spx-6.14")), str(directory / "a b" / "s")):
        served = f"unix:{directory}/a b/s"
        assert run("open", served, "/dev/kfd") == 0
        pasted = re.search(r"`gpusim (.*?)` ends it", capsys.readouterr().out)
        assert pasted
        for _ in range(2):
            result(capsys, "open", served, "/dev/kfd", "--json")
        told = complaint(capsys, "set", served, "mode", "0", "QPX")
        assert re.search(r"processes \d+, \d+ and \d+ hold /dev/kfd: end them first", told)
        assert run(*shlex.split(pasted[1])) == 0
        capsys.readouterr()
        told = complaint(capsys, "set", served, "mode", "0", "QPX")
        assert re.search(r"processes \d+ and \d+ hold /dev/kfd", told)
        assert run("remove", served, "0") == 0
        capsys.readouterr()
        remedy = re.search(r"`gpusim (add .*?)`", complaint(capsys, "set", served, "mode", "0", "QPX"))
        assert remedy
        assert run(*shlex.split(remedy[1])) == 0
        capsys.readouterr()
    nobody = complaint(capsys, "show", served)
    assert shlex.quote(served.removeprefix("unix:")) in nobody


def test_an_empty_mode_is_quoted(capsys: Output, served: str) -> None:
    assert "0000:75:00.0: mode '' refused: EINVAL" in complaint(capsys, "set", served, "mode", "0", "")


@pytest.mark.parametrize("uid", ["-1", "4294967295", "x", "9" * 5000])
def test_a_uid_that_is_none_is_wrong_usage(capsys: Output, served: str, uid: str) -> None:
    assert run("open", served, "/dev/null", f"--uid={uid}") == 2
    assert "is no user id: 0 to 4294967294" in capsys.readouterr().err


def test_help_tells_how_to_end_the_process_of_a_killed_holder(capsys: Output) -> None:
    assert run("open", "--help") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "a command that is killed (SIGKILL) cannot end it, and `gpusim close`" in said


def test_a_removed_gpu_uses_no_memory(capsys: Output, served: str) -> None:
    assert run("remove", served, "0") == 0
    assert run("show", served) == 0
    (row,) = [line for line in capsys.readouterr().out.splitlines() if " removed " in line]
    assert "MiB" not in row
    assert result(capsys, "show", served, "--json")["gpus"][0]["vram_used"] == 0
    assert run("add", served, "0") == 0
    capsys.readouterr()
    assert result(capsys, "show", served, "--json")["gpus"][0]["vram_used"] == 300 << 20


@pytest.mark.parametrize(
    ("name", "mode", "words"),
    [
        ("mi355x/spx-6.14", "TPX", "EINVAL (Invalid argument); in NPS1 this GPU offers SPX, DPX, QPX, CPX"),
        ("mi355x/vf", "CPX", "EACCES (Permission denied); the file is read-only"),
        ("rdna4/rx9070-igpu", "CPX", "ENOENT (No such file or directory); no driver holds the GPU, or"),
    ],
)
def test_a_refused_switch_has_the_errno_and_a_remedy(
    capsys: Output, directory: Path, name: str, mode: str, words: str
) -> None:
    with Server(Machine(load(name)), str(directory / "s")):
        assert words in complaint(capsys, "set", f"unix:{directory}/s", "mode", "0", mode)


def test_a_gpu_is_pulled_and_plugged_in_again(capsys: Output, served: str) -> None:
    assert run("remove", served, "0000:75:00.0") == 0
    assert run("show", served) == 0
    assert re.search(r"0000:75:00.0 +MI355X +removed", capsys.readouterr().out)
    assert "`gpusim add " in complaint(capsys, "set", served, "mode", "0", "QPX")
    assert "not plugged in" in complaint(capsys, "remove", served, "0")
    assert result(capsys, "add", served, "0", "--json") == {"gpu": "0000:75:00.0", "present": True}
    assert "plugged in already" in complaint(capsys, "add", served, "0")


def test_a_refused_open_leaves_no_process(capsys: Output, served: str) -> None:
    denied = complaint(capsys, "open", served, "/dev/dri/renderD128", "--device", "c 226:136 rw")
    assert "EPERM" in denied
    assert "ENOENT" in complaint(capsys, "open", served, "/dev/dri/renderD129")
    assert "rule" in complaint(capsys, "open", served, "/dev/kfd", "--device", "all of them")
    assert result(capsys, "show", served, "--json")["processes"] == []


def test_a_process_is_in_the_device_cgroup_it_was_given(capsys: Output, served: str) -> None:
    result(capsys, "open", served, "/dev/dri/renderD128", "--device", "c 226:128 rw", "--json")
    (process,) = result(capsys, "show", served, "--json")["processes"]
    assert process["devices"] == ["c 226:128 rw"]


def test_a_process_has_the_uid_it_was_given(capsys: Output, served: str) -> None:
    result(capsys, "open", served, "/dev/null", "--uid", "7", "--json")
    (process,) = result(capsys, "show", served, "--json")["processes"]
    assert process["uid"] == 7
    assert "EACCES" in complaint(capsys, "open", served, "/dev/dri/renderD128", "--uid", "7")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["show", "mi355x/qpx-6.15"], "near: mi355x/qpx-6.14"),
        (["show", "unix:/nowhere/s"], "gpusim serve FIXTURE --socket /nowhere/s"),
        (["set", "mi355x/spx-6.14", "mode", "0", "QPX"], "expected unix:SOCKET"),
        (["remove", "unix:", "0"], "expected unix:SOCKET"),
        (["serve", "mi355x/spx-6.14", "--socket", "/nowhere/at/all/s"], "/nowhere/at/all"),
        (["render", "mi355x/spx-6.14", "/dev/null"], "is a file"),
        (["render", "mi355x/spx-6.14", "/dev/null/x"], "lies below a file"),
        (["render", "mi355x/spx-6.14", "/proc/x"], "gpusim: /proc/x: cannot be written: No such file or "),
        (["show", "nope/none"], "gpusim: nope/none: no such file, and no fixture of that name"),
        (["show", "fixtures"], "gpusim: fixtures: is a directory, not a fixture"),
    ],
)
def test_what_cannot_be_had_is_one_line_and_code_1(capsys: Output, argv: list[str], words: str) -> None:
    told = complaint(capsys, *argv)
    assert words in told
    assert len(told.splitlines()) == 1


def test_unknown_gpus_and_processes_are_named_with_the_known_ones(capsys: Output, served: str) -> None:
    assert "0 = 0000:75:00.0 = card1, 1 =" in complaint(capsys, "set", served, "mode", "card99", "QPX")
    assert "no process 99" in complaint(capsys, "close", served, "99")


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["dance"],
        ["show"],
        ["show", "x", "--jso"],
        ["serve", "x"],
        ["set", "unix:/s", "nps", "0", "1"],
        ["close", "unix:/s", "x"],
    ],
)
def test_wrong_usage_is_code_2(capsys: Output, argv: list[str]) -> None:
    assert run(*argv) == 2
    assert "usage:" in capsys.readouterr().err


COMMANDS = ["fixtures", "show", "render", "serve", "set", "open", "close", "remove", "add"]
COMMANDS += ["kubelet", "apiserver"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_teaches_with_its_help(capsys: Output, command: str) -> None:
    assert run(command, "--help") == 0
    told = capsys.readouterr().out
    assert told.startswith(f"usage: gpusim {command}")
    assert command == "fixtures" or f"examples:\n  gpusim {command} " in told


def test_the_help_names_every_command(capsys: Output) -> None:
    assert run("--help") == 0
    told = capsys.readouterr().out
    assert all(re.search(rf"^    {command}( |$)", told, re.MULTILINE) for command in COMMANDS)


def test_the_command_line_loads_without_the_heavy_libraries() -> None:
    code = (
        "import sys; from gpusim.cli import main; main(['show', 'mi355x/spx-6.14', '--json']); "
        "sys.exit(' '.join({'grpc', 'kubernetes', 'rich', 'hypothesis'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


# Hosts, as the plugin asks for them


def test_simulate_takes_fixtures_paths_and_sockets(served: str) -> None:
    assert isinstance(hosts.simulate("mi355x/vf"), Machine)
    assert isinstance(hosts.simulate(str(fixture.find("mi355x/vf"))), Machine)
    with hosts.simulated(served) as remote:
        assert isinstance(remote, RemoteMachine)


def test_simulate_says_when_nobody_listens() -> None:
    with pytest.raises(NoServerError, match="/nowhere/s"):
        hosts.simulate("unix:/nowhere/s")
    with pytest.raises(GpusimError, match="no fixture of that name"):
        hosts.simulate("unix")


# Programs of their own


def program(*argv: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "gpusim.cli", *argv]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@contextlib.contextmanager
def running(*argv: str) -> Iterator[subprocess.Popen[str]]:
    """The program after its first line of output; killed if a test fails."""
    started = program(*argv)
    try:
        yield started
    finally:
        if started.poll() is None:
            started.kill()
        started.communicate()


@pytest.mark.daemon
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_served_machine_is_ready_when_it_says_so_and_leaves_no_socket(directory: Path, number: int) -> None:
    socket = directory / "s"
    with running("serve", "mi355x/qpx-6.14", "--socket", str(socket)) as server:
        assert server.stdout
        assert server.stdout.readline() == f"serving mi355x/qpx-6.14 on unix:{socket}\n"
        with hosts.connected(f"unix:{socket}") as machine:
            assert len(machine.describe()["gpus"]) == 8
        second = program("serve", "mi355x/qpx-6.14", "--socket", str(socket))
        assert "another server is listening" in second.communicate(timeout=20)[1]
        assert second.returncode == 1
        assert socket.exists()
        server.send_signal(number)
        assert server.communicate(timeout=20) == ("", "")
        assert server.returncode == 0
    assert os.listdir(directory) == []


@pytest.mark.daemon
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_held_device_is_closed_when_the_holder_is_interrupted(served: str, number: int) -> None:
    with hosts.connected(served) as machine, running("open", served, "/dev/kfd", "--hold") as holder:
        assert holder.stdout
        assert "holds /dev/kfd; Ctrl-C ends it" in holder.stdout.readline()
        with pytest.raises(OSError, match="busy"):
            machine.switch("0000:75:00.0", "QPX")
        holder.send_signal(number)
        assert holder.communicate(timeout=20) == ("", "")
        assert holder.returncode == 0
        machine.switch("0000:75:00.0", "QPX")


@pytest.mark.daemon
def test_an_interrupted_rendering_leaves_nothing(directory: Path) -> None:
    out = directory / "out"
    with running("render", "mi355x/cpx-6.14", str(out)) as renderer:
        deadline = time.monotonic() + 20
        while not (out / "proc").exists() and not (out / "dev").exists() and time.monotonic() < deadline:
            time.sleep(0.001)
        renderer.send_signal(signal.SIGINT)
        renderer.communicate(timeout=20)
        assert renderer.returncode in (0, 130)
    # On a fast machine it may have been done by then; half is the one thing that must not be.
    complete = out.exists() and (out / "sys/module/amdgpu").exists() and (out / "var").exists()
    assert complete if renderer.returncode == 0 else not out.exists()


def test_a_reader_that_stops_early_is_no_error() -> None:
    with running("show", "mi355x/cpx-6.14") as show:
        assert show.stdout
        show.stdout.readline()
        show.stdout.close()
        show.stdout = None
        assert show.communicate(timeout=20)[1] == ""
        assert show.returncode == 0


# Where nothing can be printed


@pytest.mark.parametrize(
    "words", [["show", "mi355x/spx-6.14"], ["show", "mi355x/spx-6.14", "--json"], ["fixtures"]]
)
def test_a_full_or_closed_standard_output_is_named_in_one_line(words: list[str]) -> None:
    command = [sys.executable, "-m", "gpusim.cli", *words]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "gpusim: standard output: No space left on device\n")
    close = "import os, sys; os.close(1); os.execv(sys.executable, sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", close, *command], stderr=subprocess.PIPE, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (1, "gpusim: standard output: is closed\n")


def test_a_gpu_hangs_resets_and_recovers_by_command(capsys: Output, served: str) -> None:
    assert run("hang", served, "0") == 0
    assert capsys.readouterr().out == "0000:75:00.0: driver amdgpu, hung\n"
    assert result(capsys, "reset", served, "0", "--json")["resetting"] is True
    assert run("recover", served, "0") == 0
    assert capsys.readouterr().out == "0000:75:00.0: driver amdgpu\n"


def test_a_gpu_goes_to_another_driver_and_back_by_command(capsys: Output, served: str) -> None:
    assert run("unbind", served, "0000:75:00.0") == 0
    assert "driver none" in capsys.readouterr().out
    assert "ENODEV" in complaint(capsys, "unbind", served, "0000:75:00.0")
    assert result(capsys, "bind", served, "0000:75:00.0", "vfio-pci", "--json")["driver"] == "vfio-pci"
    told = complaint(capsys, "bind", served, "0000:75:00.0")
    assert "EBUSY" in told
    assert "unbind it first" in told
    assert "not bound to amdgpu" in complaint(capsys, "hang", served, "0000:75:00.0")


def test_the_driver_comes_and_goes_by_command(capsys: Output, served: str) -> None:
    held = result(capsys, "open", served, "/dev/kfd", "--json")
    told = complaint(capsys, "driver", served, "unload")
    assert "EBUSY" in told
    assert "a process holds a device" in told
    assert run("close", served, str(held["pid"])) == 0
    capsys.readouterr()
    assert result(capsys, "driver", served, "unload", "--json") == {"loaded": False, "gpus": []}
    assert "EEXIST" not in capsys.readouterr().err
    assert result(capsys, "probe", served, "0", "fails", "--json")["probe"] == "fails"
    assert run("driver", served, "load") == 0
    assert capsys.readouterr().out == "amdgpu is loaded and has 7 GPUs\n"
    told = complaint(capsys, "bind", served, "0")
    assert "`gpusim probe HOST GPU works` mends broken firmware" in told
    assert run("probe", served, "0", "works") == 0
    assert run("driver", served, "reload") == 0
    assert capsys.readouterr().out.endswith("amdgpu is loaded and has 8 GPUs\n")
    assert "EEXIST" in complaint(capsys, "driver", served, "load")


def test_ctrl_c_while_modules_are_imported_is_no_traceback(directory: Path) -> None:
    (directory / "sitecustomize.py").write_text(
        "import signal, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'gpusim.cli.actions':\n"
        "            signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "gpusim.cli", "fixtures"],
        env={**os.environ, "PYTHONPATH": str(directory)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize(
    ("absent", "extra", "words"),
    [
        ("yaml", "sim", "fixtures"),
        ("grpc", "daemon", "kubelet --help"),
        ("msgspec", "sim", "apiserver --help"),
    ],
)
def test_without_an_extra_the_command_says_what_to_install(absent: str, extra: str, words: str) -> None:
    program = (
        f"import sys; sys.modules[{absent!r}] = None; "
        f"from gpusim.cli import main; sys.exit(main({words.split()!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    said = f"gpusim: this needs {absent}: pip install 'gpusim[{extra}]'\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", said)


def test_a_module_of_ours_that_is_absent_is_no_extra() -> None:
    assert remedy(ModuleNotFoundError("No module named 'gpusim.x'", name="gpusim.x")) is None
    assert (
        remedy(ModuleNotFoundError("No module named 'google.protobuf'", name="google.protobuf")) is not None
    )
