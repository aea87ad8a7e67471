"""A sliced pod's VRAM limit, from Allocate to the kernel, on one served machine with a real daemon process.

Kubelet asks, the daemon answers, the pod's cgroup appears later, and what is in `dmem.max` is what the pod
was given: decisions 23, 29, 30 and 31; amd.md 7; kernel.md 4 and 5.
"""

from __future__ import annotations

import errno
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from gpusim.cluster.podcgroups import ROOT, PodGroups, create, remove
from gpusim.cluster.pods import Placed, container, place, pod
from gpusim.machine import Machine
from gpusim.remote import RemoteMachine
from gpusim.serve import serve
from gpusim.spec import NodeSpec
from gpusim.testing.machines import BUSES
from gpusim.testing.machines import node as spec

from ..devplugin.daemon.rig import NODE, Plugin, until
from .test_kubelet_scenarios import GPU, Node

pytestmark = pytest.mark.daemon

GIB = 1 << 30
BDFS = [f"0000:{bus}:00.0" for bus in BUSES]
HOOK = "/usr/local/vgpu/libamvgpu.so"


class Slices(Node):
    """A node in cu mode whose pods' cgroups the test makes."""

    def __init__(self, what: NodeSpec | None = None) -> None:
        super().__init__(mode="cu")
        if what is not None:
            self.machine = Machine(what)
            self.machine.mkdir("/usr/local/vgpu")
            self.machine.put(HOOK, b"\x7fELF")
            self.server_of_machine = serve(self.machine, str(self.path / "machine.sock"))
        self.groups: dict[str, PodGroups] = {}

    def __enter__(self) -> Slices:
        super().__enter__()
        self.remote = RemoteMachine(str(self.path / "machine.sock"))
        self.kubelet.start()
        self.plugin = self.launch()
        return self

    def launch(self, *flags: str) -> Plugin:
        plugin = self.start(*flags)
        self.kubelet.wait_for(lambda k: k.allocatable(GPU) == 80)
        return plugin

    def slices(self, *wanted: tuple[int, int]) -> list[Placed]:
        """One device each: (index of the GPU by address, GiB)."""
        known = {one["custominfo"]["pciBDF"]: one for one in self.registered()}
        return [
            Placed(known[BDFS[gpu]]["id"], known[BDFS[gpu]]["type"], gib * 1024, 16) for gpu, gib in wanted
        ]

    def bind(
        self, name: str, *slots: list[Placed], order: list[int] | None = None, **more: str
    ) -> dict[str, Any]:
        """A pod whose containers ask for the slots in that order, and for `more` each; scheduled."""
        sizes = [len(slots[i]) for i in (order or range(len(slots)))]
        made = pod(name, [container(f"c{i}", {GPU: size, **more}) for i, size in enumerate(sizes)])
        self.store.create("pods", made)
        return place(self.store, name, NODE, slots)

    def run(self, name: str, *slots: list[Placed], order: list[int] | None = None, **more: str) -> None:
        admission = self.kubelet.admit(self.bind(name, *slots, order=order, **more))
        assert admission.admitted, admission.message

    def begin(self, name: str) -> PodGroups:
        self.groups[name] = create(self.remote, self.pod(name))
        return self.groups[name]

    def limit(self, name: str, gpu: int) -> str | None:
        path = f"{ROOT}{self.groups[name].path}/dmem.max"
        lines = (line.split() for line in self.remote.read(path).decode().splitlines())
        return dict(lines).get(f"drm/{BDFS[gpu]}/vram")

    def in_time(self, name: str, **gib: int) -> None:
        """The limits by GPU (``g0=4``) stand within a second of now."""
        wanted = {int(gpu[1:]): str(amount * GIB) for gpu, amount in gib.items()}
        until(
            lambda: all(self.limit(name, gpu) == amount for gpu, amount in wanted.items()),
            seconds=1.0,
            why=lambda: f"{[self.limit(name, gpu) for gpu in wanted]} after a second, not {wanted}",
        )

    def occupy(self, name: str, gpu: int, size: int) -> tuple[Any, Any]:
        process = self.remote.process(cgroup=self.groups[name].containers["c0"])
        minor = next(
            int(entry.removeprefix("renderD"))
            for entry in self.remote.list(f"/sys/bus/pci/devices/{BDFS[gpu]}/drm")
            if entry.startswith("renderD")
        )
        self.remote.open(f"/dev/dri/renderD{minor}", process)
        return process, self.remote.allocate_vram(process, BDFS[gpu], size)


