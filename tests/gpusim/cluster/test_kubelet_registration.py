"""Registration, lists and the end of streams (kubelet.md 2; scenarios K1-K12, K21; cases B42, B43)."""

from __future__ import annotations

import stat
import threading
import time

import grpc
import pytest

from devplugin.kubeletapi import api_pb2 as api
from gpusim.cluster.kubelet import Kubelet
from gpusim.errors import GpusimError

from .fake_plugin import RESOURCE, FakePlugin, device, devices, eventually, refuse


def refusal(plugin: FakePlugin, **how: object) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as caught:
        plugin.register(**how)
    assert caught.value.code() is grpc.StatusCode.UNKNOWN
    return caught.value


def test_a_registered_plugin_s_list_becomes_capacity_and_allocatable(make_kubelet, make_plugin):
    kubelet = make_kubelet()
    make_plugin([*devices(3), device("sick", health="Unhealthy")]).register()
    kubelet.wait_for(lambda k: k.capacity(RESOURCE) == 4)
    assert kubelet.allocatable(RESOURCE) == 3
    assert kubelet.resources() == (RESOURCE,)
    assert kubelet.devices(RESOURCE)["sick"].health == "Unhealthy"
    assert kubelet.registrations == {RESOURCE: 1}


def test_the_directory_has_the_kubelet_s_own_files_and_mode(make_kubelet, make_plugin, directory):
    kubelet = make_kubelet()
    make_plugin(devices(1)).register()
    kubelet.wait_for(lambda k: (directory / "kubelet_internal_checkpoint").exists())
    assert stat.S_IMODE(directory.stat().st_mode) == 0o750
    assert stat.S_ISSOCK((directory / "kubelet.sock").stat().st_mode)
    assert (directory / "DEPRECATION").read_bytes() == b""


def test_options_are_asked_for_inside_register_and_those_of_the_request_ignored(make_kubelet, make_plugin):
    kubelet = make_kubelet()
    plugin = make_plugin(devices(1), preferred=True).register()
    assert plugin.option_calls == 1  # answered before Register returned
    connected = next(e for e in kubelet.events if e.kind == "connected")
    assert connected.detail == {"prestart": False, "preferred": True}


def test_a_plugin_that_registers_before_it_serves_is_refused(make_kubelet, directory):
    make_kubelet(dial_timeout=0.3)
    with FakePlugin(directory.parent) as elsewhere:  # serves, but not where it says
        elsewhere.directory = directory
        error = refusal(elsewhere)
        elsewhere.directory = directory.parent
    assert "failed to dial device plugin" in error.details()


@pytest.mark.parametrize("version", ["v1alpha1", "v1beta2", "", "V1BETA1", "v1beta1 "])
def test_any_version_but_v1beta1_is_refused(make_kubelet, make_plugin, version):
    kubelet = make_kubelet()
    error = refusal(make_plugin(devices(1)), version=version)
    assert "not supported by kubelet" in error.details()
    assert kubelet.resources() == ()


def test_a_kubelet_of_another_version_refuses_today_s_plugins(make_kubelet, make_plugin):
    kubelet = make_kubelet()
    kubelet.faults.accepted_version = "v1"
    plugin = make_plugin(devices(1))
    refusal(plugin)
    kubelet.faults.accepted_version = "v1beta1"
    plugin.register()
    assert kubelet.wait_for(lambda k: k.capacity(RESOURCE) == 1)


@pytest.mark.parametrize(
    "name",
    ["amd.com", "amd.com/", "gpu", "amd.com/CPX NPS4", "kubernetes.io/gpu", "node.kubernetes.io/gpu",
     "requests.amd.com/gpu", "amd.com/gpu/0", "/gpu", "AMD.com/gpu", "amd.com/-gpu", f"amd.com/{'x' * 64}",
     ""],
)  # fmt: skip
def test_a_name_that_is_no_extended_resource_is_refused(make_kubelet, make_plugin, name):
    make_kubelet()
    error = refusal(make_plugin(devices(1)), resource=name)
    assert error.details() == f'the ResourceName "{name}" is invalid'


