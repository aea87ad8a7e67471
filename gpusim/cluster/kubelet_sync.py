"""The kubelet's two loops with the API server: publish the node, take up and end pods.

Both poll, and both try for ever: a lost or refused call is made again on the next round. They are separate
threads, because a hanging Allocate blocks admission but not the node's status.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from gpusim.cluster import kubelet_status as statuses
from gpusim.cluster.apiport import Api
from gpusim.cluster.apistatus import ApiError, UnreachableError
from gpusim.cluster.kubelet_edits import Admission
from gpusim.cluster.kubelet_journal import Journal
from gpusim.cluster.kubelet_life import KubeletGoneError, Life
from gpusim.cluster.kubelet_requests import TERMINAL, uid
from gpusim.cluster.resourcenames import is_extended, whole

Object = dict[str, Any]
LOOK_SECONDS = 1.0
"""How often the node object is compared although no device changed."""
RETRY_SECONDS = 1.0
"""How often a failed container start is tried (the original backs off from 10 s; nobody wants to wait)."""


@dataclass(slots=True)
class Known:
    """A pod this life has decided on."""

    pod: Object
    admission: Admission
    tried: float
    """When its containers were last tried to start."""
    written: Object | None = None
    """The status the API server has from us."""


class Troubles:
    """Records API errors once per streak."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._last = ""

    def run(self, what: str, step: Callable[[], None]) -> bool:
        """Do a step; False, and an event on the first of a streak, when the API refused or was away."""
        try:
            step()
        except (ApiError, UnreachableError) as error:
            text = f"{what}: {error}"
            if text != self._last:
                self._journal.record("api-error", what=what, why=str(error))
            self._last = text
            return False
        self._last = ""
        return True


class NodeLoop:
    """Keeps the node object's status true."""

    def __init__(self, api: Api, node: str, life: Life, journal: Journal, poll: float) -> None:
        self._api, self._node, self._life, self._journal, self._poll = api, node, life, journal, poll
        self._published: Any = None
        self._looked = float("-inf")
        self._recreated = life.recreated

    def run(self) -> None:
        """Until the life is over."""
        troubles = Troubles(self._journal)
        while not self._life.over.is_set():
            totals = self._life.table.totals()
            due = totals != self._published or time.monotonic() - self._looked >= LOOK_SECONDS
            if due and troubles.run("node status", partial(self._publish, totals)):
                self._published, self._looked = totals, time.monotonic()
            self._life.over.wait(self._poll)

    def _publish(self, totals: tuple[dict[str, tuple[int, int]], set[str]]) -> None:
        try:
            node = self._api.get("nodes", self._node)
        except ApiError as error:
            if error.code != 404:
                raise
            node = self._api.create("nodes", statuses.new_node(self._node))
        patch = statuses.node_patch(node, *totals, recreated=self._recreated, now=time.time())
        if patch is not None and not self._life.over.is_set():
            node = self._api.patch("nodes", self._node, patch, subresource="status")
            self._journal.record("published", status=patch["status"])
        self._recreated = False
        listed = node["status"].get("allocatable") or {}
        self._life.allocatable = {r: whole(amount) for r, amount in listed.items() if is_extended(r)}


class PodLoop:
    """Takes up the pods bound to this node, and writes their status."""

    def __init__(self, api: Api, node: str, life: Life, journal: Journal, poll: float) -> None:
        self._api, self._node, self._life, self._journal, self._poll = api, node, life, journal, poll
        self._known: dict[str, Known] = {}
        self._syncing = True

    def run(self) -> None:
        """Until the life is over."""
        troubles = Troubles(self._journal)
        while not self._life.over.is_set():
            try:
                troubles.run("pods", self._round)
            except KubeletGoneError:
                return
            self._life.over.wait(self._poll)

    def _round(self) -> None:
        pods = self._api.list("pods", fields=f"spec.nodeName={self._node}")
        here = {uid(pod) for pod in pods}
        for gone in set(self._known) - here:
            self._life.forget(self._known.pop(gone).pod)
        # those that ended first: what they held is free for those that come
        pods.sort(key=lambda p: (not _over(p), p["metadata"]["creationTimestamp"], p["metadata"]["name"]))
        trouble: Exception | None = None
        for pod in pods:
            try:
                self._one(pod)
            except (ApiError, UnreachableError) as error:
                trouble = error
        self._life.retain(here | set(self._life.pods))
        self._syncing = False
        if trouble is not None:
            raise trouble

    def _one(self, pod: Object) -> None:
        known = self._known.get(uid(pod))
        if _over(pod):
            self._known.pop(uid(pod), None)
            self._life.forget(pod)
            if pod["metadata"].get("deletionTimestamp"):
                self._api.delete("pods", pod["metadata"]["name"], pod["metadata"]["namespace"])
            return
        if known is None:
            admission = self._life.admit(pod, syncing=self._syncing)
            known = self._known[uid(pod)] = Known(pod, admission, time.monotonic())
        elif known.admission.waits and time.monotonic() - known.tried >= RETRY_SECONDS:
            known.admission = self._life.start(pod)
            known.tried = time.monotonic()
        self._write(known, pod)

    def _write(self, known: Known, pod: Object) -> None:
        if known.admission.admitted:
            processes = self._life.settings.processes
            layout = None if processes is None else processes.layout
            status = statuses.accepted(pod, known.admission, self._life.health, time.time(), layout)
        elif known.written is None:
            status = statuses.rejected(known.admission, time.time())
        else:
            return
        if status == known.written or self._life.over.is_set():
            return
        metadata = pod["metadata"]
        self._api.patch(
            "pods", metadata["name"], {"status": status}, metadata["namespace"], subresource="status"
        )
        known.written = status


def _over(pod: Object) -> bool:
    return (pod.get("status") or {}).get("phase") in TERMINAL or bool(
        pod["metadata"].get("deletionTimestamp")
    )
