"""What kubelet and the scheduler are told of the cards: F.1 P18 to P24, P36, P37; G 5, 6 and 22."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devplugin.answers import NodePatch, PreferenceQuery
from devplugin.ascend.deviceconfig import config_of
from devplugin.ascend.inventory import Inventory, Npu
from devplugin.ascend.offer import offers
from devplugin.ascend.registration import SOFT_KEY, leftovers, node_patch, registration
from devplugin.ascend.report import report
from devplugin.ascend.settings import ChipConfig, Settings, Template
from devplugin.ascend.vendor import Ascend
from devplugin.hami import Node, Vocabulary
from gpusim.cluster.scheduler_ascend import ascend_vendors
from gpusim.cluster.scheduler_devices import registered

from .nodes import DEVICES, WORDS, chosen, look, node

NOW = 1_790_000_000.0
A910 = ChipConfig(
    "910A",
    "Ascend910A",
    "huawei.com/Ascend910A",
    32768,
    32768,
    30,
    0,
    (Template("small", 8192, 5, 0), Template("large", 16384, 10, 0)),
)


def cards(count: int = 1, chip: ChipConfig = A910, ill: tuple[int, ...] = ()) -> Inventory:
    npus = tuple(
        Npu(f"uuid{i + 1}", i, i, i, 0, chip.chip, i not in ill, "Alarm" if i in ill else "")
        for i in range(count)
    )
    return Inventory(chip, npus)


def entries(inventory: Inventory, settings: Settings | None = None) -> list[dict[str, Any]]:
    """What the annotation says."""
    assert inventory.chip is not None
    patch = node_patch(inventory, settings or Settings(), NOW)
    found: list[dict[str, Any]] = json.loads(
        patch.annotations[f"hami.io/node-register-{inventory.chip.word}"] or ""
    )
    return found


def ids(inventory: Inventory, settings: Settings | None = None) -> list[tuple[str, bool]]:
    return [
        (device.id, device.healthy)
        for offer in offers(inventory, settings or Settings()).values()
        for device in offer.devices
    ]


# P18, P19, P22: the register annotation


def test_p18_a_card_is_registered_with_the_numbers_of_the_configuration() -> None:
    patch = node_patch(cards(), Settings(), NOW)
    assert patch.annotations["hami.io/node-register-Ascend910A"] == (
        '[{"id":"uuid1","count":4,"devmem":32768,"devcore":30,"type":"Ascend910A","health":true,'
        '"custominfo":{"NetworkID":0}}]'
    )
    assert patch.capacity == {}


def test_p18_the_scheduler_reads_index_0_and_health_where_they_are_left_out() -> None:
    word = "Ascend910A"
    view = next(vendor for vendor in ascend_vendors() if vendor.word == word)
    annotations = node_patch(cards(3, ill=(1,)), Settings(), NOW).annotations
    found = registered({"metadata": {"annotations": annotations}}, view)
    assert [(d.id, d.index, d.count, d.memory_mib, d.cores, d.type, d.numa, d.healthy) for d in found] == [
        ("uuid1", 0, 4, 32768, 30, word, 0, True),
        ("uuid2", 1, 4, 32768, 30, word, 0, False),
        ("uuid3", 2, 4, 32768, 30, word, 0, True),
    ]


def test_an_ill_card_is_known_by_its_missing_key() -> None:
    assert ["health" in entry for entry in entries(cards(2, ill=(0,)))] == [False, True]


def test_zero_values_are_left_out() -> None:
    bare = replace(A910, ai_cores=0, word="Other")
    assert entries(cards(1, bare)) == [
        {"id": "uuid1", "count": 4, "devmem": 32768, "type": "Other", "health": True}
    ]


@pytest.mark.parametrize(("soft", "core", "word"), [(True, 100, "true"), (False, 30, "false")])
def test_p19_the_node_says_its_mode_and_a_soft_card_has_100_cores(soft: bool, core: int, word: str) -> None:
    settings = Settings(soft=soft)
    assert node_patch(cards(), settings, NOW).annotations["hami-vnpu-core"] == word
    assert [entry["devcore"] for entry in entries(cards(), settings)] == [core]


def test_scaled_cores_are_registered_in_soft_mode_only() -> None:
    assert entries(cards(), Settings(soft=True, soft_cores=250))[0]["devcore"] == 250
    assert entries(cards(), Settings(soft_cores=250))[0]["devcore"] == 30


@pytest.mark.parametrize(
    ("word", "indices", "networks"),
    [
        ("Ascend910A", (0, 3, 4, 5), [0, 0, 1, 1]),
        ("Ascend910B4", (0, 3, 4, 100), [0, 0, 1, 1]),
        ("Ascend910C", (0, 4, 100), [0, 0, 0]),
        ("Ascend310P", (0, 4), [None, None]),
    ],
)
def test_p20_the_network_follows_the_index(
    word: str, indices: tuple[int, ...], networks: list[int | None]
) -> None:
    found = entries(cards(101, replace(A910, word=word)))
    assert [found[index].get("custominfo", {}).get("NetworkID") for index in indices] == networks
    assert all("custominfo" not in entry for entry in found) == (word == "Ascend310P")


def test_a_cards_index_is_its_place_in_the_list_and_no_number_of_the_driver() -> None:
    found = entries(look(node("310p3"), chosen(filtered_cards=frozenset({4}))))
    assert [entry.get("index", 0) for entry in found] == [0]


@pytest.fixture
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    def put(name: str) -> None:
        monkeypatch.setenv("TZ", name)
        time.tzset()

    yield put
    monkeypatch.undo()
    time.tzset()


def test_p21_the_handshake_is_the_processes_local_time_with_dots(zone: Any) -> None:
    key = "hami.io/node-handshake-Ascend910A"
    for name, hours in [("UTC", "14"), ("XYZ-8", "22"), ("ABC+5", "09")]:
        zone(name)
        said = node_patch(cards(), Settings(time_offset=0), NOW).annotations[key] or ""
        assert said == f"Reported_2026.09.21 {hours}:13:20"


def test_p21_the_offset_is_added(zone: Any) -> None:
    zone("UTC")
    key = "hami.io/node-handshake-Ascend910A"
    for offset, seconds in [(1, "21"), (-20, "00"), (0, "20")]:
        said = node_patch(cards(), Settings(time_offset=offset), NOW).annotations[key] or ""
        assert said.endswith(f"14:13:{seconds}")


@given(st.floats(0, 4e9), st.integers(-(1 << 31), 1 << 31))
def test_p21_any_time_with_any_offset_the_flag_takes_parses(now: float, offset: int) -> None:
    said = node_patch(cards(), Settings(time_offset=offset), now).annotations
    text = said["hami.io/node-handshake-Ascend910A"] or ""
    assert text.startswith("Reported_")
    when = datetime.strptime(text.removeprefix("Reported_"), "%Y.%m.%d %H:%M:%S")
    assert abs(when.timestamp() - (now + offset)) < 3601


def test_p22_without_a_card_the_register_annotation_is_an_empty_list() -> None:
    patch = node_patch(cards(0), Settings(), NOW)
    assert patch.annotations["hami.io/node-register-Ascend910A"] == "[]"
    assert "hami.io/node-handshake-Ascend910A" in patch.annotations


def test_while_no_chip_was_seen_nothing_is_written_at_all() -> None:
    assert node_patch(Inventory(trouble="driver down"), Settings(), NOW) == NodePatch()
    assert offers(Inventory(), Settings()) == {}
    assert Ascend().vocabulary(Inventory(), Settings()) is None
    assert registration(Inventory(), Settings()) == []


# P23, P24, P37: shares and kubelet's list


@pytest.mark.parametrize(
    ("templates", "count", "shares"),
    [(True, 0, 4), (True, 8, 8), (True, 2, 2), (False, 0, 1), (False, 5, 5)],
)
def test_p23_shares_are_the_nodes_number_else_how_often_the_smallest_template_fits(
    templates: bool, count: int, shares: int
) -> None:
    chip = A910 if templates else replace(A910, templates=())
    assert cards(1, chip).shares(Settings(count=count)) == shares
    assert entries(cards(1, chip), Settings(count=count))[0]["count"] == shares


@pytest.mark.parametrize(
    ("word", "shares"), list(zip(WORDS, (15, 8, 4, 4, 4, 7, 4), strict=True))
)  # the column of A.3
def test_p23_every_chip_has_the_shares_of_the_table(word: str, shares: int) -> None:
    chip = next(chip for chip in DEVICES.chips if chip.word == word)
    assert cards(1, chip).shares(Settings()) == shares


@pytest.mark.parametrize(
    ("fixture", "count", "devices"), [("910b2", 0, 64), ("310p3", 0, 14), ("910b2", 4, 32), ("310p3", 1, 2)]
)
def test_b66_a_node_has_shares_times_cards_devices(fixture: str, count: int, devices: int) -> None:
    settings = chosen(count=count)
    assert len(ids(look(node(fixture), settings), settings)) == devices


@pytest.mark.parametrize("split", [5, 10])
def test_p24_a_split_count_in_soft_mode_is_the_number_of_ids_of_each_card(split: int) -> None:
    settings = Settings(soft=True, count=split)
    found = ids(cards(2), settings)
    assert len({name for name, _ in found}) == len(found) == 2 * split
    assert [entry["count"] for entry in entries(cards(2), settings)] == [split, split]


def test_g5_the_nodes_number_raises_the_shares_of_a_soft_910b4_1() -> None:
    found = look(node("910b4-1"), chosen(soft=True, count=8))
    assert len(ids(found, chosen(soft=True, count=8))) == 8 * 8


def test_g6_eight_cards_of_eight_shares_are_64_devices() -> None:
    assert len(ids(look(node("910b2")))) == 64


def test_p37_no_cards_no_devices() -> None:
    offer = offers(cards(0), Settings())["huawei.com/Ascend910A"]
    assert offer.devices == ()
    assert not offer.preferred


def test_p37_every_share_is_a_device_by_the_cards_uuid() -> None:
    assert ids(cards(1), Settings(count=3)) == [("uuid1-0", True), ("uuid1-1", True), ("uuid1-2", True)]


def test_p37_a_template_larger_than_its_chip_makes_no_device() -> None:
    none = replace(A910, templates=(Template("huge", 65536, 1, 0),))  # the configuration's reader refuses it
    assert ids(cards(2, none)) == []


def test_p37_every_share_of_an_ill_card_is_unhealthy() -> None:
    found = ids(cards(2, ill=(0,)), Settings(count=3))
    assert [healthy for _, healthy in found] == [False] * 3 + [True] * 3


def test_numa_is_not_told() -> None:
    offer = offers(cards(2), Settings())["huawei.com/Ascend910A"]
    assert {device.numa for device in offer.devices} == {()}


def test_preference_is_not_supported() -> None:
    with pytest.raises(ValueError, match=r"^not supported$"):
        Ascend().prefer(cards(), Settings(), PreferenceQuery(("uuid1-0",), (), 1))


# P36: names


@pytest.mark.parametrize("word", WORDS)
def test_p36_the_keys_of_every_chip_have_its_common_word(word: str) -> None:
    chip = next(chip for chip in DEVICES.chips if chip.word == word)
    vocabulary = Ascend().vocabulary(cards(1, chip), Settings())
    assert vocabulary == Vocabulary(
        register=f"hami.io/node-register-{word}",
        to_allocate=f"hami.io/{word}-devices-to-allocate",
        allocated=f"hami.io/{word}-devices-allocated",
        handshake=f"hami.io/node-handshake-{word}",
    )
    assert list(offers(cards(1, chip), Settings())) == [f"huawei.com/{word}"]
    for key in (
        vocabulary.register,
        vocabulary.to_allocate,
        vocabulary.allocated,
        vocabulary.handshake or "",
    ):
        assert len(key.partition("/")[2]) <= 63
        assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*[A-Za-z0-9]", key.partition("/")[2])


def test_leftovers_are_ours_and_no_other_vendors() -> None:
    ours = {f"hami.io/node-{what}-{word}": "x" for word in WORDS for what in ("register", "handshake")}
    others = {"hami.io/node-register-xpu": "x", "hami.io/node-handshake-ppu": "x", "hami.io/mutex.lock": "x"}
    found = leftovers(Node("n", "u", {**ours, **others, SOFT_KEY: "true"}))
    assert dict(found.annotations) == dict.fromkeys([*ours, SOFT_KEY])
    assert found.capacity == {}


# the dry run


def test_g22_a_chip_of_the_operators_own_is_registered_as_configured() -> None:
    own = replace(
        A910, word="Ascend910X", ai_cores=7, allocatable_mib=4096, templates=(Template("t", 1024, 1, 0),)
    )
    assert entries(cards(1, own)) == [
        {
            "id": "uuid1",
            "count": 4,
            "devmem": 4096,
            "devcore": 7,
            "type": "Ascend910X",
            "health": True,
            "custominfo": {"NetworkID": 0},
        }
    ]


@pytest.mark.parametrize("fixture", ["310p3", "910a", "910b4", "910b4-mixed-health", "910c"])
@pytest.mark.parametrize("soft", [False, True])
def test_the_report_says_what_is_registered_and_offered(fixture: str, soft: bool) -> None:
    settings = chosen(soft=soft)
    found = look(node(fixture), settings)
    said = report(found, settings)
    assert list(said) == [
        *("schema", "vendor", "mode", "chip", "registration", "resources", "trouble", "skipped")
    ]
    assert json.loads(json.dumps(said)) == said
    assert said["registration"] == entries(found, settings)
    assert said["mode"] == ("hami-core" if soft else "template")
    (devices,) = said["resources"].values()
    assert [(d["id"], d["health"] == "Healthy") for d in devices] == ids(found, settings)
    assert len(devices) == len(found.npus) * found.shares(settings)


def test_the_report_of_a_node_whose_driver_is_down_says_why() -> None:
    machine = node("910b4")
    machine.npu_smi_fails("", "dcmi module initialize failed. ret is -8005\n", 0)
    said = report(look(machine), chosen())
    assert (said["chip"], said["registration"], said["resources"]) == ("", [], {})
    assert "-8005" in said["trouble"]


@given(st.integers(0, 12), st.sets(st.integers(0, 11)), st.integers(0, 5), st.sampled_from(DEVICES.chips))
def test_scheduler_and_kubelet_are_told_the_same(
    count: int, ill: set[int], node_count: int, chip: ChipConfig
) -> None:
    settings, inventory = Settings(count=node_count), cards(count, chip, tuple(ill))
    told = entries(inventory, settings)
    listed = ids(inventory, settings)
    assert [
        (f"{entry['id']}-{share}", entry.get("health", False))
        for entry in told
        for share in range(entry["count"])
    ] == listed
    assert [entry.get("index", 0) for entry in told] == list(range(count))
    assert config_of(chip.chip, DEVICES.chips) == chip
