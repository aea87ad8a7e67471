"""A vendor nobody planned for goes all the way, so the rooms between vendors know none of them."""

from __future__ import annotations

import io
import json
import re
import tokenize
from pathlib import Path

import pytest

from devplugin.hami import LOCK
from gpusim.cluster.pods import Placed

from .daemon.rig import NODE, Rig, until
from .daemon.toyplugin import RESOURCE, TAKEN

ROOT = Path(__file__).resolve().parents[2] / "devplugin"
BETWEEN = (
    "daemon",
    "kubelet",
    "kubeletapi",
    "hami",
    "plan.py",
    "kube.py",
    "kubejson.py",
    "vendor.py",
    "answers.py",
    "plain.py",
    "deeds.py",
    "errands.py",
    "explain.py",
    "preflight.py",
    "rights.py",
    "host.py",
)
WORDS = re.compile(
    r"(?<![a-z])(amd|rocm|instinct|hip|cus?|xcp|kfd|ascend|huawei|npu|ppu|alixpu|nvidia|cuda)(?![a-z])",
    re.IGNORECASE,
)


@pytest.mark.daemon
def test_a_made_up_vendor_is_discovered_registered_offered_preferred_and_allocated() -> None:
    with Rig() as rig:
        rig.things(a="ok 0", b="ok 1", c="sick")
        rig.kubelet.start()
        rig.start("-root", str(rig.root), "-slots", "2")
        rig.kubelet.wait_for(lambda k: (k.capacity(RESOURCE), k.allocatable(RESOURCE)) == (6, 4))
        registered = until(lambda: rig.node_annotation("hami.io/node-toy-register"))
        assert [one["id"] for one in json.loads(registered)] == ["a", "b", "c"]
        assert rig.store.get("nodes", NODE)["status"]["capacity"]["toy.io/cores"] == "48"

        slots = [[Placed("a", "Toy", 1, 10)], [], [Placed("a", "Toy", 1, 6), Placed("b", "Toy", 1, 1)]]
        first = rig.schedule("first", *slots, resource=RESOURCE, word="toy")
        admission = rig.kubelet.admit(first)
        assert admission.admitted, admission.message
        assert any(event.kind == "preferred" for event in rig.kubelet.events)
        assert json.loads(rig.annotation("first", TAKEN) or "") == {"a": list(range(16)), "b": [0]}
        nodes = [device["host_path"] for device in _devices(admission.containers["c2"])]
        assert nodes == ["/dev/toy/a", "/dev/toy/b"]
        assert rig.node_annotation(LOCK) is None

        second = rig.schedule("second", [Placed("b", "Toy", 1, 2)], resource=RESOURCE, word="toy")
        admission = rig.kubelet.admit(second)
        assert admission.admitted, admission.message
        assert json.loads(rig.annotation("second", TAKEN) or "") == {"b": [1, 2]}


def _devices(edits: object) -> list[dict[str, str]]:
    devices = getattr(edits, "devices")  # noqa: B009 - the simulated kubelet's own record of the edits
    return [
        {"host_path": device["host_path"] if isinstance(device, dict) else device.host_path}
        for device in devices
    ]


def test_the_rooms_between_the_vendors_import_none_of_them() -> None:
    vendors = re.compile(r"(?:from|import)\s+devplugin\.(?:amd|ascend|ppu)\b")
    found = [str(path) for path in _sources() if vendors.search(path.read_text())]
    assert found == []


def test_the_rooms_between_the_vendors_name_none_of_them_in_code() -> None:
    kept = {tokenize.NAME, tokenize.STRING, tokenize.OP}
    kept.add(getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING))  # from 3.12 on, of an f-string
    found = []
    for path in _sources():
        before = None
        for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
            # a docstring or comment may give an example or a source; a name or a value may not
            docstring = token.type == tokenize.STRING and before in {
                None,
                tokenize.NEWLINE,
                tokenize.INDENT,
                tokenize.DEDENT,
            }
            if token.type in kept and not docstring and WORDS.search(token.string):
                found.append(f"{path.name}:{token.start[0]}: {token.string}")
            if token.type not in {tokenize.NL, tokenize.COMMENT}:
                before = token.type
    assert found == []


def _sources() -> list[Path]:
    paths = [ROOT / name for name in BETWEEN if (ROOT / name).exists()]
    files = [file for path in paths for file in (path.rglob("*.py") if path.is_dir() else [path])]
    assert len(files) > 15
    return sorted(files)
