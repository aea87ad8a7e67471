"""Two nodes are compared name by name and line by line; renamed identifiers and readings do not count."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusim import fixture
from gpusim.cli.diff import lines, one_sided
from gpusim.cli.main import main
from gpusim.export.render import render
from gpusim.machine import Machine
from gpusim.nodes import Kind
from gpusim.serve import serve
from gpusim.snapshots import pack, record, tables
from gpusim.snapshots.diff import Finding, Renaming, State, compare
from gpusim.snapshots.sources import exclusions, opened
from gpusim.snapshots.walk import Walk, place

from .infer_sources import Partial
from .kfdnodes import node

KFD = "/sys/class/kfd/kfd/topology"
SPX = "mi355x/spx-6.14"


def found(a: object, b: object, **how: object) -> dict[str, Finding]:
    return {f.path: f for f in compare(a, b, **how) if f.state is not State.EQUAL}  # type: ignore[arg-type]


@pytest.fixture
def machine() -> Machine:
    return Machine(node(modes=["SPX", "SPX"], numa=[0, 1]))


def test_a_node_is_equal_to_itself_and_everything_of_its_gpus_is_looked_at(machine: Machine) -> None:
    findings = list(compare(machine, machine.fork(), ignore=()))
    assert {f.state for f in findings} == {State.EQUAL}
    paths = {f.path for f in findings}
    for gpu in machine.spec.gpus:
        assert f"/sys/bus/pci/devices/{gpu.bdf}/unique_id" in paths
    assert {f"{KFD}/generation_id", f"{KFD}/nodes/2/properties", "/dev/kfd", "/dev/dri/renderD128"} <= paths
    assert "/sys/devices/platform/amdgpu_xcp_0/modalias" in paths
    assert "/sys/fs/cgroup/cgroup.controllers" in paths


def test_a_changed_line_is_named_with_its_field(machine: Machine) -> None:
    path = f"{KFD}/nodes/2/properties"
    text = machine.read(path).replace(b"fw_version 36\n", b"fw_version 41\n", 1)
    (change,) = found(machine, Partial(machine, replaced={path: text}))[path].changes
    assert (change.field, change.a, change.b) == ("fw_version", "36", "41")


def test_a_line_that_only_one_side_has_is_told_from_an_empty_one(machine: Machine) -> None:
    path = f"{KFD}/nodes/2/properties"
    text = machine.read(path).replace(b"num_gws 64\n", b"")
    (change,) = found(machine, Partial(machine, replaced={path: text}))[path].changes
    assert (change.field, change.a, change.b) == ("num_gws", "64", None)


def test_names_on_one_side_carry_the_highest_directory_that_is_missing(machine: Machine) -> None:
    other = Partial(machine, without=[f"{KFD}/nodes/3*", "/sys/devices/virtual/kfd/kfd/topology/nodes/3*"])
    ahead, back = found(machine, other), found(other, machine)
    assert {f.state for f in ahead.values()} == {State.ONLY_A}
    assert {f.state for f in back.values()} == {State.ONLY_B}
    assert {f.top for f in (*ahead.values(), *back.values())} == {f"{KFD}/nodes/3"}
    assert found(other, machine, one_way=True) == {}


def test_identifiers_may_have_other_values_on_all_gpus(machine: Machine) -> None:
    gpus = tuple(
        replace(gpu, unique_id=0xABCD00000000 + i, hive_id=7 << 60) for i, gpu in enumerate(machine.spec.gpus)
    )
    findings = found(machine, Machine(replace(machine.spec, gpus=gpus)))
    assert {f.state for f in findings.values()} == {State.RENAMED}
    # In KFD decimal and in PCI hexadecimal: one renaming for both.
    assert {path.rpartition("/")[2] for path in findings} == {"properties", "unique_id"}


def test_identifiers_that_are_equal_on_one_side_alone_are_a_difference(machine: Machine) -> None:
    gpus = tuple(replace(gpu, unique_id=0xABCD00000000) for gpu in machine.spec.gpus)
    findings = found(machine, Machine(replace(machine.spec, gpus=gpus)))
    wrong = [f for f in findings.values() if f.state is State.CHANGED]
    assert {change.field for f in wrong for change in f.changes} <= {"unique_id", ""}
    assert len(wrong) == 2


def test_an_identifier_that_is_gone_is_a_difference(machine: Machine) -> None:
    gpus = tuple(replace(gpu, hive_id=0) for gpu in machine.spec.gpus)
    findings = found(machine, Machine(replace(machine.spec, gpus=gpus)))
    assert findings[f"{KFD}/nodes/2/properties"].state is State.CHANGED


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=12))
def test_a_renaming_is_a_bijection_that_keeps_zero(pairs: list[tuple[int, int]]) -> None:
    renaming, taken = Renaming(), list[tuple[int, int]]()
    for a, b in pairs:
        if renaming.same(a, b):
            taken.append((a, b))
    assert len({a for a, _ in set(taken)}) == len({b for _, b in set(taken)}) == len(set(taken))
    assert all((a == 0) == (b == 0) for a, b in taken)


def test_readings_are_ignored_unless_asked_for(machine: Machine) -> None:
    bdf = machine.spec.gpus[0].bdf
    machine_b = Machine(replace(machine.spec, gpus=tuple(replace(g, vram_used=5) for g in machine.spec.gpus)))
    findings = found(machine, machine_b)
    assert {f.state for f in findings.values()} == {State.IGNORED}
    assert findings[f"/sys/bus/pci/devices/{bdf}/mem_info_vram_used"].reason == "memory in use"
    assert {f.state for f in found(machine, machine_b, ignore=()).values()} == {State.CHANGED}


def test_a_reading_that_one_side_does_not_have_at_all_is_a_difference(machine: Machine) -> None:
    other = Partial(machine, without=["*/gpu_busy_percent"])
    states = {f.state for f in found(machine, other).values()}
    assert states == {State.ONLY_A}


def test_a_line_can_be_ignored_with_a_reason(machine: Machine) -> None:
    other = Machine(replace(machine.spec, gpus=tuple(replace(g, fw_version=99) for g in machine.spec.gpus)))
    rules = [tables.rule("*/nodes/*/properties#fw_version=newer package"), tables.rule("fw_version/*")]
    findings = found(machine, other, ignore=rules)
    assert {f.state for f in findings.values()} == {State.IGNORED}
    assert {f.reason for f in findings.values()} == {"newer package", "ignored by the caller"}


def test_only_keeps_to_what_is_asked(machine: Machine) -> None:
    other = Machine(replace(machine.spec, gpus=tuple(replace(g, fw_version=99) for g in machine.spec.gpus)))
    assert found(machine, other, only=["*/generation_id", "/dev/*"]) == {}
    assert set(found(machine, other, only=["*/nodes/2/*"])) == {f"{KFD}/nodes/2/properties"}


def test_an_error_is_a_content(machine: Machine) -> None:
    bdf = machine.spec.gpus[0].bdf
    path = f"/sys/bus/pci/devices/{bdf}/unique_id"
    other = machine.fork()
    other.driver.gpus[bdf].resetting = True
    findings = found(machine, other)
    assert [(c.a is not None, c.b) for c in findings[path].changes] == [(True, "EPERM")]


def test_the_way_to_a_gpu_and_the_number_of_its_sensors_are_the_hosts() -> None:
    assert (
        place("/sys/devices/pci0000:70/0000:70:01.1/0000:71:00.0/0000:75:00.0/hwmon/hwmon7/name")
        == "/sys/bus/pci/devices/0000:75:00.0/hwmon/hwmon*/name"
    )
    assert place("/sys/devices/virtual/kfd/kfd/dev") == "/sys/class/kfd/kfd/dev"
    assert place("/sys/module/amdgpu/drivers/pci:amdgpu/0000:75:00.0/vendor") == (
        "/sys/bus/pci/devices/0000:75:00.0/vendor"
    )


def test_a_bridge_and_devices_that_are_no_gpus_are_not_looked_at(machine: Machine) -> None:
    leaves = Walk(machine).leaves
    assert not any(path.startswith("/sys/devices/pci") for path in leaves)
    assert Walk(machine).find("/sys/class/kfd/kfd/topology") is not None
    assert leaves["/dev/kfd"].kind is Kind.CHARACTER


@pytest.fixture(params=["fixture", "directory", "pack", "served"])
def argument(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, set[str]]]:
    """The same node in every form that is compared, and what that form cannot hold."""
    node = Machine(fixture.load(SPX))
    if request.param == "fixture":
        yield SPX, set()
    elif request.param == "directory":
        skipped = render(node, tmp_path / "node").skipped
        yield str(tmp_path / "node"), {place(path) for path, _ in skipped}
    elif request.param == "pack":
        pack.write(record.record(node), tmp_path / "node.pack")
        yield str(tmp_path / "node.pack"), set()
    else:
        server = serve(node, str(tmp_path / "s"))
        server.start()
        try:
            yield f"unix:{tmp_path / 's'}", set()
        finally:
            server.stop()


def test_every_form_of_a_node_is_the_same_node(argument: tuple[str, set[str]]) -> None:
    name, unreadable = argument
    with opened(name) as a, opened(SPX) as b:
        findings = found(a, b)
    assert set(findings) == unreadable
    assert all(f.state is State.ONLY_B for f in findings.values())


def test_numbered_names_make_one_line() -> None:
    def missing(path: str, top: str) -> Finding:
        return Finding(path, State.ONLY_A, top=top)

    listed = [missing(f"/x/nodes/{n}/{name}", f"/x/nodes/{n}") for n in (3, 8, 9, 10) for name in "ab"]
    assert list(one_sided(listed)) == ["/x/nodes/{3,8-10}/ (8 files)"]
    assert list(one_sided([missing("/x/name", "/x/name")])) == ["/x/name"]
    assert list(one_sided([missing("/x/y/7", "/x/y")])) == ["/x/y/ (1 file)"]


def test_people_are_shown_so_many_lines_and_told_of_the_rest() -> None:
    findings = [Finding(f"/x/{name}", State.ONLY_B, top=f"/x/{name}") for name in ("a", "b", "c")]
    assert [line for line, _ in lines(findings, 2)] == [
        "only in B: /x/a",
        "only in B: /x/b",
        "only in B: 1 more names (--limit 0 shows all)",
        "3 only in B",
    ]


def run(*argv: str) -> int:
    return main(["diff", *argv])


def test_exit_codes_are_those_of_diff(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run("rdna4/rx9070", "rdna4/rx9070") == 0
    assert run("rdna4/rx9070", "rdna4/rx9070-igpu") == 1
    assert run("rdna4/rx9070", "no/such") == 2
    assert "no such file" in capsys.readouterr().err
    (tmp_path / "text").write_text("what is this")
    assert run(str(tmp_path / "text"), "rdna4/rx9070") == 2
    assert run("rdna4/rx9070", "rdna4/rx9070", "--limit", "-1") == 2


def test_json_has_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("mi355x/vf", "mi355x/vf", "--json") == 0
    assert json.loads(capsys.readouterr().out)["changed"] == []
    assert run("rdna4/rx9070", "rdna4/rx9070-igpu", "--json", "--ignore", "*/name=of no matter") == 1
    said = json.loads(capsys.readouterr().out)
    assert set(said) == {"a", "b", "equal", "renamed", "ignored", "only_a", "only_b", "changed"}
    generation = next(f for f in said["changed"] if f["path"].endswith("generation_id"))
    assert generation["lines"] == [{"field": "", "a": "2", "b": "3"}]


def test_plain_output_in_a_pipe_has_no_colours() -> None:
    argv: Sequence[str] = [sys.executable, "-m", "gpusim.cli", "diff", "rdna4/rx9070", "rdna4/rx9070-igpu"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "\x1b" not in done.stdout
    assert "changed: /sys/class/kfd/kfd/topology/generation_id\n    2 → 3\n" in done.stdout


def test_the_manifest_names_reasons_and_hides_only_what_it_names(tmp_path: Path) -> None:
    assert all(row.reason for row in exclusions())
    top = tmp_path / "one"
    (top / "sys/class/kfd/kfd/topology/nodes/2").mkdir(parents=True)
    (top / "sys/class/kfd/kfd/topology/nodes/2/name").write_text("x")
    (top / "sys/empty").mkdir()
    (top / "sys/empty/.keep").write_text("")
    (top / "amd-smi").mkdir()
    (top / "amd-smi/out.json").write_text("{}")
    (top / "PROVENANCE").write_text("snapshot: one\n")
    with opened(str(top)) as source:
        assert list(source.list("/")) == ["sys"]
        assert list(source.list("/sys/empty")) == []
        assert source.read("/sys/class/kfd/kfd/topology/nodes/2/name") == b"x"
    (top / "PROVENANCE").write_text("what: a copy\nsnapshot: vega10-single-legacy-kernel\n")
    with opened(str(top)) as source:
        assert list(source.list("/sys/class/kfd/kfd/topology/nodes")) == []


def test_a_directory_that_holds_no_node_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(str(tmp_path), "rdna4/rx9070") == 2
    assert "is no node" in capsys.readouterr().err


def test_a_comparison_of_no_file_at_all_is_trouble(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "mi355x/spx-6.14", "mi355x/spx-6.14", "--only", "*/nothing"]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err) == (
        "",
        "gpusim: nothing to compare: no file of either fits --only */nothing\n",
    )
