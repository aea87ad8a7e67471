"""The real PPU process: late drivers, ill cards, deaths, new kubelets, a second writer, an uninstall."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from devplugin.launch import ppu_device_plugin

from ..daemon.rig import NODE, Plugin, until
from ..daemon.simulated import SimulatedRig
from .nodes import install, node, some

pytestmark = pytest.mark.daemon

RESOURCE = "alibaba.com/ppu"
REGISTER = "hami.io/node-register-ppu"
HANDSHAKE = "hami.io/node-handshake-ppu"
CONFIG = "alibaba: {resourceCountName: alibaba.com/ppu, deviceSplitCount: 2, deviceMemoryScaling: 1}\n"


class PpuRig(SimulatedRig):
    """A cluster of one PPU node."""

    program, register = "ppu_device_plugin", REGISTER

    def begin(self, *flags: str, config: str = CONFIG, **env: str) -> Plugin:
        path = self.path / "device-config.yaml"
        path.write_text(config)
        return self.start(f"--config-file={path}", f"--node-name={NODE}", *flags, env=env)

    def listed(self, healthy: int, capacity: int | None = None) -> bool:
        wanted = (healthy, healthy if capacity is None else capacity)
        return self.kubelet.wait_for(lambda k: (k.allocatable(RESOURCE), k.capacity(RESOURCE)) == wanted)


@pytest.fixture
def rig() -> Iterator[PpuRig]:
    with PpuRig() as made:
        yield made


def test_the_charts_command_line_registers_and_offers(rig: PpuRig) -> None:
    rig.serve(node("zw810e-8"))
    rig.kubelet.start()
    plugin = rig.begin("--device-split-count=2", "--device-memory-scaling=1", "--device-core-scaling=1")
    assert rig.listed(16)
    until(lambda: rig.node_annotation(HANDSHAKE))
    assert [entry["id"] for entry in rig.registered()] == [ppu.uuid for ppu in rig.machine.ppus]
    assert re.fullmatch(r"Reported_\d{4}\.\d\d\.\d\d \d\d:\d\d:\d\d", rig.node_annotation(HANDSHAKE) or "")
    devices = rig.kubelet.devices(RESOURCE)
    assert set(devices) == {f"{ppu.uuid}-{share}" for ppu in rig.machine.ppus for share in range(2)}
    assert {name.rpartition("-")[0]: device.numa for name, device in devices.items()} == {
        ppu.uuid: (ppu.numa,) for ppu in rig.machine.ppus
    }
    status = rig.store.get("nodes", NODE).get("status") or {}
    assert not any("alibaba" in name for name in status.get("capacity") or {})
    until(lambda: plugin.said("operating mode: hami-core, 2 shares of each PPU as alibaba.com/ppu"))
    (connected,) = (event for event in rig.kubelet.events if event.kind == "connected")
    assert connected.detail["preferred"] is False


def test_g19_quoted_arguments_end_the_process_and_say_why(rig: PpuRig) -> None:
    rig.serve(some(1))
    plugin = rig.begin('--device-split-count="2"', '--device-memory-scaling="1"')
    assert plugin.process.wait(20) == 2
    assert plugin.said("its quotes came from the chart")


def test_a_driver_that_comes_late_is_noticed_without_a_restart(rig: PpuRig) -> None:
    machine = rig.serve(node("zw810e-driver-down"))
    rig.kubelet.start()
    plugin = rig.begin("-pulse=1")
    until(lambda: plugin.said("PPUs cannot be listed, nothing is offered yet"))
    assert rig.node_annotation(REGISTER) is None
    machine.ppu_load()
    assert rig.listed(8)
    until(lambda: len(rig.registered()) == 4)
    # the driver reloads: what was offered stays, and nothing is sent twice
    machine.ppu_unload()
    until(lambda: plugin.said("what was offered before stays"))
    assert len(rig.registered()) == 4
    machine.ppu_load()
    lists = [event for event in rig.kubelet.events if event.kind == "list"]
    assert {event.detail["devices"] for event in lists} == {8}


def test_a_card_that_hangs_is_unhealthy_until_it_answers_and_people_are_told(rig: PpuRig) -> None:
    machine = rig.serve(some(2))
    rig.kubelet.start()
    rig.begin("-pulse=1")
    assert rig.listed(4)
    until(lambda: len(rig.registered()) == 2)
    machine.ppu_health(1, "Hung")
    assert rig.listed(2, 4)
    until(lambda: [entry.get("health", False) for entry in rig.registered()] == [True, False])
    machine.ppu_health(1, "OK")
    assert rig.listed(4)
    machine.ppu_vanish(0)
    assert rig.listed(2)
    until(lambda: [entry["id"] for entry in rig.registered()] == [machine.ppus.minor(1).uuid])
    reasons = until(
        lambda: (
            [e for e in rig.store.list("events") if e["reason"] == "PPUMissing"]
            and {e["reason"] for e in rig.store.list("events")}
        )
    )
    assert reasons >= {"PPUUnhealthy", "PPURecovered", "PPUMissing"}


def test_killed_and_started_again_it_says_the_same(rig: PpuRig) -> None:
    rig.serve(some(3))
    rig.kubelet.start()
    plugin = rig.begin()
    assert rig.listed(6)
    before = until(rig.registered)
    plugin.end(signal.SIGKILL)
    rig.begin()
    assert rig.listed(6)
    assert rig.registered() == before
    assert rig.names() == [name for name in rig.names() if name.startswith("alibaba.com")]


def test_a_kubelet_made_anew_is_registered_with_again(rig: PpuRig) -> None:
    rig.serve(some(1))
    rig.kubelet.start()
    rig.begin()
    assert rig.listed(2)
    rig.kubelet.stop()
    rig.kubelet.start()
    assert rig.listed(2)


def test_somebody_else_who_rewrites_the_registration_is_warned_about(rig: PpuRig) -> None:
    rig.serve(some(1))
    plugin = rig.begin()
    until(lambda: len(rig.registered()) == 1)
    rig.store.patch("nodes", NODE, {"metadata": {"annotations": {REGISTER: '[{"id":"GPU-theirs"}]'}}})
    until(lambda: plugin.said("two plugins register the same devices"), 40)
    until(lambda: [entry["id"] for entry in rig.registered()] == [p.uuid for p in rig.machine.ppus], 40)
    (event,) = until(
        lambda: [e for e in rig.store.list("events") if e["reason"] == "RegistrationRewritten"], 40
    )
    assert REGISTER in event["message"]


def test_cleaning_up_removes_what_an_uninstalled_plugin_left(rig: PpuRig, tmp_path: Path) -> None:
    rig.serve(some(1))
    plugin = rig.begin()
    until(lambda: rig.node_annotation(HANDSHAKE))
    rig.store.patch("nodes", NODE, {"metadata": {"annotations": {"hami.io/node-register-xpu": "[]"}}})
    plugin.end()
    done = subprocess.run(
        [*rig.command, "-cleanup", "-kubelet_dir", str(rig.sockets)],
        env={"NODE_NAME": NODE, "KUBECONFIG": str(rig.path / "kubeconfig"), "PATH": "/usr/bin"},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"annotation {HANDSHAKE} removed",
        f"annotation {REGISTER} removed",
    ]
    assert rig.node_annotation(REGISTER) is None
    assert rig.node_annotation("hami.io/node-register-xpu") == "[]"


def test_the_image_brings_the_library_to_the_host_before_anything_is_offered(rig: PpuRig) -> None:
    machine = some(1)
    for path in ("libppu-hami-core.so", "ld.so.preload"):
        machine.unlink(f"/usr/local/ppu-hami-core/{path}")
    assets = "/usr/local/ppu-hami-core-assets"
    machine.mkdir(assets)
    machine.put(f"{assets}/libppu.so", b"\x7fELF")
    machine.put(f"{assets}/ld.so.preload", b"/ppu-hami-core/libppu.so\n")
    rig.serve(machine)
    rig.kubelet.start()
    rig.begin()
    assert rig.listed(2)
    assert machine.read("/usr/local/ppu-hami-core/libppu.so") == b"\x7fELF"


def test_without_a_node_name_the_daemon_ends_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    machine = some(1)
    install(machine)
    assert ppu_device_plugin([], host=machine) == 1  # type: ignore[arg-type]
    assert "NODE_NAME is not set" in capsys.readouterr().err
