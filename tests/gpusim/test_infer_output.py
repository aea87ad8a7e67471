"""`gpusim infer --output FILE` never takes anything from anybody who did not ask for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpusim import fixture
from gpusim.cli.main import main

NODE = "mi355x/spx-6.14"


def test_a_file_that_is_there_is_replaced_only_by_force(tmp_path: Path) -> None:
    out = tmp_path / "node.yaml"
    out.write_text("precious")
    assert main(["infer", NODE, "--output", str(out)]) == 1
    assert out.read_text() == "precious"
    assert main(["infer", NODE, "--output", str(out), "--force"]) == 0
    assert fixture.load(str(out)).gpus
    assert [path.name for path in tmp_path.iterdir()] == ["node.yaml"]


def test_nothing_but_a_regular_file_is_replaced_even_by_force(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    link, target = tmp_path / "link", tmp_path / "target"
    target.write_text("precious")
    link.symlink_to(target)
    for out in (link, tmp_path):
        assert main(["infer", NODE, "--output", str(out), "--force"]) == 1
        assert "no regular file" in capsys.readouterr().err
    assert link.is_symlink()
    assert target.read_text() == "precious"


def test_a_fixture_that_cannot_be_written_whole_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "node.yaml"
    out.write_text("precious")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    assert main(["infer", NODE, "--output", str(out), "--force"]) == 1
    assert out.read_text() == "precious"
    assert [path.name for path in tmp_path.iterdir()] == ["node.yaml"]
