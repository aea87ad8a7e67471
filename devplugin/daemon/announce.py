"""What the API server is told: the registration annotation, capacity, and events.

Every 30 s whether or not anything changed, because the scheduler may delete the annotation; 5 s
after an error; at once after a pass that found something new (amd.md 3.6; ascend_ppu_hami.md D.3).
Capacity goes first and may fail, since nothing but dashboards reads it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic

from devplugin.answers import Effect, NodeEvent
from devplugin.daemon.hands import Hands
from devplugin.daemon.logs import told
from devplugin.hami import Node
from devplugin.kube import Api, KubeError, Unavailable
from devplugin.vendor import Inv, S, Vendor

log = logging.getLogger(__name__)

PERIOD = 30.0
AFTER_ERROR = 5.0
REWRITTEN = "RegistrationRewritten"
_REMEMBERED = 8
"""Values of the register annotation that may still be read: our last ones."""
UNSAID = 200
"""Events kept while the API server is away; the oldest go first."""


class Announcer(Generic[Inv, S]):
    """Keeps the node object saying what the node has."""

    def __init__(
        self,
        api: Api,
        vendor: Vendor[Inv, S],
        settings: S,
        node: Node,
        current: Callable[[], Inv | None],
        *,
        announced: Callable[[], None] = lambda: None,
        hands: Hands | None = None,
    ) -> None:
        self._api = api
        self._vendor = vendor
        self._settings = settings
        self._node = node
        self._current = current
        self._announced = announced
        self._hurry = asyncio.Event()
        self._said = ""
        self._capacity_said = ""
        self._hands = hands if hands is not None else Hands(api, node.name)
        self._seen: Any = None
        self._wrote: deque[str] = deque(maxlen=_REMEMBERED)
        self._foreign = False
        self._unsaid: list[Effect] = []

    def say(self, effects: Iterable[Effect]) -> None:
        """Take events to be told, best effort; they go out with the next registration."""
        for effect in effects:
            _log(effect)
            self._unsaid.append(effect)
        del self._unsaid[:-UNSAID]

    def noticed(self, node: Node) -> None:
        """Look at a node that was just read: does somebody else write our registration (decision 55)?

        Said once in a life. Nobody is stopped: the next turn writes ours again, and the other his.
        """
        inventory = self._current()
        if inventory is None or self._foreign or not self._wrote:
            return
        words = self._vendor.vocabulary(inventory, self._settings)
        found = node.annotations.get(words.register) if words is not None else None
        if words is None or not found or found in self._wrote:
            return
        self._foreign = True
        self.say(
            (
                NodeEvent(
                    "Warning",
                    REWRITTEN,
                    f"somebody else rewrites annotation {words.register} of node {node.name}: two plugins "
                    "register the same devices; stop the other one",
                ),
            )
        )

    def hurry(self) -> None:
        """Announce now, not at the next turn."""
        self._hurry.set()

    async def once(self) -> None:
        """Say it all once.

        Raises:
            KubeError: the annotation was not written.
        """
        inventory = self._current()
        if inventory is None:
            return
        patch = self._vendor.registration(inventory, self._settings, time.time())
        capacity = {
            name: amount
            for name, amount in patch.capacity.items()
            if amount is not None or name in self._node.capacity or name in self._node.allocatable
        }
        if capacity:
            try:
                await self._api.patch_node_capacity(self._node.name, capacity)
            except KubeError as error:
                self._capacity_said = told(log, self._capacity_said, f"capacity not published: {error}")
            else:
                self._capacity_said = ""
        if not patch.annotations:
            return
        await self._part(inventory, patch.annotations)
        self._remember(inventory, patch.annotations)
        self._node = await self._api.patch_node(self._node.name, patch.annotations)
        self._announced()
        effects, self._seen = self._vendor.events(inventory, self._settings, self._seen)
        self.say(effects)
        await self._tell()

    def _remember(self, inventory: Inv, annotations: Mapping[str, str | None]) -> None:
        """What stood there before us, and what we are about to write: both may still be read."""
        words = self._vendor.vocabulary(inventory, self._settings)
        if words is None:
            return
        for value in (self._node.annotations.get(words.register), annotations.get(words.register)):
            if value and value not in self._wrote:
                self._wrote.append(value)

    async def _part(self, inventory: Inv, annotations: Mapping[str, str | None]) -> None:
        """Say what has to be said while the old registration still stands, for after it nobody knows it.

        Raises:
            Unavailable: nothing can be said now, nor will the registration be written.
        """
        words = self._vendor.vocabulary(inventory, self._settings)
        if words is None:
            return
        old, new = self._node.annotations.get(words.register), annotations.get(words.register)
        if not old or new is None or old == new:
            return
        try:
            pods = await self._api.pods_on(self._node.name)
            for effect in self._vendor.replacing(inventory, self._settings, old, pods):
                _log(effect)
                await self._hands.perform((effect,))
        except Unavailable:
            raise
        except KubeError as error:  # a right that was not granted must not keep the registration back
            log.warning("event not written: %s", error)

    async def _tell(self) -> None:
        """Say what there is to say, until the API server goes away; then the rest waits."""
        while self._unsaid:
            try:
                await self._hands.perform(self._unsaid[:1])
            except Unavailable as error:
                log.info("events wait: %s", error)
                return
            except KubeError as error:
                log.warning("event not written: %s", error)
            del self._unsaid[0]

    async def run(self) -> None:
        """For ever."""
        while True:
            self._hurry.clear()
            wait = PERIOD
            try:
                await self.once()
                self._said = ""
            except KubeError as error:
                self._said = told(log, self._said, f"registration not written: {error}")
                wait = AFTER_ERROR
            except Exception:
                log.exception("announcing failed")
                wait = AFTER_ERROR
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._hurry.wait()


def _log(effect: Effect) -> None:
    """An event's words belong into the log, too: events are kept for an hour."""
    if isinstance(effect, NodeEvent):
        log.log(logging.WARNING if effect.type == "Warning" else logging.INFO, "%s", effect.message)
