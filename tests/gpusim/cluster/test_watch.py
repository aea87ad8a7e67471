"""Watches with the official client: what it is told, when it ends, and what can go wrong with it."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time

import pytest
from kubernetes import client as kube
from kubernetes import config, watch
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from gpusim.cluster.apifaults import Fault
from gpusim.cluster.pods import pod

from .fake_plugin import eventually


@pytest.fixture
def official(server, tmp_path):
    settings = kube.Configuration()
    config.load_kube_config(str(server.kubeconfig(tmp_path / "kubeconfig")), client_configuration=settings)
    settings.retries = False
    with kube.ApiClient(settings) as made:
        yield kube.CoreV1Api(made)
        made.rest_client.pool_manager.clear()


def told(official, *, stop=None, **named):
    """(type, name) of everything a watch of the default namespace's pods says until `stop` or its time."""
    stream, seen = watch.Watch(), []
    for event in stream.stream(official.list_namespaced_pod, "default", **{"timeout_seconds": 5, **named}):
        seen.append((event["type"], event["object"].metadata.name))
        if stop is not None and seen[-1] == stop:
            stream.stop()
    return seen


def version(official):
    return official.list_namespaced_pod("default").metadata.resource_version


def later(work, seconds=0.1):
    timer = threading.Timer(seconds, work)
    timer.start()
    return timer


def many(server, count=10_050):
    """More changes than the server remembers."""
    for number in range(count):
        server.store.patch("namespaces", "default", {"metadata": {"labels": {"i": str(number)}}})


def test_without_a_version_it_begins_with_what_is_there(server, official):
    server.store.create("pods", pod("a"))
    server.store.create("pods", pod("b"))
    timer = later(lambda: server.store.delete("pods", "a"))
    assert told(official, stop=("DELETED", "a")) == [("ADDED", "a"), ("ADDED", "b"), ("DELETED", "a")]
    timer.join()


def test_from_a_version_it_tells_what_was_missed_and_nothing_of_before(server, official):
    server.store.create("pods", pod("old"))
    since = version(official)
    server.store.create("pods", pod("new"))
    server.store.patch("pods", "old", {"metadata": {"labels": {"a": "b"}}})
    seen = told(official, resource_version=since, stop=("MODIFIED", "old"))
    assert seen == [("ADDED", "new"), ("MODIFIED", "old")]


def test_its_time_ends_it_and_not_earlier(official):
    begun = time.monotonic()
    assert told(official, timeout_seconds=1) == []
    assert 0.9 < time.monotonic() - begun < 4


def test_a_version_that_was_forgotten_is_410_and_a_new_list_and_watch_go_on(server, official):
    server.store.create("pods", pod("p"))
    since = version(official)
    many(server)
    with pytest.raises(ApiException) as caught:
        told(official, resource_version=since, timeout_seconds=1)
    assert caught.value.status == 410
    assert "too old resource version" in caught.value.reason
    since = version(official)
    timer = later(lambda: server.store.delete("pods", "p"))
    assert told(official, resource_version=since, stop=("DELETED", "p")) == [("DELETED", "p")]
    timer.join()


def test_410_is_one_error_event_on_the_wire_and_then_the_stream_ends(server):
    many(server)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    connection.request("GET", "/api/v1/pods?watch=1&resourceVersion=1")
    (line,) = connection.getresponse().read().splitlines()
    connection.close()
    event = json.loads(line)
    assert event["type"] == "ERROR"
    assert (event["object"]["code"], event["object"]["reason"]) == (410, "Expired")


@pytest.mark.parametrize("code", [500, 503, 429])
def test_an_error_at_the_start_is_an_exception_and_the_next_watch_works(server, official, code):
    server.store.create("pods", pod("p"))
    server.faults.add(Fault(verb="watch", resource="pods", code=code))
    with pytest.raises(ApiException) as caught:
        told(official)
    assert caught.value.status == code
    assert told(official, stop=("ADDED", "p")) == [("ADDED", "p")]


def test_a_fault_of_watches_strikes_no_list(server, official):
    server.faults.add(Fault(verb="watch", times=None))
    assert official.list_namespaced_pod("default").items == []


def test_a_late_answer_loses_no_change(server, official):
    since = version(official)
    server.faults.add(Fault(verb="watch", action="none", delay=0.4))
    timer = later(lambda: server.store.create("pods", pod("p")), 0.1)
    begun = time.monotonic()
    assert told(official, resource_version=since, stop=("ADDED", "p")) == [("ADDED", "p")]
    assert time.monotonic() - begun >= 0.4
    timer.join()


