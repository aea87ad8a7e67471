"""Rediscovery, and what kubelet is told of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from devplugin.daemon import observe
from devplugin.daemon.observe import Observer
from devplugin.kubelet.service import Board

from .storeapi import DictHost
from .toyplugin import RESOURCE, Settings, Toy


class Stage:
    """An observer, and what it did to kubelet."""

    def __init__(self, files: dict[str, str], vendor: Any = None) -> None:
        self.host = DictHost(files)
        self.boards: list[Board] = []
        self.ended: list[Board] = []
        self.changes = 0
        self.worker = ThreadPoolExecutor(1, thread_name_prefix="host")
        self.observer: Observer[Any, Any] = Observer(
            vendor or Toy(),
            Settings(),
            host=self.host,
            worker=self.worker,
            serve=self.serve,
            changed=self.changed,
        )

    def serve(self, board: Board) -> Callable[[], None]:
        self.boards.append(board)
        return lambda: self.ended.append(board)

    def changed(self) -> None:
        self.changes += 1

    def look(self) -> None:
        asyncio.run(self.observer.look())

    def ids(self) -> list[tuple[str, bool]]:
        return [(device.id, device.healthy) for device in self.boards[-1].offer.devices]


def test_the_first_look_opens_each_resource_with_its_list() -> None:
    stage = Stage({"/toy/a": "ok 1"})
    stage.look()
    assert [board.offer.resource for board in stage.boards] == [RESOURCE]
    assert stage.ids() == [("a#0", True), ("a#1", True), ("a#2", True), ("a#3", True)]
    assert stage.changes == 1


def test_a_look_that_finds_nothing_new_changes_nothing() -> None:
    stage = Stage({"/toy/a": "ok"})
    stage.look()
    offer = stage.boards[0].offer
    stage.look()
    assert stage.boards[0].offer is offer
    assert stage.changes == 1


def test_sickness_and_recovery_are_published() -> None:
    stage = Stage({"/toy/a": "ok"})
    for text, healthy in (("ok", True), ("sick", False), ("ok", True)):
        stage.host.files["/toy/a"] = text
        stage.look()
        assert [health for _, health in stage.ids()] == [healthy] * 4
    assert stage.changes == 3
    assert len(stage.boards) == 1


def test_a_driver_that_comes_late_needs_no_restart() -> None:
    stage = Stage({})
    stage.look()
    assert stage.boards == []
    assert dict(stage.observer.offers) == {}
    stage.host.files["/toy/a"] = "ok"
    stage.look()
    assert len(stage.boards) == 1


def test_a_resource_whose_devices_are_gone_is_emptied_at_once_and_ended_when_it_stays_so() -> None:
    stage = Stage({"/toy/a": "ok"})
    stage.look()
    del stage.host.files["/toy/a"]
    stage.look()
    assert stage.ids() == []
    assert stage.ended == []
    stage.look()
    assert stage.ended == stage.boards
    stage.look()
    assert len(stage.ended) == 1
    stage.host.files["/toy/b"] = "ok"
    stage.look()
    assert len(stage.boards) == 2


def test_a_resource_that_comes_back_in_between_is_kept() -> None:
    stage = Stage({"/toy/a": "ok"})
    stage.look()
    del stage.host.files["/toy/a"]
    stage.look()
    stage.host.files["/toy/a"] = "ok"
    for _ in range(3):
        stage.look()
    assert stage.ended == []
    assert len(stage.ids()) == 4


def test_a_notice_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage({"/toy/a": "ok", "/toy/odd": "?"})
    for _ in range(3):
        stage.look()
    assert [record.getMessage() for record in caplog.records if "odd" in record.getMessage()] == [
        "odd: unreadable thing"
    ]


def test_only_the_worker_thread_touches_the_host() -> None:
    stage = Stage({"/toy/a": "ok"})
    stage.look()
    stage.look()
    assert stage.host.threads == {"host_0"}


def test_a_look_that_fails_keeps_the_last_inventory_and_the_loop_alive(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(Toy):
        broken = False

        def discover(self, *args: Any) -> Any:
            if self.broken:
                raise RuntimeError("boom")
            return super().discover(*args)

    vendor = Broken()
    stage = Stage({"/toy/a": "ok"}, vendor)
    monkeypatch.setattr(observe, "PERIOD", 0.01)

    async def go() -> None:
        await stage.observer.look()
        task = asyncio.create_task(stage.observer.run(0))
        vendor.broken = True
        async with asyncio.timeout(5):
            while not any(record.levelno == logging.ERROR for record in caplog.records):
                await asyncio.sleep(0.005)
            assert len(stage.ids()) == 4
            vendor.broken = False
            stage.host.files["/toy/b"] = "ok"
            while len(stage.ids()) != 8:
                await asyncio.sleep(0.005)
        task.cancel()

    asyncio.run(go())
    assert any("the last inventory stays" in record.getMessage() for record in caplog.records)


def test_a_pulse_looks_more_often_and_never_less(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = []

    async def record(seconds: float) -> None:
        waits.append(seconds)
        raise asyncio.CancelledError

    monkeypatch.setattr(observe.asyncio, "sleep", record)
    for pulse in (0, 10, 45):
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(Stage({}).observer.run(pulse))
    assert waits == [30.0, 10, 30.0]


def test_how_the_node_was_read_is_logged_for_those_who_ask_and_again_only_when_it_changed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stage = Stage({"/toy/a": "ok"})
    with caplog.at_level(logging.INFO, "devplugin"):
        stage.look()
    assert "thing a" not in caplog.messages
    with caplog.at_level(logging.DEBUG, "devplugin"):
        stage.look()
        stage.look()
        assert caplog.messages.count("thing a") == 1
        stage.host.files["/toy/b"] = "ok"
        stage.look()
    assert caplog.messages.count("thing a") == 2
    assert caplog.messages.count("thing b") == 1


def test_what_must_come_before_is_done_before_anything_is_told() -> None:
    seen: list[tuple[int, bool]] = []

    async def before(found: Any) -> None:
        seen.append((len(found.things), bool(stage.boards)))

    stage = Stage({"/toy/a": "ok"})
    stage.observer._before = before
    stage.look()
    stage.look()
    assert seen == [(1, False), (1, True)]