@pytest.fixture
def node() -> Iterator[Slices]:
    with Slices() as made:
        yield made


@pytest.mark.parametrize("late", [0.0, 2.5])
def test_the_limit_stands_within_a_second_of_the_cgroup(node: Slices, late: float) -> None:
    begun = time.monotonic()
    node.run("p", node.slices((0, 8), (3, 4)))
    assert time.monotonic() - begun < 5
    time.sleep(late)
    node.begin("p")
    node.in_time("p", g0=8, g3=4)
    assert node.limit("p", 1) == "max"
    _, held = node.occupy("p", 0, 8 * GIB)
    with pytest.raises(OSError) as caught:
        node.occupy("p", 0, 4096)
    assert caught.value.errno == errno.ENOMEM
    node.remote.free(held)


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1], [1, 2, 0]])
def test_the_limit_is_the_sum_in_whatever_order_containers_are_admitted(
    node: Slices, order: list[int]
) -> None:
    slots = [
        node.slices((0, 8)),
        node.slices((0, 2), (1, 5)),
        node.slices((1, 1), (2, 3), (0, 4)),
    ]
    node.run("p", *slots, order=order)
    node.begin("p")
    node.in_time("p", g0=14, g1=6, g2=3)


def test_a_later_containers_share_is_added_and_pods_are_kept_apart(node: Slices) -> None:
    node.run("first", node.slices((0, 8)))
    node.run("second", node.slices((0, 16)))
    node.begin("first")
    node.begin("second")
    node.in_time("first", g0=8)
    node.in_time("second", g0=16)


def test_after_a_kill_the_next_life_makes_the_limits_anew(node: Slices) -> None:
    node.run("before", node.slices((0, 8)), node.slices((0, 2)))
    node.run("while", node.slices((1, 3)))
    node.begin("before")
    node.in_time("before", g0=10)
    assert node.plugin.end(signal.SIGKILL) != 0
    group = f"{ROOT}{node.groups['before'].path}/dmem.max"
    node.remote.write(group, f"drm/{BDFS[0]}/vram max\n".encode())
    node.begin("while")
    again = node.launch()
    until(lambda: node.limit("before", 0) == str(10 * GIB))
    until(lambda: node.limit("while", 1) == str(3 * GIB))
    assert not again.said("cannot")


def test_a_limit_below_use_is_reported_retried_and_holds_once_memory_is_freed(node: Slices) -> None:
    node.bind("p", node.slices((0, 8)))
    node.begin("p")  # the cgroup is early, and so is its memory
    _, held = node.occupy("p", 0, 20 * GIB)
    assert node.kubelet.admit(node.pod("p")).admitted

    def events() -> list[dict[str, Any]]:
        return [e for e in node.store.list("events") if e["reason"] == "MemoryCapNotInForce"]

    until(events)
    time.sleep(1.5)
    assert node.limit("p", 0) == "max"
    assert sum("the kernel keeps max" in line["event"] for line in node.plugin.lines()) == 1
    node.remote.free(held)
    until(lambda: node.limit("p", 0) == str(8 * GIB))
    until(lambda: node.plugin.said(f"limited to drm/{BDFS[0]}/vram {8 * GIB}"))
    (event,) = events()
    assert event["involvedObject"]["uid"] == node.pod("p")["metadata"]["uid"]
    assert event["metadata"]["name"].startswith(f"{NODE}.memorycapnotinforce.")


