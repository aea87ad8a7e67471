"""vNPUs left behind and what else a turn clears away: ascend_ppu_hami.md A.9, G 3, decision 46."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from devplugin.answers import Effect, Turn
from devplugin.ascend import hostprep, sweep
from devplugin.ascend.idle import GRACE
from devplugin.ascend.inventory import Inventory
from devplugin.ascend.settings import Settings
from devplugin.ascend.vendor import Ascend
from devplugin.containerdirs import GRACE as DIRECTORY_GRACE
from devplugin.deeds import DEEDS, Ground, RemoveDir, RunTool, carry_out
from devplugin.hami import Pod
from gpusim.errors import GpusimError
from gpusim.fixture import load
from gpusim.machine import Machine

from .npupods import HARD, P3, SOFT, device, entry
from .npupods import pod as _pod

CHECKPOINT = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
STARTING = (
    "ContainerCreating",
    "PodInitializing",
    "ImagePullBackOff",
    "ErrImagePull",
    "CreateContainerConfigError",
)
BROKEN = ("RunContainerError", "CreateContainerError", "StartError", "CrashLoopBackOff")
STEP = 60.0
"""Seconds between turns; the grace is ten of them."""
TURNS = int(GRACE / STEP) + 1


def pod(slots: Sequence[Sequence[str]], **fields: Any) -> Pod:
    """A running pod with a slice of each device named, a container for every slot."""
    devices = [[device(uuid, 3072) for uuid in slot] for slot in slots]
    names = tuple(f"c{i}" for i in range(len(slots)))
    states = {
        "phase": "Running",
        "container_ids": {f"id-{name}": name for name in names},
        "containers": names,
    }
    return _pod(devices, [entry(uuid, "vir01") for slot in slots for uuid in slot], **{**states, **fields})


def waiting(reason: str | None, *uuids: str, **fields: Any) -> Pod:
    """A pod whose one container waits, or of which nothing is known yet."""
    why = {} if reason is None else {"c0": reason}
    return pod([list(uuids)], phase="Pending", container_ids={}, waiting=why, **fields)


class Node:
    """A machine with NPUs, kubelet's record and turns of the sweep on it."""

    def __init__(self, fixture: str = "ascend/310p3", settings: Settings = HARD) -> None:
        self.machine = Machine(load(fixture))
        self.settings = settings
        self.memory: Any = None
        self.now = 1000.0
        self.checkpoint([])

    @property
    def inventory(self) -> Inventory:
        return Ascend().discover(cast("Any", self.machine), self.settings, None)

    @property
    def uuids(self) -> list[str]:
        return [npu.uuid for npu in self.inventory.npus]

    def checkpoint(self, uids: Sequence[str], resource: str = P3.resource, registered: bool = True) -> None:
        entries = [
            {"PodUID": uid, "ContainerName": "c0", "ResourceName": resource, "DeviceIDs": {"-1": ["x-0"]}}
            for uid in uids
        ]
        data = {"PodDeviceEntries": entries, "RegisteredDevices": {resource: ["x-0"]} if registered else {}}
        self.write(json.dumps({"Data": data, "Checksum": 1}).encode())

    def write(self, text: bytes | None) -> None:
        self.machine.mkdir(CHECKPOINT.rpartition("/")[0])
        if text is None:
            self.machine.unlink(CHECKPOINT)
        else:
            self.machine.put(CHECKPOINT, text)

    def leave(self, phy: int = 0, template: str = "vir04") -> int:
        """A vNPU whose container failed after it was cut (G 3)."""
        number = self.machine.npu_cut(phy, template, "c" * 12)
        self.machine.npu_release(number, destroy=False)
        return number

    def decide(self, *pods: Pod) -> tuple[Effect, ...]:
        """One turn's effects, not done; the clock moves on."""
        turn = Turn(pods, self.memory, self.now)
        host = cast("Any", self.machine)
        effects, self.memory = sweep.sweep(host, self.inventory, self.settings, turn)
        self.now += STEP
        return effects

    def turn(self, *pods: Pod) -> list[str]:
        """One turn, its deeds done; the vNPUs destroyed, and whatever else, as text."""
        done = []
        for effect in self.decide(*pods):
            assert isinstance(effect, DEEDS)
            carry_out(cast("Ground", self.machine), effect)
            done.append(effect.argv[-1] if isinstance(effect, RunTool) else str(effect))
        return done

    def turns(self, count: int, *pods: Pod) -> list[str]:
        return [done for _ in range(count) for done in self.turn(*pods)]

    def vnpus(self) -> list[int]:
        return [number for npu in self.machine.npus for number in npu.vnpus]


