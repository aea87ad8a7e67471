"""The machine: build, read, switch, fork, import (performance.md, first rows)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gpusim import Machine, load
from gpusim.nodes import Attr, File
from tests.bench.guards import Guard, best

BDF = "0000:75:00.0"
MODE = f"/sys/bus/pci/devices/{BDF}/current_compute_partition"
SPEC = load("mi355x/cpx-6.14")


def paths_of(machine: Machine) -> list[str]:
    """Every file that can be read: `uevent`, `remove` and their like have no answer or no read bit."""
    return [
        path
        for path, node in machine.tree.every_file()
        if isinstance(node, Attr | File) and readable(machine, path)
    ]


def readable(machine: Machine, path: str) -> bool:
    try:
        machine.read(path)
    except OSError:
        return False
    return True


def read_all(machine: Machine, paths: list[str]) -> int:
    read, total = machine.read, 0
    for path in paths:
        total += len(read(path))
    return total


def renderers(machine: Machine) -> list[tuple[str, Callable[[], bytes]]]:
    """The same texts without the tree: what computing them alone costs."""
    made: list[tuple[str, Callable[[], bytes]]] = []
    for path in paths_of(machine):
        node = machine.tree.node(path)
        made.append((path, _attr(node) if isinstance(node, Attr) else partial(bytes, machine.read(path))))
    return made


def _attr(node: Attr) -> Callable[[], bytes]:
    show = node.show
    if not callable(show):
        return partial(bytes, show or b"")

    def text() -> bytes:
        value = show()
        return value.encode() if isinstance(value, str) else value

    return text


def build_and_read(paths: list[str]) -> None:
    read_all(Machine(SPEC), paths)


def test_build_and_read_every_file_of_8_gpus_in_cpx(guard: Guard) -> None:
    machine = Machine(SPEC)
    paths = paths_of(machine)
    texts = renderers(machine)
    floor = best(lambda: {path: text() for path, text in texts})
    guard(
        lambda: build_and_read(paths), floor=floor, limit=3, floor_name="rendering the same texts into a dict"
    )


def test_construct_8_gpus_in_cpx(guard: Guard) -> None:
    paths = paths_of(Machine(SPEC))
    floor = best(lambda: build_and_read(paths), rounds=3)
    guard(lambda: Machine(SPEC), floor=floor, limit=1 / 20, floor_name="construct and read all", number=5)


def test_fork(guard: Guard) -> None:
    machine = Machine(SPEC)
    floor = best(lambda: Machine(SPEC), number=5)
    guard(machine.fork, floor=floor, limit=1, floor_name="constructing the machine", number=5)


def test_switch_write(guard: Guard) -> None:
    machine = Machine(SPEC)
    paths = paths_of(machine)
    floor = best(lambda: build_and_read(paths), rounds=3)
    modes = iter(["spx", "cpx"] * 200)
    guard(
        lambda: machine.write(MODE, next(modes).encode()),
        floor=floor,
        limit=1 / 20,
        floor_name="construct and read all",
        number=2,
    )


def test_reread_every_changed_file_after_a_switch(guard: Guard) -> None:
    machine = Machine(SPEC)
    before = {path: machine.read(path) for path in paths_of(machine)}
    floor = best(lambda: build_and_read(list(before)), rounds=3)
    machine.switch(BDF, "spx")
    changed = [path for path in paths_of(machine) if before.get(path) != machine.read(path)]
    assert changed

    def settle() -> None:
        machine.switch(BDF, "cpx")
        machine.switch(BDF, "spx")

    guard(
        lambda: read_all(machine, changed),
        setup=settle,
        floor=floor,
        limit=1,
        floor_name="construct and read all",
    )


def dict_walk(root: dict[str, Any], path: str) -> Any:
    node: Any = root
    for part in path.split("/")[1:]:
        node = node[part]
    return node


PCI = f"/sys/module/amdgpu/drivers/pci:amdgpu/{BDF}"
KFD = "/sys/class/kfd/kfd/topology/nodes/12"


@pytest.mark.parametrize(
    ("path", "limit"),
    [
        pytest.param(f"{PCI}/vendor", 5, id="static"),
        pytest.param(f"{PCI}/mem_info_vram_used", 25, id="computed number"),
        pytest.param(f"{KFD}/properties", 25, id="computed KFD properties"),
    ],
)
def test_read_one_attribute(guard: Guard, path: str, limit: float) -> None:
    machine = Machine(SPEC)
    nested: dict[str, Any] = {}
    node = nested
    *parents, last = path.split("/")[1:]
    for part in parents:
        node = node.setdefault(part, {})
    node[last] = machine.read(path)
    floor = best(lambda: dict_walk(nested, path), number=2000)
    guard(
        lambda: machine.read(path),
        floor=floor,
        limit=limit,
        floor_name="a dict walk of the path",
        number=2000,
    )


def start(code: str, cache: Path) -> Callable[[], Any]:
    """A fresh interpreter that runs `code`, its byte code compiled before."""
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    env = {**kept, "PYTHONPYCACHEPREFIX": str(cache)}
    run = partial(subprocess.run, [sys.executable, "-c", code], check=True, env=env)
    run()
    return run


@pytest.mark.parametrize(("code", "limit"), [("import gpusim", 3), ("from gpusim import Machine", 6)])
def test_start(guard: Guard, tmp_path: Path, code: str, limit: float) -> None:
    floor = best(start("pass", tmp_path), rounds=9)
    guard(start(code, tmp_path), floor=floor, limit=limit, floor_name="a bare interpreter", rounds=9)
