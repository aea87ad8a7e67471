"""Watches: the changes of one resource that a selector lets through, as a stream of JSON lines.

A change that makes an object match begins its life for the watcher (ADDED), one that makes it stop
matching ends it (DELETED), as in k8s.io/apiserver's watch cache.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import msgspec

from gpusim.cluster import apiselect
from gpusim.cluster.apirouter import Watch
from gpusim.cluster.apishelves import Change
from gpusim.cluster.apistatus import ApiError
from gpusim.cluster.apistore import Store

Object = dict[str, Any]


def sieve(watch: Watch) -> Callable[[Change], Object | None]:
    """What a watcher is told about a change, or None."""
    by_field, by_label = apiselect.fields(watch.resource, watch.fields), apiselect.labels(watch.labels)

    def matches(obj: Object | None) -> bool:
        return (
            obj is not None
            and (watch.namespace is None or obj["metadata"].get("namespace") == watch.namespace)
            and by_field(obj)
            and by_label(obj)
        )

    def tell(change: Change) -> Object | None:
        if change.resource != watch.resource:
            return None
        was = matches(change.before)
        now = change.kind != "DELETED" and matches(change.obj)
        if not was and not now:
            return None
        kind = "MODIFIED" if was and now else "ADDED" if now else "DELETED"
        return {"type": kind, "object": change.obj}

    return tell


async def lines(store: Store, watch: Watch) -> AsyncGenerator[bytes, None]:
    """The stream's lines until its time is up; for ever without one. Runs in the server's loop."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[Object] = asyncio.Queue()
    tell = sieve(watch)

    def hear(change: Change) -> None:
        if (event := tell(change)) is not None:
            loop.call_soon_threadsafe(queue.put_nowait, event)

    try:
        with store.shelves.lock:
            present: list[Object] = []
            if watch.since is None:
                present, _ = store.select(
                    watch.resource, watch.namespace, fields=watch.fields, labels=watch.labels
                )
            leave = store.subscribe(hear, watch.since)
    except ApiError as error:
        yield _line({"type": "ERROR", "object": error.status()})
        return
    try:
        for obj in present:
            yield _line({"type": "ADDED", "object": obj})
        end = None if watch.seconds is None else loop.time() + watch.seconds
        while True:
            try:
                async with asyncio.timeout_at(end):
                    event = await queue.get()
            except TimeoutError:
                return
            yield _line(event)
    finally:
        leave()


def _line(event: Object) -> bytes:
    return msgspec.json.encode(event) + b"\n"
