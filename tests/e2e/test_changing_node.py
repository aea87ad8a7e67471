"""A tree that changes under the running daemon reaches kubelet, the annotation and the node's events.

A real daemon process on a served machine, which the test breaks: hang, reset, hot-plug, other drivers, other
tools, a driver that comes late or anew. What did not change keeps its ids (amd.md 10, 13; decisions 24, 27,
33; B17, B22, B25, B48).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from gpusim.cluster.exporter import Exporter
from gpusim.remote import RemoteMachine
from gpusim.testing.machines import BUSES

from ..devplugin.daemon.rig import NODE, until
from .test_kubelet_scenarios import GPU, REGISTER, Node

pytestmark = pytest.mark.daemon

BDFS = [f"0000:{bus}:00.0" for bus in BUSES]


class Changing(Node):
    """Eight MI355X in SPX whose daemon looks every second."""

    def __enter__(self) -> Changing:
        super().__enter__()
        self.remote = RemoteMachine(str(self.path / "machine.sock"))
        self.kubelet.start()
        return self

    def begin(self, *flags: str, count: int | None = 8, **env: str) -> Any:
        self.plugin = self.start("-pulse=1", "-v=2", *flags, env=env)
        if count is not None:
            self.listed(count)
            until(lambda: self.node_annotation(REGISTER))
        return self.plugin

    def ids(self, resource: str = GPU) -> dict[str, bool]:
        """kubelet's ids → healthy."""
        return {one.id: one.health == "Healthy" for one in self.kubelet.devices(resource).values()}

    def health(self) -> dict[str, bool]:
        """Registered id → healthy."""
        text = self.node_annotation(REGISTER) or "[]"
        return {entry["id"]: entry.get("health", False) for entry in json.loads(text)}

    def events(self, reason: str) -> list[dict[str, Any]]:
        return [event for event in self.store.list("events") if event["reason"] == reason]

    def well(self, healthy: int, listed: int = 8, resource: str = GPU) -> None:
        self.kubelet.wait_for(lambda k: (k.allocatable(resource), k.capacity(resource)) == (healthy, listed))


@pytest.fixture
def node() -> Iterator[Changing]:
    with Changing() as made:
        yield made


def test_a_gpu_that_hangs_is_taken_out_and_comes_back_with_the_same_ids(node: Changing) -> None:
    node.begin()
    before, registered = node.ids(), node.health()
    node.remote.hang(BDFS[2])
    node.well(7)
    assert node.ids() == before | {f"{BDFS[2]}#spx": False}
    until(lambda: sum(node.health().values()) == 7)
    assert node.health().keys() == registered.keys()
    (event,) = until(lambda: node.events("AMDGPUUnhealthy"))
    assert BDFS[2] in event["message"]
    assert "EIO" in event["message"]
    assert event["type"] == "Warning"
    assert event["involvedObject"]["kind"] == "Node"
    assert event["source"] == {"component": "amd-device-plugin", "host": NODE}
    node.remote.recover(BDFS[2])
    node.well(8)
    until(lambda: all(node.health().values()))
    assert node.ids() == before
    (event,) = until(lambda: node.events("AMDGPURecovered"))
    assert event["type"] == "Normal"


def test_a_gpu_in_reset_is_taken_out_and_keeps_its_resource(node: Changing) -> None:
    node.begin("-resource_naming_strategy=mixed", count=None)
    node.well(8, resource="amd.com/spx_nps1")
    node.remote.reset(BDFS[0])
    node.well(7, resource="amd.com/spx_nps1")
    node.remote.recover(BDFS[0])
    node.well(8, resource="amd.com/spx_nps1")
    assert node.kubelet.devices(GPU) == {}


def test_the_first_list_is_truthful(node: Changing) -> None:
    node.remote.hang(BDFS[0])
    node.begin(count=None)
    node.well(7)
    lists = [event.detail for event in node.kubelet.events if event.kind == "list"]
    assert lists[0]["devices"] == 8
    assert not node.ids()[f"{BDFS[0]}#spx"]
    until(lambda: sum(node.health().values()) == 7)
    assert node.events("AMDGPUUnhealthy") == []  # a baseline is no news


def test_what_the_exporter_says_counts_and_its_outage_is_said_once(node: Changing) -> None:
    socket = str(node.path / "x.sock")
    exporter = Exporter(socket)
    plugin = node.begin(AMD_METRICS_EXPORTER_SOCKET=socket)
    time.sleep(1.5)
    assert not plugin.said("metrics exporter")  # none is there, and nobody misses it
    exporter.start()
    try:
        for bdf in BDFS:
            exporter.set(bdf, "healthy")
        exporter.set(BDFS[1], "unhealthy")
        node.well(7)
        assert not node.ids()[f"{BDFS[1]}#spx"]
        until(lambda: node.events("AMDGPUUnhealthy"))
        exporter.stop(leave_socket=True)
        until(lambda: plugin.said("metrics exporter at"))
        time.sleep(2.5)
        node.well(7)  # what it said last stands
        assert sum("metrics exporter at" in line["event"] for line in plugin.lines()) == 1
        exporter.start()
        exporter.set(BDFS[1], "healthy")
        node.well(8)
    finally:
        exporter.stop()


