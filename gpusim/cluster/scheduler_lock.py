"""The node lock as HAMi's scheduler takes and releases it: a compare-and-swap on the node's annotation.

ascend_ppu_hami.md D.7 and cases F.3 L1 to L10: whoever holds it lets no other pod in, for five minutes unless
told otherwise; it is taken over from owners that are gone, and a malformed one blocks for ever.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gpusim.cluster.apiport import Api
from gpusim.cluster.apistatus import ApiError, UnreachableError
from gpusim.cluster.pods import LOCK
from gpusim.errors import GpusimError

Object = dict[str, Any]
EXPIRY = 300.0
"""Seconds, unless ``--node-lock-timeout`` says otherwise."""
EXPIRY_VARIABLE = "HAMI_NODELOCK_EXPIRE"
TRIES = 5
_FIRST_DELAY, _JITTER = 0.1, 0.5
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(h|ms|m|s|us|µs|ns)")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:\d\d)", re.ASCII)


class LockError(GpusimError):
    """The lock cannot be had."""


class ContentionError(LockError):
    """Another pod holds it."""


@dataclass(frozen=True, slots=True)
class Lock:
    """A parsed lock; the old form is a time alone and has no owner."""

    since: float
    namespace: str = ""
    name: str = ""

    @property
    def owned(self) -> bool:
        """Whether a pod is named."""
        return bool(self.namespace and self.name)


def parse(value: str) -> Lock:
    """Read a lock annotation.

    Raises:
        LockError: malformed; such a lock never expires by itself.
    """
    parts = value.split(",")
    if len(parts) not in (1, 3):
        raise LockError(f"malformed lock annotation: expected 3 parts, got {len(parts)} from {value}")
    if not _TIME.fullmatch(parts[0]):
        raise LockError(f"malformed lock annotation: {parts[0]!r} is no RFC 3339 time")
    try:
        since = datetime.fromisoformat(parts[0].replace("Z", "+00:00")).timestamp()
    except ValueError as error:
        raise LockError(f"malformed lock annotation: {error}") from None
    return Lock(since, *parts[1:])


def value_of(now: float, namespace: str, name: str) -> str:
    """The annotation a pod takes the lock with."""
    return f"{datetime.fromtimestamp(int(now), UTC).strftime('%Y-%m-%dT%H:%M:%SZ')},{namespace},{name}"


def duration(text: str) -> float | None:
    """Seconds of a Go duration (``10m``, ``1h30m``); None when it is none or not positive."""
    if not text or _DURATION.sub("", text):
        return None
    seconds = sum(float(number) * _UNITS[unit] for number, unit in _DURATION.findall(text))
    return seconds if seconds > 0 else None


def shown(seconds: float) -> str:
    """Seconds as Go prints a duration: ``5m0s``."""
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(int(minutes), 60)
    text = f"{rest:g}s"
    if hours or minutes:
        text = f"{minutes}m{text}"
    return f"{hours}h{text}" if hours else text


def backoff(random_: random.Random) -> Iterator[float]:
    """Seconds between tries: 100 ms doubling, each up to half as long again."""
    for n in range(TRIES - 1):
        yield _FIRST_DELAY * 2**n * (1 + _JITTER * random_.random())


class NodeLock:
    """Takes and releases the locks of a scheduler.

    Args:
        api: where nodes and pods are.
        expiry: seconds after which a lock is taken over whoever holds it.
        now: unix seconds.
        sleep: waits between tries.
        seed: of the jitter.
    """

    def __init__(
        self,
        api: Api,
        *,
        expiry: float = EXPIRY,
        now: Callable[[], float] = time.time,
        sleep: Callable[[float], object] = time.sleep,
        seed: int = 1,
    ) -> None:
        self._api, self._expiry, self._now, self._sleep = api, expiry, now, sleep
        self._random = random.Random(seed)

    def acquire(self, node: str, namespace: str, name: str) -> None:
        """Take the lock for a pod; fine when it has it (its time is not refreshed before it expires).

        Raises:
            ContentionError: another pod holds it.
            LockError: the annotation is malformed, or the node changes too often.
            ApiError: the node or the owner cannot be read.
            UnreachableError: no answer.
        """
        held = self._held(node)
        if held is not None:
            lock = parse(held)
            expired = self._now() - lock.since > self._expiry
            if not expired and held.endswith(f",{namespace},{name}"):
                return
            if not expired and self._lives(lock):
                raise ContentionError(
                    f"node {node} has been locked within {shown(self._expiry)}: node lock contention"
                )
            self._remove(node, held, again=False)
        self._set(node, namespace, name)

    def release(self, node: str, namespace: str, name: str) -> None:
        """Give the lock back; one of another pod is left alone, the old form is anybody's.

        Raises:
            ApiError: no such node, or it changed too often.
            UnreachableError: no answer.
        """
        held = self._held(node)
        if held is None:
            return
        if held.endswith(f",{namespace},{name}") or "," not in held:
            self._remove(node, held)

    def _lives(self, lock: Lock) -> bool:
        """Whether the owner exists, ended or not; the old form has none to look for."""
        if not lock.owned:
            return True
        try:
            self._api.get("pods", lock.name, lock.namespace)
        except ApiError as error:
            if error.code == 404:
                return False
            raise
        return True

    def _held(self, node: str) -> str | None:
        return _lock_of(self._api.get("nodes", node))

    def _set(self, node: str, namespace: str, name: str) -> None:
        value = value_of(self._now(), namespace, name)

        def step() -> None:
            found = self._api.get("nodes", node)
            held = _lock_of(found)
            if held is not None:
                if held.endswith(f",{namespace},{name}"):
                    return  # an earlier try was carried out and its answer lost
                raise ContentionError(f"node {node} is locked: node lock contention")
            self._swap(found, value)

        self._insist(step)

    def _remove(self, node: str, expected: str, *, again: bool = True) -> None:
        """Take a lock away if it is still the one that was judged or, with `again`, the same pod's anew."""
        owner = "".join(expected.partition(",")[1:]) if again else ""

        def step() -> None:
            found = self._api.get("nodes", node)
            held = _lock_of(found)
            if held is not None and (held == expected or (owner and held.endswith(owner))):
                self._swap(found, None)

        self._insist(step)

    def _swap(self, node: Object, value: str | None) -> None:
        metadata = node["metadata"]
        version = {"resourceVersion": metadata["resourceVersion"], "annotations": {LOCK: value}}
        self._api.patch("nodes", metadata["name"], {"metadata": version})

    def _insist(self, step: Callable[[], None]) -> None:
        """Up to five tries; what is certain (contention, a node that is not there) is not tried again."""
        delays = backoff(self._random)
        while True:
            try:
                step()
            except (ApiError, UnreachableError) as error:
                delay = next(delays, None)
                if delay is None or getattr(error, "code", 0) == 404:
                    raise
                self._sleep(delay)
            else:
                return


def _lock_of(node: Object) -> str | None:
    value: str | None = (node["metadata"].get("annotations") or {}).get(LOCK)
    return value
