"""The rules of the simulated API server's verbs, called directly."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusim.cluster import apipatch
from gpusim.cluster.apipatch import JSON, MERGE, STRATEGIC
from gpusim.cluster.apistatus import ApiError
from gpusim.cluster.apistore import Store
from gpusim.cluster.pods import container, pod
from gpusim.cluster.resourcenames import exact, is_extended, whole

GPU = "amd.com/gpu"


@pytest.fixture
def store() -> Store:
    return Store(now=lambda: 1_750_000_000.0)


def refused(code: int, reason: str, call, *arguments, **named) -> ApiError:
    with pytest.raises(ApiError) as caught:
        call(*arguments, **named)
    assert (caught.value.code, caught.value.reason) == (code, reason), caught.value.message
    return caught.value


# -- create, get, list ----------------------------------------------------------------------------


def test_creation_fills_in_what_the_server_owns(store):
    made = store.create("pods", pod("p", [container("main", {GPU: 1})], uid="mine"))
    assert made["metadata"]["uid"] != "mine"
    assert made["metadata"]["creationTimestamp"] == "2025-06-15T15:06:40Z"
    assert made["metadata"]["resourceVersion"].isdecimal()
    assert made["status"] == {"phase": "Pending", "qosClass": "BestEffort"}
    assert made["spec"]["containers"][0]["resources"]["requests"] == {GPU: "1"}
    assert made == store.get("pods", "p")


def test_a_pod_s_own_status_is_dropped_and_a_node_s_kept(store):
    store.create("pods", pod("p") | {"status": {"phase": "Running"}})
    assert store.get("pods", "p")["status"]["phase"] == "Pending"
    store.create("nodes", {"metadata": {"name": "n"}, "status": {"capacity": {"cpu": 8}}})
    assert store.get("nodes", "n")["status"]["capacity"] == {"cpu": "8"}


@pytest.mark.parametrize(
    ("limits", "requests", "expected"),
    [
        ({}, {}, "BestEffort"),
        ({GPU: "1"}, {}, "BestEffort"),
        ({"cpu": "1", "memory": "1Gi"}, {}, "Guaranteed"),
        ({"cpu": "1"}, {}, "Burstable"),
        ({"cpu": "2", "memory": "1Gi"}, {"cpu": "1"}, "Burstable"),
    ],
)
def test_the_quality_of_service_follows_cpu_and_memory(store, limits, requests, expected):
    made = store.create(
        "pods", pod("p", [{"name": "c", "image": "i", "resources": {"limits": limits, "requests": requests}}])
    )
    assert made["status"]["qosClass"] == expected


def test_versions_only_grow_over_all_resources(store):
    versions = [int(store.create("pods", pod(f"p{i}"))["metadata"]["resourceVersion"]) for i in range(3)]
    versions.append(int(store.create("nodes", {"metadata": {"name": "n"}})["metadata"]["resourceVersion"]))
    versions.append(
        int(store.patch("pods", "p0", {"metadata": {"labels": {"a": "b"}}})["metadata"]["resourceVersion"])
    )
    assert versions == sorted(set(versions))


def test_what_is_handed_out_and_in_is_the_caller_s_own(store):
    body = pod("p")
    store.create("pods", body)
    assert "status" not in body
    got = store.get("pods", "p")
    got["metadata"]["labels"] = {"changed": "here"}
    store.list("pods")[0]["spec"].clear()
    assert "labels" not in store.get("pods", "p")["metadata"]
    assert store.get("pods", "p")["spec"]["containers"]


def test_names_that_exist_or_do_not_are_409_and_404(store):
    store.create("pods", pod("p"))
    refused(409, "AlreadyExists", store.create, "pods", pod("p"))
    refused(404, "NotFound", store.get, "pods", "q")
    refused(404, "NotFound", store.patch, "pods", "q", {})
    refused(404, "NotFound", store.delete, "pods", "q")
    refused(404, "NotFound", store.get, "widgets", "q")
    refused(404, "NotFound", store.create, "pods", pod("p", namespace="nowhere"), "nowhere")


def test_generated_names_are_distinct(store):
    event = {"metadata": {"generateName": "e."}, "involvedObject": {"kind": "Pod", "namespace": "default"}}
    names = {store.create("events", event)["metadata"]["name"] for _ in range(20)}
    assert len(names) == 20
    assert all(name.startswith("e.") and len(name) == 7 for name in names)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"metadata": {}}, "metadata.name"),
        (pod("P"), "metadata.name"),
        (pod("p", []), "spec.containers"),
        (pod("p", [container("a"), container("a")]), "spec.containers[1].name"),
        (pod("p", [{"name": "a"}]), "spec.containers[0].image"),
        (pod("p", [container("a", {GPU: "0.5"})]), "spec.containers[0].resources.limits[amd.com/gpu]"),
        (pod("p", [container("a", {GPU: -1})]), "spec.containers[0].resources.limits[amd.com/gpu]"),
        (
            pod("p", [{"name": "a", "image": "i", "resources": {"requests": {GPU: "1"}}}]),
            "spec.containers[0].resources.requests",
        ),
        (pod("p", labels={"hami.io/vgpu-node": "x" * 64}), "metadata.labels"),
        (pod("p", annotations={"a": "x" * (256 << 10)}), "metadata.annotations"),
        (pod("p", annotations={"a b": "x"}), "metadata.annotations"),
    ],
)
def test_an_invalid_pod_is_422_and_names_the_field(store, body, field):
    error = refused(422, "Invalid", store.create, "pods", body)
    assert field in [cause["field"] for cause in error.details["causes"]]
    assert store.list("pods") == []


@pytest.mark.parametrize(
    "body",
    [
        pod("p") | {"kind": "Node"},
        pod("p", namespace="kube-system"),
        {"metadata": {"name": "p", "annotations": {"a": 1}}},
        {"metadata": {"name": "p", "annotations": ["a"]}},
        {"metadata": "p"},
        {"metadata": {"name": "p"}, "spec": []},
        {"metadata": {"name": "p", "resourceVersion": "7"}, "spec": pod("p")["spec"]},
        pod("p", [container("a", {GPU: "many"})]),
    ],
)
def test_what_could_not_be_decoded_is_400(store, body):
    refused(400, "BadRequest", store.create, "pods", body)


def test_an_event_s_object_lives_in_the_event_s_namespace(store):
    event = {
        "metadata": {"name": "e"},
        "involvedObject": {"kind": "Pod", "name": "p", "namespace": "kube-system"},
    }
    refused(422, "Invalid", store.create, "events", event)
    about_node = {"metadata": {"name": "e"}, "involvedObject": {"kind": "Node", "name": "n"}}
    assert store.create("events", about_node)["metadata"]["namespace"] == "default"


def test_lists_are_selected_by_fields_and_labels(store):
    for name, node, labels in (("a", "n1", {"x": "1"}), ("b", "n1", {"x": "2", "y": ""}), ("c", None, None)):
        store.create("pods", pod(name, node=node, labels=labels))
    store.create("pods", pod("d", namespace="kube-system", node="n1"), "kube-system")

    def found(**selectors):
        return [o["metadata"]["name"] for o in store.list("pods", **selectors)]

    assert found() == ["a", "b", "c", "d"]
    assert found(namespace="default", fields="spec.nodeName=n1") == ["a", "b"]
    assert found(fields="spec.nodeName=n1,metadata.namespace!=default") == ["d"]
    assert found(fields="spec.nodeName=") == ["c"]
    assert found(fields="metadata.name==b") == ["b"]
    assert found(fields="status.phase!=Pending") == []
    assert found(labels="x=1") == ["a"]
    assert found(labels="x!=1") == ["b", "c", "d"]
    assert found(labels="x in (1, 2),y") == ["b"]
    assert found(labels="x notin (1)") == ["b", "c", "d"]
    assert found(labels="!x") == ["c", "d"]


@pytest.mark.parametrize("selectors", [{"fields": "spec.image=x"}, {"fields": "oops"}, {"labels": "a=b=c"}])
def test_a_selector_the_server_has_no_index_for_is_400(store, selectors):
    refused(400, "BadRequest", store.list, "pods", **selectors)


# -- patch, update ------------------------------------------------------------------------------------


def test_a_main_patch_never_touches_status_and_a_status_patch_nothing_else(store):
    store.create("nodes", {"metadata": {"name": "n"}, "status": {"capacity": {GPU: "1"}}})
    patch = {"metadata": {"annotations": {"a": "b"}}, "status": {"capacity": {GPU: "8"}}}
    main = store.patch("nodes", "n", patch)
    assert (main["metadata"]["annotations"], main["status"]["capacity"]) == ({"a": "b"}, {GPU: "1"})
    patch["metadata"]["annotations"]["a"] = "c"
    status = store.patch("nodes", "n", patch, subresource="status")
    assert (status["metadata"]["annotations"], status["status"]["capacity"]) == ({"a": "b"}, {GPU: "8"})


def test_null_removes_and_the_other_keys_stay(store):
    store.create("pods", pod("p", annotations={"a": "1", "b": "2"}))
    patched = store.patch("pods", "p", {"metadata": {"annotations": {"a": None, "c": "3"}}})
    assert patched["metadata"]["annotations"] == {"b": "2", "c": "3"}


def test_a_resource_version_in_the_patch_is_a_precondition(store):
    first = store.create("pods", pod("p"))["metadata"]["resourceVersion"]
    change = {"metadata": {"resourceVersion": first, "annotations": {"a": "1"}}}
    store.patch("pods", "p", change)
    error = refused(409, "Conflict", store.patch, "pods", "p", change)
    assert "the object has been modified" in error.message
    refused(409, "Conflict", store.patch, "pods", "p", {"metadata": {"uid": "another"}})


def test_a_patch_that_changes_nothing_makes_no_new_version(store):
    made = store.create("pods", pod("p", annotations={"a": "1"}))
    again = store.patch("pods", "p", {"metadata": {"annotations": {"a": "1", "gone": None}}})
    assert again["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]


def test_what_the_server_owns_cannot_be_patched(store):
    made = store.create("pods", pod("p"))
    patched = store.patch("pods", "p", {"metadata": {"creationTimestamp": "1999-01-01T00:00:00Z"}})
    assert patched == made
    refused(422, "Invalid", store.patch, "pods", "p", {"metadata": {"name": "q"}})
    refused(422, "Invalid", store.patch, "pods", "p", {"spec": {"nodeName": "n"}})
    refused(400, "BadRequest", store.patch, "pods", "p", {"metadata": {"annotations": {"a": 1}}})
    refused(404, "NotFound", store.patch, "pods", "p", {}, subresource="scale")
    store.create("events", {"metadata": {"name": "e"}, "involvedObject": {}})
    refused(404, "NotFound", store.patch, "events", "e", {}, subresource="status")


def test_an_image_may_change(store):
    store.create("pods", pod("p"))
    change = {"spec": {"containers": [{"name": "main", "image": "new"}]}}
    patched = store.patch("pods", "p", change, kind=STRATEGIC)
    assert patched["spec"]["containers"][0]["image"] == "new"


def test_a_patch_shares_nothing_that_a_later_one_could_change(store):
    store.create("pods", pod("p", annotations={"a": "1"}))
    before = store.get("pods", "p")
    seen = store.peek("pods", "p")
    store.patch("pods", "p", {"metadata": {"annotations": {"a": "2"}}})
    store.patch("pods", "p", {"status": {"phase": "Running"}}, subresource="status")
    assert seen == before


def test_an_update_replaces_all_but_the_status_and_checks_the_version(store):
    made = store.create("pods", pod("p", annotations={"a": "1"}))
    made["metadata"]["annotations"] = {"b": "2"}
    made["status"] = {"phase": "Running"}
    updated = store.update("pods", "p", made)
    assert updated["metadata"]["annotations"] == {"b": "2"}
    assert updated["status"]["phase"] == "Pending"
    refused(409, "Conflict", store.update, "pods", "p", made)
    made["metadata"]["resourceVersion"] = updated["metadata"]["resourceVersion"]
    assert store.update("pods", "p", made, subresource="status")["status"] == {"phase": "Running"}
    made["metadata"]["name"] = "q"
    refused(400, "BadRequest", store.update, "pods", "p", made)


# -- binding and deletion -----------------------------------------------------------------------------------


def test_a_pod_is_bound_once(store):
    store.create("pods", pod("p"))
    store.bind("p", "n1")
    bound = store.get("pods", "p")
    assert bound["spec"]["nodeName"] == "n1"
    assert [c["type"] for c in bound["status"]["conditions"]] == ["PodScheduled"]
    error = refused(409, "Conflict", store.bind, "p", "n2")
    assert 'already assigned to node "n1"' in error.message
    refused(404, "NotFound", store.bind, "q", "n1")


def test_an_unbound_or_finished_pod_is_deleted_at_once_and_a_bound_one_waits_for_its_kubelet(store):
    for name, node in (("free", None), ("done", "n"), ("bound", "n")):
        store.create("pods", pod(name, node=node))
    store.patch("pods", "done", {"status": {"phase": "Succeeded"}}, subresource="status")
    for name in ("free", "done", "bound"):
        store.delete("pods", name, grace_seconds=None)
    (left,) = store.list("pods")
    assert left["metadata"]["name"] == "bound"
    assert left["metadata"]["deletionTimestamp"] == "2025-06-15T15:07:10Z"
    assert left["metadata"]["deletionGracePeriodSeconds"] == 30
    store.delete("pods", "bound", grace_seconds=None)  # again: nothing happens
    assert store.list("pods") == [left]
    store.delete("pods", "bound", grace_seconds=5)  # only shorter
    assert store.get("pods", "bound")["metadata"]["deletionGracePeriodSeconds"] == 5
    store.delete("pods", "bound", grace_seconds=0)
    assert store.list("pods") == []


def test_a_pod_that_is_being_deleted_keeps_its_deletion_time_and_is_not_bound(store):
    store.create("pods", pod("p", node="n"))
    store.delete("pods", "p", grace_seconds=None)
    patched = store.patch("pods", "p", {"metadata": {"deletionTimestamp": None, "annotations": {"a": "1"}}})
    assert patched["metadata"]["deletionTimestamp"]
    refused(409, "Conflict", store.bind, "p", "n2")


def test_deletion_has_preconditions(store):
    made = store.create("pods", pod("p"))
    refused(409, "Conflict", store.drop, "pods", "p", "default", grace_seconds=0, uid="another")
    refused(409, "Conflict", store.drop, "pods", "p", "default", grace_seconds=0, version="1")
    store.drop("pods", "p", "default", grace_seconds=0, uid=made["metadata"]["uid"])
    assert store.list("pods") == []


def test_a_namespace_takes_its_objects_with_it(store):
    store.create("namespaces", {"metadata": {"name": "team"}})
    store.create("pods", pod("p", namespace="team"), "team")
    store.create("pods", pod("p"))
    store.delete("namespaces", "team")
    assert [p["metadata"]["namespace"] for p in store.list("pods")] == ["default"]


# -- watch --------------------------------------------------------------------------------------------------


def test_subscribers_hear_every_change_in_order_and_the_past_from_a_version(store):
    start = store.shelves.version
    heard = []
    leave = store.subscribe(lambda c: heard.append((c.kind, c.resource, c.obj["metadata"]["name"])))
    store.create("pods", pod("p"))
    store.patch("pods", "p", {"metadata": {"labels": {"a": "b"}}})
    store.delete("pods", "p")
    leave()
    store.create("pods", pod("q"))
    assert heard == [("ADDED", "pods", "p"), ("MODIFIED", "pods", "p"), ("DELETED", "pods", "p")]
    again = []
    store.subscribe(lambda c: again.append(c.kind), since=start)
    assert again == ["ADDED", "MODIFIED", "DELETED", "ADDED"]


def test_a_version_that_is_forgotten_is_410():
    from gpusim.cluster.apishelves import Shelves

    shelves = Shelves(("pods",), remember=3)
    for i in range(5):
        shelves.put("pods", ("", f"p{i}"), {"metadata": {"name": f"p{i}"}})
    with pytest.raises(ApiError) as caught:
        shelves.subscribe(lambda c: None, since=1)
    assert caught.value.code == 410
    heard = []
    shelves.subscribe(heard.append, since=3)
    assert [c.version for c in heard] == [4, 5, 6]


# -- the patch algorithms -----------------------------------------------------------------------------------

leaves = st.none() | st.booleans() | st.integers(-3, 3) | st.text("ab", max_size=2)
documents = st.recursive(
    leaves, lambda c: st.lists(c, max_size=3) | st.dictionaries(st.text("ab/~", max_size=2), c, max_size=3)
)
objects = st.dictionaries(st.text("abc", max_size=2), documents, max_size=4)


def without_nulls(value):
    if isinstance(value, dict):
        return {k: without_nulls(v) for k, v in value.items() if v is not None}
    return value


@given(objects, objects)
def test_a_merge_patch_is_idempotent_and_leaves_its_arguments_alone(target, patch):
    before = copy.deepcopy((target, patch))
    once = apipatch.merge(target, patch)
    assert apipatch.merge(once, patch) == once
    assert (target, patch) == before
    assert apipatch.merge({}, patch) == without_nulls(patch)


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [  # RFC 7386, appendix A
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge_patch_does_what_its_rfc_says(target, patch, result):
    assert apipatch.apply(MERGE, target, patch) == result


def test_a_strategic_patch_merges_lists_by_their_key():
    target = {"conditions": [{"type": "A", "status": "False"}, {"type": "B"}], "taints": [1]}
    patch = {"conditions": [{"type": "A", "status": "True"}, {"type": "C"}], "taints": [2]}
    assert apipatch.strategic(target, patch) == {
        "conditions": [{"type": "A", "status": "True"}, {"type": "B"}, {"type": "C"}],
        "taints": [2],
    }
    removed = apipatch.strategic(target, {"conditions": [{"type": "A", "$patch": "delete"}]})
    assert removed["conditions"] == [{"type": "B"}]
    assert apipatch.strategic(target, {"$patch": "replace", "x": 1}) == {"x": 1}
    refused(400, "BadRequest", apipatch.strategic, target, {"conditions": [{"status": "True"}]})


def test_a_json_patch_does_its_operations_in_order_or_none():
    target = {"a": {"x/y": 1}, "l": [1, 2, 3]}
    result = apipatch.json_patch(
        target,
        [
            {"op": "test", "path": "/a/x~1y", "value": 1},
            {"op": "move", "from": "/a/x~1y", "path": "/m~0n"},
            {"op": "add", "path": "/l/-", "value": 4},
            {"op": "add", "path": "/l/0", "value": 0},
            {"op": "remove", "path": "/l/2"},
            {"op": "replace", "path": "/l/0", "value": "zero"},
            {"op": "copy", "from": "/l", "path": "/a/l"},
        ],
    )
    assert result == {"a": {"l": ["zero", 1, 3, 4]}, "l": ["zero", 1, 3, 4], "m~n": 1}
    assert target == {"a": {"x/y": 1}, "l": [1, 2, 3]}


@pytest.mark.parametrize(
    ("operation", "code"),
    [
        ({"op": "test", "path": "/a", "value": 2}, 422),
        ({"op": "remove", "path": "/b"}, 422),
        ({"op": "replace", "path": "/b", "value": 1}, 422),
        ({"op": "add", "path": "/l/9", "value": 1}, 422),
        ({"op": "add", "path": "/a/b", "value": 1}, 422),
        ({"op": "frob", "path": "/a"}, 400),
        ({"op": "add", "path": "a", "value": 1}, 400),
        ({"op": "add", "path": "/a"}, 400),
    ],
)
def test_a_json_patch_that_does_not_apply_is_refused(operation, code):
    with pytest.raises(ApiError) as caught:
        apipatch.apply(JSON, {"a": 1, "l": []}, [operation])
    assert caught.value.code == code


@pytest.mark.parametrize(("kind", "patch"), [(MERGE, []), (STRATEGIC, "x"), (JSON, {}), (JSON, [1])])
def test_a_patch_of_the_wrong_shape_is_400(kind, patch):
    refused(400, "BadRequest", apipatch.apply, kind, {}, patch)


# -- names and quantities -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("quantity", "value"),
    [
        ("1", 1),
        (8, 8),
        ("8Gi", 8 << 30),
        ("1.5k", 1500),
        ("100m", 1),
        ("1e3", 1000),
        ("2E", 2 * 10**18),
        ("-1", -1),
    ],
)
def test_quantities_read_as_kubernetes_reads_them(quantity, value):
    assert whole(quantity) == value


@pytest.mark.parametrize("quantity", ["", "x", "1 ", "1GiB", "1e", "0x1", True, "1\n", "1_0", "١"])
def test_what_is_no_quantity_is_refused(quantity):
    with pytest.raises(ValueError, match="no quantity"):
        exact(quantity)


@given(st.text(max_size=20))
def test_an_extended_resource_has_a_domain_of_its_own_and_a_short_name(name):
    if is_extended(name):
        domain, _, last = name.partition("/")
        assert domain
        assert last
        assert "/" not in last
        assert not domain.endswith("kubernetes.io")
        assert len(last) <= 63