def test_without_a_pulse_nobody_looks_and_nothing_is_unhealthy(node: Changing) -> None:
    node.remote.hang(BDFS[0])
    plugin = node.start("-pulse=0")
    node.listed(8)
    assert all(node.ids().values())
    assert plugin.end() == 0


def test_a_gpu_that_is_pulled_goes_missing_once_and_is_back_when_it_is_plugged_in(node: Changing) -> None:
    node.begin()
    before = node.ids()
    node.remote.remove(BDFS[3])
    node.well(7, 7)
    assert node.ids() == {name: True for name in before if not name.startswith(BDFS[3])}
    until(lambda: len(node.health()) == 7)
    until(lambda: node.events("AMDGPUMissing"))
    time.sleep(2.2)
    assert len(node.events("AMDGPUMissing")) == 1
    node.remote.add(BDFS[3])
    node.well(8)
    assert node.ids() == before
    until(lambda: node.events("AMDGPURecovered"))


@pytest.mark.parametrize("driver", ["", "vfio-pci"])
def test_a_gpu_that_leaves_the_driver_leaves_the_lists(node: Changing, driver: str) -> None:
    plugin = node.begin()
    node.remote.unbind(BDFS[0])
    if driver:
        node.remote.bind(BDFS[0], driver)
    node.well(7, 7)
    until(lambda: plugin.said(f"not offered: {BDFS[0]}"))
    if driver:
        node.remote.unbind(BDFS[0])
    node.remote.bind(BDFS[0])
    node.well(8)


def test_a_driver_that_comes_late_is_picked_up_without_a_restart(node: Changing) -> None:
    node.remote.unload()
    plugin = node.begin(count=None)
    until(lambda: plugin.said("no device to offer"))
    until(lambda: node.node_annotation(REGISTER) == "[]")
    assert node.names() == []
    node.remote.load()
    node.listed(8)
    until(lambda: len(node.health()) == 8)


def test_a_gpu_whose_probe_fails_is_left_out_until_it_works(node: Changing) -> None:
    node.remote.fail_probe(BDFS[7])
    node.remote.reload()
    node.begin(count=None)
    node.well(7, 7)
    node.remote.fail_probe(BDFS[7], False)
    node.remote.bind(BDFS[7])
    node.well(8)


def test_a_driver_reloaded_with_a_new_memory_mode_is_another_node(node: Changing) -> None:
    node.begin("-resource_naming_strategy=mixed", count=None)
    node.well(8, resource="amd.com/spx_nps1")
    gpus = {entry["custominfo"]["pciBDF"]: entry["id"] for entry in node.registered()}
    node.remote.write(f"/sys/bus/pci/devices/{BDFS[0]}/current_memory_partition", b"NPS2")
    node.remote.reload()
    node.well(16, 16, resource="amd.com/dpx_nps2")
    node.well(0, 0, resource="amd.com/spx_nps1")
    until(lambda: len(node.health()) == 16)
    entries = node.registered()
    assert {(entry["mode"], entry["devmem"], entry["devcore"]) for entry in entries} == {("dpx", 147456, 128)}
    for entry in entries:  # decision 10: the same serial, another function byte
        whole = gpus[entry["custominfo"]["pciBDF"]]
        assert (entry["id"][:2], entry["id"][4:]) == (whole[:2], whole[4:])


def test_a_switch_by_another_tool_changes_that_gpus_ids_and_no_others(node: Changing) -> None:
    node.begin()
    before = node.ids()
    node.remote.switch(BDFS[1], "QPX")
    node.well(11, 11)
    gone = {f"{BDFS[1]}#spx"}
    assert node.ids().keys() - before.keys() == {
        f"{BDFS[1]}#qpx",
        *(name for name in node.ids() if name.startswith("amdgpu_xcp")),
    }
    assert before.keys() - node.ids().keys() == gone
    until(lambda: len(node.health()) == 11)
    assert node.events("AMDGPUMissing") == []
    assert node.events("AMDGPUModeChangedInUse") == []  # nobody held it
    node.remote.switch(BDFS[1], "SPX")
    node.listed(8)
    assert node.ids() == before


def test_a_mode_that_changes_under_a_pod_is_told_once_before_the_registration_changes(node: Changing) -> None:
    node.begin()
    assert node.admit("holder", node.gpus(1)).admitted
    placed = node.registered()[1]
    bdf = placed["custominfo"]["pciBDF"]
    node.remote.switch(bdf, "CPX")
    (event,) = until(lambda: node.events("AMDGPUModeChangedInUse"))
    assert event["type"] == "Warning"
    assert "default/holder" in event["message"]
    assert "from spx to cpx" in event["message"]
    assert event["metadata"]["name"] == f"{NODE}.amdgpumodechangedinuse.{placed['id']}"
    assert event["metadata"]["namespace"] == "default"
    until(lambda: len(node.health()) == 15)
    assert node.plugin.said("from spx to cpx while in use by default/holder")
    assert node.pod("holder")["status"].get("phase") != "Failed"


