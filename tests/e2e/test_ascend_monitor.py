"""The monitor in the real plugin process: a soft pod's memory over HTTP, and another process on the port."""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Iterator

import pytest
import yaml

from gpusim.ascend.reading import Slot, fresh, read, with_slots, write
from gpusim.cluster.apiclient import ApiClient
from gpusim.cluster.kubelet import Kubelet
from gpusim.cluster.pods import container, pod
from gpusim.cluster.scheduler import Scheduler
from gpusim.cluster.scheduler_config import config_vendors
from gpusim.cluster.scheduler_webhook import admit
from gpusim.fixture import load
from gpusim.machine import Machine
from gpusim.serve import serve

from ..conftest import ROOT
from ..devplugin.daemon.rig import NODE, Plugin, Rig, until
from .support_monitor import Client

COMMAND = (
    sys.executable,
    "-c",
    "import sys; from devplugin.launch import ascend_device_plugin as go; sys.exit(go())",
)
CONFIG = ROOT / "deploy" / "examples" / "ascend-device-config.yaml"
COUNT, MEMORY, CORE = (f"huawei.com/Ascend910B4{part}" for part in ("", "-memory", "-core"))
GIB = 1 << 30


class SoftNode(Rig):
    """A node of soft slices with all that stands around it."""

    def __init__(self) -> None:
        super().__init__(COMMAND, {})
        self.machine = Machine(load("ascend/910b4-soft"))
        assets = "/usr/local/hami-vnpu-core-assets"
        self.machine.mkdir(assets)
        self.machine.put(f"{assets}/libvnpu.so", b"\x7fELF", 0o755)
        self.machine.put(f"{assets}/ld.so.preload", b"/hami-vnpu-core/libvnpu.so\n")
        self._served = serve(self.machine, str(self.path / "machine.sock"))
        (self.path / "nodes.yaml").write_text(f"nodes: [{{name: {NODE}, hami-vnpu-core: true}}]\n")
        self.vendors = config_vendors(yaml.safe_load(CONFIG.read_text()))
        self._clients: list[Client] = []
        self.api: ApiClient

    def __enter__(self) -> SoftNode:
        super().__enter__()
        self._served.start()
        self.api = ApiClient(self.server.url, agent="test")
        self.kubelet = Kubelet(self.sockets, node=NODE, api=self.server.url, poll_seconds=0.05).start()
        self.scheduler = Scheduler(self.server.url, vendors=self.vendors, refresh_seconds=0.3)
        self.scheduler.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        for client in self._clients:
            client.close()
        self.scheduler.__exit__(None, None, None)
        self.api.close()
        super().__exit__(*exc)
        self._served.stop()

    def plugin(self, *flags: str) -> Plugin:
        plugin = self.start(
            *("--config_file", str(CONFIG), "--node_config_file", str(self.path / "nodes.yaml")),
            *("-simulate", f"unix:{self.path}/machine.sock", *flags),
        )
        until(lambda: self.kubelet.allocatable(COUNT) == 32, 30, lambda: plugin.log.read_text()[-2000:])
        return plugin

    def client(self, plugin: Plugin) -> Client:
        """Of the plugin's monitor."""
        self._clients.append(Client(port(plugin)))
        return self._clients[-1]

    def soft_pod(self, name: str) -> str:
        """Run a pod with 8 GiB of one card; its container's ledger on the host."""
        wanted = pod(name, [container("main", {COUNT: 1, MEMORY: 8192, CORE: 25})])
        wanted["metadata"]["annotations"] = {"huawei.com/vnpu-mode": "hami-core"}
        verdict = admit(wanted, self.vendors)
        assert not verdict.denied
        self.api.create("pods", verdict.pod)
        until(
            lambda: self.api.get("pods", name)["status"].get("phase") == "Running",
            30,
            lambda: f"{self.api.get('pods', name)}\n{self.plugins[-1].log.read_text()[-3000:]}",
        )
        uid = self.api.get("pods", name)["metadata"]["uid"]
        (mount,) = (
            mount.host_path
            for mount in self.kubelet.admissions[uid].containers["main"].mounts
            if mount.container_path == "/hami-vnpu-shmem"
        )
        return f"{mount}/vnpu_local_shmem"


@pytest.fixture
def node() -> Iterator[SoftNode]:
    with SoftNode() as one:
        yield one


def port(plugin: Plugin) -> int:
    """Where the monitor of a plugin listens, by its log."""

    def told() -> int:
        found = re.search(r"devices and containers on http://[^ ]*:([0-9]+)/metrics", plugin.log.read_text())
        return int(found[1]) if found else 0

    return int(until(told, 30, lambda: plugin.log.read_text()[-2000:]))


@pytest.mark.daemon
def test_a_soft_pods_memory_is_scraped_from_the_plugin_and_gone_with_the_pod(node: SoftNode) -> None:
    client = node.client(node.plugin("--monitor_bind_address", "127.0.0.1:0"))
    assert len(client.scrape().of("hami_host_gpu_memory_used_bytes")) == 8
    ledger = node.soft_pod("soft")
    owner = {"namespace": "default", "pod": "soft", "container": "main"}

    def success() -> list[float]:
        return list(client.scrape().of("hami_vgpu_ledger_read_success", **owner).values())

    until(lambda: success() == [0.0], 15)
    node.machine.put(
        ledger,
        write(
            with_slots(read(fresh((8 * GIB,))), [Slot(row=0, pid=1, start=1, used=(3 * GIB,), reserved=(0,))])
        ),
    )
    assert success() == [1.0]
    scrape = client.scrape()
    assert scrape.one("hami_vgpu_memory_used_bytes", **owner) == 3 * GIB
    assert scrape.one("hami_vgpu_memory_limit_bytes", **owner) == 8 * GIB
    used = scrape.of("hami_vgpu_memory_used_bytes", **owner)
    (uuid,) = (dict(labels)["device_uuid"] for labels in used)
    assert scrape.one("hami_host_gpu_memory_used_bytes", device_uuid=uuid) == 3 * GIB
    node.api.delete("pods", "soft", grace_seconds=0)
    until(lambda: not success(), 15)


@pytest.mark.daemon
def test_a_port_that_is_taken_costs_the_monitor_and_no_pod(node: SoftNode) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        plugin = node.plugin("--monitor_bind_address", where)
        until(lambda: plugin.said(f"not exported: -monitor_bind_address='{where}': "), 15)
        assert node.soft_pod("soft")
        assert plugin.process.poll() is None


@pytest.mark.daemon
def test_a_plugin_whose_monitor_is_off_serves_pods_alike(node: SoftNode) -> None:
    plugin = node.plugin("--monitor_bind_address=")
    assert node.soft_pod("soft")
    assert not plugin.said("devices and containers on")
