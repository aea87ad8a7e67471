"""Writing a node's tree out (performance.md, last row)."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpusim import Machine, load
from gpusim.export.render import render
from tests.bench.guards import Guard, best

SHM = "/dev/shm"
Plan = list[tuple[str, str, Any, int]]


@pytest.fixture
def scratch() -> Iterator[Path]:
    """On tmpfs where there is one: the disk is not what is measured."""
    made = Path(tempfile.mkdtemp(dir=SHM if os.path.isdir(SHM) else None))
    yield made
    shutil.rmtree(made)


def plan_of(machine: Machine, path: str = "") -> Iterator[tuple[str, str, Any, int]]:
    """Kind, path, content and mode of everything, in the order it can be made."""
    for name in machine.list(path or "/"):
        inner = f"{path}/{name}"
        stat = machine.stat(inner, follow=False)
        kind = stat.kind.name
        if kind == "LINK":
            yield kind, inner, machine.readlink(inner), 0
        elif kind == "DIRECTORY":
            yield kind, inner, None, stat.mode
            yield from plan_of(machine, inner)
        elif kind == "CHARACTER":
            yield "FILE", inner, b"", stat.mode
        else:
            try:
                yield "FILE", inner, machine.read(inner), stat.mode
            except OSError:
                continue


def write_raw(plan: Plan, target: str) -> None:
    """The system calls alone, in Python: nothing is looked up, nothing computed."""
    os.mkdir(target)
    for kind, path, content, mode in plan:
        where = target + path
        if kind == "FILE":
            descriptor = os.open(where, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            os.write(descriptor, content)
            os.close(descriptor)
        elif kind == "LINK":
            os.symlink(content, where)
        else:
            os.mkdir(where)


@pytest.mark.parametrize("name", ["mi355x/spx-6.14", "mi355x/cpx-6.14"])
def test_render_a_node_to_tmpfs(guard: Guard, scratch: Path, name: str) -> None:
    machine = Machine(load(name))
    plan = list(plan_of(machine))
    count = iter(range(1000))

    def fresh() -> str:
        for old in scratch.iterdir():
            shutil.rmtree(old)
        return f"{scratch}/{next(count)}"

    def raw_seconds() -> float:
        target = fresh()
        return best(lambda: write_raw(plan, target), rounds=1)

    floor = min(raw_seconds() for _ in range(5))
    guard(
        lambda target: render(machine, target),
        setup=lambda: ((fresh(),), {}),
        floor=floor,
        limit=1.4,
        floor_name=f"raw os calls for {len(plan)} entries",
        rounds=5,
    )
