"""What vendors' programs said while a node was recorded, byte by byte where the node is replayed."""

from __future__ import annotations

import errno
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from devplugin.ascend.discovery import discover
from devplugin.ascend.settings import ChipConfig, Settings
from devplugin.launch import CAPTURE, _is_capture
from gpusim import Machine, load
from gpusim.ascend.chips import CHIPS
from gpusim.cli import main as gpusim
from gpusim.export.render import NOTES, render
from gpusim.snapshots import directory, pack, scrub
from gpusim.snapshots.host import CaptureHost, open_capture
from gpusim.snapshots.identifiers import unscrubbed
from gpusim.snapshots.pack import Capture, Command
from gpusim.snapshots.programs import TOOLS, ask
from gpusim.snapshots.record import DirectorySource, record

from ..conftest import FIXTURES

ASCEND = sorted(f"ascend/{path.stem}" for path in (FIXTURES / "ascend").glob("*.yaml"))
PPU = sorted(f"ppu/{path.stem}" for path in (FIXTURES / "ppu").glob("*.yaml"))


def asked(machine: Machine, tool: str) -> list[Command]:
    """What the program of a simulated node says to all that a plugin may ask."""

    def run(argv: Sequence[str]) -> Command | None:
        try:
            done = machine.run(argv)
        except OSError:
            return None
        return Command(tuple(argv), done.status, done.stdout, done.stderr)

    return ask(tool, run=run)


def recorded(machine: Machine, tmp_path: Path, tool: str = "npu-smi") -> Capture:
    render(machine, tmp_path / "tree")
    return record(DirectorySource(str(tmp_path / "tree")), commands=asked(machine, tool))


def same(host: CaptureHost, machine: Machine, commands: Sequence[Command]) -> None:
    assert commands
    for command in commands:
        here, there = host.run(command.argv), machine.run(command.argv)
        assert (here.status, here.stdout, here.stderr) == (there.status, there.stdout, there.stderr)


@pytest.mark.parametrize("fixture", ASCEND)
def test_a_replayed_node_says_what_the_simulated_one_said(fixture: str, tmp_path: Path) -> None:
    machine = Machine(load(fixture))
    capture = recorded(machine, tmp_path)
    pack.write(capture, tmp_path / "node.gpusim")
    same(open_capture(tmp_path / "node.gpusim"), machine, asked(machine, "npu-smi"))
    forms = {" ".join(command.argv[1:]) for command in capture.commands}
    for npu in machine.npus:
        where = f"-i {npu.card} -c {npu.number}"
        assert {f"info -t {form} {where}" for form in ("board", "info-vnpu")} <= forms
        assert f"info -t phyid-remap -p {npu.phy}" in forms
    assert {"info", "info -m"} <= forms
    assert not any(form.startswith("set") for form in forms)


@pytest.mark.parametrize("fixture", ASCEND)
def test_the_plugin_finds_on_the_replayed_node_what_it_finds_on_the_simulated_one(
    fixture: str, tmp_path: Path
) -> None:
    machine = Machine(load(fixture))
    capture = recorded(machine, tmp_path)
    chips = tuple(
        ChipConfig(chip.label, "Ascend", "huawei.com/Ascend", chip.memory_mib, chip.memory_mib, 20, 7)
        for chip in CHIPS.values()
    )
    there = discover(machine, Settings(chips=chips), None)
    assert there.trouble == "" and len(there.npus) == len(list(machine.npus))
    assert discover(CaptureHost(capture), Settings(chips=chips), None) == there
    hidden = discover(CaptureHost(scrub.scrub(capture)), Settings(chips=chips), None)
    assert hidden.trouble == ""
    assert [replace(npu, uuid="") for npu in hidden.npus] == [replace(npu, uuid="") for npu in there.npus]
    assert len({npu.uuid for npu in hidden.npus} | {npu.uuid for npu in there.npus}) == 2 * len(there.npus)


@pytest.mark.parametrize("fixture", PPU)
def test_the_same_holds_for_the_other_vendors_program(fixture: str, tmp_path: Path) -> None:
    machine = Machine(load(fixture))
    capture = recorded(machine, tmp_path, "ppu-smi")
    same(CaptureHost(pack.loads(pack.dumps(capture))), machine, asked(machine, "ppu-smi"))


