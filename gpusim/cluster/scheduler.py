"""A HAMi scheduler for tests: it reads what nodes registered, places pods, locks nodes and binds.

The other side of the protocol a device plugin speaks (ascend_ppu_hami.md D.3 to D.10; amd.md 17),
written from the protocol alone, so that it is an oracle for the plugin. Decisions are pure
(`scheduler_filter`, `scheduler_ledger`, `scheduler_devices`); this file only reads, asks them, and writes. It
remembers nothing but the registrations (`scheduler_nodes`): for each pod the ledger is counted anew.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import tzinfo
from types import TracebackType
from typing import Any

from gpusim.cluster.apiclient import ApiClient
from gpusim.cluster.apiport import Api
from gpusim.cluster.apistatus import ApiError, UnreachableError
from gpusim.cluster.kubelet_journal import Event, Journal
from gpusim.cluster.pods import BIND_PHASE, BIND_TIME, VGPU_NODE, VGPU_TIME, PlacementError, encode
from gpusim.cluster.scheduler_devices import Registered
from gpusim.cluster.scheduler_filter import Choice, Rules, asked, choose
from gpusim.cluster.scheduler_ledger import count, ended
from gpusim.cluster.scheduler_lock import EXPIRY, ContentionError, LockError, NodeLock
from gpusim.cluster.scheduler_metrics import exposition, of_devices, of_pods
from gpusim.cluster.scheduler_nodes import Nodes
from gpusim.cluster.scheduler_reasons import summed
from gpusim.cluster.scheduler_vendors import AMD, Vendor, container_requests
from gpusim.cluster.scheduler_webhook import SCHEDULER_NAME
from gpusim.errors import GpusimError

Object = dict[str, Any]
Objects = list[Object]
_ERRORS = (LockError, ApiError, UnreachableError)

BOUND, UNSCHEDULABLE, CONTENTION, FAILED = "bound", "unschedulable", "contention", "failed"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one attempt to schedule a pod ended."""

    kind: str
    """``bound``; ``unschedulable``: no node fits; ``contention``: the node's lock is another pod's;
    ``failed``: the API server said no, or nothing."""
    node: str = ""
    message: str = ""
    choice: Choice = field(default_factory=Choice)

    @property
    def reasons(self) -> dict[str, int]:
        """Why devices did not do, of all nodes together: reason → devices."""
        return summed(self.choice.reasons.values())

    @property
    def bound(self) -> bool:
        """Whether the pod has its node."""
        return self.kind == BOUND


