"""A node with NPUs and everything around it, real sockets and processes throughout.

API server, HAMi's scheduler, kubelet with the vendor's container runtime, and one daemon for each vendor the
node has; the machine is served, so that kubelet and daemons see the same one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import yaml

from gpusim.cluster.ascendruntime import HANDLER, AscendRuntime, Given
from gpusim.cluster.kubelet import Kubelet
from gpusim.cluster.scheduler import Scheduler
from gpusim.cluster.scheduler_ascend import MODE_KEY, ascend_vendors, shipped
from gpusim.cluster.scheduler_vendors import AMD, Vendor
from gpusim.fixture import load
from gpusim.machine import Machine
from gpusim.remote import RemoteMachine
from gpusim.serve import serve

from ..devplugin.daemon.rig import NODE, Plugin, until
from .support_living import Living

AGENT = "ascend-device-plugin"
"""By which the API server's log tells the daemon's requests."""
SOFT = {MODE_KEY: "hami-core"}
HOOK = "/usr/local/hami-vnpu-core"
ASSETS = f"{HOOK}-assets"
CONTAINERS = f"{HOOK}/containers"
PHASE = "hami.io/bind-phase"
LIBRARY = b"\x7fELF libvnpu v1.4.1"


def program(function: str) -> tuple[str, ...]:
    """The command of a daemon by its entry point in `devplugin.launch`."""
    return (
        sys.executable,
        "-c",
        f"import sys; from devplugin.launch import {function} as go; sys.exit(go())",
    )


class AscendNode(Living):
    """A context manager; on entering, every daemon is registered and the scheduler believes it.

    Args:
        fixture: of the machine, which outlives every daemon.
        word: common word of its chips.
        soft: whether the node is in hami-core mode.
        amd: whether AMD's daemon runs beside Ascend's.
        library: what an older plugin left on the host.
        flags: of the Ascend daemon, behind those it needs.
    """

    def __init__(
        self,
        fixture: str = "ascend/910b4",
        word: str = "Ascend910B4",
        *,
        soft: bool = False,
        super_pod: bool = False,
        amd: bool = False,
        library: bytes | None = None,
        flags: Sequence[str] = (),
    ) -> None:
        super().__init__((), {})
        self.machine = Machine(load(fixture))
        self.machine.mkdir(ASSETS)
        self.machine.put(f"{ASSETS}/libvnpu.so", LIBRARY, 0o755)
        self.machine.put(f"{ASSETS}/ld.so.preload", b"/hami-vnpu-core/libvnpu.so\n")
        if library is not None:
            self.machine.mkdir(HOOK)
            self.machine.put(f"{HOOK}/libvnpu.so", library, 0o755)
        self.socket = str(self.path / "machine.sock")
        self.config = shipped(soft=soft, super_pod=super_pod)
        for entry in self.config["vnpus"]["configs"]:
            entry["runtimeClassName"] = HANDLER
        self.row: Vendor = next(row for row in ascend_vendors(self.config) if row.word == word)
        self.amd, self.flags = amd, tuple(flags)
        self.node_config = "nodes: []\n"

    def __enter__(self) -> AscendNode:
        with ExitStack() as undo:
            undo.enter_context(serve(self.machine, self.socket))
            super().__enter__()
            undo.callback(super().__exit__, None, None, None)
            self.seen = RemoteMachine(self.socket)
            undo.callback(self.seen.disconnect)
            self.runtime = AscendRuntime(self.seen)
            self.kubelet = Kubelet(
                self.sockets,
                node=NODE,
                api=self.store,
                machine=self.seen,
                runtimes={HANDLER: self.runtime},
                numa_nodes=range(8),
                poll_seconds=0.02,
            )
            self.kubelet.start()
            if self.amd:
                self.launch_amd()
            self.plugin = self.launch()
            rows = (*((AMD,) if self.amd else ()), *ascend_vendors(self.config))
            self.scheduler = Scheduler(
                self.server.url, vendors=rows, refresh_seconds=0.2, poll_seconds=0.02, retry_seconds=0.05
            )
            self.scheduler.start()
            undo.callback(self.scheduler.stop)
            known = [row.word for row in rows if row.word == self.row.word or row is AMD]
            until(lambda: set(known) <= set(self.scheduler.devices.get(NODE, {})), 20)
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._undo.close()

    # -- daemons --------------------------------------------------------------------------------------------

    def launch(self, *flags: str) -> Plugin:
        """An Ascend daemon of this node, once kubelet has its list."""
        for name, text in (("device", yaml.safe_dump(self.config)), ("node", self.node_config)):
            (self.path / f"{name}-config.yaml").write_text(text)
        self.command = (*program("ascend_device_plugin"), "-simulate", f"unix:{self.socket}")
        before = self.kubelet.registrations.get(self.row.count, 0)
        words = ("--config_file", str(self.path / "device-config.yaml"))
        words += ("--node_config_file", str(self.path / "node-config.yaml"), "-monitor_bind_address=")
        plugin = self.start(*words, *self.flags, *flags)
        until(
            lambda: (
                self.kubelet.registrations.get(self.row.count, 0) > before
                and self.kubelet.allocatable(self.row.count) > 0
            ),
            30,
            lambda: str(plugin.lines()[-8:]),
        )
        return plugin

    def launch_amd(self) -> Plugin:
        """AMD's daemon on the same node."""
        self.machine.mkdir("/usr/local/vgpu")
        self.machine.put("/usr/local/vgpu/libamvgpu.so", b"\x7fELF")
        self.command = (*program("amd_device_plugin"), "-simulate", f"unix:{self.socket}")
        plugin = self.start(env={"OPERATING_MODE": "cu", "HOST_HOOK_PATH": "/usr/local"})
        until(lambda: self.kubelet.allocatable(AMD.count) > 0, 30, lambda: str(plugin.lines()[-8:]))
        return plugin

    # -- pods ------------------------------------------------------------------------------------------------

    def npus(self, count: int = 1, memory: int | None = None, cores: int | None = None) -> dict[str, int]:
        """Limits of a container."""
        asked = {self.row.count: count, self.row.memory: memory, self.row.cores: cores}
        return {name: value for name, value in asked.items() if value is not None}

    # -- what there is on the node --------------------------------------------------------------------------

    def vnpus(self) -> list[tuple[int, str, bool]]:
        """(phy, template, whether a container has it) of every slice."""
        return sorted(
            (npu.phy, vnpu.template.name, vnpu.container is not None)
            for npu in self.machine.npus
            for vnpu in npu.vnpus.values()
        )

    def slices(self) -> list[str]:
        """Templates of the slices that containers have."""
        return sorted(template for _, template, used in self.vnpus() if used)

    def inside(self, name: str, container_name: str = "c0") -> Given:
        """What the container runtime made for a container."""
        ids = {
            status["name"]: status["containerID"].rpartition("//")[2]
            for status in self.pod(name)["status"]["containerStatuses"]
        }
        return self.runtime.given[ids[container_name]]

    def smi(self, name: str, container_name: str = "c0") -> str:
        """``npu-smi info`` as the container sees it."""
        smi = self.inside(name, container_name).smi
        assert smi is not None
        return smi.run(("npu-smi", "info")).stdout.decode()

    def directories(self) -> list[str]:
        """The containers' directories, by name."""
        try:
            return list(self.machine.list(CONTAINERS))
        except FileNotFoundError:
            return []

    def registered(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.node_annotation(self.row.register) or "[]")
        return found
