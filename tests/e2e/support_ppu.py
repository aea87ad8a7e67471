"""A node with PPUs, other vendors' cards beside them, and all around it: real sockets and processes.

API server, HAMi's scheduler, kubelet, and one daemon for each vendor that is wanted; the machine is served,
so that kubelet, daemons and monitor see the same one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import yaml

from gpusim.cluster.ascendruntime import HANDLER, AscendRuntime
from gpusim.cluster.kubelet import Kubelet
from gpusim.cluster.kubelet_edits import Edits
from gpusim.cluster.scheduler import Scheduler
from gpusim.cluster.scheduler_ascend import ascend_vendors, shipped
from gpusim.cluster.scheduler_ppu import ppu_vendors
from gpusim.cluster.scheduler_vendors import AMD, Vendor
from gpusim.fixture import load
from gpusim.machine import Machine
from gpusim.ppu import environment
from gpusim.remote import RemoteMachine
from gpusim.serve import serve

from ..devplugin.daemon.rig import NODE, Plugin, until
from .support_ascend import program
from .support_living import Living

AGENT = "ppu-device-plugin"
"""By which the API server's log tells the daemon's requests."""
HOST = "/usr/local/ppu-hami-core"
CONTAINERS = f"{HOST}/containers"
PHASE = "hami.io/bind-phase"
MEMORY = 98304
"""MiB of a PPU-ZW810E."""
SHARE = "alibaba.com/ppu-memory-percentage"
COMMON = ("/dev/alixpu", "/dev/alixpu_ctl", "/dev/alixpu_sep")


class PpuNode(Living):
    """A context manager; on entering, every daemon is registered and the scheduler believes it.

    Args:
        fixture: of the machine, which outlives every daemon.
        block: values of the ``alibaba:`` block of the device configuration.
        hook: whether PPU-HAMi-core is on the host.
        others: which other vendors' daemons run: ``amd``, ``ascend``.
    """

    def __init__(
        self,
        fixture: str = "ppu/zw810e-8",
        *,
        block: Mapping[str, Any] | None = None,
        hook: bool = True,
        others: Iterable[str] = (),
    ) -> None:
        super().__init__((), {})
        self.machine = Machine(load(fixture))
        if hook:
            self.install()
        self.socket = str(self.path / "machine.sock")
        self.config: dict[str, Any] = {"alibaba": dict(block or {})}
        self.others = tuple(others)
        if "ascend" in self.others:
            self.config |= shipped()
            for entry in self.config["vnpus"]["configs"]:
                entry["runtimeClassName"] = HANDLER
        (self.row,) = ppu_vendors(self.config)
        self.npu = next(row for row in ascend_vendors(shipped()) if row.word == "Ascend910B4")

    def install(self) -> None:
        """PPU-HAMi-core onto the host."""
        self.machine.mkdir(HOST)
        self.machine.put(f"{HOST}/libppu.so", b"\x7fELF", 0o755)
        self.machine.put(f"{HOST}/ld.so.preload", b"/ppu-hami-core/libppu.so\n")

    def __enter__(self) -> PpuNode:
        with ExitStack() as undo:
            undo.enter_context(serve(self.machine, self.socket))
            super().__enter__()
            undo.callback(super().__exit__, None, None, None)
            (self.path / "device-config.yaml").write_text(yaml.safe_dump(self.config))
            self.seen = RemoteMachine(self.socket)
            undo.callback(self.seen.disconnect)
            runtimes = {HANDLER: AscendRuntime(self.seen)} if "ascend" in self.others else {}
            self.kubelet = Kubelet(
                self.sockets,
                node=NODE,
                api=self.store,
                machine=self.seen,
                runtimes=runtimes,
                numa_nodes=range(8),
                poll_seconds=0.02,
            )
            self.kubelet.start()
            self.daemons = {name: getattr(self, f"launch_{name}")() for name in (*self.others, "ppu")}
            self.plugin = self.daemons["ppu"]
            rows = self.rows()
            self.scheduler = Scheduler(
                self.server.url, vendors=rows, refresh_seconds=0.2, poll_seconds=0.02, retry_seconds=0.05
            )
            self.scheduler.start()
            undo.callback(self.scheduler.stop)
            self.believed()
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._undo.close()

    def rows(self) -> tuple[Vendor, ...]:
        """The scheduler's vendors."""
        amd = (AMD,) if "amd" in self.others else ()
        ascend = tuple(ascend_vendors(self.config)) if "ascend" in self.others else ()
        return (*amd, *ascend, self.row)

    def words(self) -> dict[str, str]:
        """Vendor → the scheduler's word for its cards here."""
        known = {"amd": AMD.word, "ascend": self.npu.word, "ppu": self.row.word}
        return {name: known[name] for name in (*self.others, "ppu")}

    def believed(self) -> None:
        """Wait until the scheduler knows every vendor's cards."""
        wanted = set(self.words().values())
        until(lambda: wanted <= set(self.scheduler.devices.get(NODE, {})), 20)

    # -- daemons --------------------------------------------------------------------------------------------

    def _launch(
        self, function: str, resource: str, *flags: str, env: Mapping[str, str] | None = None
    ) -> Plugin:
        self.command = (*program(function), "-simulate", f"unix:{self.socket}")
        before = self.kubelet.registrations.get(resource, 0)
        plugin = self.start(*flags, env=env)
        until(
            lambda: (
                self.kubelet.registrations.get(resource, 0) > before
                and self.kubelet.allocatable(resource) > 0
            ),
            30,
            lambda: str(plugin.lines()[-8:]),
        )
        return plugin

    def launch_ppu(self, *flags: str) -> Plugin:
        """A PPU daemon of this node, once kubelet has its list."""
        config = f"--config-file={self.path}/device-config.yaml"
        return self._launch("ppu_device_plugin", self.row.count, config, *flags)

    def launch_ascend(self) -> Plugin:
        """Ascend's daemon on the same node."""
        (self.path / "node-config.yaml").write_text("nodes: []\n")
        words = ("--config_file", str(self.path / "device-config.yaml"))
        words += ("--node_config_file", str(self.path / "node-config.yaml"), "-monitor_bind_address=")
        return self._launch("ascend_device_plugin", self.npu.count, *words)

    def launch_amd(self) -> Plugin:
        """AMD's daemon on the same node."""
        self.machine.mkdir("/usr/local/vgpu")
        self.machine.put("/usr/local/vgpu/libamvgpu.so", b"\x7fELF")
        env = {"OPERATING_MODE": "cu", "HOST_HOOK_PATH": "/usr/local"}
        return self._launch("amd_device_plugin", AMD.count, env=env)

    # -- pods -----------------------------------------------------------------------------------------------

    def ppus(self, count: int = 1, memory: int | None = None, cores: int | None = None) -> dict[str, int]:
        """Limits of a container."""
        asked = {self.row.count: count, self.row.memory: memory, self.row.cores: cores}
        return {name: value for name, value in asked.items() if value is not None}

    def registered(self, key: str = "hami.io/node-register-ppu") -> list[dict[str, Any]]:
        """What a daemon told the scheduler."""
        found: list[dict[str, Any]] = json.loads(self.node_annotation(key) or "[]")
        return found

    def events(self) -> list[tuple[str, str]]:
        """(reason, message) of what people are told."""
        return [(event["reason"], event["message"]) for event in self.store.list("events")]

    # -- the recount: from edits and the machine alone ------------------------------------------------------

    def cards(self, edits: Edits) -> list[tuple[str, int]]:
        """(uuid, MiB it is limited to) of each of a container's cards, as its own processes count them.

        ppu-smi inside the container says which card has which index, the runtime's reading of the environment
        which limit.
        """
        nodes = [node.host_path for node in edits.devices if node.host_path.startswith("/dev/alixpu")]
        assert set(COMMON) <= set(nodes)
        assert {node.permissions for node in edits.devices if node.host_path in nodes} == {"rwm"}
        query = ("ppu-smi", "--query-ppu=uuid", "--format=csv,noheader")
        uuids = self.machine.ppu_smi_inside(query, nodes).stdout.decode().split()
        quotas = environment.quotas(edits.envs, len(uuids))
        return [(uuid, quota // environment.MIB) for uuid, quota in zip(uuids, quotas, strict=True)]

    def taken(self, names: Sequence[str]) -> dict[str, int]:
        """UUID → MiB that these pods' containers may use together."""
        found: dict[str, int] = {}
        for name in names:
            for edits in self.runs(name).values():
                for uuid, mib in self.cards(edits) if "HGGC_LEDGER_PATH" in edits.envs else ():
                    found[uuid] = found.get(uuid, 0) + mib
        return found

    def directories(self) -> list[str]:
        """The containers' directories, by name."""
        try:
            return list(self.machine.list(CONTAINERS))
        except FileNotFoundError:
            return []

    def state_of(self, edits: Edits) -> str:
        """Host path of a container's state file."""
        (directory,) = (m.host_path for m in edits.mounts if m.container_path == "/ppu-hami-shmem")
        return f"{directory}/ledger"
