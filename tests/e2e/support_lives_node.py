"""A node in virtual time on which a written history happens, and what must hold when it is over.

The scheduler is gpusim's own, kubelet an actor, the daemon real (`support_lives_daemon`); counting is
`support_lives_count`'s.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

from devplugin.amd.settings import MODE_PARTITION, Settings
from devplugin.amd.vendor import Amd
from devplugin.answers import ContainerEdits, Refused
from devplugin.kube import KubeError
from gpusim.cluster.apishelves import Change
from gpusim.cluster.apistatus import ApiError
from gpusim.cluster.apistore import Store
from gpusim.cluster.pods import container, pod
from gpusim.cluster.scheduler import CONTENTION, FAILED, Scheduler
from gpusim.cluster.scheduler_webhook import admit
from gpusim.machine import Machine

from . import support_lives as lives
from .support_checks import LATE, NODE, TERMINAL, unix
from .support_lives_count import Recount
from .support_lives_daemon import Daemon, Wire
from .support_oracle import LOCK, PHASE, REGISTER, TO_ALLOCATE, slots_of
from .support_process import ConnectionLostError

GPU = "amd.com/gpu"
Object = dict[str, Any]
QUIET = 75.0
"""Seconds after which everything must have come to rest: two rediscoveries, two sweeps, and a moment."""


class LivesNode:
    """The history happens in `live`; it raises what did not hold."""

    def __init__(self, machine: Machine, settings: Settings, *, seed: int, vendor: Amd | None = None) -> None:
        self.machine, self.settings, self.vendor = machine, settings, vendor or Amd()
        self.wire = Wire(seed=seed)
        self.store = Store(now=unix, seed=seed)
        self.store.create("nodes", {"metadata": {"name": NODE}}, "")
        self.tally = lives.Tally()
        self.failure: BaseException | None = None
        self.recount = Recount(self.store, machine, settings)
        self._chance = random.Random(f"node {seed}")
        self._scheduler = Scheduler(self.store, now=unix, sleep=lambda _: None, seed=seed)
        self._daemon: Daemon | None = None
        self._kubelet: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[ContainerEdits] | None = None
        self._again = False
        """Kubelet forgot an answer and asks again: meanwhile no other pod may come (D.6)."""
        self._trap = False
        """Kubelet dies the next time it asks for devices."""
        self._back = 1.0
        self._shown: tuple[str, int] | None = None
        self._news = asyncio.Event()
        self._waiting: set[str] = set()
        """Pods for which there is no room, until something leaves."""
        self.store.subscribe(self._hear)

    # -- the daemon's surroundings -----------------------------------------------------------------------

    def broken(self, error: BaseException) -> None:
        self.failure = self.failure or error

    def looked(self) -> None:
        self.recount.looked()

    def fell(self) -> None:
        self._daemon = None
        asyncio.get_running_loop().call_later(self._back, self._start)

    def _start(self) -> None:
        self.tally.daemons += 1
        self._daemon = Daemon(self)

    # -- the history -------------------------------------------------------------------------------------

    async def live(self, history: lives.History) -> lives.Tally:
        """All of it, then rest, then the end conditions; then everybody leaves and the node still works."""
        self._start()
        self._kubelet = asyncio.ensure_future(self._admits())
        actors = [asyncio.ensure_future(self._schedules()), asyncio.ensure_future(self._lists())]
        for actor in (*actors, self._kubelet):
            actor.add_done_callback(self._left)
        try:
            for happening in history:
                await asyncio.sleep(happening.after)
                self._happens(happening)
                if self.failure is not None:
                    raise self.failure
            await asyncio.sleep(15.0)  # outages end, daemons come back
            self.wire.cut_at.clear()
            self.wire.spoiled.clear()
            await asyncio.sleep(QUIET)
            await self._settled()
            self._at_rest()
            await self._everybody_leaves()
        finally:
            for actor in (*actors, self._kubelet):
                actor.cancel()
            await asyncio.gather(*actors, self._kubelet, return_exceptions=True)
        if self.failure is not None:
            raise self.failure
        self.tally.troubles = self.wire.troubles.total()
        return self.tally

    def _left(self, actor: asyncio.Task[None]) -> None:
        if not actor.cancelled() and (error := actor.exception()) is not None:
            self.broken(error)

    def _happens(self, one: lives.Happening) -> None:
        match one:
            case lives.PodComes():
                self._create(one.pod, one.wishes)
            case lives.PodEnds():
                found = self._find(one.pod)
                if found is not None and found["status"].get("phase") == "Running":
                    self._status(found, {"phase": one.phase})
            case lives.PodGoes():
                self._quietly(lambda: self.store.delete("pods", one.pod, grace_seconds=None))
            case lives.DaemonDies():
                self._back = one.away
                if one.calls is not None:
                    self.wire.cut_at[self.wire.calls + one.calls] = one.side
                elif self._daemon is not None:
                    self._daemon.die()
            case lives.ServerFails():
                self.tally.outages += 1
                self.wire.away = True
                asyncio.get_running_loop().call_later(one.seconds, self._server_is_back)
            case lives.AnswersSpoil():
                self.wire.spoiled.extend(one.kinds)
            case lives.KubeletRestarts():
                self._trap = self._trap or one.asking
                if not one.asking:
                    self._restart_kubelet()
            case lives.GpuSwitches():
                self._switch(one)

    def _server_is_back(self) -> None:
        self.wire.away = False
        self._news.set()

    def _create(self, name: str, wishes: tuple[lives.Wish, ...]) -> None:
        if self._find(name) is not None:
            return  # its namesake is still there
        memory = max((d.memory_mib for d in self._devices()), default=1024)
        containers = [container(f"c{i}", _limits(wish, memory)) for i, wish in enumerate(wishes)]
        self.store.create("pods", admit(pod(name, containers)).pod)
        self.tally.pods += 1

    def _devices(self) -> tuple[Any, ...]:
        return self._scheduler.devices.get(NODE, {}).get("amd", ())

    def _switch(self, one: lives.GpuSwitches) -> None:
        spec = self.machine.spec.gpus[one.gpu]
        used = self.recount.uses(spec.bdf)
        if used and one.idle_only:
            return
        try:
            self.machine.switch(spec.bdf, one.mode)
        except OSError:
            return
        self.recount.switched(spec.bdf)
        self.tally.switches += 1
        self.tally.in_use += used

    def _hear(self, change: Change) -> None:
        self._news.set()
        if change.resource == "pods" and (
            change.kind == "DELETED" or change.obj["status"].get("phase") in TERMINAL
        ):
            self._waiting.clear()

    # -- the scheduler -----------------------------------------------------------------------------------

    async def _schedules(self) -> None:
        """Two rounds a second over pods that are not bound; it needs the API server as everybody does."""
        read = ""
        while True:
            await asyncio.sleep(0.5)
            if self.wire.away or self._again:
                continue
            registered = self._annotations().get(REGISTER, "")
            if registered != read or self._chance.random() < 0.02:
                self._scheduler.refresh()
                read = registered
                self._waiting.clear()
            for one in self._scheduler.pending():
                if one["metadata"]["uid"] in self._waiting:
                    continue
                outcome = self._scheduler.schedule_once(one["metadata"]["name"], refresh=False)
                if outcome.kind == FAILED:
                    raise AssertionError(f"the scheduler cannot bind: {outcome.message}")
                if outcome.bound or outcome.kind == CONTENTION:
                    break  # the next one finds the node locked
                self._waiting.add(one["metadata"]["uid"])

    # -- kubelet -----------------------------------------------------------------------------------------

    async def _lists(self) -> None:
        """What kubelet counts goes into the node's status."""
        while True:
            await asyncio.sleep(0.3)
            ids = self._ids()
            if ids is not None and not self.wire.away and self._shown != (GPU, len(ids)):
                self._shown = (GPU, len(ids))
                amounts = {GPU: str(len(ids))}
                status = {"status": {"capacity": amounts, "allocatable": amounts}}
                self.store.patch("nodes", NODE, status, subresource="status")
                self._scheduler.refresh()
                self._waiting.clear()

    def _ids(self) -> list[str] | None:
        """Device ids the plugin lists; None while it does not."""
        board = self._daemon.boards.get(GPU) if self._daemon is not None else None
        return None if board is None else [device.id for device in board.offer.devices]

    def _restart_kubelet(self) -> None:
        assert self._kubelet is not None
        asks = self._asking is not None and not self._asking.done()
        if asks and self.settings.mode == MODE_PARTITION:
            return  # asking again, it would be given hard ids of its own choice (decision 17)
        self.tally.kubelets += 1
        self.tally.asked_twice += asks
        self._again = True
        self._kubelet.cancel()
        self._kubelet = asyncio.ensure_future(self._admits(1.0))
        self._kubelet.add_done_callback(self._left)

    async def _admits(self, after: float = 0.0) -> None:
        await asyncio.sleep(after)
        while True:
            self._news.clear()
            for one in self.store.list("pods", fields=f"spec.nodeName={NODE}"):
                while self.wire.away:
                    await asyncio.sleep(0.2)
                if one["metadata"].get("deletionTimestamp"):
                    await asyncio.sleep(self._chance.uniform(0.02, 0.3))
                    self._quietly(lambda n=one["metadata"]["name"]: self.store.delete("pods", n))
                elif one["status"].get("phase", "Pending") == "Pending":
                    await self._admit(one)
            self._again = False
            await self._news.wait()
            await asyncio.sleep(self._chance.uniform(0.01, 0.1))

    async def _admit(self, one: Object) -> None:
        uid = one["metadata"]["uid"]
        kept = self.recount.given.setdefault(uid, {})  # what an earlier kubelet wrote down
        for part in one["spec"]["containers"]:
            limits = (part.get("resources") or {}).get("limits") or {}
            if GPU not in limits or part["name"] in kept:
                continue
            why = await self._serve(one, part["name"], int(limits[GPU]))
            if why:
                self.recount.given.pop(uid, None)
                while self.wire.away:
                    await asyncio.sleep(0.2)
                self.tally.failed += 1
                self._status(one, {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": why})
                return
            self.recount.nothing_twice()
        while self.wire.away:
            await asyncio.sleep(0.2)
        if self._status(one, {"phase": "Running"}):
            self.tally.ran += 1

    async def _serve(self, one: Object, part: str, count: int) -> str:
        """Devices for one container; why not."""
        for _ in range(50):  # a plugin that is away comes back in a moment, and its devices with it
            if self._ids():
                break
            await asyncio.sleep(0.1)
        held = {i for given in self.recount.living() for i in given.ids}
        free = [i for i in self._ids() or () if i not in held]
        if len(free) < count or self._daemon is None:
            return f"{len(free)} of {count} devices"
        ids = tuple(self._chance.sample(free, count))
        known = self.recount.known
        self._asking = asyncio.ensure_future(self._daemon.allocate(ids))
        self._asking.add_done_callback(lambda done: done.cancelled() or done.exception())
        if self._trap:
            self._trap = False
            asyncio.get_running_loop().call_later(self._chance.uniform(0.0, 0.2), self._restart_kubelet)
        try:
            edits = await asyncio.shield(self._asking)
        except (Refused, KubeError, ConnectionLostError) as error:
            self.tally.refused += isinstance(error, Refused)
            return f"{type(error).__name__}: {error}"
        if self._find(one["metadata"]["name"], one["metadata"]["uid"]) is not None:
            self.recount.note(one["metadata"]["uid"], part, ids, edits, known)
        return ""

    async def _settled(self) -> None:
        """Until nobody is on the way: pods that end without their devices leave their lock to the sweep.

        That can be several, one after the other; no lock stays longer than decision 19 allows.
        """
        since = asyncio.get_running_loop().time()
        lock: str | None = None
        for _ in range(600):
            if self.failure is not None:
                raise self.failure
            held = self._annotations().get(LOCK)
            now = asyncio.get_running_loop().time()
            if held != lock:
                lock, since = held, now
            assert held is None or now - since <= LATE + 5.0, f"locked for ever: {held}"
            arriving = [
                one
                for one in self.recount.pods()
                if one["metadata"]["uid"] not in self._waiting
                and one["status"].get("phase", "Pending") == "Pending"
            ]
            if held is None and not arriving:
                return
            await asyncio.sleep(1.0)
        raise AssertionError("pods keep arriving")

    def _at_rest(self) -> None:
        if self.failure is not None:
            raise self.failure
        self.recount.nothing_twice()
        assert LOCK not in self._annotations(), f"locked for ever: {self._annotations()[LOCK]}"
        for one in self.store.list("pods", fields=f"spec.nodeName={NODE}"):
            name, notes = one["metadata"]["name"], one["metadata"]["annotations"]
            assert notes[PHASE] in ("success", "failed"), f"{name} is stuck: {notes[PHASE]}"
            if one["status"].get("phase") not in TERMINAL:
                assert one["status"].get("phase") == "Running", f"{name} is stuck"
                assert not any(slots_of(notes[TO_ALLOCATE])), f"{name} runs without its devices"
                assert notes[PHASE] == "success", f"{name} runs as {notes[PHASE]}"
        fresh = self.vendor.discover(self.machine, self.settings, None)
        wanted = self.vendor.registration(fresh, self.settings, 0.0).annotations[REGISTER]
        assert self._annotations().get(REGISTER) == wanted, "the registration is not a fresh start's"
        listed = [d.id for offer in self.vendor.offers(fresh, self.settings).values() for d in offer.devices]
        assert self._ids() == listed, "kubelet's list is not a fresh start's"
        self.recount.accounts(fresh)

    async def _everybody_leaves(self) -> None:
        """Whoever could not be placed is, as others leave; at last one pod takes the whole node."""
        for _ in range(40):
            pods = self.recount.pods()
            if not pods:
                break
            for one in pods:
                if one["spec"].get("nodeName"):
                    self._status(one, {"phase": "Succeeded"})
            await asyncio.sleep(8.0)
        left = [one["metadata"]["name"] for one in self.recount.pods()]
        assert not left, f"never placed: {left}"
        self._at_rest()
        devices = len({d.id for d in self._devices()})
        self._create("all", (lives.Wish(devices),))
        await asyncio.sleep(5.0)
        await self._settled()
        found = self._find("all")
        assert found is not None
        assert found["status"].get("phase") == "Running", f"the node does not work: {found['status']}"
        self._at_rest()

    # -- small things ------------------------------------------------------------------------------------

    def _annotations(self) -> dict[str, str]:
        found: dict[str, str] = self.store.peek("nodes", NODE, "")["metadata"].get("annotations") or {}
        return found

    def _find(self, name: str, uid: str = "") -> Object | None:
        try:
            found = self.store.get("pods", name)
        except ApiError:
            return None
        return found if uid in ("", found["metadata"]["uid"]) else None

    def _status(self, one: Object, status: Object) -> bool:
        if self._find(one["metadata"]["name"], one["metadata"]["uid"]) is None:
            return False
        self.store.patch("pods", one["metadata"]["name"], {"status": status}, subresource="status")
        return True

    @staticmethod
    def _quietly(work: Callable[[], Any]) -> None:
        try:
            work()
        except ApiError:
            return


def _limits(wish: lives.Wish, memory: int) -> dict[str, int] | None:
    if not wish.count:
        return None
    if wish.whole:
        return {GPU: wish.count}
    return {
        GPU: wish.count,
        "amd.com/gpumem": max(1, memory * wish.memory // 100),
        "amd.com/gpucores": wish.cores,
    }
