"""Hold every pod to its device memory: what the vendor wants is compared with the kernel, again and again.

Level-triggered. Which limits there should be follows from the pods alone (decision 29), so a restart
loses nothing and a limit that somebody changed is put back. A pod's cgroup appears up to seven seconds
after its Allocate (kernel.md 4.5); until it does it is looked for more than once a second. Files are
touched in the one thread that owns the Host; no Allocate waits for any of this (amd.md 7).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Generic

from devplugin.answers import Caps, PodEvent
from devplugin.daemon.hands import Hands
from devplugin.dmem import Outcome, pod_group, set_limits
from devplugin.hami import Pod
from devplugin.host import Host
from devplugin.kube import Api, KubeError
from devplugin.vendor import Inv, S, Vendor

log = logging.getLogger(__name__)

PERIOD = 30.0
"""Seconds between two looks at limits that hold."""

FIRST = 0.2
ABSENT = 0.5
"""Longest pause while a cgroup is not there: with a busy node's delays still less than a second."""
REFUSED = 5.0
"""Longest pause while the kernel does not take a limit: somebody must free memory first."""
PATIENCE = 10
"""Looks at a cgroup without the file before that is worth a line: runtimes make one after the other."""

REASON = "MemoryCapNotInForce"
MIRROR = "kubernetes.io/config.mirror"
_STATIC = re.compile(r"[0-9a-f]{32}")


def kubelet_uid(pod: Pod) -> str:
    """The uid kubelet knows a pod by: of a static pod's mirror that of the static pod (kernel.md 5).

    Kubelet writes it, 32 hex digits, into the mirror's annotation; the API server gives the mirror another.
    """
    mirrored = pod.annotations.get(MIRROR, "")
    return mirrored if _STATIC.fullmatch(mirrored) else pod.uid


@dataclass(slots=True)
class _Watched:
    """One pod with limits, and what became of them so far."""

    pod: Pod
    group: str
    limits: Mapping[str, int]
    due: float = 0.0
    """Loop time of the next look."""
    pause: float = FIRST
    in_force: bool = False
    bare: int = 0
    """Looks at a cgroup without the file."""
    said: set[str] = field(default_factory=set)
    event: PodEvent | None = None
    """Still to be told."""
    told: bool = False
    """An event was made; there is one for each pod."""


