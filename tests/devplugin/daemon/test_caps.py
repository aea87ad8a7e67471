"""Holding limits: when the loop looks, what it says, and that it stops. Decision 30; kernel.md 4.3 to 4.5."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from devplugin import kube
from devplugin.answers import Caps, FactRequest, PodCap
from devplugin.daemon import caps as module
from devplugin.daemon.allocate import Allocator
from devplugin.daemon.caps import MIRROR, Capper, kubelet_uid
from devplugin.dmem import pod_group
from devplugin.hami import Pod
from gpusim.cluster.apistore import Store
from gpusim.cluster.pods import Placed, container, place
from gpusim.cluster.pods import pod as pod_object
from gpusim.machine import Machine
from gpusim.testing.machines import node

from ..podgroups import make_group
from .storeapi import StoreApi
from .toyplugin import Inventory, Settings, Thing, Toy

REGION, OTHER = "drm/0000:75:00.0/vram", "drm/0000:05:00.0/vram"
GIB = 1 << 30
WANTED = "wanted"


class Wishes:
    """A vendor with one answer: a pod's annotation says region=bytes, …; ``?`` cannot be read."""

    def caps(self, inventory: Any, settings: Any, pods: Sequence[Pod]) -> Caps:
        found, warnings = [], []
        for pod in pods:
            text = pod.annotations.get(WANTED, "")
            if text == "?":
                warnings.append(f"pod {pod}: unreadable")
            elif text:
                pairs = (word.rsplit("=", 1) for word in text.split())
                found.append(PodCap(pod, {region: int(size) for region, size in pairs}))
        return Caps(tuple(found), tuple(warnings))


class Stage:
    """A capper on a simulated node; `host` may stand between."""

    def __init__(self, api: StoreApi) -> None:
        self.machine = Machine(node())
        self.api = api
        self.threads: set[str] = set()
        self.reads = 0
        self.refusal: Callable[[bytes], None] = lambda data: None
        self.worker = ThreadPoolExecutor(1, thread_name_prefix="host")
        self.inventory: object | None = object()
        self.capper: Capper[Any, Any] = Capper(
            api,
            Wishes(),  # type: ignore[arg-type]
            None,
            host=self,  # type: ignore[arg-type]
            worker=self.worker,
            node="n1",
            current=lambda: self.inventory,
        )

    def read(self, path: str) -> bytes:
        self.threads.add(threading.current_thread().name)
        self.reads += 1
        return self.machine.read(path)

    def write(self, path: str, data: bytes) -> int:
        self.threads.add(threading.current_thread().name)
        self.refusal(data)
        return self.machine.write(path, data)

    def stat(self, path: str, *, follow: bool = True) -> Any:
        return self.machine.stat(path, follow=follow)

    def play(self, scene: Coroutine[Any, Any, None]) -> None:
        async def go() -> None:
            task = asyncio.create_task(self.capper.run())
            try:
                async with asyncio.timeout(20):
                    await scene
                assert not task.done()
            finally:
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task

        asyncio.run(go())

    def limit(self, pod: Pod, region: str = REGION) -> str | None:
        try:
            text = self.machine.read(f"{group_of(pod)}/dmem.max").decode()
        except OSError:
            return None
        return dict(line.split() for line in text.splitlines()).get(region)

    def start(self, pod: Pod) -> None:
        make_group(self.machine, group_of(pod))

    def set(self, pod: Pod, text: str) -> None:
        self.machine.write(f"{group_of(pod)}/dmem.max", text.encode())

    def occupy(self, pod: Pod, size: int) -> tuple[Any, Any]:
        process = self.machine.process(cgroup=group_of(pod).removeprefix("/sys/fs/cgroup"))
        self.machine.open("/dev/dri/renderD128", process)
        return process, self.machine.allocate_vram(process, "0000:75:00.0", size)

    def events(self) -> list[Mapping[str, Any]]:
        return self.api.store.list("events")


def group_of(pod: Pod) -> str:
    return pod_group(pod.uid, pod.qos)


def make(name: str = "p", text: str = f"{REGION}={GIB}", **more: Any) -> Pod:
    uid = f"0000-{name}"
    return Pod("default", name, uid, "n1", "Running", {WANTED: text, **more}, qos="Burstable")


async def until(what: Callable[[], Any]) -> None:
    while not what():
        await asyncio.sleep(0.005)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST", 0.01)
    monkeypatch.setattr(module, "ABSENT", 0.02)
    monkeypatch.setattr(module, "REFUSED", 0.04)


