"""The walls of the house: layers, types and style are part of the suite."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def check(*command: str) -> None:
    done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_import_contracts_hold() -> None:
    check("-c", "from importlinter.cli import lint_imports_command as main; main(['--no-cache'])")


@pytest.mark.timeout(300)
def test_types_hold_under_mypy_strict() -> None:
    check("-m", "mypy")


def test_style_holds_under_ruff() -> None:
    check("-m", "ruff", "check", "--no-cache", ".")


def test_layout_is_the_formatters() -> None:
    check("-m", "ruff", "format", "--check", "--no-cache", ".")


def test_every_room_says_why_it_exists() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for package in ("gpusim", "devplugin")
        for path in (ROOT / package).rglob("*.py")
        if "_pb2" not in path.name and not path.read_text().lstrip().startswith('"""')
    ]
    assert silent == []


def test_the_repository_holds_no_index_addresses_and_no_machine_paths() -> None:
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if files.returncode != 0:
        pytest.skip("not a git checkout: nothing to list")
    flags = "|".join(["--index" + "-url", "--extra-index" + "-url", "--find" + "-links"])
    homes = "|".join(["work", "root"])  # as in /proc/PID/root it is no machine's path
    told = re.compile(rf"{flags}|(?<![\w}}])/({homes})/")
    found = []
    for name in files.stdout.split():
        path = ROOT / name
        if path.is_file() and (hit := told.search(path.read_text(errors="replace"))):
            found.append(f"{name}: {hit[0]}")
    assert found == []
