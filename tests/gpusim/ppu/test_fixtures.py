"""The PPU fixtures: each is what its name says, and three vendors on a node leave each other alone."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusim import BadFixture, Machine, dump, fixture, load
from gpusim.cli import main
from gpusim.fixture import loads
from gpusim.ppu.health import WORDS
from gpusim.ppu.ppu import FIELDS, MINOR
from gpusim.spec import NodeSpec, PpuSpec

NAMES = [name for name in fixture.names() if name.startswith("ppu/")]
HEAD = "kernel: 5.15.0\nppus:\n"


def test_there_are_one_eight_and_sixteen() -> None:
    assert [len(load(f"ppu/zw810e-{n}").ppus) for n in (1, 8, 16)] == [1, 8, 16]
    assert {"na-values", "driver-down", "minor-shift", "hung", "status1"} <= {
        n.removeprefix("ppu/zw810e-") for n in NAMES
    }


@pytest.mark.parametrize("name", [*NAMES, "mixed/three-vendors"])
def test_each_shows_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", name, "--json"]) == 0
    state = json.loads(capsys.readouterr().out)
    assert state == Machine(load(name)).describe()
    assert main(["show", name]) == 0
    printed = capsys.readouterr().out
    for ppu in state["ppus"]["devices"]:
        assert ppu["bdf"] in printed
        assert (f"alixpu_ppu{ppu['minor']}" in printed) == state["ppus"]["loaded"]
    assert ("not loaded" in printed) == (not state["ppus"]["loaded"])
    assert ("KFD" in printed) == bool(state["gpus"])


def test_a_ppu_that_vanished_is_shown_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    from gpusim.cli.show import print_state

    machine = Machine(load("ppu/zw810e-minor-shift"))
    machine.ppu_vanish(2)
    print_state(machine.describe())
    lines = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
    assert [line[0] for line in lines] == ["-", "0", "1", "2"]
    assert lines[0][4] == "vanished"


# Three vendors


def test_three_vendors_share_a_node_and_none_disturbs_another() -> None:
    machine = Machine(load("mixed/three-vendors"))
    assert (len(machine.driver.gpus), len(machine.npus), len(machine.ppus)) == (1, 1, 1)
    for path in ("/dev/kfd", "/dev/dri/renderD128", "/dev/davinci0", "/dev/alixpu_ppu0"):
        machine.probe(path)
    npus, bus = machine.run(["npu-smi", "info", "-m"]), set(machine.list("/sys/bus/pci/devices"))
    gpus, chips = machine.describe()["gpus"], machine.describe()["npus"]
    machine.ppu_vanish(0)
    machine.ppu_return(0)
    machine.ppu_unload()
    assert (machine.describe()["gpus"], machine.describe()["npus"]) == (gpus, chips)
    assert machine.run(["npu-smi", "info", "-m"]) == npus
    assert set(machine.list("/sys/bus/pci/devices")) == bus
    machine.probe("/dev/dri/renderD128")
    machine.probe("/dev/davinci0")
    machine.ppu_load()
    machine.remove("0000:05:00.0")
    machine.npu_health(0, "Alarm")
    machine.probe("/dev/alixpu_ppu0")
    assert machine.run(["ppu-smi", "-L"]).stdout.startswith(b"PPU 0")
    machine.add("0000:05:00.0")
    machine.switch("0000:05:00.0", "CPX")
    assert {name for name in machine.list("/dev") if name.startswith("alixpu")} == {
        "alixpu",
        "alixpu_ctl",
        "alixpu_sep",
        "alixpu_ppu0",
    }


def test_unloading_amdgpu_does_not_wait_for_who_holds_a_vanished_ppu() -> None:
    machine = Machine(load("mixed/three-vendors"))
    machine.open("/dev/alixpu_ppu0", machine.process())
    machine.ppu_vanish(0)
    machine.unload()
    machine.load()


def test_ppus_leave_the_places_of_all_other_cards_as_they_are() -> None:
    spec = load("mixed/three-vendors")
    alone = Machine(NodeSpec("n", spec.kernel, spec.driver, gpus=spec.gpus))
    gpu = "/sys/bus/pci/devices/0000:05:00.0"
    machine = Machine(spec)
    assert machine.readlink(gpu) == alone.readlink(gpu)
    assert machine.list(gpu) == alone.list(gpu)
    for name in alone.list(gpu):
        if alone.stat(f"{gpu}/{name}").kind.name == "FILE":
            try:
                wanted = alone.read(f"{gpu}/{name}")
            except OSError:
                continue
            assert machine.read(f"{gpu}/{name}") == wanted, name


# Reading and writing


@st.composite
def nodes(draw: st.DrawFn) -> NodeSpec:
    minors = draw(st.permutations(range(16)))
    given_minor = draw(st.booleans())
    ppus = tuple(
        PpuSpec(
            "PPU-ZW810E",
            f"0000:{i + 1:02x}:00.0",
            numa=draw(st.integers(-1, 1)),
            minor=minors[i] if given_minor else None,
            uuid=draw(st.sampled_from([None, f"GPU-019ea108-c110-0828-0000-{i:012x}"])),
            health=draw(st.sampled_from(WORDS)),
            used_mib=draw(st.none() | st.integers(0, 98304)),
            busy=draw(st.integers(0, 100)),
            unknown=tuple(draw(st.lists(st.sampled_from([*FIELDS, MINOR]), unique=True, max_size=3))),
        )
        for i in range(draw(st.integers(1, 16)))
    )
    return NodeSpec(
        "n",
        "5.15.0",
        ppus=ppus,
        ppu_loaded=draw(st.booleans()),
        ppu_smi_status=draw(st.integers(0, 255)),
        ppu_sdk=draw(st.sampled_from(["lib64", "lib"])),
    )


@given(nodes())
def test_every_node_reads_back_from_its_dump(spec: NodeSpec) -> None:
    assert loads(dump(spec)) == spec


@pytest.mark.parametrize(
    ("text", "key", "line"),
    [
        ("  product: PPU-ZW810\n  bdf: '0000:01:00.0'\n", "$.ppus.product", 3),
        ("  - product: PPU-ZW810E\n", "$.ppus[0]", 3),
        (
            "  product: PPU-ZW810E\n  bdf: ['0000:01:00.0', '0000:02:00.0']\n  minor: [4, 4]\n",
            "$.ppus.minor[1]",
            5,
        ),
        ("  product: PPU-ZW810E\n  bdf: ['0000:01:00.0']\n  unknown: ['memory']\n", "$.ppus.unknown[0]", 5),
        ("  product: PPU-ZW810E\n  bdf: ['0000:01:00.0']\n  uuid: ['PPU-1']\n", "$.ppus.uuid[0]", 5),
        ("  product: PPU-ZW810E\n  bdf: ['0000:01:00.0']\n  healthy: OK\n", "$.ppus.healthy", 5),
    ],
)
def test_a_refusal_names_key_and_line(text: str, key: str, line: int) -> None:
    with pytest.raises(BadFixture) as caught:
        loads(HEAD + text)
    assert (caught.value.key, caught.value.line) == (key, line)