@pytest.mark.parametrize(
    ("more", "where"),
    [
        ({}, "/kubepods.slice/kubepods-besteffort.slice/"),
        ({"cpu": "1"}, "/kubepods.slice/kubepods-burstable.slice/"),
        ({"cpu": "1", "memory": "1Gi"}, "/kubepods.slice/kubepods-pod"),
    ],
)
def test_pods_of_every_quality_of_service_are_found(node: Slices, more: dict[str, str], where: str) -> None:
    node.run("p", node.slices((0, 8)), **more)
    assert node.begin("p").path.startswith(where)
    node.in_time("p", g0=8)


def test_whole_gpus_are_not_limited_beside_slices(node: Slices) -> None:
    node.run("whole", node.gpus(2))
    node.run("slice", node.slices((0, 8)))
    node.begin("whole")
    node.begin("slice")
    node.in_time("slice", g0=8)
    text = node.remote.read(f"{ROOT}{node.groups['whole'].path}/dmem.max").decode()
    assert {line.split()[1] for line in text.splitlines()} == {"max"}


def test_a_pods_end_is_no_news(node: Slices) -> None:
    node.run("p", node.slices((0, 8)))
    node.begin("p")
    node.in_time("p", g0=8)
    remove(node.remote, node.groups["p"])
    node.store.delete("pods", "p", grace_seconds=0)
    time.sleep(1.0)
    assert not [line for line in node.plugin.lines() if line["level"] not in {"info"}]


def test_where_dmem_limits_a_slice_a_missing_hook_is_left_out(node: Slices) -> None:
    node.remote.unlink(HOOK)
    node.run("p", node.slices((0, 8)))
    node.begin("p")
    node.in_time("p", g0=8)
    edits = node.kubelet.admissions[node.pod("p")["metadata"]["uid"]].containers["c0"]
    assert "LD_AUDIT" not in edits.envs
    assert not [mount for mount in edits.mounts if "libamvgpu" in str(mount)]


@pytest.mark.parametrize(
    ("what", "flags", "why"),
    [
        (spec(kernel="6.14", driver="in-tree"), (), "no GPU has a region in dmem.capacity"),
        (spec(kernel="6.8.0-136-generic"), (), "cgroup.controllers does not list dmem"),
        (spec(), ("-dmem_backend=false",), "switched off by -dmem_backend=false"),
        (spec(cgroup_driver="cgroupfs"), (), "kubepods.slice: ENOENT"),
    ],
    ids=["in-tree 6.14", "6.8", "switched off", "cgroupfs"],
)
def test_where_dmem_is_off_one_line_says_why_and_all_else_works(
    what: NodeSpec, flags: tuple[str, ...], why: str
) -> None:
    class Without(Slices):
        def launch(self, *more: str) -> Plugin:
            return super().launch(*flags, *more)

    with Without(what) as node:
        until(lambda: node.plugin.said("dmem: off: "))
        node.run("p", node.slices((0, 8)))
        edits = node.kubelet.admissions[node.pod("p")["metadata"]["uid"]].containers["c0"]
        assert edits.envs["HIP_DEVICE_MEMORY_LIMIT_0"] == "8192m"
        assert "LD_AUDIT" in edits.envs
        node.begin("p")
        time.sleep(1.0)
        if why.startswith("switched"):
            assert node.limit("p", 0) == "max"
        lines = [line["event"] for line in node.plugin.lines() if "dmem" in line["event"]]
        assert len(lines) == 1
        assert why in lines[0]
        node.remote.unlink(HOOK)
        refused = node.kubelet.admit(node.bind("q", node.slices((1, 8))))
        assert not refused.admitted
        assert "dmem does not limit the GPU" in refused.message
        assert node.plugin.process.poll() is None
