"""ppu-smi: the recorded lines, listings that can be read back, and how it fails, which is with status 0."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusim import Machine, NodeSpec, load
from gpusim.ppu.inside import inside
from gpusim.ppu.ppu import FIELDS, MINOR, PpuError
from gpusim.spec import PpuSpec

NOT_LOADED = "init HGML error: driver is not loaded\n"
PLUGIN = ["--query-ppu=index,name,uuid,pci.bus_id,memory.total", "--format=csv,noheader,nounits"]
COMMON = ["/dev/alixpu", "/dev/alixpu_ctl", "/dev/alixpu_sep"]


def smi(machine: Machine, *words: str) -> str:
    done = machine.run(["ppu-smi", *words])
    assert (done.status, done.stderr) == (0, b"")
    return done.stdout.decode()


def recorded() -> Machine:
    """The node of ascend_ppu_hami.md C.2."""
    uuid = "GPU-019ea108-c110-0828-0000-0000c07e1a46"
    return Machine(NodeSpec("n", "5.15.0", ppus=(PpuSpec("PPU-ZW810E", "0000:05:00.0", uuid=uuid, busy=4),)))


# Recorded lines


def test_the_listing_prints_the_recorded_line() -> None:
    assert smi(recorded(), "-L") == "PPU 0: PPU (UUID: GPU-019ea108-c110-0828-0000-0000c07e1a46)\n"


def test_the_plugins_question_is_answered_in_its_order_without_header_and_units() -> None:
    line = "0, PPU-ZW810E, GPU-019ea108-c110-0828-0000-0000c07e1a46, 00000000:05:00.0, 98304\n"
    assert smi(recorded(), *PLUGIN) == line


def test_the_table_has_the_recorded_cells_and_equally_wide_lines() -> None:
    printed = smi(recorded())
    assert re.search(r"49MiB / 98304MiB *\| *\|", printed)
    assert re.search(r" 4% \|", printed)
    assert "400W" in printed
    wide = Machine(load("ppu/zw810e-minor-shift"))
    for machine in (recorded(), wide, Machine(load("ppu/zw810e-na-values"))):
        assert len({len(line) for line in smi(machine).splitlines()}) == 1


def test_the_long_form_has_uuid_and_minor_of_every_ppu() -> None:
    machine = Machine(load("ppu/zw810e-minor-shift"))
    printed = smi(machine, "-q")
    uuids = re.findall(r"^ +PPU UUID +: (.*)$", printed, re.MULTILINE)
    minors = re.findall(r"^ +Minor Number +: (.*)$", printed, re.MULTILINE)
    assert list(zip(uuids, minors, strict=True)) == [(ppu.uuid, str(ppu.minor)) for ppu in machine.ppus]
    assert minors == ["2", "3", "0", "1"]
    assert printed.endswith("\n") and re.search(r"^Attached PPUs +: 4$", printed, re.MULTILINE)


def test_header_and_units_are_there_unless_they_are_refused() -> None:
    asked = "--query-ppu=memory.used,index,power.limit"
    machine = recorded()
    assert (
        smi(machine, asked, "--format=csv") == "memory.used [MiB], index, power.limit [W]\n49 MiB, 0, 400 W\n"
    )
    assert smi(machine, asked, "--format=csv,noheader") == "49 MiB, 0, 400 W\n"
    assert smi(machine, asked, "--format=nounits,csv") == "memory.used, index, power.limit\n49, 0, 400\n"
    assert smi(machine, "--query-ppu", "index", "--format", "csv,noheader") == "0\n"


# Read back

STATES = st.lists(
    st.tuples(st.integers(0, 98304), st.integers(0, 100), st.frozensets(st.sampled_from([*FIELDS, MINOR]))),
    min_size=1,
    max_size=16,
)
ORDER = st.lists(st.sampled_from(FIELDS), min_size=1, max_size=12)


@given(STATES, ORDER, st.booleans(), st.booleans())
def test_csv_reads_back_in_any_order_of_fields(
    states: Sequence[tuple[int, int, frozenset[str]]], fields: list[str], header: bool, units: bool
) -> None:
    ppus = tuple(
        PpuSpec(
            "PPU-ZW810E", f"0000:{i + 1:02x}:00.0", used_mib=used, busy=busy, unknown=tuple(sorted(unknown))
        )
        for i, (used, busy, unknown) in enumerate(states)
    )
    machine = Machine(NodeSpec("n", "5.15.0", ppus=ppus))
    layout = ",".join(["csv", *([] if header else ["noheader"]), *([] if units else ["nounits"])])
    lines = smi(machine, f"--query-ppu={','.join(fields)}", f"--format={layout}").splitlines()
    if header:
        titles = lines.pop(0).split(", ")
        assert [title.partition(" [")[0] for title in titles] == fields
    assert len(lines) == len(states)
    for index, (line, ppu) in enumerate(zip(lines, machine.ppus, strict=True)):
        values = line.split(", ")
        assert len(values) == len(fields)
        truth = {
            "index": str(index),
            "name": "PPU-ZW810E",
            "uuid": ppu.uuid,
            "pci.bus_id": f"0000{ppu.bdf}".upper(),
            "memory.total": "98304",
            "memory.used": str(ppu.used_mib),
            "memory.free": str(98304 - ppu.used_mib),
            "utilization.ppu": str(ppu.busy),
            "power.limit": "400",
            "driver_version": "1.4.0",
        }
        for field, value in zip(fields, values, strict=True):
            if field in ppu.unknown:
                assert value == "N/A"
            elif units and field in ("memory.total", "memory.used", "memory.free"):
                assert value == f"{truth[field]} MiB"
            else:
                assert value.removesuffix(" %").removesuffix(" W") == truth[field]


@given(st.permutations(range(16)), st.sets(st.integers(0, 15), max_size=15))
def test_uuids_join_the_query_with_the_minors_of_the_long_form(minors: list[int], gone: set[int]) -> None:
    ppus = tuple(
        PpuSpec("PPU-ZW810E", f"0000:{i + 1:02x}:00.0", minor=minor) for i, minor in enumerate(minors)
    )
    machine = Machine(NodeSpec("n", "5.15.0", ppus=ppus))
    for minor in gone:
        machine.ppu_vanish(minor)
    rows = [line.split(", ") for line in smi(machine, *PLUGIN).splitlines()]
    assert [int(row[0]) for row in rows] == list(range(16 - len(gone)))
    blocks = re.findall(r"PPU UUID +: (\S+)\n +Minor Number +: (\d+)", smi(machine, "-q"))
    found = {uuid: int(minor) for uuid, minor in blocks}
    assert [found[row[2]] for row in rows] == [minor for minor in minors if minor not in gone]


# N/A


def test_what_is_unknown_reads_na_in_every_form() -> None:
    machine = Machine(load("ppu/zw810e-na-values"))
    rows = [line.split(", ") for line in smi(machine, *PLUGIN).splitlines()]
    assert [row[4] for row in rows] == ["98304", "N/A", "98304", "98304"]
    minors = re.findall(r"Minor Number +: (\S+)", smi(machine, "-q"))
    assert minors == ["0", "1", "2", "N/A"]
    assert "N/A / 98304MiB" in smi(machine)
    assert "49MiB / N/A" in smi(machine)
    machine.ppu_smi_unknown(0, ["uuid"])
    assert smi(machine, "-L").startswith("PPU 0: PPU (UUID: N/A)\n")


def test_a_ppu_that_does_not_answer_keeps_its_identity_and_loses_its_measurements() -> None:
    machine = Machine(load("ppu/zw810e-hung"))
    well, ill = (line.split(", ") for line in smi(machine, *PLUGIN).splitlines())
    assert (well[4], ill[4]) == ("98304", "N/A")
    assert ill[2] == [ppu.uuid for ppu in machine.ppus][1]
    machine.ppu_health(1, "OK")
    assert [line.split(", ")[4] for line in smi(machine, *PLUGIN).splitlines()] == ["98304", "98304"]


# Failures


@pytest.mark.parametrize("words", [[], ["-L"], ["-q"], PLUGIN])
def test_without_a_driver_every_form_says_so_and_ends_with_0(words: list[str]) -> None:
    assert smi(Machine(load("ppu/zw810e-driver-down")), *words) == NOT_LOADED


@pytest.mark.parametrize("words", [[], ["-L"], ["-q"], PLUGIN])
def test_without_a_ppu_every_form_says_so(words: list[str]) -> None:
    machine = recorded()
    machine.ppu_vanish(0)
    assert smi(machine, *words) == "No devices were found\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--query-ppu=index,minor_number", "--format=csv"], 'Field "minor_number" is not a valid field'),
        (["--query-ppu=", "--format=csv"], 'Field "" is not a valid field'),
        (["--query-ppu=index"], 'missing its "csv"'),
        (["--query-ppu=index", "--format=xml"], 'missing its "csv"'),
        (["--query-ppu=index", "--format=csv,plain"], '"plain" is not one of csv, noheader, nounits'),
        (["--format=csv"], "add --query-ppu"),
        (["--query-gpu=index", "--format=csv"], "Invalid combination"),
        (["-L", "-q"], "Invalid combination"),
        (["--query-ppu"], "Invalid combination"),
    ],
)
def test_a_question_it_does_not_understand_is_refused_in_words(words: list[str], told: str) -> None:
    assert told in smi(recorded(), *words)
    strict = Machine(load("ppu/zw810e-status1")).run(["ppu-smi", *words])
    assert strict.status == 1 and told in strict.stdout.decode()


def test_a_form_can_be_made_to_fail_and_the_others_go_on() -> None:
    machine = recorded()
    machine.ppu_smi_fails("-q", "Segmentation fault\n", 139)
    assert machine.run(["ppu-smi", "-q"]).status == 139
    assert smi(machine, "-L").startswith("PPU 0")
    machine.ppu_smi_fails("", NOT_LOADED)
    assert smi(machine, *PLUGIN) == NOT_LOADED
    assert smi(machine, "-q") == "Segmentation fault\n"
    machine.ppu_smi_fails("-q", None)
    machine.ppu_smi_fails("", None)
    assert "Minor Number" in smi(machine, "-q")


def test_the_program_is_found_as_a_shell_would_find_it() -> None:
    machine = recorded()
    assert machine.run(["/usr/local/bin/ppu-smi", "-L"]).status == 0
    with pytest.raises(FileNotFoundError):
        machine.run(["/usr/bin/ppu-smi", "-L"])
    with pytest.raises(FileNotFoundError):
        machine.run(["npu-smi", "info"])
    machine.put("/usr/local/bin/ppu-smi", b"", 0o644)
    with pytest.raises(PermissionError):
        machine.run(["ppu-smi", "-L"])


# In a container


def test_a_container_counts_its_ppus_from_0_and_sees_no_other() -> None:
    machine = Machine(load("ppu/zw810e-minor-shift"))
    given = [*COMMON, "/dev/alixpu_ppu0", "/dev/alixpu_ppu3"]
    printed = machine.ppu_smi_inside(["ppu-smi", *PLUGIN], given).stdout.decode()
    uuids = {ppu.minor: ppu.uuid for ppu in machine.ppus}
    assert [line.split(", ")[:3:2] for line in printed.splitlines()] == [["0", uuids[3]], ["1", uuids[0]]]
    assert [ppu.minor for ppu in inside(machine.ppus, given).devices] == [3, 0]
    assert re.findall(
        r"Minor Number +: (\d+)", machine.ppu_smi_inside(["ppu-smi", "-q"], given).stdout.decode()
    ) == [
        "3",
        "0",
    ]


def test_a_container_without_ppus_finds_none_and_one_with_too_few_nodes_cannot_be() -> None:
    machine = recorded()
    assert machine.ppu_smi_inside(["ppu-smi", "-L"], COMMON).stdout == b"No devices were found\n"
    with pytest.raises(PpuError, match="needs /dev/alixpu_sep, too: add it"):
        inside(machine.ppus, ["/dev/alixpu", "/dev/alixpu_ctl", "/dev/alixpu_ppu0"])
    with pytest.raises(PpuError, match="/dev/alixpu_ppu5: no such device on this node; it has alixpu_ppu0"):
        inside(machine.ppus, [*COMMON, "/dev/alixpu_ppu5"])
    with pytest.raises(FileNotFoundError):
        machine.ppu_smi_inside(["nvidia-smi"], COMMON)


def test_a_ppu_that_vanishes_is_gone_in_its_container_too() -> None:
    machine = Machine(load("ppu/zw810e-8"))
    given = inside(machine.ppus, [*COMMON, "/dev/alixpu_ppu2", "/dev/alixpu_ppu5"])
    machine.ppu_vanish(2)
    assert [ppu.minor for ppu in given.devices] == [5]
    assert given.run(["ppu-smi", "-L"]).stdout.startswith(b"PPU 0: PPU")
    machine.ppu_unload()
    assert given.run(["ppu-smi", "-L"]).stdout.decode() == NOT_LOADED