# ------------------------------------------------------------------ what is destroyed


def test_a_vnpu_left_behind_goes_after_three_looks_and_ten_minutes_and_its_cores_are_free() -> None:
    """G 3: `check aicore num failed` until then."""
    node = Node()
    number = node.leave()
    node.leave(template="vir02")
    with pytest.raises(GpusimError, match="check aicore num failed, phy_id:0, core_need:4, used:6, total:8"):
        node.machine.npu_cut(0, "vir04", "d" * 12)
    assert node.turns(TURNS - 1) == []
    assert node.turn() == [str(number), str(number + 1)]
    assert node.vnpus() == []
    node.machine.npu_cut(0, "vir04", "d" * 12)


def test_three_looks_are_wanted_however_long_they_are_apart() -> None:
    node = Node(settings=replace(HARD, idle_interval=3600.0))
    number = node.leave()
    for expected in ([], [], [str(number)]):
        assert node.turn() == expected
        node.now += 3600


def test_a_vnpu_in_use_is_never_destroyed() -> None:
    node = Node()
    node.machine.npu_cut(0, "vir04", "c" * 12)
    assert node.turns(3 * TURNS) == []


def test_a_vnpu_that_was_used_meanwhile_begins_anew() -> None:
    node = Node(settings=replace(HARD, periodic=True))
    number = node.leave()
    node.turns(TURNS - 2)
    node.machine.npus.use(number, "d" * 12)
    assert node.turn() == []
    node.machine.npus.use(number, None)
    assert node.turns(TURNS - 1) == []
    assert node.turn() == [str(number)]


def test_a_number_that_was_given_again_begins_anew() -> None:
    node = Node(settings=replace(HARD, periodic=True))
    number = node.leave()
    assert node.turns(TURNS) == [str(number)]
    assert node.leave() == number
    assert node.turns(TURNS - 1) == []
    assert node.turn() == [str(number)]


def test_a_destruction_that_fails_is_tried_again_after_another_grace() -> None:
    node = Node()
    node.leave()
    node.machine.npu_smi_fails("set -t destroy-vnpu", "Status : Fail", 0)
    tries = [len(node.decide()) for _ in range(2 * TURNS)]
    assert [turn for turn, count in enumerate(tries) if count] == [TURNS - 1, 2 * TURNS - 1]


def test_vnpus_of_the_node_that_the_operator_keeps_back_are_left_alone() -> None:
    node = Node(settings=replace(HARD, filtered_cards=frozenset({4})))
    node.leave(0)
    number = node.leave(1)
    assert node.turns(TURNS) == [str(number)]


# ------------------------------------------------------------------ once, or again and again


def test_unless_it_is_periodic_only_what_was_idle_at_the_start_is_followed() -> None:
    """Decision 46."""
    node = Node()
    first = node.leave()
    node.turn()
    later = node.leave(1)
    assert node.turns(3 * TURNS) == [str(first)]
    assert node.vnpus() == [later]


def test_when_nothing_of_the_start_is_left_the_tool_is_not_asked_any_more() -> None:
    node = Node()
    node.turn()
    asked: list[Any] = []
    inventory = node.inventory
    run = node.machine.run
    node.machine.run = lambda argv, **more: asked.append(argv) or run(argv, **more)  # type: ignore[assignment, method-assign, func-returns-value]
    sweep.sweep(cast("Any", node.machine), inventory, node.settings, Turn((), node.memory, node.now))
    assert asked == []


