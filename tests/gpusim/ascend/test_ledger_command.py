"""`gpusim ledger`: slots, workers and devices of either kind of file, and the code it ends with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpusim.ascend.ledger import Ledger
from gpusim.ascend.ledger140 import Ledger140, create
from gpusim.ascend.shm import MIB
from gpusim.cli import main

Output = pytest.CaptureFixture[str]


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "vnpu_local_shmem")


def test_people_see_devices_workers_and_slots(path: str, capsys: Output) -> None:
    ours = Ledger(path, (8192 * MIB, 0), pid=41, start=7, alive=lambda *_: True)
    ours.commit(ours.reserve(5000 * MIB), "a")
    ours.reserve(100)
    Ledger(path, pid=42, alive=lambda *_: True).attach()
    before = Path(path).read_bytes()
    with ours.worker():
        assert main(["ledger", path]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "layout 1.4.1, 1 active workers",
        "device 0: 5000.0 MiB of 8192 MiB, 100 bytes reserved",
        "device 1: 0 MiB not limited",
        "total: 5000.0 MiB",
        "slot 0: pid 41: 5000.0 MiB on 0",
        "slot 1: pid 42: nothing",
    ]
    assert len(Path(path).read_bytes()) == len(before)


def test_programs_get_bytes(path: str, capsys: Output) -> None:
    ours = Ledger(path, (8192 * MIB,) * 2, pid=41, start=7, alive=lambda *_: True)
    ours.set_device(1)
    ours.commit(ours.reserve(3 * MIB), "a")
    ours.reserve(MIB)
    before = Path(path).read_bytes()
    assert main(["ledger", path, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["layout"] == "1.4.1"
    assert found["devices"] == [
        {"device": 0, "limit": 8192 * MIB, "used": 0, "reserved": 0},
        {"device": 1, "limit": 8192 * MIB, "used": 4 * MIB, "reserved": MIB},
    ]
    assert found["slots"] == [{"slot": 0, "pid": 41, "start": 7, "used": [0, 4 * MIB], "reserved": [0, MIB]}]
    assert (found["used"], found["active_workers"]) == (4 * MIB, 0)
    assert Path(path).read_bytes() == before


def test_an_old_file_shows_the_devices_in_use(path: str, capsys: Output) -> None:
    create(path, 8192 * MIB)
    old = Ledger140(path, 5, alive=lambda _: True, device=2)
    old.commit(old.reserve(MIB), "a")
    assert main(["ledger", path]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "layout 1.4.0, 0 active workers",
        "device 0: 0 MiB of 8192 MiB",
        "device 2: 1 MiB of 8192 MiB",
        "total: 1 MiB",
        "slot 0: pid 5: 1 MiB on 2",
    ]


def test_an_empty_ledger_says_so(path: str, capsys: Output) -> None:
    Ledger(path, (MIB,)).close()
    assert main(["ledger", path]) == 0
    assert "no process is registered" in capsys.readouterr().out


def test_an_absent_file_is_1_and_a_foreign_one_2(path: str, tmp_path: Path, capsys: Output) -> None:
    for argument in (path, str(tmp_path)):
        assert main(["ledger", argument]) == 1
        assert argument in capsys.readouterr().err
    assert not Path(path).exists()
    for foreign in (b"", bytes(6224), b"simVNPU\x01", bytes(10560)):
        Path(path).write_bytes(foreign)
        assert main(["ledger", path]) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert path in err
        assert Path(path).read_bytes() == foreign