class Capper(Generic[Inv, S]):
    """Keeps dmem limits of the node's pods as the vendor wants them.

    Args:
        api: for events.
        vendor, settings: who says which limits there should be.
        host: the node; touched in `worker` only.
        worker: an executor of one thread.
        node: this node's name.
        current: the last immutable inventory; None before the first discovery.
    """

    def __init__(
        self,
        api: Api,
        vendor: Vendor[Inv, S],
        settings: S,
        *,
        host: Host,
        worker: Executor,
        node: str,
        current: Callable[[], Inv | None],
    ) -> None:
        self._api = api
        self._vendor = vendor
        self._settings = settings
        self._host = host
        self._worker = worker
        self._node = node
        self._current = current
        self._pods: dict[str, Pod] = {}
        self._watched: dict[str, _Watched] = {}
        self._warned: frozenset[str] = frozenset()
        self._news = False
        self._wake = asyncio.Event()
        self._next_full = 0.0

    # -------------------------------------------------------------- what it is told

    def listed(self, pods: Sequence[Pod]) -> None:
        """All pods of the node, as just read."""
        self._pods = {pod.uid: pod for pod in pods}
        self.hurry()

    def granted(self, pod: Pod) -> None:
        """One pod, as it is after a slot of it was served."""
        self._pods[pod.uid] = pod
        self.hurry()

    def hurry(self) -> None:
        """Something changed: compare everything now."""
        self._news = True
        self._wake.set()

    # -------------------------------------------------------------- the loop

    async def run(self) -> None:
        """For ever."""
        async with asyncio.TaskGroup() as speaking:
            while True:
                self._wake.clear()
                wait = PERIOD
                try:
                    wait = await self._turn(speaking)
                except Exception:
                    log.exception("limits could not be compared")
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await self._wake.wait()

    async def _turn(self, speaking: asyncio.TaskGroup) -> float:
        """One look at all that is due; seconds until the next."""
        loop = asyncio.get_running_loop()
        inventory = self._current()
        if inventory is None:
            return PERIOD
        if self._news or loop.time() >= self._next_full:
            self._news = False
            self._next_full = loop.time() + PERIOD
            pods = tuple(self._pods.values())
            wanted = await loop.run_in_executor(
                self._worker, self._vendor.caps, inventory, self._settings, pods
            )
            self._adopt(wanted)
        due = [one for one in self._watched.values() if one.due <= loop.time()]
        if due:
            work = [(one.group, one.limits) for one in due]
            outcomes = await loop.run_in_executor(self._worker, _set_all, self._host, work)
            for one, outcome in zip(due, outcomes, strict=True):
                self._judge(one, outcome)
                one.due = loop.time() + one.pause
                if one.event is not None:
                    speaking.create_task(self._tell(one, one.event))
                    one.event = None
        ahead = [self._next_full, *(one.due for one in self._watched.values())]
        return max(0.0, min(ahead) - loop.time())

    def _adopt(self, wanted: Caps) -> None:
        """Watch these pods and no other; each is due at once."""
        warnings = list(wanted.warnings)
        before, self._watched = self._watched, {}
        for cap in wanted.pods:
            try:
                group = pod_group(kubelet_uid(cap.pod), cap.pod.qos)
            except ValueError as error:
                warnings.append(f"pod {cap.pod}: {error}, so its memory is not limited")
                continue
            one = before.get(group) or _Watched(cap.pod, group, cap.limits)
            if one.limits != cap.limits:
                one.limits, one.pause, one.in_force = cap.limits, FIRST, False
            one.pod, one.due = cap.pod, 0.0
            self._watched[group] = one
        for line in warnings:
            if line not in self._warned:
                log.warning("%s", line)
        self._warned = frozenset(warnings)

    # -------------------------------------------------------------- what is said about it

    def _judge(self, one: _Watched, outcome: Outcome) -> None:
        """Say what is new, and choose the pause until the next look."""
        for region, value in outcome.replaced.items():
            if one.in_force and value != "max":
                log.warning("pod %s: %s was set to %s, put back", one.pod, region, value)
            elif one.in_force:
                log.warning("pod %s: the limit of %s was taken away, put back", one.pod, region)
        if outcome.holds:
            if not one.in_force:
                text = ", ".join(f"{region} {limit}" for region, limit in one.limits.items())
                log.info("pod %s: limited to %s", one.pod, text)
            one.in_force, one.pause = True, PERIOD
            one.said.clear()
            one.bare = 0
            return
        if outcome.no_group or outcome.no_file:
            one.in_force = False
            one.pause = FIRST if one.pause > ABSENT else min(one.pause * 1.5, ABSENT)
            one.bare = one.bare + 1 if outcome.no_file else 0
            if one.bare == PATIENCE:
                self._say(one, f"{one.group} has no dmem.max: no ancestor hands the controller down to it")
            return
        one.pause = FIRST if one.pause > REFUSED else min(one.pause * 2, REFUSED)
        for region, why in outcome.failed.items():
            self._say(one, f"{region} cannot be limited: {why}")
        for region, value in outcome.kept.items():
            self._say(
                one,
                f"{region}: the kernel keeps {value} instead of {one.limits[region]} while more is in use; "
                "trying again until memory is freed",
            )
        one.in_force = False

    def _say(self, one: _Watched, text: str) -> None:
        """Once to the log; the first text of a pod also to its owner."""
        if text in one.said:
            return
        one.said.add(text)
        log.warning("pod %s: %s", one.pod, text)
        if not one.told:
            one.told = True
            pod = one.pod
            name = f"{self._node}.{REASON.lower()}.{pod.uid}"
            one.event = PodEvent(pod.namespace, pod.name, pod.uid, "Warning", REASON, text, name)

    async def _tell(self, one: _Watched, event: PodEvent) -> None:
        try:
            await Hands(self._api, self._node).perform((event,))
        except KubeError as error:
            log.info("event of pod %s: %s", one.pod, error)
            one.event = event  # with its next look
        except Exception:
            log.exception("event of pod %s", one.pod)


def _set_all(host: Host, work: Sequence[tuple[str, Mapping[str, int]]]) -> list[Outcome]:
    return [set_limits(host, group, limits) for group, limits in work]
