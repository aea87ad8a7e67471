"""Which image a claim is for: of one container where the pod tells, else of all that could be meant.

HAMi's slots are aligned with the containers of the pod, with init containers first or left out depending
on the writer; the index of a slot is no identity by itself (amd.md 5.2, decision 16). So an alignment
counts only when it agrees with what every container asks for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from devplugin.amd.registration import CAPACITY_CORES, CAPACITY_MEMORY
from devplugin.amd.taken import VOCABULARY
from devplugin.hami import Claim, CodecError, Pod, decode

_PREFIX = "amd.com/"
_NOT_DEVICES = frozenset([CAPACITY_MEMORY, CAPACITY_CORES])


def images(claim: Claim) -> tuple[str, ...]:
    """Image references as the pod writes them, each once; empty when the pod names none."""
    pod = claim.pod
    if pod is None:
        return ()
    named = {pod.images[name] for name in _containers(claim, pod) if pod.images.get(name)}
    return tuple(sorted(named))


def _containers(claim: Claim, pod: Pod) -> Sequence[str]:
    both = (*pod.init_containers, *pod.containers)
    counts = {name: _count(pod.limits.get(name, {})) for name in both}
    sizes = _sizes(pod)
    if claim.slot is not None:
        aligned = [
            names[claim.slot]
            for names in (pod.containers, both)
            if claim.slot < len(names) and _agrees(sizes, [counts[name] for name in names])
        ]
        if aligned:
            return aligned
    return [name for name in both if counts[name] == len(claim.ids)] or both


def _agrees(sizes: Sequence[int], counts: Sequence[int]) -> bool:
    """Whether each container asks for as many devices as its slot has; short lists end with nothing."""
    length = max(len(sizes), len(counts))
    return [*sizes, *[0] * (length - len(sizes))] == [*counts, *[0] * (length - len(counts))]


def _sizes(pod: Pod) -> list[int]:
    try:
        return [len(slot) for slot in decode(pod.annotations.get(VOCABULARY.allocated, ""))]
    except CodecError:
        return []


def _count(limits: Mapping[str, str]) -> int:
    """Devices of ours a container asks for."""
    return sum(
        int(amount)
        for resource, amount in limits.items()
        if resource.startswith(_PREFIX) and resource not in _NOT_DEVICES and amount.isdecimal()
    )
