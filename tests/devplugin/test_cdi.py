"""The CDI specification: valid, distinct, written once, replaced whole (amd.md 9, 14.9, decisions 20, 59)."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devplugin.amd.discovery import discover
from devplugin.amd.settings import Settings
from devplugin.cdi import (
    AMD_KIND,
    AMD_SHARED,
    CdiDevice,
    CdiError,
    Published,
    drm_device,
    publish,
    qualified,
    specification,
)
from devplugin.linux import LinuxHost
from gpusim.fixture import load
from gpusim.machine import Machine

from .cdi_schema import CDI
from .json_schema import complaints


def amd(*devices: CdiDevice) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(specification(AMD_KIND, devices, AMD_SHARED))
    return made


def of_node(fixture: str) -> list[CdiDevice]:
    found = discover(Machine(load(fixture)), Settings())
    return [drm_device(p.card, p.render_minor) for gpu in found.gpus for p in gpu.partitions]


def test_one_gpu_is_one_device_of_two_nodes_beside_the_shared_kfd_byte_for_byte() -> None:
    expected = """\
{
  "cdiVersion": "0.6.0",
  "kind": "amd.com/gpu",
  "devices": [
    {
      "name": "card1",
      "containerEdits": {
        "deviceNodes": [
          {
            "path": "/dev/dri/card1"
          },
          {
            "path": "/dev/dri/renderD129"
          }
        ]
      }
    }
  ],
  "containerEdits": {
    "deviceNodes": [
      {
        "path": "/dev/kfd"
      }
    ]
  }
}"""
    assert specification(AMD_KIND, [drm_device(1, 129)], AMD_SHARED).decode() == expected
    assert qualified(AMD_KIND, "card1") == "amd.com/gpu=card1"


@pytest.mark.parametrize(
    "fixture",
    [
        "mi355x/spx-6.14",
        "mi355x/cpx-6.14",
        "mi355x/cpx-6.8-bmc-63",
        "mi300x/cpx-6.8-bmc-63",
        "rdna4/rx9070-igpu",
    ],
)
def test_the_specification_of_a_node_is_valid_and_its_names_are_distinct(fixture: str) -> None:
    devices = of_node(fixture)
    made = amd(*devices)
    assert complaints(CDI, made) == []
    names = [device["name"] for device in made["devices"]]
    assert len(set(names)) == len(names) == len(devices) > 0
    nodes = [node["path"] for device in made["devices"] for node in device["containerEdits"]["deviceNodes"]]
    assert len(set(nodes)) == len(nodes)


def test_a_partition_without_card_node_is_named_after_its_render_node_and_gets_that_alone() -> None:
    assert drm_device(None, 191) == CdiDevice("renderD191", ("/dev/dri/renderD191",))
    made = amd(drm_device(None, 191), drm_device(None, 190), drm_device(0, 128))
    assert [device["name"] for device in made["devices"]] == ["card0", "renderD190", "renderD191"]
    assert complaints(CDI, made) == []


def test_devices_are_in_the_order_of_their_numbers_whatever_order_they_came_in() -> None:
    devices = [drm_device(n, 128 + n) for n in (10, 9, 1, 0)]
    assert [d["name"] for d in amd(*devices)["devices"]] == ["card0", "card1", "card9", "card10"]
    assert specification(AMD_KIND, devices) == specification(AMD_KIND, devices[::-1])


@pytest.mark.parametrize(
    ("devices", "kind", "said"),
    [
        ([drm_device(0, 128), drm_device(0, 129)], AMD_KIND, "amd.com/gpu=card0: named twice"),
        ([], AMD_KIND, "no device"),
        ([CdiDevice("-x", ("/dev/x",))], AMD_KIND, "'-x' is no CDI device name"),
        ([CdiDevice("x\n", ("/dev/x",))], AMD_KIND, "is no CDI device name"),
        ([CdiDevice("", ("/dev/x",))], AMD_KIND, "'' is no CDI device name"),
        ([CdiDevice("x", ())], AMD_KIND, "no device node"),
        ([CdiDevice("x", ("dev/x",))], AMD_KIND, "no absolute path"),
        ([drm_device(0, 128)], "gpu", "is no CDI kind"),
        ([drm_device(0, 128)], "amd.com/gpu/x", "is no CDI kind"),
    ],
)
def test_what_is_no_specification_is_refused_by_name(devices: list[CdiDevice], kind: str, said: str) -> None:
    with pytest.raises(CdiError, match=said):
        specification(kind, devices, AMD_SHARED)


NAMES = st.text("ab01_.:-", min_size=1, max_size=5)


@given(st.lists(st.builds(CdiDevice, NAMES, st.just(("/dev/dri/renderD128",))), max_size=5))
def test_what_is_made_is_valid_and_what_is_refused_is_not(devices: list[CdiDevice]) -> None:
    names = [device.name for device in devices]
    content = {
        "cdiVersion": "0.6.0",
        "kind": AMD_KIND,
        "devices": [{"name": n, "containerEdits": {"deviceNodes": [{"path": "/dev/x"}]}} for n in names],
    }
    valid = complaints(CDI, content) == [] and len(set(names)) == len(names)
    try:
        made = amd(*devices)
    except CdiError:
        assert not valid
    else:
        assert valid
        assert complaints(CDI, made) == []
        assert sorted(device["name"] for device in made["devices"]) == sorted(names)


def test_the_schema_sees_what_it_is_for() -> None:
    good = amd(drm_device(1, 129))
    assert complaints(CDI, good) == []
    for breakage in (
        {"cdiVersion": "1.1.0"},
        {"kind": "gpu"},
        {"devices": []},
        {"surplus": 1},
        {"devices": [{"name": "card1", "containerEdits": {}}]},
        {"devices": [{"name": "card 1", "containerEdits": {"deviceNodes": [{"path": "/dev/kfd"}]}}]},
        {"devices": [{"name": "card1", "containerEdits": {"deviceNodes": [{"path": "dev/kfd"}]}}]},
    ):
        assert complaints(CDI, {**good, **breakage}) != [], breakage


# ------------------------------------------------------------------ the file


def test_the_file_appears_whole_in_a_directory_that_is_made(tmp_path: Path) -> None:
    place = LinuxHost(str(tmp_path))
    devices = [drm_device(1, 129)]
    assert publish(place, "/var/run/cdi/", AMD_KIND, devices, AMD_SHARED) is Published.WRITTEN
    file = tmp_path / "var/run/cdi/amd.com-gpu.json"
    assert file.read_bytes() == specification(AMD_KIND, devices, AMD_SHARED)
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o644, 0o755)
    assert [path.name for path in file.parent.iterdir()] == ["amd.com-gpu.json"]


def test_unchanged_content_is_not_written_again_and_changed_content_is_renamed_over_it(
    tmp_path: Path,
) -> None:
    place = LinuxHost(str(tmp_path))
    publish(place, "/cdi", AMD_KIND, [drm_device(1, 129)])
    file = tmp_path / "cdi/amd.com-gpu.json"
    before = file.stat().st_ino
    assert publish(place, "/cdi", AMD_KIND, iter([drm_device(1, 129)])) is Published.UNCHANGED
    assert file.stat().st_ino == before
    with file.open() as reader:
        assert publish(place, "/cdi", AMD_KIND, [drm_device(2, 130)]) is Published.WRITTEN
        assert json.load(reader)["devices"][0]["name"] == "card1", "a reader keeps the old one to its end"
    assert json.loads(file.read_text())["devices"][0]["name"] == "card2"


def test_a_switch_on_a_simulated_node_changes_the_names() -> None:
    machine = Machine(load("mi355x/spx-6.14"))

    def names() -> list[str]:
        found = discover(machine, Settings())
        devices = [drm_device(p.card, p.render_minor) for gpu in found.gpus for p in gpu.partitions]
        publish(machine, "/var/run/cdi", AMD_KIND, devices, AMD_SHARED)
        written = json.loads(machine.read("/var/run/cdi/amd.com-gpu.json"))
        assert complaints(CDI, written) == []
        return [device["name"] for device in written["devices"]]

    before = names()
    machine.switch("0000:05:00.0", "CPX")
    after = names()
    assert (len(before), len(after)) == (8, 15)
    assert set(before) < set(after)


def test_no_device_leaves_the_old_file_for_a_runtime_refuses_an_empty_one(tmp_path: Path) -> None:
    place = LinuxHost(str(tmp_path))
    assert publish(place, "/cdi", AMD_KIND, [], AMD_SHARED) is Published.NOTHING
    assert not (tmp_path / "cdi").exists()
    publish(place, "/cdi", AMD_KIND, [drm_device(1, 129)])
    assert publish(place, "/cdi", AMD_KIND, [], AMD_SHARED) is Published.NOTHING
    assert (tmp_path / "cdi/amd.com-gpu.json").exists()


def test_a_directory_that_cannot_be_made_is_the_callers_to_know(tmp_path: Path) -> None:
    (tmp_path / "cdi").write_text("a file")
    with pytest.raises(OSError) as caught:
        publish(LinuxHost(str(tmp_path)), "/cdi", AMD_KIND, [drm_device(1, 129)])
    assert caught.value.errno == errno.ENOTDIR
