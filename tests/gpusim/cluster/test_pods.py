"""Pod objects and what a scheduler writes for them (ascend_ppu_hami.md D.4, D.5, D.7, D.8)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusim.cluster.apiclient import ApiClient
from gpusim.cluster.apifaults import Fault
from gpusim.cluster.apistatus import ApiError
from gpusim.cluster.pods import (
    LOCK,
    Placed,
    PlacementError,
    container,
    encode,
    place,
    pod,
    release_lock,
    take_lock,
)

NODE = "node-1"
ONE = Placed("id-1", "MI355X", 73728, 64)
ISSUED = 1_750_000_000.9


@pytest.fixture
def client(server):
    server.store.create("nodes", {"metadata": {"name": NODE}})
    server.store.create("pods", pod("p", [container("main", {"amd.com/gpu": 1})]))
    made = ApiClient(server.url)
    yield made
    made.close()


@pytest.fixture(params=["store", "http"])
def api(request, server, client):
    return client if request.param == "http" else server.store


def node_annotations(api):
    return api.get("nodes", NODE)["metadata"].get("annotations") or {}


def test_slots_are_written_in_the_protocol_s_grammar():
    two = Placed("id-2", "MI355X", 1, 2)
    assert encode([[ONE]]) == "id-1,MI355X,73728,64:;"
    assert encode([[ONE], [two]]) == "id-1,MI355X,73728,64:;id-2,MI355X,1,2:;"
    assert encode([[ONE, two]]) == "id-1,MI355X,73728,64:id-2,MI355X,1,2:;"
    assert encode([[], [ONE]]) == ";id-1,MI355X,73728,64:;"
    assert encode([]) == ""


@pytest.mark.parametrize(
    "bad",
    [Placed("a,b", "t", 1, 1), Placed("a", "t:u", 1, 1), Placed("a", "t;", 1, 1), Placed("", "t", 1, 1),
     Placed("a", "", 1, 1), Placed("a", "t", -1, 1), Placed("a", "t", 1, 1 << 31)],
)  # fmt: skip
def test_what_the_grammar_cannot_hold_is_refused(bad):
    with pytest.raises(PlacementError):
        encode([[bad]])


words = st.text(st.characters(exclude_characters=",:;", exclude_categories=["Cs"]), min_size=1, max_size=8)
numbers = st.integers(0, (1 << 31) - 1)


@given(st.lists(st.lists(st.builds(Placed, words, words, numbers, numbers), max_size=3), max_size=4))
def test_a_reader_by_the_grammar_gets_back_what_was_written(slots):
    text = encode(slots)
    read = [
        [Placed(i, t, int(m), int(c)) for i, t, m, c in (d.split(",") for d in slot.split(":") if d)]
        for slot in text.split(";")
    ]
    assert read == [*slots, []]


def test_placing_writes_what_the_scheduler_writes(api):
    placed = place(api, "p", NODE, [[ONE]], now=ISSUED)
    annotations = placed["metadata"]["annotations"]
    assert annotations == {
        "hami.io/vgpu-node": NODE,
        "hami.io/vgpu-time": "1750000000",
        "hami.io/amd-devices-to-allocate": "id-1,MI355X,73728,64:;",
        "hami.io/amd-devices-allocated": "id-1,MI355X,73728,64:;",
        "hami.io/bind-phase": "allocating",
        "hami.io/bind-time": "1750000000",
    }
    assert placed["metadata"]["labels"] == {"hami.io/vgpu-node": NODE}
    assert placed["spec"]["nodeName"] == NODE
    assert node_annotations(api) == {LOCK: "2025-06-15T15:06:40Z,default,p"}


def test_other_vendors_have_other_keys(api):
    annotations = place(api, "p", NODE, [[ONE]], word="Ascend910B4", lock=False)["metadata"]["annotations"]
    assert "hami.io/Ascend910B4-devices-to-allocate" in annotations
    assert LOCK not in node_annotations(api)


def test_the_order_of_the_writes_is_the_scheduler_s(server, client):
    place(client, "p", NODE, [[ONE]])
    wrote = [(e.verb, e.resource, e.subresource) for e in server.requests.entries() if e.verb != "get"]
    assert wrote == [
        ("patch", "pods", ""),
        ("patch", "nodes", ""),
        ("patch", "pods", ""),
        ("create", "pods", "binding"),
    ]


def test_a_node_locked_by_another_pod_refuses(api):
    api.create("pods", pod("q"))
    take_lock(api, NODE, "q")
    with pytest.raises(PlacementError, match=r"locked by .*,default,q"):
        place(api, "p", NODE, [[ONE]])
    assert "nodeName" not in api.get("pods", "p")["spec"]


def test_a_lock_of_the_same_pod_is_kept_with_its_time(api):
    take_lock(api, NODE, "p", now=1.0)
    take_lock(api, NODE, "p", now=2.0)
    assert node_annotations(api)[LOCK] == "1970-01-01T00:00:01Z,default,p"


def test_somebody_else_s_lock_is_not_released(api):
    take_lock(api, NODE, "q", now=1.0)
    release_lock(api, NODE, "p")
    assert LOCK in node_annotations(api)
    release_lock(api, NODE, "q")
    assert LOCK not in node_annotations(api)


def test_a_binding_that_fails_releases_the_lock_and_leaves_the_phase(server, client):
    server.faults.add(Fault(verb="create", subresource="binding", code=500))
    with pytest.raises(ApiError):
        place(client, "p", NODE, [[ONE]])
    assert LOCK not in node_annotations(client)
    assert client.get("pods", "p")["metadata"]["annotations"]["hami.io/bind-phase"] == "allocating"


def test_a_pod_can_be_left_unbound(api):
    assert "nodeName" not in place(api, "p", NODE, [[ONE]], bind=False)["spec"]


def test_a_placed_pod_runs_on_a_kubelet(server, make_kubelet, make_plugin):
    from .fake_plugin import RESOURCE, devices, eventually

    make_kubelet(api=server.url)
    make_plugin(devices(1)).register()
    store = server.store
    assert eventually(
        lambda: (store.list("nodes") or [{}])[0].get("status", {}).get("allocatable", {}).get(RESOURCE)
    )
    store.create("pods", pod("p", [container("main", {RESOURCE: 1})]))
    place(store, "p", NODE, [[ONE]])
    assert eventually(lambda: store.get("pods", "p")["status"]["phase"] == "Running")
