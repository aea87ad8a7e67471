"""What npu-smi says, read: its layouts, where it is found, and words that mean nothing (decision 42, A.5)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devplugin.ascend import smi
from devplugin.ascend.smi import NAME, PLACES, BoardInfo, Row, SmiError, Vnpu
from gpusim.errors import GpusimError

from .nodes import node

DOWN = "dcmi module initialize failed. ret is -8005\n"


def said(fixture: str, *arguments: str) -> str:
    return smi.ask(node(fixture), PLACES[0], *arguments)


def test_chips_without_a_column_of_physical_ids() -> None:
    rows = smi.chips(said("310p3", "info", "-m"))
    assert rows == (Row(4, 0, 0, None, "310P3"), Row(5, 0, 1, None, "310P3"))


def test_chips_with_a_column_of_physical_ids_and_two_of_a_card() -> None:
    rows = smi.chips(said("910c", "info", "-m"))
    assert len(rows) == 16
    assert rows[:3] == (
        Row(0, 0, 0, 0, "Ascend910"),
        Row(0, 1, 1, 1, "Ascend910"),
        Row(1, 0, 2, 2, "Ascend910"),
    )


def test_rows_come_by_logic_id_and_the_mcu_is_no_chip() -> None:
    text = (
        "\tNPU ID    Chip ID    Chip Logic ID   Chip Name\n"
        "\t7         0          1               Ascend 910B4\n"
        "\t7         1          -               Mcu\n"
        "\t2         0          0               Ascend 910B4\n"
        "\t2         1          -               Mcu\n"
    )
    assert smi.chips(text) == (Row(2, 0, 0, None, "910B4"), Row(7, 0, 1, None, "910B4"))


def test_a_table_without_rows_is_a_node_without_chips() -> None:
    assert smi.chips("\tNPU ID   Chip ID   Chip Logic ID   Chip Name\n") == ()


HEAD = "NPU ID  Chip ID  Chip Logic ID  Chip Name\n"


@pytest.mark.parametrize(
    "text",
    [
        "",
        DOWN,
        "NPU ID  Chip ID  Chip Logic ID  Chip Type\n0 0 0 Ascend 910B4\n",
        "NPU ID  Chip Name\n0 0 0 Ascend 910B4\n",
        HEAD + "0 0 x Ascend 910B4\n",
        HEAD + "0 0 0\n",
        HEAD + "0 0\n",
        HEAD + "-1 0 0 Ascend 910B4\n",
        HEAD + "0 0 0 Ascend 910B4\n0 0 1 Ascend 910B4\n",
        HEAD + "0 0 0 Ascend 910B4\n1 0 0 Ascend 910B4\n",
        HEAD + "0 0 0 Ascend 910B4\n" + DOWN,
        HEAD + "9999999999 0 0 Ascend 910B4\n",
        HEAD + "0 0 0 Ascend 910\x1bB4\n",
        "NPU ID  Chip ID  Chip Logic ID  Chip Phy-ID  Chip Name\n0 0 0 1 Ascend910\n0 1 1 1 Ascend910\n",
    ],
)
def test_a_table_of_chips_that_cannot_be_read_is_an_error(text: str) -> None:
    with pytest.raises(SmiError, match=r"^npu-smi info -m: cannot be read: '"):
        smi.chips(text)


def test_the_vdie_words_are_joined_to_the_uuid() -> None:
    text = "\tNPU ID : 0\n\tChip Type : Ascend\n\tVDie ID : 7866F664 80406578 6B60A233 E0500485 104301E3\n"
    assert smi.board(text) == BoardInfo("7866F664-80406578-6B60A233-E0500485-104301E3", "Ascend")
    board = smi.board(said("910b4", "info", "-t", "board", "-i", "0", "-c", "0"))
    assert len(board.uuid.split("-")) == 5


@pytest.mark.parametrize(
    "vdie", ["", "NA", "7866F664 NA", "7866F664-80406578", "1 2 3 4 5 6 7 8 9", "123456789"]
)
def test_a_chip_that_does_not_tell_its_vdie_is_an_error(vdie: str) -> None:
    with pytest.raises(SmiError, match=r"^npu-smi info -t board -i 0 -c 0: cannot be read: '"):
        smi.board(f"\tChip Type : Ascend\n\tVDie ID : {vdie}\n", "info -t board -i 0 -c 0")


def test_a_vdie_has_one_to_eight_words() -> None:
    assert smi.board("VDie ID : 7866F664\n").uuid == "7866F664"
    assert smi.board("VDie ID : 1 2 3 4 5 6 7 8\n").uuid == "1-2-3-4-5-6-7-8"
    with pytest.raises(SmiError):
        smi.board("\tNPU ID : 0\n")


def test_a_physical_id_leads_to_card_and_chip() -> None:
    assert smi.place(said("310p3", "info", "-t", "phyid-remap", "-p", "1")) == (5, 0)
    with pytest.raises(SmiError, match=r"phyid-remap: cannot be read: 'The chip of phy id 9"):
        smi.place(said("310p3", "info", "-t", "phyid-remap", "-p", "9"))


@pytest.mark.parametrize(
    ("fixture", "words"),
    [
        ("310p3", {(4, 0): "OK", (5, 0): "OK"}),
        ("910c", {(card, chip): "OK" for card in range(8) for chip in (0, 1)}),
        (
            "910b4-mixed-health",
            dict(
                zip(
                    [(card, 0) for card in range(8)],
                    ["OK", "Warning", "OK", "Alarm", "OK", "Critical", "OK", "UNKNOWN"],
                    strict=True,
                )
            ),
        ),
    ],
)
def test_the_overview_tells_every_chips_health(fixture: str, words: dict[tuple[int, int], str]) -> None:
    assert smi.health(said(fixture, "info")) == words


def test_a_chip_whose_rows_are_mangled_is_not_in_the_overview() -> None:
    text = said("910b4", "info").replace("0000:C2:00.0", "0000:C2      ")
    assert sorted(smi.health(text)) == [(card, 0) for card in range(8) if card != 1]


@pytest.mark.parametrize("text", ["", DOWN, "| 0 910B4 | OK | x |\n", "+---+\n| a | b | c |\n"])
def test_an_overview_without_a_chip_is_an_error(text: str) -> None:
    with pytest.raises(SmiError, match=r"^npu-smi info: cannot be read: "):
        smi.health(text)


def test_slices_of_a_chip_with_and_without_a_container() -> None:
    machine = node("310p3-template")
    arguments = ("info", "-t", "info-vnpu", "-i", "4", "-c", "0")
    idle = smi.vnpus(smi.ask(machine, PLACES[0], *arguments))
    assert [(v.number, v.template, v.idle) for v in idle] == [
        (100, "vir01", True),
        (101, "vir02", True),
        (102, "vir02", True),
    ]
    machine.npus.use(101, "0123456789ab")
    used = smi.vnpus(smi.ask(machine, PLACES[0], *arguments))
    assert used[1] == Vnpu(101, 0, "0123456789ab", 1, "vir02")
    assert [v.idle for v in used] == [True, False, True]
    assert smi.vnpus(smi.ask(machine, PLACES[0], "info", "-t", "info-vnpu", "-i", "5", "-c", "0")) == ()


def test_idle_is_a_slice_without_a_container_whose_status_is_0() -> None:
    assert Vnpu(100, 0, "000000000000", 0, "vir01").idle
    assert not Vnpu(100, 0, "000000000000", 1, "vir01").idle
    assert not Vnpu(100, 0, "0123456789ab", 0, "vir01").idle


def test_a_chip_that_the_overview_shows_twice_or_without_a_word_is_an_error() -> None:
    rows = "| 0 910B4 | OK | x |\n| 0 | 0000:C1:00.0 | y |\n"
    assert smi.health(rows) == {(0, 0): "OK"}
    for text in (rows + rows, rows.replace("OK", "  ")):
        with pytest.raises(SmiError):
            smi.health(text)


TABLE = said("310p3-template", "info", "-t", "info-vnpu", "-i", "4", "-c", "0")


@pytest.mark.parametrize(
    "text",
    [
        "",
        DOWN,
        TABLE.replace("Total number of vnpu: 3", "Total number of vnpu: 4"),
        TABLE.replace("Total number of vnpu: 3", "Total number of vnpu: x"),
        TABLE.replace("  101      ", "  abc      "),
        TABLE.replace("Vnpu ID", "Vnpu Id"),
        "\n".join(line for line in TABLE.splitlines() if "Vnpu ID" not in line),
        TABLE.replace("000000000000", "0000-0000", 1),
        TABLE.replace("vir01", "     "),
        "\n".join(line for line in TABLE.splitlines() if "  102  " not in line),
    ],
)
def test_a_table_of_slices_is_read_whole_or_not_at_all(text: str) -> None:
    with pytest.raises(SmiError, match=r"^npu-smi info -t info-vnpu: cannot be read: '"):
        smi.vnpus(text)


def test_g4_the_tool_is_found_in_the_first_of_its_places() -> None:
    assert smi.find(node("910b4")) == "/usr/local/Ascend/driver/tools/npu-smi"
    assert smi.find(node("910b4-sbin-status0")) == "/usr/local/sbin/npu-smi"


def test_neither_a_directory_nor_a_file_without_execute_bit_is_the_tool() -> None:
    machine = node("910b4")
    machine.chmod(PLACES[0], 0o644)
    assert smi.find(machine) == "/usr/local/bin/npu-smi"
    machine.chmod(PLACES[0], 0o001)  # any execute bit will do
    assert smi.find(machine) == PLACES[0]
    machine.unlink(PLACES[0])
    machine.mkdir(PLACES[0])
    machine.unlink(PLACES[2])
    assert smi.find(machine) == NAME


def test_a_tool_that_is_nowhere_is_said_with_the_places_it_was_looked_for() -> None:
    machine = node("910b4")
    for path in (PLACES[0], PLACES[2]):
        machine.unlink(path)
    with pytest.raises(SmiError) as caught:
        smi.ask(machine, smi.find(machine), "info", "-m")
    assert str(caught.value) == (
        "npu-smi not found in [/usr/local/Ascend/driver/tools/npu-smi /usr/local/sbin/npu-smi "
        "/usr/local/bin/npu-smi] or PATH"
    )


def test_a_tool_that_cannot_be_run_is_said_with_the_command() -> None:
    machine = node("910b4")
    machine.chmod(PLACES[0], 0o644)
    with pytest.raises(SmiError, match=r"^npu-smi info -m: EACCES$"):
        smi.ask(machine, PLACES[0], "info", "-m")


@pytest.mark.parametrize("status", [0, 1, 255])
def test_the_exit_status_proves_nothing(status: int) -> None:
    machine = node("910b4")
    machine.npu_smi_fails("info -m", DOWN, status)
    with pytest.raises(SmiError, match=r"'dcmi module initialize failed\. ret is -8005'$"):
        smi.chips(smi.ask(machine, PLACES[0], "info", "-m"))


def test_what_it_said_is_quoted_bounded_and_printable() -> None:
    with pytest.raises(SmiError) as caught:
        smi.chips("\x1b[31m" + "é" * 10000)
    assert len(str(caught.value)) < 1200
    assert str(caught.value).isascii()
    assert str(caught.value).isprintable()


PARSERS = (smi.chips, smi.board, smi.place, smi.health, smi.vnpus)
GOOD = [
    said("910c", "info", "-m"),
    said("910c", "info"),
    said("310p3", "info"),
    said("910b4", "info", "-t", "board", "-i", "0", "-c", "0"),
    TABLE,
]


@st.composite
def mangled(draw: st.DrawFn) -> str:
    """An answer with some of its lines cut, doubled or spoiled."""
    lines = draw(st.sampled_from(GOOD)).splitlines()
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(lines) - 1))
        line = lines[at]
        cut = draw(st.integers(0, len(line)))
        word = draw(st.text(max_size=3))
        lines[at : at + 1] = draw(
            st.sampled_from([[], [line, line], [line[:cut]], [line[:cut] + word + line[cut:]]])
        ) or [""]
    return "\n".join(lines)


@given(mangled() | st.text())
def test_whatever_it_says_is_read_or_is_an_error_in_one_line(text: str) -> None:
    for parse in PARSERS:
        try:
            parse(text)
        except SmiError as error:
            assert str(error).isprintable()


@given(st.data())
def test_whatever_goes_wrong_with_the_table_no_chip_is_invented(data: st.DataObject) -> None:
    text = data.draw(mangled())
    try:
        rows = smi.chips(text)
    except SmiError:
        return
    assert len({(row.card, row.device) for row in rows}) == len(rows)
    assert [row.logic for row in rows] == sorted({row.logic for row in rows})


def test_a_form_the_machine_does_not_have_is_none_we_ask() -> None:
    machine = node("910b4")
    for form in ("info -m", "info", "info -t board", "info -t phyid-remap", "info -t info-vnpu"):
        machine.npu_smi_fails(form, None)  # refuses a form it does not know
    with pytest.raises(GpusimError):
        machine.npu_smi_fails("info -x", None)