def test_a_partition_s_resource_name_is_accepted(make_kubelet, make_plugin):
    kubelet = make_kubelet()
    make_plugin(devices(2), resource="amd.com/cpx_nps4").register()
    assert kubelet.wait_for(lambda k: k.capacity("amd.com/cpx_nps4") == 2)


def test_the_version_is_checked_before_the_name(make_kubelet, make_plugin):
    make_kubelet()
    assert "API version" in refusal(make_plugin(), version="v0", resource="gpu").details()


def test_an_options_call_that_fails_once_fails_register_once(make_kubelet, make_plugin):
    kubelet = make_kubelet()
    kubelet.faults.options_failures = 1
    plugin = make_plugin(devices(1))
    assert refusal(plugin).details().startswith("failed to get device plugin options: rpc error: code = ")
    plugin.register()
    assert kubelet.wait_for(lambda k: k.capacity(RESOURCE) == 1)


def test_a_plugin_s_own_options_error_fails_register(make_kubelet, make_plugin):
    make_kubelet()
    plugin = make_plugin(devices(1))
    plugin.on_options = refuse("not ready")
    error = refusal(plugin)
    assert error.details().startswith(
        "failed to get device plugin options: rpc error: code = Unknown desc = "
    )


@pytest.mark.parametrize(("delay", "registered"), [(0.2, True), (0.6, False)])
def test_the_dial_back_may_be_slow_up_to_its_deadline(make_kubelet, make_plugin, delay, registered):
    kubelet = make_kubelet(dial_timeout=0.4)
    kubelet.faults.dial_delay = delay
    plugin = make_plugin(devices(1))
    began = time.monotonic()
    if registered:
        plugin.register()
        assert time.monotonic() - began >= delay
    else:
        assert "deadline exceeded" in refusal(plugin).details()


def test_each_message_is_the_full_list(make_kubelet, make_plugin):
    kubelet = make_kubelet()
    plugin = make_plugin(devices(4)).register()
    kubelet.wait_for(lambda k: k.capacity(RESOURCE) == 4)
    plugin.send([device("d0"), device("new")])
    kubelet.wait_for(lambda k: set(k.devices(RESOURCE)) == {"d0", "new"})
    plugin.send(devices(6))
    assert kubelet.wait_for(lambda k: k.capacity(RESOURCE) == 6)


@pytest.mark.parametrize("word", ["Unhealthy", "healthy", "HEALTHY", "", "Unknown", "Healthy "])
def test_only_the_exact_word_is_healthy(make_kubelet, make_plugin, word):
    kubelet = make_kubelet()
    plugin = make_plugin([device("a"), device("b", health=word)]).register()
    kubelet.wait_for(lambda k: k.capacity(RESOURCE) == 2)
    assert kubelet.allocatable(RESOURCE) == 1
    plugin.send([device("a"), device("b")])
    assert kubelet.wait_for(lambda k: k.allocatable(RESOURCE) == 2)


def test_an_empty_list_is_a_resource_with_nothing(make_kubelet, make_plugin):
    kubelet = make_kubelet()
    make_plugin(()).register()
    kubelet.wait_for(lambda k: k.resources() == (RESOURCE,))
    assert kubelet.capacity(RESOURCE) == 0


def test_when_the_stream_ends_capacity_stays_and_nothing_is_allocatable(make_kubelet, make_plugin):
    kubelet = make_kubelet()
    plugin = make_plugin(devices(3)).register()
    kubelet.wait_for(lambda k: k.allocatable(RESOURCE) == 3)
    plugin.stop()
    kubelet.wait_for(lambda k: k.allocatable(RESOURCE) == 0)
    assert kubelet.capacity(RESOURCE) == 3


def test_after_the_grace_a_stopped_resource_is_gone(make_kubelet, make_plugin):
    now = [1000.0]
    kubelet = make_kubelet(clock=lambda: now[0])
    plugin = make_plugin(devices(3)).register()
    kubelet.wait_for(lambda k: k.allocatable(RESOURCE) == 3)
    plugin.stop()
    kubelet.wait_for(lambda k: k.allocatable(RESOURCE) == 0)
    now[0] += 299
    assert kubelet.capacity(RESOURCE) == 3
    now[0] += 1
    assert kubelet.capacity(RESOURCE) == 0
    assert kubelet.resources() == ()


