"""Allocation without an API server (kubelet.md 2; scenarios K14-K18, K20; case B44)."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devplugin.kubeletapi import api_pb2 as api
from gpusim.cluster.kubelet_checkpoint import Checkpoint, CheckpointError, Holding, read, write
from gpusim.cluster.kubelet_life import KubeletGoneError
from gpusim.cluster.pods import container, pod
from gpusim.errors import GpusimError

from .fake_plugin import RESOURCE, FakePlugin, device, devices, eventually, refuse

OTHER = "example.com/other"


@pytest.fixture
def ready(make_kubelet, make_plugin):
    """A kubelet that knows a plugin with so many devices."""

    def make(listed=None, settings=None, **options):
        listed = devices(8) if listed is None else listed
        kubelet = make_kubelet(**(settings or {}))
        plugin = make_plugin(listed, **options).register()
        kubelet.wait_for(lambda k: k.capacity(plugin.resource) == len(listed))
        return kubelet, plugin

    return make


def asking(count: int, name: str = "p", resource: str = RESOURCE):
    return pod(name, [container("main", {resource: count})])


def test_an_admitted_pod_gets_as_many_devices_as_it_asked_for(ready):
    kubelet, plugin = ready()
    admission = kubelet.admit(asking(3))
    assert admission.admitted
    edits = admission.containers["main"]
    assert len(edits.ids[RESOURCE]) == 3
    assert set(plugin.allocations[0]) == set(edits.ids[RESOURCE])
    assert edits.envs == {"IDS": ",".join(edits.ids[RESOURCE])}


def test_no_two_pods_share_a_device_until_one_ends(ready):
    kubelet, _ = ready()
    pods = [asking(2, f"p{i}") for i in range(4)]
    held = [kubelet.admit(p).containers["main"].ids[RESOURCE] for p in pods]
    assert sorted(id_ for ids in held for id_ in ids) == sorted(f"d{i}" for i in range(8))
    refused = kubelet.admit(asking(1, "late"))
    assert not refused.admitted
    assert refused.reason == "UnexpectedAdmissionError"
    assert refused.message == (
        f"Allocate failed due to requested number of devices unavailable for {RESOURCE}. "
        "Requested: 1, Available: 0, which is unexpected"
    )
    kubelet.remove(pods[0])
    assert kubelet.admit(asking(2, "next")).containers["main"].ids[RESOURCE] == held[0]


def test_ids_come_in_an_order_that_is_random_and_repeats_with_the_seed(make_kubelet, make_plugin, directory):
    def orders(seed):
        kubelet = make_kubelet(seed=seed)
        plugin = make_plugin(devices(8)).register()
        kubelet.wait_for(lambda k: k.allocatable(RESOURCE) == 8)
        for i in range(6):
            one = asking(8, f"p{i}")
            kubelet.admit(one)
            kubelet.remove(one)
        kubelet.stop()
        plugin.stop()
        (directory / "kubelet_internal_checkpoint").unlink()
        return plugin.allocations

    first = orders(5)
    assert len(set(first)) > 1
    assert any(list(order) != sorted(order) for order in first)
    assert orders(5) == first
    assert orders(6) != first


def test_an_unhealthy_device_is_never_given_out(ready):
    kubelet, _ = ready([device("a"), device("b", health="Unhealthy")])
    assert kubelet.admit(asking(1, "p1")).containers["main"].ids[RESOURCE] == ("a",)
    assert not kubelet.admit(asking(1, "p2")).admitted


def test_one_request_per_container_and_resource(ready, make_plugin):
    kubelet, plugin = ready()
    other = make_plugin(devices(2), resource=OTHER).register()
    kubelet.wait_for(lambda k: k.capacity(OTHER) == 2)
    admission = kubelet.admit(
        pod(
            "p",
            [container("one", {RESOURCE: 2, OTHER: 1}), container("none"), container("two", {RESOURCE: 1})],
        )
    )
    assert admission.admitted
    assert [len(ids) for ids in plugin.allocations] == [2, 1]
    assert [len(ids) for ids in other.allocations] == [1]
    assert admission.containers["none"].ids == {}


def test_an_allocate_error_rejects_the_pod_and_rolls_back(ready):
    kubelet, plugin = ready(devices(2))
    plugin.on_allocate = refuse("no device for you")
    refused = kubelet.admit(asking(2))
    assert refused.message == (
        "Allocate failed due to rpc error: code = Unknown desc = no device for you, which is unexpected"
    )
    plugin.on_allocate = plugin.answer
    assert kubelet.admit(asking(2, "again")).admitted


def test_an_error_in_the_second_container_frees_what_the_first_got(ready):
    kubelet, plugin = ready(devices(2))
    answers = iter([plugin.answer, refuse("enough")])
    plugin.on_allocate = lambda ids: next(answers)(ids)  # noqa: PLW0108  the next one at each call
    two = pod("p", [container("a", {RESOURCE: 1}), container("b", {RESOURCE: 1})])
    assert not kubelet.admit(two).admitted
    plugin.on_allocate = plugin.answer
    assert kubelet.admit(asking(2, "q")).admitted


def test_an_answer_without_containers_is_an_error(ready):
    kubelet, plugin = ready()
    plugin.on_allocate = lambda ids: api.AllocateResponse()
    refused = kubelet.admit(asking(1))
    assert not refused.admitted
    assert "no containers return in allocation response" in refused.message


def test_only_the_first_container_of_an_answer_counts(ready):
    kubelet, plugin = ready()
    plugin.on_allocate = lambda ids: api.AllocateResponse(
        container_responses=[
            api.ContainerAllocateResponse(envs={"A": "1"}),
            api.ContainerAllocateResponse(envs={"B": "2"}),
        ]
    )
    assert kubelet.admit(asking(1)).containers["main"].envs == {"A": "1"}


def test_all_kinds_of_edits_reach_the_container(ready):
    kubelet, plugin = ready()
    plugin.on_allocate = lambda ids: api.AllocateResponse(
        container_responses=[
            api.ContainerAllocateResponse(
                envs={"E": "1"},
                mounts=[api.Mount(container_path="/c", host_path="/h", read_only=True)],
                devices=[api.DeviceSpec(container_path="/dev/c", host_path="/dev/h", permissions="rw")],
                annotations={"k": "v"},
                cdi_devices=[api.CDIDevice(name="v/c=1"), api.CDIDevice(name="v/c=1")],
            )
        ]
    )
    edits = kubelet.admit(asking(1)).to_json()["containers"]["main"]
    assert edits["mounts"] == ({"container_path": "/c", "host_path": "/h", "read_only": True},)
    assert edits["devices"] == ({"container_path": "/dev/c", "host_path": "/dev/h", "permissions": "rw"},)
    assert edits["annotations"] == {"k": "v"}
    assert edits["cdi_devices"] == ("v/c=1",)


def test_of_two_resources_that_set_one_variable_one_wins_and_the_conflict_is_noted(ready, make_plugin):
    kubelet, _ = ready()
    other = make_plugin(devices(1), resource=OTHER).register()
    kubelet.wait_for(lambda k: k.capacity(OTHER) == 1)
    admission = kubelet.admit(pod("p", [container("main", {RESOURCE: 1, OTHER: 1})]))
    edits = admission.containers["main"]
    assert edits.conflicts == ("env IDS",)
    assert edits.envs["IDS"] in (edits.ids[RESOURCE][0], edits.ids[OTHER][0])
    assert other.allocations
    assert any(e.kind == "env-conflict" for e in kubelet.events)


def test_a_hanging_allocate_blocks_the_admission_of_every_other_pod(ready):
    kubelet, plugin = ready()
    held = threading.Event()

    def hang(ids):
        held.wait(20)
        return plugin.answer(ids)

    plugin.on_allocate = hang
    results = {}
    threads = [
        threading.Thread(target=lambda n=name: results.update({n: kubelet.admit(asking(1, n))}))
        for name in ("first", "second")
    ]
    threads[0].start()
    assert eventually(lambda: len(plugin.allocations) == 1)
    threads[1].start()
    assert not eventually(lambda: len(plugin.allocations) > 1, timeout=0.2)
    assert kubelet.allocatable(RESOURCE) == 8  # only admission waits
    held.set()
    for thread in threads:
        thread.join()
    assert all(r.admitted for r in results.values())


def test_a_kubelet_that_dies_in_a_hanging_allocate_admits_nothing(ready):
    kubelet, plugin = ready()
    held = threading.Event()
    plugin.on_allocate = lambda ids: held.wait(20) and plugin.answer(ids)
    caught = []

    def admit():
        try:
            kubelet.admit(asking(1))
        except KubeletGoneError as error:
            caught.append(error)

    thread = threading.Thread(target=admit)
    thread.start()
    assert eventually(lambda: len(plugin.allocations) == 1)
    kubelet.kill()
    thread.join(5)
    held.set()
    assert caught
    kubelet.start()
    assert kubelet.holdings("any") == {}


def test_devices_of_an_init_container_are_offered_to_the_containers_first(ready):
    kubelet, plugin = ready()
    with_init = pod(
        "p", [container("main", {RESOURCE: 3})], init_containers=[container("init", {RESOURCE: 2})]
    )
    admission = kubelet.admit(with_init)
    init, main = (set(admission.containers[c].ids[RESOURCE]) for c in ("init", "main"))
    assert init < main
    assert len(main) == 3
    assert len(plugin.allocations) == 2


def test_two_containers_never_share_what_an_init_container_left(ready):
    kubelet, _ = ready()
    admission = kubelet.admit(
        pod(
            "p",
            [container("a", {RESOURCE: 1}), container("b", {RESOURCE: 1})],
            init_containers=[container("init", {RESOURCE: 2})],
        )
    )
    a, b, init = (set(admission.containers[c].ids[RESOURCE]) for c in ("a", "b", "init"))
    assert a | b == init


def test_a_side_car_keeps_its_devices(ready):
    kubelet, _ = ready()
    admission = kubelet.admit(
        pod(
            "p",
            [container("main", {RESOURCE: 1})],
            init_containers=[container("side", {RESOURCE: 1}, restartable=True)],
        )
    )
    assert not set(admission.containers["main"].ids[RESOURCE]) & set(
        admission.containers["side"].ids[RESOURCE]
    )


def test_preferred_allocation_is_asked_with_all_that_is_free(ready):
    kubelet, plugin = ready(preferred=True)
    kubelet.admit(asking(2, "p1"))
    second = kubelet.admit(asking(3, "p2"))
    everything = {f"d{i}" for i in range(8)}
    assert plugin.queries[0] == (everything, set(), 2)
    assert plugin.queries[1] == (everything - {"d0", "d1"}, set(), 3)
    assert second.containers["main"].ids[RESOURCE] == ("d2", "d3", "d4")


def test_preferred_allocation_is_asked_even_when_there_is_no_choice(ready):
    kubelet, plugin = ready(devices(2), preferred=True)
    kubelet.admit(asking(2))
    assert plugin.queries == [({"d0", "d1"}, set(), 2)]


def test_preferred_allocation_is_not_asked_when_the_plugin_has_none(ready):
    kubelet, plugin = ready(preferred=False)
    kubelet.admit(asking(2))
    assert plugin.queries == []


def test_what_init_containers_left_is_must_include_and_counts_as_available(ready):
    kubelet, plugin = ready(preferred=True)
    with_init = pod(
        "p", [container("main", {RESOURCE: 3})], init_containers=[container("init", {RESOURCE: 2})]
    )
    kubelet.admit(with_init)
    available, must, size = plugin.queries[1]
    assert must == {"d0", "d1"}
    assert available == {f"d{i}" for i in range(8)}
    assert size == 3


def test_preferred_allocation_is_not_asked_when_init_devices_suffice(ready):
    kubelet, plugin = ready(preferred=True)
    kubelet.admit(
        pod("p", [container("main", {RESOURCE: 2})], init_containers=[container("init", {RESOURCE: 2})])
    )
    assert len(plugin.queries) == 1


@pytest.mark.parametrize(
    ("answer", "kept"),
    [([], set()), (["d5"], {"d5"}), (["foreign", "d6"], {"d6"}), (["d7", "d7", "d7"], {"d7"})],
    ids=["empty", "short", "foreign", "duplicate"],
)
def test_a_wrong_preference_is_tolerated_and_filled_up(ready, answer, kept):
    kubelet, plugin = ready(preferred=True)
    plugin.on_prefer = lambda *query: answer
    ids = set(kubelet.admit(asking(3)).containers["main"].ids[RESOURCE])
    assert len(ids) == 3
    assert kept <= ids
    assert ids <= {f"d{i}" for i in range(8)}


def test_an_error_in_preferred_allocation_fails_the_pod(ready):
    kubelet, plugin = ready(preferred=True)
    plugin.on_prefer = refuse("cannot choose")
    refused = kubelet.admit(asking(1))
    assert not refused.admitted
    assert (
        "GetPreferredAllocation rpc failed with err: rpc error: code = Unknown desc = cannot choose"
        in refused.message
    )
    assert plugin.allocations == []


def test_prestart_is_called_with_the_allocated_ids_and_only_when_required(ready):
    kubelet, plugin = ready(prestart=True)
    admission = kubelet.admit(asking(2))
    assert set(plugin.prestarts[0]) == set(admission.containers["main"].ids[RESOURCE])
    assert admission.blocked == ""


def test_a_prestart_error_blocks_the_start_and_keeps_the_devices(ready):
    kubelet, plugin = ready(prestart=True)
    plugin.on_prestart = refuse("reset failed")
    one = asking(1)
    admission = kubelet.admit(one)
    assert admission.admitted
    assert (
        "PreStartContainer rpc failed with err: rpc error: code = Unknown desc = reset failed"
        in admission.blocked
    )
    plugin.on_prestart = lambda ids: None
    assert kubelet.begin(one).blocked == ""
    assert len(plugin.allocations) == 1


def test_a_prestart_that_takes_too_long_blocks_the_start(ready):
    kubelet, plugin = ready(settings={"prestart_timeout": 0.2}, prestart=True)
    held = threading.Event()
    plugin.on_prestart = lambda ids: held.wait(10) and None
    admission = kubelet.admit(asking(1))
    held.set()
    assert "code = DeadlineExceeded" in admission.blocked


def test_a_resource_nobody_registered_is_ignored(ready):
    kubelet, plugin = ready()
    admission = kubelet.admit(pod("p", [container("main", {RESOURCE: 1, "amd.com/gpumem": 8192, "cpu": 2})]))
    assert admission.admitted
    assert set(admission.containers["main"].ids) == {RESOURCE}
    assert len(plugin.allocations) == 1


def test_a_plugin_that_is_gone_fails_the_pod(ready):
    kubelet, plugin = ready()
    plugin.stop()
    kubelet.wait_for(lambda k: k.allocatable(RESOURCE) == 0)
    refused = kubelet.admit(asking(1))
    assert "Requested: 1, Available: 0" in refused.message


def test_a_pod_admitted_before_is_not_allocated_again_after_a_restart(ready, make_plugin):
    kubelet, plugin = ready()
    one = asking(2)
    before = kubelet.admit(one).containers["main"]
    kubelet.restart()
    make_plugin(devices(8)).register()
    kubelet.wait_for(lambda k: k.allocatable(RESOURCE) == 8)
    after = kubelet.admit(one, syncing=True)
    assert after.containers["main"].ids == before.ids
    assert after.containers["main"].envs == before.envs
    assert len(plugin.allocations) == 1
    rest = kubelet.admit(asking(6, "q")).containers["main"].ids[RESOURCE]
    assert not set(rest) & set(before.ids[RESOURCE])


def test_after_a_restart_a_running_container_is_left_alone_though_the_plugin_is_away(ready):
    kubelet, _ = ready()
    one = asking(2)
    kubelet.admit(one)
    kubelet.restart()
    assert kubelet.admit(one, syncing=True).admitted


def test_after_a_reboot_a_pod_is_rejected_until_the_plugin_is_back(ready):
    kubelet, _ = ready()
    one = asking(2)
    kubelet.admit(one)
    kubelet.reboot()
    refused = kubelet.admit(one, syncing=True)
    assert refused.reason == "UnexpectedAdmissionError"
    assert f"no healthy devices present; cannot allocate unhealthy devices {RESOURCE}" in refused.message


@pytest.mark.parametrize("keep", [True, False])
def test_whether_a_finished_init_container_survives_a_restart_depends_on_the_version(ready, keep):
    kubelet, _ = ready(settings={"keep_finished_init": keep})
    one = pod("p", [container("main", {RESOURCE: 1})], init_containers=[container("init", {RESOURCE: 1})])
    kubelet.admit(one)
    kubelet.restart()
    assert kubelet.admit(one, syncing=True).admitted is keep


def test_ids_that_changed_while_the_node_was_down_fail_the_pod_that_held_them(ready, make_plugin):
    kubelet, _ = ready()
    one = asking(1)
    kubelet.admit(one)
    kubelet.reboot()
    make_plugin([device("other")]).register()
    kubelet.wait_for(lambda k: k.allocatable(RESOURCE) == 1)
    refused = kubelet.admit(one, syncing=True)
    assert "previously allocated devices are no longer healthy" in refused.message


def test_a_changed_request_of_a_known_pod_is_an_error(ready):
    kubelet, _ = ready()
    kubelet.admit(asking(1, "p") | {"metadata": {"name": "p", "uid": "u"}})
    refused = kubelet.admit(asking(2, "p") | {"metadata": {"name": "p", "uid": "u"}})
    assert "changed request for resource" in refused.message


def test_another_process_finds_what_the_last_one_knew(ready, stack, directory):
    from gpusim.cluster.kubelet import Kubelet

    kubelet, _ = ready()
    one = asking(2)
    kubelet.admit(one)
    kubelet.kill()
    second = stack.enter_context(Kubelet(directory))
    assert second.resources() == (RESOURCE,)
    assert second.holdings(one["metadata"]["uid"]) == kubelet_holdings(one, directory)
    assert second.admit(one, syncing=True).admitted  # the runtime still runs it


def kubelet_holdings(one, directory):
    held = read(directory).holdings
    return {h.container: {h.resource: h.ids} for h in held if h.uid == one["metadata"]["uid"]}


@pytest.mark.parametrize(
    "content", [b"", b"{}", b'{"Data":{},"Checksum":1}', b"\xff", b'{"gpusim":2,"checksum":0,"data":{}}']
)
def test_a_checkpoint_that_is_none_of_ours_is_noted_and_ignored(make_kubelet, directory, content):
    directory.mkdir()
    (directory / "kubelet_internal_checkpoint").write_bytes(content)
    kubelet = make_kubelet()
    assert kubelet.resources() == ()
    assert kubelet.events[0].kind == "checkpoint-unreadable"


def test_a_checkpoint_with_one_changed_byte_is_refused(tmp_path):
    write(tmp_path, Checkpoint((Holding("u", "c", RESOURCE, ("a",), b"x"),)))
    path = tmp_path / "kubelet_internal_checkpoint"
    path.write_bytes(path.read_bytes().replace(b'"c"', b'"d"'))
    with pytest.raises(CheckpointError, match="checksum"):
        read(tmp_path)


names = st.text(min_size=1, max_size=8)
holdings = st.builds(
    Holding, names, names, names, st.lists(names, max_size=3).map(tuple), st.binary(max_size=20)
)
tables = st.dictionaries(names, st.lists(names, max_size=3).map(lambda v: tuple(sorted(v))), max_size=3)


@given(st.lists(holdings, max_size=4), tables, tables)
def test_a_checkpoint_is_read_as_it_was_written(tmp_path_factory, held, registered, running):
    directory = tmp_path_factory.mktemp("checkpoint")
    written = Checkpoint(tuple(held), registered, running)
    write(directory, written)
    assert read(directory) == written
    assert [p.name for p in directory.iterdir()] == ["kubelet_internal_checkpoint"]


def test_nothing_is_admitted_by_a_kubelet_that_does_not_run(directory):
    from gpusim.cluster.kubelet import Kubelet

    with pytest.raises(GpusimError, match="not running"):
        Kubelet(directory).admit(asking(1))


def test_a_delayed_allocate_is_sent_in_the_end(ready):
    kubelet, plugin = ready()
    kubelet.faults.allocate_delay = 0.05
    assert kubelet.admit(asking(1)).admitted
    assert isinstance(plugin, FakePlugin)
    assert len(plugin.allocations) == 1
