"""GPUs a node keeps for itself: guide-amd.md, dp.excludeGPUs; amd.md 1.1 and 3.6."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from devplugin.amd import partition
from devplugin.amd.discovery import discover
from devplugin.amd.exclude import without
from devplugin.amd.inventory import Inventory, Skipped
from devplugin.amd.notices import notices
from devplugin.amd.offer import PLAIN, offers
from devplugin.amd.registration import annotation
from devplugin.amd.settings import MODE_PARTITION, Settings
from gpusim.fixture import load
from gpusim.machine import Machine

from ..small_nodes import gpu_node, machine, pci_gpu
from .builders import cut_gpu, soft_gpu

SPX = "mi355x/spx-6.14"


def found(fixture: str, *entries: str, mode: str = "cu") -> tuple[Inventory, Settings]:
    settings = Settings(exclude=entries, mode=mode)
    return discover(Machine(load(fixture)), settings), settings


def addresses(of: Inventory) -> list[str]:
    return [gpu.bdf for gpu in of.gpus]


def test_a_gpu_is_kept_back_by_its_pci_address_and_by_its_card() -> None:
    everything, _ = found(SPX)
    first, second = everything.gpus[:2]
    left, settings = found(SPX, first.bdf, f"card{second.partitions[0].card}")
    assert addresses(left) == addresses(everything)[2:]
    assert left.excluded == (first.bdf, second.bdf)
    registered = {entry["custominfo"]["pciBDF"] for entry in json.loads(annotation(left, settings))}
    offered = {device.id.partition("#")[0] for device in offers(left, settings)[PLAIN].devices}
    assert registered == offered == set(addresses(left))


def test_it_is_listed_among_the_skipped_with_the_entry_that_named_it() -> None:
    everything, _ = found(SPX)
    bdf, card = everything.gpus[0].bdf, f"card{everything.gpus[0].partitions[0].card}"
    left, settings = found(SPX, bdf, card)
    (told,) = [skipped for skipped in left.skipped if skipped.device == bdf]
    assert told == Skipped(bdf, f"excluded by -exclude_gpus={bdf},{card}")
    assert f"not offered: {bdf}: {told.reason}" in notices(left, settings)


def test_an_entry_that_means_no_gpu_here_is_a_warning_that_names_it() -> None:
    left, settings = found(SPX, "0000:fe:00.0", "card99", "banana\x1b")
    assert len(left.gpus) == 8
    assert left.excluded == ()
    assert [line for line in notices(left, settings) if "-exclude_gpus" in line] == [
        "-exclude_gpus: no GPU of this node is '0000:fe:00.0'",
        "-exclude_gpus: no GPU of this node is 'card99'",
        "-exclude_gpus: no GPU of this node is 'banana\\x1b'",
    ]


def test_card1_is_not_card10() -> None:
    gpus = (soft_gpu("a", card=1), soft_gpu("b", card=10, render=129), soft_gpu("c", card=None, render=130))
    assert [gpu.id for gpu in without(gpus, ("card1",)).gpus] == ["b", "c"]


def test_naming_a_gpu_that_is_not_offered_anyway_is_no_mistake() -> None:
    kept = without((), ("0000:05:00.0",), ["0000:05:00.0"])
    assert (kept.excluded, kept.warnings) == ((), ())


def test_the_card_of_one_partition_keeps_the_whole_gpu_back() -> None:
    gpu = cut_gpu("g", compute="qpx", ways=4)
    card = gpu.partitions[2].card
    assert without((gpu,), (f"card{card}",)).gpus == ()
    everything, _ = found("mi355x/qpx-6.14", mode=MODE_PARTITION)
    left, settings = found("mi355x/qpx-6.14", everything.gpus[0].bdf, mode=MODE_PARTITION)
    assert len(json.loads(annotation(left, settings))) == 4 * 7


def test_when_none_is_left_the_stale_registration_and_kubelets_list_are_cleared() -> None:
    everything, _ = found(SPX)
    left, settings = found(SPX, *addresses(everything))
    assert annotation(left, settings) == "[]"
    (offer,) = offers(left, settings).values()
    assert (offer.resource, offer.devices) == (PLAIN, ())


def test_a_node_without_any_gpu_still_offers_nothing_at_all() -> None:
    assert offers(Inventory(), Settings(exclude=("card1",))) == {}


def test_a_kept_back_gpu_is_nobodys_neighbour() -> None:
    everything, _ = found(SPX)
    gone = everything.gpus[3].bdf
    assert gone in everything.gpus[0].xgmi_peers
    left, _ = found(SPX, gone)
    assert all(gone not in gpu.xgmi_peers for gpu in left.gpus)


def test_keeping_one_of_two_with_the_same_id_back_lets_the_other_be_offered() -> None:
    host = machine(
        pci_gpu("0000:03:00.0", 1, 128, unique_id="1122334455667788"),
        pci_gpu("0000:04:00.0", 2, 129, unique_id="1122334455667788"),
        gpu_node(1, 128, 0x300, 64),
        gpu_node(2, 129, 0x400, 64),
    )
    assert discover(host, Settings()).gpus == ()
    assert addresses(discover(host, Settings(exclude=("card2",)))) == ["0000:03:00.0"]


@pytest.mark.parametrize("fixture", [SPX, "mi355x/cpx-6.14", "rdna4/rx9070-igpu"])
def test_who_stays_is_told_as_if_the_others_were_not_there(fixture: str) -> None:
    """Ids, addresses and numbers of the remaining GPUs do not move."""
    everything, plain = found(fixture)
    last = everything.gpus[-1]
    left, settings = found(fixture, last.bdf)
    entries = {entry["id"]: entry for entry in json.loads(annotation(everything, plain))}
    for entry in json.loads(annotation(left, settings)):
        before = entries[entry["id"]]
        before["custominfo"].pop("xgmiPeers", None)
        entry["custominfo"].pop("xgmiPeers", None)
        assert entry == before
    assert replace(settings, exclude=()) == plain


def test_a_kept_back_gpu_is_not_switched_with_the_others() -> None:
    machine = Machine(load(SPX))
    settings = Settings(mode=MODE_PARTITION, compute_partition="qpx", exclude=("card1",))
    left = discover(machine, settings)
    (gone,) = left.excluded
    prepared = partition.switch(machine, left, settings, ())
    assert prepared.troubles == ()
    modes = {
        gpu.bdf: machine.read(f"/sys/bus/pci/devices/{gpu.bdf}/current_compute_partition")
        for gpu in discover(machine, Settings()).gpus
    }
    assert modes.pop(gone) == b"SPX\n"
    assert set(modes.values()) == {b"QPX\n"}
