"""What identifies a board or a machine is replaced everywhere, and what depended on it still fits."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import gpusim
from devplugin.amd.settings import Settings
from devplugin.amd.uuid import partition_id, smi_uuid
from devplugin.amd.vendor import Amd
from gpusim import fixture
from gpusim.cli import main as cli
from gpusim.snapshots import identifiers, pack
from gpusim.snapshots.host import CaptureHost
from gpusim.snapshots.identifiers import unscrubbed
from gpusim.snapshots.pack import Capture, Command, Entry, Kind
from gpusim.snapshots.record import record
from gpusim.snapshots.scrub import ScrubError, scrub, unhidden

PCI = "/sys/devices/pci0000:00/0000:05:00.0"
KFD = "/sys/devices/virtual/kfd/kfd/topology/nodes"
NODES = (
    "mi355x/qpx-6.14",  # partitions share unique_id
    "mi355x/qpx-7.0-intree",  # each has its own
    "mi355x/vf",
    "mi300a/spx-intree",
    "mi300x/cpx-6.8-bmc-63",
    "rdna4/rx9070-igpu",
)
SERIAL = 0xF8ED_0511_9208_6858
DEVICE = 0x75A3
IDS = st.integers(1 << 32, (1 << 64) - 2).filter(lambda value: not identifiers.is_placeholder_number(value))


def captured(files: dict[str, str], commands: tuple[Command, ...] = ()) -> Capture:
    entries = {path: Entry(Kind.FILE, 0o444, text.encode()) for path, text in files.items()}
    return pack.capture(entries, {"scrubbed": False}, commands)


def texts(capture: Capture) -> dict[str, str]:
    return {path: entry.content.decode() for path, entry in capture.entries() if entry.kind is Kind.FILE}


def everything(capture: Capture) -> str:
    parts = [f"{path}\n{entry.target}\n{entry.content!r}" for path, entry in capture.entries()]
    return "\n".join([*parts, *(repr(command) for command in capture.commands)])


def test_one_value_is_one_placeholder_in_every_spelling() -> None:
    uuid = smi_uuid(SERIAL, DEVICE)
    hidden = scrub(
        captured(
            {
                f"{PCI}/unique_id": f"{SERIAL:016x}\n",
                f"{KFD}/2/properties": f"simd_count 256\nunique_id {SERIAL}\nhive_id 0\n",
                f"{KFD}/3/properties": f"simd_count 256\nunique_id {SERIAL}\n",
                "/opt/notes": f"GPU-{SERIAL:016x} {uuid} {partition_id(uuid, 3)}\n",
                "/opt/shouted": f"{SERIAL:X} {uuid.upper()}\n",
            }
        )
    )
    found = texts(hidden)
    new = int(found[f"{PCI}/unique_id"], 16)
    assert new != SERIAL
    assert re.fullmatch(r"[0-9a-f]{16}\n", found[f"{PCI}/unique_id"])
    for node in ("2", "3"):
        assert f"unique_id {new}\n" in found[f"{KFD}/{node}/properties"]
    assert "simd_count 256\n" in found[f"{KFD}/2/properties"]
    assert "hive_id 0\n" in found[f"{KFD}/2/properties"]
    made = smi_uuid(new, DEVICE)
    assert found["/opt/notes"] == f"GPU-{new:016x} {made} {partition_id(made, 3)}\n"
    assert found["/opt/shouted"] == f"{new:X} {made.upper()}\n"


def test_absent_zero_and_unreadable_values_stay_so() -> None:
    files = {
        f"{PCI}/unique_id": "0000000000000000\n",
        f"{PCI}/serial_number": "\n",
        f"{PCI}/fru_id": "N/A\n",
        f"{KFD}/1/properties": "unique_id 0\nhive_id 29952\n",
        f"{KFD}/2/properties": f"unique_id {(1 << 64) - 1}\n",
    }
    assert texts(scrub(captured(files))) == files


def test_serial_numbers_keep_their_form_and_their_equalities() -> None:
    hidden = scrub(
        captured(
            {
                f"{PCI}/serial_number": "PCB-0481a/772\n",
                f"{PCI}/fru_id": "692112345678\n",
                "/sys/devices/pci0000:00/0000:15:00.0/serial_number": "PCB-0481a/772\n",
                "/sys/devices/pci0000:00/0000:25:00.0/serial_number": "PCB-0481a/773\n",
                "/opt/notes": "board PCB-0481a/772, fru 692112345678; not 6921123456780\n",
            }
        )
    )
    found = texts(hidden)
    one = found[f"{PCI}/serial_number"].strip()
    assert re.fullmatch(r"XXX-\d{4}x/\d{3}", one)
    assert found["/sys/devices/pci0000:00/0000:15:00.0/serial_number"].strip() == one
    assert found["/sys/devices/pci0000:00/0000:25:00.0/serial_number"].strip() != one
    fru = found[f"{PCI}/fru_id"].strip()
    assert re.fullmatch(r"\d{12}", fru)
    assert found["/opt/notes"] == f"board {one}, fru {fru}; not 6921123456780\n"


def test_a_short_serial_number_is_replaced_where_it_stands_and_nowhere_else() -> None:
    hidden = texts(scrub(captured({f"{PCI}/serial_number": "7721\n", "/opt/x": "7721 files\n"})))
    assert hidden == {f"{PCI}/serial_number": "0001\n", "/opt/x": "7721 files\n"}


def test_macs_uuids_and_host_names_are_replaced() -> None:
    said = captured(
        {
            "/opt/x": "ba:dc:0f:fe:e0:0d BA:DC:0F:FE:E0:0D ff:ff:ff:ff:ff:ff 0000:05:00.0\n"
            "7d9b1c2e-3f40-4a5b-8c6d-7e8f90a1b2c3 on rack7-box3.example.org, rack7-box3 not rack7-box33\n"
        }
    )  # a broadcast address is nobody's, a PCI address is a place
    assert texts(scrub(said, ["rack7-box3.example.org"])) == {
        "/opt/x": "02:00:00:00:00:01 02:00:00:00:00:01 ff:ff:ff:ff:ff:ff 0000:05:00.0\n"
        "00000000-0000-4000-8000-000000000001 on host-1, host-2 not rack7-box33\n"
    }


def test_a_host_called_like_a_file_of_the_tree_breaks_no_tree() -> None:
    said = captured({f"{PCI}/vendor": "0x1002\n", "/opt/x": "vendor 1 on box-77\n"})
    assert texts(scrub(said, ["vendor", "localhost", "box-77"]))["/opt/x"] == "vendor 1 on host-1\n"


def test_what_programs_printed_is_scrubbed_too() -> None:
    output = (
        "        NPU ID                         : 0\n"
        "        Serial Number                  : 102335670012\n"
        "        VDie ID                        : 4E1B62C4 20C05103 24A6E2D4 0D2F0182 15210058\n"
        "        Slot ID                        : 7\n"
    )
    hidden = scrub(captured({}, (Command(("npu-smi", "info"), 0, output.encode(), b""),)))
    shown = hidden.commands[0].stdout.decode()
    assert "102335670012" not in shown
    assert "4E1B62C4" not in shown
    assert re.search(r"VDie ID +: [0X0-9A-Fa-fX]{8}( [0-9X]{8}){4}\n", shown)
    assert "NPU ID                         : 0\n" in shown
    assert "Slot ID                        : 7\n" in shown


def test_names_and_link_targets_are_scrubbed_too() -> None:
    tree = {
        f"{PCI}/unique_id": Entry(Kind.FILE, 0o444, f"{SERIAL:016x}\n".encode()),
        f"/sys/class/x/gpu-{SERIAL:016x}": Entry(Kind.LINK, 0o777, target=f"../y/{SERIAL}"),
    }
    hidden = scrub(pack.capture(tree))
    assert f"{SERIAL:016x}" not in everything(hidden)
    assert str(SERIAL) not in everything(hidden)


def test_numbers_inside_a_binary_table_are_replaced() -> None:
    tree = {
        f"{PCI}/unique_id": Entry(Kind.FILE, 0o444, f"{SERIAL:016x}\n".encode()),
        f"{PCI}/gpu_metrics": Entry(
            Kind.FILE,
            0o444,
            b"\x78\0\x01\x04" + SERIAL.to_bytes(8, "little") + SERIAL.to_bytes(8, "big") + b"\0\1",
        ),
    }
    hidden = scrub(pack.capture(tree))
    entry = hidden.entry(f"{PCI}/gpu_metrics")
    number = hidden.entry(f"{PCI}/unique_id")
    assert entry is not None and number is not None
    new = int(number.content, 16)
    assert entry.content == b"\x78\0\x01\x04" + new.to_bytes(8, "little") + new.to_bytes(8, "big") + b"\0\1"


def test_a_scrubbed_capture_comes_back_as_it_is() -> None:
    once = scrub(captured({f"{PCI}/unique_id": f"{SERIAL:016x}\n"}))
    assert once.about["scrubbed"] is True
    assert scrub(once) is once


def test_notes_that_say_scrubbed_hide_nothing_from_scrubbing() -> None:
    said = captured({f"{PCI}/unique_id": f"{SERIAL:016x}\n", f"{PCI}/serial_number": "PCB0481772\n"})
    hidden = scrub(said._replace(about={"scrubbed": True}))
    assert unscrubbed(hidden) == []
    assert f"{SERIAL:x}" not in everything(hidden)


MIXED = {
    f"{PCI}/unique_id": f"{SERIAL:016x}\n",
    f"{PCI}/serial_number": "7PCBOARD\n",
    "/etc/hostname": "rack7-box3.example.org\n",
    "/opt/x": "ba:dc:0f:fe:e0:0d 7d9b1c2e-3f40-4a5b-8c6d-7e8f90a1b2c3 7d9b1c2e-3f40-4a5b-8c6d-7e8f90a1b2c4\n",
}


def test_to_scrub_twice_is_to_scrub_once() -> None:
    once = scrub(captured(MIXED))
    assert scrub(once) is once


def test_a_scrubbed_recording_whose_notes_are_lost_is_no_refusal() -> None:
    again = scrub(scrub(captured(MIXED))._replace(about={}))
    assert unscrubbed(again) == []


def test_what_came_in_after_scrubbing_gets_placeholders_of_its_own() -> None:
    once = scrub(captured(MIXED))
    entries = dict(once.entries())
    text = "ba:dc:0f:fe:e0:0e 7d9b1c2e-3f40-4a5b-8c6d-7e8f90a1b2c5 box-77\n"
    entries["/opt/a"] = Entry(Kind.FILE, 0o444, text.encode())
    entries["/sys/class/x/unique_id"] = Entry(Kind.FILE, 0o444, f"{SERIAL + 1:016x}\n".encode())
    again = texts(scrub(pack.capture(entries, once.about), ["box-77"]))
    before = texts(once)
    assert {path: again[path] for path in before} == before
    assert again["/opt/a"] == "02:00:00:00:00:02 00000000-0000-4000-8000-000000000003 host-2\n"
    assert again["/sys/class/x/unique_id"] != before[f"{PCI}/unique_id"]


@given(st.lists(st.uuids(version=4), max_size=4), st.lists(IDS, max_size=4), st.text("AB12-", max_size=9))
def test_scrubbing_is_idempotent_whatever_the_values(uuids: list[Any], numbers: list[int], word: str) -> None:
    macs = " ".join(
        ":".join(f"{value:012x}"[n : n + 2] for n in range(0, 12, 2))
        for value in (n & (1 << 48) - 1 for n in numbers)
    )
    files = {f"{PCI}{n}/unique_id": f"{value:016x}\n" for n, value in enumerate(numbers)}
    files |= {"/opt/x": f"{' '.join(map(str, uuids))}\n{macs}\n", f"{PCI}/serial_number": word}
    once = scrub(captured(files))
    assert scrub(once) is once


def test_host_names_are_those_the_capture_says_itself_in_any_case() -> None:
    files = {
        "/etc/hostname": "rack7-box3.example.org\n",
        "/opt/x": "Rack7-Box3.Example.Org RACK7-BOX3 rack7-box3 box-77\n",
    }
    said = captured(files)._replace(about={"hostname": "box-77", "note": "taken on Box-77"})
    hidden = scrub(said)
    assert texts(hidden) == {"/etc/hostname": "host-2\n", "/opt/x": "host-2 host-3 host-3 host-1\n"}
    assert hidden.about == {"hostname": "host-1", "note": "taken on host-1", "scrubbed": True}


def test_a_host_name_that_cannot_be_hidden_is_told() -> None:
    said = captured({f"{PCI}/vendor": "0x1002\n", "/opt/x": "k8 box-77\n"})
    assert unhidden(said, ["k8", "vendor", "box-77", "localhost", "10.0.0.7"]) == ["k8", "vendor"]
    assert unhidden(said, ["zz"]) == []  # it stands nowhere


def test_packing_with_scrub_hides_the_trees_host_name_and_warns_of_a_short_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tree/etc").mkdir(parents=True)
    (tmp_path / "tree/opt").mkdir()
    (tmp_path / "tree/etc/hostname").write_text("k8.rack7\n")
    (tmp_path / "tree/opt/x").write_text("K8.Rack7 k8\n")
    assert cli(["pack", str(tmp_path / "tree"), str(tmp_path / "p"), "--scrub"]) == 0
    assert "gpusim: warning: the host name 'k8' is too short" in capsys.readouterr().err
    assert texts(pack.read(tmp_path / "p"))["/opt/x"] == "host-1 k8\n"


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("F8eD051192086858", r"5C2B[0-9A-F]{12}"),
        ("F8A30000-0000-1000-80eD-051192086858", r"5cA3[0-9a-f-]{32}"),
        (smi_uuid(SERIAL, DEVICE).replace("-", ""), r"5c[0-9a-f]{30}"),
        ("7D9b1c2E-3f40-4a5b-8c6d-7e8f90a1b2c3", r"00000000-0000-4000-8000-000000000001"),
        ("7d9b1c2e3f404a5b8c6d7e8f90a1b2c3", r"00000000000040008000000000000001"),
        ("Ba:dC:0f:fe:e0:0d", r"02:00:00:00:00:01"),
        ("BA-DC-0F-FE-E0-0D", r"02-00-00-00-00-01"),
        ("BADC0FFEE00D", r"020000000001"),
        ("pcb0481772", r"xxx0{6}1"),
        ("Pcb0481772", r"XXX0{6}1"),
    ],
)
def test_a_known_identifier_is_replaced_in_every_case_and_form(text: str, form: str) -> None:
    files = {
        f"{PCI}/unique_id": f"{SERIAL:016x}\n",
        f"{PCI}/serial_number": "PCB0481772\n",
        "/opt/known": "ba:dc:0f:fe:e0:0d 7d9b1c2e-3f40-4a5b-8c6d-7e8f90a1b2c3\n",
        "/opt/x": f"is {text} here\n",
    }
    shown = texts(scrub(captured(files)))["/opt/x"]
    assert re.fullmatch(f"is ({form}) here\n", shown)


def test_a_mac_address_with_dashes_shows_by_its_form() -> None:
    assert texts(scrub(captured({"/opt/x": "AC-1F-6B-00-11-22 ac1f6b001122\n"}))) == {
        "/opt/x": "02-00-00-00-00-01 020000000001\n"
    }


@pytest.mark.parametrize(
    "label", ["Serial No. : {}", "Serial # : {}", "serial_number = {}", "Board Serial No: {}", 'serial="{}"']
)
def test_a_serial_number_is_known_by_any_usual_label(label: str) -> None:
    line = label.format("AB4471X9") + "\n"
    hidden = scrub(captured({"/opt/x": line}, (Command(("x",), 0, line.encode(), b""),)))
    assert texts(hidden)["/opt/x"] == label.format("XX0000X1") + "\n"
    assert "4471" not in everything(hidden)


def test_a_serial_number_of_letters_alone_is_one_where_it_is_listed() -> None:
    files = {
        f"{PCI}/serial_number": "QWERTYZU\n",
        "/sys/devices/pci0000:00/0000:15:00.0/serial_number": "QWERTYZV\n",
        f"{PCI}/fru_id": "unknown\n",
        "/opt/x": "qwertyzu unknown\n",
    }
    found = texts(scrub(captured(files)))
    assert "QWERTY" not in str(found).upper()
    assert found[f"{PCI}/serial_number"].lower().split()[0] == found["/opt/x"].split()[0]
    assert found[f"{PCI}/serial_number"] != found["/sys/devices/pci0000:00/0000:15:00.0/serial_number"]
    assert found["/opt/x"].endswith(" unknown\n")
    assert found[f"{PCI}/fru_id"] == "unknown\n"


def test_two_recordings_of_one_node_get_the_same_placeholders() -> None:
    machine = gpusim.Machine(gpusim.load("mi355x/spx-6.14"))
    assert scrub(record(machine)) == scrub(record(machine.fork()))


# ------------------------------------------------------------------ nothing stays


@pytest.mark.parametrize("name", NODES)
def test_no_value_of_an_identifier_file_stays_in_a_nodes_capture(name: str) -> None:
    before = record(gpusim.Machine(fixture.load(name)))
    hidden = scrub(before)
    shown = everything(hidden).lower()
    numbers, words = set(), set()
    for path, entry in before.entries():
        text = entry.content.decode(errors="replace")
        if path.endswith("/unique_id"):
            numbers.add(int(text, 16))
        elif path.endswith(("/serial_number", "/fru_id")):
            words.add(text.strip())
        elif path.endswith("/properties"):
            numbers |= {int(value) for value in re.findall(r"^(?:unique|hive)_id (\d+)$", text, re.MULTILINE)}
    numbers = {number for number in numbers if number >= 1 << 32}
    for number in numbers:
        assert f"{number:x}" not in shown
        assert str(number) not in shown
        assert f"{number:016x}"[4:] not in shown  # the end of an AMD SMI UUID
    for word in words - {""}:
        assert word.lower() not in shown
    assert unscrubbed(hidden) == []
    assert bool(unscrubbed(before)) == bool(numbers or words - {""})


@pytest.mark.parametrize("name", NODES)
def test_the_plugin_sees_the_same_node_with_other_names(name: str) -> None:
    before = record(gpusim.Machine(fixture.load(name)))
    vendor, settings = Amd(), Settings(node_name="node", mode="partition")
    reports: list[Any] = []
    for host in (CaptureHost(before), CaptureHost(scrub(before))):
        inventory = vendor.discover(host, settings, None)
        reports.append(vendor.report(host, inventory, settings))
    ids = [[entry["id"] for entry in report["registration"]] for report in reports]
    renamed = dict(zip(ids[0], ids[1], strict=True))
    assert len(set(renamed.values())) == len(renamed)
    text = str(reports[0])
    for old, new in renamed.items():
        text = text.replace(old, new)
    assert text == str(reports[1])


@given(
    st.lists(IDS, min_size=1, max_size=5, unique=True),
    st.integers(0, 0xFFFF),
    st.text("0123456789ABCD-", max_size=12),
)
def test_whatever_the_values_nothing_stays_and_equalities_do(
    values: list[int], device: int, serial: str
) -> None:
    files = {}
    for number, value in enumerate(values):
        files[f"{PCI}{number}/unique_id"] = f"{value:016x}\n"
        files[f"{KFD}/{number}/properties"] = f"unique_id {value}\ndevice_id {device}\n"
        files[f"/opt/{number}"] = f"{smi_uuid(value, device)} {value:x}\n"
    files[f"{PCI}/serial_number"] = serial
    assume(not any(str(a) in str(b) or f"{a:x}" in str(b) for a in values for b in values if a != b))
    hidden = scrub(captured(files))
    found = texts(hidden)
    new = [int(found[f"{PCI}{number}/unique_id"], 16) for number in range(len(values))]
    assert len(set(new)) == len(values)
    assert not set(new) & set(values)
    for number, value in enumerate(new):
        assert found[f"{KFD}/{number}/properties"] == f"unique_id {value}\ndevice_id {device}\n"
        assert found[f"/opt/{number}"] == f"{smi_uuid(value, device)} {value:x}\n"
    if sum(map(str.isalnum, serial)) >= 6 and any(c in "123456789" for c in serial):
        assert serial.strip() not in everything(hidden)
    assert unscrubbed(hidden) == []


def test_a_capture_in_which_something_would_stay_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    said = captured({f"{PCI}/unique_id": f"{SERIAL:016x}\n", "/opt/x": f"{SERIAL:016x}\n"})
    monkeypatch.setattr("gpusim.snapshots.scrub._Scrubber._text", lambda _, text: text)
    with pytest.raises(ScrubError, match="identifiers would stay in the capture"):
        scrub(said)


def test_ci_sees_an_unscrubbed_identifier() -> None:
    said = captured(
        {
            f"{PCI}/unique_id": f"{SERIAL:016x}\n",
            f"{PCI}/serial_number": "PCB0481772\n",
            "/opt/x": "ba:dc:0f:fe:e0:0d 7d9b1c2e-3f40-4a5b-8c6d-7e8f90a1b2c3\n",
        }
    )
    assert unscrubbed(said) == [
        f"identifier {SERIAL:016x}",
        "serial number 'PCB0481772'",
        "UUID 7d9b1c2e-3f40-4a5b-8c6d-7e8f90a1b2c3",
        "MAC address ba:dc:0f:fe:e0:0d",
    ]
    assert unscrubbed(scrub(said)) == []


def test_no_pack_of_this_repository_identifies_anything(fixtures: Path) -> None:
    root = fixtures.parent
    packs = [path for folder in ("fixtures", "tests", "docs") for path in (root / folder).rglob("*.gpusim")]
    assert [line for path in packs for line in unscrubbed(pack.read(path))] == []


@pytest.mark.snapshots
def test_public_captures_are_scrubbed_without_a_rest(snapshots: Path) -> None:
    from gpusim.snapshots import directory

    for place in sorted(entry for entry in snapshots.iterdir() if entry.is_dir()):
        before = directory.collect(place)
        assert unscrubbed(scrub(before)) == []
        assert identifiers.find(scrub(before)).numbers.keys().isdisjoint(identifiers.find(before).numbers)
