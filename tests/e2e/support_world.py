"""One node's cluster in virtual time: kubelet, the daemon's lives, and all that disturbs them.

Everybody but the daemon is an actor here, as plain as the protocol allows (ascend_ppu_hami.md D.6 to D.8,
kubelet.md 2); the daemon is the real `Allocator` with the real vendor on a real `Machine`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

from devplugin.amd.settings import Settings
from devplugin.amd.vendor import Amd
from devplugin.answers import ContainerEdits, FactRequest, Refused
from devplugin.daemon.allocate import Allocator
from devplugin.daemon.life import keep_swept
from devplugin.kube import KubeError
from gpusim.cluster.apistatus import ApiError
from gpusim.cluster.apistore import Store
from gpusim.machine import Machine

from .support_checks import LATE, NODE, TERMINAL, Checks, Container, unix
from .support_oracle import ALLOCATED, REGISTER, Asked, Facts, slots_of
from .support_port import Plan, Port
from .support_process import ConnectionLostError, TaskProcess
from .support_scheduler import Scheduler

Object = dict[str, Any]


class Life(TaskProcess):
    """One life of the daemon process: what `devplugin.daemon.main` builds around an Allocator."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._world = world
        vendor = Amd()
        # Without dmem, so that a slice without the hook is refused (decision 23).
        settings = Settings(node_name=NODE, hook_path="/usr/local", dmem_backend=False)
        inventory = vendor.discover(world.machine, settings, None)
        self.allocator = Allocator(
            Port(world.store, world.plan, self),
            vendor,
            settings=settings,
            node=NODE,
            current=lambda: inventory,
            facts=self._facts,
        )
        self.spawn(keep_swept(self.allocator, lambda: None))

    async def _facts(self, requests: Sequence[FactRequest]) -> dict[FactRequest, bool]:
        return dict.fromkeys(requests, self._world.hook())

    async def allocate(self, ids: Sequence[str]) -> ContainerEdits:
        """kubelet's call."""
        return await self.carry(self.allocator, ids)


