"""The process around a life: what begins in which order, what signals do, and how it ends.

Begin: API server → node → settings (the mode may stand on the node: decision 24 forbids any list
before it is known) → a life (`devplugin.daemon.life`). SIGTERM, SIGINT and SIGQUIT end it: streams closed,
sockets removed, exit 0. SIGHUP begins another in the same process: node annotations and settings are read
anew, everything else follows from them. Whatever is in memory can be rebuilt, so SIGKILL loses nothing
either.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic

from devplugin.daemon.ending import Fatal
from devplugin.daemon.life import Life, Shared, Start, insist
from devplugin.daemon.logs import Logs
from devplugin.daemon.own import serve
from devplugin.hami import Node
from devplugin.kube import Api, NoCluster
from devplugin.settings import SettingsError
from devplugin.vendor import Inv, S, SettingsInput

log = logging.getLogger(__name__)

LOGS_AFTER = 1.0
"""Seconds after which kept log lines are written at the latest; the first lists are out by then."""


class Daemon(Generic[Inv, S]):
    """One run of the daemon."""

    def __init__(self, start: Start[Inv, S], shared: Shared, logs: Logs) -> None:
        self._start = start
        self._shared = shared
        self._logs = logs
        self._api: Api | None = None

    async def run(self) -> None:
        """Until a signal comes.

        Raises:
            Fatal: refused settings, no API server configured, an impossible socket path.
        """
        stop, again = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
            loop.add_signal_handler(number, stop.set)
        loop.add_signal_handler(signal.SIGHUP, again.set)
        loop.call_later(LOGS_AFTER, self._logs.release)
        ending = asyncio.create_task(stop.wait())
        working = asyncio.create_task(self._lives(again))
        beating = asyncio.create_task(self._shared.tally.beat())
        try:
            await asyncio.wait({working, ending}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
        finally:
            log.info("ending")
            await _end(ending, working, beating)

    async def _lives(self, again: asyncio.Event) -> None:
        """One life after another, for ever; one that is refused does not end the one before it."""
        life: asyncio.Task[None] | None = None
        beginning: asyncio.Task[Life[Inv, S]] | None = None
        asked: asyncio.Task[Any] | None = None
        try:
            while True:
                again.clear()
                # The life before serves on while this waits: for an API server that is away, for example.
                beginning = asyncio.create_task(self._begin())
                try:
                    new = await _or_fail(beginning, life)
                except Fatal as error:
                    if life is None or life.done():
                        raise
                    log.error("%s; serving on with the settings there were", error)
                else:
                    if life is not None:
                        await self._part(life)
                    life = asyncio.create_task(new.run())
                asked = asyncio.create_task(again.wait())
                await _or_fail(asked, life)
                log.info("SIGHUP: reading node and settings again")
        finally:
            await _end(beginning, asked, life)

    async def _begin(self) -> Life[Inv, S]:
        """Read what a life stands on."""
        start = self._start
        if self._api is None:
            try:
                self._api = await asyncio.to_thread(start.connect)
            except NoCluster as error:
                raise Fatal(str(error)) from error
        api = self._api
        node = await insist(lambda: api.node(start.node), f"node {start.node} cannot be read")
        self._shared.tally.lives += 1
        return Life(start, self._shared, api, node, await self._settings(node))

    async def _part(self, life: asyncio.Task[None]) -> None:
        """End a life between two Allocates: kubelet drops the answer of a plugin that registers anew."""
        async with self._shared.turn:
            life.cancel()
            await asyncio.sleep(0)
        await _end(life)

    async def _settings(self, node: Node) -> S:
        start = self._start
        given = SettingsInput(start.args, start.env, node.annotations, start.node, start.read)
        try:
            # Not on the loop: configuration files may lie on the node, which only the worker touches.
            settings, warnings = await asyncio.get_running_loop().run_in_executor(
                self._shared.worker, start.vendor.settings, given
            )
        except SettingsError as error:
            raise Fatal(str(error)) from error
        for line in warnings:
            log.warning("%s", line)
        log.info("%s", start.vendor.describe(settings))
        return settings


async def _or_fail(wanted: asyncio.Task[Any], life: asyncio.Task[None] | None) -> Any:
    """What `wanted` ends with, unless the life fails before it."""
    both: set[asyncio.Task[Any]] = {wanted} if life is None else {wanted, life}
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    if life is not None and life.done():
        life.result()
    return wanted.result()


async def _end(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel, and wait until it is done."""
    there = [task for task in tasks if task is not None]
    for task in there:
        task.cancel()
    await asyncio.gather(*there, return_exceptions=True)


def run(start: Start[Inv, S]) -> int:
    """Run a daemon in this process until a signal; the exit status.

    Raises:
        SettingsError: `-metrics_bind_address` cannot be had.
    """
    shared = Shared(ThreadPoolExecutor(max_workers=1, thread_name_prefix="host"))
    own = serve(start.metrics, start.node, shared.tally) if start.metrics else None
    with Logs(start.verbosity) as logs:
        if own is not None:
            log.info("serving %s/metrics", own.url)
        try:
            asyncio.run(Daemon(start, shared, logs).run())
        except Fatal as error:
            log.error("%s", error)
            return 1
        except Exception:
            log.exception("the daemon cannot go on")
            return 1
        finally:
            shared.worker.shutdown(wait=False, cancel_futures=True)
            if own is not None:
                own.close()
    return 0
