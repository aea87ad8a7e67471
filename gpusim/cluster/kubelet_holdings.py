"""Which container of which pod holds which device ids, and the answer it was given for them."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable

from gpusim.cluster.kubelet_checkpoint import Holding


class Holdings:
    """The device manager's ``podDevices``. `lock` may be held over several calls."""

    def __init__(self, holdings: Iterable[Holding] = ()) -> None:
        self.lock = threading.RLock()
        self._held = {(h.uid, h.container, h.resource): h for h in holdings}

    def add(self, holding: Holding) -> None:
        """Remember an answered Allocate."""
        with self.lock:
            self._held[holding.uid, holding.container, holding.resource] = holding

    def of(self, uid: str, container: str, resource: str) -> Holding | None:
        """What a container holds of one resource."""
        with self.lock:
            return self._held.get((uid, container, resource))

    def container(self, uid: str, container: str) -> list[Holding]:
        """All a container holds."""
        return [h for h in self.all() if h.uid == uid and h.container == container]

    def all(self) -> list[Holding]:
        """A copy."""
        with self.lock:
            return list(self._held.values())

    def used(self, resource: str) -> set[str]:
        """Ids of a resource that any container holds."""
        return {id_ for h in self.all() if h.resource == resource for id_ in h.ids}

    def retain(self, uids: Collection[str]) -> bool:
        """Forget pods that are not among `uids`; whether there were any."""
        with self.lock:
            before = len(self._held)
            self._held = {k: h for k, h in self._held.items() if h.uid in uids}
            return len(self._held) != before
