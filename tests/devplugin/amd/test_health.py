"""What makes a GPU unhealthy, for how long, and who shares the verdict (amd.md 4.4, 10, 14.9; B48)."""

from __future__ import annotations

import errno
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devplugin.amd.health import (
    DOWN,
    SERVICES,
    SOCKET,
    UP,
    Look,
    carried,
    complaints,
    look,
    source,
    step,
)
from devplugin.amd.inventory import Inventory, Standing
from devplugin.amd.notices import notices
from devplugin.amd.settings import Settings
from devplugin.amd.vendor import Amd
from devplugin.answers import Reports
from gpusim.machine import Machine
from gpusim.testing.machines import BUSES, node

BDFS = [f"0000:{bus}:00.0" for bus in BUSES]
CU, HARD = Settings(mode="cu", pulse=10), Settings(mode="partition", pulse=10)
QUIET = Reports()


def machine_of(mode: str = "SPX", count: int = 2, **fields: Any) -> Machine:
    return Machine(node(count=count, gpu={"mode": mode}, **fields))


class Beats:
    """A node that is looked at again and again."""

    def __init__(self, machine: Machine, settings: Settings = CU) -> None:
        self.machine, self.settings, self.vendor = machine, settings, Amd()
        self.inventory: Inventory | None = None

    def beat(self, reports: Reports = QUIET) -> dict[str, bool]:
        """One pulse; health by BDF."""
        found = self.vendor.discover(self.machine, self.settings, self.inventory)
        self.inventory = self.vendor.health(self.machine, found, self.settings, reports)
        return {gpu.bdf: gpu.healthy for gpu in self.inventory.gpus}

    def listed(self) -> dict[str, bool]:
        assert self.inventory is not None
        offers = self.vendor.offers(self.inventory, self.settings)
        return {device.id: device.healthy for offer in offers.values() for device in offer.devices}

    def registered(self) -> dict[str, bool]:
        assert self.inventory is not None
        patch = self.vendor.registration(self.inventory, self.settings, 0.0)
        (text,) = patch.annotations.values()
        return {entry["id"]: entry.get("health", False) for entry in json.loads(text or "")}


# The step


def test_the_first_look_decides_alone() -> None:
    assert step(None, Look()) == Standing()
    assert step(None, Look("dead")) == Standing(healthy=False, reason="dead")
    assert step(None, Look(None)) == Standing()


def test_one_bad_look_takes_it_out_and_two_good_ones_bring_it_back() -> None:
    assert (DOWN, UP) == (1, 2)
    standing = step(None, Look())
    verdicts = []
    for problem in ("dead", "", "dead", "", "", "", "dead"):
        standing = step(standing, Look(problem))
        verdicts.append(standing.healthy)
    assert verdicts == [False, False, False, False, True, True, False]


LOOKS = st.lists(
    st.builds(Look, st.sampled_from(["", "a", "b", None]), st.sampled_from(["", "", "said"])), max_size=30
)


@given(LOOKS)
def test_the_verdict_is_that_of_the_last_run_of_equal_looks_that_is_long_enough(looks: list[Look]) -> None:
    """An independent count: looks that say nothing are passed over, the first counts for itself."""
    standing = None
    clear: list[bool] = []
    for one in looks:
        standing = step(standing, one)
        if one.told or one.problem is not None:
            clear.append(not (one.told or one.problem))
        elif not clear:
            clear.append(True)
    expected, run = True, 0
    for index, good in enumerate(clear):
        run = run + 1 if index and clear[index - 1] == good else 1
        if index == 0 or run >= (UP if good else DOWN):
            expected = good
    if standing is not None:
        assert standing.healthy is expected
        assert bool(standing.reason) is not standing.healthy


# The look


def test_all_slots_of_a_gpu_go_and_come_together_and_other_gpus_are_untouched() -> None:
    node_ = Beats(machine_of())
    node_.beat()
    assert list(node_.listed().values()) == [True] * 20
    node_.machine.hang(BDFS[0])
    node_.beat()
    sick = {name for name, healthy in node_.listed().items() if not healthy}
    assert sick == {f"{BDFS[0]}#{slot}" for slot in range(10)}
    assert sorted(node_.registered().values()) == [False, True]
    node_.machine.recover(BDFS[0])
    node_.beat()
    assert sum(node_.listed().values()) == 10
    node_.beat()
    assert sum(node_.listed().values()) == 20
    assert all(node_.registered().values())


