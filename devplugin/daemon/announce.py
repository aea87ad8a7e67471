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
from collections.abc import Callable, Iterable
from typing import Generic

from devplugin.hami import Node
from devplugin.imagecheck import PullImage
from devplugin.kube import Api, KubeError, Reference, Saying
from devplugin.vendor import Effect, Inv, NodeEvent, S, Vendor

log = logging.getLogger(__name__)

PERIOD = 30.0
AFTER_ERROR = 5.0


Fetch = Callable[[PullImage], None]
"""Begins to pull an image; does not wait for it."""


async def perform(api: Api, node: str, effects: Iterable[Effect], fetch: Fetch | None = None) -> None:
    """Do what a decision asked for, in order; every member of `Effect` is idempotent.

    Args:
        api: the API server.
        node: this node's name.
        effects: what to do.
        fetch: who pulls images; without it none is pulled.

    Raises:
        KubeError: one could not be done; those after it were not tried.
    """
    for effect in effects:
        if isinstance(effect, PullImage):
            if fetch is not None:
                fetch(effect)
        elif isinstance(effect, NodeEvent):
            # kubelet itself uses the node's name as the uid of its node events; `describe` finds them by it
            about = Reference("Node", node, node)
            await api.event(about, Saying(effect.type, effect.reason, effect.message, effect.name))
        else:
            about = Reference("Pod", effect.pod, effect.uid, effect.namespace)
            await api.event(about, Saying(effect.type, effect.reason, effect.message, effect.name))


class Announcer(Generic[Inv, S]):
    """Keeps the node object saying what the node has."""

    def __init__(
        self,
        api: Api,
        vendor: Vendor[Inv, S],
        settings: S,
        node: Node,
        current: Callable[[], Inv | None],
    ) -> None:
        self._api = api
        self._vendor = vendor
        self._settings = settings
        self._node = node
        self._current = current
        self._hurry = asyncio.Event()
        self._said = ""
        self._capacity_said = ""

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
                self._capacity_said = _told(self._capacity_said, f"capacity not published: {error}")
            else:
                self._capacity_said = ""
        self._node = await self._api.patch_node(self._node.name, patch.annotations)

    async def run(self) -> None:
        """For ever."""
        while True:
            self._hurry.clear()
            wait = PERIOD
            try:
                await self.once()
                self._said = ""
            except KubeError as error:
                self._said = _told(self._said, f"registration not written: {error}")
                wait = AFTER_ERROR
            except Exception:
                log.exception("announcing failed")
                wait = AFTER_ERROR
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._hurry.wait()


def _told(before: str, text: str) -> str:
    """Say it, loudly unless it is what was said the last time."""
    log.log(logging.DEBUG if text == before else logging.WARNING, "%s", text)
    return text
