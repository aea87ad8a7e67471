"""The plugin's decisions: discovery, preferred allocation, Allocate (performance.md, middle rows)."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import combinations
from pathlib import Path

import pytest

from devplugin.amd.devices import devices as devices_of_node
from devplugin.amd.preference import pair_weight
from devplugin.amd.settings import Settings
from devplugin.amd.topology import parse_properties
from devplugin.amd.vendor import Amd
from devplugin.answers import PreferenceQuery
from devplugin.hami import Node, Pod
from devplugin.host import Host
from devplugin.linux import LinuxHost
from devplugin.plan import Granted, plan
from gpusim import Machine, load
from gpusim.export.render import render
from tests.bench.guards import Guard, best

VENDOR = Amd()
PARTITION = Settings(node_name="node", mode="partition")
CU = Settings(node_name="node", mode="cu")


class Recorder:
    """A host that notes every question it is asked, so that the questions alone can be asked again."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.asked: list[Callable[[], object]] = []
        self.properties: list[bytes] = []

    def __getattr__(self, name: str) -> Callable[..., object]:
        verb = getattr(self.host, name)

        def ask(*args: object, **kwargs: object) -> object:
            self.asked.append(lambda: _quietly(verb, args, kwargs))
            answer = verb(*args, **kwargs)
            if name == "read" and str(args[0]).endswith("/properties"):
                self.properties.append(answer)
            return answer

        return ask


def _quietly(verb: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]) -> None:
    with contextlib.suppress(OSError):
        verb(*args, **kwargs)


@pytest.fixture(params=["memory", "rendered"])
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Host]:
    machine = Machine(load("mi355x/cpx-6.14"))
    if request.param == "memory":
        yield machine
    else:
        render(machine, tmp_path / "node")
        yield LinuxHost(str(tmp_path / "node"))


def test_full_discovery_of_64_partitions(guard: Guard, host: Host) -> None:
    recorder = Recorder(host)
    inventory = VENDOR.discover(recorder, PARTITION, None)  # type: ignore[arg-type]
    assert sum(len(g.partitions) for g in inventory.gpus) == 64

    def floor() -> None:
        for ask_again in recorder.asked:
            ask_again()
        for text in recorder.properties:
            parse_properties(text)

    guard(
        lambda: VENDOR.discover(host, PARTITION, None),
        floor=best(floor),
        limit=2,
        floor_name="asking the host the same, and parsing",
    )


def offered(settings: Settings, fixture: str) -> tuple[object, list[str]]:
    inventory = VENDOR.discover(Machine(load(fixture)), settings, None)
    return inventory, [d.id for offer in VENDOR.offers(inventory, settings).values() for d in offer.devices]


def ask(inventory: object, settings: Settings, ids: list[str], size: int) -> Callable[[], tuple[str, ...]]:
    query = PreferenceQuery(tuple(ids), (), size)
    return lambda: VENDOR.prefer(inventory, settings, query)  # type: ignore[arg-type]


def worst_of(inventory: object, settings: Settings, ids: list[str], sizes: range) -> tuple[float, int]:
    times = {}
    for size in sizes:
        answer = ask(inventory, settings, ids, size)
        assert len(set(answer())) == size
        times[size] = best(answer, rounds=3)
    worst = max(times, key=times.__getitem__)
    return times[worst], worst


@pytest.mark.parametrize("policy", ["besteffort", "spread"])
def test_preferred_allocation_at_every_size_of_64_partitions(guard: Guard, policy: str) -> None:
    settings = replace(PARTITION, allocator_policy=policy)
    inventory, ids = offered(settings, "mi355x/cpx-6.14")
    random.Random(1).shuffle(ids)
    _, worst = worst_of(inventory, settings, ids, range(1, 65))
    floor = best(ask(inventory, settings, ids, 1), rounds=9, number=20)
    guard(ask(inventory, settings, ids, worst), floor=floor, limit=20, floor_name="size 1", number=5)


def test_preferred_allocation_with_only_some_available(guard: Guard) -> None:
    inventory, ids = offered(PARTITION, "mi355x/cpx-6.14")
    some = random.Random(2).sample(ids, 45)
    _, worst = worst_of(inventory, PARTITION, some, range(1, 46))
    floor = best(ask(inventory, PARTITION, ids, 1), rounds=9, number=20)
    guard(ask(inventory, PARTITION, some, worst), floor=floor, limit=20, floor_name="size 1 of 64", number=5)


