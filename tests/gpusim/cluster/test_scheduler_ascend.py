"""How the scheduler places Ascend pods: ascend_ppu_hami.md D.5, D.8, D.9, F.2 C15 to C18, F.4 S10 to S26."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusim.cluster.pods import Placed, container, encode, pod
from gpusim.cluster.scheduler_ascend import MODE_KEY, ascend_vendors, shipped
from gpusim.cluster.scheduler_ascend_topology import WEIGHT
from gpusim.cluster.scheduler_block import BadDeviceConfigError
from gpusim.cluster.scheduler_devices import Registered, registered
from gpusim.cluster.scheduler_filter import Rules, choose, place
from gpusim.cluster.scheduler_fit import Terms, Wishes, fit, take, terms
from gpusim.cluster.scheduler_ledger import Usage, count, decode
from gpusim.cluster.scheduler_vendors import AMD, Request, Resources
from gpusim.cluster.scheduler_webhook import admit

WORD = "Ascend910B4"
NAME = f"huawei.com/{WORD}"


def row(word=WORD, settings=None):
    return next(one for one in ascend_vendors(settings) if one.word == word)


B4, A, C = row(), row("Ascend910A"), row("Ascend910C")


def card(number, **more):
    facts = {"type": WORD, "count": 100, "memory_mib": 1280, "cores": 100, "index": number, "healthy": True}
    return Registered(f"dev-{number}", **facts | more)


def ask(devices=1, memory=64, cores=0, *, percent=None, word=WORD):
    """A request; memory 0 is the whole card unless `percent` says otherwise."""
    return Request(
        word, devices, memory, cores, memory_percent=(0 if memory else 100) if percent is None else percent
    )


def ids(result):
    return [device.id for device in result[0]]


def read(vendor=B4, **amounts):
    names = {"count": vendor.count, "memory": vendor.memory, "cores": vendor.cores}
    return vendor.read(vendor, Resources({names[key]: str(value) for key, value in amounts.items()}))


# -- requests ---------------------------------------------------------------------------------------------


def test_s10_what_is_asked_is_count_memory_and_a_percentage():
    assert read(count=2, memory=8738) == (Request(WORD, 2, 8738, 0, memory_percent=0),)
    assert read(count=2) == (Request(WORD, 2, 0, 0, memory_percent=100),)
    assert read() == ()


@pytest.mark.parametrize(("factor", "memory"), [(10, 1280), (100, 12800), (0, 128), (1, 128)])
def test_s11_memory_is_multiplied_by_a_factor_above_one(factor, memory):
    settings = shipped()
    for entry in settings["vnpus"]["configs"]:
        entry["memoryFactor"] = factor
    (request,) = read(row(settings=settings), count=1, memory=128)
    assert request.memory_mib == memory


@pytest.mark.parametrize(
    "bad",
    [
        {"memory": "16Gi"},
        {"memory": "-1m"},
        {"memory": -100},
        {"count": 2200000000},
        {"count": 0},
        {"count": -1},
        {"count": "1.5"},
        {"cores": -1},
        {"cores": 2200000000},
    ],
    ids=str,
)
def test_s12_a_number_out_of_bounds_empties_the_request(bad):
    assert read(**{"count": 1, **bad}) == ()


def test_s12_memory_out_of_bounds_after_the_factor_empties_the_request():
    settings = shipped()
    for entry in settings["vnpus"]["configs"]:
        entry["memoryFactor"] = 10
    assert read(row(settings=settings), count=1, memory=300000000) == ()
    assert read(count=1, memory=300000000) != ()


def test_fractional_memory_is_as_good_as_none():
    assert read(count=1, memory="0.5") == read(count=1)


def test_limits_come_before_requests():
    asked = Resources({NAME: "2"}, {NAME: "9", f"{NAME}-memory": "8192"})
    assert B4.read(B4, asked) == (ask(2, 8192),)


# -- one device -----------------------------------------------------------------------------------------


def test_s13_of_equal_devices_the_last_is_taken():
    assert ids(fit(B4, ask(cores=50), [card(0), card(1)], {})) == ["dev-1"]


def test_s14_a_card_that_is_too_small():
    assert fit(B4, ask(memory=512), [card(0, memory_mib=128)], {}) == ((), "1/1 CardInsufficientMemory")


@pytest.mark.parametrize(
    ("used", "cores", "why"),
    [
        (Usage(1, 0, 100), 50, "CardInsufficientCore"),
        (Usage(1, 0, 100), 0, "CardComputeUnitsExhausted"),
        (Usage(1, 0, 0), 100, "ExclusiveDeviceAllocateConflict"),
    ],
)
def test_s15_cores_that_are_used_up_or_wanted_alone(used, cores, why):
    assert fit(B4, ask(cores=cores), [card(0)], {"dev-0": used}) == ((), f"1/1 {why}")


def test_all_cores_of_a_card_that_registers_fewer_than_a_hundred_are_not_exclusive():
    assert fit(B4, ask(cores=20), [card(0, cores=20)], {"dev-0": Usage(1, 0, 0)})[1] == ""


def test_a_card_that_registers_no_cores_is_not_full_of_them():
    assert fit(B4, ask(), [card(0, cores=0)], {"dev-0": Usage(1)})[1] == ""


def test_s16_a_card_with_as_many_users_as_it_counts():
    assert fit(B4, ask(), [card(0)], {"dev-0": Usage(100)}) == ((), "1/1 CardTimeSlicingExhausted")


@pytest.mark.parametrize(
    ("request_", "device", "wish", "why"),
    [
        (ask(word="OtherType"), card(0), Wishes(), "CardTypeMismatch"),
        (ask(), card(1), Wishes(use_ids=("dev-0",)), "CardUuidMismatch"),
        (ask(), card(0), Wishes(avoid_ids=("dev-0",)), "CardUuidMismatch"),
        (ask(), card(0, healthy=False), Wishes(), "CardNotHealth"),
    ],
    ids=["type", "use", "no-use", "health"],
)
def test_s17_a_card_of_another_type_or_id_or_that_is_ill(request_, device, wish, why):
    assert take(B4, request_, [device], {}, Terms(wish)) == ((), f"1/1 {why}")


def test_s17_ids_are_wished_for_under_the_common_word():
    body = pod("p", annotations={f"hami.io/use-{WORD}-uuid": " dev-1 ,x", f"hami.io/no-use-{WORD}-uuid": "y"})
    assert terms(body, B4).wish == Wishes(use_ids=("dev-1", "x"), avoid_ids=("y",))
    assert terms(body, C).wish == Wishes()


def test_s18_more_than_all_cores_counts_as_all():
    taken, why = fit(B4, ask(cores=120), [card(0)], {})
    assert (why, taken[0].cores) == ("", 100)


@pytest.mark.parametrize(("wanted", "there"), [(2, 1), (3, 2)])
def test_s19_fewer_cards_than_asked_for(wanted, there):
    cards = [card(i) for i in range(there)]
    why = f"{there}/{there} AllocatedCardsInsufficientRequest"
    assert take(B4, ask(wanted), cards, {}, Terms()) == ((), why)
    assert fit(B4, ask(wanted), cards, {}) == ((), "NodeInsufficientDevice")


def test_s20_a_tenth_of_a_card():
    taken, why = fit(B4, ask(memory=0, percent=10), [card(0)], {"dev-0": Usage(1, 1152, 0)})
    assert (why, taken[0].memory_mib) == ("", 128)


def test_s21_of_several_networks_the_one_with_most_cards_serves():
    cards = [card(0, network=0.0), card(1, network=1.0), card(2, network=1.0)]
    assert ids(fit(B4, ask(2), cards, {})) == ["dev-2", "dev-1"]
    cards = [card(0, network=0.0), card(1, network=0.0), card(2, network=1.0)]
    assert ids(fit(B4, ask(2), cards, {})) == ["dev-1", "dev-0"]
    assert ids(fit(B4, ask(3), cards, {})) == ["dev-1", "dev-0", "dev-2"]
    assert ids(fit(B4, ask(1), cards, {})) == ["dev-2"]


def test_networks_matter_only_where_every_card_has_one_and_on_910_boards():
    cards = [card(0, network=0.0), card(1, network=0.0), card(2)]
    assert ids(fit(B4, ask(2), cards, {})) == ["dev-2", "dev-1"]
    p3 = row("Ascend310P")
    cards = [card(i, type="Ascend310P", network=float(i // 2)) for i in range(3)]
    assert ids(fit(p3, ask(2, word="Ascend310P"), cards, {})) == ["dev-2", "dev-1"]


@pytest.mark.parametrize(
    "request_", [ask(), ask(memory=0), ask(memory=0, percent=101)], ids=["slice", "card", "101 %"]
)
def test_s22_a_soft_pod_does_not_fit_a_node_without_soft_slices(request_):
    soft = Terms(soft=True)
    assert fit(B4, request_, [card(0)], {}, terms=soft) == ((), "1/1 ModeNotFit")
    assert ids(fit(B4, request_, [card(0, soft=True)], {}, terms=soft)) == ["dev-0"]


@pytest.mark.parametrize("soft", [True, False], ids=["soft node", "plain node"])
@pytest.mark.parametrize("memory", [64, 0], ids=["slice", "card"])
def test_s23_a_pod_without_a_mode_fits_either_node(soft, memory):
    assert ids(fit(B4, ask(memory=memory), [card(0, soft=soft)], {})) == ["dev-0"]


def test_s24_a_mutex_wants_a_card_that_nobody_uses():
    body = pod("p", annotations={"hami.io/gpu-scheduler-policy": "spread, mutex"})
    assert terms(body, B4) == Terms(mutex=True)
    why = "1/1 ExclusiveDeviceAllocateConflict"
    assert fit(B4, ask(), [card(0)], {"dev-0": Usage(1)}, terms=terms(body, B4)) == ((), why)
    assert fit(B4, ask(), [card(0)], {}, terms=terms(body, B4))[1] == ""


@pytest.mark.parametrize("networks", [False, True], ids=["without networks", "with networks"])
@pytest.mark.parametrize(
    ("indices", "wanted", "found"),
    [
        ((0, 1, 2), 2, ["dev-1", "dev-0"]),
        ((0, 1, 2, 4, 6), 4, []),
        ((0, 2), 2, []),
        ((0, 2, 4, 6), 4, []),
        ((0, 1, 2, 3), 4, ["dev-3", "dev-2", "dev-1", "dev-0"]),
        ((0, 1, 2, 3), 3, []),
        ((0, 1, 2), 1, ["dev-2"]),
    ],
)
def test_s25_several_910c_chips_are_whole_pairs(indices, wanted, found, networks):
    cards = [card(i, type="Ascend910C", network=0.0 if networks else None) for i in indices]
    result = fit(C, ask(wanted, word="Ascend910C"), cards, {})
    assert ids(result) == found
    expected = f"{len(indices)}/{wanted} AllocatedCardsInsufficientRequest"
    assert result[1] == ("" if found else expected)


def test_s26_usage_adds_up():
    assert Usage(0, 2000, 15).plus(1024, 50) == Usage(1, 3024, 65)


def test_a_soft_pod_has_a_hundred_cores_of_a_card_that_registers_fewer():
    soft = Terms(soft=True)
    full = {"dev-0": Usage(1, 0, 30)}
    assert fit(B4, ask(cores=60), [card(0, cores=20, soft=True)], full, terms=soft)[1] == ""
    assert fit(B4, ask(cores=21), [card(0, cores=20)], {})[1] == "1/1 CardInsufficientCore"


def test_g3_slices_hold_no_cores_so_that_memory_alone_guards_a_card():
    cards = [card(0, type="Ascend310P", memory_mib=21527, cores=8, count=7)]
    p3 = row("Ascend310P")
    used = {}
    for _ in range(7):  # vir01 each: 7 of 8 AI cores; a vNPU left behind is not seen
        taken, why = fit(p3, ask(memory=3072, word="Ascend310P"), cards, used)
        assert why == ""
        assert taken[0].cores == 0
        used = {"dev-0": used.get("dev-0", Usage()).plus(3072, 0)}
    assert used["dev-0"].cores == 0


# -- registrations --------------------------------------------------------------------------------------


def node(vendor=B4, devices=None, **annotations):
    listed = [{"id": "u", "count": 4, "devmem": 32768, "devcore": 20, "type": vendor.word, "health": True}]
    annotations = {key.replace("_", "-"): value for key, value in annotations.items()}
    text = json.dumps(listed if devices is None else devices)
    return {"metadata": {"name": "n", "annotations": {vendor.register: text, **annotations}}}


def test_a_registration_is_read_with_zeros_left_out_and_networks_as_floats():
    listed = [
        {"id": "a", "count": 4, "devmem": 32768, "devcore": 20, "type": WORD, "health": True},
        {"id": "b", "index": 1, "type": WORD, "custominfo": {"NetworkID": 1}},
        {"id": "c", "index": 2, "type": WORD, "custominfo": {"NetworkID": 0.0}},
    ]
    found = registered(node(devices=listed), B4)
    assert [(d.index, d.healthy, d.network) for d in found] == [
        (0, True, None),
        (1, False, 1.0),
        (2, False, 0.0),
    ]


@pytest.mark.parametrize(
    ("everywhere", "said", "soft"),
    [
        (False, None, False),
        (True, None, True),
        (False, "true", True),
        (True, "false", False),
        (True, "yes", False),
    ],
)
def test_what_a_node_says_of_its_mode_beats_the_configuration(everywhere, said, soft):
    vendor = row(settings=shipped(soft=everywhere))
    marks = {} if said is None else {"hami_vnpu_core": said}
    (found,) = registered(node(vendor, **marks), vendor)
    assert found.soft is soft


def test_a_registration_may_be_the_older_string():
    body = node()
    body["metadata"]["annotations"][B4.register] = f"u,4,32768,20,{WORD},0,true:"
    assert registered(body, B4) == (Registered("u", WORD, 4, 32768, 20, mode="hami-core", healthy=True),)


# -- whole pods -----------------------------------------------------------------------------------------


def limits(memory=None, cores=None, devices=1, name=NAME):
    amounts = {name: devices, f"{name}-memory": memory, f"{name}-core": cores}
    return {key: value for key, value in amounts.items() if value is not None}


def full(number=0, **more):
    return card(number, memory_mib=32768, cores=20, count=4, **more)


def notes(vendor, slots, *, soft=False):
    return dict(vendor.notes(slots, soft, 1_800_000_000))


def test_c15_a_fifth_field_counts_slots_and_nonsense_there_is_passed_over():
    assert [held.slots for held in decode("u,t,1,2,3:;")[0]] == [3]
    assert [held.slots for held in decode("u,t,1,2,x:;")[0]] == [1]
    body = pod("p", annotations={"hami.io/vgpu-node": "n", B4.allocated: f"u,{WORD},1,2,3:;"})
    assert count([body], (B4,))[0] == {("n", "u"): Usage(3, 1, 2)}


def test_c16_a_slice_is_written_twice_and_with_its_template():
    slots = ((Placed("device-0", "Ascend", 8738, 1),),)
    assert encode(slots) == "device-0,Ascend,8738,1:;"
    assert notes(A, slots) == {
        "huawei.com/Ascend910A": '[{"UUID":"device-0","temp":"vir08","memory":8738,"core":1}]',
        "predicate-time": "1800000000",
    }


def test_c17_zero_cores_are_left_out():
    slots = ((Placed("device-0", "Ascend", 8738, 0),),)
    assert json.loads(notes(A, slots)["huawei.com/Ascend910A"]) == [
        {"UUID": "device-0", "temp": "vir08", "memory": 8738}
    ]


def test_c18_a_soft_slice_has_no_template():
    slots = ((Placed("device-0", WORD, 8192, 5),),)
    assert json.loads(notes(B4, slots, soft=True)["huawei.com/Ascend910B4"]) == [
        {"UUID": "device-0", "memory": 8192, "core": 5}
    ]


def test_a_whole_card_has_no_template_and_all_containers_are_in_one_list():
    slots = ((Placed("a", WORD, 32768, 0),), (), (Placed("b", WORD, 8192, 0), Placed("c", WORD, 8192, 0)))
    assert json.loads(notes(B4, slots)["huawei.com/Ascend910B4"]) == [
        {"UUID": "a", "memory": 32768},
        {"UUID": "b", "temp": "vir05_1c_8g", "memory": 8192},
        {"UUID": "c", "temp": "vir05_1c_8g", "memory": 8192},
    ]


def test_the_type_that_is_written_is_the_common_word():
    slots, after, why = place(pod("p", [container("c", limits(8192))]), (B4,), {WORD: [full()]}, {}, Rules())
    assert (why, encode(slots[WORD])) == ("", f"dev-0,{WORD},8192,0:;")
    assert after == {"dev-0": Usage(1, 8192, 0)}


@pytest.mark.parametrize("mode", ["", "template", "enpu", "Hami-Core"])
def test_any_other_mode_is_none(mode):
    body = pod("p", annotations={MODE_KEY: mode})
    assert terms(body, B4) == Terms()
    assert terms(pod("q", annotations={MODE_KEY: "hami-core"}), B4) == Terms(soft=True)


def test_a_container_that_asks_another_vendor_only_has_an_empty_slot_unless_upstream_pads():
    gpu = {"amd.com/gpu": 1, "amd.com/gpumem": 10, "amd.com/gpucores": 1}
    body = pod("p", [container("a", gpu), container("b", limits(8192))])
    devices = {"amd": [Registered("gpu-0", "", 10, 1000, 100, healthy=True)], WORD: [full()]}
    for rules, npu in ((Rules(), ";dev-0,Ascend910B4,8192,0:;"), (Rules(empty_slots=False), None)):
        slots, _, why = place(body, (AMD, B4), devices, {}, rules)
        assert why == ""
        assert encode(slots[WORD]) == (npu or "dev-0,Ascend910B4,8192,0:;")
        assert encode(slots["amd"]).startswith("gpu-0,AMD,10,1:;")


@pytest.mark.parametrize("empty_slots", [True, False], ids=["padded", "upstream"])
def test_positions_of_ascend_hold_whatever_upstream_files_where(empty_slots):
    body = pod(
        "p",
        [container("a"), container("b", limits(8192))],
        init_containers=[container("i")],
    )
    slots, _, _ = place(body, (B4,), {WORD: [full()]}, {}, Rules(empty_slots=empty_slots))
    assert encode(slots[WORD]) == f";;dev-0,{WORD},8192,0:;"


def test_g23_a_mixed_node_lends_cards_of_a_longer_word():
    big = row("Ascend910B4-1")
    small = pod("p", [container("c", limits(8192))])
    cards = {WORD: [full(0)], big.word: [full(1, type=big.word)]}
    slots, _, why = place(small, (B4, big), cards, {"dev-0": Usage(4)}, Rules())
    assert (why, encode(slots[WORD])) == ("", f"dev-1,{WORD},8192,0:;")
    other = pod("q", [container("c", limits(8192, name=f"huawei.com/{big.word}"))])
    assert place(other, (B4, big), cards, {"dev-1": Usage(4)}, Rules())[2] == "1/1 CardTimeSlicingExhausted"


def test_a_node_whose_cards_are_in_one_network_is_preferred_where_load_does_not_decide():
    together = [full(0, network=0.0), full(1, network=0.0)]
    apart = [full(2, network=0.0), full(3, network=1.0)]
    body = pod("p", [container("c", limits(devices=2))])
    for name, other in (("a", "b"), ("b", "a")):
        nodes = {name: {WORD: together}, other: {WORD: apart}}
        for policy in ("binpack", "spread"):
            assert choose(body, (B4,), nodes, {}, Rules(policy)).node == name
    slots = ((Placed("dev-2", WORD, 1, 0), Placed("dev-3", WORD, 1, 0)),)
    assert B4.score(slots, apart) == WEIGHT / 2
    assert B4.score(slots, [full(2), full(3)]) == 0.0


def test_amd_and_ascend_in_one_pod_and_in_one_container_keep_their_slots_apart():
    gpu = {"amd.com/gpu": 1, "amd.com/gpumem": 10, "amd.com/gpucores": 1}
    body = pod(
        "p",
        [container("a", gpu), container("b", limits(8192)), container("c", {**gpu, **limits(16384)})],
    )
    amd = Registered("gpu-0", "AMD_Instinct_MI300X", 10, 1000, 100, healthy=True)
    devices = {"amd": [amd], WORD: [full()]}
    slots, after, why = place(body, (AMD, B4), devices, {}, Rules())
    assert why == ""
    assert encode(slots["amd"]) == "gpu-0,AMD_Instinct_MI300X,10,1:;;gpu-0,AMD_Instinct_MI300X,10,1:;"
    assert encode(slots[WORD]) == f";dev-0,{WORD},8192,0:;dev-0,{WORD},16384,0:;"
    assert after == {"gpu-0": Usage(2, 20, 2), "dev-0": Usage(2, 24576, 0)}


wanted = st.lists(
    st.lists(
        st.one_of(
            st.none(),
            st.builds(
                limits,
                st.one_of(st.none(), st.integers(1, 32768)),
                st.one_of(st.none(), st.integers(0, 130)),
                st.integers(1, 2),
            ),
        ),
        min_size=1,
        max_size=3,
    ),
    max_size=8,
)


@given(wanted, st.booleans(), st.sampled_from(["binpack", "spread"]))
def test_no_history_of_pods_gives_a_card_away_twice(wanted, soft, policy):
    cards = [
        full(i, soft=True, network=float(i // 2)) if i % 2 else full(i, soft=True, network=0.0)
        for i in range(3)
    ]
    pods = []
    for number, containers in enumerate(wanted):
        body = pod(
            f"p{number}",
            [container(f"c{i}", one) for i, one in enumerate(containers)],
            annotations={MODE_KEY: "hami-core"} if soft else {},
        )
        result = admit(body, (B4,))
        if result.denied:
            continue
        ledger, complaints = count(pods, (B4,))
        assert complaints == ()
        choice = choose(result.pod, (B4,), {"n": {WORD: cards}}, ledger, Rules(device_policy=policy))
        if choice.slots:
            text = encode(choice.slots[WORD])
            told = notes(B4, choice.slots[WORD], soft=soft)[NAME]
            result.pod["metadata"].setdefault("annotations", {}).update(
                {"hami.io/vgpu-node": "n", B4.allocated: text, NAME: told}
            )
            pods.append(result.pod)
    sizes = {"vir05_1c_8g": 8192, "vir10_3c_16g": 16384}
    for device in cards:
        pieces = [
            piece.split(",")
            for body in pods
            for piece in body["metadata"]["annotations"][B4.allocated].replace(";", "").split(":")
            if piece.startswith(f"{device.id},")
        ]
        entries = [
            entry
            for body in pods
            for entry in json.loads(body["metadata"]["annotations"][NAME])
            if entry["UUID"] == device.id
        ]
        assert len(pieces) == len(entries) <= device.count
        assert sum(int(p[2]) for p in pieces) == sum(e["memory"] for e in entries) <= device.memory_mib
        assert sum(int(p[3]) for p in pieces) <= (100 if soft else 0)
        for entry in entries:
            assert ("temp" in entry) == (not soft and entry["memory"] < 32768)
            assert entry["memory"] == sizes.get(entry.get("temp"), entry["memory"])


# -- the configuration ------------------------------------------------------------------------------------


def test_the_shipped_configuration_has_the_rows_of_the_chip_table():
    rows = {one.word: one for one in ascend_vendors()}
    assert sorted(rows) == [
        "Ascend310P",
        "Ascend910A",
        "Ascend910B2",
        "Ascend910B3",
        "Ascend910B4",
        "Ascend910B4-1",
        "Ascend910C",
    ]
    assert rows[WORD].register == "hami.io/node-register-Ascend910B4"
    assert rows[WORD].handshake == "hami.io/node-handshake-Ascend910B4"
    assert rows[WORD].allocated == "hami.io/Ascend910B4-devices-allocated"
    assert (rows[WORD].count, rows[WORD].memory, rows[WORD].cores) == (NAME, f"{NAME}-memory", f"{NAME}-core")
    entry = next(e for e in shipped()["vnpus"]["configs"] if e["chipName"] == "310P3")
    assert (entry["memoryAllocatable"], entry["memoryCapacity"]) == (21527, 24576)
    named = {e["chipName"]: e["commonWord"] for e in shipped()["vnpus"]["configs"]}
    assert named["Ascend910"] == "Ascend910C"


def test_the_older_layout_is_a_list_with_the_switch_beside_it():
    newer = shipped(soft=True)["vnpus"]
    older = {"vnpus": newer["configs"], "hamiVnpuCore": True}
    assert [(v.word, v.soft) for v in ascend_vendors(older)] == [
        (v.word, v.soft) for v in ascend_vendors({"vnpus": newer})
    ]
    assert all(v.soft for v in ascend_vendors(older))


@pytest.mark.parametrize(
    ("mode", "soft"),
    [("", True), ("template", False), (" Hami-Core ", True), ("hamiCore", True), ("enpu", False)],
)
def test_the_newer_key_of_the_mode_overrules_the_older(mode, soft):
    settings = shipped(soft=True)
    settings["vnpus"]["hamiVnpuMode"] = mode
    assert all(v.soft is soft for v in ascend_vendors(settings))


def test_templates_may_stand_in_any_order():
    settings = shipped()
    for entry in settings["vnpus"]["configs"]:
        entry["templates"].reverse()
    slots = ((Placed("u", WORD, 8192, 0),),)
    assert "vir05_1c_8g" in notes(row(settings=settings), slots)[NAME]


def test_g7_templates_are_named_by_the_configuration_and_of_two_entries_the_last_holds():
    settings = shipped()
    entry = dict(next(e for e in settings["vnpus"]["configs"] if e["chipName"] == "910B4-1"))
    entry["templates"] = [{"name": "vir05_1c_8g", "memory": 16384}]
    settings["vnpus"]["configs"].append(entry)
    rows = [one for one in ascend_vendors(settings) if one.word == "Ascend910B4-1"]
    assert len(rows) == 1
    slots = ((Placed("u", "Ascend910B4-1", 16384, 0),),)
    assert json.loads(notes(rows[0], slots)["huawei.com/Ascend910B4-1"])[0]["temp"] == "vir05_1c_8g"


def test_a_configuration_without_chips_has_no_rows():
    assert ascend_vendors({}) == ()
    assert ascend_vendors({"vnpus": {"hamiVnpuCore": True}}) == ()


def broken(**more):
    settings = shipped()
    settings["vnpus"]["configs"][0].update(more)
    return settings


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"vnpus": 1}, "vnpus: expected a mapping, got 1"),
        ({"vnpus": [1]}, "vnpus[0]: expected a mapping, got 1"),
        ({"vnpus": {"configs": {}}}, "vnpus.configs: expected a list, got {}"),
        (
            {"vnpus": {"hamiVnpuCore": "yes", "configs": []}},
            "vnpus.hamiVnpuCore: expected true or false, got 'yes'",
        ),
        (
            {"vnpus": {"hamiVnpuMode": "hard"}},
            "vnpus.hamiVnpuMode: expected template, hami-core or enpu, got 'hard'",
        ),
        ({"vnpus": [{}]}, "vnpus[0].commonWord: expected a word, got nothing"),
        (
            broken(memoryAllocatable="32768"),
            "vnpus.configs[0].memoryAllocatable: expected a whole number of at least 1, got '32768'",
        ),
        (
            broken(templates=[{"name": "vir02", "memory": 0}]),
            "vnpus.configs[0].templates[0].memory: expected a whole number of at least 1, got 0",
        ),
    ],
    ids=str,
)
def test_a_configuration_that_cannot_be_used_says_where(settings, why):
    with pytest.raises(BadDeviceConfigError) as error:
        ascend_vendors(settings)
    assert str(error.value) == why


def test_a_release_that_is_none_is_refused():
    with pytest.raises(BadDeviceConfigError, match="release 'new' is none"):
        ascend_vendors(release="new")
