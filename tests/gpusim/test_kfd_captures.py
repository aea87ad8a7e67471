"""KFD trees equal the recorded ones byte for byte, from a few facts of each host.

Each capture is compared twice: with a manifest of digests that is checked in, so the proof needs nothing from
outside, and with the capture itself where it is at hand; the latter also proves the manifest.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gpusim.amd.kfd import Topology
from gpusim.amd.kfd_tree import kfd_files
from gpusim.fixture import load
from gpusim.machine import Machine
from gpusim.spec import NodeSpec

from .kfd_digests import capture, digest, digests, manifest

NODES = "/sys/class/kfd/kfd/topology/"


def mi300x() -> dict[str, str]:
    return machine_files(Machine(load("mi300x/cpx-6.8-bmc-63")))


def mi300a() -> dict[str, str]:
    spec = load("mi300a/spx-intree")
    # The published capture carries neutral ids; the fixture's are invented.
    gpus = tuple(
        replace(gpu, unique_id=1000000000000000004 + index, hive_id=1000000000000000999)
        for index, gpu in enumerate(spec.gpus)
    )
    return machine_files(Machine(replace(spec, gpus=gpus)))


def strix() -> dict[str, str]:
    return machine_files(Machine(load("apu/strixpoint-890m")))


def vega10() -> dict[str, str]:
    return machine_files(Machine(load("vega10/legacy-kernel")))


def machine_files(machine: Machine) -> dict[str, str]:
    """Every file below topology/, read as any reader of the machine reads it."""
    found: dict[str, str] = {}
    pending = [NODES.rstrip("/")]
    while pending:
        directory = pending.pop()
        for name in machine.list(directory):
            path = f"{directory}/{name}"
            if machine.stat(path).kind.name == "DIRECTORY":
                pending.append(path)
            else:
                found[path.removeprefix(NODES)] = machine.read(path).decode()
    return found


CASES: dict[str, tuple[Callable[[], dict[str, str]], int]] = {
    "mi300x-8gpu-cpx": (mi300x, 4101),
    "mi300a-4apu-spx": (mi300a, 8),
    "apu-strixpoint-890m": (strix, 39),
    # Node 2 of this capture is a copy that its publisher edited (its PROVENANCE).
    "vega10-single-legacy-kernel": (vega10, 109),
}


def recorded(snapshots: Path, name: str) -> dict[str, str]:
    files = capture(snapshots / name / "sys/class/kfd/kfd/topology")
    return {path: text for path, text in files.items() if "legacy" not in name or "nodes/2/" not in path}


@pytest.mark.parametrize("name", CASES)
def test_the_tree_has_the_digests_of_the_capture(name: str) -> None:
    make, count = CASES[name]
    expected = digests(name)
    assert len(expected) == count
    made = make()
    assert {path: digest(made[path]) for path in expected if path in made} == expected


@pytest.mark.snapshots
@pytest.mark.parametrize("name", CASES)
def test_the_tree_is_the_capture_byte_for_byte(name: str, snapshots: Path) -> None:
    make, count = CASES[name]
    expected = recorded(snapshots, name)
    made = make()
    assert len(expected) == count
    different = [path for path in expected if made.get(path) != expected[path]]
    assert different == []


@pytest.mark.snapshots
@pytest.mark.parametrize("name", CASES)
def test_the_manifest_is_that_of_the_capture(name: str, snapshots: Path) -> None:
    assert manifest(recorded(snapshots, name)) == manifest_text(name)


def manifest_text(name: str) -> str:
    return (Path(__file__).parent / "data" / f"{name}.digests").read_text()


@pytest.mark.snapshots
def test_a_complete_capture_has_every_file_the_tree_has(snapshots: Path) -> None:
    # Of Strix Point and Vega10 everything below topology/ was recorded, but perf/ and empty directories.
    for name, make in (("apu-strixpoint-890m", strix), ("vega10-single-legacy-kernel", vega10)):
        assert set(make()) == set(recorded(snapshots, name))


def test_the_fixture_is_short_and_says_nothing_per_node(fixtures: Path) -> None:
    text = (fixtures / "mi300x" / "cpx-6.8-bmc-63.yaml").read_text()
    assert len(text.splitlines()) <= 60
    spec = load("mi300x/cpx-6.8-bmc-63")
    assert len(spec.gpus) == 8
    assert not any(gpu.fused for gpu in spec.gpus)


def test_one_wrong_fact_is_seen() -> None:
    spec = load("mi300x/cpx-6.8-bmc-63")
    expected = digests("mi300x-8gpu-cpx")

    def differing(other: NodeSpec) -> set[str]:
        made = machine_files(Machine(other))
        return {path for path, value in expected.items() if path not in made or digest(made[path]) != value}

    assert differing(replace(spec, platform_rev=3)) == {"system_properties"}
    # Booted in CPX: the generation, and the SIMD ids of all 63 nodes.
    booted = replace(spec, gpus=tuple(replace(gpu, boot_mode=None) for gpu in spec.gpus))
    assert differing(booted) == {"generation_id"} | {f"nodes/{node}/properties" for node in range(2, 65)}
    # Without the display the 64th partition is there, and with it a link in every directory.
    assert len(differing(replace(spec, bmc=False))) >= 65


def test_boot_is_the_list_before_any_gpu() -> None:
    spec = load("mi300x/cpx-6.8-bmc-63")
    files = kfd_files(Topology.boot(spec))
    assert files["generation_id"] == "1\n"
    assert sorted(path for path in files if path.endswith("/name")) == ["nodes/0/name", "nodes/1/name"]


@pytest.mark.snapshots
def test_the_mi355x_node_has_the_recorded_places_and_link_speeds(snapshots: Path) -> None:
    machine = Machine(load("mi355x/spx-6.8"))
    made = machine_files(machine)
    # Its KFD properties were derived by the publisher from amd-smi; the unique_ids are that server's own.
    derived = capture(snapshots / "mi355x-8gpu-spx-6.8/derived/sys/class/kfd/kfd/topology")
    assert len(derived) == 8
    for path, text in derived.items():
        wanted = [line for line in text.splitlines() if not line.startswith("unique_id")]
        assert [line for line in made[path].splitlines() if line in wanted] == wanted, path
    amd_smi = json.loads((snapshots / "mi355x-8gpu-spx-6.8/amd-smi/amdsmi-topology-mi355x.json").read_text())
    speeds = {link["bandwidth"] for gpu in amd_smi for link in gpu["links"] if link["link_type"] == "XGMI"}
    links = [
        text for path, text in made.items() if path.startswith("nodes/8/io_links/") and "type 11" in text
    ]
    assert len(links) == 7
    found = {tuple(line.split()[1] for line in text.splitlines() if "_bandwidth" in line) for text in links}
    assert {"-".join(pair) for pair in found} == speeds
