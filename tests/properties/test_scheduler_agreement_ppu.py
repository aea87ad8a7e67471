"""Scheduler and PPU plugin share no line: both make the same of one configuration and of each other."""

from __future__ import annotations

import yaml
from hypothesis import event, given, settings
from hypothesis import strategies as st

from devplugin.hami import Claim, Pod, decode
from devplugin.ppu import deviceconfig
from devplugin.ppu.allocation import allocate, needs
from devplugin.ppu.discovery import discover
from devplugin.ppu.offer import offers
from devplugin.ppu.registration import node_patch
from devplugin.ppu.settings import Settings
from devplugin.ppu.words import HOST, PRELOAD, VOCABULARY
from gpusim import fixture
from gpusim.cluster.pods import container, encode, pod
from gpusim.cluster.scheduler_devices import Registered, registered
from gpusim.cluster.scheduler_filter import Rules, choose
from gpusim.cluster.scheduler_ppu import ppu_vendors
from gpusim.cluster.scheduler_webhook import admit
from gpusim.machine import Machine
from gpusim.ppu import environment
from gpusim.ppu.inside import inside

FIXTURES = [name for name in fixture.names() if name.startswith("ppu/")]
PPU = ppu_vendors()[0]
SHARE = "alibaba.com/ppu-memory-percentage"

blocks = st.fixed_dictionaries(
    {},
    optional={
        "deviceSplitCount": st.integers(1, 20),
        "deviceMemoryScaling": st.floats(0.1, 4, allow_nan=False),
        "deviceCoreScaling": st.floats(0.1, 4, allow_nan=False),
    },
)


def machine(name: str) -> Machine:
    found = Machine(fixture.load(name))
    found.mkdir(HOST)
    found.put(f"{HOST}/libppu.so", b"\x7fELF")
    found.put(f"{HOST}/{PRELOAD}", b"/ppu-hami-core/libppu.so\n")
    return found


def test_both_know_one_vocabulary() -> None:
    assert (PPU.register, PPU.handshake) == (VOCABULARY.register, VOCABULARY.handshake)
    assert (PPU.to_allocate, PPU.allocated) == (VOCABULARY.to_allocate, VOCABULARY.allocated)
    assert PPU.count == Settings().resource


@given(st.from_regex(r"[a-z]{1,9}\.[a-z]{2,3}/[a-z]{1,9}", fullmatch=True))
def test_both_read_the_resource_out_of_one_file(name: str) -> None:
    config = {"alibaba": {"resourceCountName": name}}
    assert deviceconfig.parse(yaml.safe_dump(config).encode()).resource == name
    assert ppu_vendors(config)[0].count == name


def chosen(block: dict[str, float]) -> Settings:
    found = deviceconfig.parse(yaml.safe_dump({"alibaba": block}).encode())
    return Settings(
        split=found.split or 2,
        memory_scaling=found.memory_scaling or 1.0,
        core_scaling=found.core_scaling or 1.0,
    )


def believed(node: Machine, mine: Settings) -> tuple[Registered, ...]:
    patch = node_patch(discover(node, mine, None), mine, 0.0)
    body = {"metadata": {"name": "n", "annotations": dict(patch.annotations)}}
    return registered(body, PPU) if patch.annotations else ()


@settings(deadline=None)
@given(st.sampled_from(FIXTURES), blocks)
def test_the_scheduler_believes_just_what_kubelet_is_offered(name: str, block: dict[str, float]) -> None:
    node, mine = machine(name), chosen(block)
    offered = offers(discover(node, mine, None), mine).get(mine.resource)
    cards = believed(node, mine)
    ids = [device.id for device in offered.devices] if offered else []
    assert ids == [f"{card.id}-{share}" for card in cards for share in range(card.count)]
    for card in cards:
        assert card.memory_mib == int(98304 * mine.memory_scaling)
        assert abs(card.cores - 100 * mine.core_scaling) <= 0.5
        assert "ppu" in card.type.lower()


asked = st.lists(
    st.fixed_dictionaries(
        {PPU.count: st.integers(1, 4)},
        optional={
            PPU.memory: st.integers(1, 98304),
            SHARE: st.integers(1, 100),
            PPU.cores: st.integers(0, 100),
        },
    ),
    min_size=1,
    max_size=3,
)


@settings(deadline=None)
@given(st.sampled_from(["ppu/zw810e-8", "ppu/zw810e-minor-shift", "ppu/zw810e-16"]), asked, blocks)
def test_every_choice_of_the_scheduler_is_granted_and_holds_as_the_runtime_reads_it(
    name: str, limits: list[dict[str, int]], block: dict[str, float]
) -> None:
    node, mine = machine(name), chosen(block)
    inventory = discover(node, mine, None)
    body = pod("p", [container(f"c{i}", one) for i, one in enumerate(limits)])
    result = admit(body, (PPU,))
    assert not result.denied
    placement = choose(result.pod, (PPU,), {"n": {PPU.word: believed(node, mine)}}, {}, Rules())
    event(f"placed: {bool(placement.node)}")
    if not placement.node:
        return
    slots = decode(encode(placement.slots[PPU.word]))
    names = tuple(f"c{i}" for i in range(len(limits)))
    mine_pod = Pod("default", "p", "uid", "n", "Pending", containers=names)
    for place, slot in enumerate(slots[: len(limits)]):
        claim = Claim(tuple(f"{one.id}-0" for one in slot), mine_pod, place, slot)
        edits = allocate(inventory, claim, dict.fromkeys(needs(inventory, claim), True)).edits
        cards = inside(node.ppus, [one.path for one in edits.devices]).devices
        quotas = environment.quotas(edits.envs, len(cards))
        assert {card.uuid: quota for card, quota in zip(cards, quotas, strict=True)} == {
            one.id: one.memory_mib * environment.MIB for one in slot
        }
        assert set(environment.sm_limits(edits.envs, len(cards))) == {one.cores for one in slot}
