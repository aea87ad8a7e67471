"""One Allocate from kubelet's ids to what is to be done, as a pure function the daemon drives.

The walk of design.md: claim → facts → vendor.allocate → pod patch. It does no I/O, so the daemon is a
loop: read node and pods, `plan`; gather what `Needs` asks for and `plan` again with the facts; then carry
out `Granted` or `Denied` in the order their docstrings say (decisions 16, 17, 19, 23, 24).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from devplugin.answers import Allocation, Effect, FactRequest, PodEvent, Refused, Why
from devplugin.hami import (
    BIND_PHASE,
    SUCCESS,
    Claim,
    NoClaim,
    Node,
    Pod,
    Vocabulary,
    claim,
    failure_patch,
    holder,
    owns,
    pod_patch,
)
from devplugin.vendor import Vendor

Inv = TypeVar("Inv")
S = TypeVar("S")

REFUSED = "AllocateRefused"
"""Reason of the pod event that tells why (decision 23)."""


@dataclass(frozen=True, slots=True)
class Needs:
    """Gather these and call `plan` again with them in `facts`; `FactRequest` lists the kinds."""

    requests: tuple[FactRequest, ...]


@dataclass(frozen=True, slots=True)
class Granted:
    """Say yes: `allocation.before`, then the pod patch, then the lock if `release`, then the reply.

    A failed patch means nothing was granted: reply with an error. Killed between patch and release, the
    next sweep releases the lock.
    """

    claim: Claim
    allocation: Allocation
    patch: Mapping[str, str | None]
    """Merge patch of the pod's annotations; empty in the fallback, where there is no pod."""
    release: bool
    """Release the lock after the patch, if `hami.may_release` still says so of a freshly read node."""


@dataclass(frozen=True, slots=True)
class Denied:
    """Say no: patch the pod if there is one, release its lock even if that failed, raise the event."""

    reason: str
    """For the RPC status and the log: names the node, the object and the remedy."""
    pod: Pod | None = None
    """Whose Allocate this was, when known; its bind-phase becomes ``failed`` by `patch`."""
    patch: Mapping[str, str | None] | None = None
    event: PodEvent | None = None
    after: tuple[Effect, ...] = ()
    """Background: what makes a later try succeed."""
    why: Why = "device"

    @property
    def release(self) -> bool:
        """Whether a lock may have to go (`hami.may_release` decides on a freshly read node)."""
        return self.pod is not None


def plan(
    vendor: Vendor[Inv, S],
    inventory: Inv,
    settings: S,
    *,
    node: Node,
    pods: Sequence[Pod],
    ids: Sequence[str],
    facts: Mapping[FactRequest, Any],
) -> Needs | Granted | Denied:
    """Decide one container's Allocate.

    Args:
        vendor: whose devices they are.
        inventory: the last immutable inventory.
        settings: the vendor's settings.
        node: this node, freshly read (its lock counts).
        pods: every pod bound to this node, ended ones may be left out.
        ids: kubelet's ids of one container request.
        facts: what `Needs` of an earlier call asked for; start with ``{}``.
    """
    vocabulary = vendor.vocabulary(inventory, settings)
    if vocabulary is None:
        return denied(f"node {node.name}: its devices are not known yet", None, "device")
    try:
        wanted = claim(node, pods, vocabulary, ids)
    except NoClaim as error:
        return denied(str(error), error.pod, "pod")
    missing = tuple(need for need in vendor.needs(inventory, settings, wanted) if need not in facts)
    if missing:
        return Needs(missing)
    try:
        allocation = vendor.allocate(inventory, settings, wanted, pods, facts)
    except Refused as error:
        return denied(f"node {node.name}: {error}", wanted.pod, error.why, error.after)
    return _granted(node, wanted, allocation, vocabulary)


def _granted(node: Node, wanted: Claim, allocation: Allocation, vocabulary: Vocabulary) -> Granted | Denied:
    if wanted.pod is None:
        return Granted(wanted, allocation, {}, release=False)
    if allocation.annotations and not owns(node, wanted.pod):
        # Later Allocates rely on what is recorded, so only the holder of the lock may record (amd.md 5.7).
        return denied(
            f"node {node.name}: the node lock does not belong to pod {wanted.pod} ({holder(node)}), "
            "its devices cannot be recorded; delete the pod so that it is scheduled again",
            wanted.pod,
            "lock",
        )
    patch = pod_patch(wanted, vocabulary, allocation.annotations)
    return Granted(wanted, allocation, patch, release=patch[BIND_PHASE] == SUCCESS)


def denied(reason: str, pod: Pod | None, why: Why, after: tuple[Effect, ...] = ()) -> Denied:
    """A no, with the event that tells the pod's owner."""
    if pod is None:
        return Denied(reason, after=after, why=why)
    event = PodEvent(pod.namespace, pod.name, pod.uid, "Warning", REFUSED, reason)
    return Denied(reason, pod, failure_patch(), event, after, why)
