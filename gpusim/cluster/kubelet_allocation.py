"""Choosing devices for one container and asking the plugin for them.

The device manager's ``devicesToAllocate`` and ``allocateContainerResources`` of kubelet v1.36 (kubelet.md 2,
*Allocate*, *GetPreferredAllocation*): devices of finished init containers first, then aligned ones with the
plugin's advice, then the rest with its advice. Ids are sent in random order; an error rolls back.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Collection, Iterable

from devplugin.kubeletapi import api_pb2 as api
from gpusim.cluster.kubelet_checkpoint import Holding
from gpusim.cluster.kubelet_devices import DeviceTable
from gpusim.cluster.kubelet_holdings import Holdings
from gpusim.cluster.kubelet_journal import Journal
from gpusim.cluster.kubelet_registry import KubeletFaults
from gpusim.cluster.kubelet_topology import Hint, hints, split
from gpusim.cluster.kubelet_wire import PluginError
from gpusim.errors import GpusimError


class AllocationError(GpusimError):
    """A container cannot have its devices; the text goes into the pod's message."""


class Allocator:
    """Takes devices for containers. Admission is serial, so no call runs beside another.

    Args:
        table: what there is.
        holdings: what is taken.
        journal: what happened.
        faults: the delay before Allocate.
        seed: of the random order of ids.
        over: set when this kubelet's life ends.
    """

    def __init__(
        self,
        table: DeviceTable,
        holdings: Holdings,
        journal: Journal,
        faults: KubeletFaults,
        *,
        seed: int,
        over: threading.Event,
    ) -> None:
        self._table, self._holdings, self._journal = table, holdings, journal
        self._faults, self._over = faults, over
        self._random = random.Random(seed)

    def hints(
        self, uid: str, container: str, resource: str, size: int, reusable: set[str]
    ) -> list[Hint] | None:
        """NUMA hints of one request; those of a container that holds its devices already are its own."""
        devices = self._table.devices(resource)
        held = self._holdings.of(uid, container, resource)
        if held is not None:
            return hints(devices, held.ids, (), size) if len(held.ids) == size else []
        return hints(devices, self._available(resource), reusable, size)

    def allocate(
        self,
        uid: str,
        container: str,
        resource: str,
        size: int,
        *,
        affinity: Hint,
        reusable: set[str],
        running: bool,
    ) -> None:
        """Give a container `size` devices of a resource, or find that it has them.

        Args:
            uid: the pod's.
            container: its name.
            resource: a device plugin's.
            size: how many.
            affinity: the topology manager's decision.
            reusable: ids of finished init containers of this pod.
            running: the kubelet is restarting and the runtime runs this container already.

        Raises:
            AllocationError: not enough, not healthy, or the plugin said no.
        """
        chosen = self._choose(
            uid, container, resource, size, affinity=affinity, reusable=reusable, running=running
        )
        if not chosen:
            return
        endpoint = self._table.endpoint(resource)
        if endpoint is None:
            raise AllocationError(f"unknown Device Plugin {resource}")
        if endpoint.stopped is not None or endpoint.plugin is None:
            raise AllocationError(f"endpoint {resource} has been stopped")
        order = self._shuffled(chosen)
        self._journal.record("allocating", resource, uid=uid, container=container, ids=tuple(order))
        if self._faults.allocate_delay:
            self._over.wait(self._faults.allocate_delay)
        try:
            answer = endpoint.plugin.allocate(order)
        except PluginError as error:
            self._journal.record("allocation-failed", resource, uid=uid, container=container, why=str(error))
            raise AllocationError(str(error)) from None
        if not answer.container_responses:
            why = f"no containers return in allocation response {answer}".rstrip()
            self._journal.record("allocation-failed", resource, uid=uid, container=container, why=why)
            raise AllocationError(why)
        raw = answer.container_responses[0].SerializeToString()
        # nothing was reserved before this line, so an error above has nothing to roll back
        self._holdings.add(Holding(uid, container, resource, tuple(sorted(chosen)), raw))
        self._journal.record("allocated", resource, uid=uid, container=container, ids=tuple(order))

    def _available(self, resource: str) -> set[str]:
        return self._table.healthy(resource) - self._holdings.used(resource)

    def _shuffled(self, ids: Iterable[str]) -> list[str]:
        """Go's set order: random. Sorted first so that the same seed gives the same order."""
        order = sorted(ids)
        self._random.shuffle(order)
        return order

    def _choose(
        self,
        uid: str,
        container: str,
        resource: str,
        size: int,
        *,
        affinity: Hint,
        reusable: set[str],
        running: bool,
    ) -> set[str]:
        held = self._holdings.of(uid, container, resource)
        missing = size - (len(held.ids) if held is not None else 0)
        if held is not None and missing:
            raise AllocationError(
                f'pod "{uid}" container "{container}" changed request for resource "{resource}" '
                f"from {len(held.ids)} to {size}"
            )
        if running:
            return set()
        if missing == 0:
            self._still_healthy(resource, held.ids if held is not None else ())
            return set()
        chosen: set[str] = set()

        def take(ids: Collection[str]) -> bool:
            for id_ in self._shuffled(set(ids) - chosen):
                if len(chosen) < size:
                    chosen.add(id_)
            return len(chosen) == size

        if take(reusable):
            return chosen
        free = self._available(resource)
        if len(free) < size - len(chosen):
            raise AllocationError(
                f"requested number of devices unavailable for {resource}. "
                f"Requested: {size - len(chosen)}, Available: {len(free)}"
            )
        aligned, unaligned, without = split(self._table.devices(resource), free, affinity)
        if size - len(chosen) < len(aligned):
            preferred = self._preferred(resource, aligned | chosen, chosen, size)
            if take(preferred & aligned) or take(aligned):
                return chosen
        if take(aligned):
            return chosen
        preferred = self._preferred(resource, free | chosen, chosen, size)
        if take(preferred & free) or take(unaligned) or take(without):
            return chosen
        raise AllocationError(
            f"unexpectedly allocated less resources than required. Requested: {size}, Got: {len(chosen)}"
        )

    def _still_healthy(self, resource: str, held: Collection[str]) -> None:
        if not self._table.knows(resource):
            raise AllocationError(f"cannot allocate unregistered device {resource}")
        healthy = self._table.healthy(resource)
        if not healthy:
            raise AllocationError(f"no healthy devices present; cannot allocate unhealthy devices {resource}")
        if not healthy >= set(held):
            raise AllocationError(
                "previously allocated devices are no longer healthy; "
                f"cannot allocate unhealthy devices {resource}"
            )

    def _preferred(self, resource: str, available: set[str], must: set[str], size: int) -> set[str]:
        endpoint = self._table.endpoint(resource)
        if endpoint is None or not endpoint.preferred or endpoint.plugin is None:
            return set()
        try:
            answer = endpoint.plugin.prefer(self._shuffled(available), self._shuffled(must), size)
        except PluginError as error:
            raise AllocationError(
                f"device plugin GetPreferredAllocation rpc failed with err: {error}"
            ) from None
        ids = tuple(answer.container_responses[0].deviceIDs) if answer.container_responses else ()
        self._journal.record(
            "preferred", resource, available=len(available), must=tuple(sorted(must)), size=size, answer=ids
        )
        return set(ids)

    def answers(
        self, uid: str, container: str
    ) -> tuple[dict[str, tuple[str, ...]], list[api.ContainerAllocateResponse]]:
        """(resource → ids, the plugins' answers in a random order) of what a container holds."""
        held = {h.resource: h for h in self._holdings.container(uid, container)}
        order = self._shuffled(held)
        return (
            {resource: held[resource].ids for resource in order},
            [api.ContainerAllocateResponse.FromString(held[resource].response) for resource in order],
        )
