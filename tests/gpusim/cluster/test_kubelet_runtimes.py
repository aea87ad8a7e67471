"""Pods of a RuntimeClass on a node with NPUs: what its handler makes for a container, and takes back."""

from __future__ import annotations

from functools import partial

import pytest

from devplugin.kubeletapi import api_pb2 as api
from gpusim import Machine, load
from gpusim.cluster.ascendruntime import AscendRuntime
from gpusim.cluster.pods import container, pod
from gpusim.remote import RemoteMachine
from gpusim.serve import serve

from .fake_plugin import RESOURCE, devices
from .fake_plugin import eventually as soon

eventually = partial(soon, timeout=30.0)
"""A container start that failed is tried once a second."""
NODE = "node-1"
CLASS = "ascend"
COMMON = ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")


class World:
    """A node with two 310P3, a kubelet on it (of this process, or through a socket), and a plugin."""

    def __init__(self, store, kubelet, plugin, machine, runtime):
        self.store, self.kubelet, self.plugin = store, kubelet, plugin
        self.machine, self.runtime = machine, runtime
        self.envs = {}
        plugin.on_allocate = self.answer

    def answer(self, ids):
        made = api.ContainerAllocateResponse(envs=self.envs)
        return api.AllocateResponse(container_responses=[made])

    def bound(self, name, template="", phy="0", **more):
        """A pod whose container gets a chip, or a slice of it."""
        self.envs = {"ASCEND_VISIBLE_DEVICES": phy} | ({"ASCEND_VNPU_SPECS": template} if template else {})
        one = pod(name, [container("main", {RESOURCE: 1})], node=NODE, **more)
        one["spec"]["runtimeClassName"] = CLASS
        return self.store.create("pods", one)

    def run(self, name, template="", phy="0", **more):
        made = self.bound(name, template, phy, **more)
        assert eventually(lambda: self.phase(name) == "Running"), self.status(name)
        return made

    def status(self, name):
        return self.store.get("pods", name).get("status") or {}

    def phase(self, name):
        return self.status(name).get("phase")

    def waiting(self, name, of="main"):
        statuses = self.status(name)
        for one in (statuses.get("initContainerStatuses") or []) + (statuses.get("containerStatuses") or []):
            if one["name"] == of:
                return one["state"].get("waiting")
        return None

    def end(self, name):
        self.store.delete("pods", name)
        assert eventually(lambda: name not in self.admitted())

    def admitted(self):
        return {one["metadata"]["name"] for one in self.kubelet._living().pods.values()}

    def vnpus(self):
        """(number, template, whether a container has it) of all slices."""
        return [
            (v.number, v.template.name, v.container is not None)
            for npu in self.machine.npus
            for v in npu.vnpus.values()
        ]

    def may_open(self, path):
        """How many processes may open a device node."""
        opened = 0
        for one in self.machine.describe()["processes"]:
            try:
                process = self.machine.processes.get(one["pid"])
                self.machine.close(self.machine.open(path, process))
                opened += 1
            except PermissionError:
                continue
        return opened


@pytest.fixture(params=["in this process", "served"])
def world(request, server, make_kubelet, make_plugin, stack, tmp_path):
    machine = seen = Machine(load("ascend/310p3"))
    if request.param == "served":
        stack.enter_context(serve(machine, str(tmp_path / "m")))
        seen = RemoteMachine(str(tmp_path / "m"))
        stack.callback(seen.disconnect)
    runtime = AscendRuntime(seen)
    kubelet = make_kubelet(api=server.url, machine=seen, runtimes={CLASS: runtime})
    plugin = make_plugin(devices(8))
    plugin.register()
    assert eventually(lambda: kubelet.allocatable(RESOURCE) == 8)
    return World(server.store, kubelet, plugin, machine, runtime)


def test_a_container_has_its_slice_and_the_slice_goes_with_it(world):
    world.run("p", "vir02")
    assert world.vnpus() == [(100, "vir02", True)]
    for path in ("/dev/vdavinci100", *COMMON):
        assert world.may_open(path) == 1
    assert world.may_open("/dev/davinci0") == 0
    world.end("p")
    assert world.vnpus() == []
    assert "vdavinci100" not in world.machine.list("/dev")


