"""The program on every fixture: dry run, -check and -cleanup from their command lines."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from devplugin.launch import ppu_device_plugin, vgpu_monitor
from devplugin.ppu.registration import registration
from devplugin.ppu.settings import Settings
from gpusim import fixture
from gpusim.cli import main as gpusim
from gpusim.machine import Machine

from .nodes import FIXTURES, look

EVERY = (*FIXTURES, "mixed/three-vendors")
OFFERED = {
    "ppu/zw810e-1": 1,
    "ppu/zw810e-16": 16,
    "ppu/zw810e-8": 8,
    "ppu/zw810e-driver-down": 0,
    "ppu/zw810e-hung": 1,
    "ppu/zw810e-minor-shift": 4,
    "ppu/zw810e-na-values": 2,
    "ppu/zw810e-status1": 1,
    "mixed/three-vendors": 1,
}


def dry_run(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    capsys.readouterr()
    assert ppu_device_plugin([*words, "-dry_run"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_every_fixture_with_ppus_is_listed_here() -> None:
    assert set(OFFERED) == {name for name in fixture.names() if fixture.load(name).ppus}


@pytest.mark.parametrize("name", EVERY)
def test_a_dry_run_says_what_would_be_registered_offered_and_left_out(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = dry_run(capsys, "-simulate", name, "--device-split-count=3")
    assert list(said) == [
        *("schema", "vendor", "mode", "registration", "resources", "trouble", "skipped", "settings")
    ]
    count = OFFERED[name]
    assert (said["schema"], said["vendor"], len(said["registration"])) == (1, "ppu", count)
    machine = Machine(fixture.load(name))
    assert said["registration"] == registration(look(machine), Settings(split=3))
    assert [len(ids) for ids in said["resources"].values()] == ([3 * count] if count else [])
    seen = len(machine.ppus) if machine.spec.ppu_loaded else 0
    assert len(said["registration"]) + len(said["skipped"]) == seen
    assert bool(said["trouble"]) != machine.spec.ppu_loaded
    assert said["settings"]["device-split-count"] == {"value": 3, "source": "flag"}


@pytest.mark.parametrize("name", EVERY)
def test_a_check_of_every_fixture_ends_with_a_verdict(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["-simulate", name, "-check", "-json", "-kubelet_dir", str(tmp_path)]
    assert ppu_device_plugin(words) == 1  # no node name, no kubelet, no library
    said = json.loads(capsys.readouterr().out)
    verdicts = {check["name"]: check["verdict"] for check in said["checks"]}
    assert said["ready"] is False
    assert verdicts["PPU-HAMi-core"] == "missing"
    assert verdicts["ppu-smi"] == ("ok" if OFFERED[name] else "missing")
    assert verdicts["devices to offer"] == ("ok" if OFFERED[name] else "missing")
    assert all(check["remedy"] for check in said["checks"] if check["verdict"] != "ok")


def test_a_configuration_file_and_the_source_of_each_number_show_in_the_dry_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "device-config.yaml"
    path.write_text("alibaba: {resourceCountName: a.b/ppu, deviceSplitCount: 5, deviceMemoryScaling: 0.5}\n")
    said = dry_run(capsys, "-simulate", "ppu/zw810e-1", f"--config-file={path}")
    (entry,) = said["registration"]
    assert (entry["count"], entry["devmem"]) == (5, 49152)
    assert list(said["resources"]) == ["a.b/ppu"]
    assert said["settings"]["device-split-count"]["source"] == f"file {path}"
    assert said["settings"]["resource"] == {"value": "a.b/ppu", "source": f"file {path}"}


def test_a_quoted_number_in_the_file_ends_with_1_and_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "device-config.yaml"
    path.write_text('alibaba: {deviceSplitCount: "2"}\n')
    assert ppu_device_plugin(["-simulate", "ppu/zw810e-1", f"--config-file={path}", "-dry_run"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "$.alibaba.deviceSplitCount: '2' is text: its quotes came from the chart" in line


def test_a_rendered_node_says_the_same_as_the_simulated_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gpusim(["render", "ppu/zw810e-minor-shift", str(tmp_path / "node")]) == 0
    assert dry_run(capsys, "-root", str(tmp_path / "node")) == dry_run(
        capsys, "-simulate", "ppu/zw810e-minor-shift"
    )


@pytest.mark.parametrize("form", ["mixed/three-vendors"])
def test_on_a_node_of_three_vendors_only_ppus_are_told(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = dry_run(capsys, "-simulate", form)
    assert [entry["type"] for entry in said["registration"]] == ["PPU-ZW810E"]
    assert list(said["resources"]) == ["alibaba.com/ppu"]
    assert said["skipped"] == []


def test_the_monitor_knows_its_vendors_and_refuses_others(capsys: pytest.CaptureFixture[str]) -> None:
    assert vgpu_monitor(["-vendor=nvidia"], env={"NODE_NAME": "n", "PATH": os.environ["PATH"]}) == 1
    assert capsys.readouterr().err == "vgpu-monitor: -vendor='nvidia': use amd or ppu\n"
