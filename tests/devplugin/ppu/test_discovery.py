"""Which PPUs a node has: all or nothing, N/A for one card alone, a late driver, minors that are no index."""

from __future__ import annotations

import pytest

from devplugin.ppu import health
from devplugin.ppu.inventory import Inventory, Skipped
from devplugin.ppu.settings import Settings
from devplugin.ppu.vendor import Ppu as Vendor
from devplugin.ppu.words import HOST, PRELOAD

from ..asked import Asked
from .nodes import DOWN, FIXTURES, PLACE, QUERY, install, look, node, some


def uuids(inventory: Inventory) -> list[str]:
    return [ppu.uuid for ppu in inventory.ppus]


@pytest.mark.parametrize("name", FIXTURES)
def test_what_is_found_is_the_machines_state(name: str) -> None:
    machine = node(name.partition("/")[2])
    found = look(machine)
    whole = [
        ppu
        for ppu in machine.ppus
        if machine.spec.ppu_loaded
        and all(ppu.knows(field) for field in ("uuid", "memory.total", "minor_number"))
    ]
    assert [(ppu.uuid, ppu.minor, ppu.bdf, ppu.memory_mib, ppu.numa, ppu.healthy) for ppu in found.ppus] == [
        (ppu.uuid, ppu.minor, ppu.bdf, ppu.product.memory_mib, ppu.numa, True) for ppu in whole
    ]
    assert len(found.ppus) + len(found.skipped) == (len(machine.ppus) if machine.spec.ppu_loaded else 0)
    assert bool(found.trouble) != machine.spec.ppu_loaded
    assert found.tool == (PLACE if machine.spec.ppu_loaded else "")


def test_the_device_node_is_the_minor_number_and_not_the_index() -> None:
    found = look(node("zw810e-minor-shift"))
    assert [(ppu.index, ppu.minor) for ppu in found.ppus] == [(0, 2), (1, 3), (2, 0), (3, 1)]


def test_only_two_questions_are_asked_and_captures_have_both() -> None:
    host = Asked(node())
    look(host)
    assert host.commands == [QUERY, "-q"]


@pytest.mark.parametrize("status", [0, 1, 255])
def test_a_driver_that_comes_late_is_found_whatever_the_status_was(status: int) -> None:
    machine = node("zw810e-driver-down")
    machine.ppu_smi_fails("-L", None, status)
    before = look(machine)
    assert (before.ppus, before.tool) == ((), "")
    assert "driver is not loaded" in before.trouble
    machine.ppu_load()
    found = look(machine, previous=before)
    assert len(found.ppus) == 4
    assert found.trouble == ""


@pytest.mark.parametrize("form", ["--query-ppu", "-q"])
@pytest.mark.parametrize("text", [DOWN, "", "Segmentation fault\n"])
def test_when_either_question_fails_everything_stays_as_it_was(form: str, text: str) -> None:
    machine = node()
    before = look(machine)
    machine.ppu_smi_fails(form, text)
    found = look(machine, previous=before)
    assert found.ppus == before.ppus
    assert form in found.trouble
    machine.ppu_smi_fails(form, None)
    assert look(machine, previous=found) == before


def test_a_tool_outside_its_place_is_looked_for_in_path_and_missing_is_said() -> None:
    machine = some(1, ppu_smi=("/usr/bin/ppu-smi",))
    assert look(machine).tool == "ppu-smi"
    bare = some(1, ppu_smi=())
    assert look(bare).trouble == "ppu-smi not found in [/usr/local/bin/ppu-smi] or PATH"


def test_a_card_that_never_said_what_is_needed_is_left_out_with_the_field() -> None:
    machine = some(4)
    one, two, three, _ = (ppu.uuid for ppu in machine.ppus)
    machine.ppu_smi_unknown(0, ["memory.total"])
    machine.ppu_smi_unknown(1, ["minor_number"])
    machine.ppu_smi_unknown(2, ["name"])
    machine.ppu_smi_unknown(3, ["uuid"])
    found = look(machine)
    assert found.ppus == ()
    assert found.skipped == (
        Skipped(f"PPU 0 ({one})", "ppu-smi does not know its memory.total"),
        Skipped(f"PPU 1 ({two})", "ppu-smi does not know its Minor Number"),
        Skipped(f"PPU 2 ({three})", "ppu-smi does not know its name"),
        Skipped("PPU 3 (0000:13:00.0)", "ppu-smi does not know its uuid"),
    )


def test_an_unknown_address_costs_only_the_numa_node() -> None:
    machine = some(1)
    machine.ppu_smi_unknown(0, ["pci.bus_id"])
    (ppu,) = look(machine).ppus
    assert (ppu.bdf, ppu.numa, ppu.healthy) == ("", -1, True)


def test_a_card_that_hangs_later_stays_unhealthy_with_what_was_known_of_it() -> None:
    machine = node()
    before = look(machine)
    machine.ppu_health(3, "Hung")
    found = look(machine, previous=before)
    assert uuids(found) == uuids(before)
    assert [ppu.minor for ppu in found.ppus if not ppu.healthy] == [3]
    assert found.ppus[3].reason == "ppu-smi does not know its memory.total any more"
    assert found.ppus[3].memory_mib == 98304
    machine.ppu_health(3, "OK")
    assert look(machine, previous=found) == before


