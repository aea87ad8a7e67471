"""Carry out one Allocate against the API server, and put right what a killed one left.

`devplugin.plan` decides; this file reads, patches, releases and replies, in the one order that may be
cut anywhere (decision 19): read node and pods · decide · effects that must come first · one pod patch ·
release the lock · reply. Killed before the patch, nothing happened and kubelet fails the pod; killed
after it, records and slot agree, and `sweep` releases the lock. Nothing is kept between calls.

One Allocate at a time: the next must see what this one recorded. With the API server away the answer
is `Unavailable` in time (decision 24), because pod admission of the whole node waits for it.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from devplugin.answers import ContainerEdits, Effect, FactRequest, Refused
from devplugin.daemon.hands import Hands
from devplugin.daemon.logs import TRACE
from devplugin.deeds import DeedError
from devplugin.hami import BIND_PHASE, LOCK, Node, Pod, Sweep, may_release, owner_of, readings, sweep
from devplugin.kube import Api, Conflict, KubeError, NotFound, Unavailable
from devplugin.plan import Denied, Granted, Needs, denied, plan
from devplugin.vendor import Inv, S, Vendor

log = logging.getLogger(__name__)

T = TypeVar("T")

Facts = Callable[[Sequence[FactRequest]], Awaitable[Mapping[FactRequest, Any]]]
"""Answers what `vendor.needs` asked for; every request gets an answer."""


class PodWatcher(Protocol):
    """Who wants to know of the node's pods; neither call may block."""

    def listed(self, pods: Sequence[Pod]) -> None:
        """All pods of the node, as just read."""
        ...

    def granted(self, pod: Pod) -> None:
        """One pod, as it is after a slot of it was served."""
        ...


@dataclass(frozen=True, slots=True)
class Budget:
    """Seconds one Allocate may take; every API call has its own, shorter deadline besides."""

    answer: float = 24.0
    """All of it, waiting for another Allocate included: below the 25 s of decision 24."""
    gather: float = 12.0
    """How long reading is tried again while the API server is away: a patch must still fit after it."""
    release: float = 6.0
    """How long releasing the lock may hold up a reply; after that the sweep has it."""
    pause: float = 0.1
    """First pause between tries; doubles, with up to half of it as jitter (ascend_ppu_hami.md D.7)."""
    tries: int = 5
    """Of a patch that meets a conflict, and of a release."""


