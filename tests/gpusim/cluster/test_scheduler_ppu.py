"""PPU's side of the scheduler: ascend_ppu_hami.md C.2 and decision 52, rules as of HAMi's NVIDIA back end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusim.cluster.pods import container, encode, pod
from gpusim.cluster.scheduler_block import BadDeviceConfigError
from gpusim.cluster.scheduler_devices import Registered
from gpusim.cluster.scheduler_filter import Rules, place
from gpusim.cluster.scheduler_fit import Terms, fit, terms
from gpusim.cluster.scheduler_ledger import Usage
from gpusim.cluster.scheduler_ppu import POLICY_VARIABLE, ppu_vendors
from gpusim.cluster.scheduler_vendors import NO_MEMORY, Request, Resources, container_requests
from gpusim.cluster.scheduler_webhook import admit

COUNT, MEMORY, CORES = "alibaba.com/ppu", "alibaba.com/ppu-memory", "alibaba.com/gpu-core"
SHARE = "alibaba.com/ppu-memory-percentage"
TYPE = "PPU-ZW810E"


def row(**block):
    (made,) = ppu_vendors({"alibaba": block})
    return made


PPU = row()


def card(number, **more):
    facts = {"type": TYPE, "count": 2, "memory_mib": 98304, "cores": 100, "index": number, "healthy": True}
    return Registered(f"GPU-{number}", **facts | more)


def read(vendor=PPU, limits=None, requests=None):
    return vendor.read(vendor, Resources(limits or {}, requests or {}))


def asking(limits, **more):
    return pod("p", [container("c", limits)], **more)


def given_(request, cards, usage=None, **more):
    return [(d.id, d.memory_mib, d.cores) for d in fit(PPU, request, cards, usage or {}, **more)[0]]


# -- the row ----------------------------------------------------------------------------------------------


def test_the_names_are_those_of_the_decision_and_the_chart():
    assert (PPU.register, PPU.handshake) == ("hami.io/node-register-ppu", "hami.io/node-handshake-ppu")
    assert (PPU.to_allocate, PPU.allocated) == (
        "hami.io/ppu-devices-to-allocate",
        "hami.io/ppu-devices-allocated",
    )
    assert (PPU.count, PPU.memory, PPU.cores) == (COUNT, MEMORY, CORES)
    assert PPU.notes is None  # no JSON annotation (decision 52)


def test_a_configuration_may_rename_resources_or_have_no_ppus():
    mine = row(resourceCountName="a/b", resourceMemoryName="a/m", resourceCoreName="a/c")
    assert read(mine, {"a/b": "1", "a/m": "5", "a/c": "7"}) == (
        Request("ppu", 1, 5, 7, memory_percent=NO_MEMORY),
    )
    assert ppu_vendors({"vnpus": []}) == ()
    assert [one.word for one in ppu_vendors()] == ["ppu"]


@pytest.mark.parametrize(
    ("block", "why"),
    [
        (
            {"gpuCorePolicy": "always"},
            "alibaba.gpuCorePolicy: expected one of default, force, disable, got 'always'",
        ),
        (
            {"defaultMemory": "0"},
            "alibaba.defaultMemory: expected a whole number of at least 0, got '0'",
        ),
        ({"overwriteEnv": 1}, "alibaba.overwriteEnv: expected true or false, got 1"),
    ],
    ids=str,
)
def test_a_configuration_that_cannot_be_used_says_where(block, why):
    with pytest.raises(BadDeviceConfigError) as error:
        row(**block)
    assert str(error.value) == why


# -- requests ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("block", "limits", "expected"),
    [
        ({}, {COUNT: 1}, Request("ppu", 1, 0, 0, memory_percent=100)),
        ({}, {COUNT: 2, MEMORY: 1024}, Request("ppu", 2, 1024, 0, memory_percent=NO_MEMORY)),
        ({}, {COUNT: 1, SHARE: 25, CORES: 30}, Request("ppu", 1, 0, 30, memory_percent=25)),
        ({"defaultMemory": 512}, {COUNT: 1}, Request("ppu", 1, 512, 0, memory_percent=NO_MEMORY)),
        ({"defaultMemory": 512}, {COUNT: 1, SHARE: 25}, Request("ppu", 1, 0, 0, memory_percent=25)),
        ({"defaultCores": 40}, {COUNT: 1}, Request("ppu", 1, 0, 40, memory_percent=100)),
        ({"defaultCores": 40}, {COUNT: 1, CORES: 0}, Request("ppu", 1, 0, 0, memory_percent=100)),
        ({"memoryFactor": 10}, {COUNT: 1, MEMORY: 128}, Request("ppu", 1, 1280, 0, memory_percent=NO_MEMORY)),
        ({"memoryFactor": 0}, {COUNT: 1, MEMORY: 128}, Request("ppu", 1, 128, 0, memory_percent=NO_MEMORY)),
        (
            {"memoryFactor": 10, "defaultMemory": 7},
            {COUNT: 1},
            Request("ppu", 1, 7, 0, memory_percent=NO_MEMORY),
        ),
    ],
    ids=str,
)
def test_what_is_not_asked_for_has_a_default(block, limits, expected):
    assert read(row(**block), {key: str(value) for key, value in limits.items()}) == (expected,)


@pytest.mark.parametrize(
    "bad",
    [
        {},
        {COUNT: "0"},
        {COUNT: "1.5"},
        {COUNT: "2147483648"},
        {MEMORY: "-1"},
        {MEMORY: "16Gi"},
        {CORES: "-1"},
        {SHARE: "2147483648"},
        {CORES: "2147483648"},
    ],
    ids=str,
)
def test_a_number_out_of_bounds_empties_the_request(bad):
    assert read(limits={**({COUNT: "1"} if bad else {}), **bad}) == ()


def test_limits_come_before_requests():
    assert read(limits={COUNT: "2"}, requests={COUNT: "9", MEMORY: "5"}) == (
        Request("ppu", 2, 5, 0, memory_percent=NO_MEMORY),
    )


# -- admission ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [MEMORY, SHARE, CORES])
def test_a_container_that_asks_for_a_part_gets_a_count(name):
    changed = admit(asking({name: 10}), (PPU,)).pod
    assert changed["spec"]["containers"][0]["resources"]["limits"] == {name: "10", COUNT: "1"}
    assert changed["spec"]["schedulerName"] == "hami-scheduler"
    (request,) = container_requests((row(defaultGPUNum=3),), admitted_with(name, 3))
    assert request.count == 3


def admitted_with(name, number):
    return admit(asking({name: 10}), (row(defaultGPUNum=number),)).pod["spec"]["containers"][0]


def test_without_a_default_count_a_part_alone_is_not_ours():
    body = asking({MEMORY: 10})
    assert admit(body, (row(defaultGPUNum=0),)).pod is body


@pytest.mark.parametrize("policy", ["default", "force", "disable"])
def test_the_policy_of_cores_reaches_the_container_unless_it_is_the_default(policy):
    changed = admit(asking({COUNT: 1}), (row(gpuCorePolicy=policy),)).pod["spec"]["containers"][0]
    expected = [] if policy == "default" else [{"name": POLICY_VARIABLE, "value": policy}]
    assert changed.get("env", []) == expected
    plain = pod("p")
    assert admit(plain, (row(gpuCorePolicy=policy),)).pod is plain


def test_the_runtime_class_is_the_users_or_else_the_configurations():
    mine = row(runtimeClassName="ppu")
    assert admit(asking({COUNT: 1}), (mine,)).pod["spec"]["runtimeClassName"] == "ppu"
    own = asking({COUNT: 1})
    own["spec"]["runtimeClassName"] = "own"
    assert admit(own, (mine,)).pod["spec"]["runtimeClassName"] == "own"


# -- fitting ------------------------------------------------------------------------------------------------


def test_cards_are_seen_by_their_type():
    (request,) = read(limits={COUNT: "1"})
    assert given_(request, [card(0)]) == [("GPU-0", 98304, 0)]
    assert fit(PPU, request, [card(0, type="Ascend910B4")], {}) == ((), "NodeInsufficientDevice")


def test_a_share_of_memory_is_of_what_the_card_registered():
    (request,) = read(limits={COUNT: "1", SHARE: "25", CORES: "30"})
    assert given_(request, [card(0), card(1, memory_mib=1000)]) == [("GPU-1", 250, 30)]


@pytest.mark.parametrize(
    ("used", "cores", "why"),
    [
        (Usage(2), 0, "CardTimeSlicingExhausted"),
        (Usage(1, 98304, 0), 0, "CardInsufficientMemory"),
        (Usage(1, 0, 80), 30, "CardInsufficientCore"),
        (Usage(1, 0, 0), 100, "ExclusiveDeviceAllocateConflict"),
        (Usage(1, 0, 100), 0, "CardComputeUnitsExhausted"),
    ],
)
def test_each_reason_has_its_name(used, cores, why):
    (request,) = read(limits={COUNT: "1", MEMORY: "10", CORES: str(cores)})
    assert fit(PPU, request, [card(0)], {"GPU-0": used}) == ((), f"1/1 {why}")


def test_scaled_cores_are_room_for_more():
    (request,) = read(limits={COUNT: "1", MEMORY: "10", CORES: "100"})
    assert given_(request, [card(0, cores=150)], {"GPU-0": Usage(1, 0, 50)}) == [("GPU-0", 10, 100)]
    assert (
        fit(PPU, request, [card(0, cores=150)], {"GPU-0": Usage(1, 0, 51)})[1] == "1/1 CardInsufficientCore"
    )


def test_the_user_may_choose_cards_and_types():
    (request,) = read(limits={COUNT: "1"})
    body = pod("p", annotations={"alibaba.com/use-gpuuuid": "GPU-0", "alibaba.com/nouse-gputype": "x, zw999"})
    assert given_(request, [card(0), card(1)], terms=terms(body, PPU)) == [("GPU-0", 98304, 0)]
    body = pod("p", annotations={"alibaba.com/use-gputype": "zw999"})
    assert fit(PPU, request, [card(0)], {}, terms=terms(body, PPU)) == ((), "1/1 CardTypeMismatch")
    assert fit(PPU, request, [card(0)], {"GPU-0": Usage(1)}, terms=Terms(mutex=True))[1] == (
        "1/1 ExclusiveDeviceAllocateConflict"
    )


def test_the_annotation_says_the_vendors_word_for_the_type():
    body = asking({COUNT: 1, MEMORY: 100, CORES: 20})
    slots, _, why = place(body, (PPU,), {"ppu": [card(0)]}, {}, Rules())
    assert (why, encode(slots["ppu"])) == ("", "GPU-0,PPU,100,20:;")


@given(
    st.lists(st.tuples(st.integers(0, 60000), st.integers(0, 120)), max_size=8),
    st.sampled_from(["binpack", "spread"]),
)
def test_no_history_of_pods_gives_a_card_away_twice(wanted, policy):
    cards = [card(i, count=3, cores=100 + 50 * i) for i in range(2)]
    usage: dict[str, Usage] = {}
    for memory, cores in wanted:
        body = asking({COUNT: 1, MEMORY: memory, CORES: cores})
        _, after, why = place(body, (PPU,), {"ppu": cards}, usage, Rules(device_policy=policy))
        usage = usage if why else after
    for one in cards:
        used = usage.get(one.id, Usage())
        assert used.slots <= one.count
        assert used.memory_mib <= one.memory_mib
        assert used.cores <= one.cores
