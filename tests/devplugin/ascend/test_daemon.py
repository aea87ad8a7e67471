"""The real process on a simulated Ascend node: F.1 P25 to P31, G 2, 4, 13; A.1's boot and its words."""

from __future__ import annotations

import asyncio
import re
import signal
import time
from collections.abc import Iterator
from typing import Any, cast

import pytest

from devplugin.ascend.offer import offers
from devplugin.ascend.vendor import Ascend
from devplugin.kubelet.service import Board, Service
from gpusim.machine import Machine

from ..asked import Asked
from ..daemon.rig import NODE, Plugin, Rig, until
from ..daemon.simulated import SimulatedRig
from .nodes import CONFIG, chosen, look, node, some

pytestmark = pytest.mark.daemon

RESOURCE = "huawei.com/Ascend910B4"
REGISTER = "hami.io/node-register-Ascend910B4"
HANDSHAKE = "hami.io/node-handshake-Ascend910B4"
DOWN = "dcmi module initialize failed. ret is -8005\n"


class AscendRig(SimulatedRig):
    """A cluster of one Ascend node."""

    program, register = "ascend_device_plugin", REGISTER

    def begin(self, *flags: str, node_config: str = "nodes: []", **env: str) -> Plugin:
        (self.path / "node-config.yaml").write_text(node_config)
        words = ["--config_file", str(CONFIG), "--node_config_file", str(self.path / "node-config.yaml")]
        return self.start(*words, "--v=4", *flags, env=env)

    def lists(self) -> list[tuple[int, int]]:
        """(devices, healthy ones) of every list kubelet got."""
        return [
            (event.detail["devices"], event.detail["healthy"])
            for event in self.kubelet.events
            if event.kind == "list"
        ]


@pytest.fixture
def rig() -> Iterator[AscendRig]:
    with AscendRig() as made:
        yield made


def listed(rig: Rig, healthy: int, capacity: int | None = None) -> bool:
    wanted = (healthy, healthy if capacity is None else capacity)
    return rig.kubelet.wait_for(lambda k: (k.allocatable(RESOURCE), k.capacity(RESOURCE)) == wanted)


def test_the_charts_command_line_registers_offers_and_says_the_mode(rig: AscendRig) -> None:
    rig.serve(node("910b4"))
    rig.kubelet.start()
    plugin = rig.begin()
    assert listed(rig, 8 * 4)
    until(lambda: rig.node_annotation(HANDSHAKE))
    assert [entry["id"] for entry in rig.registered()] == [npu.uuid for npu in rig.machine.npus]
    assert rig.node_annotation("hami-vnpu-core") == "false"
    assert re.fullmatch(r"Reported_\d{4}\.\d\d\.\d\d \d\d:\d\d:\d\d", rig.node_annotation(HANDSHAKE) or "")
    assert {device.numa for device in rig.kubelet.devices(RESOURCE).values()} == {()}
    status = rig.store.get("nodes", NODE).get("status") or {}
    assert not any(name.endswith(("-memory", "-core")) for name in status.get("capacity") or {})
    until(lambda: plugin.said("operating mode: template"))
    (connected,) = (event for event in rig.kubelet.events if event.kind == "connected")
    assert connected.detail["preferred"] is False


@pytest.mark.parametrize("left", ["Deleted_2026-05-07 10:00:00", "Requesting_2026.05.07 10:00:00", "what?"])
def test_b37_whatever_stands_in_the_handshake_is_reported_over(rig: AscendRig, left: str) -> None:
    rig.store.patch("nodes", NODE, {"metadata": {"annotations": {HANDSHAKE: left, "other": "stays"}}})
    rig.serve(some(1))
    rig.begin()
    until(lambda: (rig.node_annotation(HANDSHAKE) or "").startswith("Reported_"))
    assert len(rig.registered()) == 1
    assert rig.node_annotation("other") == "stays"


def test_p25_cards_that_were_ill_at_the_start_are_offered_when_they_are_well(rig: AscendRig) -> None:
    machine = rig.serve(some(4))
    for phy in range(4):
        machine.npu_health(phy, "Alarm")
    rig.kubelet.start()
    rig.begin("-pulse=1")
    assert listed(rig, 0, 16)
    until(lambda: len(rig.registered()) == 4)
    assert not any("health" in entry for entry in rig.registered())
    for phy in range(4):
        machine.npu_health(phy, "OK")
    assert listed(rig, 16)
    until(lambda: all(entry.get("health") for entry in rig.registered()))
    assert rig.lists()[-1] == (16, 16)


def test_p26_cards_that_come_later_are_offered_too(rig: AscendRig) -> None:
    machine = rig.serve(some(2))
    rig.kubelet.start()
    rig.begin("-pulse=1")
    assert listed(rig, 8)
    assert rig.server_of_node is not None
    with rig.server_of_node.lock:
        machine.rewind(some(4))
    assert listed(rig, 16)
    until(lambda: len(rig.registered()) == 4)


