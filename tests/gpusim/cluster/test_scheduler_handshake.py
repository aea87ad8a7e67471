"""The handshake of scheduler and plugin, alone and on an API server: ascend_ppu_hami.md D.3, F.3 H1 to H4."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusim.cluster.apifaults import Fault
from gpusim.cluster.pods import container, pod
from gpusim.cluster.scheduler import Scheduler
from gpusim.cluster.scheduler_ascend import ascend_vendors
from gpusim.cluster.scheduler_handshake import PATIENCE, Verdict, judge, request
from gpusim.cluster.scheduler_vendors import AMD

NODE = "n1"
WORD = "Ascend910B4"
(ROW,) = (one for one in ascend_vendors() if one.word == WORD)
NOW = datetime(2026, 11, 30, 12, tzinfo=UTC).timestamp()
EAST = timezone(timedelta(hours=8))
FINE, WAITING, DEAD = Verdict(True, True), Verdict(True, False), Verdict(False, False)


# -- the judgement ----------------------------------------------------------------------------------------


def test_h1_a_request_of_the_future_is_waited_for():
    assert judge("Requesting_2128-12-02 00:00:00", NOW, counted=False) == WAITING


@pytest.mark.parametrize(
    "value", ["Requesting", "Requesting_", "Requesting_not-a-timestamp", "Requesting_2024.01.02 00:00:00"]
)
def test_h2_a_request_without_a_time_is_waited_for(value):
    assert judge(value, NOW, counted=False) == WAITING


@pytest.mark.parametrize(("counted", "verdict"), [(False, DEAD), (True, WAITING)])
def test_h3_a_request_of_long_ago_is_believed_while_the_node_counts_devices(counted, verdict):
    assert judge("Requesting_2024-01-02 00:00:00", NOW, counted=counted) == verdict


@pytest.mark.parametrize("value", [None, "", "Unknown", "Reported_2026.11.30 12:00:00", "Deleted_x"])
@pytest.mark.parametrize("counted", [True, False])
def test_anything_else_is_an_answer(value, counted):
    assert judge(value, NOW, counted=counted) == FINE


def test_times_are_local_and_have_dashes():
    assert request(NOW, UTC) == "Requesting_2026-11-30 12:00:00"
    assert request(NOW, EAST) == "Requesting_2026-11-30 20:00:00"
    assert judge(request(NOW - 61, EAST), NOW, counted=False, zone=EAST) == DEAD
    assert judge(request(NOW - 61, EAST), NOW, counted=False, zone=UTC) == WAITING


@given(st.integers(0, 200), st.booleans(), st.sampled_from([UTC, EAST, None]))
def test_a_request_is_waited_for_a_minute(age, counted, zone):
    verdict = judge(request(NOW - age, zone), NOW, counted=counted, zone=zone)
    assert verdict == (WAITING if age < PATIENCE or counted else DEAD)


@given(
    st.one_of(
        st.text(max_size=30),
        st.builds("Requesting_{}".format, st.text("0123456789-: _", max_size=20)),
        st.builds(
            "Requesting_{:04}-{:02}-{:02} {:02}:{:02}:{:02}".format,
            st.integers(1, 9999),
            *[st.integers(0, 60)] * 5,
        ),
    ),
    st.booleans(),
    st.sampled_from([UTC, EAST, None]),
)
def test_any_annotation_is_judged(value, counted, zone):
    verdict = judge(value, NOW, counted=counted, zone=zone)
    assert verdict in (FINE, WAITING, DEAD)
    assert (verdict == FINE) == ("Requesting" not in value)


# -- rounds over nodes --------------------------------------------------------------------------------------


@pytest.fixture
def store(server):
    return server.store


class Clock:
    def __init__(self):
        self.now = NOW

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def scheduler(stack, server, clock):
    made = Scheduler(
        server.url, vendors=(AMD, ROW), now=clock, zone=UTC, sleep=lambda s: None, refresh_seconds=15
    )
    stack.callback(made.stop)
    return made


def cards(number=1, **more):
    facts = {"count": 4, "devmem": 32768, "devcore": 20, "type": WORD, "health": True}
    return [{"id": f"npu-{i}", "index": i, **facts, **more} for i in range(number)]


def offer(store, number=1, *, handshake="Reported_2026.11.30 12:00:01", counted=4):
    body = {
        "metadata": {
            "name": NODE,
            "annotations": {
                ROW.register: json.dumps(cards(number)),
                "hami-vnpu-core": "false",
                **({ROW.handshake: handshake} if handshake is not None else {}),
            },
        },
        "status": {"capacity": {ROW.count: str(counted)}, "allocatable": {ROW.count: str(counted)}},
    }
    store.create("nodes", body)


def annotate(store, **values):
    names = {"register": ROW.register, "handshake": ROW.handshake}
    store.patch(
        "nodes", NODE, {"metadata": {"annotations": {names[key]: value for key, value in values.items()}}}
    )


def report(store, number):
    """What the plugin does every 30 s."""
    annotate(store, register=json.dumps(cards(number)), handshake="Reported_2026.11.30 12:00:31")


def count(store, amount):
    store.patch("nodes", NODE, {"status": {"allocatable": {ROW.count: str(amount)}}}, subresource="status")


def handshake(store):
    return store.get("nodes", NODE)["metadata"]["annotations"].get(ROW.handshake)


def believed(scheduler):
    return [device.id for device in scheduler.devices.get(NODE, {}).get(WORD, ())]


def kinds(scheduler):
    return [event.kind for event in scheduler.events]


def test_an_answer_is_read_and_asked_for_anew(store, scheduler):
    offer(store)
    scheduler.refresh()
    assert believed(scheduler) == ["npu-0"]
    assert handshake(store) == "Requesting_2026-11-30 12:00:00"


def test_times_on_the_node_are_of_the_schedulers_zone(store, server, clock, stack):
    offer(store)
    made = Scheduler(server.url, vendors=(ROW,), now=clock, zone=EAST)
    stack.callback(made.stop)
    made.refresh()
    assert handshake(store) == "Requesting_2026-11-30 20:00:00"
    count(store, 0)
    clock.now += 60
    made.refresh()
    assert believed(made) == []


def test_changes_are_ignored_until_the_plugin_answers(store, scheduler, clock):
    offer(store)
    scheduler.refresh()
    annotate(store, register=json.dumps(cards(2)))
    clock.now += 15
    scheduler.refresh()
    assert believed(scheduler) == ["npu-0"]
    assert handshake(store) == "Requesting_2026-11-30 12:00:00"
    report(store, 2)
    scheduler.refresh()
    assert believed(scheduler) == ["npu-0", "npu-1"]
    assert handshake(store) == "Requesting_2026-11-30 12:00:15"


def test_a_plugin_that_is_gone_takes_its_devices_along_when_kubelet_counts_none(store, scheduler, clock):
    offer(store)
    scheduler.refresh()
    count(store, 0)
    clock.now += 59
    scheduler.refresh()
    assert believed(scheduler) == ["npu-0"]
    clock.now += 1
    scheduler.refresh()
    assert believed(scheduler) == []
    assert handshake(store) is None
    assert ROW.register in store.get("nodes", NODE)["metadata"]["annotations"]
    assert kinds(scheduler) == ["registered", "cleaned"]


def test_a_plugin_that_is_silent_is_believed_while_kubelet_counts_its_devices(store, scheduler, clock):
    offer(store)
    scheduler.refresh()
    clock.now += 3600
    scheduler.refresh()
    assert believed(scheduler) == ["npu-0"]
    assert handshake(store) == "Requesting_2026-11-30 12:00:00"


def test_after_a_clean_up_a_dead_plugins_devices_come_back_for_a_minute(store, scheduler, clock):
    offer(store, counted=0)
    scheduler.refresh()
    clock.now += 60
    scheduler.refresh()
    assert believed(scheduler) == []
    scheduler.refresh()
    assert believed(scheduler) == ["npu-0"]
    assert handshake(store) == "Requesting_2026-11-30 12:01:00"
    clock.now += 60
    scheduler.refresh()
    assert believed(scheduler) == []


def test_what_was_never_believed_is_left_alone(store, scheduler):
    offer(store, handshake="Requesting_2024-01-02 00:00:00", counted=0)
    scheduler.refresh()
    assert believed(scheduler) == []
    assert handshake(store) == "Requesting_2024-01-02 00:00:00"
    assert kinds(scheduler) == []


def test_a_restarted_scheduler_waits_for_the_plugins_next_answer(store, scheduler):
    offer(store, handshake="Requesting_2026-11-30 11:59:59")
    scheduler.refresh()
    assert believed(scheduler) == []
    report(store, 1)
    scheduler.refresh()
    assert believed(scheduler) == ["npu-0"]


def test_h4_a_node_that_cannot_be_had_is_healthy_and_not_read_anew(server, store, scheduler):
    offer(store, handshake="Unknown")
    server.faults.add(Fault("get", "nodes", code=404))
    scheduler.refresh()
    assert believed(scheduler) == []
    assert handshake(store) == "Unknown"
    scheduler.refresh()
    assert believed(scheduler) == ["npu-0"]


@pytest.mark.parametrize("text", [None, "[]", "nonsense"])
def test_a_registration_that_goes_takes_its_devices_along(store, scheduler, text):
    offer(store)
    scheduler.refresh()
    annotate(store, register=text, handshake="Reported_2026.11.30 12:00:31")
    scheduler.refresh()
    assert believed(scheduler) == []
    assert kinds(scheduler) == ["registered", "unregistered"]
    assert handshake(store) == "Reported_2026.11.30 12:00:31"


def test_a_card_that_falls_ill_is_passed_over_from_the_next_answer_on(store, scheduler):
    offer(store)
    store.create("pods", pod("p", [container("c", {ROW.count: 1, ROW.memory: 8192})]))
    scheduler.refresh()
    ill = [{key: value for key, value in one.items() if key != "health"} for one in cards()]
    annotate(store, register=json.dumps(ill), handshake="Reported_2026.11.30 12:00:31")
    outcome = scheduler.schedule_once("p")
    assert (outcome.kind, outcome.message) == ("unschedulable", f"{NODE}: 1/1 CardNotHealth")


def test_amd_beside_it_has_no_handshake(store, scheduler):
    offer(store)
    store.patch(
        "nodes",
        NODE,
        {
            "metadata": {
                "annotations": {AMD.register: json.dumps([{"id": "gpu-0", "type": "amd", "count": 1}])}
            }
        },
    )
    store.patch("nodes", NODE, {"status": {"capacity": {AMD.count: "1"}}}, subresource="status")
    scheduler.refresh()
    assert sorted(scheduler.devices[NODE]) == [WORD, "amd"]
    names = store.get("nodes", NODE)["metadata"]["annotations"]
    assert [name for name in names if "handshake" in name] == [ROW.handshake]
