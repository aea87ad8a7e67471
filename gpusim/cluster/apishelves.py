"""Where the API server keeps its objects: versions, order, and the recent past for watches.

The semantics of verbs are in `apistore`. Here every change gets the next resourceVersion (one counter
for all resources, as etcd's revision), and subscribers hear of it in order.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from gpusim.cluster.apistatus import gone

Object = dict[str, Any]
Key = tuple[str, str]
"""(namespace, name); the namespace is empty for cluster-scoped resources."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change: `kind` is ``ADDED``, ``MODIFIED`` or ``DELETED``."""

    version: int
    resource: str
    kind: str
    obj: Object
    before: Object | None
    """The version it replaces: a watch with a selector must know whether that one matched."""


class Shelves:
    """Objects by resource and key. Not to be changed in place: a new version is a new object.

    `lock` is re-entrant and guards everything; hold it over a read and the write that depends on it.
    """

    def __init__(self, resources: tuple[str, ...], *, remember: int = 10_000) -> None:
        self.lock = threading.RLock()
        self.version = 1
        self._objects: dict[str, dict[Key, Object]] = {resource: {} for resource in resources}
        self._past: deque[Change] = deque(maxlen=remember)
        self._subscribers: list[Callable[[Change], None]] = []

    def find(self, resource: str, key: Key) -> Object | None:
        """The object, or None."""
        return self._objects[resource].get(key)

    def scan(self, resource: str, namespace: str | None = None) -> Iterator[Object]:
        """All objects (of a namespace) by namespace and name; call with the lock held."""
        for key in sorted(self._objects[resource]):
            if namespace is None or key[0] == namespace:
                yield self._objects[resource][key]

    def put(self, resource: str, key: Key, obj: Object) -> Object:
        """Store a new object or version: stamps ``metadata.resourceVersion`` into `obj` itself."""
        with self.lock:
            before = self._objects[resource].get(key)
            obj["metadata"]["resourceVersion"] = str(self._next())
            self._objects[resource][key] = obj
            self._tell(resource, "ADDED" if before is None else "MODIFIED", obj, before)
        return obj

    def remove(self, resource: str, key: Key) -> Object:
        """Take an object away; returned with the version of its deletion, as a watch shows it."""
        with self.lock:
            before = self._objects[resource].pop(key)
            last = {**before, "metadata": {**before["metadata"], "resourceVersion": str(self._next())}}
            self._tell(resource, "DELETED", last, before)
        return last

    def subscribe(self, hear: Callable[[Change], None], since: int | None = None) -> Callable[[], None]:
        """Hear every change after `since` (None: from now on), first the remembered ones.

        `hear` is called with the lock held and must not block. Returns the way to unsubscribe.

        Raises:
            ApiError: 410 when `since` is older than what is remembered.
        """
        with self.lock:
            if since is not None and since < self.version:
                if self._past.maxlen == len(self._past) and since < self._past[0].version - 1:
                    raise gone(f"too old resource version: {since} ({self._past[0].version})")
                for change in self._past:
                    if change.version > since:
                        hear(change)
            self._subscribers.append(hear)
        return lambda: self._unsubscribe(hear)

    def _unsubscribe(self, hear: Callable[[Change], None]) -> None:
        with self.lock:
            if hear in self._subscribers:
                self._subscribers.remove(hear)

    def _next(self) -> int:
        self.version += 1
        return self.version

    def _tell(self, resource: str, kind: str, obj: Object, before: Object | None) -> None:
        change = Change(self.version, resource, kind, obj, before)
        self._past.append(change)
        for hear in tuple(self._subscribers):
            hear(change)
