"""Clearing away what pods left on the node: asked of the vendor at the start and again and again.

The daemon gives it the pods of a list just read and the time, and does what comes back: one thing that fails
keeps nothing else from being done, and the next round decides anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, Generic

from devplugin.answers import Turn
from devplugin.daemon.hands import Hands
from devplugin.daemon.logs import told
from devplugin.deeds import DeedError
from devplugin.host import Host
from devplugin.kube import Api, KubeError
from devplugin.vendor import Inv, S, Vendor

log = logging.getLogger(__name__)

AGAIN = 5.0
"""Seconds after a round that could not read the pods."""


class Sweeper(Generic[Inv, S]):
    """Rounds of `Vendor.sweep`.

    Args:
        vendor, settings: who decides, and by which choices.
        api: the API server.
        node: this node's name.
        host: the node; touched in `worker` only.
        worker: an executor of one thread.
        current: the last inventory; None before the first pass.
        hands: do what comes back.
    """

    def __init__(
        self,
        vendor: Vendor[Inv, S],
        settings: S,
        *,
        api: Api,
        node: str,
        host: Host,
        worker: Executor,
        current: Callable[[], Inv | None],
        hands: Hands,
    ) -> None:
        self._vendor = vendor
        self._settings = settings
        self._api = api
        self._node = node
        self._host = host
        self._worker = worker
        self._current = current
        self._hands = hands
        self._memory: Any = None
        self._said: frozenset[str] = frozenset()

    async def once(self) -> None:
        """One round.

        Raises:
            KubeError: the pods could not be read; nothing was decided.
        """
        inventory = self._current()
        if inventory is None:
            return
        pods = await self._api.pods_on(self._node)
        loop = asyncio.get_running_loop()
        effects, self._memory = await loop.run_in_executor(
            self._worker,
            self._vendor.sweep,
            self._host,
            inventory,
            self._settings,
            Turn(tuple(pods), self._memory, loop.time()),
        )
        failed = []
        for effect in effects:
            try:
                await self._hands.perform((effect,))
            except (DeedError, KubeError) as error:
                failed.append(str(error))
        for line in failed:
            log.log(logging.DEBUG if line in self._said else logging.WARNING, "clearing away: %s", line)
        self._said = frozenset(failed)

    async def run(self) -> None:
        """For ever; returns at once when the vendor has no such work."""
        period = self._vendor.sweeps(self._settings)
        if period is None:
            return
        said = ""
        while True:
            wait = period
            try:
                await self.once()
                said = ""
            except KubeError as error:
                said, wait = told(log, said, f"clearing away: {error}"), min(AGAIN, period)
            except Exception:
                log.exception("clearing away failed")
            await asyncio.sleep(wait)