def test_a_mode_that_changed_while_the_daemon_was_away_is_told_at_its_start(node: Changing) -> None:
    plugin = node.begin()
    assert node.admit("holder", node.gpus(0)).admitted
    assert plugin.end() == 0
    node.remote.switch(node.registered()[0]["custominfo"]["pciBDF"], "QPX")
    node.begin(count=None)
    until(lambda: node.events("AMDGPUModeChangedInUse"))
    until(lambda: len(node.health()) == 11)


def test_one_pulse_reaches_the_lists_of_every_resource(node: Changing) -> None:
    node.remote.switch(BDFS[1], "QPX")
    node.begin("-resource_naming_strategy=mixed", count=None)
    node.well(7, 7, resource="amd.com/spx_nps1")
    node.well(4, 4, resource="amd.com/qpx_nps1")
    for bdf in BDFS[:2]:
        node.remote.hang(bdf)
    node.well(6, 7, resource="amd.com/spx_nps1")
    node.well(0, 4, resource="amd.com/qpx_nps1")
    for bdf in BDFS[:2]:
        node.remote.recover(bdf)
    node.well(7, 7, resource="amd.com/spx_nps1")
    node.well(4, 4, resource="amd.com/qpx_nps1")


# The switch at the start


def test_idle_gpus_are_switched_before_the_first_list_and_used_ones_are_not(node: Changing) -> None:
    plugin = node.begin()
    assert node.admit("holder", node.gpus(0)).admitted
    held = node.registered()[0]
    assert plugin.end() == 0
    before = len(node.kubelet.events)
    plugin = node.begin(count=None, COMPUTE_PARTITION="qpx")
    node.well(29, 29)
    lists = [event.detail["devices"] for event in node.kubelet.events[before:] if event.kind == "list"]
    assert lists[0] == 29
    bdf = held["custominfo"]["pciBDF"]
    assert node.machine.gpu(bdf).mode == "SPX"
    until(lambda: plugin.said(f"compute partition of {bdf}: busy: stays spx, in use by pod default/holder"))
    assert sum("switched: from spx to qpx" in line["event"] for line in plugin.lines()) == 7
    assert plugin.said("operating mode: partition, compute partition: qpx")
    (event,) = until(lambda: node.events("AMDGPUSwitchRefused"))
    assert "pod default/holder" in event["message"]
    assert node.events("AMDGPUModeChangedInUse") == []
    until(lambda: held["id"] in node.health())


def test_the_node_annotation_is_stronger_than_the_environment(node: Changing) -> None:
    node.store.patch("nodes", NODE, {"metadata": {"annotations": {"hami.io/amd-compute-partition": "dpx"}}})
    node.begin(count=16, COMPUTE_PARTITION="cpx")
    assert {gpu.mode for gpu in node.machine.driver.gpus.values()} == {"DPX"}


def test_a_kfd_process_keeps_every_gpu_on_this_driver_and_the_daemon_starts(node: Changing) -> None:
    process = node.remote.process()
    node.remote.open("/dev/kfd", process)
    plugin = node.begin(COMPUTE_PARTITION="cpx")
    said = f"busy: stays spx, in use by KFD process {process.pid}"
    until(lambda: sum(line["event"].endswith(said) for line in plugin.lines()) >= 8)
    assert {gpu.mode for gpu in node.machine.driver.gpus.values()} == {"SPX"}
    events = until(
        lambda: len(node.events("AMDGPUSwitchRefused")) == 8 and node.events("AMDGPUSwitchRefused")
    )
    assert all(f"KFD process {process.pid}" in event["message"] for event in events)
    node.remote.exit(process)
    assert plugin.end() == 0
    node.begin(count=64, COMPUTE_PARTITION="cpx")


def test_in_cu_mode_no_gpu_is_switched(node: Changing) -> None:
    node.begin(count=80, COMPUTE_PARTITION="qpx", OPERATING_MODE="cu")
    assert {gpu.mode for gpu in node.machine.driver.gpus.values()} == {"SPX"}


def test_in_cu_mode_a_sick_gpu_takes_all_its_slots(node: Changing) -> None:
    node.begin(count=80, OPERATING_MODE="cu")
    node.remote.hang(BDFS[4])
    node.well(70, 80)
    assert {name for name, healthy in node.ids().items() if not healthy} == {
        f"{BDFS[4]}#{slot}" for slot in range(10)
    }
    node.remote.recover(BDFS[4])
    node.well(80, 80)