def test_a_periodic_sweep_finds_what_came_later() -> None:
    node = Node(settings=replace(HARD, periodic=True))
    node.turns(5)
    number = node.leave()
    assert node.turns(TURNS) == [str(number)]


def test_a_restart_forgets_and_begins_at_the_start() -> None:
    """A.9: counters are lost."""
    node = Node()
    number = node.leave()
    node.turns(TURNS - 1)
    node.memory = None
    assert node.turns(TURNS - 1) == []
    assert node.turn() == [str(number)]


def test_looks_are_as_far_apart_as_the_operator_wants() -> None:
    node = Node(settings=replace(HARD, idle_interval=600.0, periodic=True))
    number = node.leave()
    done = [node.turn() for _ in range(31)]
    assert {turn: one for turn, one in enumerate(done) if one} == {20: [str(number)]}  # the third look


@pytest.mark.parametrize(("interval", "period"), [(60.0, 60.0), (3600.0, 60.0), (5.0, 5.0)])
def test_turns_come_every_minute_or_as_often_as_vnpus_are_looked_for(interval: float, period: float) -> None:
    assert sweep.every(replace(HARD, idle_interval=interval)) == period


# ------------------------------------------------------------------ what protects


def due(*pods: Callable[[list[str]], Pod], uids: Sequence[str] = ()) -> list[str]:
    """What is destroyed of two vNPUs, one on each of two cards, after the grace, with these pods there."""
    node = Node()
    numbers = [str(node.leave(phy)) for phy in (0, 1)]
    node.checkpoint(uids)
    there = [make(node.uuids) for make in pods]
    return ["01"[numbers.index(done)] for done in node.turns(2 * TURNS, *there)]


@pytest.mark.parametrize("reason", STARTING)
def test_a_container_about_to_start_protects_its_card_and_no_other(reason: str) -> None:
    assert due(lambda uuids: waiting(reason, uuids[0])) == ["1"]


@pytest.mark.parametrize("reason", BROKEN)
def test_a_container_that_failed_protects_nothing(reason: str) -> None:
    assert due(lambda uuids: waiting(reason, uuids[0])) == ["0", "1"]


@pytest.mark.parametrize("reason", ["InvalidImageName", "", "SomethingNew", None])
def test_a_container_of_which_one_cannot_tell_keeps_its_card_too(reason: str | None) -> None:
    assert due(lambda uuids: waiting(reason, uuids[0])) == ["1"]


def test_a_running_container_has_its_own_vnpu_and_needs_no_idle_one() -> None:
    assert due(lambda uuids: pod([[uuids[0]]])) == ["0", "1"]


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_has_ended_protects_nothing(phase: str) -> None:
    assert due(lambda uuids: _ended(uuids[0], phase)) == ["0", "1"]


def _ended(uuid: str, phase: str) -> Pod:
    return replace(waiting("ContainerCreating", uuid), phase=phase)


def test_of_two_pods_on_a_card_the_one_that_protects_it_counts() -> None:
    one = waiting  # protected outweighs candidate, and so does unknown
    assert due(
        lambda uuids: pod([[uuids[0]]]), lambda uuids: one("ContainerCreating", uuids[0], uid="2")
    ) == ["1"]
    assert due(lambda uuids: one(None, uuids[0]), lambda uuids: pod([[uuids[0]]], uid="2")) == ["1"]


def test_each_container_speaks_for_the_cards_of_its_own_slot() -> None:
    def made(uuids: list[str]) -> Pod:
        return pod(
            [[uuids[0]], [uuids[1]]],
            phase="Pending",
            containers=("c1",),
            init_containers=("c0",),
            container_ids={"id": "c0"},
            waiting={"c1": "PodInitializing"},
        )

    assert due(made) == ["0"]


@pytest.mark.parametrize("text", ["garbage", "a,b,c;", None])
def test_a_pod_whose_cards_cannot_be_told_keeps_them_all(text: str | None) -> None:
    def made(uuids: list[str]) -> Pod:
        one = pod([[uuids[0]]], limits={"side": {"cpu": "1"}, "c0": {P3.resource: "1"}})
        key = "hami.io/Ascend310P-devices-allocated"
        rest = {name: value for name, value in one.annotations.items() if name != key}
        return replace(one, annotations=rest if text is None else {**rest, key: text})

    assert due(made) == []