def test_all_partitions_of_a_gpu_share_its_fate_and_stay_listed() -> None:
    node_ = Beats(machine_of("CPX"), HARD)
    node_.beat()
    ids = set(node_.listed())
    node_.beat(Reports({BDFS[1]: "unhealthy"}))
    assert set(node_.listed()) == ids
    assert sum(not healthy for healthy in node_.listed().values()) == 8
    assert sum(not healthy for healthy in node_.registered().values()) == 8


def test_one_partition_that_does_not_open_is_the_whole_gpus_trouble() -> None:
    class Broken:
        def __init__(self, machine: Machine) -> None:
            self.machine = machine

        def __getattr__(self, name: str) -> Any:
            return getattr(self.machine, name)

        def probe(self, path: str) -> None:
            if path.endswith("renderD130"):
                raise OSError(errno.ENXIO, "no")
            self.machine.probe(path)

    node_ = Beats(Broken(machine_of("QPX")), HARD)
    assert node_.beat() == {BDFS[0]: False, BDFS[1]: True}
    assert node_.inventory is not None
    assert node_.inventory.health[BDFS[0]].reason == "/dev/dri/renderD130: ENXIO"
    assert f"{BDFS[0]}: unhealthy: /dev/dri/renderD130: ENXIO" in notices(node_.inventory, HARD)


def test_with_a_failing_probe_at_the_start_the_first_list_is_all_unhealthy() -> None:
    machine = machine_of()
    for bdf in BDFS[:2]:
        machine.hang(bdf)
    node_ = Beats(machine)
    node_.beat()
    assert list(node_.listed().values()) == [False] * 20


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR])
def test_a_look_that_fails_for_our_own_reasons_changes_no_verdict(code: int) -> None:
    class Poor:
        poor = False

        def __init__(self, machine: Machine) -> None:
            self.machine = machine

        def __getattr__(self, name: str) -> Any:
            return getattr(self.machine, name)

        def probe(self, path: str) -> None:
            if self.poor:
                raise OSError(code, "no")
            self.machine.probe(path)

    host = Poor(machine_of())
    node_ = Beats(host)
    host.machine.hang(BDFS[0])
    assert node_.beat() == {BDFS[0]: False, BDFS[1]: True}
    host.poor = True
    for _ in range(5):
        assert node_.beat() == {BDFS[0]: False, BDFS[1]: True}


def test_a_gpu_in_reset_is_unhealthy_and_keeps_its_ids_and_its_resource() -> None:
    settings = replace(HARD, naming="mixed")
    for mode, name in (("SPX", "amd.com/spx_nps1"), ("QPX", "amd.com/qpx_nps1")):
        node_ = Beats(machine_of(mode), settings)
        node_.beat()
        before, registered = node_.listed(), node_.registered()
        node_.machine.reset(BDFS[0])
        assert node_.beat() == {BDFS[0]: False, BDFS[1]: True}
        assert list(node_.vendor.offers(node_.inventory, settings)) == [name]
        assert node_.listed().keys() == before.keys()
        assert node_.registered().keys() == registered.keys()
        assert node_.inventory is not None
        assert node_.inventory.health[BDFS[0]].reason == "in reset"
        node_.machine.recover(BDFS[0])
        node_.beat()
        node_.beat()
        assert node_.listed() == before
        assert node_.registered() == registered


@pytest.mark.parametrize("fixture", ["listed", "hidden", "truncated"])
def test_a_hung_gpu_keeps_its_ids_whatever_kfd_lists_of_it(fixture: str) -> None:
    node_ = Beats(machine_of("QPX", kernel="6.8.0-136-generic", kfd_partitions=fixture), HARD)
    node_.beat()
    before, registered = node_.listed(), node_.registered()
    node_.machine.hang(BDFS[0])
    node_.beat()
    assert node_.listed().keys() == before.keys()
    assert node_.registered().keys() == registered.keys()
    assert not all(node_.listed().values())


def test_kfd_is_never_opened() -> None:
    class Watched:
        def __init__(self, machine: Machine) -> None:
            self.machine, self.probed = machine, set[str]()

        def __getattr__(self, name: str) -> Any:
            return getattr(self.machine, name)

        def probe(self, path: str) -> None:
            self.probed.add(path)
            self.machine.probe(path)

    host = Watched(machine_of("CPX"))
    Beats(host).beat()
    assert host.probed == {f"/dev/dri/renderD{minor}" for minor in range(128, 144)}


# The exporter


@pytest.mark.parametrize("word", ["unhealthy", "Healthy", "HEALTHY", "healthy ", "", "unknown"])
def test_only_healthy_exactly_is_healthy(word: str) -> None:
    node_ = Beats(machine_of())
    assert node_.beat(Reports({BDFS[0]: word, BDFS[1]: "healthy"})) == {BDFS[0]: False, BDFS[1]: True}


