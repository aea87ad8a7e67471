"""From a command line to an answer: exit statuses, one line for each refusal, and the dry run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from devplugin.amd.vendor import Amd
from devplugin.launch import amd_device_plugin, main

from .daemon.storeapi import DictHost
from .daemon.toyplugin import Toy

TOY = str(Path(__file__).parent / "daemon" / "toyplugin.py")


def run(*words: str, env: dict[str, str] | None = None, program: tuple[str, ...] = (TOY,)) -> Any:
    surroundings = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", **(env or {})}
    if "PYTHONPATH" in os.environ:
        surroundings["PYTHONPATH"] = os.environ["PYTHONPATH"]
    return subprocess.run(
        [sys.executable, *program, *words],
        env=surroundings,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def root(tmp_path: Path) -> str:
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "a").write_text("ok")
    return str(tmp_path)


def test_the_dry_run_prints_one_object_and_needs_no_node_and_no_cluster(tmp_path: Path) -> None:
    done = run("-root", root(tmp_path), "-dry_run")
    assert (done.returncode, done.stderr) == (0, "")
    said = json.loads(done.stdout)
    assert said.pop("settings")["slots"] == {"value": 4, "source": "default"}
    assert said == {"schema": 1, "vendor": "toy", "mode": "soft", "things": 1}
    assert done.stdout.startswith('{\n  "schema": 1,\n')
    assert done.stdout.endswith("}\n")


def test_the_dry_run_loads_neither_grpc_nor_the_api_client_nor_asyncio(tmp_path: Path) -> None:
    code = (
        "import sys, runpy\n"
        f"sys.argv = ['toy', '-root', {root(tmp_path)!r}, '-dry_run']\n"
        "try:\n"
        f"    runpy.run_path({TOY!r}, run_name='__main__')\n"
        "except SystemExit:\n"
        "    heavy = ('grpc', 'kubernetes', 'asyncio', 'structlog', 'google.protobuf', 'yaml')\n"
        "    print('loaded', *[m for m in heavy if m in sys.modules], file=sys.stderr)\n"
    )
    done = run("-c", code, program=())
    assert done.stderr.split() == ["loaded"]


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        (("-nonsense",), 2, "flag provided but not defined"),
        (("-slots", "many"), 2, "invalid integer value"),
        (("-slots=0", "-dry_run"), 1, "-slots=0: must be above 0"),
        (("-root", "/no/such/root", "-dry_run"), 1, "-root='/no/such/root': No such file or directory"),
        (("-root", "/dev/null", "-dry_run"), 1, "-root='/dev/null': Not a directory"),
        (("-simulate", "x", "-root", "/tmp", "-dry_run"), 1, "not together with -simulate"),
        (("-simulate", "no/such-fixture", "-dry_run"), 1, "-simulate='no/such-fixture': "),
        (("-simulate", "unix:/no/such.sock", "-dry_run"), 1, "-simulate='unix:/no/such.sock': "),
        ((), 1, "NODE_NAME is not set"),
    ],
)
def test_what_is_wrong_with_a_command_line_is_said_without_a_traceback(
    words: tuple[str, ...], status: int, text: str
) -> None:
    done = run(*words)
    assert done.returncode == status, done.stderr
    assert text in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    if status == 1:
        assert len(done.stderr.splitlines()) == 1


def test_help_is_no_error() -> None:
    done = run("-help")
    assert done.returncode == 0
    assert "-slots" in done.stdout
    assert "-kubelet_dir" in done.stdout


def test_a_host_handed_in_is_the_node(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(Toy(), ["-dry_run"], host=DictHost({"/toy/a": "ok", "/toy/b": "ok"}), env={}) == 0
    assert json.loads(capsys.readouterr().out)["things"] == 2


def test_the_amd_plugin_starts_from_its_console_script_on_a_simulated_node() -> None:
    code = "import sys; from devplugin.launch import amd_device_plugin as go; sys.exit(go())"
    done = run("-c", code, "-simulate", "mi355x/spx-6.14", "-dry_run", program=())
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert list(report)[:3] == ["schema", "vendor", "mode"]
    assert (report["vendor"], report["mode"], len(report["registration"])) == ("amd", "cu", 8)


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        ("-gpus=all", 2, "flag provided but not defined: '-gpus'"),
        ("-v4", 2, "flag provided but not defined: '-v4'"),
        ("-split_count=1_0", 2, "invalid integer value '1_0'"),
        ("-device_memory_scaling=1_0.5", 2, "invalid number '1_0.5'"),
        ("-report_node_capacity=yes", 2, "invalid boolean value 'yes'"),
        ("-split_count=-1", 1, "-split_count=-1: must not be negative"),
        ("-device_memory_scaling=0", 1, "-device_memory_scaling=0.0: must be a finite number above 0"),
        ("-hip_log_level=5", 1, "-hip_log_level=5: must be 0 to 4"),
        ("-cdi_spec_dir=cdi", 1, "-cdi_spec_dir='cdi': must be an absolute path"),
        ("-resource_naming_strategy=both", 1, "-resource_naming_strategy='both': use one of single, mixed"),
        ("-allocator_policy=random", 1, "-allocator_policy='random': use one of besteffort"),
        ("-install_hook=a:b", 1, "-install_hook='a:b': use SRC:DST, two absolute paths"),
    ],
)
def test_flags_of_the_amd_plugin_are_usage_or_one_line_with_name_and_value(
    words: str, status: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    host = DictHost({})
    try:
        ended = main(Amd(), [words, "-dry_run"], host=host, env={})
    except SystemExit as left:
        ended = left.code  # type: ignore[assignment]
    said = capsys.readouterr()
    assert (ended, said.out) == (status, "")
    assert text in said.err
    assert ("usage:" in said.err) is (status == 2)
    if status == 1:
        assert len(said.err.splitlines()) == 1


def _into(stdout: Any, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], stdout=stdout, stderr=subprocess.PIPE, text=True, check=False, timeout=60
    )


def _closed(*words: str) -> subprocess.CompletedProcess[str]:
    return _into(None, "-c", "import os, sys; os.close(1); os.execv(sys.executable, sys.argv[1:])", *words)


DRY_RUNS = ["amd_device_plugin", "node_labeller"]


@pytest.mark.parametrize("program", DRY_RUNS)
def test_a_dry_run_that_cannot_print_says_so_in_one_line(program: str) -> None:
    code = f"import sys; from devplugin.launch import {program} as go; sys.exit(go())"
    words = ("-c", code, "-simulate", "mi355x/spx-6.14", "-dry_run")
    told = f"{program.replace('_', '-')}: standard output:"
    with open("/dev/full", "w") as full:
        done = _into(full, *words)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"{told} No space left on device"
    assert "Traceback" not in done.stderr
    done = _closed(sys.executable, *words)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"{told} is closed"
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("program", DRY_RUNS)
def test_a_reader_that_has_seen_enough_is_no_failure(program: str) -> None:
    code = f"import sys; from devplugin.launch import {program} as go; sys.exit(go())"
    ours, theirs = os.pipe()
    os.close(ours)
    with open(theirs, "w") as gone:
        done = _into(gone, "-c", code, "-simulate", "mi355x/spx-6.14", "-dry_run")
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


def test_the_dry_run_says_on_stderr_what_the_daemon_would_log(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = amd_device_plugin(["-simulate", "mi355x/numa-unknown", "-dry_run"])
    said = capsys.readouterr()
    assert code == 0
    assert json.loads(said.out)["vendor"] == "amd"
    lines = said.err.splitlines()
    assert len(lines) == len(set(lines))
    assert all(line.startswith("amd-device-plugin: warning: ") for line in lines)
    assert any("numa_node" in line and "taken as unknown" in line for line in lines)
    assert any("offered as one device of 256 CUs" in line for line in lines)


def test_a_reader_of_warnings_who_has_seen_enough_does_not_cost_the_result(tmp_path: Path) -> None:
    """`… -dry_run 2>&1 >seen.json | head -n 1`: the pipe of stderr is closed long before the end."""
    reading, writing = os.pipe()
    os.close(reading)
    node = tmp_path / "root"
    (node / "toy").mkdir(parents=True)
    for number in range(50):
        (node / "toy" / f"t{number}").write_text("broken")
    done = subprocess.run(
        [sys.executable, TOY, "-root", str(node), "-dry_run"],
        stdout=subprocess.PIPE,
        stderr=writing,
        check=False,
        timeout=60,
    )
    os.close(writing)
    assert done.returncode == 0
    assert json.loads(done.stdout)["vendor"] == "toy"
