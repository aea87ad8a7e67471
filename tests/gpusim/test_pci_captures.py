"""PCI and platform directories equal the recorded ones, file by file; what cannot is listed with its reason.

As with KFD, each capture is compared through a checked-in manifest of digests, and where the capture itself
is at hand also with that, which proves the manifest.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

import pytest

from gpusim.fixture import load
from gpusim.machine import Machine

from .pci_captures import FIXTURES, captured, content, place, unused

DATA = Path(__file__).parent / "data"

COUNTS = {
    # equal, moving, excluded files, and directories recorded by name
    "apu-strixpoint-890m": (67, 14, 344, 0),
    "gcn1-hd7870-radeon-driver": (2, 0, 11, 0),
    "mi300a-4apu-spx": (4, 0, 0, 64),
    "mi355x-8gpu-spx-6.8": (152, 0, 0, 16),
    "rdna2-rx6900xt": (90, 18, 43, 0),
    "rdna4-rx9070": (39, 11, 17, 0),
}


@cache
def machine(name: str) -> Machine:
    return Machine(load(FIXTURES[name]))


def digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:16]


def lines(name: str) -> dict[str, str]:
    """Path → digest of ``data/<name>.pci``; a directory's digest is ``-``, a reading's ``*``."""
    found: dict[str, str] = {}
    for line in (DATA / f"{name}.pci").read_text().splitlines():
        where, _, value = line.rpartition(" ")
        found[where] = value
    return found


def manifest(snapshots: Path, name: str) -> dict[str, str]:
    found = captured(snapshots, name)
    asked = {where: digest(text) for where, text in found.equal.items()}
    return asked | dict.fromkeys(found.moving, "*") | dict.fromkeys(found.directories, "-")


@pytest.mark.parametrize("name", FIXTURES)
def test_the_directories_have_the_digests_of_the_capture(name: str) -> None:
    node, wrong = machine(name), []
    for where, value in lines(name).items():
        try:
            if value == "-":
                right = node.stat(place(node, where)).kind.name == "DIRECTORY"
            else:
                right = value in ("*", digest(content(node, where)))
        except OSError:
            right = False
        if not right:
            wrong.append(where)
    assert wrong == []


@pytest.mark.snapshots
@pytest.mark.parametrize("name", FIXTURES)
def test_the_directories_are_the_capture_byte_for_byte(name: str, snapshots: Path) -> None:
    found, node = captured(snapshots, name), machine(name)
    made = {where: content(node, where) for where in found.equal}
    different = {where: (text, made[where]) for where, text in found.equal.items() if made[where] != text}
    assert different == {}
    assert (len(found.equal), len(found.moving), len(found.excluded), len(found.directories)) == COUNTS[name]


@pytest.mark.snapshots
@pytest.mark.parametrize("name", FIXTURES)
def test_the_manifest_is_that_of_the_capture(name: str, snapshots: Path) -> None:
    assert lines(name) == manifest(snapshots, name)


@pytest.mark.snapshots
def test_every_exclusion_is_needed(snapshots: Path) -> None:
    assert unused(snapshots) == set()


@pytest.mark.snapshots
def test_nothing_recorded_outside_kfd_is_forgotten(snapshots: Path) -> None:
    kfd_only = {"mi300x-8gpu-cpx", "vega10-single-legacy-kernel"}
    assert {path.name for path in snapshots.iterdir() if path.is_dir()} == set(FIXTURES) | kfd_only
