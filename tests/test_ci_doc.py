"""docs/ci.md: its workflow runs as written, its flags and commands exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from devplugin.amd import flags
from devplugin.settings import GoParser, add_common_flags
from gpusim.cli.main import parser
from gpusim.export.render import render
from gpusim.fixture import load
from gpusim.machine import Machine
from gpusim.snapshots import directory, pack, recorder

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs/ci.md").read_text()


def workflow() -> Any:
    found = re.search(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
    assert found is not None
    return yaml.safe_load(found[1])


def replayed(checkout: Path, script: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "PYTHONPATH")}
    return subprocess.run(
        ["bash", "-e", "-c", script], cwd=checkout, env=kept, capture_output=True, text=True, check=False
    )


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with one snapshot, and the plugin started without making an environment."""
    render(Machine(load("mi355x/qpx-6.14")), tmp_path / "tree")
    (tmp_path / "snapshots").mkdir()
    pack.write(directory.collect(tmp_path / "tree"), tmp_path / "snapshots/node.gpusim")
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin/amd-device-plugin"
    code = "import sys; from devplugin.launch import amd_device_plugin; sys.exit(amd_device_plugin())"
    program.write_text(f"#!/bin/sh\nexec {sys.executable} -c '{code}' \"$@\"\n")
    program.chmod(0o755)
    return tmp_path


def test_the_workflow_accepts_what_is_expected_and_fails_on_what_is_not(checkout: Path) -> None:
    steps = workflow()["jobs"]["replay"]["steps"]
    script = next(step["run"] for step in steps if "run" in step)
    assert replayed(checkout, script).returncode == 1  # there is no golden file yet
    accepted = replayed(checkout, script.replace("-expect", "-update -expect"))
    assert accepted.returncode == 0, accepted.stderr
    golden = checkout / "snapshots/node.partition.json"
    assert '"devmem": 73728' in golden.read_text()
    assert replayed(checkout, script).returncode == 0
    golden.write_text(golden.read_text().replace("73728", "73724", 1))
    done = replayed(checkout, script)
    assert done.returncode == 1
    assert '-       "devmem": 73724,' in done.stdout
    assert 'failures="1"' in (checkout / "reports/node.partition.xml").read_text()
    assert 'failures="0"' in (checkout / "reports/node.cu.xml").read_text()


def test_every_flag_of_the_document_is_one() -> None:
    plugin = GoParser("amd-device-plugin", "")
    add_common_flags(plugin)
    flags.add_flags(plugin)
    known = set(plugin._option_string_actions)
    lines = [line for line in TEXT.splitlines() if "amd-device-plugin" in line or line.startswith("| `-")]
    used = {word for line in lines for word in re.findall(r"(?<=[ `])-[a-z][a-z_]+", line)}
    assert {"-root", "-expect", "-update", "-junit", "-dry_run"} <= used <= known


def test_every_command_of_the_document_is_one() -> None:
    commands = set(re.findall(r"\bgpusim ([a-z]+)", TEXT))
    assert {"record", "pack", "unpack", "render"} == commands
    for command in commands:
        with pytest.raises(SystemExit) as leaving:
            parser().parse_args([command, "--help"])
        assert leaving.value.code == 0


def test_the_constraints_are_the_first_page_and_numbered_without_gaps() -> None:
    first = TEXT.split("\n## ")[1]
    assert first.startswith("What a snapshot is\n")
    numbers = [int(number) for number in re.findall(r"^(\d+)\. \*\*", first, re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) >= 5


def test_the_recipe_uses_words_that_the_recorder_takes() -> None:
    line = next(line for line in TEXT.splitlines() if "gpusim-record.pyz /tmp" in line)
    import argparse

    words = argparse.ArgumentParser()
    recorder.add_arguments(words)
    args = words.parse_args(line.split("gpusim-record.pyz ")[1].split())
    assert (args.out, args.root, args.scrub) == ("/tmp/node.gpusim", "/host", True)
