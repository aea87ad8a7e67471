"""What the node object is told, and when."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from devplugin import kube
from devplugin.answers import NodeEvent, NodePatch, PodEvent
from devplugin.daemon import announce
from devplugin.daemon.announce import Announcer
from devplugin.daemon.hands import Hands
from devplugin.imagecheck import PullImage
from gpusim.cluster.apistore import Store

from .storeapi import StoreApi
from .toyplugin import Inventory, Settings, Thing, Toy

REGISTER = "hami.io/node-toy-register"
THINGS = Inventory((Thing("a", True, ()),))


def make(
    api: StoreApi, current: Callable[[], Any] = lambda: THINGS, vendor: Any = None
) -> Announcer[Any, Any]:
    node = asyncio.run(api.node("n1"))
    api.calls.clear()
    return Announcer(api, vendor or Toy(), Settings(), node, current)


def registered(store: Store) -> Any:
    return (store.get("nodes", "n1")["metadata"].get("annotations") or {}).get(REGISTER)


def test_capacity_goes_first_and_then_the_annotation(store: Store, api: StoreApi) -> None:
    asyncio.run(make(api).once())
    assert api.calls == ["patch status", "patch node"]
    assert json.loads(registered(store)) == [{"id": "a", "health": True}]
    assert store.get("nodes", "n1")["status"]["capacity"]["toy.io/cores"] == "16"


def test_capacity_that_cannot_be_written_does_not_keep_the_annotation_back(
    store: Store, api: StoreApi, caplog: pytest.LogCaptureFixture
) -> None:
    announcer = make(api)

    def forbid(number: int, when: str, call: str) -> None:
        if call == "patch status":
            raise kube.Forbidden("patch nodes/status")

    api.cut = forbid
    asyncio.run(announcer.once())
    assert registered(store)
    assert any("capacity not published" in record.getMessage() for record in caplog.records)


def test_capacity_is_removed_only_where_it_is(store: Store, api: StoreApi) -> None:
    class Removing(Toy):
        def registration(self, *args: Any) -> NodePatch:
            return NodePatch({REGISTER: "[]"}, {"toy.io/cores": None})

    asyncio.run(make(api, vendor=Removing()).once())
    assert api.calls == ["patch node"]
    store.patch("nodes", "n1", {"status": {"capacity": {"toy.io/cores": "3"}}}, subresource="status")
    asyncio.run(make(api, vendor=Removing()).once())
    assert "toy.io/cores" not in (store.get("nodes", "n1")["status"].get("capacity") or {})


def test_capacity_that_stays_unpublished_is_complained_of_once(
    store: Store, api: StoreApi, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    announcer = watch(api, monkeypatch, 0.01, 99)

    def forbid(number: int, when: str, call: str) -> None:
        if call == "patch status":
            raise kube.Forbidden("patch nodes/status")

    api.cut = forbid

    async def go() -> None:
        task = asyncio.create_task(announcer.run())
        await until(lambda: api.calls.count("patch status") > 4)
        task.cancel()

    asyncio.run(go())
    loud = [
        record
        for record in caplog.records
        if "capacity not published" in record.getMessage() and record.levelname == "WARNING"
    ]
    assert len(loud) == 1


def test_before_the_first_discovery_nothing_is_said(store: Store, api: StoreApi) -> None:
    asyncio.run(make(api, lambda: None).once())
    assert api.calls == []


def watch(
    api: StoreApi, monkeypatch: pytest.MonkeyPatch, period: float, after_error: float
) -> Announcer[Any, Any]:
    monkeypatch.setattr(announce, "PERIOD", period)
    monkeypatch.setattr(announce, "AFTER_ERROR", after_error)
    return make(api)


async def until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not what():
            await asyncio.sleep(0.005)


def test_a_registration_somebody_deleted_comes_back_at_the_next_turn(
    store: Store, api: StoreApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    announcer = watch(api, monkeypatch, 0.05, 99)

    async def go() -> None:
        task = asyncio.create_task(announcer.run())
        await until(lambda: registered(store))
        store.patch("nodes", "n1", {"metadata": {"annotations": {REGISTER: None}}})
        await until(lambda: registered(store))
        task.cancel()

    asyncio.run(go())


def test_after_an_error_the_next_turn_is_sooner(
    store: Store, api: StoreApi, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    announcer = watch(api, monkeypatch, 99, 0.02)

    def away(number: int, when: str, call: str) -> None:
        if number < 8:
            raise kube.Unavailable("away")

    api.cut = away

    async def go() -> None:
        task = asyncio.create_task(announcer.run())
        await until(lambda: registered(store))
        task.cancel()

    asyncio.run(go())
    said = [record for record in caplog.records if "registration not written" in record.getMessage()]
    assert len(said) <= 4  # and not the same words each time


def test_something_new_is_announced_at_once(
    store: Store, api: StoreApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    things = [THINGS]
    announcer = watch(api, monkeypatch, 99, 99)
    announcer._current = lambda: things[0]

    async def go() -> None:
        task = asyncio.create_task(announcer.run())
        await until(lambda: registered(store))
        things[0] = Inventory((Thing("a", False, ()),))
        announcer.hurry()
        await until(lambda: not json.loads(registered(store))[0]["health"])
        task.cancel()

    asyncio.run(go())


def test_the_period_is_that_of_the_protocol() -> None:
    assert (announce.PERIOD, announce.AFTER_ERROR) == (30.0, 5.0)


def test_an_image_is_fetched_by_whoever_can(store: Store, api: StoreApi) -> None:
    fetched: list[PullImage] = []
    wanted = PullImage("docker.io/library/a:1")
    after = NodeEvent("Normal", "After", "the pull was begun")
    asyncio.run(Hands(api, "n1", fetched.append).perform([wanted, after]))
    assert fetched == [wanted]
    assert [event["reason"] for event in store.list("events")] == ["After"]
    asyncio.run(Hands(api, "n1").perform([wanted]))


def test_effects_are_done_in_order_and_a_named_event_is_said_once(store: Store, api: StoreApi) -> None:
    once = NodeEvent("Warning", "Once", "only", name="n1.once.u")
    about_pod = PodEvent("default", "p", "uid", "Normal", "Hello", "pod")
    for _ in range(2):
        asyncio.run(Hands(api, "n1").perform([once, about_pod]))
    events = store.list("events")
    assert sorted(event["reason"] for event in events) == ["Hello", "Hello", "Once"]
    assert {event["involvedObject"]["kind"] for event in events} == {"Node", "Pod"}


def rewritten(announcer: Announcer[Any, Any], api: StoreApi, store: Store, value: str | None) -> None:
    store.patch("nodes", "n1", {"metadata": {"annotations": {REGISTER: value}}})
    announcer.noticed(asyncio.run(api.node("n1")))


def said(store: Store) -> list[str]:
    return [event["reason"] for event in store.list("events")]


def test_somebody_else_who_rewrites_our_registration_is_told_of_once_in_a_life(
    store: Store, api: StoreApi, caplog: pytest.LogCaptureFixture
) -> None:
    announcer = make(api)
    asyncio.run(announcer.once())
    for value in ("theirs", "theirs", "theirs, changed"):
        rewritten(announcer, api, store, value)
        asyncio.run(announcer.once())
    lines = [line for line in caplog.messages if "two plugins register the same devices" in line]
    assert len(lines) == 1
    assert REGISTER in lines[0]
    assert said(store) == ["RegistrationRewritten"]
    assert json.loads(registered(store)) == [{"id": "a", "health": True}]


def test_our_own_older_words_and_a_scheduler_that_deletes_them_are_nobody_else(
    store: Store, api: StoreApi
) -> None:
    store.patch("nodes", "n1", {"metadata": {"annotations": {REGISTER: "[of a life before]"}}})
    now = [THINGS]
    announcer = make(api, lambda: now[0])
    rewritten(announcer, api, store, "[of a life before]")
    asyncio.run(announcer.once())
    first = registered(store)
    now[0] = Inventory((Thing("b", True, ()),))
    asyncio.run(announcer.once())
    for value in ("[of a life before]", first, registered(store), None, ""):
        rewritten(announcer, api, store, value)
    asyncio.run(announcer.once())
    assert said(store) == []