def test_a_plugin_that_comes_back_within_the_grace_keeps_its_capacity(make_kubelet, make_plugin):
    now = [0.0]
    kubelet = make_kubelet(clock=lambda: now[0])
    make_plugin(devices(3)).register().stop()
    kubelet.wait_for(lambda k: any(e.kind == "stream-ended" for e in k.events))
    now[0] += 200
    make_plugin(devices(3)).register()
    kubelet.wait_for(lambda k: k.allocatable(RESOURCE) == 3)
    now[0] += 200
    assert kubelet.capacity(RESOURCE) == 3


def test_a_cancelled_stream_leaves_the_socket_and_shows_nothing_until_the_next_registration(
    make_kubelet, make_plugin, directory
):
    kubelet = make_kubelet()
    plugin = make_plugin(devices(2)).register()
    kubelet.wait_for(lambda k: k.allocatable(RESOURCE) == 2)
    assert kubelet.cancel_stream(RESOURCE)
    kubelet.wait_for(lambda k: k.allocatable(RESOURCE) == 0)
    assert eventually(lambda: plugin.ended == 1)
    assert (directory / "kubelet.sock").exists()
    assert plugin.path.exists()
    plugin.register()
    assert kubelet.wait_for(lambda k: k.allocatable(RESOURCE) == 2)
    assert plugin.streams == 2


def test_there_is_no_stream_to_cancel_of_an_unknown_resource(make_kubelet):
    assert not make_kubelet().cancel_stream("example.com/none")


def test_the_newest_registration_s_list_replaces_the_old_one(make_kubelet, make_plugin):
    kubelet = make_kubelet()
    make_plugin(devices(2)).register()
    kubelet.wait_for(lambda k: k.capacity(RESOURCE) == 2)
    make_plugin([device("x")]).register()
    assert kubelet.wait_for(lambda k: set(k.devices(RESOURCE)) == {"x"})


def test_up_to_1_36_the_end_of_an_old_stream_disconnects_the_new_plugin(make_kubelet, make_plugin):
    kubelet = make_kubelet(generation="1.36")
    old = make_plugin(devices(2)).register()
    kubelet.wait_for(lambda k: k.allocatable(RESOURCE) == 2)
    new = make_plugin([device("x")]).register()
    kubelet.wait_for(lambda k: set(k.devices(RESOURCE)) == {"x"})
    old.stop()
    kubelet.wait_for(lambda k: k.allocatable(RESOURCE) == 0)
    assert eventually(lambda: new.ended == 1)  # alive, and its stream was taken from it
    new.register()
    assert kubelet.wait_for(lambda k: k.allocatable(RESOURCE) == 1)


def test_on_main_the_end_of_an_old_stream_leaves_the_new_plugin_alone(make_kubelet, make_plugin):
    kubelet = make_kubelet(generation="main")
    old = make_plugin(devices(2)).register()
    kubelet.wait_for(lambda k: k.allocatable(RESOURCE) == 2)
    new = make_plugin([device("x")]).register()
    kubelet.wait_for(lambda k: set(k.devices(RESOURCE)) == {"x"})
    old.stop()
    kubelet.wait_for(lambda k: any(e.kind == "watch-over" for e in k.events))
    assert kubelet.allocatable(RESOURCE) == 1
    assert new.ended == 0


@pytest.mark.parametrize(("generation", "registered"), [("1.36", False), ("main", True)])
def test_an_old_stream_that_ends_while_the_new_plugin_is_being_asked(
    make_kubelet, make_plugin, generation, registered
):
    kubelet = make_kubelet(generation=generation)
    old = make_plugin(devices(2)).register()
    kubelet.wait_for(lambda k: k.allocatable(RESOURCE) == 2)
    new = make_plugin([device("x")])

    def lose_the_old_one():
        old.stop()
        kubelet.wait_for(lambda k: any(e.kind == "stream-ended" for e in k.events))

    new.on_options = lose_the_old_one
    if registered:
        new.register()
        assert kubelet.wait_for(lambda k: k.allocatable(RESOURCE) == 1)
    else:  # the client found under the name, and disconnected, is the new one
        refusal(new)
        assert kubelet.allocatable(RESOURCE) == 0


