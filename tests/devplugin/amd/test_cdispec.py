"""CDI as the AMD plugin uses it: guide-amd.md (CDI), amd.md 5.3 and 9, decisions 20 and 59."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from devplugin.amd.allocation import allocate, needs
from devplugin.amd.cdispec import fact, specification
from devplugin.amd.discovery import discover
from devplugin.amd.inventory import Inventory
from devplugin.amd.settings import MODE_CU, MODE_PARTITION, Settings
from devplugin.answers import ContainerEdits
from devplugin.cdi import specification as text_of
from devplugin.hami import Claim
from gpusim.fixture import load
from gpusim.machine import Machine

from ..cdi_schema import CDI
from ..json_schema import complaints
from .builders import CU, PARTITION, claimed, cut_gpu, inventory, pod, soft_gpu

ON = replace(CU, cdi_dir="/var/run/cdi")
SLICE = pod("a,AMD,16304,64:;")
ONE = inventory(soft_gpu("a", cus=64, card=1, render=129))


def give(of: Inventory, claim: Claim, settings: Settings, good: bool | None) -> ContainerEdits:
    facts = {} if good is None else {fact(settings): good}
    return allocate(of, settings, claim, [claim.pod] if claim.pod else [], facts).edits


def test_switched_off_there_is_neither_a_file_nor_a_question() -> None:
    assert specification(ONE, CU) is None
    assert needs(ONE, CU, claimed(SLICE)) == ()


def test_one_device_a_card_with_its_two_nodes_and_kfd_shared() -> None:
    """amd.md 14.9."""
    wanted = specification(ONE, ON)
    assert wanted is not None
    assert (wanted.directory, wanted.kind) == ("/var/run/cdi", "amd.com/gpu")
    spec = json.loads(text_of(wanted.kind, wanted.devices, wanted.shared))
    assert spec["devices"] == [
        {
            "name": "card1",
            "containerEdits": {"deviceNodes": [{"path": "/dev/dri/card1"}, {"path": "/dev/dri/renderD129"}]},
        }
    ]
    assert spec["containerEdits"] == {"deviceNodes": [{"path": "/dev/kfd"}]}


def test_allocate_answers_with_names_instead_of_device_nodes() -> None:
    edits = give(ONE, claimed(SLICE), ON, True)
    assert edits.cdi == ("amd.com/gpu=card1",)
    assert edits.devices == ()
    assert edits.envs == give(ONE, claimed(SLICE), CU, None).envs


@pytest.mark.parametrize("good", [False, None])
def test_while_the_file_cannot_be_relied_on_containers_get_device_nodes(good: bool | None) -> None:
    edits = give(ONE, claimed(SLICE), ON, good)
    assert edits.cdi == ()
    assert edits == give(ONE, claimed(SLICE), CU, None)


def test_a_partitioned_gpu_given_as_one_has_a_name_for_each_partition() -> None:
    of = inventory(cut_gpu("g", compute="qpx", ways=4, first_render=128))
    edits = give(of, claimed(pod("g,AMD,0,0:;")), ON, True)
    assert edits.cdi == tuple(f"amd.com/gpu=card{card}" for card in (1, 2, 3, 4))


def test_a_partition_without_card_is_named_by_its_render_node() -> None:
    gpu = cut_gpu("g", compute="qpx", ways=4, first_render=128)
    bare = replace(gpu, partitions=(*gpu.partitions[:3], replace(gpu.partitions[3], card=None)))
    settings = replace(PARTITION, cdi_dir="/var/run/cdi")
    assert give(inventory(bare), claimed(pod("g-p3,AMD,0,0:;")), settings, True).cdi == (
        "amd.com/gpu=renderD131",
    )


@pytest.mark.parametrize("mode", [MODE_CU, MODE_PARTITION])
@pytest.mark.parametrize(
    "fixture", ["mi355x/cpx-6.14", "mi355x/cpx-6.8-bmc-63", "mi300x/cpx-6.8-bmc-63", "mi355x/spx-6.14"]
)
def test_names_are_unique_and_the_file_is_valid_on_every_node(fixture: str, mode: str) -> None:
    settings = Settings(mode=mode, cdi_dir="/var/run/cdi")
    found = discover(Machine(load(fixture)), settings)
    wanted = specification(found, settings)
    assert wanted is not None
    names = [device.name for device in wanted.devices]
    assert len(set(names)) == len(names) == sum(len(gpu.partitions) for gpu in found.gpus)
    assert complaints(CDI, json.loads(text_of(wanted.kind, wanted.devices, wanted.shared))) == []


def test_a_gpu_the_node_keeps_for_itself_has_no_name() -> None:
    machine = Machine(load("mi355x/spx-6.14"))
    settings = Settings(cdi_dir="/var/run/cdi")
    everything = specification(discover(machine, settings), settings)
    first = discover(machine, settings).gpus[0]
    excluding = replace(settings, exclude=(first.bdf,))
    left = specification(discover(machine, excluding), excluding)
    assert everything is not None
    assert left is not None
    assert {d.name for d in everything.devices} - {d.name for d in left.devices} == {
        f"card{first.partitions[0].card}"
    }
