"""When health is looked at, by whom, and what kubelet hears of it (kubelet.md 1, numbers 4 and 13)."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from devplugin.answers import Offer, OfferedDevice, Reports
from devplugin.daemon import observe
from devplugin.daemon.observe import Observer
from devplugin.kubelet.service import Board

from .test_observe import Stage
from .toyplugin import Inventory, Settings, Thing, Toy


class Patient(Toy):
    """Two resources; a thing is sick when the reports say so."""

    def __init__(self) -> None:
        self.asked: list[Reports] = []

    def health(self, host: Any, inventory: Inventory, settings: Settings, reports: Reports) -> Inventory:
        self.asked.append(reports)
        host.list("/toy")  # where files are touched
        things = tuple(
            Thing(one.name, reports.states.get(one.name) != "sick", one.numa) for one in inventory.things
        )
        return Inventory(things, inventory.skipped)

    def offers(self, inventory: Inventory, settings: Settings) -> dict[str, Offer]:
        return {
            f"toy.io/{one.name}": Offer(f"toy.io/{one.name}", (OfferedDevice(one.name, one.healthy),))
            for one in inventory.things
        }


class Watching(Stage):
    def __init__(self, vendor: Any, ask: Any = None, prepare: Any = None) -> None:
        super().__init__({"/toy/a": "ok", "/toy/b": "ok"}, vendor)
        self.observer = Observer(
            vendor,
            Settings(),
            host=self.host,
            worker=self.worker,
            serve=self.serve,
            changed=self.changed,
            ask=ask,
            prepare=prepare,
        )

    def healthy(self) -> dict[str, bool]:
        return {board.offer.resource: board.offer.devices[0].healthy for board in self.boards}


def test_the_first_list_is_truthful() -> None:
    async def ask() -> Reports:
        return Reports({"a": "sick"})

    stage = Watching(Patient(), ask)
    asyncio.run(stage.observer.look(check=True))
    assert stage.healthy() == {"toy.io/a": False, "toy.io/b": True}


def test_one_pulse_serves_every_resource() -> None:
    said = Reports()

    async def ask() -> Reports:
        return said

    stage = Watching(Patient(), ask)
    asyncio.run(stage.observer.look(check=True))
    said = Reports({"a": "sick", "b": "sick"})
    asyncio.run(stage.observer.look(check=True))
    assert stage.healthy() == {"toy.io/a": False, "toy.io/b": False}
    assert len(stage.boards) == 2


def test_health_is_looked_at_in_the_thread_that_owns_the_host() -> None:
    stage = Watching(Patient())
    asyncio.run(stage.observer.look(check=True))
    assert stage.host.threads <= {"host_0"}
    assert stage.observer.vendor.asked == [Reports()]


def test_without_a_check_nobody_is_asked() -> None:
    async def ask() -> Reports:
        raise AssertionError

    vendor = Patient()
    asyncio.run(Watching(vendor, ask).observer.look())
    assert vendor.asked == []


@pytest.mark.parametrize(
    ("pulse", "expected"),
    [
        (0, [(30, False), (60, False), (90, False)]),
        (10, [(10, True), (20, True), (30, True)]),
        (30, [(30, True), (60, True), (90, True)]),
        (45, [(30, False), (45, True), (75, False), (90, True), (120, False)]),
    ],
)
def test_every_pulse_rediscovers_and_rediscovery_does_not_wait_for_it(
    pulse: int, expected: list[tuple[float, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Watching(Patient())
    now = 0.0
    looks: list[tuple[float, bool]] = []

    async def sleep(seconds: float) -> None:
        nonlocal now
        if len(looks) == len(expected):
            raise asyncio.CancelledError
        now += seconds

    async def look(check: bool = False) -> None:
        looks.append((now, check))

    monkeypatch.setattr(observe.asyncio, "sleep", sleep)
    monkeypatch.setattr(stage.observer, "look", look)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(stage.observer.run(pulse))
    assert looks == expected


def test_a_checker_that_dies_at_the_start_offers_nothing_and_later_leaves_the_last_word(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Dying(Patient):
        dead = True

        def health(self, *args: Any) -> Inventory:
            if self.dead:
                raise RuntimeError("boom")
            return super().health(*args)

    vendor = Dying()
    stage = Watching(vendor)
    with pytest.raises(RuntimeError):
        asyncio.run(stage.observer.look(check=True))
    assert stage.boards == []
    vendor.dead = False
    asyncio.run(stage.observer.look(check=True))
    vendor.dead = True

    async def beats() -> None:
        task = asyncio.create_task(stage.observer.run(1))
        while not any(record.levelno == logging.ERROR for record in caplog.records):
            await asyncio.sleep(0)
        task.cancel()

    monkeypatch.setattr(observe, "PERIOD", 0.01)
    asyncio.run(beats())
    assert stage.healthy() == {"toy.io/a": True, "toy.io/b": True}


def test_preparation_comes_before_the_first_list_and_only_once() -> None:
    order: list[str] = []
    stage: Watching

    async def prepare(inventory: Inventory) -> bool:
        order.append(f"prepare {len(inventory.things)}")
        stage.host.files["/toy/c"] = "ok"
        return True

    stage = Watching(Patient(), prepare=prepare)
    serve = stage.observer._serve

    def served(board: Board) -> Any:
        order.append(f"serve {board.offer.resource}")
        return serve(board)

    stage.observer._serve = served
    for _ in range(3):
        asyncio.run(stage.observer.look())
    assert order == ["prepare 2", "serve toy.io/a", "serve toy.io/b", "serve toy.io/c"]


def test_a_node_that_preparation_left_alone_is_not_discovered_twice() -> None:
    discoveries: list[int] = []

    class Counting(Patient):
        def discover(self, *args: Any) -> Inventory:
            discoveries.append(1)
            return super().discover(*args)

    async def prepare(_: Inventory) -> bool:
        return False

    asyncio.run(Watching(Counting(), prepare=prepare).observer.look())
    assert len(discoveries) == 1