@pytest.fixture
def stage(api: StoreApi, quick: None, caplog: pytest.LogCaptureFixture) -> Iterator[Stage]:
    caplog.set_level(logging.INFO, module.__name__)
    made = Stage(api)
    yield made
    made.worker.shutdown()


def said(caplog: pytest.LogCaptureFixture, text: str) -> int:
    return sum(text in record.getMessage() for record in caplog.records)


def test_a_cgroup_that_appears_later_is_limited_without_a_word_before(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    pod = make(text=f"{REGION}={GIB} {OTHER}={2 * GIB}")

    async def scene() -> None:
        stage.capper.granted(pod)
        await asyncio.sleep(0.1)
        assert caplog.records == []
        stage.start(pod)
        await until(lambda: stage.limit(pod) == str(GIB) and stage.limit(pod, OTHER) == str(2 * GIB))
        await until(lambda: caplog.records)
        await asyncio.sleep(0.1)

    stage.play(scene())
    assert [record.getMessage() for record in caplog.records] == [
        f"pod default/p: limited to {REGION} {GIB}, {OTHER} {2 * GIB}"
    ]
    assert len(stage.threads) == 1
    assert stage.threads.pop().startswith("host")
    assert stage.events() == []


def test_the_real_pauses_find_a_cgroup_within_a_second_however_late_it_comes() -> None:
    assert module.FIRST <= module.ABSENT < 1
    assert module.PERIOD <= 30


@pytest.mark.parametrize("late", [0.0, 3.0])
def test_by_the_clock_a_cgroup_is_limited_within_a_second(api: StoreApi, late: float) -> None:
    stage, pod = Stage(api), make()

    async def scene() -> None:
        stage.capper.granted(pod)
        await asyncio.sleep(late)
        stage.start(pod)
        async with asyncio.timeout(1.0):
            await until(lambda: stage.limit(pod) == str(GIB))

    stage.play(scene())
    stage.worker.shutdown()


def test_a_second_container_raises_the_limit_at_once(stage: Stage) -> None:
    pod = make()

    async def scene() -> None:
        stage.start(pod)
        stage.capper.granted(pod)
        await until(lambda: stage.limit(pod) == str(GIB))
        stage.capper.granted(make(text=f"{REGION}={3 * GIB}"))
        await until(lambda: stage.limit(pod) == str(3 * GIB))

    stage.play(scene())


def test_limits_that_hold_cost_one_look_a_period(stage: Stage) -> None:
    pod = make()

    async def scene() -> None:
        stage.start(pod)
        stage.capper.listed([pod])
        await until(lambda: stage.limit(pod) == str(GIB))
        await asyncio.sleep(0.05)
        before = stage.reads
        await asyncio.sleep(0.3)
        assert stage.reads == before

    stage.play(scene())


@pytest.mark.parametrize(
    ("value", "words"), [("5", f"{REGION} was set to 5, put back"), ("max", "taken away, put back")]
)
def test_a_limit_that_somebody_changed_is_put_back_at_the_next_look(
    stage: Stage, caplog: pytest.LogCaptureFixture, value: str, words: str
) -> None:
    pod = make()

    async def scene() -> None:
        stage.start(pod)
        stage.capper.listed([pod])
        await until(lambda: said(caplog, "limited to"))
        stage.set(pod, f"{REGION} {value}\n")
        stage.capper.listed([pod])
        await until(lambda: stage.limit(pod) == str(GIB))
        await until(lambda: said(caplog, words))

    stage.play(scene())


def test_a_limit_is_put_back_by_the_period_alone(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PERIOD", 0.1)
    pod = make()

    async def scene() -> None:
        stage.start(pod)
        stage.capper.listed([pod])
        await until(lambda: stage.limit(pod) == str(GIB))
        stage.set(pod, f"{REGION} max\n")
        await until(lambda: stage.limit(pod) == str(GIB))

    stage.play(scene())


def test_a_limit_below_use_is_told_once_retried_and_holds_when_memory_is_freed(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    pod = make()

    async def scene() -> None:
        stage.start(pod)
        _, held = stage.occupy(pod, 2 * GIB)
        stage.capper.granted(pod)
        await until(stage.events)
        await asyncio.sleep(0.3)  # many tries
        assert stage.limit(pod) == "max"
        assert said(caplog, "the kernel keeps max instead of") == 1
        stage.machine.free(held)
        await until(lambda: stage.limit(pod) == str(GIB))
        await until(lambda: said(caplog, "limited to"))

    stage.play(scene())
    (event,) = stage.events()
    assert event["metadata"]["name"] == "n1.memorycapnotinforce.0000-p"
    assert (event["type"], event["reason"]) == ("Warning", "MemoryCapNotInForce")
    assert event["involvedObject"]["name"] == "p"
    assert f"{REGION}: the kernel keeps max instead of {GIB}" in event["message"]


def test_after_a_restart_the_same_event_is_not_said_twice(stage: Stage, store: Store, api: StoreApi) -> None:
    pod = make()

    async def scene(of: Stage) -> None:
        of.capper.listed([pod])
        await until(lambda: "create event" in of.api.calls[before:])
        await asyncio.sleep(0.1)

    stage.start(pod)
    stage.occupy(pod, 2 * GIB)
    before = 0
    stage.play(scene(stage))
    before = len(api.calls)
    again = Stage(api)
    again.machine = stage.machine
    again.play(scene(again))
    again.worker.shutdown()
    assert len(stage.events()) == 1


def test_an_event_the_api_server_did_not_take_is_said_later(stage: Stage, api: StoreApi) -> None:
    pod, fails = make(), [3]

    def away(number: int, when: str, call: str) -> None:
        if when == "before" and fails[0]:
            fails[0] -= 1
            raise kube.Unavailable("no answer")

    api.cut = away

    async def scene() -> None:
        stage.start(pod)
        stage.occupy(pod, 2 * GIB)
        stage.capper.granted(pod)
        await until(stage.events)
        await asyncio.sleep(0.1)

    stage.play(scene())
    assert len(stage.events()) == 1
    assert len(api.calls) == 4


def test_a_slow_api_server_delays_no_other_limit(stage: Stage, api: StoreApi) -> None:
    over, other = make("over"), make("other")

    async def scene() -> None:
        hanging = asyncio.Event()

        async def event(about: Any, saying: Any) -> None:
            hanging.set()
            await asyncio.sleep(60)

        api.event = event  # type: ignore[method-assign]
        stage.start(over)
        stage.occupy(over, 2 * GIB)
        stage.capper.granted(over)
        await hanging.wait()
        stage.start(other)
        stage.capper.granted(other)
        await until(lambda: stage.limit(other) == str(GIB))

    stage.play(scene())


def test_another_error_is_told_once_for_each_region_with_one_event(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    pod, tries = make(text=f"{REGION}={GIB} {OTHER}={GIB}"), [0]

    def refuse(_: bytes) -> None:
        tries[0] += 1
        if tries[0] < 12:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    stage.refusal = refuse

    async def scene() -> None:
        stage.start(pod)
        stage.capper.granted(pod)
        await until(lambda: stage.limit(pod) == stage.limit(pod, OTHER) == str(GIB))

    stage.play(scene())
    assert said(caplog, "cannot be limited") == 2
    assert said(caplog, "EROFS") == 2
    assert stage.api.calls == ["create event"]


def test_a_cgroup_without_the_file_is_told_once_after_patience(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    pod = make()

    async def scene() -> None:
        make_group(stage.machine, group_of(pod), dmem=False)
        stage.capper.granted(pod)
        await until(lambda: said(caplog, "has no dmem.max"))
        await asyncio.sleep(0.3)
        assert said(caplog, "has no dmem.max") == 1
        parent = group_of(pod).rpartition("/")[0]
        stage.machine.write(f"{parent}/cgroup.subtree_control", b"+dmem")
        await until(lambda: stage.limit(pod) == str(GIB))

    stage.play(scene())


def test_a_pod_that_is_gone_is_left_alone(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    pod = make()

    async def scene() -> None:
        stage.start(pod)
        stage.occupy(pod, 2 * GIB)
        stage.capper.listed([pod])
        await until(lambda: said(caplog, "the kernel keeps"))
        stage.capper.listed([])
        await asyncio.sleep(0.05)
        before = stage.reads
        await asyncio.sleep(0.2)
        assert stage.reads == before

    stage.play(scene())


def test_one_pods_trouble_is_not_anothers(stage: Stage) -> None:
    pods = [make(str(number)) for number in range(5)]
    over = make("over")

    async def scene() -> None:
        stage.start(over)
        stage.occupy(over, 2 * GIB)
        stage.capper.listed([over, *pods])
        for pod in reversed(pods):
            stage.start(pod)
            await until(lambda pod=pod: stage.limit(pod) == str(GIB))

    stage.play(scene())


def test_what_cannot_be_read_is_said_once_and_again_when_it_comes_back(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = make("bad", "?"), make("good")
    evil = replace(make("evil"), uid="../../etc")

    async def scene() -> None:
        stage.start(good)
        for _ in range(3):
            stage.capper.listed([bad, evil, good])
            await asyncio.sleep(0.05)
        assert said(caplog, "pod default/bad: unreadable") == 1
        assert said(caplog, "pod default/evil: '../../etc' is no pod uid") == 1
        await until(lambda: stage.limit(good) == str(GIB))
        stage.capper.listed([good])
        await asyncio.sleep(0.05)
        stage.capper.listed([bad])
        await until(lambda: said(caplog, "unreadable") == 2)

    stage.play(scene())


class Heard:
    """What a watcher of pods was told, in order."""

    def __init__(self) -> None:
        self.told: list[tuple[str, dict[str, str]]] = []

    def listed(self, pods: Sequence[Pod]) -> None:
        self.told.append(("listed", {pod.name: pod.annotations[LEFT] for pod in pods}))

    def granted(self, pod: Pod) -> None:
        self.told.append(("granted", {pod.name: pod.annotations[LEFT]}))


LEFT = "hami.io/toy-devices-to-allocate"


async def no_facts(requests: Sequence[FactRequest]) -> Mapping[FactRequest, Any]:
    return dict.fromkeys(requests, True)


def allocator_of(api: kube.Api, heard: Heard) -> Allocator[Any, Any]:
    things = Inventory((Thing("a", True, ()),))
    return Allocator(
        api, Toy(), settings=Settings(), node="n1", current=lambda: things, facts=no_facts, watcher=heard
    )


def schedule(store: Store, name: str, slots: int) -> None:
    store.create("pods", pod_object(name, [container(f"c{i}") for i in range(slots)]))
    place(store, name, "n1", [[Placed("a", "Toy", 1, 1)]] * slots, word="toy")


def test_every_grant_and_sweep_tells_what_is_left_of_the_pods(store: Store, api: StoreApi) -> None:
    schedule(store, "p", 2)
    heard = Heard()
    allocator = allocator_of(api, heard)

    async def go() -> None:
        await allocator.sweep()
        await allocator.allocate(("a#0",))
        await allocator.allocate(("a#1",))
        await allocator.sweep()

    asyncio.run(go())
    slot = "a,Toy,1,1:;"
    assert heard.told == [
        ("listed", {"p": slot * 2}),
        ("granted", {"p": f";{slot}"}),
        ("granted", {"p": ";;"}),
        ("listed", {"p": ";;"}),
    ]


def test_a_grant_whose_answer_was_lost_is_told_too(store: Store, api: StoreApi) -> None:
    schedule(store, "p", 1)
    heard = Heard()

    def lose(number: int, when: str, call: str) -> None:
        if (when, call) == ("after", "patch pod"):
            raise kube.Unavailable("lost")

    api.cut = lose
    asyncio.run(allocator_of(api, heard).allocate(("a#0",)))
    assert heard.told == [("granted", {"p": ";"})]


def test_a_list_read_before_a_grant_does_not_undo_it(store: Store, api: StoreApi) -> None:
    schedule(store, "p", 1)
    heard = Heard()
    allocator = allocator_of(api, heard)
    read = api.pods_on

    async def slow(node: str) -> tuple[Pod, ...]:
        pods = await read(node)
        api.pods_on = read  # type: ignore[method-assign]
        await allocator.allocate(("a#0",))
        return pods

    api.pods_on = slow  # type: ignore[method-assign]
    asyncio.run(allocator.sweep())
    assert heard.told == [("granted", {"p": ";"})]


def test_before_the_first_discovery_nothing_is_done(stage: Stage) -> None:
    stage.inventory = None
    pod = make()

    async def scene() -> None:
        stage.start(pod)
        stage.capper.listed([pod])
        await asyncio.sleep(0.05)
        assert stage.reads == 0
        stage.inventory = object()
        stage.capper.hurry()
        await until(lambda: stage.limit(pod) == str(GIB))

    stage.play(scene())


def test_an_answer_of_the_vendor_that_fails_ends_nothing(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    pod = make()

    async def scene() -> None:
        stage.start(pod)
        stage.capper.listed([make(text="nonsense")])
        await until(lambda: said(caplog, "limits could not be compared"))
        stage.capper.listed([pod])
        await until(lambda: stage.limit(pod) == str(GIB))

    stage.play(scene())


@pytest.mark.parametrize(
    ("mirrored", "uid"),
    [("ab" * 16, "ab" * 16), ("", "0000-p"), ("../x", "0000-p"), ("ab" * 15 + "-b", "0000-p")],
)
def test_a_static_pod_is_known_by_kubelets_own_uid(mirrored: str, uid: str) -> None:
    assert kubelet_uid(make(**({MIRROR: mirrored} if mirrored else {}))) == uid
