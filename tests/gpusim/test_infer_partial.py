"""A capture that lacks a file, or whose file holds nonsense, still gives a fixture that can be loaded."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpusim import fixture
from gpusim.errors import GpusimError
from gpusim.machine import Machine
from gpusim.snapshots import pack, record
from gpusim.snapshots.host import CaptureHost
from gpusim.snapshots.infer import Inferred, infer
from gpusim.snapshots.possible import possible
from gpusim.snapshots.sources import opened
from gpusim.snapshots.walk import place
from gpusim.spec import CardSpec, Cpus, GpuSpec, NodeSpec

from .infer_sources import Partial

CAPTURES = ["mi355x-8gpu-spx-6.8", "mi300a-4apu-spx"]
MEMBERS = "/sys/module/amdgpu/drivers/pci:amdgpu"
SAMPLE = 150
NODE = NodeSpec(
    "small",
    "6.14.0-37-generic",
    gpus=(GpuSpec("MI300X", "0000:05:00.0"), GpuSpec("MI300X", "0000:15:00.0", numa=1)),
    bmc=True,
    cards=(CardSpec("i915", "0000:00:02.0", 0x8086, 0x46A6),),
)
RECORDED = record.record(Machine(NODE))
BAD = [b"", b"-1", b"0", b"1" + b"0" * 30, b"9" * 5000, b"\xff\xfe", b"0x", b"none\n"]


def loadable(source: Any) -> Inferred:
    found = infer(source, "partial")
    assert fixture.loads(found.text()) == found.spec
    return found


def files(recorded: pack.Capture) -> list[str]:
    return [
        path for path, entry in recorded.entries() if entry.kind is pack.Kind.FILE and path[:5] == "/sys/"
    ]


def variants(path: str) -> Iterator[dict[str, Any]]:
    yield {"without": [path, place(path)]}
    yield {"replaced": {path: b""}}


@pytest.mark.parametrize("name", CAPTURES)
def test_a_capture_without_any_one_of_its_files_gives_a_loadable_fixture(name: str, snapshots: Path) -> None:
    with opened(str(snapshots / name)) as source:
        assert isinstance(source, CaptureHost)
        told = files(source.capture)
        # What decides whether there is a GPU at all is tried for each, of the rest a sample.
        decisive = [p for p in told if p.endswith(("/available_compute_partition", "/properties", "/uevent"))]
        decisive = [p for p in decisive if p.count("/") <= 8]
        for path in {*decisive, *random.Random(1).sample(told, min(SAMPLE, len(told)))}:
            for how in variants(path):
                loadable(Partial(source, **how))


@pytest.mark.parametrize("lacking", [1, 3, 7])
def test_amdgpu_gpus_that_cannot_be_described_are_left_out_with_a_note(lacking: int, snapshots: Path) -> None:
    with opened(str(snapshots / CAPTURES[0])) as source:
        gpus = [name for name in source.list(MEMBERS) if name[:4] == "0000"][:lacking]
        without = [f"{MEMBERS}/{gpu}/available_compute_partition" for gpu in gpus]
        found = loadable(Partial(source, without))
    assert {gpu.bdf for gpu in found.spec.gpus}.isdisjoint(gpus)
    assert len(found.spec.gpus) == 8 - lacking
    assert all(card.driver != "amdgpu" for card in found.spec.cards)
    assert all(any(gpu in note and "left out" in note for note in found.notes) for gpu in gpus)


@given(st.sampled_from(files(RECORDED)), st.sampled_from([None, *BAD]))
@example("/sys/devices/virtual/kfd/kfd/topology/nodes/2/properties", None)
@settings(deadline=None)
def test_any_one_file_dropped_or_spoilt_gives_a_loadable_fixture(path: str, data: bytes | None) -> None:
    source = CaptureHost(RECORDED)
    how: dict[str, Any] = {"without": [path, place(path)]} if data is None else {"replaced": {path: data}}
    loadable(Partial(source, **how))


LINES = sorted(
    {
        line.partition(b" ")[0]
        for path in files(RECORDED)
        if "/topology/nodes/" in path and path.endswith("/properties")
        for line in CaptureHost(RECORDED).read(path).splitlines()
    }
)


@given(st.sampled_from(LINES), st.sampled_from([b"0", b"3", b"4294967296", b"1" + b"0" * 30, b"9" * 5000]))
@settings(deadline=None)
def test_any_number_of_the_topology_spoilt_gives_a_loadable_fixture(line: bytes, value: bytes) -> None:
    source = CaptureHost(RECORDED)
    replaced = {}
    for path in files(RECORDED):
        if "/topology/nodes/" in path and path.endswith("/properties"):
            said = [
                name + b" " + (value if name == line else old)
                for name, _, old in (one.partition(b" ") for one in source.read(path).splitlines())
            ]
            replaced[path] = b"\n".join(said)
    try:
        loadable(Partial(source, replaced=replaced))
    except GpusimError as refusal:
        assert "no GPU in this capture" in str(refusal)


def test_values_out_of_range_fall_to_the_default_with_a_note() -> None:
    notes: list[str] = []
    wrong = NodeSpec(
        "wrong",
        NODE.kernel,
        gpus=(GpuSpec("MI300X", "0000:05:00.0", vram_used=-1), GpuSpec("MI300X", "0000:15:00.0", numa=9)),
        cpus=Cpus(nodes=10**30),
    )
    found = possible(wrong, notes.append)
    assert found.cpus.nodes == Cpus().nodes
    assert (found.gpus[0].vram_used, found.gpus[1].numa) == (GpuSpec("", "").vram_used, 0)
    assert fixture.loads(fixture.dump(found)) == found
    assert len(notes) == 3
    assert all("default stands" in note and len(note) < 200 for note in notes)


def test_a_fixture_that_no_default_mends_is_refused_with_node_and_place() -> None:
    with pytest.raises(GpusimError, match=r"capture of wrong .*\$\.kernel"):
        possible(NodeSpec("wrong", "no release", gpus=NODE.gpus), print)