class Allocator(Generic[Inv, S]):
    """Allocate and sweep for one node.

    Args:
        api: the API server.
        vendor: whose devices they are.
        settings: the vendor's resolved settings.
        node: this node's name.
        current: the last immutable inventory; None before the first discovery.
        facts: gathers what a decision asks for.
        watcher: told of pods after each grant and by each sweep.
        hands: do what a decision asks for.
        turn: held by the one Allocate at work; whoever serves the same node shares it.
        noticed: told of the node by each sweep.
        waited: told how many seconds an Allocate waited for its turn.
    """

    def __init__(
        self,
        api: Api,
        vendor: Vendor[Inv, S],
        *,
        settings: S,
        node: str,
        current: Callable[[], Inv | None],
        facts: Facts,
        watcher: PodWatcher | None = None,
        hands: Hands | None = None,
        budget: Budget = Budget(),
        turn: asyncio.Lock | None = None,
        waited: Callable[[float], None] | None = None,
        noticed: Callable[[Node], None] | None = None,
    ) -> None:
        self._api = api
        self._vendor = vendor
        self._settings = settings
        self._node = node
        self._current = current
        self._facts = facts
        self._watcher = watcher
        self._hands = hands if hands is not None else Hands(api, node)
        self._budget = budget
        self._grants = 0
        self._warned: tuple[str, ...] = ()
        self._turn = turn if turn is not None else asyncio.Lock()
        self._waited = waited
        self._noticed = noticed
        self._background: set[asyncio.Task[None]] = set()

    # -------------------------------------------------------------- allocate

    async def allocate(self, ids: Sequence[str]) -> ContainerEdits:
        """Serve one container's request for these kubelet ids.

        Raises:
            Refused: the decision is no. The pod says ``failed``, its lock is released, an Event tells why
                (as far as the API server lets us).
            Unavailable: the API server, or time, gave out; nothing was granted.
        """
        asked = _now()
        until = asked + self._budget.answer
        try:
            async with asyncio.timeout_at(until - self._budget.release):
                await self._turn.acquire()
        except TimeoutError:
            raise Unavailable("another Allocate of this node is still at work") from None
        finally:
            if self._waited is not None:
                self._waited(_now() - asked)
        try:
            return await self._serve(tuple(ids), until)
        finally:
            self._turn.release()

    async def _serve(self, ids: tuple[str, ...], until: float) -> ContainerEdits:
        inventory = self._current()
        if inventory is None:
            raise Unavailable("the node's devices are not known yet")
        for attempt in range(self._budget.tries):
            decision = await self._decide(inventory, ids, until)
            if isinstance(decision, Denied):
                await self._deny(decision, until)
                raise Refused(decision.reason, why=decision.why)
            await self._first(decision, until)
            try:
                await self._grant(decision, until)
            except Conflict as error:  # somebody else wrote to the pod: read and decide anew
                log.info("pod %s changed meanwhile: %s", decision.claim.pod, error)
                await self._pause(attempt)
                continue
            self._later(decision.allocation.after)
            for note in decision.allocation.notes:
                log.info("%s", note)
            self._warn(decision.allocation.warnings)
            return decision.allocation.edits
        raise Unavailable("the pod kept changing while its devices were being recorded")

    def _warn(self, warnings: tuple[str, ...]) -> None:
        """Each as long as it stands once: a record stays wrong for as long as its pod lives."""
        for line in dict.fromkeys(warnings):
            if line not in self._warned:
                log.warning("%s", line)
        self._warned = warnings

    async def _first(self, decision: Granted, until: float) -> None:
        deeds = self._hands.perform(decision.allocation.before)
        try:
            await _within(until, deeds, "what must come before the reply")
        except KubeError as error:
            raise _unavailable(error) from error
        except DeedError as error:
            no = denied(f"node {self._node}: {error}", decision.claim.pod, "node")
            await self._deny(no, until)
            raise Refused(no.reason, why=no.why) from error

    async def _decide(self, inventory: Inv, ids: tuple[str, ...], until: float) -> Granted | Denied:
        facts: dict[FactRequest, Any] = {}
        node, pods = await self._gather(until)
        if log.isEnabledFor(TRACE):
            words = self._vendor.vocabulary(inventory, self._settings)
            for line in readings(node, pods, words) if words is not None else ():
                log.log(TRACE, "%s", line)
        while True:
            decision = plan(
                self._vendor, inventory, self._settings, node=node, pods=pods, ids=ids, facts=facts
            )
            if not isinstance(decision, Needs):
                return decision
            facts.update(await _within(until, self._facts(decision.requests), "facts about this node"))

    async def _gather(self, until: float) -> tuple[Node, tuple[Pod, ...]]:
        """This node and its pods, tried again for a while: an API server restarts in seconds."""
        patience = min(_now() + self._budget.gather, until)
        attempt = 0
        while True:
            try:
                return await _within(until, self._read(), "reading node and pods")
            except KubeError as error:
                late = _now() + self._pause_seconds(attempt) >= patience
                if late or not isinstance(error, Unavailable):
                    raise Unavailable(f"get pending pod: {error}") from error
            await self._pause(attempt)
            attempt += 1

    async def _read(self) -> tuple[Node, tuple[Pod, ...]]:
        return await asyncio.gather(self._api.node(self._node), self._api.pods_on(self._node))

    async def _grant(self, decision: Granted, until: float) -> None:
        """The pod patch, then the lock.

        Raises:
            Conflict: the pod is not as it was read.
            Unavailable: the patch was not written, or nobody can tell.
        """
        pod = decision.claim.pod
        if pod is None:
            return
        try:
            patched = await _within(until, self._patch(pod, decision.patch), f"the patch of pod {pod}")
        except NotFound as error:
            raise Unavailable(f"pod {pod} is gone: {error}") from error
        except Conflict:
            raise
        except KubeError as error:
            found = await self._written(pod, decision.patch, until)
            if found is None:
                raise _unavailable(error) from error
            log.warning("pod %s: the answer to its patch was lost (%s), but it was written", pod, error)
            patched = found
        self._grants += 1
        if self._watcher is not None:
            self._watcher.granted(patched)
        if decision.release:
            await self._release(pod, until)

    def _patch(self, pod: Pod, patch: Mapping[str, str | None]) -> Coroutine[Any, Any, Pod]:
        return self._api.patch_pod(pod.namespace, pod.name, patch, resource_version=pod.resource_version)

    async def _written(self, pod: Pod, patch: Mapping[str, str | None], until: float) -> Pod | None:
        """The pod, if a patch whose answer was lost has taken effect (amd.md 5.7)."""
        try:
            read = self._api.pod(pod.namespace, pod.name)
            now = await _within(until, read, f"reading pod {pod} back")
        except KubeError:
            return None
        same = now.uid == pod.uid
        return (
            now if same and all(now.annotations.get(key) == value for key, value in patch.items()) else None
        )

    async def _deny(self, decision: Denied, until: float) -> None:
        """Say so on the pod, release its lock even when that failed, then tell people."""
        log.warning("refused: %s", decision.reason)
        self._later(decision.after)
        pod = decision.pod
        if pod is None:
            return
        if decision.patch is not None:
            await self._quietly(self._mark(pod, decision.patch), until, f"marking pod {pod} as failed")
        await self._release(pod, until)
        if decision.event is not None:
            event = self._hands.perform((decision.event,))
            await self._quietly(event, until, f"the event of pod {pod}")

    async def _mark(self, pod: Pod, patch: Mapping[str, str | None]) -> None:
        """A phase on the pod as it is by now, unless another of that name took its place."""
        current = pod
        for attempt in range(self._budget.tries):
            try:
                await self._patch(current, patch)
            except Conflict:
                await self._pause(attempt)
                current = await self._api.pod(pod.namespace, pod.name)
                if current.uid != pod.uid or current.annotations.get(BIND_PHASE) == patch.get(BIND_PHASE):
                    return
            except NotFound:
                return
            else:
                return

    async def _release(self, pod: Pod, until: float) -> None:
        """Remove the lock if it is this pod's; what fails here is left to the sweep."""
        until = min(until, _now() + self._budget.release)
        await self._quietly(
            self._unlock(lambda node: may_release(node, pod)), until, f"the lock of pod {pod}"
        )

    async def _unlock(self, ours: Callable[[Node], bool]) -> None:
        for attempt in range(self._budget.tries):
            node = await self._api.node(self._node)
            if LOCK not in node.annotations or not ours(node):
                return
            try:
                await self._api.patch_node(node.name, {LOCK: None}, resource_version=node.resource_version)
            except Conflict:  # kubelet writes to the node every few seconds
                await self._pause(attempt)
            else:
                return
        raise Unavailable("the node kept changing")

    def _later(self, effects: Sequence[Effect]) -> None:
        if not effects:
            return
        deeds = self._hands.perform(effects)
        task = asyncio.create_task(self._quietly(deeds, _now() + 60.0, "background work of an Allocate"))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    # -------------------------------------------------------------- sweep

    async def sweep(self) -> None:
        """Release a lock nobody will release any more, and finish phases (decision 19).

        Raises:
            KubeError: something could not be read or written; the next sweep begins again.
        """
        node = await self._api.node(self._node)
        if self._noticed is not None:
            self._noticed(node)
        grants = self._grants
        pods = await self._api.pods_on(self._node)
        if self._watcher is not None and grants == self._grants:  # else the list may be older than a grant
            self._watcher.listed(pods)
        named = owner_of(node)
        owner = None
        if named is not None:
            try:
                owner = await self._api.pod(*named)
            except NotFound:
                owner = None
        wanted: Sweep = sweep(node, owner, pods)
        failed: KubeError | None = None
        for mark in wanted.marks:
            log.info("pod %s: bind-phase becomes %s", mark.pod, mark.phase)
            try:
                await self._patch(mark.pod, {BIND_PHASE: mark.phase})
            except (Conflict, NotFound) as error:
                log.info("pod %s changed meanwhile: %s", mark.pod, error)
            except KubeError as error:  # the node is not to stay locked for want of a pod's phase
                failed = error
        if wanted.release:
            log.warning("releasing the node lock: %s", wanted.why)
            # Only the lock this verdict is about: another pod may hold a new one by now.
            lock = node.annotations.get(LOCK)
            await self._unlock(lambda fresh: fresh.annotations.get(LOCK) == lock)
        if failed is not None:
            raise failed

    # -------------------------------------------------------------- small things

    async def _quietly(self, work: Coroutine[Any, Any, None], until: float, what: str) -> None:
        """Do it as far as it goes; failing here must not change the answer."""
        try:
            await _within(until, work, what)
        except (KubeError, DeedError) as error:
            log.warning("%s: %s", what, error)

    def _pause_seconds(self, attempt: int) -> float:
        return float(self._budget.pause * 2**attempt)

    async def _pause(self, attempt: int) -> None:
        await asyncio.sleep(self._pause_seconds(attempt) * (1.0 + random.random() / 2))


def _now() -> float:
    return asyncio.get_running_loop().time()


async def _within(until: float, work: Awaitable[T], what: str) -> T:
    try:
        async with asyncio.timeout_at(until):
            return await work
    except TimeoutError:
        raise Unavailable(f"{what}: out of time") from None


def _unavailable(error: KubeError) -> Unavailable:
    return error if isinstance(error, Unavailable) else Unavailable(str(error))
