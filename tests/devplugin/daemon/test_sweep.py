"""What the daemon makes of a vendor's sweep, and of deeds that an Allocate wants done before its reply."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from devplugin import kube
from devplugin.answers import Allocation, Effect, FactRequest, NodeEvent, Refused, Turn
from devplugin.daemon.allocate import Allocator, Budget
from devplugin.daemon.hands import Hands
from devplugin.daemon.sweep import Sweeper
from devplugin.deeds import Deed, MakeDir, MoveAside, RemoveDir, WriteFile
from devplugin.hami import BIND_PHASE, LOCK, Claim, Pod
from devplugin.linux import LinuxHost
from gpusim.cluster.apistore import Store
from gpusim.cluster.pods import Placed, container, place, pod

from .storeapi import StoreApi
from .toyplugin import Inventory, Settings, Thing, Toy

THINGS = Inventory((Thing("a", True, ()),))


class Sweeping(Toy):
    """Hands out what it is told to, and remembers how it was asked."""

    def __init__(self, *rounds: tuple[Effect, ...], period: float | None = 0.01) -> None:
        self.rounds, self.period = list(rounds), period
        self.turns: list[Turn] = []
        self.threads: set[str] = set()

    def sweeps(self, settings: Settings) -> float | None:
        return self.period

    def sweep(
        self, host: Any, inventory: Inventory, settings: Settings, turn: Turn
    ) -> tuple[tuple[Effect, ...], Any]:
        self.turns.append(turn)
        self.threads.add(threading.current_thread().name)
        effects = self.rounds.pop(0) if self.rounds else ()
        return effects, (turn.memory or 0) + 1


def sweeping(
    vendor: Sweeping,
    api: StoreApi,
    root: Path,
    work: Callable[[Sweeper[Any, Any]], Any],
    current: Callable[[], Inventory | None] = lambda: THINGS,
) -> None:
    async def go() -> None:
        with ThreadPoolExecutor(1, "owner") as worker:
            host = LinuxHost(str(root))
            sweeper: Sweeper[Any, Any] = Sweeper(
                vendor,
                Settings(),
                api=api,
                node="n1",
                host=host,
                worker=worker,
                current=current,
                hands=Hands(api, "n1", None, host, worker),
            )
            await work(sweeper)

    asyncio.run(go())


def rounds(count: int) -> Callable[[Sweeper[Any, Any]], Any]:
    async def work(sweeper: Sweeper[Any, Any]) -> None:
        for _ in range(count):
            await sweeper.once()

    return work


def for_a_while(seconds: float) -> Callable[[Sweeper[Any, Any]], Any]:
    async def work(sweeper: Sweeper[Any, Any]) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(sweeper.run(), seconds)

    return work


# ------------------------------------------------------------------ rounds


def test_a_round_gets_the_pods_just_read_and_the_memory_of_the_one_before(
    store: Store, api: StoreApi, tmp_path: Path
) -> None:
    store.create("pods", pod("p", [container("c")]))
    place(store, "p", "n1", [[Placed("a", "Toy", 1, 1)]], word="toy")
    vendor = Sweeping()
    sweeping(vendor, api, tmp_path, rounds(3))
    assert [[one.name for one in turn.pods] for turn in vendor.turns] == [["p"]] * 3
    assert [turn.memory for turn in vendor.turns] == [None, 1, 2]
    times = [turn.now for turn in vendor.turns]
    assert times == sorted(times)
    assert {name.partition("_")[0] for name in vendor.threads} == {"owner"}


def test_what_comes_back_is_done_on_the_node(store: Store, api: StoreApi, tmp_path: Path) -> None:
    (tmp_path / "old" / "below").mkdir(parents=True)
    vendor = Sweeping((RemoveDir("/old"), MakeDir("/new"), WriteFile("/new/file", b"1")))
    sweeping(vendor, api, tmp_path, rounds(1))
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
    assert (tmp_path / "new" / "file").read_bytes() == b"1"


def test_one_effect_that_fails_keeps_no_other_from_being_done(
    store: Store, api: StoreApi, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    effects: tuple[Effect, ...] = (
        WriteFile("/none/file", b"1"),
        NodeEvent("Warning", "Told", "m"),
        MakeDir("/new"),
    )
    caplog.set_level(logging.INFO)
    sweeping(Sweeping(effects, effects), api, tmp_path, rounds(2))
    assert (tmp_path / "new").is_dir()
    assert [event["reason"] for event in store.list("events")] == ["Told", "Told"]
    said = [record for record in caplog.records if "clearing away" in record.getMessage()]
    assert [(one.levelname, one.getMessage()) for one in said] == [
        ("WARNING", "clearing away: /none/file: ENOENT")
    ]


def test_a_failure_that_went_and_came_again_is_said_again(
    store: Store, api: StoreApi, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bad: tuple[Effect, ...] = (WriteFile("/none/file", b"1"),)
    caplog.set_level(logging.INFO)
    sweeping(Sweeping(bad, (), bad), api, tmp_path, rounds(3))
    assert sum(record.levelname == "WARNING" for record in caplog.records) == 2


def test_before_the_first_discovery_nothing_is_asked(store: Store, api: StoreApi, tmp_path: Path) -> None:
    vendor = Sweeping()
    sweeping(vendor, api, tmp_path, rounds(1), current=lambda: None)
    assert (vendor.turns, api.calls) == ([], [])


def test_a_vendor_without_such_work_costs_nothing(store: Store, api: StoreApi, tmp_path: Path) -> None:
    async def work(sweeper: Sweeper[Any, Any]) -> None:
        await asyncio.wait_for(sweeper.run(), 1)  # ends at once

    sweeping(Sweeping(period=None), api, tmp_path, work)
    assert api.calls == []


def test_pods_that_cannot_be_read_decide_nothing_and_are_said_once(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def cut(number: int, when: str, call: str) -> None:
        if number < 3 and when == "before":
            raise kube.Unavailable("api server away")

    api, vendor = StoreApi(store, cut), Sweeping()
    sweeping(vendor, api, tmp_path, for_a_while(0.5))
    assert vendor.turns
    assert vendor.turns[0].memory is None
    assert sum("api server away" in record.getMessage() for record in caplog.records) == 1


def test_a_sweep_that_breaks_is_logged_and_the_next_round_comes(
    store: Store, api: StoreApi, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Sweeping):
        def sweep(self, *args: Any, **more: Any) -> Any:
            if len(self.turns) == 1:
                self.turns.append(args[-1])
                raise RuntimeError("boom")
            return super().sweep(*args, **more)

    vendor = Broken()
    sweeping(vendor, api, tmp_path, for_a_while(0.5))
    assert len(vendor.turns) > 2
    assert vendor.turns[2].memory == 1  # what the round before the broken one handed on
    assert any("clearing away failed" in record.getMessage() for record in caplog.records)


# ------------------------------------------------------------------ deeds before the reply


class Making(Toy):
    """Wants deeds done before it answers."""

    def __init__(self, *deeds: Deed) -> None:
        self.deeds = deeds

    def needs(self, inventory: Inventory, settings: Settings, claim: Claim) -> tuple[FactRequest, ...]:
        return ()

    def allocate(
        self,
        inventory: Inventory,
        settings: Settings,
        claim: Claim,
        pods: Sequence[Pod],
        facts: Mapping[Any, Any],
    ) -> Allocation:
        given = super().allocate(inventory, settings, claim, pods, {FactRequest("file", "/toy-hook"): True})
        return Allocation(given.edits, before=self.deeds)


def allocated(api: StoreApi, root: Path, vendor: Making) -> None:
    async def go() -> None:
        with ThreadPoolExecutor(1, "owner") as worker:
            host = LinuxHost(str(root))
            allocator: Allocator[Any, Any] = Allocator(
                api,
                vendor,
                settings=Settings(),
                node="n1",
                current=lambda: THINGS,
                facts=_none,
                hands=Hands(api, "n1", None, host, worker),
                budget=Budget(answer=3.0, gather=1.0, release=1.0, pause=0.005),
            )
            await allocator.allocate(("a#0",))

    asyncio.run(go())


async def _none(requests: Sequence[FactRequest]) -> Mapping[FactRequest, Any]:
    return {}


def waiting(store: Store) -> None:
    store.create("pods", pod("p", [container("c")]))
    place(store, "p", "n1", [[Placed("a", "Toy", 1, 1)]], word="toy")


def test_deeds_are_done_before_the_pod_is_patched(store: Store, tmp_path: Path) -> None:
    waiting(store)
    seen: list[tuple[str, bool]] = []
    api = StoreApi(
        store,
        lambda _, when, call: seen.append((call, (tmp_path / "d").is_dir())) if when == "before" else None,
    )
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "ledger").write_text("old")
    allocated(api, tmp_path, Making(MoveAside("/d"), MakeDir("/d", 0o777)))
    assert ("patch pod", True) in seen
    assert list((tmp_path / "d").iterdir()) == []
    assert (tmp_path / "d").stat().st_mode & 0o777 == 0o777
    assert (tmp_path / "d.stale-1" / "ledger").read_text() == "old"


def test_a_deed_that_fails_refuses_releases_the_lock_and_tells_the_pod(
    store: Store, api: StoreApi, tmp_path: Path
) -> None:
    waiting(store)
    with pytest.raises(Refused, match=r"node n1: /none/file: ENOENT") as refused:
        allocated(api, tmp_path, Making(WriteFile("/none/file", b"1")))
    assert refused.value.why == "node"
    said = store.get("pods", "p")["metadata"]["annotations"]
    assert said[BIND_PHASE] == "failed"
    assert "a,Toy,1,1" in said["hami.io/toy-devices-to-allocate"]  # nothing was granted
    assert LOCK not in (store.get("nodes", "n1")["metadata"].get("annotations") or {})
    assert [event["message"] for event in store.list("events")] == ["node n1: /none/file: ENOENT"]


def test_deeds_are_done_again_when_the_pod_changed_meanwhile(store: Store, tmp_path: Path) -> None:
    """The decision is made anew, so what it wants is as well; every deed bears that."""
    waiting(store)
    patches = 0

    def cut(number: int, when: str, call: str) -> None:
        nonlocal patches
        if (when, call) == ("before", "patch pod"):
            patches += 1
            if patches == 1:
                store.patch("pods", "p", {"metadata": {"annotations": {"other": "writer"}}})

    allocated(StoreApi(store, cut), tmp_path, Making(MoveAside("/d"), MakeDir("/d", 0o777)))
    assert patches == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d", "d.stale-1"]
    assert store.get("pods", "p")["metadata"]["annotations"][BIND_PHASE] == "success"


def test_a_node_that_is_not_there_is_no_answer_and_says_what_was_wanted(tmp_path: Path) -> None:
    """ascend_ppu_hami.md F.1 P5."""
    with pytest.raises(kube.Unavailable, match="get pending pod"):
        allocated(StoreApi(Store()), tmp_path, Making())


def test_a_lock_goes_though_its_pods_phase_cannot_be_written(store: Store) -> None:
    """G 21: without the right to patch pods the node would stay locked, for ever (D.7)."""
    waiting(store)
    store.patch("pods", "p", {"status": {"phase": "Failed"}}, subresource="status")

    def cut(number: int, when: str, call: str) -> None:
        if (when, call) == ("before", "patch pod"):
            raise kube.KubeError("pods is forbidden")

    allocator: Allocator[Any, Any] = Allocator(
        StoreApi(store, cut),
        Toy(),
        settings=Settings(),
        node="n1",
        current=lambda: THINGS,
        facts=_none,
        budget=Budget(answer=3.0, gather=1.0, release=1.0, pause=0.005),
    )
    with pytest.raises(kube.KubeError, match="forbidden"):  # and the next sweep tries again
        asyncio.run(allocator.sweep())
    assert LOCK not in (store.get("nodes", "n1")["metadata"].get("annotations") or {})