@pytest.mark.parametrize("status", [0, 1, 255])
def test_a_refusal_is_replayed_with_its_status(status: int, tmp_path: Path) -> None:
    machine = Machine(load("ascend/910b4"))
    machine.npu_smi_fails("info -t board", "dcmi module initialize failed. ret is -8005\n", status)
    host = CaptureHost(recorded(machine, tmp_path))
    done = host.run(["/usr/local/bin/npu-smi", "info", "-t", "board", "-i", "0", "-c", "0"])
    assert (done.status, done.stdout) == (status, b"dcmi module initialize failed. ret is -8005\n")
    assert host.run(["npu-smi", "info", "-m"]).status == 0


@pytest.mark.parametrize(
    "words",
    [
        "npu-smi",
        "npu-smi info -l",
        "npu-smi info -t health -i 0 -c 0",
        "npu-smi info -t board -i 9 -c 0",
        "npu-smi set -t device-share -i 0 -c 0 -d 1",
        "npu-smi set -t create-vnpu -i 0 -c 0 -f vir05_1c_8g",
        "/usr/local/bin/npu-smi info -t template-info -i 0 -c 0",
        "ppu-smi -q",
        "ls /",
    ],
)
def test_what_was_not_asked_then_has_no_answer_and_the_errno_names_it(words: str, tmp_path: Path) -> None:
    host = CaptureHost(recorded(Machine(load("ascend/910b4")), tmp_path))
    with pytest.raises(FileNotFoundError, match="not recorded") as refused:
        host.run(words.split(), stdin=b"Y\n")
    assert (refused.value.errno, refused.value.filename) == (errno.ENOENT, words)


@pytest.mark.parametrize("fixture", ["ascend/910b4", "ascend/910c", "ascend/310p3"])
def test_vdie_ids_are_hidden_alike_everywhere_and_still_are_vdie_ids(fixture: str, tmp_path: Path) -> None:
    machine = Machine(load(fixture))
    dashed = [npu.uuid for npu in machine.npus]
    capture = recorded(machine, tmp_path)
    config = pack.Entry(pack.Kind.FILE, 0o644, f"keep: [{', '.join(dashed)}]\n".encode())
    capture = pack.capture({**dict(capture.entries()), "/etc/node.yaml": config}, {}, capture.commands)
    assert len(unscrubbed(capture)) == len(dashed)
    hidden = scrub.scrub(capture)
    assert unscrubbed(hidden) == []
    assert scrub.scrub(hidden) is hidden
    host = CaptureHost(hidden)
    shown = []
    for npu in machine.npus:
        argv = ["npu-smi", "info", "-t", "board", "-i", str(npu.card), "-c", str(npu.number)]
        before, after = machine.run(argv).stdout.decode(), host.run(argv).stdout.decode()
        (die,) = re.findall(r"VDie ID +: ([0-9A-F]{8}(?: [0-9A-F]{8}){4})\n", after)
        assert after == before.replace(npu.uuid.replace("-", " "), die)  # and nothing else has changed
        shown.append(die.replace(" ", "-"))
    assert len(set(shown)) == len(dashed)
    assert host.read("/etc/node.yaml").decode() == f"keep: [{', '.join(shown)}]\n"
    text = pack.dumps(hidden) + repr(hidden).encode()
    assert not any(form.encode() in text for uuid in dashed for form in (uuid, uuid.replace("-", " ")))
    assert scrub.counts(capture)["uuids"] == len(dashed)


def test_a_board_without_a_vdie_id_keeps_saying_so() -> None:
    says = (
        b"\tVDie ID                        : 00000000 00000000 00000000 00000000 00000000\n\tVDie ID : NA\n"
    )
    capture = pack.capture({}, {}, [Command(("npu-smi", "info", "-m"), 0, says, b"")])
    assert unscrubbed(capture) == []
    assert scrub.scrub(capture).commands[0].stdout == says


def test_ppu_uuids_and_serials_are_hidden_too(tmp_path: Path) -> None:
    capture = recorded(Machine(load("ppu/zw810e-8")), tmp_path, "ppu-smi")
    assert unscrubbed(capture) != []
    hidden = scrub.scrub(capture)
    assert unscrubbed(hidden) == []
    listed = [line.split(",")[2].strip() for line in hidden.commands[0].stdout.decode().splitlines()]
    assert len(set(listed)) == 8
    assert all(uuid.startswith("GPU-00000000-0000-4000-8000-") for uuid in listed)


