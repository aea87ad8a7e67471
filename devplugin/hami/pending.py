"""Which pod's slot does this Allocate serve, and what does its pod patch say?

Kubelet passes ids and no pod. Public plugins take the lock owner whatever its state, or the first
pending pod; ours narrows that down so that one pod cannot eat another's slot (ascend_ppu_hami.md D.6,
decisions 16, 17, 19, 40).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from devplugin.hami.codec import CodecError, clip, decode, erase, filled, slots_left
from devplugin.hami.lock import LockError, owner_of, parse_lock
from devplugin.hami.values import (
    ALLOCATING,
    ASSIGNED_NODE,
    BIND_PHASE,
    BIND_TIME,
    FAILED,
    LOCK,
    SUCCESS,
    Claim,
    ContainerDevice,
    Node,
    Pod,
    Vocabulary,
)


class NoClaim(Exception):  # noqa: N818 - says what is the case, like answers.Refused
    """No pod's slot can be served. `pod` is the one to mark as failed, when it is clear which."""

    def __init__(self, text: str, pod: Pod | None = None) -> None:
        super().__init__(text)
        self.pod = pod


@dataclass(frozen=True, slots=True)
class _Match:
    pod: Pod
    slot: int
    devices: tuple[ContainerDevice, ...]


@dataclass(frozen=True, slots=True)
class _Mismatch:
    pod: Pod
    why: str
    fatal: bool = False
    """The pod itself is wrong (bad annotation, another node's devices), not just not meant."""


def claim(node: Node, pods: Sequence[Pod], vocabulary: Vocabulary, ids: Sequence[str]) -> Claim:
    """The slot that a request for these kubelet ids serves.

    The lock owner comes first, if it lives, did not fail and has a slot of this size. Otherwise the pod
    with the smallest bind-time among those that are Pending, have a bind-time, are ``allocating`` and
    assigned to this node. The slot is the first non-empty one with as many devices as ids were sent.

    Without any such pod: a `Claim` with ``pod=None`` (kubelet's own ids, decision 17; a vendor grants it
    for hard ids only), unless some pod here still waits for a slot of its own to be served.

    Args:
        node: the node object, for its name and lock.
        pods: every pod bound to the node; others are ignored.
        vocabulary: the vendor's annotation keys.
        ids: kubelet's device ids, in any order; only their number matters (B31).

    Raises:
        NoClaim: a malformed lock, or pods wait but none matches; names the node and says of each pod
            why not.
    """
    value = node.annotations.get(LOCK)
    if value is not None:
        try:
            parse_lock(value)
        except LockError as error:
            raise NoClaim(f"node {node.name}: {error}; remove the annotation") from error
    holder = owner_of(node)
    misses: list[_Mismatch] = []
    matches: list[_Match] = []
    owner: Pod | None = None
    for pod in pods:
        if pod.node != node.name:
            continue
        is_owner = (pod.namespace, pod.name) == holder and not pod.terminal
        if is_owner:
            owner = pod
        found = _examine(pod, node, vocabulary, len(ids), owner=is_owner)
        if isinstance(found, _Match):
            if is_owner:
                return Claim(tuple(ids), found.pod, found.slot, found.devices)
            matches.append(found)
        elif found is not None:
            misses.append(found)
    if matches and not any(miss.fatal and miss.pod is owner for miss in misses):
        best = min(matches, key=_seniority)
        return Claim(tuple(ids), best.pod, best.slot, best.devices)
    reasons = tuple(f"{miss.pod}: {miss.why}" for miss in misses)
    if not any(waits(pod, node, vocabulary) for pod in pods):
        return Claim(tuple(ids), None, None, (), reasons)
    raise NoClaim(
        f"node {node.name}: no waiting pod has a slot of {len(ids)} device(s) in {vocabulary.to_allocate} "
        f"({'; '.join(reasons)})",
        _culprit(misses, owner),
    )