class Scheduler:
    """Schedules what is pending; also a context manager that does so in a thread.

    Args:
        api: URL of an API server, or an `Api` of this process.
        vendors: rows of the table: `scheduler_vendors.AMD`, and what `scheduler_config.config_vendors`
            makes of a device configuration. Of two with one word the last holds.
        rules: policies, and what differs between HAMi's releases.
        name: pods with this ``spec.schedulerName`` are ours, and those that ask for devices: the webhook
            would have given them the name.
        believes: ``capacity`` or, newer, ``allocatable``: where a node has to count devices (D.3).
        expiry: of node locks, seconds.
        refresh_seconds: how often registrations are read (15 in the original).
        poll_seconds: how often pending pods are looked for.
        retry_seconds: before a pod that could not be bound is tried again.
        now: unix seconds, for what is written.
        zone: of the times in handshakes; None: this process's.
        sleep: waits between tries at a lock.
        seed: of the jitter.
    """

    def __init__(
        self,
        api: str | Api,
        *,
        vendors: Sequence[Vendor] = (AMD,),
        rules: Rules | None = None,
        name: str = SCHEDULER_NAME,
        believes: str = "capacity",
        expiry: float = EXPIRY,
        refresh_seconds: float = 15.0,
        poll_seconds: float = 0.1,
        retry_seconds: float = 1.0,
        now: Callable[[], float] = time.time,
        zone: tzinfo | None = None,
        sleep: Callable[[float], object] = time.sleep,
        seed: int = 1,
    ) -> None:
        self._client = ApiClient(api, agent="gpusim-scheduler") if isinstance(api, str) else None
        self._api: Api = self._client if self._client is not None else api  # type: ignore[assignment]
        self.vendors = tuple({vendor.word: vendor for vendor in vendors}.values())
        self.rules, self.name = rules or Rules(), name
        self._now = now
        self._refresh, self._poll, self._retry = refresh_seconds, poll_seconds, retry_seconds
        self._lock = NodeLock(self._api, expiry=expiry, now=now, sleep=sleep, seed=seed)
        self._journal = Journal()
        self._nodes = Nodes(self._api, self.vendors, believes, self._journal, now=now, zone=zone)
        self._one = threading.RLock()  # one pod after the other, whoever asks
        self._waits: dict[str, float] = {}
        self._said: dict[str, str] = {}
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def devices(self) -> Mapping[str, Mapping[str, tuple[Registered, ...]]]:
        """Node → vendor's word → devices, as of the last round."""
        return self._nodes.devices

    @property
    def events(self) -> list[Event]:
        """What happened, oldest first."""
        return self._journal.entries()

    def refresh(self) -> None:
        """Read all registrations now; see `scheduler_nodes.Nodes.refresh`."""
        with self._one:
            self._nodes.refresh()

    def metrics(self) -> str:
        """What Prometheus would scrape now: the last round's devices, and what pods hold of them.

        Raises:
            ApiError: pods cannot be listed.
            UnreachableError: no answer.
        """
        with self._one:
            pods = self._api.list("pods")
            ledger, _ = count(pods, self.vendors)
            told = [*of_devices(self.devices, ledger), *of_pods(pods, self.vendors)]
        return exposition(told)

    # -- one pod ------------------------------------------------------------------------------------------

    def schedule_once(self, name: str, namespace: str = "default", *, refresh: bool = True) -> Outcome:
        """Filter and bind one pod now.

        Args:
            name: the pod's.
            namespace: the pod's.
            refresh: read the registrations first, instead of what the last round found.
        """
        with self._one:
            try:
                if refresh:
                    self.refresh()
                pod = self._api.get("pods", name, namespace)
                if node := pod["spec"].get("nodeName"):
                    return Outcome(FAILED, node, f"pod {name} is already assigned to node {node}")
                choice = self.filter(pod)
            except (ApiError, UnreachableError, PlacementError) as error:
                return Outcome(FAILED, message=str(error))
            if not choice.node:
                listed = "; ".join(f"{node}: {why}" for node, why in choice.reasons.items())
                return Outcome(UNSCHEDULABLE, message=listed or "no node", choice=choice)
            return self.bind(pod, choice)

    def filter(self, pod: Object) -> Choice:
        """Choose a node and write the choice into the pod, in one patch.

        A pod that asks for nothing that can be read fits everywhere, and nothing is written (D.9, D.10).

        Raises:
            ApiError: the patch was refused, or pods cannot be listed: the filter fails.
            UnreachableError: no answer; what was written counts until the next attempt replaces it.
            PlacementError: a node registered an id or a type that the grammar cannot hold.
        """
        metadata = pod["metadata"]
        names = self._candidates(pod)
        if not any(asked(pod, self.vendors)):
            return Choice(names[0] if names else "")
        ledger, complaints = count(self._api.list("pods"), self.vendors, without=metadata["uid"])
        for text in complaints:
            if text not in self._said:
                self._said[text] = text
                self._journal.record("uncounted", why=text)
        nodes = {node: self.devices[node] for node in names if self.devices.get(node)}
        choice = choose(pod, self.vendors, nodes, ledger, self.rules)
        if not choice.node:
            return choice
        annotations = {VGPU_NODE: choice.node, VGPU_TIME: str(int(self._now()))}
        for vendor in self.vendors:
            if vendor.word in choice.slots:
                value = encode(choice.slots[vendor.word])
                annotations |= {vendor.to_allocate: value, vendor.allocated: value}
                if vendor.notes is not None:
                    soft = vendor.is_soft(pod)
                    annotations |= vendor.notes(choice.slots[vendor.word], soft, int(self._now()))
        patch = {"metadata": {"annotations": annotations, "labels": {VGPU_NODE: choice.node}}}
        self._api.patch("pods", metadata["name"], patch, metadata["namespace"])
        self._journal.record("filtered", uid=metadata["uid"], pod=metadata["name"], node=choice.node)
        return choice

    def _candidates(self, pod: Object) -> list[str]:
        """Nodes that kube-scheduler lets through before HAMi is asked: schedulable, and as selected."""
        wanted = (pod["spec"].get("nodeSelector") or {}).items()
        nodes = self._api.list("nodes")
        return [
            node["metadata"]["name"]
            for node in nodes
            if not (node.get("spec") or {}).get("unschedulable")
            and wanted <= (node["metadata"].get("labels") or {}).items()
        ]

    def bind(self, pod: Object, choice: Choice) -> Outcome:
        """Lock the node, mark the pod, create its Binding; any failure gives the lock back (D.8)."""
        metadata, node = pod["metadata"], choice.node
        name, namespace = metadata["name"], metadata["namespace"]
        # a pod that asks in its init containers only takes no lock (D.7)
        asking = [container_requests(self.vendors, one) for one in pod["spec"].get("containers") or ()]
        locks = sorted({request.word for one in asking for request in one})
        try:
            for _ in locks:  # one lock, asked for once a vendor: what the pod has already it gets again
                self._lock.acquire(node, namespace, name)
            if choice.slots:
                bound = {BIND_PHASE: "allocating", BIND_TIME: str(int(self._now()))}
                self._api.patch("pods", name, {"metadata": {"annotations": bound}}, namespace)
            self._api.bind(name, node, namespace)
        except _ERRORS as error:
            if locks:
                with suppress(ApiError, UnreachableError):
                    self._lock.release(node, namespace, name)
            kind = CONTENTION if isinstance(error, ContentionError) else FAILED
            self._journal.record(kind, uid=metadata["uid"], pod=name, node=node, why=str(error))
            return Outcome(kind, node, str(error), choice)
        self._journal.record(BOUND, uid=metadata["uid"], pod=name, node=node)
        return Outcome(BOUND, node, choice=choice)

    # -- all pods -----------------------------------------------------------------------------------------

    def pending(self) -> Objects:
        """Pods that wait for us, the oldest first.

        Raises:
            ApiError: as the server says.
            UnreachableError: no answer.
        """
        pods = [pod for pod in self._api.list("pods", fields="spec.nodeName=") if self._is_ours(pod)]
        return sorted(pods, key=lambda p: (p["metadata"]["creationTimestamp"], p["metadata"]["name"]))

    def _is_ours(self, pod: Object) -> bool:
        if ended(pod) or pod["metadata"].get("deletionTimestamp"):
            return False
        return pod["spec"].get("schedulerName") == self.name or any(asked(pod, self.vendors))

    def round(self) -> list[Outcome]:
        """Try every pending pod whose wait is over once; the registrations are read when it is time.

        Raises:
            ApiError: as the server says.
            UnreachableError: no answer.
        """
        if self._nodes.due(self._refresh):
            self.refresh()
        waiting = self.pending()
        self._waits = {u: t for u, t in self._waits.items() if u in {p["metadata"]["uid"] for p in waiting}}
        outcomes = []
        for pod in waiting:
            metadata = pod["metadata"]
            if self._over.is_set() or time.monotonic() < self._waits.get(metadata["uid"], 0.0):
                continue
            outcome = self.schedule_once(metadata["name"], metadata["namespace"], refresh=False)
            outcomes.append(outcome)
            if not outcome.bound:
                self._waits[metadata["uid"]] = time.monotonic() + self._retry
                self._tell(pod, outcome)
        return outcomes

    def _tell(self, pod: Object, outcome: Outcome) -> None:
        """What kube-scheduler writes into a pod that it could not place; only when it is news."""
        metadata, message = pod["metadata"], f"{outcome.kind}: {outcome.message}"
        if self._said.get(metadata["uid"]) == message:
            return
        self._said[metadata["uid"]] = message
        self._journal.record("unplaced", uid=metadata["uid"], pod=metadata["name"], why=message)
        kept = [c for c in pod["status"].get("conditions", ()) if c.get("type") != "PodScheduled"]
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        with suppress(ApiError, UnreachableError):
            self._api.patch(
                "pods",
                metadata["name"],
                {"status": {"conditions": [*kept, condition]}},
                metadata["namespace"],
                subresource="status",
            )

    def run(self) -> None:
        """Schedule until `stop`; an API server that is away is waited for."""
        while not self._over.is_set():
            try:
                self.round()
            except (ApiError, UnreachableError) as error:
                self._journal.record("api-error", why=str(error))
                self._over.wait(self._retry)
            self._over.wait(self._poll)

    def start(self) -> Scheduler:
        """`run` in a thread.

        Raises:
            GpusimError: it runs already.
        """
        if self._thread is not None:
            raise GpusimError("the scheduler runs already")
        self._over.clear()
        self._thread = threading.Thread(target=self.run, name="scheduler", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """End; fine when it does not run."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(15)
            self._thread = None
        if self._client is not None:
            self._client.close()

    def __enter__(self) -> Scheduler:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def wait_for(self, holds: Callable[[Scheduler], bool], timeout: float = 10.0) -> bool:
        """Wait until something was recorded that makes ``holds(scheduler)`` true; returns True.

        Raises:
            TimeoutError: it does not in time; the text shows the last events.
        """
        if self._journal.wait(lambda: holds(self), timeout):
            return True
        last = "\n  ".join(f"{e.kind} {dict(e.detail)}" for e in self.events[-12:])
        raise TimeoutError(f"not within {timeout} s; last events:\n  {last}")
