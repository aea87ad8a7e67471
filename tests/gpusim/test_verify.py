"""How well the rules describe a node: the score of captures, and of machines with a fault put in."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from gpusim import fixture
from gpusim.cli.main import main
from gpusim.cli.verify import percent
from gpusim.machine import Machine
from gpusim.snapshots.sources import opened
from gpusim.snapshots.verify import Area, Verdict, area, verify

from .infer_sources import Partial

ROOT = Path(__file__).resolve().parents[2]
KFD = "/sys/class/kfd/kfd/topology"
HEADING = "### How well the rules describe captures"

SCORES = {
    # equal, explained; nothing is different
    "apu-strixpoint-890m": (101, 369),
    "gcn1-hd7870-radeon-driver": (2, 11),
    "mi300a-4apu-spx": (76, 0),
    "mi300x-8gpu-cpx": (4101, 0),
    "mi355x-8gpu-spx-6.8": (168, 0),
    "rdna2-rx6900xt": (75, 76),
    "rdna4-rx9070": (36, 31),
    "vega10-single-legacy-kernel": (109, 0),
}


@cache
def judged(snapshots: Path, name: str) -> Verdict:
    with opened(str(snapshots / name)) as source:
        return verify(source, name)


@pytest.mark.snapshots
def test_every_capture_has_a_score(snapshots: Path) -> None:
    assert {path.name for path in snapshots.iterdir() if path.is_dir()} == set(SCORES)


@pytest.mark.snapshots
@pytest.mark.parametrize("name", SCORES)
def test_nothing_that_rules_give_differs_from_the_capture(name: str, snapshots: Path) -> None:
    verdict = judged(snapshots, name)
    assert verdict.different == ()
    assert (verdict.total.equal, verdict.total.explained) == SCORES[name]
    assert all(verdict.explained)  # a reason each


@pytest.mark.snapshots
@pytest.mark.parametrize("name", SCORES)
def test_the_inferred_fixture_is_short_and_holds_no_text_of_a_file(name: str, snapshots: Path) -> None:
    text = judged(snapshots, name).inferred.text()
    assert len(text.splitlines()) <= 80
    assert "\\n" not in text
    assert fixture.loads(text) == judged(snapshots, name).inferred.spec


@pytest.mark.snapshots
@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("mi300x-8gpu-cpx", {"mode": "CPX", "boot_mode": "SPX", "product": "MI300X"}),
        (
            "mi300a-4apu-spx",
            {"mode": "SPX", "unique_id": 1000000000000000004, "hive_id": 1000000000000000999},
        ),
        ("vega10-single-legacy-kernel", {"subsystem": (0x1002, 0x6C75), "vram_used": 14102528}),
        ("apu-strixpoint-890m", {"subsystem": (0x17AA, 0x3801), "numa": -1, "fused": {}}),
    ],
)
def test_facts_are_those_of_the_captures_provenance(
    name: str, facts: dict[str, object], snapshots: Path
) -> None:
    gpu = judged(snapshots, name).inferred.spec.gpus[0]
    assert {key: getattr(gpu, key) for key in facts} == facts


@pytest.mark.snapshots
@pytest.mark.parametrize(("name", "mode"), [("mi300x-8gpu-cpx", "DPX"), ("mi355x-8gpu-spx-6.8", "QPX")])
def test_another_mode_of_a_captured_node_is_a_different_valid_tree(
    name: str, mode: str, snapshots: Path
) -> None:
    spec = judged(snapshots, name).inferred.spec
    machine = Machine(replace(spec, gpus=tuple(replace(g, mode=mode, boot_mode=None) for g in spec.gpus)))
    parts = {"DPX": 2, "QPX": 4}[mode]
    assert len(list(machine.driver.topology.gpu_nodes())) == parts * len(spec.gpus)
    assert verify(machine).different == ()


@pytest.mark.snapshots
def test_the_mi355x_server_is_found_in_probe_order_behind_a_board_controller(snapshots: Path) -> None:
    spec = judged(snapshots, "mi355x-8gpu-spx-6.8").inferred.spec
    assert [gpu.bdf[5:7] for gpu in spec.gpus] == ["75", "05", "65", "15", "f5", "85", "e5", "95"]
    assert [gpu.numa for gpu in spec.gpus] == [0, 1, 3, 2, 4, 5, 7, 6]
    assert spec.bmc


@pytest.mark.snapshots
def test_the_table_in_the_readme_is_what_verify_says(snapshots: Path) -> None:
    _, _, rest = (ROOT / "README.md").read_text().partition(HEADING)
    rows = [line for line in rest.splitlines() if line.startswith("| `")][: len(SCORES)]
    assert rows == [row(name, judged(snapshots, name)) for name in SCORES]


def row(name: str, verdict: Verdict) -> str:
    total = verdict.total
    return f"| `{name}` | {total.equal} | {total.explained} | {total.different} | {percent(total)} |"


def test_the_readme_has_the_checked_scores() -> None:
    _, _, rest = (ROOT / "README.md").read_text().partition(HEADING)
    for name, (equal, explained) in SCORES.items():
        assert f"| `{name}` | {equal} | {explained} | 0 | 100 % |" in rest


@pytest.mark.parametrize("name", ["mi355x/qpx-6.14", "rdna2/rx6900xt", "gcn1/hd7870-radeon"])
def test_a_machine_of_ours_has_a_full_score(name: str) -> None:
    verdict = verify(Machine(fixture.load(name)))
    assert verdict.different == ()
    assert verdict.total.score == 1.0


def test_a_fault_in_one_file_costs_its_area_and_is_shown() -> None:
    machine = Machine(fixture.load("rdna4/rx9070"))
    path = f"{KFD}/nodes/1/caches/4/properties"
    fault = machine.read(path).replace(b"latency 0", b"latency 7")
    verdict = verify(Partial(machine, replaced={path: fault}))
    assert [(f.path, [c.field for c in f.changes]) for f in verdict.different] == [(path, ["latency"])]
    assert [part.name for part in verdict.areas if part.different] == ["KFD topology"]
    assert 0 < verdict.total.score < 1
    assert percent(verdict.total) != "100 %"


def test_a_file_no_rule_makes_counts_against_the_rules() -> None:
    machine = Machine(fixture.load("rdna4/rx9070"))
    machine.driver.gpus["0000:03:00.0"].level = "low"
    source = Partial(machine, ["*/mem_info_vram_vendor"])
    assert verify(source).different == ()
    assert area("/sys/class/drm/card0/device/mem_info_vram_total") == "partition and memory files"
    assert area("/dev/kfd") == "other"


def test_only_a_full_score_reads_100_percent() -> None:
    assert percent(Area("all", 99999, 5, 1)) == "99.99 %"
    assert percent(Area("all", 3, 0, 1)) == "75.00 %"
    assert percent(Area("all", 3, 7, 0)) == "100 %"
    assert percent(Area("all", 0, 7, 0)) == "–"


def test_the_command_prints_areas_reasons_and_notes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "gcn1/hd7870-radeon"]) == 0
    out = capsys.readouterr().out
    assert "score" in out
    assert "note: driver not recorded: 6.14 with driver in-tree" in out
    assert main(["verify", "rdna4/rx9070", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["score"] == 1.0
    assert said["files"] == []
    assert fixture.loads(said["fixture"]).gpus[0].product == "RX9070XT"


def test_infer_writes_a_fixture_that_can_be_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "node.yaml"
    assert main(["infer", "mi300a/spx-intree", "--output", str(target), "--name", "mine"]) == 0
    assert capsys.readouterr().out == f"{target}: 4 GPUs, 0 notes\n"
    assert fixture.load(target).name == "mine"
    assert main(["infer", str(target)]) == 0
    assert capsys.readouterr().out.startswith("name: node\n")
    assert main(["infer", "mi300a/spx-intree", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["notes"] == []
    assert main(["infer", str(tmp_path)]) == 1
