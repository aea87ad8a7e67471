"""The node lock: who holds it, when it may be released, and what a sweep puts right.

The scheduler takes ``hami.io/mutex.lock`` before it binds a pod and expects the plugin to release it
(ascend_ppu_hami.md D.7, D.8): value ``<RFC 3339 time>,<namespace>,<pod>``, formerly only the time. While
it is there no other pod gets onto the node, so a lock that outlives its pod costs everybody.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from devplugin.hami.codec import clip, slots_left
from devplugin.hami.values import ALLOCATING, FAILED, LOCK, SUCCESS, Node, Pod

_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}(?:\.[0-9]{1,9})?(?:Z|[+-][0-9]{2}:[0-9]{2})")
_NAME = re.compile(r"[a-z0-9](?:[-.a-z0-9]{0,251}[a-z0-9])?")


class LockError(ValueError):
    """The lock annotation is malformed: nobody can own or expire it until somebody removes it."""


@dataclass(frozen=True, slots=True)
class Lock:
    """A parsed lock; the owner's names are empty in the legacy form."""

    time: str
    namespace: str = ""
    name: str = ""

    @property
    def owned(self) -> bool:
        """Whether it says which pod holds it."""
        return bool(self.namespace and self.name)


@dataclass(frozen=True, slots=True)
class PhaseMark:
    """A pod whose ``hami.io/bind-phase`` is to become `phase`."""

    pod: Pod
    phase: str


@dataclass(frozen=True, slots=True)
class Sweep:
    """What a sweep wants done: phases first, then the lock (so a crash between them repeats it)."""

    marks: tuple[PhaseMark, ...] = ()
    release: bool = False
    """Remove the lock, with the node's read resourceVersion as precondition."""
    why: str = ""
    """For the log."""


def parse_lock(value: str) -> Lock:
    """The parts of a lock value.

    Raises:
        LockError: neither one nor three parts, no RFC 3339 time, or names that no object can have (they
            go into request paths and log lines, decision 25).
    """
    parts = value.split(",")
    if len(parts) not in {1, 3}:
        raise LockError(
            f"malformed {LOCK}: expected time,namespace,pod, got {len(parts)} parts in {clip(value)}"
        )
    try:
        if not _TIME.fullmatch(parts[0]):
            raise ValueError
        datetime.fromisoformat(parts[0])
    except ValueError:
        raise LockError(f"malformed {LOCK}: {clip(parts[0])} is no RFC 3339 time") from None
    for name in parts[1:]:
        if name and not _NAME.fullmatch(name):
            raise LockError(f"malformed {LOCK}: {clip(name)} is no name of a namespace or pod")
    return Lock(*parts)


def lock_of(node: Node) -> Lock | None:
    """The node's lock, None without one; raises LockError for a malformed one."""
    value = node.annotations.get(LOCK)
    return None if value is None else parse_lock(value)


def owner_of(node: Node) -> tuple[str, str] | None:
    """(namespace, name) of the pod to look up before a `sweep`; None without a lock that names one."""
    try:
        lock = lock_of(node)
    except LockError:
        return None
    return (lock.namespace, lock.name) if lock and lock.owned else None


def owns(node: Node, pod: Pod) -> bool:
    """Whether the node's lock names this pod (by suffix: a re-stamped time changes nothing)."""
    return node.annotations.get(LOCK, "").endswith(f",{pod.namespace},{pod.name}")


def holder(node: Node) -> str:
    """Who holds the node's lock, in words for a message; raises LockError for a malformed one."""
    lock = lock_of(node)
    if lock is None:
        return "nobody holds it"
    if not lock.owned:
        return f"it was taken at {lock.time} and names no pod"
    return f"pod {lock.namespace}/{lock.name} holds it since {lock.time}"


def may_release(node: Node, pod: Pod) -> bool:
    """Whether `pod`'s end of allocation is to remove this lock: ours, or a legacy one (D.7).

    Ask again with a freshly read node before every attempt: a lock that another pod took meanwhile is
    left alone, and an absent one is success.
    """
    if owns(node, pod):
        return True
    try:
        lock = lock_of(node)
    except LockError:
        return False
    return lock is not None and not lock.owned


def sweep(node: Node, owner: Pod | None, pods: Sequence[Pod]) -> Sweep:
    """What must be put right on this node at start and every 30 s (decision 19).

    Args:
        node: the node, freshly read.
        owner: the pod `owner_of(node)` names, by a GET (it may not be bound yet, so it need not be in
            `pods`); None when the API server says it is gone.
        pods: every pod bound to the node, ended ones included.

    The lock goes when its pod does not exist any more, has ended, or waits for nothing of any vendor (that
    pod has succeeded); else it stays. Independently of the lock, an ended pod does not stay
    ``allocating``, nor does a living one that has got all it asked for.
    """
    candidates = {pod.uid: pod for pod in pods}
    if owner is not None:
        candidates[owner.uid] = owner
    marks = tuple(
        PhaseMark(pod, FAILED if pod.terminal else SUCCESS)
        for pod in candidates.values()
        if pod.bind_phase == ALLOCATING and (pod.terminal or not slots_left(pod.annotations))
    )
    named = owner_of(node)
    if named is None:
        return Sweep(marks=marks)
    who = f"{named[0]}/{named[1]}"
    if owner is None:
        return Sweep(marks, release=True, why=f"the lock's owner {who} is gone")
    if owner.terminal:
        return Sweep(marks, release=True, why=f"the lock's owner {who} has ended ({owner.phase})")
    if not slots_left(owner.annotations):
        return Sweep(marks, release=True, why=f"the lock's owner {who} has got all its devices")
    return Sweep(marks=marks)
