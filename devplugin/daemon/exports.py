"""What a vendor shows of devices and containers from within the plugin's own process, over HTTP.

Some runtimes' ledgers are read by the plugin itself instead of a monitor beside it. Pods are listed every
few seconds and serve for a minute when the API server gives no answer, as the monitor has it; files are read
at the scrape, by the thread that owns the Host. An address that cannot be had is no reason to serve no pods:
it is told, and tried again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Generic

from devplugin.daemon.logs import told
from devplugin.hami import Pod
from devplugin.host import Host
from devplugin.kube import Api, KubeError
from devplugin.metered import Measured
from devplugin.settings import SettingsError
from devplugin.vendor import Exports, Inv

if TYPE_CHECKING:
    from devplugin.scrape import Scraped

log = logging.getLogger(__name__)

EVERY = 5.0
"""Seconds between two lists of the node's pods."""
KEPT = 60.0
"""Seconds for which a list serves."""
AGAIN = 30.0
"""Seconds until an address that is taken is tried again."""


class Exporter(Generic[Inv]):
    """Serves `Exports` for as long as it runs.

    Args:
        exports: the vendor's.
        api: the API server.
        node: this node's name.
        host: the node; touched in `worker` only.
        worker: an executor of one thread.
        current: the last inventory; None before the first pass.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        exports: Exports[Inv],
        *,
        api: Api,
        node: str,
        host: Host,
        worker: Executor,
        current: Callable[[], Inv | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._exports = exports
        self._api = api
        self._node = node
        self._host = host
        self._worker = worker
        self._current = current
        self._clock = clock
        self._listed: tuple[tuple[Pod, ...], float] | None = None
        self._said: frozenset[str] = frozenset()

    async def run(self) -> None:
        """For ever."""
        reading = asyncio.create_task(self._read())
        try:
            await self._serve()
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _serve(self) -> None:
        said = ""
        while True:
            try:
                # prometheus_client is a tenth of a second of imports: not on the loop
                scraped = await asyncio.to_thread(self._bound)
            except SettingsError as error:
                said = told(log, said, f"not exported: {error}", logging.ERROR)
                await asyncio.sleep(AGAIN)
                continue
            log.info("serving devices and containers on %s/metrics", scraped.url)
            try:
                await asyncio.Event().wait()
            finally:
                scraped.close()

    def _bound(self) -> Scraped:
        from devplugin.scrape import NodeCollector, Page, Scraped, bind

        page = Page(
            "device-plugin", f"Devices of node {self._node} and the memory its containers have on them."
        )
        listening = bind(self._exports.address, self._exports.flag)
        return Scraped(listening, page, NodeCollector(self._exports.series, self.look))

    async def _read(self) -> None:
        """List the node's pods, for ever."""
        said = ""
        while True:
            try:
                self._listed = tuple(await self._api.pods_on(self._node)), self._clock()
                said = ""
            except KubeError as error:
                said = told(log, said, f"exported pods: {error}")
            await asyncio.sleep(EVERY)

    def look(self) -> Measured:
        """What there is to see now; called from the scrape's thread.

        Problems are logged when they first appear, and again after they ended.
        """
        inventory = self._current()
        if inventory is None:
            return Measured((), ())
        work = self._worker.submit(self._exports.samples, self._host, inventory, self._pods())
        measured = work.result()
        for line in measured.problems:
            if line not in self._said:
                log.warning("%s", line)
        self._said = frozenset(measured.problems)
        return measured

    def _pods(self) -> Sequence[Pod] | None:
        listed = self._listed
        return listed[0] if listed is not None and self._clock() - listed[1] <= KEPT else None
