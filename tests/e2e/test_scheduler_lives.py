"""Whole pod lives: created, scheduled, allocated by a real daemon process, running, deleted, all free again.

Nobody places by hand here: the scheduler of ascend_ppu_hami.md D.3 to D.8 and D.10 reads what the daemon
registered, kubelet takes up what is bound. What containers got is recounted from their environment and device
nodes alone, with nothing of the plugin's or the scheduler's code.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import pytest

from devplugin.hami import LOCK
from gpusim.cluster.apifaults import Fault
from gpusim.cluster.kubelet import Kubelet
from gpusim.cluster.kubelet_edits import Edits
from gpusim.cluster.pods import container, pod
from gpusim.cluster.scheduler import Scheduler
from gpusim.cluster.scheduler_filter import Rules
from gpusim.cluster.scheduler_vendors import AMD, AMD_MIXED
from gpusim.cluster.scheduler_webhook import admit

from ..devplugin.daemon.rig import NODE, Plugin, until
from .test_kubelet_scenarios import CUS, GPU, PHASE, REGISTER, Node

pytestmark = pytest.mark.daemon

CPX, SPX = "amd.com/cpx_nps1", "amd.com/spx_nps1"
MEMORY, CORES = 294896, 256
"""MiB and compute units of an MI355X."""


class Cluster(Node):
    """A node with everything: its kubelet takes up bound pods, and a scheduler of its own binds them."""

    def __init__(
        self,
        fixture: str = "mi355x/spx-6.14",
        mode: str = "cu",
        flags: tuple[str, ...] = (),
        resources: Mapping[str, int] | None = None,
        **scheduler: Any,
    ) -> None:
        super().__init__(fixture, mode)
        self.kubelet = Kubelet(
            self.sockets, node=NODE, api=self.store, numa_nodes=range(8), poll_seconds=0.02
        )
        self.flags, self.resources = flags, dict(resources or {GPU: 80})
        self.settings = {"refresh_seconds": 0.2, "poll_seconds": 0.02, "retry_seconds": 0.05, **scheduler}

    def __enter__(self) -> Cluster:
        super().__enter__()
        with ExitStack() as undo:
            undo.callback(super().__exit__, None, None, None)
            self.kubelet.start()
            self.plugin = self.launch()
            until(lambda: self.node_annotation(REGISTER))
            self.scheduler = Scheduler(self.server.url, **self.settings).start()
            undo.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self.scheduler.stop()
        super().__exit__(*exc)

    def launch(self) -> Plugin:
        plugin = self.start(*self.flags)
        self.kubelet.wait_for(lambda k: all(k.allocatable(r) == n for r, n in self.resources.items()))
        return plugin

    def create(self, name: str, *limits: Mapping[str, int] | None, **more: Any) -> None:
        containers = [container(f"c{i}", one) for i, one in enumerate(limits)]
        admitted = admit(pod(name, containers, **more), self.scheduler.vendors)
        assert not admitted.denied
        self.store.create("pods", admitted.pod)

    def phase(self, name: str) -> str:
        return str(self.pod(name)["status"].get("phase"))

    def runs(self, name: str, seconds: float = 15.0) -> dict[str, Edits]:
        """Wait until it does; what its containers got."""
        until(
            lambda: self.phase(name) in {"Running", "Failed"},
            seconds,
            lambda: f"{self.pod(name)}\n{self.scheduler.events[-8:]}\n{self.plugin.lines()[-5:]}",
        )
        assert self.phase(name) == "Running", (
            self.pod(name)["status"].get("message"),
            self.plugin.lines()[-3:],
        )
        return self.given(name)

    def fails(self, name: str) -> str:
        """Wait until it does; why."""
        until(lambda: self.phase(name) in {"Running", "Failed"})
        assert self.phase(name) == "Failed"
        return str(self.pod(name)["status"]["message"])

    def given(self, name: str) -> dict[str, Edits]:
        uid = self.pod(name)["metadata"]["uid"]
        until(lambda: uid in self.kubelet.admissions)  # a restarted kubelet admits what runs once more
        return dict(self.kubelet.admissions[uid].containers)

    def delete(self, name: str) -> None:
        uid = self.pod(name)["metadata"]["uid"]
        self.store.delete("pods", name, grace_seconds=None)
        until(lambda: all(p["metadata"]["name"] != name for p in self.store.list("pods")))
        until(lambda: not self.kubelet.holdings(uid))

    def unlocked(self) -> bool:
        return bool(until(lambda: self.node_annotation(LOCK) is None, 30))

    def said(self, kind: str, name: str) -> int:
        return sum(e.kind == kind and e.detail.get("pod") == name for e in self.scheduler.events)

    # -- the recount ----------------------------------------------------------------------------------------

    def serials(self) -> dict[str, str]:
        """ROCr name → render node, of GPUs in SPX: straight from sysfs."""
        found = {}
        for entry in self.machine.list("/dev/dri"):
            path = f"/sys/class/drm/{entry}/device"
            # partition devices that no mode uses are there too, and have no serial
            if entry.startswith("renderD") and "unique_id" in self.machine.list(path):
                found[f"GPU-{self.machine.read(f'{path}/unique_id').decode().strip()}"] = entry
        return found

    def taken(self) -> dict[str, list[tuple[str, set[int], int]]]:
        """Render node → (pod/container, compute units, MiB) of everybody who runs, GPUs in SPX."""
        serials = self.serials()
        found: dict[str, list[tuple[str, set[int], int]]] = {}
        for one in self.store.list("pods"):
            name = one["metadata"]["name"]
            if one["status"].get("phase") != "Running":
                continue
            for part, edits in self.given(name).items():
                nodes = renders(edits)
                if not nodes:
                    assert edits.envs == {}
                    continue
                agents = edits.envs["ROCR_VISIBLE_DEVICES"].split(",")
                assert {serials[agent] for agent in agents} == set(nodes)
                masks = mask(edits.envs["HSA_CU_MASK"])
                assert sorted(masks) == list(range(len(agents)))
                for index, agent in enumerate(agents):
                    limit = edits.envs.get(f"HIP_DEVICE_MEMORY_LIMIT_{index}", f"{MEMORY}m")
                    mib = int(limit.removesuffix("m"))
                    found.setdefault(serials[agent], []).append((f"{name}/{part}", masks[index], mib))
        return found

    def nothing_twice(self) -> dict[str, list[tuple[str, set[int], int]]]:
        found = self.taken()
        for node, holders in found.items():
            units = [unit for _, cores, _ in holders for unit in cores]
            assert len(units) == len(set(units)), (node, holders)
            assert set(units) <= set(range(CORES))
            assert sum(mib for *_, mib in holders) <= MEMORY, (node, holders)
        return found

    def all_free(self) -> None:
        """Only a node that holds nothing can serve this pod; it leaves again."""
        assert self.unlocked()
        self.create("all", {GPU: 8})
        assert len(renders(self.runs("all")["c0"])) == 8
        self.delete("all")


def renders(edits: Edits) -> list[str]:
    """Render nodes of a container, in order."""
    paths = [device.host_path.removeprefix("/dev/dri/") for device in edits.devices]
    return [path for path in paths if path.startswith("renderD")]


def mask(text: str) -> dict[int, set[int]]:
    """``0:0-3,8;1:7`` → {0: {0, 1, 2, 3, 8}, 1: {7}}."""
    found: dict[int, set[int]] = {}
    for part in text.split(";"):
        index, _, ranges = part.partition(":")
        bits = found.setdefault(int(index), set())
        for one in ranges.split(","):
            first, _, last = one.partition("-")
            bits.update(range(int(first), int(last or first) + 1))
    return found


def slice_(memory: int, percent: int, count: int = 1) -> dict[str, int]:
    return {GPU: count, "amd.com/gpumem": memory, "amd.com/gpucores": percent}


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster() as made:
        yield made


@pytest.fixture
def make() -> Iterator[Callable[..., Cluster]]:
    with ExitStack() as stack:
        yield lambda *args, **named: stack.enter_context(Cluster(*args, **named))


# -- one pod ------------------------------------------------------------------------------------------------


def test_a_sliced_pod_lives_and_leaves_nothing_behind(cluster: Cluster) -> None:
    cluster.create("p", slice_(8192, 25))
    edits = cluster.runs("p")["c0"]
    assert edits.envs["HIP_DEVICE_MEMORY_LIMIT_0"] == "8192m"
    ((render, [(who, cores, mib)]),) = cluster.nothing_twice().items()
    assert (who, len(cores), mib) == ("p/c0", 64, 8192)
    assert renders(edits) == [render]
    notes = cluster.pod("p")["metadata"]["annotations"]
    assert notes["hami.io/vgpu-node"] == NODE
    assert notes[PHASE] == "success"
    assert set(notes[AMD.to_allocate]) == {";"}
    assert notes[AMD.allocated].endswith(",8192,64:;")
    assert cluster.unlocked()
    cluster.delete("p")
    assert cluster.taken() == {}
    cluster.all_free()


def test_a_whole_gpu_is_not_limited_in_memory_and_has_all_its_units(cluster: Cluster) -> None:
    cluster.create("p", {GPU: 1})
    edits = cluster.runs("p")["c0"]
    assert "HIP_DEVICE_MEMORY_LIMIT_0" not in edits.envs
    ((_, [(_, cores, _)]),) = cluster.nothing_twice().items()
    assert cores == set(range(CORES))
    cluster.delete("p")
    cluster.all_free()


def test_containers_get_their_own_devices_in_whatever_order_and_side_cars_none(cluster: Cluster) -> None:
    cluster.create("p", slice_(8192, 25, 2), None, {GPU: 1}, slice_(1024, 1))
    given = cluster.runs("p")
    assert [len(renders(given[f"c{i}"])) for i in range(4)] == [2, 0, 1, 1]
    held = {
        who: (len(cores), mib) for holders in cluster.nothing_twice().values() for who, cores, mib in holders
    }
    assert held == {"p/c0": (64, 8192), "p/c2": (CORES, MEMORY), "p/c3": (2, 1024)}
    cluster.delete("p")
    cluster.all_free()


def test_upstreams_lost_slots_do_no_harm(make: Callable[..., Cluster]) -> None:
    cluster = make(rules=Rules(empty_slots=False))
    cluster.create("p", None, slice_(8192, 25), None, slice_(1024, 1, 2))
    given = cluster.runs("p")
    assert [len(renders(given[f"c{i}"])) for i in range(4)] == [0, 1, 0, 2]
    cluster.nothing_twice()


def test_a_request_in_an_init_container_only_takes_no_lock_so_a_slice_cannot_be_recorded(
    cluster: Cluster,
) -> None:
    cluster.create("whole", None, init_containers=[container("i", {GPU: 1})])
    given = cluster.runs("whole")
    assert len(renders(given["i"])) == 1
    assert given["c0"].envs == {}
    assert cluster.annotation("whole", PHASE) == "success"
    cluster.create("slice", None, init_containers=[container("i", slice_(4096, 10))])
    assert "the node lock does not" in cluster.fails("slice")
    cluster.delete("whole")
    cluster.all_free()


def test_memory_without_a_count_runs_unaccounted_and_sees_no_gpu(cluster: Cluster) -> None:
    cluster.create("p", {"amd.com/gpumem": 1024})
    assert cluster.runs("p")["c0"].devices == ()
    assert cluster.unlocked()
    cluster.all_free()


def test_the_users_wishes_are_heard(cluster: Cluster) -> None:
    ids = [one["id"] for one in cluster.registered()]
    cluster.create("p", slice_(1024, 1, 2), annotations={AMD.use_ids: f"{ids[3]},{ids[5]}"})
    cluster.runs("p")
    allocated = str(cluster.annotation("p", AMD.allocated))
    assert sorted(piece.split(",")[0] for piece in allocated.rstrip(":;").split(":")) == sorted(
        [ids[3], ids[5]]
    )
    cluster.create("q", {GPU: 1}, annotations={AMD.use_types: "MI300"})
    until(lambda: cluster.pod("q")["status"].get("conditions"))
    (condition,) = cluster.pod("q")["status"]["conditions"]
    assert condition["message"] == f"unschedulable: {NODE}: 8/8 CardTypeMismatch"


# -- partitions ---------------------------------------------------------------------------------------------


def test_hard_partitions_are_given_once_each_and_come_back(make: Callable[..., Cluster]) -> None:
    cluster = make("mi355x/qpx-6.14", "partition", resources={GPU: 32})
    for number in range(10):
        cluster.create(f"p{number}", {GPU: 2}, {GPU: 1})
    nodes = [
        node
        for number in range(10)
        for edits in cluster.runs(f"p{number}").values()
        for node in renders(edits)
    ]
    assert len(nodes) == len(set(nodes)) == 30
    for number in range(10):
        for edits in cluster.given(f"p{number}").values():
            assert "HSA_CU_MASK" not in edits.envs
            assert not [key for key in edits.envs if key.startswith("HIP_DEVICE_MEMORY")]
    cluster.create("late", {GPU: 3})
    until(lambda: cluster.said("unplaced", "late"))
    cluster.delete("p4")
    assert set(renders(cluster.runs("late")["c0"])).isdisjoint(
        node
        for number in range(10)
        if number != 4
        for edits in cluster.given(f"p{number}").values()
        for node in renders(edits)
    )


def test_b20_mixed_names_are_scheduled_by_a_scheduler_that_knows_them(make: Callable[..., Cluster]) -> None:
    cluster = make(
        "mi355x/mixed-spx-cpx",
        "partition",
        ("-resource_naming_strategy", "mixed"),
        {CPX: 16, SPX: 6},
        vendors=(AMD_MIXED,),
    )
    modes = {one["id"]: one["mode"] for one in cluster.registered() if one.get("mode")}
    cluster.create("p", {CPX: 3}, {SPX: 1})
    given = cluster.runs("p")
    assert [len(renders(given[name])) for name in ("c0", "c1")] == [3, 1]
    slots = str(cluster.annotation("p", AMD.allocated)).split(";")
    kinds = [{modes.get(d.split(",")[0], "spx") for d in s.split(":") if d} for s in slots]
    assert kinds == [{"cpx"}, {"spx"}, set()]
    cluster.create("q", {CPX: 13}, {SPX: 5})
    everything = [node for name in "pq" for edits in _after(cluster, name) for node in renders(edits)]
    assert len(everything) == len(set(everything)) == 22
    assert cluster.node_annotation(REGISTER)


def _after(cluster: Cluster, name: str) -> list[Edits]:
    return list(cluster.runs(name).values())


def test_a_purely_mixed_node_does_not_exist_for_upstreams_scheduler(make: Callable[..., Cluster]) -> None:
    cluster = make("mi355x/cpx-6.14", "partition", ("-resource_naming_strategy", "mixed"), {CPX: 64})
    cluster.create("p", {GPU: 1})
    until(lambda: cluster.said("unplaced", "p"))
    time.sleep(0.5)
    assert cluster.phase("p") == "Pending"
    assert cluster.scheduler.devices[NODE] == {}
    until(lambda: cluster.plugin.said("HAMi removes this node's registration while that capacity is 0"))


# -- several pods --------------------------------------------------------------------------------------------


def test_two_pods_at_once_wait_for_the_lock_and_each_gets_its_own(cluster: Cluster) -> None:
    cluster.kubelet.faults.allocate_delay = 0.3
    cluster.create("big", slice_(65536, 50))
    cluster.create("small", slice_(1024, 1))
    for name, mib, cores in (("big", 65536, 128), ("small", 1024, 2)):
        edits = cluster.runs(name)["c0"]
        assert edits.envs["HIP_DEVICE_MEMORY_LIMIT_0"] == f"{mib}m"
        assert len(mask(edits.envs["HSA_CU_MASK"])[0]) == cores
    assert cluster.said("contention", "big") + cluster.said("contention", "small") >= 1
    cluster.nothing_twice()
    assert cluster.unlocked()


def test_a_pod_that_does_not_fit_waits_until_another_leaves(cluster: Cluster) -> None:
    cluster.create("all", {GPU: 8})
    cluster.runs("all")
    cluster.create("next", slice_(1024, 1))
    until(lambda: cluster.said("unplaced", "next"))
    assert cluster.phase("next") == "Pending"
    cluster.delete("all")
    cluster.runs("next")


def test_a_pod_that_ended_by_itself_is_free_although_it_still_exists(cluster: Cluster) -> None:
    cluster.create("all", {GPU: 8})
    cluster.runs("all")
    cluster.store.patch("pods", "all", {"status": {"phase": "Succeeded"}}, subresource="status")
    cluster.create("next", {GPU: 8})
    assert len(renders(cluster.runs("next")["c0"])) == 8


@pytest.mark.parametrize("policy", ["binpack", "spread"])
def test_thirty_random_pods_on_eight_gpus_never_overlap(make: Callable[..., Cluster], policy: str) -> None:
    cluster = make(rules=Rules(device_policy=policy))
    chance = random.Random(policy)
    wanted: dict[str, list[dict[str, int] | None]] = {}
    for number in range(30):
        kinds = [
            None,
            slice_(chance.randrange(1, 90_000), chance.randrange(1, 60), chance.choice((1, 1, 2, 3))),
            slice_(chance.randrange(1, 20_000), chance.randrange(1, 15)),
            {GPU: 1},
        ]
        weights = (1, 6, 6, 1)
        name = f"p{number}"
        wanted[name] = [
            {GPU: 1, **slice_(512, 1)},
            *chance.choices(kinds, weights, k=chance.choice((0, 1, 2))),
        ]
        cluster.create(name, *wanted[name])
    waiting, end, moved = set(wanted), time.monotonic() + 60, time.monotonic()
    while waiting:
        assert time.monotonic() < end, (waiting, cluster.scheduler.events[-5:])
        ran = {name for name in waiting if cluster.phase(name) != "Pending"}
        assert {cluster.phase(name) for name in ran} <= {"Running"}
        if ran:
            moved = time.monotonic()
            cluster.nothing_twice()
            for name in ran:
                _as_asked(cluster, name, wanted[name])
        waiting -= ran
        there = [n for n in wanted if n not in waiting and _there(cluster, n)]
        if there and time.monotonic() - moved > 0.4:  # the node is full: somebody has to leave
            moved = time.monotonic()
            cluster.delete(chance.choice(there))
        time.sleep(0.02)
    for name in wanted:
        if _there(cluster, name):
            cluster.delete(name)
    cluster.all_free()


def _there(cluster: Cluster, name: str) -> bool:
    return any(p["metadata"]["name"] == name for p in cluster.store.list("pods"))


def _as_asked(cluster: Cluster, name: str, wanted: list[dict[str, int] | None]) -> None:
    given = cluster.given(name)
    for number, one in enumerate(wanted):
        edits = given[f"c{number}"]
        assert len(renders(edits)) == (one[GPU] if one else 0)
        if one:
            cores = max(1, CORES * one.get("amd.com/gpucores", 100) // 100)
            assert {len(bits) for bits in mask(edits.envs["HSA_CU_MASK"]).values()} == {cores}
            if "amd.com/gpumem" in one:
                assert edits.envs["HIP_DEVICE_MEMORY_LIMIT_0"] == f"{one['amd.com/gpumem']}m"


# -- trouble ---------------------------------------------------------------------------------------------


def test_a_pod_that_meets_no_plugin_fails_and_its_lock_blocks_nobody_for_long(cluster: Cluster) -> None:
    assert cluster.plugin.end() == 0
    cluster.kubelet.wait_for(lambda k: k.allocatable(GPU) == 0)
    cluster.create("p", {GPU: 1})
    until(lambda: cluster.phase("p") == "Failed")
    assert cluster.node_annotation(LOCK)  # a terminated owner still counts (D.7)
    cluster.create("q", {GPU: 8})
    until(lambda: cluster.said("contention", "q"))
    cluster.plugin = cluster.launch()
    assert len(renders(cluster.runs("q", 30)["c0"])) == 8
    assert cluster.unlocked()


@pytest.mark.parametrize("whole", [True, False])
def test_after_a_binding_whose_answer_was_lost_there_is_no_lock_and_only_a_slice_needs_one(
    cluster: Cluster, whole: bool
) -> None:
    cluster.kubelet.faults.allocate_delay = 0.3  # so that the lock is gone when Allocate comes
    lost = Fault(verb="create", resource="pods", subresource="binding", action="lose")
    cluster.server.faults.add(lost)
    cluster.create("p", {GPU: 1} if whole else slice_(8192, 25))
    if whole:
        assert len(renders(cluster.runs("p")["c0"])) == 1
        assert cluster.annotation("p", PHASE) == "success"
        cluster.delete("p")
    else:
        assert "the node lock does not" in cluster.fails("p")
        assert cluster.annotation("p", CUS) is None
    assert cluster.said("failed", "p") == 1
    cluster.all_free()


def test_an_outage_of_the_api_server_delays_and_loses_nothing(cluster: Cluster) -> None:
    cluster.create("before", slice_(8192, 25))
    cluster.runs("before")
    cluster.server.down()
    cluster.create("during", slice_(8192, 25))
    time.sleep(0.5)
    cluster.server.up()
    cluster.runs("during", 30)
    cluster.nothing_twice()
    cluster.delete("before")
    cluster.delete("during")
    cluster.all_free()


def test_a_pod_whose_lock_expired_before_kubelet_allocated_does_not_get_the_next_ones_devices(
    make: Callable[..., Cluster],
) -> None:
    cluster = make(expiry=1.0)
    cluster.kubelet.faults.allocate_delay = 2.5
    cluster.create("slow", slice_(8192, 25))
    until(lambda: cluster.said("bound", "slow"))
    cluster.create("next", slice_(4096, 25, 2))
    until(lambda: cluster.said("bound", "next"))
    assert cluster.phase("slow") == "Pending"
    assert str(cluster.node_annotation(LOCK)).endswith(",default,next")
    assert "the node lock does not belong to pod default/slow" in cluster.fails("slow")
    assert cluster.annotation("slow", PHASE) == "failed"
    assert cluster.runs("next")["c0"].envs["HIP_DEVICE_MEMORY_LIMIT_1"] == "4096m"
    cluster.nothing_twice()
    assert cluster.unlocked()


def test_a_plugin_that_restarts_keeps_what_runs_and_gives_none_of_it_away(cluster: Cluster) -> None:
    cluster.create("p", slice_(8192, 25))
    before = cluster.runs("p")["c0"]
    cluster.plugin.end()
    cluster.kubelet.wait_for(lambda k: k.allocatable(GPU) == 0)
    cluster.plugin = cluster.launch()
    assert cluster.given("p")["c0"] == before
    assert cluster.annotation("p", CUS)
    cluster.create("q", slice_(8192, 80))
    cluster.runs("q")
    cluster.nothing_twice()
