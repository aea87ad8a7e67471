"""npu-smi: layouts as in the recorded outputs, listings that can be read back, and how it fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusim import GpusimError, Machine, NodeSpec, RemoteMachine, load
from gpusim.ascend.chips import CHIPS
from gpusim.ascend.health import Health
from gpusim.ascend.inside import Inside
from gpusim.ascend.npu import FORMS, NpuError
from gpusim.serve import serve
from gpusim.spec import NpuSpec

YES = b"Y\n"


def smi(machine: Machine, words: str, stdin: bytes = b"") -> tuple[int, str]:
    done = machine.run(["npu-smi", *words.split()], stdin=stdin)
    assert done.stderr == b""
    return done.status, done.stdout.decode()


def pairs(text: str) -> dict[str, str]:
    rows = (line.partition(" : ") for line in text.splitlines() if " : " in line)
    return {key.strip(): value.strip() for key, _, value in rows}


def cells(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in text.splitlines() if line[:1] == "|"]


def listed(text: str) -> list[tuple[int, str, int, str]]:
    """(id, container, status, template) of every vNPU that info-vnpu lists."""
    rows = [row for row in cells(text) if len(row) == 5 and row[0].isdecimal()]
    return [(int(row[0]), row[2], int(row[3]), row[4]) for row in rows]


# The overview


def dump_lines(snapshots: Path, name: str) -> list[str]:
    path = snapshots.parent / "dumps" / f"{name}.txt"
    if not path.is_file():
        pytest.skip("the recorded outputs are not beside the captures")
    text = path.read_text()
    return [line for line in text.splitlines() if line[:1] in ("+", "|")]


@pytest.mark.snapshots
def test_310p3_prints_what_the_lab_recorded(snapshots: Path) -> None:
    recorded = dump_lines(snapshots, "ascend-310p3-hami-softslice")[:12]
    printed = smi(Machine(load("ascend/310p3")), "info")[1].splitlines()
    # The lab's last ruler lacks a stroke in one place; one chip was three degrees warmer.
    assert printed[:-1] == [line.replace(" 40   ", " 37   ") for line in recorded[:-1]]


@pytest.mark.snapshots
def test_a_soft_container_on_310p3_prints_what_the_lab_recorded(snapshots: Path) -> None:
    recorded = dump_lines(snapshots, "ascend-310p3-hami-softslice")[12:]
    machine = Machine(load("ascend/310p3-soft"))
    done = Inside(machine.npus, (0,), quota_mib=8192).run(["npu-smi", "info"])
    assert done.stdout.decode().splitlines() == [line.replace(" 38   ", " 37   ") for line in recorded]


@pytest.mark.snapshots
def test_910b4_1_prints_what_was_reported(snapshots: Path) -> None:
    recorded = dump_lines(snapshots, "ascend-910b4-1-npu-smi")
    printed = smi(Machine(load("ascend/910b4-1")), "info")[1].splitlines()
    # The report's first two NPUs; power and temperature are those of an idle chip here.
    assert printed[:6] == recorded[:6]
    assert [len(line) for line in printed[6:12]] == [len(line) for line in recorded[6:12]]
    for i in (6, 9):
        assert printed[i].split("|")[1:3] == recorded[i].split("|")[1:3]
    assert (printed[8], printed[11]) == (recorded[8], recorded[11])
    assert (printed[7], printed[10]) == (recorded[7], recorded[10])


@pytest.mark.snapshots
def test_910c_prints_two_chips_of_an_npu_as_recorded(snapshots: Path) -> None:
    recorded = dump_lines(snapshots, "ascend-910c-npu-smi")
    printed = smi(Machine(load("ascend/910c")), "info")[1].splitlines()
    assert printed[:6] == recorded[:6]
    rulers = [i for i in range(6, 18) if recorded[i][0] == "+"]
    assert [printed[i] for i in rulers] == [recorded[i] for i in rulers]
    assert [printed[i] for i in (7, 10, 13, 16)] == [recorded[i] for i in (7, 10, 13, 16)]
    power = [printed[i].split("|")[3].split()[0] == "-" for i in (6, 9, 12, 15)]
    assert power == [recorded[i].split("|")[3].split()[0] == "-" for i in (6, 9, 12, 15)]
    start = recorded.index("+" + "-" * 27 + "+" + "-" * 15 + "+" + "-" * 52 + "+", 10)
    again = printed.index(recorded[start], 10)
    assert printed[again : again + 5] == recorded[start : start + 5]


@pytest.mark.parametrize("chip", sorted(CHIPS))
def test_every_line_of_the_overview_is_equally_wide(chip: str) -> None:
    lines = smi(Machine(load(f"ascend/{chip.lower()}")), "info")[1].splitlines()
    assert len({len(line) for line in lines}) == 1


@given(
    st.sampled_from(sorted(CHIPS)),
    st.lists(
        st.tuples(st.sampled_from(Health), st.integers(0, 100), st.integers(0, 21525)), min_size=1, max_size=9
    ),
)
def test_the_overview_reads_back(chip: str, states: list[tuple[Health, int, int]]) -> None:
    spec = NodeSpec(
        "n", "5.15.0", npus=tuple(NpuSpec(chip, f"0000:{i + 1:02x}:00.0") for i in range(len(states)))
    )
    machine = Machine(spec)
    for npu, state in zip(machine.npus, states, strict=True):
        npu.health, npu.busy, npu.used_mib = state
    rows = [row for row in cells(smi(machine, "info")[1]) if len(row) == 3 and row[0][:1].isdecimal()]
    assert len(rows) == 2 * len(states)
    for npu, (first, second) in zip(machine.npus, zip(rows[::2], rows[1::2], strict=True), strict=True):
        assert first[0].split() == [str(npu.card), npu.chip.label]
        assert first[1] == npu.health.value
        assert second[0].split()[0] == str(npu.number)
        assert second[1].lower() == npu.bdf
        busy, *rest = second[2].replace("/", " ").split()
        assert int(busy) == npu.busy
        assert [int(word) for word in rest[-2:]] == [npu.used_mib, npu.chip.total_mib]


# The other listings


@pytest.mark.parametrize("name", ["310p3", "910b4", "910c"])
def test_the_map_and_the_board_name_every_chip(name: str) -> None:
    machine = Machine(load(f"ascend/{name}"))
    head, *rows = (line.strip("\t") for line in smi(machine, "info -m")[1].splitlines())
    titles = [head[i : i + 31].strip() for i in range(0, len(head), 31)]
    assert titles[:3] == ["NPU ID", "Chip ID", "Chip Logic ID"]
    assert ("Chip Phy-ID" in titles) == (name == "910c")
    found = [
        dict(zip(titles, (row[i : i + 31].strip() for i in range(0, 155, 31)), strict=False)) for row in rows
    ]
    chips = [row for row in found if row["Chip Name"] != "Mcu"]
    mcus = [row for row in found if row["Chip Name"] == "Mcu"]
    assert {row["Chip Logic ID"] for row in mcus} == {"-"}
    assert [row["NPU ID"] for row in mcus] == list(dict.fromkeys(row["NPU ID"] for row in chips))
    assert [int(row["Chip Logic ID"]) for row in chips] == list(range(len(machine.npus)))
    for row, npu in zip(chips, machine.npus, strict=True):
        board = pairs(smi(machine, f"info -t board -i {row['NPU ID']} -c {row['Chip ID']}")[1])
        assert board["VDie ID"].replace(" ", "-") == npu.uuid
        assert board["Chip Type"] == "Ascend"
        remap = pairs(smi(machine, f"info -t phyid-remap -p {npu.phy}")[1])
        assert (remap["NPU ID"], remap["Chip ID"]) == (row["NPU ID"], row["Chip ID"])
        assert remap["Chip Logic ID"] == row["Chip Logic ID"]
    assert len({npu.uuid for npu in machine.npus}) == len(machine.npus)


def test_the_list_counts_npus_not_chips() -> None:
    assert pairs(smi(Machine(load("ascend/910c")), "info -l")[1])["Total Count"] == "8"


def test_a_chip_that_is_not_well_says_so_and_why() -> None:
    machine = Machine(load("ascend/910b4-mixed-health"))
    machine.npus.phy(5).error_codes = (0x80E01801,)
    said = pairs(smi(machine, "info -t health -i 5 -c 0")[1])
    assert (said["Health"], said["Error Code"]) == ("Critical", "80E01801")
    assert pairs(smi(machine, "info -t health -i 0 -c 0")[1])["Error Code"] == "NA"


# vNPUs


def test_a_vnpu_is_made_listed_and_destroyed() -> None:
    machine = Machine(load("ascend/310p3"))
    status, text = smi(machine, "set -t create-vnpu -i 5 -c 0 -f vir02")
    assert (status, pairs(text)["Status"]) == (0, "OK")
    assert "vdavinci116" in machine.list("/dev")
    assert listed(smi(machine, "info -t info-vnpu -i 5 -c 0")[1]) == [(116, "000000000000", 0, "vir02")]
    machine.npus.use(116, "0123456789ab")
    assert listed(smi(machine, "info -t info-vnpu -i 5 -c 0")[1]) == [(116, "0123456789ab", 1, "vir02")]
    status, text = smi(machine, "set -t destroy-vnpu -i 5 -c 0 -v 116")
    assert (status, pairs(text)["Status"]) == (1, "Fail")
    machine.npus.use(116, None)
    assert pairs(smi(machine, "set -t destroy-vnpu -i 5 -c 0 -v 116")[1])["Status"] == "OK"
    assert listed(smi(machine, "info -t info-vnpu -i 5 -c 0")[1]) == []
    assert "vdavinci116" not in machine.list("/dev")


def test_the_vnpu_of_another_chip_is_not_destroyed() -> None:
    machine = Machine(load("ascend/310p3-template"))
    assert pairs(smi(machine, "set -t destroy-vnpu -i 5 -c 0 -v 100")[1])["Status"] == "Fail"
    assert "vdavinci100" in machine.list("/dev")


@given(st.sampled_from(sorted(CHIPS)), st.data())
def test_the_listing_of_vnpus_reads_back(chip: str, data: st.DataObject) -> None:
    machine = Machine(
        NodeSpec("n", "5.15.0", npus=(NpuSpec(chip, "0000:01:00.0", phy=data.draw(st.integers(0, 63))),))
    )
    (npu,) = machine.npus
    for template in data.draw(st.lists(st.sampled_from(CHIPS[chip].templates), max_size=15)):
        holder = data.draw(st.none() | st.from_regex("[0-9a-f]{11}[1-9a-f]", fullmatch=True))
        try:
            machine.npus.create(npu, template.name, container=holder)
        except NpuError:
            continue
    expected = [
        (v.number, v.container or "000000000000", int(v.container is not None), v.template.name)
        for v in npu.vnpus.values()
    ]
    assert listed(smi(machine, "info -t info-vnpu -i 0 -c 0")[1]) == expected


def test_the_templates_are_listed() -> None:
    rows = cells(smi(Machine(load("ascend/910b4")), "info -t template-info -i 0 -c 0")[1])
    assert ["vir05_1c_8g             5         8             1"] in rows


# device-share


def test_an_unanswered_prompt_ends_with_200_and_changes_nothing() -> None:
    machine = Machine(load("ascend/910b4"))
    for answer in (b"", b"N\n", b"\n"):
        assert smi(machine, "set -t device-share -i 0 -c 0 -d 1", answer)[0] == 200
    assert not machine.npus.phy(0).share


def test_device_share_is_set_for_one_chip() -> None:
    machine = Machine(load("ascend/910b4"))
    status, text = smi(machine, "set -t device-share -i 3 -c 0 -d 1", YES)
    assert (status, pairs(text)["Status"]) == (0, "OK")
    assert [npu.share for npu in machine.npus] == [False] * 3 + [True] + [False] * 4
    assert pairs(smi(machine, "info -t device-share -i 3 -c 0")[1])["Device-share Status"] == "True"
    smi(machine, "set -t device-share -i 3 -c 0 -d 0", YES)
    assert not machine.npus.phy(3).share


# Failing

CALLS = ["info", "info -m", "info -t board -i 0 -c 0", "set -t create-vnpu -i 0 -c 0 -f vir05_1c_8g"]


@pytest.mark.parametrize("status", [0, 1, 255])
@pytest.mark.parametrize("form", CALLS)
def test_a_broken_npu_smi_ends_with_the_status_that_was_asked_for(form: str, status: int) -> None:
    machine = Machine(load("ascend/910b4"))
    before = machine.describe()
    machine.npus.exit_status = status
    machine.npus.broken[""] = "dcmi module initialize failed. ret is -8005\n"
    assert smi(machine, form) == (status, "dcmi module initialize failed. ret is -8005\n")
    assert machine.describe() == before
    del machine.npus.broken[""]
    assert smi(machine, form)[0] == 0


@pytest.mark.parametrize("form", FORMS)
def test_every_form_can_fail_alone_and_works_again(form: str) -> None:
    machine = Machine(load("ascend/910b4-template"))
    words = f"{form} -i 0 -c 0 -p 0 -d 1 -f vir01 -v 100"
    before = smi(machine.fork(), words, YES)
    machine.npu_smi_fails(form, "broken\n", 3)
    assert smi(machine, words, YES) == (3, "broken\n")
    machine.npu_smi_fails(form, None)
    assert smi(machine, words, YES) == before
    assert "Error parameter" not in before[1]


def test_a_served_machine_can_be_made_ill_and_npu_smi_made_to_fail(tmp_path: Path) -> None:
    machine = Machine(load("ascend/910b4"))
    with serve(machine, str(tmp_path / "s")):
        remote = RemoteMachine(str(tmp_path / "s"))
        assert remote.describe() == machine.describe()
        remote.npu_health(2, "Alarm", [0x80E01801])
        assert pairs(smi(machine, "info -t health -i 2 -c 0")[1])["Health"] == "Alarm"
        assert machine.events[-1] == {"event": "npu health", "phy": 2, "health": "Alarm"}
        remote.npu_smi_fails("info -m", "no\n", 0)
        done = remote.run(["npu-smi", "info", "-m"])
        assert (done.status, done.stdout) == (0, b"no\n")
        remote.npu_smi_fails("info -m", None)
        assert remote.run(["npu-smi", "info", "-m"]).stdout.startswith(b"\tNPU ID")
        made = remote.run(["npu-smi", "set", "-t", "create-vnpu", "-i", "0", "-c", "0", "-f", "vir05_1c_8g"])
        assert b"Status                         : OK" in made.stdout
        assert "vdavinci100" in remote.list("/dev")
        for refused in (lambda: remote.npu_health(9, "OK"), lambda: remote.npu_health(0, "ill")):
            with pytest.raises(GpusimError):
                refused()
        with pytest.raises(GpusimError, match="no form"):
            remote.npu_smi_fails("info -x", "")
        with pytest.raises(GpusimError, match="0 to 255"):
            remote.npu_smi_fails("info", "", 256)
        remote.disconnect()


def test_one_form_can_break_alone() -> None:
    machine = Machine(load("ascend/910b4"))
    machine.npus.broken["info -t board"] = ""
    assert smi(machine, "info -t board -i 0 -c 0") == (1, "")
    assert smi(machine, "info -m")[0] == 0


@pytest.mark.parametrize(
    "words",
    [
        "",
        "inform",
        "info -t board -i 9 -c 0",
        "info -t board -i 0",
        "info -t board -i x -c 0",
        "info -t nothing -i 0 -c 0",
        "info -i",
        "info -t phyid-remap -p 8",
        "set -t create-vnpu -i 0 -c 0 -f vir01",
        "set -t create-vnpu -i 0 -c 0 -f vir05_1c_8g -v 116",
        "set -t device-share -i 0 -c 0 -d 2",
    ],
)
@pytest.mark.parametrize("status", [0, 1])
def test_a_refusal_says_why_whatever_the_status(words: str, status: int) -> None:
    machine = Machine(load("ascend/910b4"))
    machine.npus.exit_status = status
    before = machine.describe()
    said = smi(machine, words, YES)
    assert said[0] == status
    assert said[1].strip() and "OK" not in said[1]
    assert machine.describe() == before


# Where the program is


def test_it_is_found_by_its_path_and_by_its_name() -> None:
    machine = Machine(load("ascend/910b4"))
    for program in ("npu-smi", "/usr/local/Ascend/driver/tools/npu-smi", "/usr/local/bin/npu-smi"):
        assert machine.run([program, "info", "-m"]).status == 0
    with pytest.raises(FileNotFoundError):
        machine.run(["/usr/local/sbin/npu-smi", "info"])
    with pytest.raises(FileNotFoundError):
        machine.run(["ctr"])


def test_where_it_is_only_in_sbin_it_is_found_there_and_fails_with_0() -> None:
    machine = Machine(load("ascend/910b4-sbin-status0"))
    assert smi(machine, "info -t board -i 7 -c 0")[0] == 0
    with pytest.raises(FileNotFoundError):
        machine.run(["/usr/local/bin/npu-smi", "info"])
    machine.unlink("/usr/local/sbin/npu-smi")
    with pytest.raises(FileNotFoundError):
        machine.run(["npu-smi", "info"])


def test_a_file_that_may_not_be_executed_is_not_run() -> None:
    machine = Machine(load("ascend/910b4-sbin-status0"))
    machine.put("/usr/local/sbin/npu-smi", b"", 0o644)
    with pytest.raises(PermissionError):
        machine.run(["npu-smi", "info"])


# In a container


def inside(name: str, make: Callable[[Machine], Inside]) -> list[list[str]]:
    return [
        row
        for row in cells(make(Machine(load(name))).run(["npu-smi", "info"]).stdout.decode())
        if len(row) == 3
    ]


def test_a_template_container_sees_its_slice_only() -> None:
    rows = inside("ascend/310p3-template", lambda m: Inside(m.npus, (0,), vnpu=101))[2:]
    assert len(rows) == 2
    assert rows[0][0].split() == ["4", "310Pvir02"]
    assert rows[1][2].split()[-1] == "5381"


def test_a_soft_container_sees_what_is_tracked_of_its_quota_on_each_card() -> None:
    rows = inside(
        "ascend/910b4-soft", lambda m: Inside(m.npus, (5, 2), quota_mib=8192, tracked=[700, 42].__getitem__)
    )
    found = [row[2].replace("/", " ").split()[-2:] for row in rows[3::2] if row[1][:1].isdecimal()]
    assert found == [["700", "8192"], ["42", "8192"]]
    assert [row[0].split()[0] for row in rows[2:6:2]] == ["32768", "32769"]


def test_nothing_can_be_changed_from_a_container() -> None:
    machine = Machine(load("ascend/910b4-soft"))
    done = Inside(machine.npus, (0,), quota_mib=1).run(
        ["npu-smi", "set", "-t", "device-share", "-i", "0", "-c", "0", "-d", "0"], stdin=YES
    )
    assert done.status != 0
    assert machine.npus.phy(0).share
    with pytest.raises(FileNotFoundError):
        Inside(machine.npus, (0,)).run(["bash"])
