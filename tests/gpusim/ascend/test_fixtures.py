"""The Ascend fixtures: one a chip, and each is what its name says."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devplugin.ascend.discovery import discover
from devplugin.ascend.settings import ChipConfig, Settings
from gpusim import BadFixture, Machine, dump, fixture, load
from gpusim.ascend.chips import CHIPS
from gpusim.ascend.health import WORDS
from gpusim.cli import main
from gpusim.cli.show import print_state
from gpusim.fixture import loads
from gpusim.spec import NodeSpec, NpuSpec

NAMES = [name for name in fixture.names() if name.startswith("ascend/")]
HEAD = "kernel: 5.15.0\nnpus:\n"


def test_there_is_one_for_every_chip() -> None:
    assert {f"ascend/{chip.lower()}" for chip in CHIPS} <= set(NAMES)
    assert {load(f"ascend/{chip.lower()}").npus[0].chip for chip in CHIPS} == set(CHIPS)


@pytest.mark.parametrize("name", NAMES)
def test_each_shows_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", name, "--json"]) == 0
    state = json.loads(capsys.readouterr().out)
    assert state == Machine(load(name)).describe()
    assert main(["show", name]) == 0
    printed = capsys.readouterr().out
    for npu in state["npus"]["chips"]:
        assert f"davinci{npu['phy']}" in printed
        assert npu["bdf"] in printed
        assert npu["health"] in printed
        assert all(f"vdavinci{vnpu['id']}  idle" in printed for vnpu in npu["vnpus"])
    assert "KFD" not in printed


def test_a_node_can_have_both_kinds(capsys: pytest.CaptureFixture[str]) -> None:
    both = loads(
        "kernel: 6.8.0\n"
        "gpus: {product: MI210, bdf: '0000:05:00.0'}\n"
        "npus: {chip: 910B4, bdf: '0000:06:00.0'}\n"
    )
    machine = Machine(both)
    machine.probe("/dev/kfd")
    machine.probe("/dev/davinci0")
    assert len(machine.describe()["gpus"]) == 1  # type: ignore[arg-type]
    assert len(machine.npus) == 1
    print_state(machine.describe())
    printed = capsys.readouterr().out
    assert "MI210" in printed and "davinci0" in printed


def test_on_the_filtered_node_card_ids_are_neither_logic_nor_physical_ids() -> None:
    """`filterDevices.index` is compared with the card (A.2); whoever takes another number is found out."""
    machine = Machine(load("ascend/910b4-filtered"))
    chip = ChipConfig("910B4", "Ascend910B4", "huawei.com/Ascend910B4", 32768, 32768, 20, 7)
    kept = machine.npus.at(6, 0).uuid
    settings = Settings(chips=(chip,), filtered_cards=frozenset({0, 3}), filtered_uuids=frozenset({kept}))
    found = discover(machine, settings, None)
    assert [(npu.card, npu.phy) for npu in found.npus] == [(1, 0), (2, 2), (4, 4), (5, 5), (7, 7)]
    assert len(found.skipped) == 3
    assert all("kept back" in one.reason for one in found.skipped)


def test_health_soft_and_template_nodes_are_what_they_are_called() -> None:
    ill = Machine(load("ascend/910b4-mixed-health")).npus
    assert {npu.health.value for npu in ill} == set(WORDS)
    assert sum(npu.health.value == "OK" for npu in ill) == 4
    for name in ("ascend/910b4-soft", "ascend/310p3-soft"):
        assert all(npu.share and not npu.vnpus for npu in Machine(load(name)).npus)
    cut = Machine(load("ascend/910b4-template")).npus
    assert [len(npu.vnpus) for npu in cut] == [4, 2, 3, 0, 0, 0, 0, 0]
    assert [npu.free[0] for npu in cut][:3] == [0, 0, 0]


@st.composite
def nodes(draw: st.DrawFn) -> NodeSpec:
    chip = CHIPS[draw(st.sampled_from(sorted(CHIPS)))]
    npus = []
    for i in range(draw(st.integers(1, 6))):
        template = draw(st.sampled_from(chip.templates))
        npus.append(
            NpuSpec(
                chip.name,
                f"0000:{i + 1:02x}:00.0",
                card=draw(st.none() | st.just(i + 7)),
                phy=draw(st.sampled_from([None, i])),
                health=draw(st.sampled_from(WORDS)),
                used_mib=draw(st.none() | st.integers(0, chip.total_mib)),
                busy=draw(st.integers(0, 100)),
                share=draw(st.booleans()),
                vnpus=draw(st.sampled_from([{}, {template.name: 1}])),
            )
        )
    return NodeSpec("n", "5.15.0", npus=tuple(npus), npu_smi_status=draw(st.integers(0, 255)))


@given(nodes())
def test_every_node_reads_back_from_its_dump(spec: NodeSpec) -> None:
    assert loads(dump(spec)) == spec


@pytest.mark.parametrize(
    ("text", "key", "line"),
    [
        ("  chip: 910B5\n  bdf: '0000:01:00.0'\n", "$.npus.chip", 3),
        ("  - chip: 910B4\n", "$.npus[0]", 3),
        ("  chip: 910B4\n  bdf: ['0000:01:00.0']\n  vnpus: {vir01: 1}\n", "$.npus.vnpus", 5),
        (
            "  chip: 910B4\n  bdf: ['0000:01:00.0']\n  vnpus: {vir05_1c_8g: many}\n",
            "$.npus.vnpus.vir05_1c_8g",
            5,
        ),
        ("  chip: 910B4\n  bdf: ['0000:01:00.0', '0000:02:00.0']\n  phy: [4, 4]\n", "$.npus.phy[1]", 5),
        ("  chip: 910B4\n  bdf: ['0000:01:00.0']\n  healthy: OK\n", "$.npus.healthy", 5),
    ],
)
def test_a_refusal_names_key_and_line(text: str, key: str, line: int) -> None:
    with pytest.raises(BadFixture) as caught:
        loads(HEAD + text)
    assert (caught.value.key, caught.value.line) == (key, line)
