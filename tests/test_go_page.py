"""docs/from-the-go-plugin.md against the code: ids, flags, the socket's name."""

from __future__ import annotations

import json
import os
import re
import socket
from pathlib import Path

import pytest

from devplugin.amd.devices import Catalogue
from devplugin.amd.flags import add_flags
from devplugin.amd.settings import Settings
from devplugin.amd.taken import RECORD, rebuild
from devplugin.amd.vendor import Amd
from devplugin.hami import Pod
from devplugin.kubelet.directory import Directory
from devplugin.settings import GoParser, add_common_flags
from gpusim import Machine, load

PAGE = (Path(__file__).parent.parent / "docs" / "from-the-go-plugin.md").read_text()
WORDS = {True: "yes", False: "no"}


def rows(head: str) -> list[list[str]]:
    """The cells of the table that begins with this head, without the lines of dashes."""
    lines = PAGE[PAGE.index(head) :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]


IDS = rows("| id in an annotation")


@pytest.mark.parametrize("row", IDS, ids=lambda row: f"{row[0]} {row[2]}")
def test_an_old_id_is_served_and_counted_as_the_page_says(row: list[str]) -> None:
    identifier, (compute, mode) = row[0].strip("`"), row[2].split(", ")
    settings = Settings(node_name="n", mode=mode)
    inventory = Amd().discover(Machine(load(f"mi355x/{compute}-6.14")), settings, None)
    pod = Pod("default", "p", "u", "n", "Running", {RECORD: json.dumps({identifier: "0-3"})})
    taken = rebuild(inventory, settings, [pod], None)
    assert not taken.blocked
    device = Catalogue(inventory, settings).named(identifier)
    assert [WORDS[device is not None], WORDS[bool(taken.masks)]] == row[3:]
    assert bool(taken.warnings) is (row[4] == "no"), "what is passed over is said, with the pod's name"
    assert all("default/p" in line for line in taken.warnings)
    if device is not None and not identifier.startswith("AMDGPU") and "xcp" not in identifier:
        assert device.gpu.bdf == "0000:75:00.0"


def test_the_flags_the_page_says_are_taken_are_and_the_others_are_not() -> None:
    parser = GoParser("amd-device-plugin", "")
    add_common_flags(parser)
    add_flags(parser)
    known = {f"-{name}" for name in vars(parser.parse_args([])) if name != "explicit"}
    told: set[str] = set()
    for names, _, here in rows("| flag or variable | of the Go plugin"):
        flags = {name for name in re.findall(r"`([^`]+)`", names) if name.startswith("-")}
        if here.startswith("unknown"):
            assert flags.isdisjoint(known)
            for flag in flags:
                with pytest.raises(SystemExit) as end:
                    parser.parse_args([f"{flag}=1"])
                assert end.value.code == 2
        else:
            told |= flags
    assert told == known


def test_no_socket_of_ours_has_the_go_plugins_name_and_its_own_is_not_swept(tmp_path: Path) -> None:
    directory = Directory(str(tmp_path))
    name = directory.new_name("amd.com_gpu")
    assert re.fullmatch(r"amd\.com_gpu-\d+-[0-9a-f]{8}\.sock", name)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "amd.com_gpu"))
    os.utime(tmp_path / "amd.com_gpu", (1, 1))
    assert directory.sweep("amd.com_") == ()
    assert (tmp_path / "amd.com_gpu").exists()


def test_the_readme_leads_to_the_page() -> None:
    readme = (Path(__file__).parent.parent / "README.md").read_text()
    assert "(docs/from-the-go-plugin.md)" in readme