def waits(pod: Pod, node: Node, vocabulary: Vocabulary) -> bool:
    """Whether a pod of this node is ``allocating`` with a non-empty slot of this vendor."""
    return (
        pod.node == node.name
        and not pod.terminal
        and pod.bind_phase == ALLOCATING
        and filled(pod.annotations.get(vocabulary.to_allocate, ""))
    )


def pod_patch(
    claim: Claim, vocabulary: Vocabulary, records: Mapping[str, str | None]
) -> dict[str, str | None]:
    """The pod annotations of one served slot, as one merge patch (decision 19).

    The erased slot, the vendor's records and the phase together: ``success`` when this was the last
    non-empty slot of any vendor (decision 40), else still ``allocating``. Release the lock only after
    this patch, and only when the phase is ``success``.
    """
    assert claim.pod is not None
    assert claim.slot is not None
    erased = erase(claim.pod.annotations[vocabulary.to_allocate], claim.slot)
    left = slots_left({**claim.pod.annotations, vocabulary.to_allocate: erased})
    return {**records, vocabulary.to_allocate: erased, BIND_PHASE: ALLOCATING if left else SUCCESS}


def failure_patch() -> dict[str, str | None]:
    """The pod annotation of an Allocate that failed; the lock is released even if this patch fails."""
    return {BIND_PHASE: FAILED}


def _examine(
    pod: Pod, node: Node, vocabulary: Vocabulary, wanted: int, *, owner: bool
) -> _Match | _Mismatch | None:
    """A match, why not, or None for a pod that does not speak this vendor's protocol or has ended."""
    text = pod.annotations.get(vocabulary.to_allocate)
    if text is None or pod.terminal or not (owner or filled(text)):
        return None
    unfit = _unfit_state(pod, text, owner=owner)
    if unfit:
        return _Mismatch(pod, unfit)
    try:
        slots = decode(text)
    except CodecError as error:
        return _Mismatch(pod, str(error), fatal=True)
    slot = next((i for i, devices in enumerate(slots) if devices and len(devices) == wanted), None)
    assigned = pod.annotations.get(ASSIGNED_NODE)
    if assigned != node.name and not (owner and assigned is None):
        named = ", ".join(device.id for devices in slots for device in devices)
        why = (
            f"assigned to node {clip(assigned or '')} with device(s) {named}, but bound to node {node.name}; "
            "delete the pod so that it is scheduled again"
        )
        return _Mismatch(pod, why, fatal=slot is not None)
    if slot is None:
        sizes = ", ".join(str(len(devices)) for devices in slots if devices)
        return _Mismatch(pod, f"its slots have {sizes} device(s): device number not matched")
    return _Match(pod, slot, slots[slot])


def _unfit_state(pod: Pod, text: str, *, owner: bool) -> str:
    """Why the pod's state rules it out, or nothing. The lock vouches for its owner: less is asked of it."""
    if not filled(text):
        return "no slot left"
    if pod.deleting:
        return "is being deleted"
    if owner:
        return f"bind-phase is {FAILED}" if pod.bind_phase == FAILED else ""
    if pod.phase not in {"Pending", ""}:
        return f"phase is {clip(pod.phase)}, not Pending"
    if pod.bind_phase != ALLOCATING:
        return f"bind-phase is {clip(pod.bind_phase)}, not {ALLOCATING}"
    return "" if BIND_TIME in pod.annotations else f"no {BIND_TIME}"


def _bind_time(pod: Pod) -> int:
    """The bind time in seconds; a text that is no number sorts last but does not disqualify."""
    text = pod.annotations[BIND_TIME]
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 2**63


def _seniority(match: _Match) -> tuple[int, str, str]:
    return _bind_time(match.pod), match.pod.namespace, match.pod.name


def _culprit(misses: Sequence[_Mismatch], owner: Pod | None) -> Pod | None:
    """The pod to fail: the lock owner if it is wrong in itself, else the only one that is."""
    fatal = [miss.pod for miss in misses if miss.fatal]
    if owner is not None and owner in fatal:
        return owner
    return fatal[0] if len(fatal) == 1 else None