def test_a_pod_that_asks_for_nothing_of_ours_is_no_business_of_ours() -> None:
    other = Pod("ns", "o", "o", "node-1", "Pending", limits={"c": {"amd.com/gpu": "1"}})
    assert due(lambda uuids: other) == ["0", "1"]


def test_a_container_that_was_started_once_and_waits_for_something_new_keeps_its_card() -> None:
    ids = {"id": "c0"}
    assert due(lambda uuids: replace(waiting("SomethingNew", uuids[0]), container_ids=ids)) == ["1"]


@pytest.mark.parametrize("phase", ["Unknown", ""])
def test_a_pod_that_its_node_has_not_told_of_keeps_its_card(phase: str) -> None:
    assert due(lambda uuids: pod([[uuids[0]]], phase=phase)) == ["1"]


def test_the_grace_counts_from_when_the_cards_pods_were_settled() -> None:
    node = Node()
    number = node.leave()
    assert node.turns(5, waiting("ContainerCreating", node.uuids[0])) == []
    assert node.turns(TURNS - 1) == []
    assert node.turn() == [str(number)]


def test_a_pod_that_is_settled_but_for_one_look_begins_anew() -> None:
    node = Node()
    number = node.leave()
    node.turns(TURNS - 1)
    assert node.turn(waiting(None, node.uuids[0])) == []
    assert node.turns(TURNS - 1) == []
    assert node.turn() == [str(number)]


# ------------------------------------------------------------------ what must be known


def test_a_pod_that_only_kubelet_knows_keeps_every_card() -> None:
    assert due(uids=["a-stranger"]) == []


def test_kubelets_record_of_a_pod_that_has_gone_since_keeps_nothing() -> None:
    """kubelet forgets it with the next pod only."""
    node = Node()
    number = node.leave()
    gone = pod([[node.uuids[1]]], uid="known")
    node.checkpoint(["known"])
    node.turn(gone)
    assert node.turns(TURNS - 1) == [str(number)]


def test_kubelets_record_of_another_vendors_pod_keeps_nothing() -> None:
    node = Node()
    number = node.leave()
    entries = [{"PodUID": "x", "ContainerName": "c", "ResourceName": "amd.com/gpu", "DeviceIDs": {}}]
    node.write(
        json.dumps({"Data": {"PodDeviceEntries": entries, "RegisteredDevices": {P3.resource: None}}}).encode()
    )
    assert node.turns(TURNS) == [str(number)]


def test_a_record_without_any_pod_is_whole() -> None:
    node = Node()
    number = node.leave()
    node.write(
        json.dumps({"Data": {"PodDeviceEntries": None, "RegisteredDevices": {P3.resource: []}}}).encode()
    )
    assert node.turns(TURNS) == [str(number)]


BAD = {
    "no file": None,
    "empty": b"",
    "no JSON": b"{",
    "another shape": b'{"data": {}}',
    "too deep": b"[" * 20_000,
    "not registered": b'{"Data": {"PodDeviceEntries": [], "RegisteredDevices": {}}}',
    "nulls": b'{"Data": {"PodDeviceEntries": null, "RegisteredDevices": null}}',
}


@pytest.mark.parametrize("text", BAD.values(), ids=BAD)
def test_without_kubelets_record_nothing_is_destroyed(text: bytes | None) -> None:
    node = Node()
    node.leave()
    node.write(text)
    assert node.turns(3 * TURNS) == []


@pytest.mark.parametrize("output", ["", "Total number of vnpu: 3\n", "busy"])
def test_a_list_of_vnpus_that_is_not_whole_destroys_nothing(output: str) -> None:
    """Decision 42."""
    node = Node()
    node.leave()
    node.machine.npu_smi_fails("info -t info-vnpu", output, 0)
    assert node.turns(3 * TURNS) == []


