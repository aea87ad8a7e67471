"""What can go wrong between a client and the API server, on demand; and what was asked of it.

A fault matches requests by verb, resource, sub-resource, namespace, name and user agent, and strikes from
the nth match on, a number of times. ``lose`` is the nasty one: the request is carried out and the answer
lost. The request log lets a test compare the verbs a plugin used with its ClusterRole.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from gpusim.errors import GpusimError

ACTIONS = ("error", "drop", "lose", "none")

_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One programmed fault. A field that is None matches every request under /api."""

    verb: str | None = None
    """``get list watch create update patch delete``, as in RBAC."""
    resource: str | None = None
    subresource: str | None = None
    """``""`` is the main resource, ``status``, ``binding``."""
    namespace: str | None = None
    name: str | None = None
    agent: str | None = None
    """Part of the User-Agent header."""
    nth: int = 1
    """The first matching request that is struck, counted from 1."""
    times: int | None = 1
    """How many are struck; None = all from then on."""
    action: str = "error"
    """``error`` (answer `code`), ``drop`` (close without answer, nothing done), ``lose`` (do it, then
    close without answer), ``none`` (only `delay`)."""
    code: int = 500
    message: str = "injected fault"
    delay: float = 0.0
    """Seconds before anything else happens."""

    def __post_init__(self) -> None:
        if self.action not in ACTIONS:
            raise GpusimError(f"fault action {self.action!r}: one of {', '.join(ACTIONS)}")
        if self.nth < 1 or (self.times is not None and self.times < 1) or self.delay < 0:
            raise GpusimError("fault: nth and times start at 1, delay is not negative")
        if self.action == "error" and not 400 <= self.code <= 599:
            raise GpusimError(f"fault code {self.code}: an error has a code from 400 to 599")

    @property
    def reason(self) -> str:
        """The Status reason of `code`."""
        return _REASONS.get(self.code, "InternalError")

    def matches(self, call: Call) -> bool:
        """Whether a request is one of those this fault counts."""
        for field in ("verb", "resource", "subresource", "namespace", "name"):
            wanted = getattr(self, field)
            if wanted is not None and wanted != getattr(call, field):
                return False
        return self.agent is None or self.agent in call.agent


@dataclass(frozen=True, slots=True)
class Call:
    """One request as RBAC sees it."""

    verb: str
    resource: str
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    agent: str = ""


@dataclass(frozen=True, slots=True)
class Recorded(Call):
    """One answered request; `code` 0 = no answer was given."""

    code: int = 0
    number: int = 0


class Faults:
    """The programmed faults; safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._faults: dict[int, tuple[Fault, int]] = {}

    def add(self, fault: Fault) -> int:
        """Program a fault; the number it can be removed by."""
        with self._lock:
            number = next(self._numbers)
            self._faults[number] = (fault, 0)
        return number

    def remove(self, number: int) -> None:
        """Forget one fault; fine when it is spent or unknown."""
        with self._lock:
            self._faults.pop(number, None)

    def clear(self) -> None:
        """Forget all faults."""
        with self._lock:
            self._faults.clear()

    def strike(self, call: Call) -> Fault | None:
        """Count a request against every fault; the first one that is due, if any."""
        due: Fault | None = None
        with self._lock:
            for number, (fault, seen) in list(self._faults.items()):
                if not fault.matches(call):
                    continue
                self._faults[number] = (fault, seen + 1)
                past = seen + 1 - fault.nth
                if past >= 0 and (fault.times is None or past < fault.times) and due is None:
                    due = fault
                if fault.times is not None and past + 1 >= fault.times:
                    del self._faults[number]
        return due

    def forbids(self, call: Call) -> bool:
        """Whether a fault answers 403 to every such request; nothing is counted."""
        with self._lock:
            faults = [fault for fault, _ in self._faults.values()]
        return any(
            fault.action == "error" and fault.code == 403 and fault.times is None and fault.matches(call)
            for fault in faults
        )

    def describe(self) -> list[dict[str, Any]]:
        """All faults with their number and how many requests matched."""
        with self._lock:
            return [{"number": n, "seen": seen, **asdict(f)} for n, (f, seen) in self._faults.items()]


_TYPES: dict[str, tuple[type, ...]] = {
    "nth": (int,),
    "times": (int, type(None)),
    "code": (int,),
    "delay": (int, float),
    "message": (str,),
    "action": (str,),
}


def parse(body: Any) -> Fault:
    """A fault from JSON (``POST /faults``).

    Raises:
        GpusimError: unknown field, wrong type, or a value `Fault` refuses.
    """
    if not isinstance(body, Mapping):
        raise GpusimError("a fault is a JSON object")
    known = {field.name: field for field in fields(Fault)}
    for key, value in body.items():
        if key not in known:
            raise GpusimError(f"fault: unknown field {key!r}; known: {', '.join(known)}")
        if not isinstance(value, _TYPES.get(key, (str, type(None)))) or isinstance(value, bool):
            raise GpusimError(f"fault: {key} = {value!r} has the wrong type")
    return Fault(**body)


class RequestLog:
    """The last requests under /api, oldest first; safe to use from any thread."""

    def __init__(self, keep: int = 100_000) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._entries: deque[Recorded] = deque(maxlen=keep)

    def record(self, call: Call, code: int) -> None:
        """Note an answered (or, with code 0, unanswered) request."""
        with self._lock:
            facts = {field.name: getattr(call, field.name) for field in fields(Call)}
            self._entries.append(Recorded(**facts, code=code, number=next(self._numbers)))

    def entries(self, agent: str = "") -> list[Recorded]:
        """A copy; with `agent`, only requests whose User-Agent contains it."""
        with self._lock:
            return [e for e in self._entries if agent in e.agent]

    def verbs(self, agent: str = "") -> set[tuple[str, str]]:
        """(``resource`` or ``resource/subresource``, verb) pairs, as a ClusterRole lists them."""
        return {
            (f"{e.resource}/{e.subresource}" if e.subresource else e.resource, e.verb)
            for e in self.entries(agent)
        }

    def clear(self) -> None:
        """Forget what was asked so far."""
        with self._lock:
            self._entries.clear()