def test_two_resources_do_not_touch_each_other(make_kubelet, make_plugin):
    kubelet = make_kubelet()
    one = make_plugin(devices(1)).register()
    make_plugin(devices(2), resource="example.com/other").register()
    kubelet.wait_for(lambda k: k.allocatable(RESOURCE) == 1 and k.allocatable("example.com/other") == 2)
    one.stop()
    kubelet.wait_for(lambda k: k.allocatable(RESOURCE) == 0)
    assert kubelet.allocatable("example.com/other") == 2


def test_starting_removes_sockets_and_nothing_else(make_kubelet, directory, make_plugin):
    directory.mkdir()
    make_plugin(endpoint="left.sock")
    (directory / "file.sock").write_text("no socket")
    (directory / "dir.sock").mkdir()
    kubelet = make_kubelet()
    assert not (directory / "left.sock").exists()
    assert (directory / "file.sock").read_text() == "no socket"
    assert (directory / "dir.sock").is_dir()
    assert [e.detail["name"] for e in kubelet.events if e.kind == "socket-removed"] == ["left.sock"]


def test_a_restart_wipes_the_sockets_and_knows_the_resource_with_nothing(
    make_kubelet, make_plugin, directory
):
    kubelet = make_kubelet()
    plugin = make_plugin(devices(2)).register()
    kubelet.wait_for(lambda k: k.allocatable(RESOURCE) == 2)
    kubelet.restart()
    assert not plugin.path.exists()
    assert kubelet.resources() == (RESOURCE,)
    assert kubelet.capacity(RESOURCE) == 0
    assert eventually(lambda: plugin.ended == 1)
    again = make_plugin(devices(2)).register()
    kubelet.wait_for(lambda k: k.allocatable(RESOURCE) == 2)
    assert again.streams == 1


def test_a_killed_kubelet_leaves_a_socket_nobody_listens_on(make_kubelet, make_plugin, directory):
    kubelet = make_kubelet()
    made = (directory / "kubelet.sock").lstat()
    kubelet.kill()
    assert (directory / "kubelet.sock").lstat().st_ino == made.st_ino
    with pytest.raises(grpc.RpcError) as caught:
        FakePlugin(directory).register(timeout=0.3)
    assert caught.value.code() in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE)
    kubelet.start()
    # the file system may give the new socket the old inode number
    assert (directory / "kubelet.sock").lstat().st_ctime_ns != made.st_ctime_ns
    make_plugin(devices(1)).register()
    assert kubelet.wait_for(lambda k: k.capacity(RESOURCE) == 1)


def test_a_stopped_kubelet_leaves_no_socket_and_nothing_beside_its_directory(make_kubelet, directory):
    kubelet = make_kubelet()
    kubelet.stop()
    assert not (directory / "kubelet.sock").exists()
    assert [p.name for p in directory.parent.iterdir()] == [directory.name]


def test_a_late_kubelet_wipes_what_was_there_when_it_comes(directory, make_plugin, stack):
    directory.mkdir()
    plugin = make_plugin(devices(1))
    kubelet = Kubelet(directory)
    kubelet.start(late=0.2)
    stack.callback(kubelet.stop)
    assert not (directory / "kubelet.sock").exists()
    kubelet.wait_for(lambda k: (directory / "kubelet.sock").exists())
    assert not plugin.path.exists()


def test_a_kubelet_stopped_before_it_came_never_listens(directory):
    kubelet = Kubelet(directory)
    kubelet.start(late=30)
    kubelet.stop()
    assert not (directory / "kubelet.sock").exists()


