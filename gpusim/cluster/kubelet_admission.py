"""Admitting a pod: topology, devices of every container in order, other extended resources, PreStart.

The kubelet's admission as far as devices go (kubelet.md 2): init containers first, their devices offered
again; a kubelet that restarts leaves running containers alone; whatever fails rejects the whole pod with
``UnexpectedAdmissionError``. Extended resources of no plugin count only if the node lists them (D.10).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any

from gpusim.cluster import kubelet_edits as edits
from gpusim.cluster.kubelet_allocation import AllocationError, Allocator
from gpusim.cluster.kubelet_devices import DeviceTable
from gpusim.cluster.kubelet_edits import Admission
from gpusim.cluster.kubelet_holdings import Holdings
from gpusim.cluster.kubelet_journal import Journal
from gpusim.cluster.kubelet_requests import Asking, containers, lasting, total, uid
from gpusim.cluster.kubelet_topology import Hint, decide
from gpusim.cluster.kubelet_wire import PluginError

Object = dict[str, Any]
NO_AFFINITY = Hint(None, False)


class Runtime:
    """Which containers run. It outlives the kubelet, but not the node."""

    def __init__(self, running: Mapping[str, tuple[str, ...]] | None = None) -> None:
        self._lock = threading.Lock()
        self._running = dict(running or {})

    def start(self, pod: Object) -> None:
        """All lasting containers of a pod run."""
        with self._lock:
            self._running[uid(pod)] = lasting(pod)

    def only(self, pod: Object, names: Iterable[str]) -> None:
        """Of a pod just these run."""
        with self._lock:
            self._running[uid(pod)] = tuple(names)

    def end(self, pod_uid: str) -> None:
        """None of them runs any more."""
        with self._lock:
            self._running.pop(pod_uid, None)

    def running(self, pod_uid: str) -> tuple[str, ...]:
        """Names of a pod's running containers."""
        with self._lock:
            return self._running.get(pod_uid, ())

    def all(self) -> dict[str, tuple[str, ...]]:
        """Pod uid → running containers."""
        with self._lock:
            return dict(self._running)