class World:
    """A history: pods come, are placed, admitted, end; the daemon dies and comes back."""

    def __init__(self, machine: Machine, register: str, plan: Plan, *, seed: int, pods: int) -> None:
        self.machine = machine
        self.facts = Facts(machine, register)
        self.plan = plan
        self.store = Store(now=unix, seed=seed)
        self.store.create("nodes", {"metadata": {"name": NODE, "annotations": {REGISTER: register}}}, "")
        self.checks = Checks(self.store, self.facts, plan)
        self.life: Life | None = None
        self.lives = 0
        self.ran: list[str] = []
        """Pods that got all their devices."""
        self.refused = 0
        """Allocates to which the plugin said no."""
        self._scheduler = Scheduler(self.store, self.facts.devices, seed=seed, pods=pods)
        self._random = {who: random.Random(f"{who} {seed}") for who in ("hook", "kubelet", "end")}
        self._quiet = False

    # -- the daemon's process -----------------------------------------------------------------------------

    def start(self) -> None:
        """exec."""
        self.lives += 1
        self.life = Life(self)

    def fell(self) -> None:
        """It was killed; somebody restarts it soon."""
        self.life = None
        delay = self._random["end"].uniform(0.1, 1.5)
        asyncio.get_running_loop().call_later(delay, self.start)

    def broken(self, error: BaseException) -> None:
        """Something that no history may meet."""
        self.checks.broken(error)

    def hook(self) -> bool:
        """Whether the memory hook is on the host; a slice without it is refused (decision 23)."""
        return self._quiet or self._random["hook"].random() < 0.9

    # -- the history ----------------------------------------------------------------------------------

    async def history(self) -> None:
        """All of it, then rest, then the last word."""
        self.start()
        busy = [
            asyncio.ensure_future(actor)
            for actor in (self._kubelet(), self._ends(), self._noise(), self._clock())
        ]
        for actor in busy:
            actor.add_done_callback(self._left)
        try:
            await asyncio.wait_for(self._scheduler.run(), 900)
            await asyncio.sleep(1.0)
            self._quiet = self._scheduler.quiet = True
            self.plan.calm()
            await asyncio.sleep(2 * LATE + 10)
            self.checks.at_rest()
            for one in self.store.list("pods"):
                self.store.delete("pods", one["metadata"]["name"])
            await self._scheduler.probe()
            await asyncio.sleep(5)
            assert self.ran[-1] == "probe", "the node does not work any more"
            self.checks.at_rest()
        finally:
            for task in busy:
                task.cancel()
            await asyncio.gather(*busy, return_exceptions=True)
        if self.checks.failure is not None:
            raise self.checks.failure

    def _left(self, actor: asyncio.Task[None]) -> None:
        if not actor.cancelled() and (error := actor.exception()) is not None:
            self.checks.broken(error)

    async def _clock(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            self.checks.check_lock()

    # -- kubelet -------------------------------------------------------------------------------------------

    async def _kubelet(self) -> None:
        random = self._random["kubelet"]
        heard = asyncio.Event()
        self.store.subscribe(lambda _: heard.set())
        while True:
            heard.clear()
            for one in self.store.list("pods", fields=f"spec.nodeName={NODE}"):
                if one["metadata"].get("deletionTimestamp"):
                    await asyncio.sleep(random.uniform(0.05, 0.5))
                    self._quietly(lambda n=one["metadata"]["name"]: self.store.delete("pods", n))
                elif one["status"].get("phase", "Pending") == "Pending":
                    await self._admit(one, random)
            await heard.wait()
            await asyncio.sleep(random.uniform(0.01, 0.2))

    async def _admit(self, one: Object, random: random.Random) -> None:
        meta = one["metadata"]
        uid, name = meta["uid"], meta["name"]
        for _ in range(50):  # a plugin that is away comes back in a moment, and its devices with it
            if self.life is not None:
                break
            await asyncio.sleep(0.1)
        left = [slot for slot in slots_of(meta["annotations"][ALLOCATED]) if slot]
        wanted = [c for c in one["spec"]["containers"] if "resources" in c]
        assert len(left) == len(wanted)
        twice = random.randrange(len(wanted)) if not self._quiet and random.random() < 0.1 else None
        async with AsyncExitStack() as until_admitted:
            for index, part in enumerate(wanted):
                count = int(part["resources"]["limits"]["amd.com/gpu"])
                try:
                    if index == twice:
                        # Kubelet died before it wrote down the answer, and asks again. It takes what another
                        # container was to get, and a pod bound meanwhile would be taken for this one (D.6).
                        await until_admitted.enter_async_context(self._scheduler.binding)
                        first = asyncio.ensure_future(self._ask(count))
                        await asyncio.sleep(random.uniform(0.0, 0.5))
                        second = asyncio.ensure_future(self._ask(count))
                        await asyncio.wait((first, second))
                        if first.exception() is None:
                            self._note(one, part["name"], first.result(), left)
                        self._note(one, part["name"], second.result(), left)
                    else:
                        self._note(one, part["name"], await self._ask(count), left)
                except (Refused, KubeError, ConnectionLostError) as why:
                    self.refused += isinstance(why, Refused)
                    await asyncio.sleep(random.uniform(0.0, 0.3))
                    self.checks.given.pop(uid, None)
                    self._status(uid, name, {"phase": "Failed", "reason": type(why).__name__})
                    return
                self.checks.check_pods()
                await asyncio.sleep(random.uniform(0.0, 0.05))
        if self._status(uid, name, {"phase": "Running"}):
            self.checks.check_running(uid)
            self.ran.append(name)

    async def _ask(self, count: int) -> ContainerEdits:
        """One Allocate."""
        if self.life is None:
            raise ConnectionLostError
        return await self.life.allocate(self._ids(count, self._random["kubelet"]))

    def _note(
        self, one: Object, container: str, edits: ContainerEdits, left: list[tuple[Asked, ...]]
    ) -> None:
        """What a container was given; the slot that must have been served is taken from `left`."""
        slot = next((slot for slot in left if len(slot) == len(_devices(edits, self.facts))), None)
        assert slot is not None, f"{one['metadata']['name']}: one container was served twice"
        left.remove(slot)
        if self._find(one["metadata"]["name"], one["metadata"]["uid"]) is not None:
            self.checks.given.setdefault(one["metadata"]["uid"], {})[container] = Container(slot, edits)

    def _ids(self, count: int, random: random.Random) -> list[str]:
        """Kubelet's own choice, which need not be the scheduler's (B31)."""
        slots = [f"{device.bdf}#{n}" for device in self.facts.devices.values() for n in range(device.count)]
        return random.sample(slots, count)

    def _status(self, uid: str, name: str, status: Object) -> bool:
        if self._find(name, uid) is None:
            return False
        self.store.patch("pods", name, {"status": status}, subresource="status")
        return True

    def _find(self, name: str, uid: str) -> Object | None:
        try:
            found = self.store.get("pods", name)
        except ApiError:
            return None
        return found if found["metadata"]["uid"] == uid else None

    # -- what else happens --------------------------------------------------------------------------------

    async def _ends(self) -> None:
        """Pods finish, fail, and are deleted in every state, before they are placed too."""
        random = self._random["end"]
        while not self._quiet:
            await asyncio.sleep(random.expovariate(0.6))
            pods = self.store.list("pods")
            if self._quiet or not pods:
                continue
            one = random.choice(pods)
            meta, phase = one["metadata"], one["status"].get("phase", "Pending")
            if phase == "Running" and random.random() < 0.6:
                self._status(meta["uid"], meta["name"], {"phase": random.choice(TERMINAL)})
            elif phase in TERMINAL or random.random() < 0.4:
                grace = random.choice((0, None))
                if one["spec"].get("nodeName") and phase == "Pending":
                    # Kubelet may be asking for its devices: forced, the next pod could be taken for it.
                    grace = None
                self._quietly(lambda n=meta["name"], g=grace: self.store.delete("pods", n, grace_seconds=g))

    async def _noise(self) -> None:
        """Others write to the same objects, so that preconditions fail."""
        random = self._random["end"]
        for number in range(10_000):
            await asyncio.sleep(random.expovariate(1.5))
            if self._quiet:
                return
            note = {"metadata": {"annotations": {"example.org/note": str(number)}}}
            self.store.patch("nodes", NODE, note)
            for one in self.store.list("pods"):
                if random.random() < 0.3:
                    self.store.patch("pods", one["metadata"]["name"], note)

    @staticmethod
    def _quietly(work: Callable[[], Any]) -> None:
        try:
            work()
        except ApiError:
            return


def _devices(edits: ContainerEdits, facts: Facts) -> set[str]:
    """The GPUs whose render nodes a container was given."""
    minors = [node.path.removeprefix("/dev/dri/renderD") for node in edits.devices]
    return {facts.agents[int(minor)].bdf for minor in minors if minor.isdigit()}
