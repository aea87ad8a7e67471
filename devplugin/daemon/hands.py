"""Doing what a decision asked for: the one executor of `devplugin.answers.Effect`.

Events go to the API server, deeds to the node in the thread that owns the Host, pulls to whoever pulls
images. Every effect is idempotent, so what failed, or was cut short by a crash, is simply done again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass

from devplugin.answers import Effect, NodeEvent, PodEvent
from devplugin.deeds import DEEDS, Deed, Ground, carry_out
from devplugin.imagecheck import PullImage
from devplugin.kube import Api, Reference, Saying

log = logging.getLogger(__name__)

Fetch = Callable[[PullImage], None]
"""Begins to pull an image; does not wait for it."""


@dataclass(frozen=True, slots=True)
class Hands:
    """What effects are done with.

    Args:
        api: the API server.
        node: this node's name.
        fetch: who pulls images; without it none is pulled.
        ground: the node; without it (a test of events) a deed is an error.
        worker: the one thread that touches it.
    """

    api: Api
    node: str
    fetch: Fetch | None = None
    ground: Ground | None = None
    worker: Executor | None = None

    async def perform(self, effects: Iterable[Effect]) -> None:
        """Do them in order.

        Raises:
            KubeError: one could not be written; those after it were not tried.
            DeedError: one could not be done on the node; likewise.
        """
        for effect in effects:
            if isinstance(effect, DEEDS):
                await self._do(effect)
            elif isinstance(effect, PullImage):
                if self.fetch is not None:
                    self.fetch(effect)
            else:
                await self._tell(effect)

    async def _tell(self, effect: NodeEvent | PodEvent) -> None:
        if isinstance(effect, NodeEvent):
            # kubelet itself uses the node's name as the uid of its node events; `describe` finds them by it
            about = Reference("Node", self.node, self.node)
        else:
            about = Reference("Pod", effect.pod, effect.uid, effect.namespace)
        await self.api.event(about, Saying(effect.type, effect.reason, effect.message, effect.name))

    async def _do(self, deed: Deed) -> None:
        if self.ground is None:
            raise ValueError(f"nobody here can do {deed}")
        loop = asyncio.get_running_loop()
        line = await loop.run_in_executor(self.worker, carry_out, self.ground, deed)
        if line:
            log.info("%s", line)