def test_a_container_of_whole_cards_may_open_them_and_no_others(world):
    world.run("p", phy="1")
    assert [world.may_open(path) for path in ("/dev/davinci1", "/dev/davinci0", *COMMON)] == [1, 0, 1, 1, 1]


def test_g3_a_slice_left_behind_by_a_failed_create_keeps_the_next_from_starting(world):
    """Field report G row 3, word by word."""
    world.run("first", "vir02")
    world.runtime.faults.failing, world.runtime.faults.leaves_vnpu = 1, True
    made = world.bound("second", "vir04")
    needed = "check aicore num failed, phy_id:0, core_need:4, used:6, total:8"
    assert eventually(lambda: needed in str(world.waiting("second")))
    assert world.waiting("second")["reason"] == "RunContainerError"
    assert world.phase("second") == "Pending"
    assert world.vnpus() == [(100, "vir02", True), (101, "vir04", False)]
    assert world.kubelet.holdings(made["metadata"]["uid"])["main"]  # its devices stay its own
    # Somebody sweeps the idle one, and the next try of the kubelet succeeds.
    sweep = "set -t destroy-vnpu -i 4 -c 0 -v 101"
    assert b": OK" in world.machine.run(["npu-smi", *sweep.split()]).stdout
    assert eventually(lambda: world.phase("second") == "Running")
    assert world.vnpus() == [(100, "vir02", True), (101, "vir04", True)]
    world.end("second")
    assert world.vnpus() == [(100, "vir02", True)]


def test_a_failed_create_leaves_nothing_behind_when_the_runtime_cleans_up(world):
    world.runtime.faults.failing = 1
    world.bound("p", "vir04")
    assert eventually(lambda: world.phase("p") == "Running")
    assert world.vnpus() == [(100, "vir04", True)]
    failures = [e for e in world.kubelet.events if e.kind == "runtime-error"]
    assert len(failures) == 1 and "OCI runtime create failed" in failures[0].detail["why"]


@pytest.mark.parametrize(
    ("templates", "needed"),
    [
        (["vir04"], "check aicpu num failed, phy_id:1, cpu_need:4, used:4, total:7"),
        (["vir02", "vir02", "vir01"], "check aicore num failed, phy_id:1, core_need:4, used:5, total:8"),
    ],
)
def test_what_a_chip_has_not_got_left_fails_the_container_with_the_numbers(world, templates, needed):
    for number, template in enumerate(templates):
        world.run(f"p{number}", template, phy="1")
    world.bound("late", "vir04", phy="1")
    assert eventually(lambda: needed in str(world.waiting("late")))
    world.end("p0")
    assert eventually(lambda: world.phase("late") == "Running")


def test_g11_without_the_runtime_class_a_container_gets_no_npu(world):
    """Field report G row 11: the plugin's variables alone do nothing."""
    world.envs = {"ASCEND_VISIBLE_DEVICES": "0", "ASCEND_VNPU_SPECS": "vir02"}
    world.store.create("pods", pod("p", [container("main", {RESOURCE: 1})], node=NODE))
    assert eventually(lambda: world.phase("p") == "Running")
    assert world.vnpus() == []
    assert [world.may_open(path) for path in ("/dev/davinci0", *COMMON)] == [0, 0, 0, 0]


def test_a_class_without_a_handler_on_this_node_keeps_the_sandbox_from_being_made(world):
    one = pod("p", [container("main", {RESOURCE: 1})], node=NODE)
    one["spec"]["runtimeClassName"] = "kata"
    world.store.create("pods", one)
    assert eventually(lambda: world.waiting("p") == {"reason": "ContainerCreating"})
    assert world.machine.describe()["processes"] == []
    (told,) = {e.detail["why"] for e in world.kubelet.events if e.kind == "runtime-error"}
    assert told == 'failed to get sandbox runtime: no runtime for "kata" is configured'


