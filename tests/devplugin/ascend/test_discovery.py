"""Which NPUs a node has: all or none of them, identity for life, health, cards kept back (A.4, G 2, G 14)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devplugin.ascend.inventory import Inventory, Npu, Skipped
from devplugin.ascend.notices import details, notices
from devplugin.ascend.smi import PLACES
from gpusim.ascend.health import WORDS as HEALTH
from gpusim.machine import Machine
from gpusim.spec import NodeSpec, NpuSpec

from ..asked import Asked
from .nodes import chosen, look, node, some

FIXTURES = ("310p3", "910a", "910b2", "910b3", "910b4", "910b4-1", "910c", "910b4-soft", "310p3-template")
DOWN = "dcmi module initialize failed. ret is -8005\n"


@pytest.mark.parametrize("fixture", FIXTURES)
def test_every_chip_is_found_with_the_drivers_own_numbers(fixture: str) -> None:
    machine = node(fixture)
    found = look(machine)
    assert found.trouble == ""
    assert found.skipped == ()
    assert found.tool == PLACES[0]
    assert [(n.uuid, n.logic, n.phy, n.card, n.device, n.name, n.healthy) for n in found.npus] == [
        (n.uuid, n.logic, n.phy, n.card, n.number, n.chip.label, True) for n in machine.npus
    ]
    assert notices(found, chosen()) == ()


def test_the_numbers_of_a_card_need_not_be_those_of_its_device_node() -> None:
    npus = (NpuSpec("310P3", "0000:81:00.0", card=4, phy=7), NpuSpec("310P3", "0000:85:00.0", card=2, phy=0))
    found = look(Machine(NodeSpec("n", "5.15.0", npus=npus)))
    assert [(npu.logic, npu.phy, npu.card) for npu in found.npus] == [(0, 7, 4), (1, 0, 2)]


def test_physical_ids_are_found_without_the_nodes_dev_when_they_are_the_logic_ids() -> None:
    class Bare(Asked):
        def list(self, path: str) -> list[str]:
            return []

    assert [npu.phy for npu in look(Bare(node("910b4"))).npus] == list(range(8))


def test_a_device_node_whose_chip_is_gone_keeps_nobody_from_being_found() -> None:
    phantom = Asked(node("910b4"), {"info -t phyid-remap -p 3": "The chip of phy id 3 does not exist.\n"})
    found = look(phantom)
    assert found.npus == ()
    assert found.trouble == (
        "npu-smi info -t phyid-remap -p 3: cannot be read: 'The chip of phy id 3 does not exist.'"
    )
    # gone from the table, too: its node is only a name that leads nowhere
    table = "\n".join(
        line
        for line in phantom.run((PLACES[0], "info", "-m")).stdout.decode().splitlines()
        if line.split()[:1] != ["3"]
    )
    phantom.answers["info -m"] = table
    assert [npu.phy for npu in look(phantom).npus] == [0, 1, 2, 4, 5, 6, 7]


def test_only_ok_is_healthy_and_the_word_is_told() -> None:
    found = look(node("910b4-mixed-health"))
    assert [(npu.healthy, npu.reason) for npu in found.npus] == [
        (True, ""),
        (False, "Warning"),
        (True, ""),
        (False, "Alarm"),
        (True, ""),
        (False, "Critical"),
        (True, ""),
        (False, "UNKNOWN"),
    ]
    said = [line for line in notices(found, chosen()) if "unhealthy" in line]
    assert len(said) == 4
    assert said[0] == f"NPU 1 chip 0 ({found.npus[1].uuid}): unhealthy: npu-smi says 'Warning'"


def test_a_chip_the_overview_does_not_show_is_not_healthy() -> None:
    machine = node("910b4")
    text = Asked(machine).run((PLACES[0], "info")).stdout.decode().replace("0000:C2:00.0", "NA          ")
    found = look(Asked(machine, {"info": text}))
    assert [npu.healthy for npu in found.npus] == [True, False, *[True] * 6]
    assert found.npus[1].reason == "not in the overview of npu-smi"


def test_a_recovered_card_is_healthy_at_the_next_look() -> None:
    machine = node("910b4")
    first = look(machine)
    machine.npu_health(3, "Alarm", [0x80E01801])
    ill = look(machine, previous=first)
    assert [npu.phy for npu in ill.npus if not npu.healthy] == [3]
    machine.npu_health(3, "OK")
    assert look(machine, previous=ill) == first


@pytest.mark.parametrize("status", [0, 1])
@pytest.mark.parametrize("form", ["", "info -m", "info", "info -t board", "info -t phyid-remap"])
def test_one_question_without_an_answer_is_no_chip_at_the_start(form: str, status: int) -> None:
    machine = node("910b4")
    machine.npu_smi_fails(form, DOWN, status)
    found = look(machine)
    assert found.npus == ()
    assert found.chip is None
    assert "-8005" in found.trouble
    said = notices(found, chosen())
    assert said == (f"NPUs cannot be listed, nothing is offered yet: {found.trouble}",)


@pytest.mark.parametrize("form", ["", "info -m", "info"])
def test_one_question_without_an_answer_leaves_all_chips_as_they_were(form: str) -> None:
    machine = node("910b4")
    before = look(machine)
    machine.npu_smi_fails(form, DOWN, 0)
    machine.npu_health(0, "Alarm")
    found = look(machine, previous=before)
    assert found.trouble
    assert found.npus == before.npus
    assert found.chip == before.chip
    assert "what was offered before stays" in notices(found, chosen())[0]
    machine.npu_smi_fails(form, None)
    again = look(machine, previous=found)
    assert again.trouble == ""
    assert not again.npus[0].healthy


def test_g2_a_driver_that_comes_late_at_boot_needs_no_restart() -> None:
    machine = node("910b4")
    machine.npu_smi_fails("", DOWN, 0)
    inventory: Inventory | None = None
    for _ in range(3):
        inventory = look(machine, previous=inventory)
        assert inventory.npus == ()
    machine.npu_smi_fails("", None)
    assert len(look(machine, previous=inventory).npus) == 8


def test_the_question_without_an_answer_is_named_with_all_its_words() -> None:
    machine = node("310p3")
    machine.npu_smi_fails("info -t board", DOWN, 0)
    assert look(machine).trouble == (
        "npu-smi info -t board -i 4 -c 0: cannot be read: 'dcmi module initialize failed. ret is -8005'"
    )


def test_of_several_physical_ids_without_an_answer_the_first_is_named() -> None:
    machine = node("910b4")
    machine.npu_smi_fails("info -t phyid-remap", DOWN, 0)
    assert look(machine).trouble.startswith("npu-smi info -t phyid-remap -p 0: cannot be read: ")


def test_a_chip_that_no_physical_id_leads_to_is_said() -> None:
    elsewhere = "\tNPU ID : 5\n\tChip ID : 0\n"
    machine = Asked(node("310p3"), {"info -t phyid-remap -p 0": elsewhere})
    assert look(machine).trouble == "npu-smi info -t phyid-remap: no physical id is NPU 4 chip 0"


def test_no_more_is_asked_than_is_not_known_yet() -> None:
    column, none = Asked(node("910c")), Asked(node("310p3"))
    assert look(column).trouble == look(none).trouble == ""
    assert not any("phyid-remap" in command for command in column.commands)
    assert [c for c in none.commands if "phyid-remap" in c] == [
        "info -t phyid-remap -p 0",
        "info -t phyid-remap -p 1",
    ]
    one = Asked(some(3), {"info -m": "NPU ID  Chip ID  Chip Logic ID  Chip Name\n0 0 0 Ascend 910B4\n"})
    assert [npu.phy for npu in look(one).npus] == [0]
    assert [c for c in one.commands if "phyid-remap" in c] == ["info -t phyid-remap -p 0"]


def test_a_tool_that_is_not_there_is_said_with_its_places() -> None:
    machine = node("910b4")
    for path in (PLACES[0], PLACES[2]):
        machine.unlink(path)
    assert look(machine).trouble == (
        "npu-smi not found in [/usr/local/Ascend/driver/tools/npu-smi /usr/local/sbin/npu-smi "
        "/usr/local/bin/npu-smi] or PATH"
    )


def test_a_uuid_is_asked_for_once_in_the_life_of_the_process() -> None:
    machine = Asked(node("910b4"))
    first = look(machine)
    assert sum("board" in command for command in machine.commands) == 8
    machine.commands.clear()
    # even one that says something else now
    machine.answers["info -t board -i 0 -c 0"] = "\tVDie ID : 1 2 3 4 5\n"
    assert look(machine, previous=first) == first
    assert machine.commands == ["info -m", "info"]


def test_a_chip_whose_type_is_not_ascend_is_left_out_with_the_reason() -> None:
    machine = Asked(node("910b4"))
    machine.answers["info -t board -i 1 -c 0"] = "\tChip Type : Kunpeng\n\tVDie ID : 1 2 3 4 5\n"
    found = look(machine)
    assert [npu.card for npu in found.npus] == [0, 2, 3, 4, 5, 6, 7]
    assert found.skipped == (Skipped("NPU 1 chip 0", "chip type is not Ascend: 'Kunpeng'"),)


def test_a_chip_that_does_not_tell_its_type_is_taken_for_an_ascend() -> None:
    machine = Asked(some(1), {"info -t board -i 0 -c 0": "\tVDie ID : 1 2 3 4 5\n"})
    assert [npu.uuid for npu in look(machine).npus] == ["1-2-3-4-5"]


def test_p34_a_chip_that_the_configuration_does_not_know_is_left_out_with_the_reason() -> None:
    known = tuple(chip for chip in chosen().chips if chip.chip != "910B4")
    found = look(node("910b4"), chosen(chips=known))
    assert found.chip is None
    assert found.npus == ()
    assert {skipped.reason for skipped in found.skipped} == {"can not find vnpu config for chip 910B4"}
    assert len(found.skipped) == 8
    assert any("can not find vnpu config for chip 910B4" in line for line in notices(found, chosen()))


def test_a_node_has_one_kind_of_chip() -> None:
    npus = tuple(NpuSpec(chip, f"0000:0{i}:00.0") for i, chip in enumerate(["910B4", "910B3", "910B4"], 1))
    found = look(Machine(NodeSpec("n", "5.15.0", npus=npus)))
    assert found.chip is not None
    assert found.chip.word == "Ascend910B4"
    assert [npu.card for npu in found.npus] == [0, 2]
    (skipped,) = found.skipped
    assert skipped.reason == "a node has one kind of chip, and this one's is 910B4"


def test_two_chips_of_one_uuid_are_both_left_out() -> None:
    machine = Asked(some(3))
    same = "\tChip Type : Ascend\n\tVDie ID : 1 2 3 4 5\n"
    machine.answers |= {f"info -t board -i {card} -c 0": same for card in (0, 1)}
    found = look(machine)
    assert [npu.card for npu in found.npus] == [2]
    assert {skipped.reason for skipped in found.skipped} == {"another chip has the same VDie ID"}


def test_cards_are_kept_back_by_card_id_and_by_exact_uuid() -> None:
    machine = node("310p3")  # NPU 4 and 5, logic and physical ids 0 and 1
    uuids = [npu.uuid for npu in machine.npus]
    assert [npu.card for npu in look(machine, chosen(filtered_cards=frozenset({4}))).npus] == [5]
    assert [npu.card for npu in look(machine, chosen(filtered_cards=frozenset({0, 1}))).npus] == [4, 5]
    kept = look(machine, chosen(filtered_uuids=frozenset({uuids[1], uuids[0][:8]})))
    assert [npu.card for npu in kept.npus] == [4]
    assert kept.skipped == (
        Skipped(f"NPU 5 chip 0 ({uuids[1]})", "kept back by the node configuration: filterDevices.uuid"),
    )


def test_a_kept_back_card_that_is_not_there_is_said_once() -> None:
    settings = chosen(filtered_cards=frozenset({4, 9}))
    said = notices(look(node("310p3"), settings), settings)
    assert "filterDevices.index: the node has no card 9" in said


def test_when_all_cards_are_kept_back_the_kind_of_chip_is_still_known() -> None:
    found = look(node("310p3"), chosen(filtered_cards=frozenset({4, 5})))
    assert found.chip is not None
    assert found.chip.word == "Ascend310P"
    assert found.npus == ()


def test_chips_that_all_left_leave_their_kind() -> None:
    machine = Asked(node("910b4"))
    first = look(machine)
    machine.answers["info -m"] = "NPU ID  Chip ID  Chip Logic ID  Chip Name\n"
    machine.answers["info"] = "no chips\n"  # not asked for then
    gone = look(machine, previous=first)
    assert (gone.npus, gone.chip, gone.trouble) == ((), first.chip, "")


def test_p26_more_cards_are_found_when_they_come() -> None:
    two, four = some(2), some(4)
    first = look(two)
    assert len(first.npus) == 2
    machine = Asked(four)
    later = look(machine, previous=first)
    assert len(later.npus) == 4
    assert later.npus[:2] == first.npus
    assert sum("board" in command for command in machine.commands) == 2


def test_numbers_that_the_driver_deals_anew_are_taken_together() -> None:
    machine = Asked(node("310p3"))
    first = look(machine)
    head = "NPU ID  Chip ID  Chip Logic ID  Chip Name"
    machine.answers["info -m"] = "\n".join(
        [head, "\t4  0  1  Ascend 310P3", "\t4  1  -  Mcu", "\t5  0  0  Ascend 310P3", "\t5  1  -  Mcu"]
    )
    machine.answers["info -t phyid-remap -p 0"] = "\tNPU ID : 5\n\tChip ID : 0\n"
    machine.answers["info -t phyid-remap -p 1"] = "\tNPU ID : 4\n\tChip ID : 0\n"
    later = look(machine, previous=first)
    assert [(npu.card, npu.logic, npu.phy) for npu in later.npus] == [(5, 0, 0), (4, 1, 1)]
    assert {npu.card: npu.uuid for npu in later.npus} == {npu.card: npu.uuid for npu in first.npus}


def test_physical_ids_of_the_table_are_taken_from_each_table_anew() -> None:
    machine = Asked(node("910c"))
    first = look(machine)
    head = "NPU ID  Chip ID  Chip Logic ID  Chip Phy-ID  Chip Name"
    machine.answers["info -m"] = f"{head}\n0 0 0 1 Ascend910\n0 1 1 0 Ascend910\n"
    later = look(machine, previous=first)
    assert [(npu.device, npu.phy) for npu in later.npus] == [(0, 1), (1, 0)]
    assert [npu.uuid for npu in later.npus] == [npu.uuid for npu in first.npus[:2]]


def test_g14_chips_of_one_card_are_told_apart_by_both_numbers() -> None:
    found = look(node("910c"))
    assert len({(npu.card, npu.device) for npu in found.npus}) == 16
    assert {npu.device for npu in found.npus} == {0, 1}
    assert found.npu(found.npus[1].uuid) == found.npus[1]
    assert found.npu("none") is None


def test_the_details_tell_every_chip() -> None:
    found = look(node("310p3"))
    first, *chips = details(found, chosen())
    assert (
        first == f"npu-smi: {PLACES[0]}; chips: 310P3 as huawei.com/Ascend310P, 21527 MiB; 7 shares of each"
    )
    assert chips[0] == f"NPU 4 chip 0: 310P3, logic id 0, phy id 0, {found.npus[0].uuid}"
    assert details(Inventory(), chosen()) == ("npu-smi: not asked yet; chips: unknown; 1 shares of each",)


@given(st.lists(st.tuples(st.integers(0, 7), st.sampled_from(HEALTH)), max_size=6), st.data())
def test_after_any_history_the_inventory_is_the_machine(
    steps: list[tuple[int, str]], data: st.DataObject
) -> None:
    machine = node("910b4")
    inventory: Inventory | None = None
    before: tuple[Npu, ...] = ()
    for phy, word in steps:
        machine.npu_health(phy, word)
        broken = data.draw(st.sampled_from([None, "", "info", "info -m"]))
        if broken is not None:
            machine.npu_smi_fails(broken, data.draw(st.sampled_from(["", DOWN, "| 0 x | OK | y |"])), 0)
        inventory = look(machine, previous=inventory)
        if broken is None:
            assert [(n.uuid, n.healthy) for n in inventory.npus] == [
                (n.uuid, n.health.value == "OK") for n in machine.npus
            ]
        else:
            assert inventory.npus == before
            machine.npu_smi_fails(broken, None)
        before = inventory.npus
