"""A plan's faults of kubelet: `arm` on the simulated kubelet, as a plugin sees them (docs/faults.md)."""

from __future__ import annotations

import time

import grpc
import pytest

from gpusim.cluster.kubelet import Kubelet
from gpusim.cluster.pods import container, pod
from gpusim.errors import GpusimError
from gpusim.testing.clock import Clock
from gpusim.testing.faults import Fault, Plan, arm

from .fake_plugin import RESOURCE, FakePlugin, devices, eventually


def refused(plugin: FakePlugin) -> str:
    with pytest.raises(grpc.RpcError) as caught:
        plugin.register()
    return str(caught.value.details())


def listed(kubelet: Kubelet) -> bool:
    return kubelet.capacity(RESOURCE) == 2


def test_as_many_options_calls_fail_as_the_plan_says(make_kubelet, make_plugin):
    kubelet = make_kubelet()
    arm(Plan((Fault("options-fail", times=2),)), kubelet=kubelet)
    plugin = make_plugin(devices(2))
    for _ in range(2):
        assert "failed to get device plugin options" in refused(plugin)
    plugin.register()
    assert kubelet.wait_for(listed)


def test_options_calls_without_a_number_fail_for_good(make_kubelet, make_plugin):
    arm(Plan((Fault("options-fail", times=None),)), kubelet=make_kubelet())
    plugin = make_plugin(devices(2))
    for _ in range(4):
        assert "failed to get device plugin options" in refused(plugin)


def test_a_kubelet_of_another_version_takes_no_plugin_of_ours(make_kubelet, make_plugin):
    arm(Plan((Fault("version", name="v1"),)), kubelet=make_kubelet())
    assert 'Supported version is ["v1"]' in refused(make_plugin(devices(2)))


@pytest.mark.parametrize(("seconds", "registered"), [(0.2, True), (5.0, False)])
def test_a_slow_dial_back_delays_register_or_fails_it(make_kubelet, make_plugin, seconds, registered):
    kubelet = make_kubelet(dial_timeout=1.0)
    arm(Plan((Fault("dial-slow", seconds=seconds),)), kubelet=kubelet)
    plugin = make_plugin(devices(2))
    began = time.monotonic()
    if registered:
        plugin.register()
        assert kubelet.wait_for(listed)
        assert time.monotonic() - began >= seconds
    else:
        assert "deadline exceeded" in refused(plugin)


def test_a_slow_allocate_still_gives_the_pod_its_device(make_kubelet, make_plugin):
    kubelet = make_kubelet()
    plugin = make_plugin(devices(2)).register()
    kubelet.wait_for(listed)
    arm(Plan((Fault("allocate-slow", seconds=0.3),)), kubelet=kubelet)
    began = time.monotonic()
    assert kubelet.admit(pod("p", [container("main", {RESOURCE: 1})])).admitted
    assert time.monotonic() - began >= 0.3
    assert [len(ids) for ids in plugin.allocations] == [1]


def test_a_restart_comes_when_the_virtual_clock_says_so_and_takes_the_plugins_socket(
    make_kubelet, make_plugin
):
    kubelet, clock = make_kubelet(), Clock()
    plugin = make_plugin(devices(2)).register()
    kubelet.wait_for(listed)
    arm(Plan((Fault("kubelet-restart", seconds=20.0),)), kubelet=kubelet, clock=clock)
    clock.advance(19)
    assert plugin.path.exists()
    assert kubelet.registrations == {RESOURCE: 1}
    clock.advance(1)
    assert kubelet.running
    assert not plugin.path.exists()
    assert kubelet.registrations == {}
    assert eventually(lambda: plugin.ended == 1)


def test_a_killed_kubelet_leaves_its_socket_and_ends_the_streams(make_kubelet, make_plugin, directory):
    kubelet, clock = make_kubelet(), Clock()
    plugin = make_plugin(devices(2)).register()
    kubelet.wait_for(listed)
    arm(Plan((Fault("kubelet-kill", seconds=1.0),)), kubelet=kubelet, clock=clock)
    assert kubelet.running
    clock.advance(1)
    assert not kubelet.running
    assert (directory / "kubelet.sock").exists()
    assert eventually(lambda: plugin.ended == 1)


def test_one_resources_stream_is_cut_and_the_others_goes_on(make_kubelet, make_plugin):
    kubelet, clock = make_kubelet(), Clock()
    other = "amd.com/cpx_nps1"
    cut = make_plugin(devices(2)).register()
    kept = make_plugin(devices(1), resource=other).register()
    kubelet.wait_for(lambda k: listed(k) and k.capacity(other) == 1)
    arm(Plan((Fault("stream-cut", name=RESOURCE, seconds=5.0),)), kubelet=kubelet, clock=clock)
    clock.advance(4)
    assert cut.ended == 0
    clock.advance(1)
    assert eventually(lambda: cut.ended == 1)
    assert kubelet.wait_for(lambda k: k.allocatable(RESOURCE) == 0)  # K5: listed, none of it healthy
    assert (kept.ended, kubelet.allocatable(other)) == (0, 1)


def test_what_happens_later_needs_a_clock_and_what_happens_now_does_not(make_kubelet):
    kubelet = make_kubelet()
    with pytest.raises(GpusimError, match="clock"):
        arm(Plan((Fault("kubelet-kill", seconds=1.0),)), kubelet=kubelet)
    assert kubelet.running
    arm(Plan((Fault("kubelet-kill"),)), kubelet=kubelet)
    assert not kubelet.running