def test_what_runs_is_left_alone_while_its_neighbour_is_tried_again(world):
    world.envs = {"ASCEND_VISIBLE_DEVICES": "0", "ASCEND_VNPU_SPECS": "vir02"}
    specs = [container(name, {RESOURCE: 1}) for name in ("a", "b", "e", "c")]
    one = pod("p", specs, node=NODE)
    one["spec"]["runtimeClassName"] = CLASS
    world.store.create("pods", one)
    assert eventually(lambda: "check aicpu num failed" in str(world.waiting("p", "c")))
    running = world.machine.describe()["processes"]
    assert len(running) == 4  # three containers and the sandbox
    assert world.waiting("p", "a") is None
    tries = len([e for e in world.kubelet.events if e.kind == "runtime-error"])
    assert eventually(lambda: len([e for e in world.kubelet.events if e.kind == "runtime-error"]) > tries)
    assert world.machine.describe()["processes"] == running
    assert len(world.vnpus()) == 3


def test_an_init_containers_slice_is_free_before_the_next_container_starts(world):
    world.envs = {"ASCEND_VISIBLE_DEVICES": "0", "ASCEND_VNPU_SPECS": "vir04"}
    made = [container(name, {RESOURCE: 1}) for name in ("one", "two", "three")]
    one = pod("p", [container("main", {RESOURCE: 1})], node=NODE, init_containers=made)
    one["spec"]["runtimeClassName"] = CLASS
    world.store.create("pods", one)
    assert eventually(lambda: world.phase("p") == "Running")
    assert world.vnpus() == [(100, "vir04", True)]


def test_containers_wait_for_an_init_container_that_cannot_start(world):
    world.envs = {"ASCEND_VISIBLE_DEVICES": "0", "ASCEND_VNPU_SPECS": "vir04"}
    world.runtime.faults.failing = 3
    made = [container("first", {RESOURCE: 1})]
    one = pod("p", [container("main", {RESOURCE: 1})], node=NODE, init_containers=made)
    one["spec"]["runtimeClassName"] = CLASS
    world.store.create("pods", one)
    assert eventually(lambda: world.waiting("p") == {"reason": "PodInitializing"})
    assert world.waiting("p", "first")["reason"] == "RunContainerError"
    assert eventually(lambda: world.phase("p") == "Running")
    assert len(world.machine.describe()["processes"]) == 2


def test_the_pods_own_variable_wins_over_the_plugins(world):
    """Kubelet appends the pod's variables to the plugins': what a user names is what he gets."""
    world.envs = {"ASCEND_VISIBLE_DEVICES": "0"}
    spec = container("main", {RESOURCE: 1}) | {"env": [{"name": "ASCEND_VISIBLE_DEVICES", "value": "1"}]}
    one = pod("p", [spec], node=NODE)
    one["spec"]["runtimeClassName"] = CLASS
    world.store.create("pods", one)
    assert eventually(lambda: world.phase("p") == "Running")
    assert [world.may_open(path) for path in ("/dev/davinci0", "/dev/davinci1")] == [0, 1]


def test_a_restarted_kubelet_and_runtime_end_what_their_predecessors_began(world):
    world.run("p", "vir02")
    world.run("q", "vir04")
    world.runtime.given.clear()  # as a new process
    world.kubelet.kill()
    world.store.delete("pods", "q")
    world.kubelet.start()
    assert eventually(lambda: world.vnpus() == [(100, "vir02", True)])
    world.end("p")
    assert world.vnpus() == []


def test_after_a_reboot_no_slice_of_a_container_is_left(world):
    world.run("p", "vir02")
    idle = world.machine.npus.create(world.machine.npus.phy(1), "vir01").number
    world.kubelet.kill()
    world.store.delete("pods", "p")
    world.kubelet.reboot()
    assert world.vnpus() == [(idle, "vir01", False)]


def test_a_node_with_npus_has_the_handler_installed_and_another_has_none():
    from gpusim.cluster.containerruntimes import installed

    assert list(installed(Machine(load("ascend/910b4")))) == [CLASS]
    assert installed(Machine(load("mi210/two-hives"))) == {}
