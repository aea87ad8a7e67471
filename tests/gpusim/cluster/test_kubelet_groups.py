"""A kubelet with a machine: admitted pods have cgroups and processes there, and leave nothing behind."""

from __future__ import annotations

import errno

import pytest

from devplugin.kubeletapi import api_pb2 as api
from gpusim.cluster.podcgroups import ROOT, Layout, pod_path
from gpusim.cluster.pods import container, pod
from gpusim.machine import Machine
from gpusim.remote import RemoteMachine
from gpusim.serve import serve
from gpusim.testing.machines import node

from .fake_plugin import RESOURCE, devices, eventually

NODE = "node-1"
RENDER = "/dev/dri/renderD128"


def answer(ids):
    """A container with /dev/kfd and one render node, as our plugin gives them."""
    specs = [
        api.DeviceSpec(container_path=path, host_path=path, permissions="rw") for path in ("/dev/kfd", RENDER)
    ]
    return api.AllocateResponse(container_responses=[api.ContainerAllocateResponse(devices=specs)])


@pytest.fixture(params=[Layout(), Layout("cgroupfs", "cri-o"), Layout(cgroup_root="/kubelet")], ids=str)
def layout(request):
    return request.param


@pytest.fixture
def world(server, make_kubelet, make_plugin, stack, tmp_path, layout):
    """(store, kubelet, machine seen by a client)."""
    machine = Machine(node(count=2, kernel="7.0", driver="in-tree", cgroup_driver=layout.driver))
    stack.enter_context(serve(machine, str(tmp_path / "m")))
    remote = RemoteMachine(str(tmp_path / "m"))
    stack.callback(remote.disconnect)
    kubelet = make_kubelet(api=server.url, machine=remote, layout=layout)
    plugin = make_plugin(devices(4))
    plugin.on_allocate = answer
    plugin.register()
    assert eventually(lambda: kubelet.allocatable(RESOURCE) == 4)
    return server.store, kubelet, remote


def bound(store, name="p", containers=("main",), **more):
    specs = [container(each, {RESOURCE: 1}) for each in containers]
    return store.create("pods", pod(name, specs, node=NODE, **more))


def running(store, name="p"):
    return store.get("pods", name)["status"].get("phase") == "Running"


def processes(machine):
    return machine.describe()["processes"]


def test_each_container_of_a_running_pod_has_a_process_in_its_own_group(world, layout):
    store, _, machine = world
    made = bound(store, containers=("main", "side"))
    assert eventually(lambda: running(store))
    path = pod_path(made, layout)
    found = processes(machine)
    assert len(found) == 3  # and the sandbox's
    statuses = {s["name"]: s["containerID"] for s in store.get("pods", "p")["status"]["containerStatuses"]}
    for name in ("main", "side"):
        scheme, _, id_ = statuses[name].partition("://")
        assert scheme == layout.runtime
        group = layout.container(path, id_)
        (one,) = [p for p in found if p["cgroup"] == group]
        assert machine.read(f"{ROOT}{group}/cgroup.procs") == f"{one['pid']}\n".encode()
        machine.write(f"{ROOT}{group}/dmem.max", b"drm/0000:75:00.0/vram 1G")


def test_a_containers_process_may_use_what_it_was_given_and_no_other_gpu(world, layout):
    store, _, machine = world
    bound(store)
    assert eventually(lambda: running(store))
    drm = [[line for line in p["devices"] if line.startswith("c 226:")] for p in processes(machine)]
    assert sorted(drm) == [[], ["c 226:128 rw"]]  # the sandbox has none
    kfd = machine.read("/sys/class/kfd/kfd/dev").decode().strip()
    assert [f"c {kfd} rw" in p["devices"] for p in processes(machine)].count(True) == 1


@pytest.mark.parametrize("end", ["delete", "restart-and-delete", "delete-while-away", "reboot"])
def test_nothing_is_left_of_a_pod_that_is_gone(world, layout, end):
    store, kubelet, machine = world
    made = bound(store)
    assert eventually(lambda: running(store))
    group = f"{ROOT}{pod_path(made, layout)}"
    assert machine.stat(group)
    if end == "reboot":
        kubelet.reboot()
    elif end == "delete-while-away":
        kubelet.kill()
        store.delete("pods", "p", grace_seconds=0)
        assert len(processes(machine)) == 2  # containers outlive a kubelet
        kubelet.start()
    else:
        if end == "restart-and-delete":
            kubelet.restart()
            assert len(processes(machine)) == 2
        store.delete("pods", "p", grace_seconds=0)
    assert eventually(lambda: not processes(machine))

    def gone():
        try:
            machine.stat(group)
        except OSError as error:
            return error.errno == errno.ENOENT
        return False

    assert eventually(gone)
    assert machine.stat(f"{ROOT}{layout.kubepods}")  # the group of all pods stays