def test_p27_in_the_steady_state_one_list_is_sent(rig: AscendRig) -> None:
    machine = Asked(node("910b4"))
    asked = machine.commands
    rig.serve(cast("Machine", machine))
    rig.kubelet.start()
    rig.begin("-pulse=1")
    assert listed(rig, 32)
    before = asked.count("info -m")
    until(lambda: asked.count("info -m") >= before + 2)
    assert rig.lists() == [(32, 32)]
    assert asked.count("info -t board -i 0 -c 0") == 1


def test_p28_a_change_is_registered_though_nobody_reads_the_list(rig: AscendRig) -> None:
    machine = rig.serve(some(2))
    rig.begin("-pulse=1")  # there is no kubelet
    until(lambda: all(entry.get("health") for entry in rig.registered()) and rig.registered())
    first = rig.node_annotation(HANDSHAKE)
    machine.npu_health(1, "Alarm")
    until(lambda: [entry.get("health") for entry in rig.registered()] == [True, None])
    until(lambda: rig.node_annotation(HANDSHAKE) != first)


@pytest.mark.parametrize("lists", [1, 2])
def test_p29_a_list_that_cannot_be_sent_ends_the_stream_with_that_error(lists: int) -> None:
    async def go() -> None:
        inventory = look(some(2))
        board = Board(offers(inventory, chosen())[RESOURCE])
        service = Service(board, _no_prefer, _no_allocate, lambda: None)
        stream = service.ListAndWatch(None, None)
        await anext(stream)
        if lists == 2:
            board.publish(offers(inventory, chosen(count=2))[RESOURCE])
            await anext(stream)
        with pytest.raises(ConnectionError, match=r"^peer is gone$"):
            await stream.athrow(ConnectionError("peer is gone"))  # type: ignore[attr-defined]
        assert service.streams == 0

    asyncio.run(go())


@pytest.mark.parametrize("sent", [0, 1])
def test_p29_a_cancelled_stream_ends_without_another_list(sent: int) -> None:
    async def go() -> None:
        board = Board(offers(look(some(2)), chosen())[RESOURCE])
        service = Service(board, _no_prefer, _no_allocate, lambda: None)
        got: list[Any] = []

        async def read() -> None:
            async for message in service.ListAndWatch(None, None):
                got.append(message)  # noqa: PERF401  the stream has no end of its own

        task = asyncio.create_task(read())
        while len(got) < sent:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(got) == sent
        assert service.streams == 0

    asyncio.run(go())


def test_p31_five_lives_one_after_the_other_leave_no_socket(rig: AscendRig) -> None:
    rig.serve(some(1))
    rig.kubelet.start()
    for _ in range(5):
        plugin = rig.begin()
        assert listed(rig, 4)
        assert len(rig.names()) == 1
        assert plugin.end() == 0
        assert rig.names() == []
        assert rig.kubelet.wait_for(lambda k: k.allocatable(RESOURCE) == 0)
        assert "Traceback" not in plugin.log.read_text()


def test_p31_five_lives_in_one_process_and_two_ends_at_once(rig: AscendRig) -> None:
    rig.serve(some(1))
    rig.kubelet.start()
    plugin = rig.begin()
    assert listed(rig, 4)
    for life in range(1, 6):
        plugin.process.send_signal(signal.SIGHUP)
        assert rig.kubelet.wait_for(lambda k, life=life: k.registrations.get(RESOURCE, 0) == 1 + life)
        assert listed(rig, 4)
    assert len(rig.names()) == 1
    plugin.process.send_signal(signal.SIGTERM)
    plugin.process.send_signal(signal.SIGINT)
    assert plugin.end(signal.SIGTERM) == 0
    assert rig.names() == []
    assert "Traceback" not in plugin.log.read_text()


def test_p31_an_end_before_the_beginning(rig: AscendRig) -> None:
    rig.serve(some(1))
    rig.store.delete("nodes", NODE)
    plugin = rig.begin()
    until(lambda: plugin.said(f"node {NODE} cannot be read"))
    assert plugin.end() == 0
    assert rig.names() == []
    assert "Traceback" not in plugin.log.read_text()


def test_g13_a_kubelet_that_is_made_anew_quickly_is_registered_with_each_time(rig: AscendRig) -> None:
    rig.serve(some(1))
    rig.kubelet.start()
    plugin = rig.begin()
    assert listed(rig, 4)
    for pause in (0.0, 0.02, 0.0, 0.1, 0.0):
        rig.kubelet.restart()
        time.sleep(pause)
    assert listed(rig, 4)
    assert plugin.process.poll() is None
    assert len(rig.names()) == 1
    assert "Traceback" not in plugin.log.read_text()


