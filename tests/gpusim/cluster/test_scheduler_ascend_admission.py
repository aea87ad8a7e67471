"""What the webhook does to pods that ask for Ascend cards: D.9, A.8, F.4 S1 to S9; B60, B61, B63."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusim.cluster.pods import container, pod
from gpusim.cluster.scheduler_ascend import MODE_KEY, ascend_vendors, shipped
from gpusim.cluster.scheduler_vendors import AMD
from gpusim.cluster.scheduler_webhook import admit

SOFT = {MODE_KEY: "hami-core"}
SEVERAL = "vNPU not supported for multiple devices"


def config(chip, **more):
    """The shipped entry of one chip, changed."""
    made = shipped()
    made["vnpus"]["configs"] = [one | more for one in made["vnpus"]["configs"] if one["commonWord"] == chip]
    assert made["vnpus"]["configs"]
    return made


def asking(chip, count=1, memory=None, cores=None, *, soft=False):
    name = f"huawei.com/{chip}"
    amounts = {name: count, f"{name}-memory": memory, f"{name}-core": cores}
    limits = {key: value for key, value in amounts.items() if value is not None}
    return pod("p", [container("c", limits)], annotations=SOFT if soft else None)


def admitted(body, settings=None, **more):
    """(denied, the limits, the requests) with names cut to count, memory, core."""
    result = admit(body, ascend_vendors(settings or shipped(), **more))
    listed = result.pod["spec"]["containers"][0].get("resources") or {}

    def cut(kind):
        found = {}
        for key, value in (listed.get(kind) or {}).items():
            _, _, last = key.rpartition("/")
            found[last.rpartition("-")[2] if last.endswith(("-memory", "-core")) else "count"] = value
        return found

    return result.denied, cut("limits"), cut("requests")


def test_s1_two_slices_are_not_supported_and_the_container_still_asks_for_the_vendor():
    (row,) = ascend_vendors(config("Ascend910A"))
    body = asking("Ascend910A", 2, 8738)
    assert row.check(row, body, body["spec"]["containers"][0]) == (True, SEVERAL)
    result = admit(asking("Ascend910A", 2, 8738), (row,))
    assert result.denied == SEVERAL
    assert "schedulerName" not in result.pod["spec"]


def test_s2_more_than_the_largest_template_is_the_whole_card():
    assert admitted(asking("Ascend910A", 1, 20000))[1]["memory"] == "32768"


def test_s3_more_than_the_card_has_is_invalid():
    denied, _, _ = admitted(asking("Ascend910A", 2, 40000))
    assert denied == "huawei.com/Ascend910A-memory 40000 is invalid"


@pytest.mark.parametrize(("memory", "given_"), [(8738, "8738"), (None, "32768")])
def test_s4_memory_is_written_into_limits_and_requests(memory, given_):
    denied, limits, requests = admitted(asking("Ascend910A", 1, memory))
    assert denied == ""
    assert limits == {"count": "1", "memory": given_}
    assert requests == {"memory": given_}


@pytest.mark.parametrize(("count", "becomes"), [(1, "2"), (2, "2"), (4, "4")])
def test_s5_in_a_super_pod_one_910c_becomes_a_pair(count, becomes):
    denied, limits, requests = admitted(
        asking("Ascend910C", count), config("Ascend910C", superPod=True, templates=[])
    )
    assert (denied, limits["count"]) == ("", becomes)
    assert requests.get("count", becomes) == becomes
    assert ("count" in requests) == (count == 1)


def test_s5_in_a_super_pod_three_910c_are_refused():
    denied, _, _ = admitted(asking("Ascend910C", 3), config("Ascend910C", superPod=True))
    assert denied == "Ascend910C device request must be 1 or 2*n, got 3"


def test_a_super_pod_s_slice_slips_past_the_rule_for_several_devices():
    settings = config("Ascend910C", superPod=True)
    denied, limits, _ = admitted(asking("Ascend910C", 1, 16384), settings)
    assert (denied, limits) == ("", {"count": "2", "memory": "16384"})
    assert admitted(asking("Ascend910C", 2, 16384), settings)[0] == SEVERAL


@pytest.mark.parametrize(
    ("count", "memory", "given_"), [(1, 16384, "16384"), (3, None, "65536")], ids=["slice", "three"]
)
def test_s6_outside_a_super_pod_910c_counts_stay(count, memory, given_):
    denied, limits, _ = admitted(asking("Ascend910C", count, memory))
    assert (denied, limits) == ("", {"count": str(count), "memory": given_})


def test_only_910c_has_super_pods():
    settings = config("Ascend910B4", superPod=True)
    assert admitted(asking("Ascend910B4", 1), settings)[1]["count"] == "1"
    assert admitted(asking("Ascend910B4", 3), settings)[:2] == ("", {"count": "3", "memory": "32768"})
    assert admitted(asking("Ascend910C", 0), config("Ascend910C", superPod=True))[1]["count"] == "0"


def test_s7_a_soft_request_stays_as_it_is_without_a_hook():
    body = asking("Ascend910B4-1", 1, 15360, 20, soft=True)
    result = admit(body, ascend_vendors())
    assert result.pod["spec"]["containers"][0]["resources"]["limits"] == {
        "huawei.com/Ascend910B4-1": "1",
        "huawei.com/Ascend910B4-1-memory": "15360",
        "huawei.com/Ascend910B4-1-core": "20",
    }
    assert "lifecycle" not in result.pod["spec"]["containers"][0]


def test_g9_a_soft_request_without_cores_is_not_cut_to_a_template():
    assert admitted(asking("Ascend910B4-1", 1, 15360, soft=True))[1]["memory"] == "15360"


def test_s8_without_templates_a_slice_is_the_whole_card():
    assert admitted(asking("Ascend910B4", 1, 15360), config("Ascend910B4", templates=[]))[1] == {
        "count": "1",
        "memory": "32768",
    }


@pytest.mark.parametrize(("cores", "refused"), [(10, True), (25, True), (0, False), (None, False)])
def test_s9_cores_are_for_soft_pods_only(cores, refused):
    denied, _, _ = admitted(asking("Ascend910B4", 1, 8192, cores))
    text = "huawei.com/Ascend910B4-core is only supported in hami-core (soft split) mode"
    assert denied == (text if refused else "")
    assert admitted(asking("Ascend910B4", 1, 8192, cores, soft=True))[0] == ""


def test_only_limits_ask():
    body = asking("Ascend910B4", 1, 8192)
    listed = body["spec"]["containers"][0]["resources"]
    listed["requests"] = listed.pop("limits")
    assert admit(body, ascend_vendors()).pod is body


def test_containers_that_do_not_ask_see_no_card_where_the_configuration_says_so():
    body = pod("p", [container("c")])
    assert admit(body, ascend_vendors()).pod is body
    changed = admit(body, ascend_vendors(config("Ascend910B4", overwriteEnv=True))).pod
    assert changed["spec"]["containers"][0]["env"] == [{"name": "ASCEND_VISIBLE_DEVICES", "value": ""}]
    assert "schedulerName" not in changed["spec"]


def test_the_runtime_class_is_the_users_or_else_the_configurations():
    rows = ascend_vendors(config("Ascend910B4", runtimeClassName="ascend"))
    assert admit(asking("Ascend910B4"), rows).pod["spec"]["runtimeClassName"] == "ascend"
    own = asking("Ascend910B4")
    own["spec"]["runtimeClassName"] = "mine"
    assert admit(own, rows).pod["spec"]["runtimeClassName"] == "mine"
    assert "runtimeClassName" not in admit(asking("Ascend910B4"), ascend_vendors()).pod["spec"]


def test_the_pod_that_was_handed_in_is_not_changed():
    body = asking("Ascend910B4", 1, 100)
    before = copy.deepcopy(body)
    assert admit(body, ascend_vendors(release="2.9")).pod != body
    assert body == before


@pytest.mark.parametrize(("release", "hooked"), [("2.9", True), ("v2.9.0-rc0", True), ("2.10", False)])
def test_releases_before_2_10_start_a_limiter_in_soft_containers(release, hooked):
    rows = ascend_vendors(release=release)
    (changed,) = admit(asking("Ascend910B4", 1, 8192, soft=True), rows).pod["spec"]["containers"]
    command = changed.get("lifecycle", {}).get("postStart", {}).get("exec", {}).get("command", [])
    assert ("/bin/bash" in command) == ("/hami-vnpu-core/limiter" in " ".join(command)) == hooked
    (plain,) = admit(asking("Ascend910B4", 1, 8192), rows).pod["spec"]["containers"]
    assert "lifecycle" not in plain
    own = asking("Ascend910B4", 1, 8192, soft=True)
    own["spec"]["containers"][0]["lifecycle"] = {"postStart": {"exec": {"command": ["true"]}}}
    (kept,) = admit(own, rows).pod["spec"]["containers"]
    assert kept["lifecycle"]["postStart"]["exec"]["command"] == ["true"]


@pytest.mark.parametrize(
    ("chip", "memory", "given_"),
    [
        ("Ascend910B4-1", 16384, "16384"),
        ("Ascend910B4-1", 16385, "32768"),
        ("Ascend910B4-1", 32769, "65536"),
        ("Ascend910B4", 10000, "16384"),
        ("Ascend310P", 3500, "6144"),
        ("Ascend310P", 13000, "21527"),
        ("Ascend310P", 21600, "21527"),
        ("Ascend310P", 24577, None),
    ],
)
def test_b60_b61_the_smallest_template_that_holds_it_or_the_card_or_nothing(chip, memory, given_):
    denied, limits, _ = admitted(asking(chip, 1, memory))
    assert (denied, limits["memory"]) == (
        ("", given_) if given_ else (f"huawei.com/{chip}-memory {memory} is invalid", str(memory))
    )


def test_b61_b63_soft_requests_are_neither_rounded_nor_held_to_one_card():
    assert admitted(asking("Ascend910B4", 1, 10000, soft=True))[1]["memory"] == "10000"
    assert admitted(asking("Ascend910B4", 2, 8192, soft=True))[0] == ""
    assert admitted(asking("Ascend910B4", 2, 8192))[0] == SEVERAL
    assert admitted(asking("Ascend910B4", 2, 32768))[0] == ""
    assert admitted(asking("Ascend910B4", 2)) == (
        "",
        {"count": "2", "memory": "32768"},
        {"memory": "32768"},
    )


def test_a_container_may_ask_for_amd_and_ascend():
    body = asking("Ascend910B4", 1, 100)
    body["spec"]["containers"][0]["resources"]["limits"]["amd.com/gpu"] = "1"
    changed = admit(body, (AMD, *ascend_vendors())).pod
    assert changed["spec"]["schedulerName"] == "hami-scheduler"
    assert changed["spec"]["containers"][0]["resources"]["limits"] == {
        "amd.com/gpu": "1",
        "huawei.com/Ascend910B4": "1",
        "huawei.com/Ascend910B4-memory": "8192",
    }


@given(st.sampled_from([row["commonWord"] for row in shipped()["vnpus"]["configs"]]), st.integers(1, 70000))
def test_what_is_given_is_enough_and_no_smaller_template_would_be(chip, memory):
    (entry,) = config(chip)["vnpus"]["configs"]
    denied, limits, _ = admitted(asking(chip, 1, memory))
    if denied:
        assert memory > entry["memoryCapacity"]
        return
    sizes = {one["memory"] for one in entry["templates"]}
    given_ = int(limits["memory"])
    assert given_ in sizes | {entry["memoryAllocatable"]}
    assert given_ >= memory or given_ == entry["memoryAllocatable"]
    assert not any(memory <= size < given_ for size in sizes)
    again = admitted(asking(chip, 1, given_))[1]["memory"]
    assert again == limits["memory"]  # a pod that is admitted twice stays as it is