def test_preferred_allocation_of_80_slots(guard: Guard) -> None:
    inventory, ids = offered(CU, "mi355x/spx-6.14")
    assert len(ids) == 80
    _, worst = worst_of(inventory, CU, ids, range(1, 81))
    floor = best(ask(inventory, CU, ids, 1), rounds=9, number=20)
    guard(ask(inventory, CU, ids, worst), floor=floor, limit=20, floor_name="size 1", number=5)


@pytest.mark.parametrize("policy", ["besteffort", "spread"])
def test_preferred_allocation_against_brute_force_of_10(guard: Guard, policy: str) -> None:
    settings = replace(PARTITION, allocator_policy=policy)
    inventory, ids = offered(settings, "mi355x/mixed-spx-cpx")
    some = random.Random(3).sample(ids, 10)
    devices = {id_: device for device in devices_of_node(inventory, settings) for id_ in device.kubelet_ids}
    weigh = partial(pair_weight, inventory=inventory)
    extreme = max if policy == "spread" else min

    def total(chosen: Iterable[str]) -> int:
        return sum(weigh(devices[a], devices[b]) for a, b in combinations(chosen, 2))

    def brute() -> tuple[str, ...]:
        return extreme(combinations(some, 5), key=total)

    for size in range(1, 11):
        assert total(ask(inventory, settings, some, size)()) == extreme(map(total, combinations(some, size)))
    floor = best(brute, rounds=3)
    guard(
        ask(inventory, settings, some, 5), floor=floor, limit=1, floor_name="brute force, 5 of 10", number=5
    )


def test_preferred_allocation_of_630_slots(guard: Guard) -> None:
    settings = replace(CU, split_count=80)
    inventory, ids = offered(settings, "mi355x/spx-6.14")
    ids = ids[:630]
    seconds, worst = worst_of(inventory, settings, ids, range(1, 631, 37))
    assert seconds < 1, "even a slow machine needs no second"
    floor = best(lambda: sorted(set(ids)), rounds=9, number=5)
    guard(ask(inventory, settings, ids, worst), floor=floor, limit=60, floor_name="sorting 630 ids", number=3)


def crowd(inventory: object, count: int) -> tuple[Node, list[Pod]]:
    """`count` running pods that hold one CU slice each somewhere, and one that waits."""
    gpus = inventory.gpus  # type: ignore[attr-defined]
    pods = []
    for number in range(count):
        gpu = gpus[number % len(gpus)]
        core = number // len(gpus)
        records = {
            "hami.io/amd-devices-allocated": f"{gpu.id},{gpu.market_name},512,1:;",
            "hami.io/amd-devices-to-allocate": ";",
            "hami.io/amd-cu-allocated": json.dumps({gpu.id: str(core)}),
        }
        pods.append(Pod("default", f"p{number}", f"u{number}", "node", "Running", records, containers=("c",)))
    gpu = gpus[0]
    text = f"{gpu.id},{gpu.market_name},4096,16:;"
    waiting = {
        "hami.io/amd-devices-allocated": text,
        "hami.io/amd-devices-to-allocate": text,
        "hami.io/bind-phase": "allocating",
        "hami.io/bind-time": "1764500000",
        "hami.io/vgpu-node": "node",
    }
    pods.append(
        Pod("default", "new", "u-new", "node", "Pending", waiting, containers=("c",), resource_version="1")
    )
    lock = {"hami.io/mutex.lock": "2026-11-30T12:00:00Z,default,new"}
    return Node("node", "u-node", lock, resource_version="1"), pods


def decide(inventory: object, count: int) -> Callable[[], object]:
    node, pods = crowd(inventory, count)
    settings = replace(CU, hook_path="/usr/local")

    def run() -> object:
        facts: dict[object, object] = {}
        while True:
            outcome = plan(
                VENDOR,
                inventory,
                settings,
                node=node,
                pods=pods,
                ids=("0000:75:00.0#3",),
                facts=facts,  # type: ignore[arg-type]
            )
            if not hasattr(outcome, "requests"):
                return outcome
            facts.update(dict.fromkeys(outcome.requests, True))

    return run


def test_allocate_decides_linearly_in_pods(guard: Guard) -> None:
    inventory = VENDOR.discover(Machine(load("mi355x/spx-6.14")), CU, None)
    few, many = decide(inventory, 25), decide(inventory, 250)
    assert isinstance(many(), Granted)
    guard(
        many, floor=best(few, rounds=15, number=5) * 10, limit=1.5, floor_name="ten times 25 pods", number=5
    )
