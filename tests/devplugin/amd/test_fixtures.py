"""The plugin on every fixture: counts, numbers and ids that the guide and decision 5 promise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from devplugin.amd.discovery import discover
from devplugin.amd.notices import notices
from devplugin.amd.registration import annotation
from devplugin.amd.report import report
from devplugin.amd.settings import Settings
from gpusim import fixture
from gpusim.machine import Machine
from gpusim.process import DeviceRules

MI355X = {
    "spx-6.14": (8, 294896, 256, "spx"),
    "dpx-6.14": (16, 147456, 128, "dpx"),
    "qpx-6.14": (32, 73728, 64, "qpx"),
    "cpx-6.14": (64, 36864, 32, "cpx"),
    "qpx-7.0-intree": (32, 73728, 64, "qpx"),
    "spx-6.8": (8, 294896, 256, "spx"),
    "dpx-6.8": (8, 294896, 256, "dpx"),
    "qpx-6.8": (8, 294896, 256, "qpx"),
    "cpx-6.8": (8, 294896, 256, "cpx"),
    "cpx-6.8-bmc-63": (63, 36864, 32, "cpx"),
    "qpx-6.8-live-flip": (24, 73728, 64, "qpx"),
}
"""Fixture → devices, MiB, CUs and mode in partition mode."""

SKIPPED = {
    "cpx-6.8-bmc-63": ["0000:95:00.0/7"],
    "qpx-6.8-live-flip": [f"0000:{bus}:00.0/3" for bus in ("05", "15", "65", "75", "85", "95", "e5", "f5")],
}


def run(name: str, **choices: Any) -> dict[str, Any]:
    machine = Machine(fixture.load(name))
    settings = Settings(**choices)
    return report(discover(machine, settings), settings)


@pytest.mark.parametrize("name", MI355X)
def test_partition_mode_on_mi355x(name: str) -> None:
    said = run(f"mi355x/{name}", mode="partition")
    count, memory, cus, mode = MI355X[name]
    entries = said["registration"]
    assert len(entries) == count
    assert {(e["devmem"], e["devcore"], e["mode"], e["count"]) for e in entries} == {(memory, cus, mode, 1)}
    assert len({e["id"] for e in entries}) == count
    assert [s["device"] for s in said["skipped"]] == SKIPPED.get(name, [])
    (ids,) = said["resources"].values()
    assert len({device["id"] for device in ids}) == count
    assert all(device["id"].endswith(f"#{mode}") for device in ids)


@pytest.mark.parametrize("name", MI355X)
def test_cu_mode_on_mi355x_is_eight_soft_devices_with_the_ids_of_spx(name: str) -> None:
    entries = run(f"mi355x/{name}")["registration"]
    assert {(e["devmem"], e["count"], e.get("mode")) for e in entries} == {(294896, 10, None)}
    whole = {
        e["custominfo"]["pciBDF"]: e["id"] for e in run("mi355x/spx-6.14", mode="partition")["registration"]
    }
    assert {e["custominfo"]["pciBDF"]: e["id"] for e in entries} == whole
    cus = {e["custominfo"]["pciBDF"]: e["devcore"] for e in entries}
    if name == "qpx-6.8-live-flip":
        assert set(cus.values()) == {192}
    elif name == "cpx-6.8-bmc-63":
        assert (cus.pop("0000:95:00.0"), set(cus.values())) == (224, {256})
    else:
        assert set(cus.values()) == {256}
    assert len(run(f"mi355x/{name}")["resources"]["amd.com/gpu"]) == 80


@pytest.mark.parametrize("mode", ["cu", "partition"])
def test_a_driver_that_does_not_know_the_gpu_leaves_it_unbound_and_the_plugin_says_so(mode: str) -> None:
    said = run("mi355x/spx-6.8-intree", mode=mode)
    assert (said["registration"], said["resources"]) == ([], {})
    assert len(said["skipped"]) == 8
    assert all("no driver is bound" in s["reason"] for s in said["skipped"])


def test_numa_nodes_of_the_recorded_server() -> None:
    entries = run("mi355x/spx-6.14")["registration"]
    numa = {e["custominfo"]["pciBDF"][5:7]: e.get("numa", 0) for e in entries}
    assert numa == {"05": 1, "15": 2, "65": 3, "75": 0, "85": 5, "95": 6, "e5": 7, "f5": 4}


def test_hidden_partitions_are_warned_about_once() -> None:
    inventory = discover(Machine(fixture.load("mi355x/qpx-6.8")), Settings(mode="partition"))
    assert len([line for line in notices(inventory, Settings(mode="partition")) if "says qpx" in line]) == 1


def test_b20_the_mixed_fixture_under_both_strategies() -> None:
    kinds = {e["mode"] for e in run("mi355x/mixed-spx-cpx", mode="partition")["registration"]}
    assert kinds == {"spx", "cpx"}
    mixed = run("mi355x/mixed-spx-cpx", mode="partition", naming="mixed")["resources"]
    assert {name: len(devices) for name, devices in mixed.items()} == {
        "amd.com/cpx_nps1": 16,
        "amd.com/spx_nps1": 6,
    }
    assert {n: len(d) for n, d in run("mi355x/mixed-spx-cpx", mode="partition")["resources"].items()} == {
        "amd.com/gpu": 22
    }


def test_b24_a_vf_stays_soft_in_partition_mode_and_plain_in_mixed() -> None:
    said = run("mi355x/vf", mode="partition", naming="mixed")
    assert {(e["count"], e.get("mode"), e["devmem"]) for e in said["registration"]} == {(10, None, 294592)}
    assert list(said["resources"]) == ["amd.com/gpu"]


def test_b03_63_partitions_of_mi300x() -> None:
    said = run("mi300x/cpx-6.8-bmc-63", mode="partition")
    assert len(said["registration"]) == 63
    assert {(e["devcore"], e["devmem"]) for e in said["registration"]} == {(38, 24576)}
    assert len(said["skipped"]) == 1


def test_b02_spx_apus_with_dot_named_blanks_are_four_devices() -> None:
    said = run("mi300a/spx-intree", mode="partition")
    assert [(e["devcore"], e["mode"]) for e in said["registration"]] == [(228, "spx")] * 4
    assert said["skipped"] == []


def test_unknown_numa_is_minus_one_and_left_out_towards_kubelet() -> None:
    said = run("mi355x/numa-unknown", mode="partition")
    unknown = {e["custominfo"]["pciBDF"] for e in said["registration"] if e.get("numa") == -1}
    assert unknown
    for device in said["resources"]["amd.com/gpu"]:
        bare = device["id"].split("#")[0] in unknown
        assert not bare or device["numa"] == []


def test_rdna4_beside_an_igpu() -> None:
    entries = run("rdna4/rx9070-igpu", mode="partition")["registration"]
    assert [(e["count"], e["custominfo"]["cuPerWGP"]) for e in entries] == [(2, 2), (10, 2)]
    inventory = discover(Machine(fixture.load("rdna4/rx9070-igpu")), Settings())
    assert len([line for line in inventory.warnings if "mem_info_vram_total, 512 MiB" in line]) == 1


OTHERS = {
    # Devices, MiB, CUs, kind and slots in partition mode; resources under `mixed`; xGMI peers of each
    "mi308x/cpx-nps4": ({(49152, 20, "cpx", 1)}, {"amd.com/cpx_nps4": 32}, {7}),
    "mi210/two-hives": ({(65520, 104, None, 10)}, {"amd.com/gpu": 80}, {3}),
    "mi325x/cpx-bmc-63": ({(32768, 38, "cpx", 1)}, {"amd.com/cpx_nps1": 63}, {7}),
    "mi350x/spx-6.8": ({(294896, 256, "spx", 1)}, {"amd.com/spx_nps1": 8}, {7}),
    "mi350x/dpx-nps2-6.8": ({(147456, 128, "dpx", 1)}, {"amd.com/dpx_nps2": 16}, {7}),
    "mi350x/vf": ({(294592, 256, None, 10)}, {"amd.com/gpu": 10}, {0}),
    "mi300x/vf": ({(196288, 304, None, 10)}, {"amd.com/gpu": 10}, {0}),
    "rdna2/rx6900xt": ({(16368, 80, None, 10)}, {"amd.com/gpu": 10}, {0}),
    "rdna3/rx7900xtx-rx7600": ({(24560, 96, None, 10), (8176, 32, None, 10)}, {"amd.com/gpu": 20}, {0}),
    "apu/strixpoint-890m": ({(512, 12, None, 10)}, {"amd.com/gpu": 10}, {0}),
    "apu/phoenix-780m": ({(4096, 12, None, 10)}, {"amd.com/gpu": 10}, {0}),
}


@pytest.mark.parametrize("name", OTHERS)
def test_every_other_board_registers_what_its_silicon_and_mode_are(name: str) -> None:
    said = run(name, mode="partition", naming="mixed")
    entries, (devices, resources, peers) = said["registration"], OTHERS[name]
    assert {(e["devmem"], e["devcore"], e.get("mode"), e["count"]) for e in entries} == devices
    assert {resource: len(ids) for resource, ids in said["resources"].items()} == resources
    assert {len(e["custominfo"].get("xgmiPeers", [])) for e in entries} == peers
    assert all(e["type"] != "amd-gpu" for e in entries)


def test_a_card_of_the_radeon_driver_and_a_kernel_without_domains_are_skipped_with_the_reason() -> None:
    for name, reason in (
        ("gcn1/hd7870-radeon", "bound to radeon, not to amdgpu"),
        ("vega10/legacy-kernel", "no usable line 'domain'"),
    ):
        said = run(name)
        assert said["registration"] == []
        assert [reason in skipped["reason"] for skipped in said["skipped"]] == [True], name


def every_fixture(fixtures: Path) -> list[Path]:
    return [path for path in sorted(fixtures.glob("*/*.yaml")) if path.parent.name not in ("ascend", "ppu")]


def test_on_every_fixture_the_report_is_json_and_its_registration_is_the_annotation(fixtures: Path) -> None:
    for path in every_fixture(fixtures):
        machine = Machine(fixture.load(str(path)))
        for mode in ("cu", "partition"):
            settings = Settings(mode=mode)
            inventory = discover(machine, settings)
            said = report(inventory, settings)
            assert list(said) == ["schema", "vendor", "mode", "registration", "resources", "dmem", "skipped"]
            assert json.loads(json.dumps(said)) == said
            assert json.loads(annotation(inventory, settings)) == said["registration"]
            assert (said["schema"], said["vendor"], said["mode"]) == (1, "amd", mode)


def test_a_second_pass_over_an_unchanged_node_finds_the_same(fixtures: Path) -> None:
    for path in every_fixture(fixtures):
        machine = Machine(fixture.load(str(path)))
        first = discover(machine, Settings())
        assert discover(machine, Settings(), first) == first


def test_a_switch_of_one_gpu_changes_that_gpus_devices_and_no_other_id() -> None:
    machine = Machine(fixture.load("mi355x/spx-6.14"))
    settings = Settings(mode="partition")
    before = report(discover(machine, settings), settings)["registration"]
    machine.switch("0000:65:00.0", "QPX")
    after = report(discover(machine, settings), settings)["registration"]
    assert len(after) == 7 + 4
    ids = {e["id"] for e in before if e["custominfo"]["pciBDF"] != "0000:65:00.0"}
    assert ids <= {e["id"] for e in after}
    machine.switch("0000:65:00.0", "SPX")
    assert {e["id"]: e["devmem"] for e in report(discover(machine, settings), settings)["registration"]} == {
        e["id"]: e["devmem"] for e in before
    }


def test_a_gpu_that_is_pulled_and_put_back_comes_and_goes() -> None:
    machine = Machine(fixture.load("mi355x/cpx-6.14"))
    settings = Settings(mode="partition")
    before = {e["id"] for e in report(discover(machine, settings), settings)["registration"]}
    machine.remove("0000:15:00.0")
    without = report(discover(machine, settings), settings)
    assert len(without["registration"]) == 56
    assert {e["id"] for e in without["registration"]} < before
    machine.add("0000:15:00.0")
    assert "0000:15:00.0" in {gpu.bdf for gpu in discover(machine, settings).gpus}


def test_a_container_sees_only_its_own_partition() -> None:
    """kernel.md 1.8: KFD answers EPERM for nodes whose render minor the device cgroup forbids."""
    machine = Machine(fixture.load("mi355x/qpx-6.14"))
    inside = machine.view(devices=DeviceRules.only((226, 130)))
    inventory = discover(inside, Settings(mode="partition"))
    assert [(g.bdf, [p.number for p in g.partitions]) for g in inventory.gpus] == [("0000:75:00.0", [2])]
    assert len(inventory.skipped) == 3 + 7
    assert all("EPERM" in skipped.reason for skipped in inventory.skipped)