def test_stopping_ends_a_registration_that_hangs_in_the_plugin(make_kubelet, make_plugin):
    kubelet = make_kubelet()
    held = threading.Event()
    plugin = make_plugin(devices(1))
    plugin.on_options = lambda: held.wait(20) and None
    failed: list[Exception] = []

    def attempt() -> None:
        try:
            plugin.register()
        except grpc.RpcError as error:
            failed.append(error)

    thread = threading.Thread(target=attempt)
    thread.start()
    assert eventually(lambda: plugin.option_calls == 1)
    began = time.monotonic()
    kubelet.stop()
    thread.join(10)
    held.set()
    assert failed
    assert time.monotonic() - began < 5


def test_a_list_beyond_grpc_s_4_mib_ends_the_stream(make_kubelet, make_plugin):
    kubelet = make_kubelet()
    plugin = make_plugin(devices(1)).register()
    kubelet.wait_for(lambda k: k.allocatable(RESOURCE) == 1)
    plugin.send([api.Device(ID=f"{i:063}", health="Healthy") for i in range(60_000)])
    kubelet.wait_for(lambda k: k.allocatable(RESOURCE) == 0)
    over = next(e for e in kubelet.events if e.kind == "watch-over")
    assert "ResourceExhausted" in over.detail["why"]


def test_forty_thousand_devices_still_fit(make_kubelet, make_plugin):
    kubelet = make_kubelet()
    make_plugin([api.Device(ID=f"dev-{i}", health="Healthy") for i in range(40_000)]).register()
    assert kubelet.wait_for(lambda k: k.allocatable(RESOURCE) == 40_000)


def test_numa_nodes_the_machine_does_not_have_are_dropped(make_kubelet, make_plugin):
    kubelet = make_kubelet(numa_nodes=(0, 1))
    make_plugin([device("a", -1), device("b", 0, 7)]).register()
    kubelet.wait_for(lambda k: k.capacity(RESOURCE) == 2)
    assert kubelet.devices(RESOURCE)["a"].numa == ()
    assert kubelet.devices(RESOURCE)["b"].numa == (0,)
    assert [e.detail["nodes"] for e in kubelet.events if e.kind == "unknown-numa"] == [(-1,), (0, 7)]


def test_waiting_in_vain_says_what_there_is(make_kubelet, make_plugin):
    kubelet = make_kubelet()
    make_plugin(devices(2)).register()
    kubelet.wait_for(lambda k: k.capacity(RESOURCE) == 2)
    with pytest.raises(TimeoutError, match=r"'example.com/gpu': '2/2'"):
        kubelet.wait_for(lambda k: k.capacity(RESOURCE) == 3, timeout=0.1)


def test_waiting_while_resources_run_out_of_their_grace_does_not_lock_up(make_kubelet, make_plugin):
    now = [0.0]
    kubelet = make_kubelet(clock=lambda: now[0])
    make_plugin(devices(1)).register().stop()
    kubelet.wait_for(lambda k: any(e.kind == "stream-ended" for e in k.events))
    stop = threading.Event()

    def ask():  # a second thread under the table's lock, recording, while the first one waits
        while not stop.is_set():
            kubelet.capacity(RESOURCE)

    thread = threading.Thread(target=ask)
    thread.start()
    threading.Timer(0.05, lambda: now.__setitem__(0, 301.0)).start()
    assert kubelet.wait_for(lambda k: not k.resources())
    stop.set()
    thread.join(5)
    assert not thread.is_alive()


@pytest.mark.parametrize("wrong", [{"generation": "1.20"}, {"topology_policy": "all"}])
def test_a_setting_that_is_none_of_the_choices_is_refused(directory, wrong):
    with pytest.raises(GpusimError, match="one of"):
        Kubelet(directory, **wrong)


def test_a_running_kubelet_is_not_started_twice(make_kubelet):
    with pytest.raises(GpusimError, match="runs already"):
        make_kubelet().start()


def test_a_directory_in_place_of_the_socket_is_an_error_that_names_it(directory):
    (directory / "kubelet.sock").mkdir(parents=True)
    with pytest.raises(GpusimError, match=r"kubelet\.sock"):
        Kubelet(directory).start()
    assert [p.name for p in directory.parent.iterdir()] == [directory.name]