def test_a_rendered_node_answers_as_root_from_the_notes_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = tmp_path / "tree"
    machine = Machine(load("ascend/910c"))
    assert gpusim(["render", "ascend/910c", str(tree)]) == 0
    assert CAPTURE == NOTES == directory.SIDECAR
    assert _is_capture(str(tree))
    commands = asked(machine, "npu-smi")
    same(open_capture(tree), machine, commands)
    # Packed, or recorded once more, it still does; and it can be rendered over.
    assert gpusim(["pack", str(tree), str(tmp_path / "a.gpusim")]) == 0
    same(open_capture(tmp_path / "a.gpusim"), machine, commands)
    assert gpusim(["record", str(tmp_path / "b.gpusim"), "--root", str(tree), "--no-scrub"]) == 0
    same(open_capture(tmp_path / "b.gpusim"), machine, commands)
    assert gpusim(["unpack", str(tmp_path / "b.gpusim"), str(tmp_path / "c")]) == 0
    same(open_capture(tmp_path / "c"), machine, commands)
    assert gpusim(["render", "mi210/two-hives", str(tree), "--force"]) == 0
    assert not _is_capture(str(tree))
    capsys.readouterr()


def test_a_node_without_such_programs_is_rendered_without_notes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gpusim(["render", "mi210/two-hives", str(tmp_path / "tree")]) == 0
    assert not (tmp_path / "tree" / NOTES).exists()
    capsys.readouterr()


@pytest.mark.parametrize(
    ("fixture", "places"),
    [
        ("ascend/910b4", ["/usr/local/Ascend/driver/tools/npu-smi", "/usr/local/bin/npu-smi"]),
        ("ascend/910b4-sbin-status0", ["/usr/local/sbin/npu-smi"]),
    ],
)
def test_the_program_is_found_where_it_was_and_is_not_in_the_capture(
    fixture: str, places: list[str], tmp_path: Path
) -> None:
    machine = Machine(load(fixture))
    host = CaptureHost(recorded(machine, tmp_path))
    found = []
    for place in TOOLS["npu-smi"].places:
        try:
            stat = host.stat(place)
        except FileNotFoundError:
            continue
        assert stat.mode & 0o111
        assert host.read(place) == b""
        assert host.run([place, "info", "-m"]).stdout == machine.run([place, "info", "-m"]).stdout
        found.append(place)
    assert found == places


def test_a_node_without_such_programs_has_nothing_of_their_places(tmp_path: Path) -> None:
    machine = Machine(load("mi210/two-hives"))
    machine.mkdir("/usr/sbin")
    machine.put("/usr/sbin/other", b"private", 0o755)
    capture = recorded(machine, tmp_path)
    assert capture.commands == ()
    assert not any(path.startswith("/usr/sbin") for path, _ in capture.entries())


def test_a_program_that_is_a_link_is_found_through_it(tmp_path: Path) -> None:
    machine = Machine(load("ascend/910b4"))
    machine.unlink("/usr/local/bin/npu-smi")
    machine.symlink("/usr/local/Ascend/driver/tools/npu-smi", "/usr/local/bin/npu-smi")
    host = CaptureHost(recorded(machine, tmp_path))
    assert host.stat("/usr/local/bin/npu-smi").mode & 0o111
    assert host.readlink("/usr/local/bin/npu-smi").endswith("Ascend/driver/tools/npu-smi")


def test_device_nodes_of_npus_and_their_slices_are_recorded(tmp_path: Path) -> None:
    machine = Machine(load("ascend/910b4-template"))
    host = CaptureHost(recorded(machine, tmp_path))
    wanted = {name for name in machine.list("/dev") if re.match(r"v?davinci|devmm|hisi", name)}
    assert any(name.startswith("vdavinci") for name in wanted)
    assert wanted <= set(host.list("/dev"))


def test_physical_ids_are_looked_for_when_the_list_has_no_column_for_them() -> None:
    """The words of 910B4: which ids there are is known only from what answers."""
    table = (
        "\tNPU ID Chip ID Chip Logic ID Chip Name\n\t0 0 0 Ascend 910B4\n\t0 1 - Mcu\n\t3 0 1 Ascend 910B4\n"
    )
    places = {"2": (0, 0), "5": (3, 0)}
    tried: list[str] = []

    def run(argv: Sequence[str]) -> Command:
        text = table if argv[-1] == "-m" else "?\n"
        if "phyid-remap" in argv:
            tried.append(argv[-1])
            if argv[-1] in places:
                npu, chip = places[argv[-1]]
                text = f"\tChip Phy-ID : {argv[-1]}\n\tNPU ID : {npu}\n\tChip ID : {chip}\n"
        return Command(tuple(argv), 0, text.encode(), b"")

    ask("npu-smi", run=run)
    assert tried == ["0", "1", "2", "3", "4", "5"]
    places.clear()
    tried.clear()
    ask("npu-smi", run=run)
    assert tried == [str(number) for number in range(64)]