def test_after_a_look_that_missed_something_all_confirmations_begin_anew() -> None:
    node = Node()
    number = node.leave()
    node.turns(TURNS - 1)
    node.write(b"torn")
    assert node.turn() == []
    node.checkpoint([])
    assert node.turns(TURNS - 1) == []
    assert node.turn() == [str(number)]


def test_an_inventory_in_trouble_destroys_nothing() -> None:
    node = Node()
    node.leave()
    inventory = replace(node.inventory, trouble="npu-smi info -m: said nothing")
    for step in range(2 * TURNS):
        turn = Turn((), node.memory, step * STEP)
        effects, node.memory = sweep.sweep(cast("Any", node.machine), inventory, HARD, turn)
        assert effects == ()


# ------------------------------------------------------------------ the turn as a whole


def test_a_node_without_npus_yet_has_nothing_to_clear_away() -> None:
    node = Node()
    effects, memory = sweep.sweep(cast("Any", node.machine), Inventory(), SOFT, Turn((), None, 0.0))
    assert effects == ()
    assert memory.shared is None


def test_a_directory_and_a_vnpu_are_cleared_away_in_one_turn() -> None:
    node = Node()
    number = node.leave()
    node.machine.mkdir(f"{HARD.containers}/gone_main")
    turns = int(DIRECTORY_GRACE / STEP)
    assert node.turns(turns) == []
    assert node.turn() == [str(RemoveDir(f"{HARD.containers}/gone_main"))]
    assert node.turns(TURNS - turns - 1) == [str(number)]


def test_a_library_that_was_kept_is_installed_by_the_turn_after_its_pods_are_gone() -> None:
    """Decision 45: retried each pass."""
    node = Node("ascend/910b4", SOFT)
    host = node.machine
    for directory, data in ((SOFT.assets_path, b"new"), (SOFT.hook_path, b"old")):
        host.mkdir(directory)
        host.put(f"{directory}/libvnpu.so", data, 0o755)
    host.mkdir(f"{SOFT.containers}/u1_main")
    host.put(f"{SOFT.containers}/u1_main/vnpu_local_shmem", b"")
    live = Pod("ns", "p", "u1", "node-1", "Running")
    for _ in range(2):
        (event,) = node.decide(live)
        assert getattr(event, "reason", "") == hostprep.KEPT
    node.turn()
    assert host.read(f"{SOFT.hook_path}/libvnpu.so") == b"new"
    (event,) = node.decide()
    assert getattr(event, "reason", "") == hostprep.UPDATED
    host.put(f"{SOFT.assets_path}/libvnpu.so", b"changed under our feet", 0o755)
    assert node.decide() == ()  # a library is read no more once it is the image's


def test_in_template_mode_no_library_is_looked_at_and_no_chip_shared() -> None:
    """Decision 45."""
    node = Node("ascend/910b4")
    for directory, data in ((HARD.assets_path, b"new"), (HARD.hook_path, b"old")):
        node.machine.mkdir(directory)
        node.machine.put(f"{directory}/libvnpu.so", data, 0o755)
    whole = node.inventory
    host = cast("Any", node.machine)
    few = replace(whole, npus=whole.npus[:2])
    effects, memory = sweep.sweep(host, few, HARD, Turn((), None, 0.0))
    assert effects == ()
    assert sweep.sweep(host, whole, HARD, Turn((), memory, STEP))[0] == ()


def test_chips_that_appear_after_the_start_are_shared() -> None:
    """P26."""
    node = Node("ascend/910b4", SOFT)
    whole = node.inventory
    few = replace(whole, npus=whole.npus[:2])
    host = cast("Any", node.machine)
    _, memory = sweep.sweep(host, few, SOFT, Turn((), None, 0.0))
    asked = []
    for turn in range(8):
        effects, memory = sweep.sweep(host, whole, SOFT, Turn((), memory, (turn + 1) * STEP))
        asked.append([effect.argv[5] for effect in effects if isinstance(effect, RunTool)])
    assert asked == [["2", "3", "4", "5", "6", "7"]] * 5 + [[]] * 3, "one failure is not for good"
