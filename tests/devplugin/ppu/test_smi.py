"""ppu-smi's answers as values: N/A is not known, another form is an error, statuses are not looked at."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given as each
from hypothesis import strategies as st

from devplugin.ppu import smi
from devplugin.ppu.smi import QUERY, TOOL, Row, Use
from devplugin.vendortool import ToolError

from .nodes import DOWN, FIXTURES, node, some

UUID = "GPU-019ea108-c110-0828-0000-0000c07e1a46"
LINE = f"0, PPU-ZW810E, {UUID}, 00000000:05:00.0, 98304\n"
LONG = f"""
==============PPU-SMI LOG==============

Driver Version                            : 1.4.0
PPU 00000000:05:00.0
    Product Name                          : PPU-ZW810E
    PPU UUID                              : {UUID}
    Minor Number                          : 3
"""


def test_the_query_is_decision_54s() -> None:
    assert " ".join(QUERY) == (
        "--query-ppu=index,name,uuid,pci.bus_id,memory.total --format=csv,noheader,nounits"
    )


def test_a_row_is_read_and_its_address_spelt_as_sysfs_does() -> None:
    assert smi.rows(LINE) == (Row(0, "PPU-ZW810E", UUID, "0000:05:00.0", 98304),)
    assert smi.rows(LINE.replace("00000000:05", "0001:AB"))[0].bdf == "0001:ab:00.0"


def test_any_value_but_the_index_may_be_unknown() -> None:
    assert smi.rows("3, N/A, N/A, N/A, N/A\n") == (Row(3, None, None, None, None),)
    assert smi.minors(LONG.replace(": 3", ": N/A")) == {UUID: None}
    assert smi.minors(LONG.replace(UUID, "N/A")) == {}


def test_rows_are_in_the_order_of_their_indices() -> None:
    text = "1, a, u1, N/A, 1\n0, a, u0, N/A, 1\n"
    assert [row.uuid for row in smi.rows(text)] == ["u0", "u1"]


@pytest.mark.parametrize(
    "text",
    [
        DOWN,
        "",
        "\n",
        "0\n",
        LINE + "Segmentation fault\n",
        LINE + LINE,
        LINE.replace("98304", "98304 MiB"),
        LINE.replace("98304", "-1"),
        LINE.replace("0, PPU", "N/A, PPU"),
        LINE.replace("00000000:05:00.0", "nowhere"),
        LINE.replace(UUID, "../../etc"),
        LINE.replace(UUID, "a;b"),
        "index, name, uuid, pci.bus_id, memory.total\n" + LINE,
    ],
)
def test_what_is_no_answer_to_the_query_is_an_error_that_quotes_it(text: str) -> None:
    with pytest.raises(ToolError, match=r"^ppu-smi --query-ppu=\S+: cannot be read: "):
        smi.rows(text)


def test_the_node_number_is_minor_number_of_the_long_form() -> None:
    assert smi.minors(LONG) == {UUID: 3}


@pytest.mark.parametrize(
    "text",
    [
        DOWN,
        "",
        LONG.replace("Minor Number", "Other"),
        LONG.replace("PPU UUID", "Other"),
        LONG.replace(": 3", ": three"),
        LONG + LONG,
        LONG + LONG.replace("c07e1a46", "c07e1a47"),
    ],
)
def test_what_is_no_long_form_or_gives_a_node_twice_is_an_error(text: str) -> None:
    with pytest.raises(ToolError, match=r"^ppu-smi -q: "):
        smi.minors(text)


def test_a_node_without_a_card_is_no_error() -> None:
    machine = some(1)
    machine.ppu_vanish(0)
    assert smi.rows(TOOL.ask(machine, "ppu-smi", *QUERY)) == ()
    assert smi.minors(TOOL.ask(machine, "ppu-smi", "-q")) == {}


@pytest.mark.parametrize("name", FIXTURES)
def test_every_fixtures_answers_are_the_machines_state(name: str) -> None:
    machine = node(name.partition("/")[2])
    listed = [ppu for ppu in machine.ppus if ppu.present]
    if not machine.spec.ppu_loaded:
        with pytest.raises(ToolError, match="driver is not loaded"):
            smi.rows(TOOL.ask(machine, "ppu-smi", *QUERY))
        return
    rows = smi.rows(TOOL.ask(machine, "ppu-smi", *QUERY))
    assert [(row.index, row.uuid, row.bdf) for row in rows] == [
        (place, ppu.uuid, ppu.bdf) for place, ppu in enumerate(listed)
    ]
    assert [row.memory_mib for row in rows] == [
        ppu.product.memory_mib if ppu.knows("memory.total") else None for ppu in listed
    ]
    found = smi.minors(TOOL.ask(machine, "ppu-smi", "-q"))
    assert found == {ppu.uuid: ppu.minor if ppu.knows("minor_number") else None for ppu in listed}
    assert smi.uses(TOOL.ask(machine, "ppu-smi")) == tuple(
        Use(
            place,
            ppu.used_mib if ppu.knows("memory.used") else None,
            ppu.busy if ppu.knows("utilization.ppu") else None,
        )
        for place, ppu in enumerate(listed)
    )


@pytest.mark.parametrize("text", [DOWN, "", "| a | b |\n", "| 49MiB / 98304MiB | |\n", "|  0  PPU | x |\n"])
def test_what_is_no_overview_is_an_error(text: str) -> None:
    with pytest.raises(ToolError, match=r"^ppu-smi: cannot be read: "):
        smi.uses(text)


@each(
    st.text(max_size=300) | st.sampled_from([LINE, LONG]).flatmap(lambda t: st.permutations(t).map("".join))
)
def test_whatever_it_prints_is_read_or_refused(text: str) -> None:
    for read in (smi.rows, smi.minors, smi.uses):
        with contextlib.suppress(ToolError):
            read(text)
