"""The work a vendor has to do on the node before anything is offered: AMD's partition switches.

Which devices are in use only the API server knows, and switching one away from under a pod is worse than a
late start: so the pods are waited for. Whatever the work itself comes to is said and never ends the start.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from typing import Generic

from devplugin.answers import Effect, Prepared
from devplugin.daemon.ending import Fatal
from devplugin.hami import Pod
from devplugin.host import Host
from devplugin.vendor import Inv, S, Vendor

log = logging.getLogger(__name__)


class Preparer(Generic[Inv, S]):
    """Does that work once.

    Args:
        vendor, settings: who decides, and by which choices.
        host: the node; touched in `worker` only.
        worker: an executor of one thread.
        pods: reads the node's pods, and asks until there is an answer.
        say: takes the events that come of it.
    """

    def __init__(
        self,
        vendor: Vendor[Inv, S],
        settings: S,
        *,
        host: Host,
        worker: Executor,
        pods: Callable[[], Awaitable[Sequence[Pod]]],
        say: Callable[[Sequence[Effect]], None],
    ) -> None:
        self._vendor = vendor
        self._settings = settings
        self._host = host
        self._worker = worker
        self._pods = pods
        self._say = say
        self._done = False

    async def __call__(self, inventory: Inv) -> bool:
        """Do it, unless it was done; whether the node is another one since.

        Raises:
            Fatal: nothing may be offered here.
        """
        if self._done or not self._vendor.prepares(inventory, self._settings):
            return False
        pods = await self._pods()
        self._done = True
        loop = asyncio.get_running_loop()
        try:
            result: Prepared = await loop.run_in_executor(
                self._worker, self._vendor.prepare, self._host, inventory, self._settings, pods
            )
        except Exception:
            log.exception("preparing the node failed; it is offered as it is")
            return True
        if result.fatal:
            raise Fatal(result.fatal)
        for line in result.done:
            log.info("%s", line)
        for line in result.troubles:
            log.warning("%s", line)
        self._say(result.effects)
        return result.changed
