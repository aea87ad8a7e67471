"""Look into images and fetch them, away from the loop and from the thread that owns the Host.

`ctr` may take seconds to mount an image and half an hour to pull one, while discovery and health go on
(guide-amd.md, musl fail-closed). The same image is never looked into, or pulled, twice at a time; threads
are daemons, so that neither keeps a process that was told to end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from devplugin.imagecheck import Ctr, Place, PullImage, check, pull
from devplugin.libc import Finding, Verdict

log = logging.getLogger(__name__)

T = TypeVar("T")

PATIENCE = 15.0
"""Seconds an Allocate waits for what its images are: within its 24 (decision 24), with time for patches."""


class Images:
    """What is known of images, as far as an Allocate asks for it.

    Args:
        place: where `ctr` runs and its mounts appear.
        ctr: which client, and whose socket.
        patience: seconds to wait for an answer; after that the image counts as not checked.
    """

    def __init__(self, place: Place, ctr: Ctr, patience: float = PATIENCE) -> None:
        self._place = place
        self._ctr = ctr
        self._patience = patience
        self._checks: dict[str, asyncio.Future[Finding]] = {}
        self._pulls: set[asyncio.Future[str | None]] = set()
        self._pulled: set[str] = set()

    async def findings(self, images: Iterable[str]) -> Mapping[str, Finding]:
        """A finding for each image; one that takes too long has failed, and goes on for the next to ask."""
        running = {image: self._check(image) for image in dict.fromkeys(images)}
        if running:
            await asyncio.wait(running.values(), timeout=self._patience)
        return {image: self._answer(image, future) for image, future in running.items()}

    def _check(self, image: str) -> asyncio.Future[Finding]:
        future = self._checks.get(image)
        if future is None:
            name = uuid.uuid4().hex
            future = in_thread(lambda: check(self._place, self._ctr, image, name), "image check")
            self._checks[image] = future
            future.add_done_callback(lambda _: self._checks.pop(image, None))
        return future

    def _answer(self, image: str, future: asyncio.Future[Finding]) -> Finding:
        if not future.done():
            return Finding(ascii(image[:200]), Verdict.FAILED, f"no answer within {self._patience:g} s")
        error = future.exception()
        if error is not None:
            log.error("looking into an image failed", exc_info=error)
            return Finding(ascii(image[:200]), Verdict.FAILED, type(error).__name__)
        return future.result()

    def fetch(self, wanted: PullImage) -> None:
        """Begin to pull an image, unless that is going on already."""
        if wanted.image in self._pulled:
            return
        log.info("pulling image %s", wanted.image)
        self._pulled.add(wanted.image)
        future = in_thread(lambda: pull(self._place, self._ctr, wanted), "image pull")
        self._pulls.add(future)
        future.add_done_callback(lambda done: self._fetched(wanted, done))

    def _fetched(self, wanted: PullImage, done: asyncio.Future[str | None]) -> None:
        self._pulled.discard(wanted.image)
        self._pulls.discard(done)
        if done.cancelled():
            return
        error = done.exception()
        trouble = f"pulling {wanted.image}: {error}" if error is not None else done.result()
        if trouble:
            log.warning("%s", trouble)
        else:
            log.info("image %s is on the node now", wanted.image)


def in_thread(work: Callable[[], T], name: str) -> asyncio.Future[T]:
    """Run blocking work in a thread of its own, which does not outlive the process."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(do: Callable[[], None]) -> None:
        if not future.done():
            do()

    def run() -> None:
        try:
            result = work()
        except Exception as error:
            failed = error
            done: Callable[[], None] = lambda: future.set_exception(failed)  # noqa: E731
        else:
            done = lambda: future.set_result(result)  # noqa: E731
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, done)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
