"""docs/property-tests.md is true: its files print what it shows, its table is that of the seeded bugs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from gpusim.testing import machines

from .seeded_bugs import BUGS

ROOT = Path(__file__).resolve().parents[3]
TEXT = (ROOT / "docs" / "property-tests.md").read_text()
FILES = dict(re.findall(r"```python\n# (\S+)\n(.*?)```", TEXT, re.DOTALL))
SHOWN = re.findall(r"```text\n(.*?)```", TEXT, re.DOTALL)


_KEPT = {"PATH", "HOME", "LANG", "TMPDIR", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE"}
"""What of the environment the reader has too; a build server's marks are not among it."""


def told(output: str) -> list[str]:
    """Lines without what differs between runs: pytest's margin, the module of an error, remarks on chance.

    Of several small nodes shrinking ends at any, seed or not, as far as it gets in its time: which partitions
    the counter-example has, and their sizes, is not compared.
    """
    bare = (line.removeprefix("E").strip().split("  # or any")[0] for line in output.splitlines())
    plain = (line.removeprefix("gpusim.testing.machines.broken.Broken: ") for line in bare)
    sized = (re.sub(r"\d{4,}", "N", re.sub(r"renderD\d+", "renderD", line)) for line in plain)
    one = (re.sub(r"devices=(devices_of\(|\[Device\(id='renderD).*", "devices=", line) for line in sized)
    return unfolded(one)


def unfolded(lines: Iterable[str]) -> list[str]:
    """A request that Hypothesis broke over several lines, as the one line it may be as well."""
    found: list[str] = []
    for line in lines:
        if found and found[-1].count("request=Request(") and not found[-1].endswith("))"):
            comma = " " if found[-1].endswith(",") else ""
            found[-1] = f"{found[-1]}{comma}{line}".replace(", )", ")")
        else:
            found.append(line)
    return found


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What the page's command prints, first as the page stands and then with its correction."""
    place = tmp_path_factory.mktemp("reader")
    for name, code in FILES.items():
        (place / name).write_text(code)
    command = re.search(r"^pytest (-q .*)$", TEXT, re.MULTILINE)
    assert command is not None
    loaded = [] if "gpusim.testing.pytest_plugin" in sys.modules else ["-p", "gpusim.testing.pytest_plugin"]
    # The reader's own machine: on a build server Hypothesis draws by itself and takes no seed.
    env = {name: value for name, value in os.environ.items() if name in _KEPT}
    said = ""
    for old, new in (("", ""), ("emptiest[0]", "emptiest[-1]")):
        (place / "allocator.py").write_text(
            FILES["allocator.py"].replace(old, new) if old else FILES["allocator.py"]
        )
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *loaded, *command[1].split(), "-p", "no:cacheprovider"]
            + (["test_allocator.py"] if old else []),
            cwd=place,
            env=env,
            capture_output=True,
            text=True,
            check=False,
            timeout=280,
        )
        assert done.returncode == (0 if old else 1), done.stdout + done.stderr
        said += done.stdout
    return told(said)


@pytest.mark.timeout(300)
def test_the_runs_print_what_the_page_shows_and_fail_where_it_says_so(output: list[str]) -> None:
    for shown in SHOWN:
        rest: Iterator[str] = iter(output)
        for line in told(shown):
            assert any(printed.startswith(line) for printed in rest), (
                f"{line!r} not in, or not there in:\n" + "\n".join(output)
            )
    assert {line.split(" - ")[0] for line in output if line.startswith("FAILED")} == {
        "FAILED test_allocator.py::TestPods::runTest",
        "FAILED test_partitions.py::TestPartitions::runTest",
        "FAILED test_wrong.py::test_wrong",
    }


def test_the_files_are_small() -> None:
    assert set(FILES) == {
        "allocator.py", "test_allocator.py", "test_partitions.py", "test_node.py", "test_wrong.py"
    }  # fmt: skip
    assert max(len(code.splitlines()) for code in FILES.values()) <= 35


def test_the_table_has_every_invariant_and_the_bug_seeded_for_it() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `([a-z-]+)` \| (.+) \| (.+) \|$", TEXT, re.MULTILINE)
    assert rows == table()


def table() -> list[tuple[str, str, str, str]]:
    """Machine, invariant, when it holds, the mistake that it catches."""
    rows = []
    for bug in BUGS:
        named = re.findall(r"^ +``([a-z-]+)`` +(.+)$", getattr(machines, bug.machine).__doc__, re.MULTILINE)
        rows.append((bug.machine, bug.invariant, dict(named)[bug.invariant].replace("``", "`"), bug.mistake))
    return rows