@pytest.mark.parametrize("action", ["drop", "lose"])
def test_a_watch_that_gets_no_answer_is_a_transport_error(server, official, action):
    server.faults.add(Fault(verb="watch", action=action))
    with pytest.raises(HTTPError):
        told(official)


def test_a_server_that_dies_in_the_middle_ends_the_watch_and_the_next_one_goes_on_where_it_was(
    server, official
):
    last, seen, ended = version(official), [], threading.Event()

    def follow():
        nonlocal last
        try:
            for event in watch.Watch().stream(
                official.list_namespaced_pod, "default", resource_version=last, timeout_seconds=10
            ):
                seen.append(event["object"].metadata.name)
                last = event["object"].metadata.resource_version
        except HTTPError:
            ended.set()

    thread = threading.Thread(target=follow)
    thread.start()
    server.store.create("pods", pod("a"))
    assert eventually(lambda: seen == ["a"])
    server.down()
    assert ended.wait(5)
    thread.join()
    server.store.create("pods", pod("b"))
    server.up()
    server.store.create("pods", pod("c"))
    assert told(official, resource_version=last, stop=("ADDED", "c")) == [("ADDED", "b"), ("ADDED", "c")]


def test_all_watchers_hear_the_same_in_the_same_order(server, official):
    since, heard = version(official), [[], [], []]
    threads = [
        threading.Thread(
            target=lambda mine=mine: mine.extend(
                told(official, resource_version=since, stop=("DELETED", "p9"))
            )
        )
        for mine in heard
    ]
    for thread in threads:
        thread.start()
    for number in range(10):
        server.store.create("pods", pod(f"p{number}"))
        server.store.delete("pods", f"p{number}")
    for thread in threads:
        thread.join(10)
    assert heard[0] == heard[1] == heard[2]
    assert len(heard[0]) == 20


def test_a_watcher_that_hangs_up_costs_nothing_any_more(server):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    connection.request("GET", "/api/v1/pods?watch=1")
    stream = connection.getresponse()  # it owns the socket
    assert eventually(lambda: len(server.store.shelves._subscribers) == 1)
    stream.close()
    assert eventually(lambda: not server.store.shelves._subscribers)


def follow(official, cache, over):
    """What every controller does: list, watch on from there, begin anew when told 410, wait when refused."""
    since = None
    while not over.is_set():
        try:
            if since is None:
                listed = official.list_namespaced_pod("default")
                cache.clear()
                cache.update({one.metadata.name: one.metadata.resource_version for one in listed.items})
                since = listed.metadata.resource_version
            for event in watch.Watch().stream(
                official.list_namespaced_pod, "default", resource_version=since, timeout_seconds=1
            ):
                metadata = event["object"].metadata
                since = metadata.resource_version
                if event["type"] == "DELETED":
                    cache.pop(metadata.name, None)
                else:
                    cache[metadata.name] = since
        except ApiException as error:
            since = None if error.status == 410 else since
            over.wait(0.01)
        except HTTPError:
            over.wait(0.01)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_controller_agrees_with_the_server_in_the_end_whatever_went_wrong(server, official, seed):
    chance, cache, over = random.Random(seed), {}, threading.Event()
    thread = threading.Thread(target=follow, args=(official, cache, over))
    thread.start()
    try:
        for number in range(60):
            name = f"p{chance.randrange(6)}"
            known = {one["metadata"]["name"] for one in server.store.list("pods")}
            if name not in known:
                server.store.create("pods", pod(name))
            elif chance.random() < 0.5:
                server.store.delete("pods", name)
            else:
                server.store.patch("pods", name, {"metadata": {"labels": {"n": str(number)}}})
            trouble = chance.choice(("error", "slow", "drop", "lose", "outage", "forget", "", "", "", ""))
            if trouble in ("error", "drop", "lose"):
                server.faults.add(Fault(verb=chance.choice(("list", "watch")), action=trouble))
            elif trouble == "slow":
                server.faults.add(Fault(verb="watch", action="none", delay=0.05))
            elif trouble == "outage":
                server.down()
                time.sleep(0.02)
                server.up()
            elif trouble == "forget" and number % 10 == 0:
                many(server)
            time.sleep(chance.random() * 0.02)
        server.faults.clear()

        def agree():
            there = {
                one["metadata"]["name"]: one["metadata"]["resourceVersion"]
                for one in server.store.list("pods")
            }
            return cache == there

        assert eventually(agree), cache
    finally:
        over.set()
        thread.join(15)