class Admitter:
    """Admits pods, one at a time (the caller sees to it).

    Args:
        allocator: takes devices.
        table: which resources are a plugin's.
        holdings: what containers hold.
        runtime: what runs.
        journal: what happened.
        policy: the topology manager's.
        numa_nodes: the machine's.
        prestart_timeout: seconds for PreStartContainer (30 in the original).
        keep_finished_init: a restarting kubelet does not check the devices of finished init containers of
            a running pod. Upstream versions differ (kubernetes#124345, B44 c).
    """

    def __init__(
        self,
        allocator: Allocator,
        table: DeviceTable,
        holdings: Holdings,
        runtime: Runtime,
        journal: Journal,
        *,
        policy: str,
        numa_nodes: tuple[int, ...],
        prestart_timeout: float,
        keep_finished_init: bool,
    ) -> None:
        self._allocator, self._table, self._holdings = allocator, table, holdings
        self._runtime, self._journal = runtime, journal
        self._policy, self._numa_nodes = policy, numa_nodes
        self._prestart_timeout, self._keep_finished_init = prestart_timeout, keep_finished_init

    def admit(
        self, pod: Object, *, syncing: bool, allocatable: Mapping[str, int], others: Mapping[str, int]
    ) -> Admission:
        """Allocate for all containers of a pod.

        Args:
            pod: the pod object.
            syncing: the kubelet has just started, and sees pods of its former life.
            allocatable: extended resources the node lists.
            others: what the other pods of the node ask of them.
        """
        try:
            for one, reusable in self._walk(pod):
                refused = self._container(pod, one, reusable, syncing)
                if refused is not None:
                    return refused
        except (AllocationError, ValueError) as error:
            return Admission(
                False, "UnexpectedAdmissionError", f"Allocate failed due to {error}, which is unexpected"
            )
        short = self._short(pod, allocatable, others)
        if short is not None:
            return short
        return Admission(True, containers={one.name: self._edits(pod, one) for one in containers(pod)})

    def _walk(self, pod: Object) -> list[tuple[Asking, dict[str, set[str]]]]:
        """Containers in order, each with the devices it may re-use (a table shared and updated)."""
        shared: dict[str, set[str]] = {}
        return [(one, shared) for one in containers(pod)]

    def _container(
        self, pod: Object, one: Asking, reusable: dict[str, set[str]], syncing: bool
    ) -> Admission | None:
        asked = {r: n for r, n in one.amounts.items() if self._table.knows(r)}
        offered = [
            self._allocator.hints(uid(pod), one.name, r, n, reusable.get(r, set())) for r, n in asked.items()
        ]
        affinity, admitted = decide(self._policy, offered, self._numa_nodes)
        if not admitted:
            return Admission(
                False, "TopologyAffinityError", "Resources cannot be allocated with Topology locality"
            )
        for resource, size in asked.items():
            self._allocator.allocate(
                uid(pod),
                one.name,
                resource,
                size,
                affinity=affinity,
                reusable=reusable.get(resource, set()),
                running=syncing and self._is_running(pod, one),
            )
            held = self._holdings.of(uid(pod), one.name, resource)
            mine = set(held.ids) if held is not None else set()
            pool = reusable.setdefault(resource, set())
            if one.passing:
                pool |= mine
            else:
                pool -= mine
        return None

    def _is_running(self, pod: Object, one: Asking) -> bool:
        running = self._runtime.running(uid(pod))
        return one.name in running or (bool(running) and one.passing and self._keep_finished_init)

    def _short(
        self, pod: Object, allocatable: Mapping[str, int], others: Mapping[str, int]
    ) -> Admission | None:
        """The predicate for extended resources that come from no plugin; those not listed are dropped."""
        for resource in sorted({r for one in containers(pod) for r in one.amounts}):
            if resource not in allocatable or self._table.knows(resource):
                continue
            asked, used = total(pod, resource), others.get(resource, 0)
            if asked + used > allocatable[resource]:
                why = (
                    f"Node didn't have enough resource: {resource}, requested: {asked}, used: {used}, "
                    f"capacity: {allocatable[resource]}"
                )
                return Admission(False, f"OutOf{resource}", why)
        return None

    def _edits(self, pod: Object, one: Asking) -> edits.Edits:
        merged = edits.merge(*self._allocator.answers(uid(pod), one.name))
        for conflict in merged.conflicts:
            self._journal.record("env-conflict", uid=uid(pod), container=one.name, what=conflict)
        return merged

    def start(self, pod: Object) -> str:
        """Start a pod's containers that do not run: PreStart where required, and a late Allocate if need be.

        Returns:
            Empty, or why a container cannot start (the pod stays Pending and is tried again).
        """
        try:
            for one in containers(pod):
                if self._is_running(pod, one):
                    continue
                for resource, size in one.amounts.items():
                    if size and self._table.knows(resource):
                        self._prepare(pod, one, resource, size)
        except (AllocationError, ValueError) as error:
            return str(error)
        self._runtime.start(pod)
        return ""

    def _prepare(self, pod: Object, one: Asking, resource: str, size: int) -> None:
        endpoint = self._table.endpoint(resource)
        held = self._holdings.of(uid(pod), one.name, resource)
        if endpoint is not None and endpoint.prestart and endpoint.plugin is not None:
            if held is None:
                raise AllocationError(
                    f'no devices found allocated in local cache for pod "{uid(pod)}", '
                    f'container "{one.name}", resource {resource}'
                )
            self._journal.record("prestart", resource, uid=uid(pod), container=one.name, ids=held.ids)
            try:
                endpoint.plugin.prestart(held.ids, self._prestart_timeout)
            except PluginError as error:
                raise AllocationError(
                    f"device plugin PreStartContainer rpc failed with err: {error}"
                ) from None
        elif held is None:
            self._allocator.allocate(
                uid(pod), one.name, resource, size, affinity=NO_AFFINITY, reusable=set(), running=False
            )

    def edits(self, pod: Object) -> dict[str, edits.Edits]:
        """The containers' edits as they stand."""
        return {one.name: self._edits(pod, one) for one in containers(pod)}
