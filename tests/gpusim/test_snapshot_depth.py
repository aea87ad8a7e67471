"""A tree far deeper than any node's is refused with a sentence, wherever it comes from."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpusim.cli.main import main
from gpusim.errors import GpusimError
from gpusim.nodes import Dir, File
from gpusim.snapshots import directory, pack
from gpusim.snapshots.pack import Entry, Kind
from gpusim.snapshots.plan import Plan
from gpusim.snapshots.shape import MAX_DEPTH
from gpusim.snapshots.walk import Walk
from gpusim.tree import Caller, Tree
from gpusim.view import View

REFUSAL = f"more than {MAX_DEPTH} directories below each other"
DEEP = 1500


def nested(top: Path, count: int) -> None:
    """`count` directories below each other; the whole path may be longer than PATH_MAX."""
    top.mkdir(parents=True)
    here = os.open(top, os.O_RDONLY)
    for _ in range(count):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


def host(top: str, count: int) -> View:
    """A node with `count` directories below `top`."""
    inner: Dir | File = File(b"x")
    for name in [*["d"] * count, *reversed(top.split("/")[1:])]:
        inner = Dir({name: inner})
    assert isinstance(inner, Dir)
    return View(Tree(inner), Caller())


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    top = tmp_path_factory.mktemp("deep") / "node"
    nested(top / "sys" / "class" / "kfd", DEEP)
    yield top
    # Not left to pytest: shutil.rmtree would exhaust the stack.
    subprocess.run(["rm", "-rf", top], check=True)


@pytest.mark.parametrize("command", ["infer", "diff", "verify", "pack"])
def test_a_directory_too_deep_is_refused_by_every_command(
    command: str, deep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    second = {"diff": [str(deep)], "pack": [str(tmp_path / "out.pack")]}.get(command, [])
    assert main([command, str(deep), *second]) in (1, 2)
    assert REFUSAL in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_tree_at_the_bound_is_collected_packed_and_written_again(tmp_path: Path) -> None:
    nested(tmp_path / "deep" / "d", MAX_DEPTH - 1)
    recorded = directory.collect(tmp_path / "deep")
    assert pack.loads(pack.dumps(recorded)) == recorded
    directory.write(recorded, tmp_path / "again")
    assert directory.collect(tmp_path / "again").tree == recorded.tree


def test_entries_too_deep_make_no_capture() -> None:
    with pytest.raises(GpusimError, match=REFUSAL):
        pack.capture({"/d" * DEEP: Entry(Kind.FILE, 0o444)})


@pytest.mark.parametrize("top", ["/sys/class/kfd/kfd", "/dev/dri"])
def test_a_live_node_too_deep_is_neither_recorded_nor_compared(top: str) -> None:
    node = host(top, DEEP)
    with pytest.raises(GpusimError, match=REFUSAL):
        Plan(node, node.read).everything()
    with pytest.raises(GpusimError, match=REFUSAL):
        Walk(node)
