"""Allocate of NPUs for whatever stands in a pod: refused or right, and never anything else.

Rules: ascend_ppu_hami.md A.7; decisions 25, 36 to 39, 50.
"""

from __future__ import annotations

import json
from typing import Any

from hypothesis import assume, event, given
from hypothesis import strategies as st

from devplugin.answers import Allocation, Refused
from devplugin.ascend.allocation import allocate, needs, ordered
from devplugin.ascend.inventory import Inventory, Npu
from devplugin.ascend.runtimeinfo import key, vocabulary
from devplugin.ascend.settings import ChipConfig, Settings, Template
from devplugin.hami import Claim, ContainerDevice, Pod, decode, encode, erase, pod_patch, slots_left

CHIP = ChipConfig(
    "310P3",
    "Ascend310P",
    "huawei.com/Ascend310P",
    21527,
    24576,
    8,
    7,
    (Template("vir01", 3072, 1, 1), Template("vir02", 6144, 2, 2), Template("vir04", 12288, 4, 4)),
)
WORDS = vocabulary(CHIP.word)
TEMPLATES = {one.name: one.memory_mib for one in CHIP.templates}


@st.composite
def inventories(draw: st.DrawFn) -> Inventory:
    """Up to eight chips whose physical ids come in any order."""
    phys = draw(st.lists(st.integers(0, 63), min_size=1, max_size=8, unique=True))
    return Inventory(CHIP, tuple(Npu(f"u{n}", n, phy, n // 2, n % 2, "310P3") for n, phy in enumerate(phys)))


settings = st.builds(Settings, node_name=st.just("n"), chips=st.just((CHIP,)), soft=st.booleans())


@st.composite
def scheduled(draw: st.DrawFn, soft: bool) -> tuple[Inventory, Pod]:
    """A pod as HAMi's scheduler writes it: cards that may be shared by its containers, in any order."""
    inventory = draw(inventories())
    uuids = [npu.uuid for npu in inventory.npus]
    slots, entries = [], []
    for _ in range(draw(st.integers(1, 4))):
        count = draw(st.integers(0, 3 if soft else 1))
        chosen = draw(st.permutations(uuids))[:count]
        memory = draw(
            st.integers(1, CHIP.allocatable_mib) if soft else st.sampled_from([*TEMPLATES.values(), 21527])
        )
        cores = draw(st.integers(0, 100)) if soft else 0
        temp = "" if soft else next((name for name, size in TEMPLATES.items() if size == memory), "")
        slots.append([ContainerDevice(uuid, CHIP.word, memory, cores) for uuid in chosen])
        said = {"temp": temp, "memory": memory, "core": cores}
        entries += [
            {"UUID": uuid, **{name: value for name, value in said.items() if value}} for uuid in chosen
        ]
    assume(any(slots))
    text = encode(slots)
    annotations = {
        WORDS.to_allocate: text,
        WORDS.allocated: text,
        key(CHIP.word): json.dumps(entries),
        **({"huawei.com/vnpu-mode": "hami-core"} if soft else {}),
    }
    names = tuple(f"c{i}" for i in range(len(slots)))
    return inventory, Pod("ns", "p", "uid-1", "n", "Pending", annotations, containers=names)


def answer(inventory: Inventory, chosen: Settings, claim: Claim) -> Allocation:
    facts: dict[Any, Any] = dict.fromkeys(needs(inventory, chosen, claim), True)
    return allocate(inventory, chosen, claim, (), facts)


def claims(pod: Pod) -> list[Claim]:
    """One for every container with devices, as the pod stands now."""
    slots = decode(pod.annotations[WORDS.to_allocate])
    return [
        Claim(tuple(f"id{i}" for i in range(len(devices))), pod, slot, devices)
        for slot, devices in enumerate(slots)
        if devices
    ]


@given(scheduled(soft=True))
def test_a_soft_container_gets_its_cards_ascending_and_the_first_ones_registry(
    made: tuple[Inventory, Pod],
) -> None:
    inventory, pod = made
    for claim in claims(pod):
        envs = answer(inventory, Settings(soft=True), claim).edits.envs
        visible = [int(phy) for phy in envs["ASCEND_VISIBLE_DEVICES"].split(",")]
        mine = [npu for npu in inventory.npus if npu.uuid in {device.id for device in claim.devices}]
        assert visible == sorted(npu.phy for npu in mine)
        # a ledger's index is the rank in that order, for whoever reads it later (decision 39)
        assert [npu.phy for npu in ordered(mine)] == visible
        assert envs["NPU_GLOBAL_SHM_PATH"] == f"/hami-shared-region/{visible[0]}_global_registry"
        assert int(envs["NPU_MEM_QUOTA"]) == claim.devices[0].memory_mib > 0
        assert envs.get("NPU_PRIORITY") == (str(claim.devices[0].cores) if claim.devices[0].cores else None)


@given(scheduled(soft=True))
def test_no_two_containers_of_a_pod_share_a_directory(made: tuple[Inventory, Pod]) -> None:
    inventory, pod = made
    paths = [
        answer(inventory, Settings(soft=True), claim).edits.mounts[-1].host_path for claim in claims(pod)
    ]
    assert len(set(paths)) == len(paths)


@given(scheduled(soft=False), st.booleans())
def test_every_container_gets_the_template_of_its_own_memory_whoever_shares_its_card(
    made: tuple[Inventory, Pod], soft_node: bool
) -> None:
    inventory, pod = made
    for claim in claims(pod):
        envs = answer(inventory, Settings(soft=soft_node), claim).edits.envs
        memory = claim.devices[0].memory_mib
        assert TEMPLATES.get(envs.get("ASCEND_VNPU_SPECS", "")) == (memory if memory != 21527 else None)
        assert set(envs) <= {"ASCEND_VISIBLE_DEVICES", "ASCEND_VNPU_SPECS"}


@given(st.booleans().flatmap(lambda soft: scheduled(soft=soft)))
def test_a_pod_served_slot_by_slot_gets_each_once_and_then_none_is_left(made: tuple[Inventory, Pod]) -> None:
    """F.2 C1 to C5: erased slots stay in their places, so positions hold to the end."""
    inventory, pod = made
    text, said = pod.annotations[WORDS.to_allocate], dict(pod.annotations)
    wanted = [answer(inventory, Settings(soft=True), claim).edits.envs for claim in claims(pod)]
    got = []
    while slots_left(said):
        now = Pod("ns", "p", "uid-1", "n", "Pending", said, containers=pod.containers)
        claim = claims(now)[0]
        got.append(answer(inventory, Settings(soft=True), claim).edits.envs)
        patch = pod_patch(claim, WORDS, {})
        assert claim.slot is not None
        assert patch[WORDS.to_allocate] == erase(said[WORDS.to_allocate], claim.slot)
        said |= {name: value for name, value in patch.items() if value is not None}
    assert got == wanted
    assert said[WORDS.to_allocate].count(";") == text.count(";")


words = st.text(st.characters(codec=None), max_size=6)
numbers = st.one_of(st.integers(-(2**70), 2**70), st.floats(), st.none(), st.booleans(), words)
entries = st.dictionaries(st.sampled_from(["UUID", "temp", "memory", "core", "x"]), numbers, max_size=5)
texts = st.one_of(
    words,
    st.recursive(numbers, lambda inner: st.lists(inner, max_size=3), max_leaves=8).map(json.dumps),
    st.lists(
        st.one_of(
            entries,
            st.fixed_dictionaries(
                {"UUID": st.sampled_from(["u0", "u1", ""])},
                optional={
                    "temp": st.sampled_from(["vir01", "vir04", "", "x"]),
                    "memory": st.integers(0, 30000),
                    "core": st.integers(0, 120),
                },
            ),
        ),
        max_size=4,
    ).map(json.dumps),
)
sizes = st.sampled_from([0, 3072, 6144, 8000, 21527, 30000])
wanted_devices = st.one_of(
    # mostly what a scheduler may have written: some cards, alike
    st.builds(
        lambda uuids, memory, cores: [ContainerDevice(uuid, CHIP.word, memory, cores) for uuid in uuids],
        st.lists(st.sampled_from(["u0", "u1", "u2"]), min_size=1, max_size=2, unique=True),
        sizes,
        st.integers(0, 120),
    ),
    st.lists(
        st.builds(
            ContainerDevice,
            st.sampled_from(["u0", "u1", "u9"]),
            words,
            st.integers(0, 2**31 - 1),
            st.integers(0, 2**31 - 1),
        ),
        max_size=3,
    ),
)
right = st.sampled_from(["", "vir01", "vir04"]).map(
    lambda temp: json.dumps([{"UUID": f"u{n}", **({"temp": temp} if temp else {})} for n in range(3)])
)


@given(
    inventories(),
    settings,
    wanted_devices,
    st.integers(-1, 5) | st.none() | st.just(0),
    st.fixed_dictionaries(
        {key(CHIP.word): st.one_of(right, right, texts)},
        optional={
            WORDS.allocated: st.one_of(words, st.sampled_from(["u0,T,1,1:;", "u0,T,1,1:u1,T,1,1:;;"])),
            "huawei.com/vnpu-mode": st.sampled_from(["hami-core", "", "hami-core", "enpu"]) | words,
        },
    ),
    st.just(("uid-1", ["c"])) | st.tuples(words, st.lists(words, max_size=3)),
    st.booleans(),
)
def test_whatever_stands_in_a_pod_is_refused_or_served_within_its_limits(
    inventory: Inventory,
    chosen: Settings,
    wanted: list[ContainerDevice],
    slot: int | None,
    annotations: dict[str, str],
    names: tuple[str, list[str]],
    there: bool,
) -> None:
    uid, containers = names
    pod = Pod("ns", "p", uid, "n", "Pending", annotations, containers=tuple(containers))
    claim = Claim(tuple("i" * len(wanted)), pod, slot, tuple(wanted))
    facts: dict[Any, Any] = dict.fromkeys(needs(inventory, chosen, claim), there)
    try:
        given_ = allocate(inventory, chosen, claim, (), facts)
    except Refused as refused:
        event("refused")
        assert "\n" not in str(refused)
        return
    envs, mounts = given_.edits.envs, given_.edits.mounts
    assert set(envs["ASCEND_VISIBLE_DEVICES"]) <= set("0123456789,")
    limited = "NPU_MEM_QUOTA" in envs or "ASCEND_VNPU_SPECS" in envs
    event("limited" if limited else "whole")
    if not limited:
        assert all(device.memory_mib >= CHIP.allocatable_mib for device in wanted)
    if "NPU_MEM_QUOTA" in envs:
        assert there
        assert int(envs["NPU_MEM_QUOTA"]) == wanted[0].memory_mib > 0
        assert mounts[-1].host_path.startswith(f"{chosen.containers}/")
        assert "/" not in mounts[-1].host_path.removeprefix(f"{chosen.containers}/")
        assert len(mounts) == 8
    if "ASCEND_VNPU_SPECS" in envs:
        assert TEMPLATES[envs["ASCEND_VNPU_SPECS"]] >= wanted[0].memory_mib
