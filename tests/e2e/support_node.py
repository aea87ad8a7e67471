"""A node with real processes and sockets around the AMD plugin: API server, kubelet, served machine.

The kubelet here works as in a cluster: it takes up the pods that are bound to it and writes their status,
all over HTTP. Placing is the caller's; counting is `support_oracle`'s.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from gpusim.cluster.apiclient import ApiClient
from gpusim.cluster.kubelet import Kubelet
from gpusim.cluster.kubelet_edits import Edits
from gpusim.cluster.pods import Placed, container, place, pod
from gpusim.fixture import load
from gpusim.machine import Machine
from gpusim.serve import serve

from ..devplugin.daemon.rig import NODE, Plugin, Rig, until
from .support_oracle import LOCK, PHASE, REGISTER, Asked, Facts, Holding, add, overlap

Object = dict[str, Any]

GPU = "amd.com/gpu"
HOOK = "/usr/local/vgpu/libamvgpu.so"
AGENT = "amd-device-plugin"
"""By which the API server's log tells the plugin's requests."""
COMMAND = (
    sys.executable,
    "-c",
    "import sys; from devplugin.launch import amd_device_plugin as go; sys.exit(go())",
)
TERMINAL = ("Succeeded", "Failed")


class Node(Rig):
    """A context manager; the plugin is started with `start`, as often as wanted.

    Args:
        fixture: of the machine, which outlives every plugin.
        mode: operating mode.
        hook: whether the memory hook lies on the host.
    """

    def __init__(self, fixture: str = "mi355x/spx-6.14", *, mode: str = "cu", hook: bool = True) -> None:
        super().__init__(COMMAND, {"OPERATING_MODE": mode, "HOST_HOOK_PATH": "/usr/local"})
        self.machine = Machine(load(fixture))
        self.machine.mkdir("/usr/local/vgpu")
        if hook:
            self.machine.put(HOOK, b"\x7fELF")
        self._served = serve(self.machine, str(self.path / "machine.sock"))
        self.command = (*COMMAND, "-simulate", f"unix:{self.path}/machine.sock")
        self.api: ApiClient

    def __enter__(self) -> Node:
        super().__enter__()
        self._served.start()
        self.api = ApiClient(self.server.url, agent="test")
        self.kubelet = Kubelet(
            self.sockets, node=NODE, api=self.server.url, numa_nodes=range(8), poll_seconds=0.05
        ).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.api.close()
        super().__exit__(*exc)
        self._served.stop()

    # -- the plugin -----------------------------------------------------------------------------------

    def ready(self, count: int) -> Plugin:
        """Start the plugin and wait until kubelet and scheduler see `count` devices."""
        before = sum(event.kind == "registered" for event in self.kubelet.events)
        plugin = self.start()

        def registered() -> bool:
            again = sum(event.kind == "registered" for event in self.kubelet.events) > before
            return again and self.kubelet.allocatable(GPU) == count

        until(registered, 30, lambda: f"not registered:\n{plugin.log.read_text()[-2000:]}")
        until(lambda: self.node_annotation(REGISTER), 30)
        return plugin

    def facts(self) -> Facts:
        """For counting, by what is registered now."""
        return Facts(self.machine, until(lambda: self.node_annotation(REGISTER)))

    def gpu(self, index: int, share: int = 1, *, cores: int | None = None) -> Placed:
        """The n-th registered device, or a share of it."""
        device = list(self.facts().devices.values())[index]
        wanted = device.cores // share if cores is None else cores
        return Placed(device.id, device.type, device.memory // share, wanted)

    def asked_of_plugin(self) -> list[str]:
        """What the plugin asked of the API server: ``patch pods``, in order."""
        return [
            f"{e.verb} {e.resource}{'/' if e.subresource else ''}{e.subresource}"
            for e in self.server.requests.entries(AGENT)
        ]

    # -- pods --------------------------------------------------------------------------------------------

    def run(self, name: str, *slots: Sequence[Placed], **placing: Any) -> Object:
        """Create a pod with a container for each slot, and place it."""
        containers = [container(f"c{i}", {GPU: len(slot)} if slot else None) for i, slot in enumerate(slots)]
        self.api.create("pods", pod(name, containers))
        return place(self.api, name, NODE, slots, **placing)

    def settled(self, name: str, seconds: float = 30.0) -> Object:
        """The pod once kubelet has decided on it."""

        def decided() -> Object | None:
            found = self.api.get("pods", name)
            return found if found["status"].get("phase") in ("Running", *TERMINAL) else None

        found: Object = until(decided, seconds, lambda: f"{name}: {self.api.get('pods', name)}")
        return found

    def edits(self, name: str) -> Mapping[str, Edits]:
        """What kubelet hands to the runtime, by container."""
        uid = self.api.get("pods", name)["metadata"]["uid"]
        return self.kubelet.admissions[uid].containers

    def given(self, name: str, *slots: Sequence[Placed]) -> Holding:
        """What the containers of a running pod hold by their variables; each must fit its slot."""
        facts, total = self.facts(), {}
        for index, slot in enumerate(slots):
            edits = self.edits(name)[f"c{index}"]
            if slot:
                asked = [Asked(one.id, one.memory_mib, one.cores) for one in slot]
                held = facts.granted(asked, edits.envs, [node.host_path for node in edits.devices])
                for bdf, mask in held.items():
                    assert not total.get(bdf, 0) & mask, f"{name}: two containers share CUs"
                    add(total, bdf, mask)
        return total

    def recorded(self) -> dict[str, Holding]:
        """Living pod → what it holds by its annotations; fails when two hold the same."""
        facts, held = self.facts(), {}
        for one in self.api.list("pods", fields=f"spec.nodeName={NODE}"):
            if one["status"].get("phase") not in TERMINAL:
                held[one["metadata"]["name"]] = facts.recorded(one["metadata"]["annotations"])
        clash = overlap(held)
        assert not clash, clash
        return held

    def lock(self) -> str | None:
        """The node lock."""
        return self.node_annotation(LOCK)

    def at_rest(self, seconds: float = 30.0) -> float:
        """Wait until no pod is ``allocating`` and the lock is gone; how long that took."""
        begun = time.monotonic()
        until(lambda: self.lock() is None, seconds, lambda: f"locked: {self.lock()}")
        for one in self.api.list("pods", fields=f"spec.nodeName={NODE}"):
            name = one["metadata"]["name"]
            until(lambda at=name: self.annotation(at, PHASE) in ("success", "failed"), seconds)
        return time.monotonic() - begun
