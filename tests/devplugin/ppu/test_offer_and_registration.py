"""What kubelet and the scheduler are told: D.2, D.3, decisions 41 and 52."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given as each
from hypothesis import strategies as st

from devplugin.hami import Node
from devplugin.ppu.inventory import Inventory, Ppu
from devplugin.ppu.offer import offers
from devplugin.ppu.registration import leftovers, node_patch, registration, type_of
from devplugin.ppu.settings import Settings
from devplugin.ppu.vendor import Ppu as Vendor

from .nodes import look, node

REGISTER, HANDSHAKE = "hami.io/node-register-ppu", "hami.io/node-handshake-ppu"
CARD = Ppu("GPU-1", 0, 0, "PPU-ZW810E", "0000:05:00.0", 98304)


def one(**more: object) -> Inventory:
    return Inventory((replace(CARD, **more),), tool="ppu-smi")  # type: ignore[arg-type]


def test_the_entry_is_decision_52s() -> None:
    (entry,) = registration(one(numa=1, index=3), Settings(split=4, memory_scaling=1.5, core_scaling=0.5))
    assert entry == {
        "id": "GPU-1",
        "index": 3,
        "count": 4,
        "devmem": 147456,
        "devcore": 50,
        "type": "PPU-ZW810E",
        "numa": 1,
        "health": True,
    }


def test_zero_values_are_left_out_and_an_unknown_numa_node_is_not_zero() -> None:
    assert set(registration(one(numa=0), Settings())[0]) == {
        "id",
        "count",
        "devmem",
        "devcore",
        "type",
        "health",
    }
    assert "health" not in registration(one(trouble="ill"), Settings())[0]
    assert registration(one(), Settings())[0]["numa"] == -1


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("PPU-ZW810E", "PPU-ZW810E"),
        ("ZW810E", "PPU-ZW810E"),
        ("PPU", "PPU-PPU"),
        ("PPU ZW810E", "PPU-PPU ZW810E"),
        ("ZW,8:1;0E", "PPU-ZW810E"),
    ],
)
def test_the_type_begins_with_ppu_once_and_has_nothing_of_the_grammar(name: str, kind: str) -> None:
    assert type_of(name) == kind


@pytest.mark.parametrize(
    ("scaling", "cores"), [(1.0, 100), (0.005, 1), (0.125, 13), (1.234, 123), (2.0, 200)]
)
def test_cores_are_rounded_halves_up(scaling: float, cores: int) -> None:
    assert registration(one(), Settings(core_scaling=scaling))[0]["devcore"] == cores


@each(st.integers(1, 1 << 20), st.floats(0.01, 100, allow_nan=False))
def test_memory_is_truncated_and_never_more_than_was_scaled(mib: int, scaling: float) -> None:
    found = Settings(memory_scaling=scaling).memory_mib(mib)
    exact = Fraction(mib) * Fraction(scaling)
    assert exact - 1 - exact * Fraction(1, 1 << 50) < found <= exact + exact * Fraction(1, 1 << 50)


@each(st.floats(0.005, 1000, allow_nan=False))
def test_cores_are_the_nearest_whole_percent(scaling: float) -> None:
    assert abs(Fraction(Settings(core_scaling=scaling).cores) - 100 * Fraction(scaling)) <= Fraction(
        1, 2
    ) + Fraction(1, 1 << 30)


def test_cards_and_handshake_go_in_one_patch_and_no_capacity() -> None:
    patch = node_patch(look(node()), Settings(), 1_700_000_000.0)
    assert set(patch.annotations) == {REGISTER, HANDSHAKE}
    assert patch.capacity == {}
    assert len(json.loads(patch.annotations[REGISTER] or "")) == 8
    assert re.fullmatch(r"Reported_\d{4}\.\d\d\.\d\d \d\d:\d\d:\d\d", patch.annotations[HANDSHAKE] or "")


def test_before_the_first_look_nothing_is_told_and_without_a_card_an_empty_list() -> None:
    unknown = look(node("zw810e-driver-down"))
    assert node_patch(unknown, Settings(), 0.0).annotations == {}
    assert offers(unknown, Settings()) == {}
    machine = node("zw810e-1")
    machine.ppu_vanish(0)
    empty = look(machine)
    assert node_patch(empty, Settings(), 0.0).annotations[REGISTER] == "[]"
    assert offers(empty, Settings())["alibaba.com/ppu"].devices == ()


def test_kubelet_is_told_a_name_for_each_share_of_each_card() -> None:
    found = look(node("zw810e-hung"), previous=one(uuid="GPU-9e2e2124-d10f-60a0-0000-000065e53781"))
    (offer,) = offers(found, Settings(split=3, resource="a.b/c")).values()
    assert (offer.resource, offer.preferred) == ("a.b/c", False)
    first, second = (ppu.uuid for ppu in found.ppus)
    assert [(device.id, device.healthy) for device in offer.devices] == [
        *((f"{first}-{share}", True) for share in range(3)),
        *((f"{second}-{share}", False) for share in range(3)),
    ]


def test_numa_nodes_reach_kubelet_only_when_they_are_known() -> None:
    assert offers(one(numa=1), Settings())["alibaba.com/ppu"].devices[0].numa == (1,)
    assert offers(one(numa=0), Settings())["alibaba.com/ppu"].devices[0].numa == (0,)
    assert offers(one(), Settings())["alibaba.com/ppu"].devices[0].numa == ()


def test_what_is_left_after_an_uninstall_is_ours_alone() -> None:
    theirs = {"hami.io/node-register-xpu": "[]", "hami.io/node-handshake-Ascend910B4": "x"}
    found = Node("n", "u", {REGISTER: "[]", HANDSHAKE: "Reported_x", **theirs})
    assert leftovers(found).annotations == {REGISTER: None, HANDSHAKE: None}


def test_events_tell_who_got_ill_is_gone_or_is_well_again() -> None:
    vendor, settings = Vendor(), Settings()
    machine = node("zw810e-8")
    found = look(machine)
    effects, seen = vendor.events(found, settings, None)
    assert effects == ()
    machine.ppu_health(2, "Hung")
    machine.ppu_vanish(5)
    found = look(machine, previous=found)
    effects, seen = vendor.events(found, settings, seen)
    assert sorted(getattr(effect, "reason", "") for effect in effects) == ["PPUMissing", "PPUUnhealthy"]
    assert vendor.events(found, settings, seen)[0] == ()
    machine.ppu_health(2, "OK")
    machine.ppu_return(5)
    effects, _ = vendor.events(look(machine, previous=found), settings, seen)
    assert [getattr(effect, "reason", "") for effect in effects] == ["PPURecovered", "PPURecovered"]
