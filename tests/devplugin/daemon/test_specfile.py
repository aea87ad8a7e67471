"""The CDI file is there before its names are given out: guide-amd.md (CDI), amd.md 9."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from devplugin.answers import CdiSpec
from devplugin.cdi import CdiDevice, drm_device
from devplugin.daemon.specfile import SpecFile
from devplugin.linux import LinuxHost

from .toyplugin import Inventory, Settings, Thing, Toy

TWO = Inventory((Thing("a", True, ()), Thing("b", True, ())))
ONE = Inventory(TWO.things[:1])


class Named(Toy):
    """The toy, with a CDI name for each thing."""

    directory = "/run/cdi"
    clash = False

    def cdi(self, inventory: Inventory, settings: Settings) -> CdiSpec | None:
        devices = tuple(
            CdiDevice("same", ("/dev/x",)) if self.clash else drm_device(index, 128 + index)
            for index, _ in enumerate(inventory.things)
        )
        return CdiSpec(self.directory, "toy.io/thing", devices)


class Place:
    """A node below a directory, its CDI file, and who keeps it."""

    def __init__(self, root: Path, vendor: Any) -> None:
        self.file = root / "run" / "cdi" / "toy.io-thing.json"
        self.worker = ThreadPoolExecutor(1)
        self.spec: SpecFile[Any, Any] = SpecFile(
            vendor, Settings(), place=LinuxHost(str(root)), worker=self.worker
        )

    def keep(self, inventory: Inventory) -> bool:
        asyncio.run(self.spec.keep(inventory))
        return self.spec.good

    def names(self) -> list[str]:
        return [device["name"] for device in json.loads(self.file.read_text())["devices"]]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    (tmp_path / "run").mkdir()
    return Place(tmp_path, Named())


def test_it_is_written_for_the_first_devices_and_again_when_they_change(place: Place) -> None:
    assert not place.spec.good
    assert place.keep(ONE)
    assert place.names() == ["card0"]
    assert place.keep(TWO)
    assert place.names() == ["card0", "card1"]


def test_the_same_devices_do_not_touch_it_but_one_that_was_deleted_comes_back(place: Place) -> None:
    place.keep(TWO)
    before = place.file.stat()
    place.keep(TWO)
    assert (place.file.stat().st_ino, place.file.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    place.file.unlink()
    assert place.keep(TWO)
    assert place.names() == ["card0", "card1"]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def test_a_file_that_cannot_be_written_is_one_warning_and_not_relied_on(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    (place.file.parent.parent / "cdi").write_text("in the way")
    for _ in range(3):
        assert not place.keep(TWO)
    (told,) = warnings(caplog)
    assert "containers get device nodes" in told
    assert "ENOTDIR" in told


def test_once_it_can_be_written_it_is_relied_on_and_a_new_trouble_is_a_new_warning(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = place.file.parent
    blocked.write_text("in the way")
    assert not place.keep(TWO)
    blocked.unlink()
    assert place.keep(TWO)
    place.file.unlink()
    blocked.rmdir()
    blocked.write_text("in the way")
    assert not place.keep(TWO)
    assert len(warnings(caplog)) == 2


def test_devices_no_file_can_be_made_of_are_not_relied_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    vendor = Named()
    vendor.clash = True
    assert not Place(tmp_path, vendor).keep(TWO)
    (told,) = warnings(caplog)
    assert "toy.io/thing=same: named twice" in told


def test_without_a_device_the_file_stays_and_is_not_relied_on(place: Place) -> None:
    place.keep(ONE)
    assert not place.keep(Inventory())
    assert place.names() == ["card0"]


def test_switched_off_the_file_stays(place: Place, tmp_path: Path) -> None:
    place.keep(ONE)
    off = Place(tmp_path, Toy())
    assert not off.keep(TWO)
    assert place.names() == ["card0"]


def test_the_node_is_touched_in_its_own_thread_only(tmp_path: Path) -> None:
    class Watching(LinuxHost):
        threads: set[str]

        def read(self, path: str) -> bytes:
            import threading

            self.threads.add(threading.current_thread().name)
            return super().read(path)

    node = Watching(str(tmp_path))
    node.threads = set()
    worker = ThreadPoolExecutor(1, thread_name_prefix="host")
    spec: SpecFile[Any, Any] = SpecFile(Named(), Settings(), place=node, worker=worker)
    asyncio.run(spec.keep(ONE))
    assert node.threads == {"host_0"}
