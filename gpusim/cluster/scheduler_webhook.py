"""What HAMi's admission webhook does to a pod before anybody schedules it (ascend_ppu_hami.md D.11).

A function for whoever creates pods as a cluster would: the simulated API server calls no webhooks.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpusim.cluster.scheduler_filter import containers
from gpusim.cluster.scheduler_vendors import AMD, Vendor

Object = dict[str, Any]
SCHEDULER_NAME = "hami-scheduler"
IGNORE_LABEL = "hami.io/webhook"


@dataclass(frozen=True, slots=True)
class Admitted:
    """The webhook's answer; `denied` is the reason, or empty."""

    pod: Object
    """The pod as it is to be created; the same object when nothing changes."""
    denied: str = ""


def admit(
    pod: Object,
    vendors: tuple[Vendor, ...] = (AMD,),
    *,
    scheduler: str = SCHEDULER_NAME,
    within_quota: Callable[[Object], bool] = lambda pod: True,
) -> Admitted:
    """Judge a pod, and hand it to HAMi's scheduler when it asks for devices.

    Args:
        pod: as it is to be created; not changed.
        vendors: the table's rows in use.
        scheduler: what ``spec.schedulerName`` becomes.
        within_quota: whether the namespace has room for it (the simulated API server keeps no quotas).
    """
    if (pod["metadata"].get("labels") or {}).get(IGNORE_LABEL) == "ignore":
        return Admitted(pod)
    changed = copy.deepcopy(pod)
    judged = [_judge(changed, one, vendor) for one in containers(changed) for vendor in vendors]
    denied = next((why for _, why in judged if why), "")
    if denied:
        return Admitted(pod, denied)
    if not any(asks for asks, _ in judged):
        return Admitted(pod if changed == pod else changed)
    if pod["spec"].get("nodeName"):
        return Admitted(pod, "pod has node assigned")
    if not within_quota(pod):
        return Admitted(pod, "exceeding resource quota")
    changed["spec"]["schedulerName"] = scheduler
    return Admitted(changed)


def _judge(pod: Object, container: Object, vendor: Vendor) -> tuple[bool, str]:
    """(does the container ask for this vendor's devices, why it is denied)."""
    asks, why = vendor.check(vendor, pod, container)
    if asks and not why and (container.get("securityContext") or {}).get("privileged"):
        why = f"container {container['name']} is privileged"
    return asks, why
