"""``gpusim put`` lays a file on a served machine, whole and where it was asked for, or says why not."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpusim.cli.main import main
from gpusim.fixture import load
from gpusim.hosts import connected
from gpusim.machine import Machine
from gpusim.serve import Server

from .test_cli import directory

__all__ = ["directory"]
PATH = "/usr/local/hami-vnpu-core-assets/libvnpu.so"


@pytest.fixture
def host(directory: Path) -> Iterator[str]:
    with Server(Machine(load("ascend/910b4-soft")), str(directory / "s")):
        yield f"unix:{directory}/s"


def test_a_file_is_laid_with_its_mode_and_the_directories_on_the_way(
    host: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lib").write_bytes(b"\x7fELF")
    assert main(["put", host, str(tmp_path / "lib"), PATH, "--mode", "0555"]) == 0
    assert capsys.readouterr().out == f"{PATH}: 4 bytes, mode 0555\n"
    with connected(host) as machine:
        assert machine.read(PATH) == b"\x7fELF"
        assert machine.stat(PATH).mode == 0o555


def test_standard_input_replaces_what_was_there(
    host: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for text in (b"first", b"second"):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
        assert main(["put", host, "-", PATH, "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == {"path": PATH, "bytes": len(text), "mode": "0755"}
    with connected(host) as machine:
        assert machine.read(PATH) == b"second"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("{missing}", PATH), "No such file"),
        (("{file}", "relative/path"), "by its absolute path"),
        (("{file}", "/usr/local/"), "by its absolute path"),
        (("{file}", "/sys/module/new"), "cannot be written: EACCES"),
        (("{file}", "/sys"), "cannot be written: EISDIR"),
    ],
)
def test_what_cannot_be_laid_is_told_in_one_line(
    words: tuple[str, ...], text: str, host: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lib").write_bytes(b"x")
    names = {"missing": str(tmp_path / "none"), "file": str(tmp_path / "lib")}
    assert main(["put", host, *(word.format(**names) for word in words)]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert text in said.err
    assert len(said.err.splitlines()) == 1


def test_a_mode_that_is_none_is_a_usage_error(host: str) -> None:
    for mode in ("9", "rwx", "77777", ""):
        assert main(["put", host, "-", PATH, "--mode", mode]) == 2
