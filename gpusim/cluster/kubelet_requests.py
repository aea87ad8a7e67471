"""What a pod asks of a node: its containers in admission order, and their extended resources.

Extended resources are taken from limits, as the device manager does (requests equal them). A side-car is
an init container with ``restartPolicy: Always``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpusim.cluster.resourcenames import is_extended, whole

Object = dict[str, Any]
TERMINAL = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class Asking:
    """One container's requests."""

    name: str
    amounts: Mapping[str, int]
    """Extended resource → count."""
    init: bool = False
    sidecar: bool = False

    @property
    def passing(self) -> bool:
        """It ends before the pod's own containers start, so they may have its devices."""
        return self.init and not self.sidecar


def containers(pod: Object) -> Iterator[Asking]:
    """Init containers first, then the pod's own, as admission walks them.

    Raises:
        ValueError: a limit is no quantity.
    """
    spec = pod.get("spec") or {}
    for field in ("initContainers", "containers"):
        for one in spec.get(field) or ():
            limits = (one.get("resources") or {}).get("limits") or {}
            amounts = {name: whole(amount) for name, amount in limits.items() if is_extended(name)}
            init = field == "initContainers"
            yield Asking(one["name"], amounts, init, init and one.get("restartPolicy") == "Always")


def total(pod: Object, resource: str) -> int:
    """What the scheduler and the kubelet count for a pod: the larger of running and starting it."""
    running = 0
    peak = 0
    for one in containers(pod):
        amount = one.amounts.get(resource, 0)
        if one.passing:
            peak = max(peak, running + amount)
        else:
            running += amount
    return max(peak, running)


def uid(pod: Object) -> str:
    """The pod's uid."""
    return str(pod["metadata"]["uid"])


def lasting(pod: Object) -> tuple[str, ...]:
    """Names of the containers that keep running: the pod's own and side-cars."""
    return tuple(one.name for one in containers(pod) if not one.passing)
