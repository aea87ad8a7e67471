"""The node lock of the scheduler: ascend_ppu_hami.md D.7 and the L rows of its table F.3."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest

from gpusim.cluster.apiclient import ApiClient
from gpusim.cluster.apifaults import Fault
from gpusim.cluster.apistatus import ApiError
from gpusim.cluster.apistore import Store
from gpusim.cluster.pods import LOCK, pod
from gpusim.cluster.scheduler_lock import (
    ContentionError,
    Lock,
    LockError,
    NodeLock,
    backoff,
    duration,
    parse,
    shown,
    value_of,
)

NOW = 1_800_000_000.0
OLD = "2026-07-03T15:35:10+08:00"


@pytest.fixture
def store():
    made = Store()
    made.create("nodes", {"metadata": {"name": "n"}})
    for name in ("p", "q"):
        made.create("pods", pod(name))
    return made


def lock_on(api, **more):
    return NodeLock(api, now=lambda: NOW, sleep=lambda seconds: None, **more)


def held(store):
    return (store.get("nodes", "n")["metadata"].get("annotations") or {}).get(LOCK)


def put(store, value):
    store.patch("nodes", "n", {"metadata": {"annotations": {LOCK: value}}})


def test_l1_a_free_node_is_locked_and_everything_else_is_an_error(store):
    with pytest.raises(ApiError, match="not found"):
        lock_on(store).acquire("absent", "default", "p")
    lock_on(store).acquire("n", "default", "p")
    assert held(store) == value_of(NOW, "default", "p") == "2027-01-15T08:00:00Z,default,p"
    for namespace, name in (("default", "q"), ("kube-system", "p")):
        with pytest.raises(ContentionError):
            lock_on(store).acquire("n", namespace, name)
    put(store, "lock")
    with pytest.raises(LockError, match="malformed lock annotation"):
        lock_on(store).acquire("n", "default", "p")


@pytest.mark.parametrize(
    "bad", ["a,b", "a,b,c,d", "yesterday,default,q", "2026-13-01T00:00:00Z,default,q", ""]
)
def test_a_malformed_lock_never_expires(store, bad):
    put(store, bad)
    with pytest.raises(LockError, match="malformed lock annotation") as caught:
        NodeLock(store, now=lambda: NOW * 2).acquire("n", "default", "p")
    assert not isinstance(caught.value, ContentionError)
    assert held(store) == bad


def test_l2_contention_says_how_long_the_lock_lives(store):
    put(store, value_of(NOW - 119, "default", "q"))
    with pytest.raises(ContentionError, match="node n has been locked within 2m0s: node lock contention"):
        lock_on(store, expiry=120).acquire("n", "default", "p")
    assert [shown(s) for s in (300, 90.5, 3600, 0.2)] == ["5m0s", "1m30.5s", "1h0m0s", "0.2s"]


def test_an_expired_lock_is_taken_over_and_one_second_earlier_it_is_not(store):
    put(store, value_of(NOW - 300, "default", "q"))
    with pytest.raises(ContentionError):
        lock_on(store).acquire("n", "default", "p")
    put(store, value_of(NOW - 301, "default", "q"))
    lock_on(store).acquire("n", "default", "p")
    assert parse(held(store)) == Lock(NOW, "default", "p")


def test_l3_the_lock_of_a_pod_that_is_gone_is_taken_over_and_of_an_ended_one_not(store):
    put(store, value_of(NOW, "default", "absent"))
    lock_on(store).acquire("n", "default", "p")
    assert parse(held(store)).name == "p"
    store.patch("pods", "q", {"status": {"phase": "Succeeded"}}, subresource="status")
    put(store, value_of(NOW, "default", "q"))
    with pytest.raises(ContentionError):
        lock_on(store).acquire("n", "default", "p")


def test_l4_the_same_pod_may_lock_twice_and_keeps_its_time_until_it_expires(store):
    put(store, value_of(NOW - 100, "default", "p"))
    lock_on(store).acquire("n", "default", "p")
    assert parse(held(store)).since == NOW - 100
    put(store, value_of(NOW - 400, "default", "p"))
    lock_on(store).acquire("n", "default", "p")
    assert parse(held(store)).since == NOW


@pytest.mark.parametrize(
    ("value", "left"),
    [
        (None, None),
        (value_of(NOW, "default", "q"), value_of(NOW, "default", "q")),
        (value_of(NOW, "default", "p"), None),
        (OLD, None),
    ],
)
def test_l5_release_takes_its_own_and_the_old_form(store, value, left):
    put(store, value)
    lock_on(store).release("n", "default", "p")
    assert held(store) == left
    with pytest.raises(ApiError, match="not found"):
        lock_on(store).release("absent", "default", "p")


class Between(Store):
    """Somebody writes between the nth look at the node and what follows."""

    def __init__(self, nth, value):
        super().__init__()
        self.looks, self.nth, self.value = 0, nth, value

    def get(self, resource, name, namespace="default"):
        found = super().get(resource, name, namespace)
        if resource == "nodes" and name == "n":
            self.looks += 1
            if self.looks == self.nth:
                put(self, self.value)
        return found


def busy(nth, value, before=None):
    made = Between(0, value)
    made.create("nodes", {"metadata": {"name": "n"}})
    for name in ("p", "q"):
        made.create("pods", pod(name))
    if before:
        put(made, before)
    made.looks, made.nth = 0, nth
    return made


@pytest.mark.parametrize("nth", [1, 2])
def test_l6_a_pod_that_was_faster_keeps_its_lock(nth):
    theirs = value_of(NOW, "default", "q")
    store = busy(nth, theirs)
    with pytest.raises(ContentionError, match="node n is locked: node lock contention"):
        lock_on(store).acquire("n", "default", "p")
    assert held(store) == theirs


def test_l7_a_lost_answer_is_a_success(server):
    server.store.create("nodes", {"metadata": {"name": "n"}})
    client = ApiClient(server.url)
    server.faults.add(Fault(verb="patch", resource="nodes", action="lose"))
    lock_on(client).acquire("n", "default", "p")
    client.close()
    assert parse(held(server.store)).name == "p"
    assert [(e.verb, e.code) for e in server.requests.entries() if e.verb == "patch"] == [("patch", 0)]


@pytest.mark.parametrize(
    ("before", "meanwhile", "left"),
    [
        (value_of(NOW, "default", "p"), value_of(NOW, "default", "q"), value_of(NOW, "default", "q")),
        (OLD, value_of(NOW, "default", "q"), value_of(NOW, "default", "q")),
        (value_of(NOW - 9, "default", "p"), value_of(NOW, "default", "p"), None),
    ],
    ids=["replaced", "old form replaced", "stamped again"],
)
@pytest.mark.parametrize("nth", [1, 2])
def test_l8_a_release_in_a_race_takes_nothing_of_others(before, meanwhile, left, nth):
    store = busy(nth, meanwhile, before)
    lock_on(store).release("n", "default", "p")
    assert held(store) == left


def test_a_take_over_in_a_race_leaves_a_lock_that_was_taken_anew():
    anew = value_of(NOW, "default", "q")
    store = busy(2, anew, value_of(NOW - 301, "default", "q"))
    with pytest.raises(ContentionError):
        lock_on(store).acquire("n", "default", "p")
    assert held(store) == anew


def test_l9_fifty_schedulers_do_not_come_back_all_at_once():
    for at in range(3):
        delays = [next(itertools.islice(backoff(random.Random(seed)), at, None)) for seed in range(50)]
        assert max(Counter(int(delay / 0.01) for delay in delays).values()) <= 20
        assert all(0.1 * 2**at <= delay <= 0.15 * 2**at for delay in delays)


def test_a_node_that_always_changes_is_tried_five_times(store):
    slept = []

    class Changing(Store):
        def patch(self, *arguments, **named):
            raise ApiError(409, "Conflict", "the object has been modified")

    made = Changing()
    made.create("nodes", {"metadata": {"name": "n"}})
    with pytest.raises(ApiError, match="modified"):
        NodeLock(made, now=lambda: NOW, sleep=slept.append).acquire("n", "default", "p")
    assert len(slept) == 4
    assert slept == sorted(slept)


def test_an_owner_that_cannot_be_looked_up_is_an_error(server):
    server.store.create("nodes", {"metadata": {"name": "n"}})
    put(server.store, value_of(NOW, "default", "q"))
    client = ApiClient(server.url)
    server.faults.add(Fault(verb="get", resource="pods", code=500))
    with pytest.raises(ApiError) as caught:
        lock_on(client).acquire("n", "default", "p")
    client.close()
    assert caught.value.code == 500
    assert parse(held(server.store)).name == "q"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("", None),
        ("10m", 600),
        ("1h30m", 5400),
        ("1.5s", 1.5),
        ("250ms", 0.25),
        ("notaduration", None),
        ("10", None),
        ("0s", None),
        ("-5m", None),
    ],
)
def test_l10_durations_are_gos(text, seconds):
    assert duration(text) == seconds