def test_g2_a_driver_that_comes_late_at_boot_needs_no_restart(rig: AscendRig) -> None:
    machine = rig.serve(node("910b4"))
    machine.npu_smi_fails("", DOWN, 0)
    rig.kubelet.start()
    plugin = rig.begin("-pulse=1")
    until(lambda: plugin.said("NPUs cannot be listed, nothing is offered yet"))
    assert plugin.said("-8005")
    assert rig.node_annotation(REGISTER) is None
    assert rig.names() == []
    machine.npu_smi_fails("", None)
    assert listed(rig, 32)
    until(lambda: len(rig.registered()) == 8)


def test_a_driver_that_goes_away_takes_no_card_from_kubelet(rig: AscendRig) -> None:
    machine = rig.serve(some(2))
    rig.kubelet.start()
    plugin = rig.begin("-pulse=1")
    assert listed(rig, 8)
    machine.npu_smi_fails("info -m", DOWN, 0)
    until(lambda: plugin.said("what was offered before stays"))
    assert rig.lists() == [(8, 8)]
    assert len(rig.registered()) == 2


def test_g4_a_tool_in_the_other_place_is_found(rig: AscendRig) -> None:
    rig.serve(node("910b4-sbin-status0"))
    rig.kubelet.start()
    plugin = rig.begin()
    assert listed(rig, 8)
    until(lambda: plugin.said("npu-smi: /usr/local/sbin/npu-smi; chips: 910B4 as huawei.com/Ascend910B4"))


def test_cards_kept_back_are_not_told_to_anybody(rig: AscendRig) -> None:
    rig.serve(some(4))
    rig.kubelet.start()
    plugin = rig.begin(
        node_config=f"nodes: [{{name: {NODE}, vDeviceCount: 8, filterDevices: {{index: [0, 3]}}}}]"
    )
    assert listed(rig, 16)
    until(lambda: len(rig.registered()) == 2)
    assert [(entry["count"], entry.get("index", 0)) for entry in rig.registered()] == [(8, 0), (8, 1)]
    until(lambda: plugin.said("kept back by the node configuration: filterDevices.index 3"))


def test_when_all_cards_are_kept_back_registration_and_list_are_cleared(rig: AscendRig) -> None:
    rig.serve(some(1))
    rig.kubelet.start()
    first = rig.begin()
    assert listed(rig, 4)
    until(rig.registered)
    assert first.end() == 0
    rig.begin(node_config=f"nodes: [{{name: {NODE}, filterDevices: {{index: [0]}}}}]")
    assert listed(rig, 0)
    until(lambda: rig.node_annotation(REGISTER) == "[]")


def test_a_soft_node_is_prepared_before_it_is_offered(rig: AscendRig) -> None:
    machine = rig.serve(node("910b4"))
    machine.mkdir("/assets")
    machine.put("/assets/libvnpu.so", b"library", 0o755)
    machine.put("/assets/ld.so.preload", b"/hami-vnpu-core/libvnpu.so\n")
    rig.kubelet.start()
    plugin = rig.begin(
        "-monitor_bind_address=",
        node_config=f"nodes: [{{name: {NODE}, hami-vnpu-core: true, vDeviceCount: 10}}]",
        HAMI_VNPU_ASSETS_PATH="/assets",
    )
    assert listed(rig, 80)
    assert all(npu.share for npu in machine.npus)
    assert machine.read("/usr/local/hami-vnpu-core/libvnpu.so") == b"library"
    until(lambda: rig.node_annotation("hami-vnpu-core") == "true")
    assert {(entry["devcore"], entry["count"]) for entry in rig.registered()} == {(100, 10)}
    until(lambda: plugin.said("operating mode: hami-core"))


def test_a_soft_node_without_the_library_ends_with_its_reason_and_offers_nothing(rig: AscendRig) -> None:
    rig.serve(node("910b4"))
    rig.kubelet.start()
    plugin = rig.begin(
        "-monitor_bind_address=", node_config=f"nodes: [{{name: {NODE}, hami-vnpu-core: true}}]"
    )
    assert plugin.process.wait(10) == 1
    assert any("ld.so.preload" in line["event"] and line["level"] == "error" for line in plugin.lines())
    assert rig.kubelet.resources() == ()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ((), "config file not set, use --config_file to set config file path"),
        (("--config_file", "/none.yaml"), "failed to load config from '/none.yaml': ENOENT"),
        (
            ("--config_file", str(CONFIG), "--check_idle_vnpu_interval=0"),
            "-check_idle_vnpu_interval=0: must be above 0, in seconds",
        ),
    ],
)
def test_what_cannot_be_served_ends_the_start_with_one_line(
    rig: AscendRig, words: tuple[str, ...], text: str
) -> None:
    rig.serve(some(1))
    plugin = rig.start(*words)
    assert plugin.process.wait(20) == 1
    assert [line["event"] for line in plugin.lines()] == [f"ascend-device-plugin: {text}"]


def test_the_vendor_is_called_by_its_name() -> None:
    assert (Ascend().name, Ascend().domain) == ("ascend", "huawei.com")


def _no_prefer(query: Any) -> tuple[str, ...]:
    raise AssertionError(query)


async def _no_allocate(ids: Any) -> Any:
    raise AssertionError(ids)
