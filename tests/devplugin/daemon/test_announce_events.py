"""Events around a registration: what is said before the old one gives way, and after the new one stands."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import pytest

from devplugin import kube
from devplugin.answers import NodeEvent
from devplugin.daemon import announce
from devplugin.hami import Pod
from gpusim.cluster.apistore import Store
from gpusim.cluster.pods import container, pod

from .storeapi import StoreApi
from .test_announce import REGISTER, make, registered
from .toyplugin import Inventory, Thing, Toy

ONE, TWO = Inventory((Thing("a", True, ()),)), Inventory((Thing("b", True, ()),))


class Talking(Toy):
    """Says what it was asked."""

    def replacing(
        self, inventory: Any, settings: Any, old: str, pods: Sequence[Pod]
    ) -> tuple[NodeEvent, ...]:
        names = ",".join(one.name for one in pods)
        return (NodeEvent("Warning", "Replacing", f"{old} with {names}", name="n1.replacing.u"),)

    def events(self, inventory: Inventory, settings: Any, seen: Any) -> tuple[tuple[NodeEvent, ...], Any]:
        names = tuple(thing.name for thing in inventory.things)
        if seen is None or seen == names:
            return (), names
        return (NodeEvent("Normal", "Changed", f"{seen} to {names}"),), names


def reasons(store: Store) -> list[str]:
    return sorted(event["reason"] for event in store.list("events"))


def test_the_first_registration_of_a_life_is_only_a_baseline(store: Store, api: StoreApi) -> None:
    announcer = make(api, lambda: ONE, Talking())
    for _ in range(3):
        asyncio.run(announcer.once())
    assert reasons(store) == []
    assert "list pods" not in api.calls


def test_the_old_registration_still_stands_while_it_is_spoken_of(store: Store, api: StoreApi) -> None:
    store.create("pods", pod("p", [container("c")], node="n1"))
    now = [ONE]
    announcer = make(api, lambda: now[0], Talking())
    asyncio.run(announcer.once())
    old = registered(store)
    seen: list[str] = []

    def note(number: int, when: str, call: str) -> None:
        if call == "create event" and when == "after":
            seen.append(registered(store))

    now[0] = TWO
    api.calls.clear()
    api.cut = note
    asyncio.run(announcer.once())
    assert api.calls == ["patch status", "list pods", "create event", "patch node", "create event"]
    assert seen[0] == old != registered(store)
    messages = {event["reason"]: event["message"] for event in store.list("events")}
    assert messages["Replacing"] == f"{old} with p"
    assert messages["Changed"] == "('a',) to ('b',)"


def test_a_registration_of_an_earlier_life_is_the_old_one_too(store: Store, api: StoreApi) -> None:
    store.patch("nodes", "n1", {"metadata": {"annotations": {REGISTER: "of old"}}})
    asyncio.run(make(api, lambda: ONE, Talking()).once())
    assert reasons(store) == ["Replacing"]


def test_what_is_said_once_is_no_error_the_second_time(store: Store, api: StoreApi) -> None:
    for text in ("of old", "of old again"):
        store.patch("nodes", "n1", {"metadata": {"annotations": {REGISTER: text}}})
        asyncio.run(make(api, lambda: ONE, Talking()).once())
    assert reasons(store) == ["Replacing"]
    assert registered(store).startswith("[")


def failing(verb: str, error: kube.KubeError) -> Any:
    def cut(number: int, when: str, call: str) -> None:
        if call == verb and when == "before":
            raise error

    return cut


def test_a_right_that_was_not_granted_does_not_keep_the_registration_back(
    store: Store, api: StoreApi, caplog: pytest.LogCaptureFixture
) -> None:
    store.patch("nodes", "n1", {"metadata": {"annotations": {REGISTER: "of old"}}})
    announcer = make(api, lambda: ONE, Talking())
    api.cut = failing("create event", kube.Forbidden("create events"))
    asyncio.run(announcer.once())
    assert registered(store).startswith("[")
    assert any("event not written" in record.getMessage() for record in caplog.records)


def test_with_the_api_server_away_the_old_registration_waits_to_be_spoken_of(
    store: Store, api: StoreApi
) -> None:
    store.patch("nodes", "n1", {"metadata": {"annotations": {REGISTER: "of old"}}})
    announcer = make(api, lambda: ONE, Talking())
    api.cut = failing("create event", kube.Unavailable("away"))
    with pytest.raises(kube.Unavailable):
        asyncio.run(announcer.once())
    assert registered(store) == "of old"
    api.cut = None
    asyncio.run(announcer.once())
    assert reasons(store) == ["Replacing"]


def test_events_that_cannot_go_out_wait_for_the_next_registration(store: Store, api: StoreApi) -> None:
    announcer = make(api, lambda: ONE, Talking())
    announcer.say([NodeEvent("Normal", f"R{number}", "x") for number in range(3)])
    api.cut = failing("create event", kube.Unavailable("away"))
    asyncio.run(announcer.once())
    assert reasons(store) == []
    api.cut = None
    asyncio.run(announcer.once())
    asyncio.run(announcer.once())
    assert reasons(store) == ["R0", "R1", "R2"]


def test_no_more_are_kept_than_a_number_and_the_youngest_of_them(api: StoreApi) -> None:
    announcer = make(api, lambda: ONE, Talking())
    announcer.say([NodeEvent("Normal", f"R{number}", "x") for number in range(announce.UNSAID + 7)])
    assert len(announcer._unsaid) == announce.UNSAID
    assert announcer._unsaid[0].reason == "R7"


def test_an_events_words_stand_in_the_log_too(api: StoreApi, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    make(api, lambda: ONE, Talking()).say(
        [NodeEvent("Warning", "W", "bad"), NodeEvent("Normal", "N", "fine")]
    )
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "bad"),
        ("INFO", "fine"),
    ]
