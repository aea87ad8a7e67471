"""NUMA hints and the topology manager (kubelet.md 2 *NUMA*; K18; case B46)."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusim.cluster.kubelet_devices import Device
from gpusim.cluster.kubelet_topology import POLICIES, Hint, decide, hints, split
from gpusim.cluster.pods import container, pod

from .fake_plugin import RESOURCE, device


def table(**numa: tuple[int, ...]) -> dict[str, Device]:
    return {name: Device(name, "Healthy", nodes) for name, nodes in numa.items()}


def masks(found: list[Hint] | None) -> set[tuple[tuple[int, ...], bool]]:
    return {(tuple(sorted(h.nodes)), h.preferred) for h in found or []}


def test_devices_without_topology_give_no_hints():
    assert hints(table(a=(), b=()), {"a", "b"}, (), 1) is None


def test_too_few_devices_give_an_empty_list():
    assert hints(table(a=(0,)), {"a"}, (), 2) == []


def test_hints_are_the_subsets_that_can_serve_and_the_smallest_are_preferred():
    devices = table(a=(0,), b=(0,), c=(1,))
    assert masks(hints(devices, set(devices), (), 1)) == {((0,), True), ((1,), True), ((0, 1), False)}
    assert masks(hints(devices, set(devices), (), 2)) == {((0,), True), ((0, 1), False)}
    assert masks(hints(devices, set(devices), (), 3)) == {((0, 1), True)}


def test_the_preferred_size_counts_all_devices_not_only_the_free_ones():
    devices = table(a=(0,), b=(0,), c=(1,))
    assert masks(hints(devices, {"a", "c"}, (), 2)) == {((0, 1), False)}


def test_36_numa_nodes_with_gpus_on_two_cost_three_hints():
    devices = table(a=(0,), b=(1,))
    assert masks(hints(devices, {"a", "b"}, (), 1)) == {((0,), True), ((1,), True), ((0, 1), False)}
    affinity, admitted = decide("best-effort", [hints(devices, {"a", "b"}, (), 1)], range(36))
    assert admitted
    assert affinity == Hint(frozenset({0}), True)


def test_gpus_on_36_numa_nodes_are_still_answered_in_bounded_time():
    devices = {f"d{n}": Device(f"d{n}", "Healthy", (n,)) for n in range(36)}
    assert len(hints(devices, set(devices), (), 1)) == 36 + 36 * 35 // 2 + 1


def test_a_device_on_two_nodes_is_aligned_with_either():
    devices = table(dev1=(1,), dev2=(1, 2))
    aligned, unaligned, without = split(devices, set(devices), Hint(frozenset({2}), True))
    assert (aligned, unaligned, without) == ({"dev2"}, {"dev1"}, set())


def test_re_usable_devices_must_be_inside_a_hint():
    devices = table(a=(0,), b=(1,), c=(1,))
    assert masks(hints(devices, {"b", "c"}, {"a"}, 2)) == {((0, 1), False)}


@given(
    st.dictionaries(
        st.text("abcdef", min_size=1, max_size=2),
        st.lists(st.integers(0, 4), max_size=2, unique=True),
        max_size=8,
    ),
    st.integers(1, 4),
)
def test_hints_are_exactly_the_subsets_that_hold_enough(numa, size):
    devices = {name: Device(name, "Healthy", tuple(nodes)) for name, nodes in numa.items()}
    found = hints(devices, set(devices), (), size)
    carrying = sorted({n for nodes in numa.values() for n in nodes})
    if not carrying:
        assert found is None
        return
    expected = {
        mask
        for k in range(1, len(carrying) + 1)
        for mask in combinations(carrying, k)
        if sum(bool(set(mask) & set(nodes)) for nodes in numa.values()) >= size
    }
    if len(devices) < size:
        expected = set()
    assert {mask for mask, _ in masks(found)} == expected
    smallest = min(map(len, expected), default=0)
    assert all(preferred == (len(mask) == smallest) for mask, preferred in masks(found))


@pytest.mark.parametrize("policy", POLICIES)
def test_a_container_without_devices_is_always_admitted(policy):
    assert decide(policy, [], (0, 1))[1]


def test_policies_differ_when_no_single_node_can_serve():
    offered = [[Hint(frozenset({0, 1}), True)]]
    assert [decide(p, offered, (0, 1))[1] for p in POLICIES] == [True, True, True, False]
    offered = [[Hint(frozenset({0, 1}), False)]]
    assert [decide(p, offered, (0, 1))[1] for p in POLICIES] == [True, True, False, False]


def test_two_resources_meet_on_the_node_they_share():
    one = [Hint(frozenset({0}), True), Hint(frozenset({1}), True), Hint(frozenset({0, 1}), False)]
    two = [Hint(frozenset({1}), True), Hint(frozenset({0, 1}), False)]
    assert decide("restricted", [one, two], (0, 1)) == (Hint(frozenset({1}), True), True)


def test_the_aligned_device_is_taken_with_a_policy_and_asked_about_first(make_kubelet, make_plugin):
    kubelet = make_kubelet(topology_policy="best-effort", numa_nodes=(0, 1))
    plugin = make_plugin(
        [device("a", 0), device("b", 1), device("c", 1), device("d", 1)], preferred=True
    ).register()
    kubelet.wait_for(lambda k: k.allocatable(RESOURCE) == 4)
    ids = kubelet.admit(pod("p", [container("main", {RESOURCE: 2})])).containers["main"].ids[RESOURCE]
    assert plugin.queries == [({"b", "c", "d"}, set(), 2)]
    assert ids == ("b", "c")


def test_what_is_aligned_is_taken_before_the_plugin_is_asked_about_the_rest(make_kubelet, make_plugin):
    kubelet = make_kubelet(topology_policy="best-effort")
    plugin = make_plugin([device("a", 0), device("b", 1), device("free")], preferred=True).register()
    kubelet.wait_for(lambda k: k.allocatable(RESOURCE) == 3)
    ids = kubelet.admit(pod("p", [container("main", {RESOURCE: 3})])).containers["main"].ids[RESOURCE]
    assert ids == ("a", "b", "free")
    assert plugin.queries[-1][2] == 3


def test_restricted_rejects_a_pod_whose_free_devices_are_spread(make_kubelet, make_plugin):
    kubelet = make_kubelet(topology_policy="restricted")
    make_plugin(
        [device("a", 0), device("b", 0), device("c", 1), device("d", 1, health="Unhealthy")]
    ).register()
    kubelet.wait_for(lambda k: k.allocatable(RESOURCE) == 3)
    assert kubelet.admit(pod("p1", [container("main", {RESOURCE: 1})])).admitted  # one of node 0
    refused = kubelet.admit(pod("p2", [container("main", {RESOURCE: 2})]))
    assert (refused.admitted, refused.reason) == (False, "TopologyAffinityError")


def test_with_the_default_policy_topology_does_not_matter(make_kubelet, make_plugin):
    kubelet = make_kubelet()
    plugin = make_plugin([device("a", 0), device("b", 1)], preferred=True).register()
    kubelet.wait_for(lambda k: k.allocatable(RESOURCE) == 2)
    kubelet.admit(pod("p", [container("main", {RESOURCE: 1})]))
    assert plugin.queries == [({"a", "b"}, set(), 1)]
