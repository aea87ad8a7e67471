"""Rediscover, compare, publish: the walk that keeps kubelet's lists true.

The same walk at start, every 30 s, and at every pulse (decision 27). Discovery runs in a
thread of its own, the only one to touch the Host: sysfs can take its time; all else is in the loop. Whoever
decides reads `current`: the last immutable inventory, never a half-made one.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor
from dataclasses import replace
from typing import Generic

from devplugin.answers import Offer, Reports
from devplugin.daemon.ending import Fatal
from devplugin.host import Host
from devplugin.kubelet.service import Board
from devplugin.vendor import Inv, S, Vendor

log = logging.getLogger(__name__)

PERIOD = 30.0
"""Seconds between rediscoveries (decision 27)."""

Open = Callable[[Board], Callable[[], None]]
"""Begins to serve a new resource, and hands back what ends it."""


class Observer(Generic[Inv, S]):
    """Owns the last inventory and the boards made of it.

    Args:
        vendor, settings: who decides, and by which choices.
        host: the node; touched in `worker` only.
        worker: an executor of one thread.
        serve: called for every resource that appears.
        changed: called after a pass whose inventory differs from the one before.
        before: done with every inventory before anything of it is told.
        prepare: asked with an inventory nothing of which was told yet, until there was a first one that was;
            true: the node is another one now.
        ask: what a health service beside us says.
    """

    def __init__(
        self,
        vendor: Vendor[Inv, S],
        settings: S,
        *,
        host: Host,
        worker: Executor,
        serve: Open,
        changed: Callable[[], None],
        before: Callable[[Inv], Awaitable[None]] | None = None,
        prepare: Callable[[Inv], Awaitable[bool]] | None = None,
        ask: Callable[[], Awaitable[Reports]] | None = None,
    ) -> None:
        self.vendor = vendor
        self.settings = settings
        self._host = host
        self._worker = worker
        self._serve = serve
        self._changed = changed
        self._before = before
        self._prepare = prepare
        self._ask = ask
        self._inventory: Inv | None = None
        self._boards: dict[str, tuple[Board, Callable[[], None]]] = {}
        self._absent: set[str] = set()
        self._noticed: set[str] = set()
        self._details: tuple[str, ...] = ()

    @property
    def current(self) -> Inv | None:
        """The last inventory; None before the first pass."""
        return self._inventory

    @property
    def offers(self) -> Mapping[str, Offer]:
        """What kubelet is being told, by resource."""
        return {name: board.offer for name, (board, _) in self._boards.items()}

    async def look(self, check: bool = False) -> Inv:
        """One pass: discover, then publish what differs.

        Args:
            check: also look at every device's health; else the last verdicts stand.

        Raises:
            Exception: whatever discovery raised; nothing was changed then.
        """
        before = self._inventory
        found = await self._discover(before)
        if not self._boards and self._prepare is not None and await self._prepare(found):
            found = await self._discover(found)
        if check:
            found = await self._examine(found)
        if self._before is not None:
            await self._before(found)
        self._inventory = found
        self._trace(found)
        for line in self.vendor.notices(found, self.settings):
            if line not in self._noticed:
                self._noticed.add(line)
                log.warning("%s", line)
        self._publish(self.vendor.offers(found, self.settings))
        if found != before:
            self._changed()
        return found

    async def _discover(self, before: Inv | None) -> Inv:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._worker, self.vendor.discover, self._host, self.settings, before
        )

    async def _examine(self, found: Inv) -> Inv:
        """One pulse, for all resources at once."""
        reports = await self._ask() if self._ask is not None else Reports()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._worker, self.vendor.health, self._host, found, self.settings, reports
        )

    def _trace(self, found: Inv) -> None:
        """How the node was read, for those who ask for it: all of it again whenever a line is new."""
        if not log.isEnabledFor(logging.DEBUG):
            return
        lines = self.vendor.details(found, self.settings)
        for line in lines if lines != self._details else ():
            log.debug("%s", line)
        self._details = lines

    def _publish(self, offers: Mapping[str, Offer]) -> None:
        for name, offer in offers.items():
            self._absent.discard(name)
            if name not in self._boards:
                log.info("%s: %d devices", name, len(offer.devices))
                board = Board(offer)
                self._boards[name] = (board, self._serve(board))
            elif self._boards[name][0].publish(offer):
                sick = sum(not device.healthy for device in offer.devices)
                log.info("%s: now %d devices, %d of them unhealthy", name, len(offer.devices), sick)
        for name in tuple(self._boards.keys() - offers.keys()):
            board, end = self._boards[name]
            if name not in self._absent:  # kubelet forgets the devices at once …
                log.warning("%s: no device left", name)
                self._absent.add(name)
                board.publish(replace(board.offer, devices=()))
            else:  # … and the resource when it does not come back
                self._absent.discard(name)
                del self._boards[name]
                end()

    async def run(self, pulse: int) -> None:
        """Look again for ever, every 30 s and at every pulse; a pass that fails leaves the last inventory.

        Args:
            pulse: seconds between health checks; 0: none.
        """
        until_look, until_check = PERIOD, float(pulse) if pulse > 0 else math.inf
        while True:
            wait = min(until_look, until_check)
            await asyncio.sleep(wait)
            until_look, until_check = until_look - wait, until_check - wait
            check = until_check <= 0
            try:
                await self.look(check)
            except Fatal:
                raise
            except Exception:
                log.exception("discovery failed; the last inventory stays")
            until_look = PERIOD
            if check:
                until_check = pulse
