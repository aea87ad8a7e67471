"""One Allocate against the API server: what is written in which order, and what happens when it fails."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from devplugin import kube
from devplugin.answers import Allocation, FactRequest, NodeEvent, Refused
from devplugin.daemon.allocate import Allocator, Budget
from devplugin.daemon.hands import Hands
from devplugin.daemon.logs import TRACE
from devplugin.hami import BIND_PHASE, LOCK
from devplugin.imagecheck import PullImage
from gpusim.cluster.apistore import Store
from gpusim.cluster.pods import Placed, container, place, pod, take_lock

from .storeapi import StoreApi
from .toyplugin import TAKEN, Inventory, Settings, Thing, Toy

QUICK = Budget(answer=3.0, gather=1.0, release=1.0, pause=0.005)
TO_ALLOCATE = "hami.io/toy-devices-to-allocate"
THINGS = Inventory((Thing("a", True, ()), Thing("b", True, ())))


def thing(cores: int = 4, name: str = "a") -> Placed:
    return Placed(name, "Toy", 1, cores)


def schedule(store: Store, name: str, *slots: Sequence[Placed], **more: Any) -> dict[str, Any]:
    store.create("pods", pod(name, [container(f"c{i}") for i in range(len(slots))]))
    return place(store, name, "n1", slots, word="toy", **more)


def annotations(store: Store, name: str) -> Mapping[str, str]:
    found: Mapping[str, str] = store.get("pods", name)["metadata"]["annotations"]
    return found


def lock(store: Store) -> str | None:
    return (store.get("nodes", "n1")["metadata"].get("annotations") or {}).get(LOCK)


def events(store: Store) -> list[tuple[str, str]]:
    return [(event["type"], event["message"]) for event in store.list("events")]


async def all_there(requests: Sequence[FactRequest]) -> Mapping[FactRequest, Any]:
    return dict.fromkeys(requests, True)


def make(api: kube.Api, vendor: Any = None, **more: Any) -> Allocator[Any, Any]:
    return Allocator(
        api,
        vendor or Toy(),
        settings=Settings(),
        node="n1",
        current=more.get("current", lambda: THINGS),
        facts=more.get("facts", all_there),
        hands=Hands(api, "n1", more.get("fetch")),
        budget=more.get("budget", QUICK),
    )


async def settled(work: Any) -> Any:
    """The answer, after the background work that came with it."""
    answer = await work
    for _ in range(20):
        await asyncio.sleep(0)
    return answer


def allocate(api: kube.Api, *ids: str, **more: Any) -> Any:
    return asyncio.run(settled(make(api, **more).allocate(ids or ("a#0",))))


# ------------------------------------------------------------------ saying yes


def test_one_patch_carries_slot_records_and_phase_and_the_lock_goes_after_it(
    store: Store, api: StoreApi
) -> None:
    schedule(store, "p", [thing(4)])
    edits = allocate(api)
    assert api.calls == ["get node", "list pods", "patch pod", "get node", "patch node", "create event"]
    got = annotations(store, "p")
    assert got[TO_ALLOCATE] == ";"
    assert json.loads(got[TAKEN]) == {"a": [0, 1, 2, 3]}
    assert got[BIND_PHASE] == "success"
    assert lock(store) is None
    assert edits.envs["TOY_HOOK"] == "True"
    assert events(store) == [("Normal", "to default/p")]


def test_while_a_slot_is_left_phase_and_lock_stay(store: Store, api: StoreApi) -> None:
    schedule(store, "p", [thing(4)], [], [thing(2), thing(2, "b")])
    allocate(api, "a#0")
    assert annotations(store, "p")[BIND_PHASE] == "allocating"
    assert lock(store) is not None
    allocate(api, "b#3", "a#1")
    got = annotations(store, "p")
    assert got[BIND_PHASE] == "success"
    assert json.loads(got[TAKEN]) == {"a": [0, 1, 2, 3, 4, 5], "b": [0, 1]}
    assert lock(store) is None


def test_what_live_pods_hold_is_not_given_again_and_what_ended_ones_held_is(
    store: Store, api: StoreApi
) -> None:
    for name in ("one", "two"):
        schedule(store, name, [thing(8)])
        allocate(api)
    assert json.loads(annotations(store, "two")[TAKEN]) == {"a": list(range(8, 16))}
    store.patch("pods", "one", {"status": {"phase": "Failed"}}, subresource="status")
    schedule(store, "three", [thing(8)])
    allocate(api)
    assert json.loads(annotations(store, "three")[TAKEN]) == {"a": list(range(8))}


def test_allocates_at_the_same_time_wait_for_each_other_and_never_overlap(
    store: Store, api: StoreApi
) -> None:
    schedule(store, "p", *[[thing(2)] for _ in range(8)])

    async def go() -> None:
        allocator = make(api)
        await asyncio.gather(*(allocator.allocate((f"a#{i}",)) for i in range(8)))

    asyncio.run(go())
    cores = json.loads(annotations(store, "p")[TAKEN])["a"]
    assert sorted(cores) == list(range(16))
    assert lock(store) is None


def test_a_pod_that_changed_meanwhile_is_read_and_decided_anew(store: Store, api: StoreApi) -> None:
    schedule(store, "p", [thing(4)])

    def somebody_writes(number: int, when: str, call: str) -> None:
        if (number, when) == (2, "before"):
            store.patch("pods", "p", {"metadata": {"annotations": {"other": "x", TAKEN: '{"b": [7]}'}}})

    api.cut = somebody_writes
    allocate(api)
    assert api.calls[:6] == ["get node", "list pods", "patch pod", "get node", "list pods", "patch pod"]
    got = annotations(store, "p")
    assert json.loads(got[TAKEN]) == {"b": [7], "a": [0, 1, 2, 3]}
    assert got["other"] == "x"


def test_a_pod_that_never_rests_is_unavailable_and_keeps_its_slot(store: Store, api: StoreApi) -> None:
    schedule(store, "p", [thing(4)])

    def restless(number: int, when: str, call: str) -> None:
        if call == "patch pod" and when == "before":
            store.patch("pods", "p", {"metadata": {"annotations": {"n": str(number)}}})

    api.cut = restless
    with pytest.raises(kube.Unavailable, match="kept changing"):
        allocate(api)
    assert TAKEN not in annotations(store, "p")
    assert api.calls.count("patch pod") == QUICK.tries


def test_what_the_annotations_say_is_logged_for_those_who_ask_for_it(
    store: Store, api: StoreApi, caplog: pytest.LogCaptureFixture
) -> None:
    schedule(store, "p", [thing(4)])
    with caplog.at_level(logging.DEBUG, "devplugin"):
        allocate(api)
    assert "4 cores" not in caplog.text
    schedule(store, "q", [thing(4)])
    with caplog.at_level(TRACE, "devplugin"):
        allocate(api)
    assert f"pod default/q: {TO_ALLOCATE}: slot 0: 'a' ('Toy') 1 MiB, 4 cores" in caplog.messages
    assert any(line.startswith("node n1: locked by default/q since ") for line in caplog.messages)


# ------------------------------------------------------------------ saying no


def test_a_refusal_marks_the_pod_releases_the_lock_and_tells_people(store: Store, api: StoreApi) -> None:
    schedule(store, "p", [thing(17)])
    with pytest.raises(Refused, match="a has 16 cores left, not 17"):
        allocate(api)
    got = annotations(store, "p")
    assert got[BIND_PHASE] == "failed"
    assert got[TO_ALLOCATE] != ";"
    assert lock(store) is None
    assert [kind for kind, _ in events(store)] == ["Warning"]
    assert "a has 16 cores left, not 17" in events(store)[0][1]


def test_what_is_wrong_with_records_is_a_warning_said_once(
    store: Store, api: StoreApi, caplog: pytest.LogCaptureFixture
) -> None:
    class Complaining(Toy):
        def allocate(self, *args: Any) -> Allocation:
            return replace(super().allocate(*args), warnings=("pod d/x: names no thing here",) * 2)

    async def work() -> None:
        allocator = make(api, Complaining())
        for name in ("p", "q"):
            schedule(store, name, [thing(4)])
            await allocator.allocate(["a#0"])

    asyncio.run(work())
    said = [r for r in caplog.records if "names no thing here" in r.message]
    assert [r.levelname for r in said] == ["WARNING"]


def test_a_refusal_may_ask_for_what_makes_the_next_try_succeed(store: Store, api: StoreApi) -> None:
    wanted = PullImage("docker.io/library/app:1")

    class Pulling(Toy):
        def allocate(self, *args: Any) -> Allocation:
            raise Refused("image is not on the node yet", after=[wanted])

    schedule(store, "p", [thing(4)])
    fetched: list[PullImage] = []
    with pytest.raises(Refused, match="image is not on the node yet"):
        allocate(api, vendor=Pulling(), fetch=fetched.append)
    assert fetched == [wanted]
    assert annotations(store, "p")[BIND_PHASE] == "failed"
    assert lock(store) is None


@pytest.mark.parametrize("error", [kube.Unavailable("500"), kube.Forbidden("403"), kube.NotFound("404")])
def test_the_lock_is_released_even_when_the_phase_cannot_be_written(
    store: Store, api: StoreApi, error: Exception
) -> None:
    schedule(store, "p", [thing(17)])

    def fail(number: int, when: str, call: str) -> None:
        if call == "patch pod" and when == "before":
            raise error

    api.cut = fail
    with pytest.raises(Refused):
        allocate(api)
    assert annotations(store, "p")[BIND_PHASE] == "allocating"
    assert lock(store) is None


def test_a_conflict_does_not_keep_a_refused_pod_from_being_marked(store: Store, api: StoreApi) -> None:
    schedule(store, "p", [thing(17)])

    def busy(number: int, when: str, call: str) -> None:
        if (number, when) == (2, "before"):
            store.patch("pods", "p", {"metadata": {"annotations": {"other": "x"}}})

    api.cut = busy
    with pytest.raises(Refused):
        allocate(api)
    assert annotations(store, "p")[BIND_PHASE] == "failed"


def test_a_pod_that_took_the_place_of_the_refused_one_is_not_marked(store: Store, api: StoreApi) -> None:
    schedule(store, "p", [thing(17)])

    def replaced(number: int, when: str, call: str) -> None:
        if (number, when) == (2, "before"):
            store.delete("pods", "p")
            store.create("pods", pod("p"))

    api.cut = replaced
    with pytest.raises(Refused):
        allocate(api)
    assert BIND_PHASE not in (store.get("pods", "p")["metadata"].get("annotations") or {})


def test_when_nobody_asks_nothing_is_written(store: Store, api: StoreApi) -> None:
    with pytest.raises(Refused, match="no pod asks for 1 thing"):
        allocate(api)
    assert api.calls == ["get node", "list pods"]


# ------------------------------------------------------------------ the lock


def test_a_lock_that_another_pod_took_meanwhile_is_left_alone(store: Store, api: StoreApi) -> None:
    schedule(store, "p", [thing(4)])
    store.create("pods", pod("q"))

    def taken_over(number: int, when: str, call: str) -> None:
        if call == "patch pod" and when == "after":
            store.patch("nodes", "n1", {"metadata": {"annotations": {LOCK: None}}})
            take_lock(store, "n1", "q")

    api.cut = taken_over
    allocate(api)
    assert str(lock(store)).endswith(",default,q")


def test_releasing_is_tried_again_when_the_node_changes(store: Store, api: StoreApi) -> None:
    schedule(store, "p", [thing(4)])
    beats = iter(range(3))

    def heartbeat(number: int, when: str, call: str) -> None:
        if call == "patch node" and when == "before" and (beat := next(beats, None)) is not None:
            store.patch("nodes", "n1", {"metadata": {"annotations": {"beat": str(beat)}}})

    api.cut = heartbeat
    allocate(api)
    assert lock(store) is None
    assert api.calls.count("patch node") == 4


def test_a_lock_that_cannot_be_released_does_not_change_the_answer(store: Store, api: StoreApi) -> None:
    schedule(store, "p", [thing(4)])

    def away(number: int, when: str, call: str) -> None:
        if call == "patch node":
            raise kube.Unavailable("away")

    api.cut = away
    assert allocate(api).envs
    assert lock(store) is not None
    api.cut = None
    asyncio.run(make(api).sweep())
    assert lock(store) is None
    assert annotations(store, "p")[BIND_PHASE] == "success"


# ------------------------------------------------------------------ the API server is away


def test_with_the_api_server_away_the_answer_is_unavailable_in_time_and_nothing_is_changed(
    store: Store, api: StoreApi
) -> None:
    schedule(store, "p", [thing(4)])
    before = store.get("pods", "p"), store.get("nodes", "n1")

    def away(number: int, when: str, call: str) -> None:
        raise kube.Unavailable("connection refused")

    api.cut = away
    begun = time.monotonic()
    with pytest.raises(kube.Unavailable, match="connection refused"):
        allocate(api)
    assert time.monotonic() - begun < QUICK.answer
    assert (store.get("pods", "p"), store.get("nodes", "n1")) == before


def test_the_default_budget_answers_before_the_promised_25_seconds_also_when_every_call_hangs() -> None:
    budget = Budget()
    assert budget.answer < 25
    assert (
        budget.gather + 5.0 + 5.0 < budget.answer
    )  # a last read, then the patch, each with its own deadline


def test_an_api_server_that_comes_back_in_time_is_waited_for(store: Store, api: StoreApi) -> None:
    schedule(store, "p", [thing(4)])

    def late(number: int, when: str, call: str) -> None:
        if number < 6:
            raise kube.Unavailable("restarting")

    api.cut = late
    assert allocate(api).envs
    assert lock(store) is None


def test_calls_that_hang_are_given_up_within_the_budget(store: Store, api: StoreApi) -> None:
    schedule(store, "p", [thing(4)])

    class Hanging(StoreApi):
        async def pods_on(self, node: str) -> Any:
            await asyncio.sleep(60)

    begun = time.monotonic()
    with pytest.raises(kube.Unavailable, match="out of time"):
        allocate(Hanging(store), budget=replace(QUICK, answer=0.3))
    assert time.monotonic() - begun < 2.0


def test_what_the_server_forbids_is_not_tried_again(store: Store, api: StoreApi) -> None:
    def forbid(number: int, when: str, call: str) -> None:
        raise kube.Forbidden("list pods: grant it")

    api.cut = forbid
    with pytest.raises(kube.Unavailable, match="grant it"):
        allocate(api)
    assert len(api.calls) <= 2


def test_a_patch_whose_answer_was_lost_counts_when_it_was_written(store: Store, api: StoreApi) -> None:
    schedule(store, "p", [thing(4)])

    def lost(number: int, when: str, call: str) -> None:
        if (number, when) == (2, "after"):
            raise kube.Unavailable("connection reset")

    api.cut = lost
    assert allocate(api).envs
    assert api.calls[2:4] == ["patch pod", "get pod"]
    assert lock(store) is None


def test_a_patch_that_was_not_written_grants_nothing(store: Store, api: StoreApi) -> None:
    schedule(store, "p", [thing(4)])

    def refused(number: int, when: str, call: str) -> None:
        if (number, when) == (2, "before"):
            raise kube.Unavailable("connection refused")

    api.cut = refused
    with pytest.raises(kube.Unavailable):
        allocate(api)
    assert TAKEN not in annotations(store, "p")
    assert lock(store) is not None


def test_when_nobody_can_tell_whether_the_patch_was_written_nothing_is_granted(
    store: Store, api: StoreApi
) -> None:
    schedule(store, "p", [thing(4)])

    def gone(number: int, when: str, call: str) -> None:
        if number >= 2:
            raise kube.Unavailable("connection refused")

    api.cut = gone
    with pytest.raises(kube.Unavailable):
        allocate(api)
    assert api.calls[2:] == ["patch pod", "get pod"]


def test_before_the_first_discovery_nothing_is_granted(store: Store, api: StoreApi) -> None:
    schedule(store, "p", [thing(4)])
    with pytest.raises(kube.Unavailable, match="not known yet"):
        allocate(api, current=lambda: None)
    assert api.calls == []


def test_whoever_waits_too_long_behind_another_is_told_so(store: Store, api: StoreApi) -> None:
    class Slow(StoreApi):
        async def node(self, name: str) -> Any:
            await asyncio.sleep(0.5)
            return await super().node(name)

    async def go() -> None:
        schedule(store, "p", [thing(4)])
        allocator = make(Slow(store), budget=replace(QUICK, answer=1.2, release=1.0))
        first = asyncio.create_task(allocator.allocate(("a#0",)))
        await asyncio.sleep(0)
        with pytest.raises(kube.Unavailable, match="another Allocate"):
            await allocator.allocate(("a#1",))
        await first

    asyncio.run(go())


# ------------------------------------------------------------------ facts and effects


def test_facts_are_gathered_before_the_decision_and_decide(store: Store, api: StoreApi) -> None:
    schedule(store, "p", [thing(4)])
    asked = []

    async def gather(requests: Sequence[FactRequest]) -> Mapping[FactRequest, Any]:
        asked.append(tuple(requests))
        return dict.fromkeys(requests, False)

    edits = allocate(api, facts=gather)
    assert asked == [(FactRequest("file", "/toy-hook"),)]
    assert edits.envs["TOY_HOOK"] == "False"


class WithBefore(Toy):
    """Wants something done before the reply."""

    def allocate(self, *args: Any) -> Allocation:
        return replace(super().allocate(*args), before=(NodeEvent("Normal", "First", "first", "n1.first"),))


def test_what_must_come_first_comes_before_the_patch(store: Store, api: StoreApi) -> None:
    schedule(store, "p", [thing(4)])
    allocate(api, vendor=WithBefore())
    assert api.calls[:4] == ["get node", "list pods", "create event", "patch pod"]


def test_when_what_must_come_first_fails_nothing_is_granted(store: Store, api: StoreApi) -> None:
    schedule(store, "p", [thing(4)])

    def fail(number: int, when: str, call: str) -> None:
        if call == "create event":
            raise kube.Forbidden("create events")

    api.cut = fail
    with pytest.raises(kube.Unavailable, match="create events"):
        allocate(api, vendor=WithBefore())
    assert TAKEN not in annotations(store, "p")


# ------------------------------------------------------------------ the sweep


def test_the_sweep_leaves_a_lock_alone_whose_owner_still_has_a_slot(store: Store, api: StoreApi) -> None:
    schedule(store, "p", [thing(4)])
    asyncio.run(make(api).sweep())
    assert lock(store) is not None
    assert annotations(store, "p")[BIND_PHASE] == "allocating"
    assert not any(call.startswith("patch") for call in api.calls)


@pytest.mark.parametrize("end", ["deleted", "Failed", "Succeeded"])
def test_the_sweep_releases_the_lock_of_a_pod_that_ended(store: Store, api: StoreApi, end: str) -> None:
    schedule(store, "p", [thing(4)])
    if end == "deleted":
        store.delete("pods", "p")
    else:
        store.patch("pods", "p", {"status": {"phase": end}}, subresource="status")
    asyncio.run(make(api).sweep())
    assert lock(store) is None
    if end != "deleted":
        assert annotations(store, "p")[BIND_PHASE] == "failed"


def test_the_sweep_releases_only_the_lock_it_judged(store: Store, api: StoreApi) -> None:
    schedule(store, "p", [thing(4)])
    store.delete("pods", "p")
    store.create("pods", pod("q"))

    def taken_over(number: int, when: str, call: str) -> None:
        if call == "get pod" and when == "before":  # judged by the owner it saw
            store.patch("nodes", "n1", {"metadata": {"annotations": {LOCK: None}}})
            take_lock(store, "n1", "q")

    api.cut = taken_over
    asyncio.run(make(api).sweep())
    assert str(lock(store)).endswith(",default,q")


def test_the_sweep_without_a_lock_only_reads(store: Store, api: StoreApi) -> None:
    asyncio.run(make(api).sweep())
    assert api.calls == ["get node", "list pods"]
