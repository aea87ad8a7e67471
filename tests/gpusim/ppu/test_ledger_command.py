"""`gpusim ledger` of a PPU state file: cards, slots, and the code it ends with."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from gpusim.cli import main
from gpusim.ppu.layout import Card, write
from gpusim.ppu.statefile import StateFile

MIB = 1 << 20
Output = pytest.CaptureFixture[str]


@pytest.fixture
def path(tmp_path: Path) -> str:
    """One card with a quota and two processes, another without; busy a little."""
    path = str(tmp_path / "ledger")
    first = StateFile(path, (8192 * MIB, 0), (30, 100), pid=41, alive=lambda _: True)
    second = StateFile(path, pid=42, alive=lambda _: True)
    first.allocate(0, 5000 * MIB)
    second.allocate(0, 100)
    second.allocate(1, MIB)
    first.report(0, 4)
    return path


def test_people_see_cards_and_slots(path: str, capsys: Output) -> None:
    before = Path(path).read_bytes()
    assert main(["ledger", path]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "layout PPU 1",
        "card 0: 5000.0 MiB of 8192 MiB, 30% of compute, busy 4%",
        "  slot 0: pid 41: 5000 MiB",
        "  slot 1: pid 42: 100 bytes",
        "card 1: 1 MiB not limited, all of compute, busy 0%",
        "  slot 0: pid 42: 1 MiB",
    ]
    assert Path(path).read_bytes() == before


def test_programs_get_bytes(path: str, capsys: Output) -> None:
    assert main(["ledger", path, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["layout"] == "PPU 1"
    assert [card["used"] for card in found["cards"]] == [5000 * MIB + 100, MIB]
    assert found["cards"][0] == {
        "card": 0,
        "limit": 8192 * MIB,
        "used": 5000 * MIB + 100,
        "stored": 5000 * MIB + 100,
        "sm_limit": 30,
        "busy": 4,
        "slots": [{"slot": 0, "pid": 41, "used": 5000 * MIB}, {"slot": 1, "pid": 42, "used": 100}],
    }


def test_an_empty_file_says_that_nobody_is_there(tmp_path: Path, capsys: Output) -> None:
    path = tmp_path / "ledger"
    path.write_bytes(write([Card(quota=MIB)]))
    assert main(["ledger", str(path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "no process is registered"


def test_absent_is_1_and_another_version_is_2_with_the_file_named_once(
    tmp_path: Path, capsys: Output
) -> None:
    path = tmp_path / "ledger"
    assert main(["ledger", str(path)]) == 1
    assert str(path) in capsys.readouterr().err
    path.write_bytes(write([])[:8] + struct.pack("<I", 2) + write([])[12:])
    assert main(["ledger", str(path)]) == 2
    said = capsys.readouterr().err
    assert said == f"gpusim: {path}: version 2: only 1 can be read\n"