def test_a_card_whose_device_node_is_gone_is_unhealthy() -> None:
    class Torn(Asked):
        def stat(self, path: str, *, follow: bool = True) -> object:
            if path in gone:
                raise FileNotFoundError(2, "gone", path)
            return self.machine.stat(path, follow=follow)

    gone = {"/dev/alixpu_ppu1"}
    found = look(Torn(some(2)))
    assert [ppu.reason for ppu in found.ppus] == ["", "/dev/alixpu_ppu1: ENOENT"]
    gone = {"/dev/alixpu_ctl"}
    assert {ppu.reason for ppu in look(Torn(some(2))).ppus} == {"/dev/alixpu_ctl: ENOENT"}


def test_a_card_that_vanished_is_gone_and_the_others_keep_uuid_and_minor() -> None:
    machine = node()
    before = look(machine)
    machine.ppu_vanish(2)
    found = look(machine, previous=before)
    assert uuids(found) == [
        uuid for ppu, uuid in zip(before.ppus, uuids(before), strict=True) if ppu.minor != 2
    ]
    assert [ppu.minor for ppu in found.ppus] == [0, 1, 3, 4, 5, 6, 7]
    assert [ppu.index for ppu in found.ppus] == list(range(7))


def test_two_cards_with_one_uuid_are_both_left_out() -> None:
    machine = some(2)
    line = "{0}, PPU-ZW810E, GPU-1, 00000000:10:00.0, 98304\n"
    long = "PPU 00000000:10:00.0\n    PPU UUID : GPU-1\n    Minor Number : 0\n"
    host = Asked(machine, {QUERY: line.format(0) + line.format(1), "-q": long})
    found = look(host)
    assert found.ppus == ()
    assert {skipped.reason for skipped in found.skipped} == {"another PPU has the same uuid"}


def test_a_card_that_only_the_query_shows_is_left_out() -> None:
    host = Asked(some(2), {"-q": "PPU 00000000:10:00.0\n    PPU UUID : GPU-1\n    Minor Number : 0\n"})
    assert {skipped.reason for skipped in look(host).skipped} == {"ppu-smi -q does not list it"}


@pytest.mark.parametrize("scaling", [1e-9, 30000.0, 2147483647.0])
def test_memory_that_no_registration_can_hold_is_left_out(scaling: float) -> None:
    found = look(some(1), Settings(memory_scaling=scaling))
    assert found.ppus == ()
    assert "no int32 above 0" in found.skipped[0].reason


def test_a_node_that_does_not_open_is_unhealthy_from_pulse_to_pulse() -> None:
    machine = node("zw810e-8")
    found = health.health(machine, look(machine))
    assert all(ppu.healthy for ppu in found.ppus)
    machine.ppu_health(5, "Hung")
    machine.ppu_smi_unknown(5, [])
    ill = health.health(machine, found)
    assert [ppu.unopened for ppu in ill.ppus if not ppu.healthy] == ["/dev/alixpu_ppu5 does not open: EIO"]
    machine.ppu_health(5, "OK")
    # between pulses nobody opened it: the last verdict stands
    assert [ppu.minor for ppu in look(machine, previous=ill).ppus if not ppu.healthy] == [5]
    assert all(ppu.healthy for ppu in health.health(machine, look(machine, previous=ill)).ppus)


def test_what_an_operator_should_read_is_said_once_each() -> None:
    vendor, settings = Vendor(), Settings()
    machine = some(2)
    machine.unlink(f"{HOST}/{PRELOAD}")
    machine.ppu_smi_unknown(1, ["memory.total"])
    before = look(machine)
    machine.ppu_health(0, "Hung")
    found = look(machine, previous=before)
    assert vendor.notices(found, settings) == (
        f"not offered: PPU 1 ({machine.ppus.minor(1).uuid}): ppu-smi does not know its memory.total",
        f"PPU 0 ({machine.ppus.minor(0).uuid}): unhealthy: ppu-smi does not know its memory.total any more",
        f"every pod will be refused: {HOST}/{PRELOAD}: ENOENT",
    )
    install(machine)
    machine.ppu_unload()
    (first, *_) = vendor.notices(look(machine, previous=found), settings)
    assert first.startswith("PPUs cannot be listed, what was offered before stays: ppu-smi --query-ppu")
    assert vendor.notices(look(machine), settings)[0].startswith("PPUs cannot be listed, nothing is offered")


def test_details_name_every_card_with_index_and_minor() -> None:
    found = look(node("zw810e-minor-shift"))
    lines = Vendor().details(found, Settings())
    assert lines[0] == "ppu-smi: /usr/local/bin/ppu-smi; 2 shares of each PPU"
    assert lines[1].startswith("PPU 0: PPU-ZW810E, 98304 MiB, minor 2, 0000:05:00.0, NUMA node 0, GPU-")
    assert len(lines) == 5