def test_the_exporter_names_gpus_by_pci_address_in_any_of_its_spellings() -> None:
    assert complaints(Reports({"0000:75:00:0": "sick", " 0000:05:00.0": "x", "nowhere": "x"})).keys() == {
        "0000:75:00.0",
        "0000:05:00.0",
        "nowhere",
    }


def test_of_two_gpus_the_splits_of_the_one_the_exporter_names_are_unhealthy() -> None:
    node_ = Beats(machine_of())
    node_.beat(Reports({BDFS[0]: "unhealthy", BDFS[1]: "healthy"}))
    assert node_.listed() == {f"{bdf}#{slot}": bdf == BDFS[1] for bdf in BDFS[:2] for slot in range(10)}


def test_a_partition_inherits_what_the_exporter_says_of_its_parent() -> None:
    machine = Machine(node("MI308X", 4, kernel="6.14", driver="dkms-6.14.14", gpu={"mode": "CPX"}))
    node_ = Beats(machine, HARD)
    node_.beat(Reports({BDFS[1]: "unhealthy"}))
    sick = {name.partition("#")[0] for name, healthy in node_.listed().items() if not healthy}
    ways = machine.gpu(BDFS[1]).partitions
    assert sick == {BDFS[1], *(f"amdgpu_xcp_{7 + number}" for number in range(ways - 1))}


def test_a_gpu_the_exporter_does_not_know_is_judged_by_its_nodes_alone() -> None:
    node_ = Beats(machine_of())
    assert node_.beat(Reports({BDFS[0]: "sick", "0000:99:00.0": "sick"})) == {BDFS[0]: False, BDFS[1]: True}


def test_what_the_exporter_said_stands_while_it_is_silent_and_goes_with_it() -> None:
    node_ = Beats(machine_of())
    sick = {BDFS[0]: False, BDFS[1]: True}
    assert node_.beat(Reports({BDFS[0]: "sick"})) == sick
    for _ in range(4):
        assert node_.beat(Reports(silent=True)) == sick
    assert node_.beat() == sick  # its socket is gone: one good look
    assert node_.beat() == {BDFS[0]: True, BDFS[1]: True}


def test_a_foreign_word_is_made_harmless_before_it_is_said() -> None:
    node_ = Beats(machine_of())
    node_.beat(Reports({BDFS[0]: "bad\n\x1b[31m" + "x" * 500}))
    assert node_.inventory is not None
    reason = node_.inventory.health[BDFS[0]].reason
    assert reason.isprintable()
    assert len(reason) < 150


def test_the_exporter_is_asked_only_while_health_is_looked_at() -> None:
    found = source(CU)
    assert found is not None
    assert (found.socket, found.services) == (SOCKET, SERVICES)
    assert source(Settings(pulse=0)) is None
    moved = source(Settings(pulse=1, exporter_socket="/run/x"))
    assert moved is not None
    assert moved.socket == "/run/x"


# Between the looks


def test_between_two_pulses_the_last_verdict_stands() -> None:
    node_ = Beats(machine_of())
    node_.machine.hang(BDFS[0])
    node_.beat()
    node_.machine.recover(BDFS[0])
    for _ in range(5):  # rediscoveries without a look at health
        node_.inventory = node_.vendor.discover(node_.machine, CU, node_.inventory)
        assert [gpu.healthy for gpu in node_.inventory.gpus] == [False, True]


def test_a_gpu_that_left_and_came_back_is_judged_anew() -> None:
    node_ = Beats(machine_of())
    node_.machine.hang(BDFS[0])
    node_.beat()
    node_.machine.remove(BDFS[0])
    node_.beat()
    node_.machine.add(BDFS[0])
    assert node_.beat()[BDFS[0]] is True


def test_another_gpu_in_the_same_slot_does_not_inherit_a_verdict() -> None:
    node_ = Beats(machine_of())
    node_.machine.hang(BDFS[0])
    node_.beat()
    assert node_.inventory is not None
    first, second = node_.inventory.gpus
    other = replace(node_.inventory, gpus=(replace(first, id="another", healthy=True), second), health={})
    after: Mapping[str, Standing] = carried(other, node_.inventory).health
    assert set(after) == {BDFS[1]}


def test_looks_that_change_no_verdict_leave_an_equal_inventory() -> None:
    node_ = Beats(machine_of())
    node_.beat(Reports({BDFS[0]: "sick"}))
    before = node_.inventory
    node_.beat()
    assert node_.inventory == before  # one good look is not enough, and nothing is to be announced
    assert node_.inventory is not None
    assert look(node_.machine, node_.inventory, QUIET) != before
