"""The kubelet's table of devices: what each plugin listed, which are healthy, what the node has.

Rules of the device manager (kubelet.md 2, *ListAndWatch*): a message is the full list; only the string
``Healthy`` is healthy; when the stream ends everything is unhealthy and the endpoint gets a stop time;
five minutes later the resource is gone. A resource known from the checkpoint has no devices yet.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpusim.cluster.kubelet_journal import Journal
from gpusim.cluster.kubelet_wire import Plugin

HEALTHY = "Healthy"


@dataclass(frozen=True, slots=True)
class Device:
    """One entry of a plugin's list."""

    id: str
    health: str
    """The plugin's own word."""
    numa: tuple[int, ...] = ()
    """NUMA nodes this machine has; others were dropped."""

    @property
    def healthy(self) -> bool:
        """Exactly ``Healthy``, nothing else."""
        return self.health == HEALTHY


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The newest registration of a resource."""

    plugin: Plugin | None
    """None: known from the checkpoint only."""
    prestart: bool = False
    preferred: bool = False
    stopped: float | None = None
    """Clock when its stream ended."""


class DeviceTable:
    """All resources of this kubelet's life. Its lock may be held over several calls.

    Args:
        journal: is told about lists, ends and removals.
        clock: monotonic seconds.
        grace: seconds a stopped endpoint keeps its capacity.
        numa_nodes: the machine's NUMA nodes.
    """

    def __init__(
        self, journal: Journal, clock: Callable[[], float], grace: float, numa_nodes: Sequence[int]
    ) -> None:
        self.lock = threading.RLock()
        self._journal, self._clock, self._grace = journal, clock, grace
        self._numa = frozenset(numa_nodes)
        self._devices: dict[str, dict[str, Device]] = {}
        self._endpoints: dict[str, Endpoint] = {}
        self._removed: set[str] = set()

    def restore(self, resources: Iterable[str]) -> None:
        """Resources of the checkpoint: zero devices, and stopped from now."""
        with self.lock:
            for resource in resources:
                self._devices[resource] = {}
                self._endpoints[resource] = Endpoint(None, stopped=self._clock())

    def connected(self, resource: str, plugin: Plugin, *, prestart: bool, preferred: bool) -> None:
        """A plugin registered and told its options; the devices stay until its first list."""
        with self.lock:
            self._endpoints[resource] = Endpoint(plugin, prestart, preferred)
            self._removed.discard(resource)
        self._journal.record("connected", resource, prestart=prestart, preferred=preferred)

    def listed(self, resource: str, devices: Iterable[Any]) -> None:
        """A ListAndWatch message: replaces all devices of the resource."""
        table = {d.ID: Device(d.ID, d.health, self._known_numa(resource, d)) for d in devices}
        with self.lock:
            self._devices[resource] = table
        healthy = sum(d.healthy for d in table.values())
        self._journal.record("list", resource, devices=len(table), healthy=healthy)

    def _known_numa(self, resource: str, device: Any) -> tuple[int, ...]:
        said = tuple(node.ID for node in device.topology.nodes)
        known = tuple(n for n in said if n in self._numa)
        if known != said:
            self._journal.record("unknown-numa", resource, device=device.ID, nodes=said)
        return known

    def disconnected(self, resource: str) -> None:
        """The stream ended: all devices unhealthy, the endpoint stopped."""
        with self.lock:
            endpoint = self._endpoints.get(resource)
            if endpoint is not None:
                listed = self._devices.get(resource, {})
                self._devices[resource] = {k: replace(d, health="Unhealthy") for k, d in listed.items()}
                self._endpoints[resource] = replace(endpoint, stopped=self._clock())
        self._journal.record("stream-ended", resource)

    def endpoint(self, resource: str) -> Endpoint | None:
        """The newest registration."""
        with self.lock:
            return self._endpoints.get(resource)

    def knows(self, resource: str) -> bool:
        """Whether a plugin ever listed it (or the checkpoint has it) and the grace is not over."""
        with self.lock:
            return resource in self._devices

    def devices(self, resource: str) -> Mapping[str, Device]:
        """A copy: id → device; empty when unknown."""
        with self.lock:
            return dict(self._devices.get(resource, {}))

    def healthy(self, resource: str) -> set[str]:
        """Ids of the healthy devices."""
        with self.lock:
            return {d.id for d in self._devices.get(resource, {}).values() if d.healthy}

    def totals(self) -> tuple[dict[str, tuple[int, int]], set[str]]:
        """(resource → (capacity, allocatable), resources whose grace ended in this life).

        The original removes what is over its grace exactly when it is asked for capacity.
        """
        with self.lock:
            for resource in list(self._devices):
                endpoint = self._endpoints.get(resource)
                stopped = endpoint.stopped if endpoint is not None else self._clock() - self._grace
                if stopped is not None and self._clock() - stopped >= self._grace:
                    del self._devices[resource]
                    self._endpoints.pop(resource, None)
                    self._removed.add(resource)
                    self._journal.record("resource-removed", resource)
            counts = {
                resource: (len(listed), sum(d.healthy for d in listed.values()))
                for resource, listed in self._devices.items()
            }
            return counts, set(self._removed)

    def close(self) -> None:
        """Close the connections of all endpoints: this kubelet's life is over."""
        with self.lock:
            plugins = [e.plugin for e in self._endpoints.values() if e.plugin is not None]
        for plugin in plugins:
            plugin.close()
