"""What the scheduler decides, without a cluster: ascend_ppu_hami.md D.3 to D.5, D.8, D.10, D.11, F.5."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusim.cluster.pods import Placed, container, encode, pod
from gpusim.cluster.scheduler_devices import Registered, RegistrationError, alive, registered
from gpusim.cluster.scheduler_filter import Rules, choose, place
from gpusim.cluster.scheduler_fit import BINPACK, Terms, Wishes, fit, terms
from gpusim.cluster.scheduler_ledger import Held, LedgerError, Usage, count, decode
from gpusim.cluster.scheduler_vendors import AMD, AMD_MIXED, Request, amd_cores, container_requests
from gpusim.cluster.scheduler_webhook import admit

TYPE = "AMD_Instinct_MI300X"
SPREAD = Rules()


def card(number, **more):
    facts = {"type": TYPE, "count": 10, "memory_mib": 1000, "cores": 100, "index": number, "healthy": True}
    return Registered(f"dev-{number}", **facts | more)


def ask(count=1, memory=0, percent=100, profile=""):
    return Request("amd", count, memory, percent, profile)


def asking(name="p", *limits, annotations=None, init=()):
    return pod(
        name,
        [container(f"c{i}", one) for i, one in enumerate(limits)],
        init_containers=[container(f"i{i}", one) for i, one in enumerate(init)],
        annotations=annotations,
    )


def limits(**more):
    return {f"amd.com/{key}": value for key, value in more.items()}


def one(taken):
    return [(d.id, d.memory_mib, d.cores) for d in taken[0]]


# -- requests ---------------------------------------------------------------------------------------------


def test_m7_only_limits_count():
    body = container("c", limits(gpu=2, gpumem=4096, gpucores=33))
    body["resources"]["requests"] = limits(gpu="99", gpumem="99", gpucores="99")
    assert container_requests((AMD,), body) == (ask(2, 4096, 33),)
    del body["resources"]["limits"]
    assert container_requests((AMD,), body) == ()


@pytest.mark.parametrize(
    "bad",
    [
        {"gpumem": 1024, "gpucores": 10},
        {"gpu": 0},
        {"gpu": 1 << 31},
        {"gpu": "500m"},
        {"gpu": 1, "gpumem": -1},
        {"gpu": 1, "gpumem": 1 << 31},
        {"gpu": 1, "gpumem": "0.5"},
        {"gpu": 1, "gpucores": 0},
        {"gpu": 1, "gpucores": 101},
        {"gpu": 1, "gpucores": "a"},
    ],
)
def test_m8_a_bad_number_makes_the_whole_request_empty(bad):
    assert container_requests((AMD,), container("c", limits(**bad))) == ()


def test_m9_cores_left_out_are_all_and_memory_left_out_is_all():
    assert container_requests((AMD,), container("c", limits(gpu=1))) == (ask(),)
    assert one(fit(AMD, ask(), [card(0)], {})) == [("dev-0", 1000, 100)]


@pytest.mark.parametrize(
    ("resources", "asks", "refused"),
    [
        ({"gpu": 1}, True, False),
        ({"gpumem": 1}, True, False),
        ({"gpucores": 1}, True, False),
        ({}, False, False),
        ({"gpucores": 0}, True, True),
        ({"gpucores": 101}, True, True),
        ({"gpucores": "1.5"}, True, True),
    ],
)
def test_m10_admission_wants_an_integer_percentage(resources, asks, refused):
    admitted = admit(asking("p", limits(**resources)))
    text = "amd.com/gpucores must be an integer percentage between 1 and 100"
    assert admitted.denied == (text if refused else "")
    named = admitted.pod["spec"].get("schedulerName") == "hami-scheduler"
    assert named == (asks and not refused)


def test_the_webhook_denies_privileged_containers_and_assigned_pods_and_skips_what_is_labelled():
    body = asking("p", None, limits(gpu=1))
    body["spec"]["containers"][1]["securityContext"] = {"privileged": True}
    assert admit(body).denied == "container c1 is privileged"
    body["metadata"]["labels"] = {"hami.io/webhook": "ignore"}
    assert admit(body).pod is body
    plain = asking("p", None)
    plain["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    assert admit(plain).pod is plain
    bound = asking("p", limits(gpu=1))
    bound["spec"]["nodeName"] = "n"
    assert admit(bound).denied == "pod has node assigned"
    assert (
        admit(asking("p", limits(gpu=1)), within_quota=lambda p: False).denied == "exceeding resource quota"
    )


# -- fitting ----------------------------------------------------------------------------------------------


def test_m1_of_equal_devices_the_last_is_taken_first():
    assert one(fit(AMD, ask(2), [card(0), card(1)], {})) == [("dev-1", 1000, 100), ("dev-0", 1000, 100)]


def test_m2_a_small_device_is_passed_over():
    devices = [card(0, memory_mib=100, cores=10), card(1, memory_mib=1000, cores=100)]
    assert one(fit(AMD, ask(1, 500, 50), devices, {})) == [("dev-1", 500, 50)]


@pytest.mark.parametrize(
    ("percent", "total", "unit", "cores"),
    [
        (1, 64, 1, 1),
        (101, 64, 1, 64),
        (5, 64, 2, 4),
        (5, 64, 1, 3),
        (50, 2, 2, 2),
        (33, 304, 1, 100),
        (67, 304, 1, 203),
        (25, 304, 1, 76),
        (100, 35, 2, 35),
        (50, 0, 1, 0),
    ],
)
def test_m3_m4_a_percentage_is_so_many_compute_units(percent, total, unit, cores):
    assert amd_cores(ask(percent=percent), total, unit) == cores


@given(st.integers(1, 100), st.integers(1, 400), st.sampled_from([1, 2, 4]))
def test_compute_units_are_some_never_too_many_and_in_whole_groups(percent, total, unit):
    cores = amd_cores(ask(percent=percent), total, unit)
    assert 1 <= cores <= total
    assert cores % unit == 0 or cores == total
    assert 0 <= cores - max(1, total * percent // 100) < unit


@pytest.mark.parametrize(
    ("device", "used", "request_", "why"),
    [
        (card(0), Usage(1, 900, 0), ask(1, 500, 1), "1/1 CardInsufficientMemory"),
        (card(0, cores=10), Usage(1, 0, 9), ask(1, 1), "1/1 CardInsufficientCore"),
        (card(0, cores=0), Usage(), ask(1, 1), "1/1 CardInsufficientCore"),
        (card(0, cores=2, unit=2), Usage(1, 0, 2), ask(1, 1, 50), "1/1 CardInsufficientCore"),
        (card(0, count=3), Usage(3), ask(1, 1, 1), "1/1 CardTimeSlicingExhausted"),
        (card(0, healthy=False), Usage(), ask(), "1/1 CardNotHealth"),
        (card(0, type="Ascend910B4"), Usage(), ask(), "NodeInsufficientDevice"),
        (card(0), Usage(), ask(2), "NodeInsufficientDevice"),
    ],
)
def test_m5_each_reason_has_its_name(device, used, request_, why):
    assert fit(AMD, request_, [device], {"dev-0": used}) == ((), why)


def test_amd_has_no_exclusive_rule():
    body = asking("p", limits(gpu=1), annotations={"hami.io/gpu-scheduler-policy": "mutex"})
    used = {"dev-0": Usage(1, 0, 0)}
    assert fit(AMD, ask(1, 1), [card(0)], used, terms=terms(body, AMD))[1] == ""


def test_a_uuid_that_was_not_asked_for_is_a_mismatch():
    wish = Wishes(use_ids=("dev-9",))
    assert fit(AMD, ask(), [card(0)], {}, terms=Terms(wish)) == ((), "1/1 CardUuidMismatch")
    assert (
        fit(AMD, ask(), [card(0)], {}, terms=Terms(Wishes(avoid_ids=("dev-0",))))[1] == "1/1 CardUuidMismatch"
    )


def test_reasons_count_devices_and_are_sorted_as_text():
    devices = [card(0, healthy=False), card(1), card(2), card(3, cores=0)]
    usage = {"dev-1": Usage(1, 900, 0)}
    _, why = fit(AMD, ask(2, 500, 1), devices, usage)
    assert why == (
        "1/4 AllocatedCardsInsufficientRequest, 1/4 CardInsufficientCore, 1/4 CardInsufficientMemory, "
        "1/4 CardNotHealth"
    )


def test_m6_the_product_type_is_kept_in_the_annotation():
    taken, _ = fit(AMD, ask(1, 100, 10), [card(0, type=f"{TYPE}_VF")], {})
    assert encode([taken]) == f"dev-0,{TYPE}_VF,100,10:;"


@pytest.mark.parametrize(
    ("key", "value", "type_", "fits"),
    [
        ("use", "MI300", "MI300X", True),
        ("use", "MI250", "MI300X", False),
        ("use", "mi300x", "MI300X", True),
        ("nouse", "MI300", "MI300X", False),
        ("nouse", "MI250", "MI300X", True),
        ("nouse", "", "MI300X", True),
        ("nouse", "  ", "MI300X", True),
        ("nouse", "MI250,", "MI300X", True),
        ("nouse", ",MI250", "MI300X", True),
        ("nouse", " , ", "MI300X", True),
        ("use", "MI300,", "MI250X", False),
        ("use", " , ", "MI300X", False),
        ("use", "  ", "MI300X", True),
    ],
)
def test_m11_types_match_as_parts_and_empty_members_match_nothing(key, value, type_, fits):
    body = asking("p", limits(gpu=1), annotations={f"amd.com/{key}-gputype": value})
    taken, why = fit(AMD, ask(), [card(0, type=f"AMD_{type_}")], {}, terms=terms(body, AMD))
    assert (bool(taken), why) == (fits, "" if fits else "1/1 CardTypeMismatch")


def test_uuids_match_exactly_after_trimming():
    body = asking("p", limits(gpu=1), annotations={"amd.com/use-gpu-uuid": " dev-1 ,dev-22"})
    devices = [card(1), card(2), card(22)]
    assert {d.id for d in fit(AMD, ask(2), devices, {}, terms=terms(body, AMD))[0]} == {"dev-1", "dev-22"}


# -- registrations --------------------------------------------------------------------------------------


def node(devices, **status):
    text = devices if isinstance(devices, str) else json.dumps(devices)
    return {"metadata": {"name": "n", "annotations": {AMD.register: text}}, "status": status}


def test_m12_the_registration_is_read_whatever_the_case_of_its_keys():
    listed = [
        {"id": "GPU-0", "index": 0, "count": 1, "DevMem": 8192, "devcore": 100, "type": "amd", "health": True}
    ]
    (found,) = registered(node(listed), AMD)
    assert found == Registered("GPU-0", "amd", 1, 8192, 100, healthy=True)
    assert one(fit(AMD, ask(), [found], {})) == [("GPU-0", 8192, 100)]


def test_keys_left_out_are_zero():
    assert registered(node([{}]), AMD) == (Registered(""),)
    assert fit(AMD, ask(), [Registered("")], {})[1] == "1/1 CardNotHealth"


def test_numbers_of_custominfo_may_be_floats():
    listed = [{"id": "a", "custominfo": {"cuPerWGP": 2.0, "partitionProfile": "qpx_nps1"}}]
    (found,) = registered(node(listed), AMD)
    assert (found.unit, found.profile) == (2, "qpx_nps1")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "[1]",
        "nonsense",
        '[{"devmem": "1"}]',
        '[{"count": 4294967296}]',
        '[{"custominfo": {"cuPerWGP": Infinity}}]',
        '[{"custominfo": {"NetworkID": 1' + 400 * "0" + "}}]",
    ],
    ids=lambda text: text[:40],
)
def test_what_is_no_list_of_devices_is_refused(text):
    with pytest.raises(RegistrationError):
        registered(node(text), AMD)


def test_a_node_is_believed_while_it_counts_devices():
    assert alive(node([], capacity={"amd.com/gpu": "8"}), AMD)
    assert not alive(node([], capacity={"amd.com/gpu": "0"}), AMD)
    assert not alive(node([], capacity={"amd.com/cpx_nps1": "8"}), AMD)
    assert alive(node([], capacity={"amd.com/cpx_nps1": "8"}), AMD_MIXED)
    half = node([], capacity={"amd.com/gpu": "8"}, allocatable={"amd.com/gpu": "0"})
    assert alive(half, AMD, "capacity")
    assert not alive(half, AMD, "allocatable")


def test_a_vendor_without_a_count_resource_is_always_believed():
    assert alive(node([]), replace(AMD, count=""))


# -- partition types --------------------------------------------------------------------------------------


def test_b20_a_typed_request_gets_devices_of_that_type_only():
    devices = [
        card(0, mode="spx", partitionable=True),
        card(1, mode="cpx", profile="cpx_nps1"),
        card(2, mode="cpx", profile="cpx_nps4"),
        card(3, mode="spx"),
    ]

    def given(resource):
        (request,) = container_requests((AMD_MIXED,), container("c", limits(**{resource: 1})))
        return [d.id for d in fit(AMD_MIXED, request, devices, {})[0]]

    assert given("cpx_nps1") == ["dev-1"]
    assert given("cpx_nps4") == ["dev-2"]
    assert given("spx_nps1") == ["dev-3"]
    assert container_requests((AMD,), container("c", limits(cpx_nps1=1))) == ()
    assert container_requests((AMD_MIXED,), container("c", limits(cpx_nps9=1))) == ()


# -- whole pods -----------------------------------------------------------------------------------------


def test_b35_slots_are_init_containers_first_and_empty_ones_are_kept():
    body = asking(
        "p", limits(gpu=1, gpumem=10, gpucores=1), None, limits(gpu=1, gpumem=20, gpucores=2), init=(None,)
    )
    slots, after, why = place(body, (AMD,), {"amd": [card(0)]}, {}, SPREAD)
    assert why == ""
    assert encode(slots["amd"]) == f";dev-0,{TYPE},10,1:;;dev-0,{TYPE},20,2:;"
    assert after == {"dev-0": Usage(2, 30, 3)}


def test_upstreams_slip_loses_the_empty_slots_of_amd():
    body = asking("p", None, limits(gpu=1, gpumem=10, gpucores=1))
    slots, _, _ = place(body, (AMD,), {"amd": [card(0)]}, {}, replace(SPREAD, empty_slots=False))
    assert encode(slots["amd"]) == f"dev-0,{TYPE},10,1:;"


def test_a_container_that_does_not_fit_gives_back_what_the_others_took():
    body = asking("p", limits(gpu=1), limits(gpu=1))
    usage = {"dev-0": Usage()}
    assert place(body, (AMD,), {"amd": [card(0)]}, usage, SPREAD) == ({}, {}, "1/1 CardInsufficientMemory")
    assert usage == {"dev-0": Usage()}


def chosen(node_policy, **annotations):
    nodes = {"empty": {"amd": [card(0), card(1)]}, "half": {"amd": [card(2), card(3)]}}
    ledger = {("half", "dev-2"): Usage(1, 500, 50), ("empty", "dev-2"): Usage(9, 1000, 100)}
    body = asking("p", limits(gpu=1, gpumem=10, gpucores=1), annotations=annotations)
    choice = choose(body, (AMD,), nodes, ledger, Rules(node_policy))
    return choice.node, choice.slots["amd"][0][0].id


def test_binpack_fills_and_spread_empties_nodes_and_devices():
    assert chosen("spread") == ("empty", "dev-1")
    assert chosen("binpack") == ("half", "dev-3")
    assert chosen("binpack", **{"hami.io/gpu-scheduler-policy": BINPACK}) == ("half", "dev-2")
    assert chosen("binpack", **{"hami.io/node-scheduler-policy": " nonsense, spread"}) == ("empty", "dev-1")


def test_where_no_node_will_do_each_says_why():
    nodes = {"a": {"amd": [card(0, healthy=False)]}, "b": {"amd": [card(1, cores=0)]}}
    choice = choose(asking("p", limits(gpu=1)), (AMD,), nodes, {}, SPREAD)
    assert choice.node == ""
    assert choice.reasons == {"a": "1/1 CardNotHealth", "b": "1/1 CardInsufficientCore"}


requests = st.lists(
    st.one_of(
        st.none(),
        st.builds(limits, gpu=st.integers(1, 3), gpumem=st.integers(0, 1000), gpucores=st.integers(1, 100)),
    ),
    min_size=1,
    max_size=4,
)


@given(st.lists(requests, max_size=8), st.sampled_from(["binpack", "spread"]))
def test_no_history_of_pods_gives_any_device_away_twice(wanted, policy):
    devices = [card(i, count=3, cores=7 + i) for i in range(3)]
    pods = []
    for number, containers in enumerate(wanted):
        body = asking(f"p{number}", *containers)
        ledger, _ = count(pods, (AMD,))
        choice = choose(body, (AMD,), {"n": {"amd": devices}}, ledger, Rules(device_policy=policy))
        if choice.slots:
            text = encode(choice.slots["amd"])
            body["metadata"]["annotations"] = {"hami.io/vgpu-node": "n", AMD.allocated: text}
            pods.append(body)
            for asked, slot in zip(containers, choice.slots["amd"], strict=True):
                assert len({d.id for d in slot}) == len(slot) == (int(asked["amd.com/gpu"]) if asked else 0)
    for device in devices:
        pieces = [
            piece.split(",")
            for body in pods
            for piece in body["metadata"]["annotations"][AMD.allocated].replace(";", "").split(":")
            if piece.startswith(f"{device.id},")
        ]
        assert len(pieces) <= device.count
        assert sum(int(p[2]) for p in pieces) <= device.memory_mib
        assert sum(int(p[3]) for p in pieces) <= device.cores


# -- the ledger -----------------------------------------------------------------------------------------


def test_the_decoder_reads_what_d5_says():
    assert decode("") == ((),)
    assert decode("x:;") == ((), ())
    assert decode("u,t,1,2:v,t,3,4:;;") == ((Held("u", "t", 1, 2), Held("v", "t", 3, 4)), (), ())
    assert [h.slots for h in decode("u,t,1,2,3:u,t,1,2,x:u,t,1,2,-1:")[0]] == [3, 1, 1]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("u,t,1:;", "missing fields, do not use nodeName in task spec"),
        ("u,t,a,1:;", "invalid memory field"),
        ("u,t,1,2147483648:;", "invalid core field"),
        ("u,t,1_0,1:;", "invalid memory field"),
    ],
)
def test_a_bad_entry_fails_the_pod(text, why):
    with pytest.raises(LedgerError, match=why):
        decode(text)


slots = st.lists(
    st.lists(
        st.builds(
            Placed,
            st.text("abc-0", min_size=1),
            st.text("AM_", min_size=1),
            st.integers(0, 9),
            st.integers(0, 9),
        ),
        max_size=3,
    ),
    max_size=4,
)


@given(slots)
def test_decoding_gives_back_what_was_encoded_and_one_empty_slot(written):
    back = decode(encode(written))
    assert [[(d.id, d.type, d.memory_mib, d.cores) for d in slot] for slot in back] == [
        *[[(d.id, d.type, d.memory_mib, d.cores) for d in slot] for slot in written],
        [],
    ]


def holder(name, text, *, on="n", phase="Running"):
    body = asking(name, limits(gpu=1), annotations={"hami.io/vgpu-node": on, AMD.allocated: text})
    body["status"] = {"phase": phase}
    return body


def test_only_pods_that_were_assigned_and_have_not_ended_hold_anything():
    pods = [
        holder("a", "u,t,1,2:;"),
        holder("b", "u,t,3,4:v,t,1,1,2:;", phase="Pending"),
        holder("c", "u,t,9,9:;", phase="Succeeded"),
        holder("d", "u,t,9,9:;", phase="Failed"),
        holder("e", "u,t,5,6:;", on="m"),
        asking("f", limits(gpu=1)),
        holder("g", "u,t,x,1:;"),
    ]
    ledger, complaints = count(pods, (AMD,))
    assert ledger == {("n", "u"): Usage(2, 4, 6), ("n", "v"): Usage(2, 1, 1), ("m", "u"): Usage(1, 5, 6)}
    assert len(complaints) == 1
    assert complaints[0].startswith("pod default/g: invalid memory field")
    without, _ = count(pods, (AMD,), without=pods[1]["metadata"]["uid"])
    assert without[("n", "u")] == Usage(1, 1, 2)
