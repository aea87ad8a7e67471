"""Devices of one node for one request of one container, or the reasons why there are none.

Pure. Order of the checks and texts of the reasons are HAMi's (ascend_ppu_hami.md D.8 to D.10, cases F.4, F.5;
amd.md 17). Kept as upstream has it: devices are looked through by a part of their type, so that a request for
``Ascend910B4`` is offered a mixed node's ``Ascend910B4-1`` cards too, and takes them (D.8 (a), G 23).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpusim.cluster.pods import Placed
from gpusim.cluster.scheduler_devices import Registered
from gpusim.cluster.scheduler_ledger import Usage
from gpusim.cluster.scheduler_reasons import told
from gpusim.cluster.scheduler_vendors import NO_MEMORY, Request, Vendor

Object = dict[str, Any]

BINPACK, SPREAD = "binpack", "spread"
POLICIES = (BINPACK, SPREAD)
DEVICE_POLICY = "hami.io/gpu-scheduler-policy"
MUTEX = "mutex"
"""In the list of `DEVICE_POLICY`: only cards that nobody uses (D.4)."""
NOT_ENOUGH = "NodeInsufficientDevice"
TOO_FEW = "AllocatedCardsInsufficientRequest"


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a pod's annotations say about devices of one vendor (D.4).

    Types match as parts of the type whatever the case, ids exactly; empty members match nothing. A value
    that is blank is no wish; a list to use of which only commas are left matches nothing.
    """

    use_types: tuple[str, ...] | None = None
    avoid_types: tuple[str, ...] = ()
    use_ids: tuple[str, ...] | None = None
    avoid_ids: tuple[str, ...] = ()

    def wants_type(self, type_: str) -> bool:
        """Whether the user accepts this product type."""
        has = type_.lower()
        if any(word.lower() in has for word in self.avoid_types):
            return False
        return self.use_types is None or any(word.lower() in has for word in self.use_types)

    def wants_id(self, id_: str) -> bool:
        """Whether the user accepts this device."""
        return id_ not in self.avoid_ids and (self.use_ids is None or id_ in self.use_ids)


def wishes(pod: Object, vendor: Vendor) -> Wishes:
    """Read a pod's constraints."""
    annotations = pod["metadata"].get("annotations") or {}

    def members(key: str) -> tuple[str, ...] | None:
        text = annotations.get(key, "") if key else ""
        return tuple(filter(None, map(str.strip, text.split(",")))) if text.strip() else None

    return Wishes(
        members(vendor.use_types),
        members(vendor.avoid_types) or (),
        members(vendor.use_ids),
        members(vendor.avoid_ids) or (),
    )


@dataclass(frozen=True, slots=True)
class Terms:
    """Under what terms a pod's requests are met, beside their numbers."""

    wish: Wishes = field(default_factory=Wishes)
    soft: bool = False
    """It asks for soft slices: of nodes that make them, and a card has 100 percent of cores."""
    mutex: bool = False
    whole_units: bool = True
    """See `scheduler_filter.Rules`."""


def terms(pod: Object, vendor: Vendor, *, whole_units: bool = True) -> Terms:
    """Read a pod's terms for one vendor."""
    policy = (pod["metadata"].get("annotations") or {}).get(DEVICE_POLICY, "")
    mutex = MUTEX in map(str.strip, policy.split(","))
    return Terms(wishes(pod, vendor), vendor.is_soft(pod), mutex, whole_units)


def fit(
    vendor: Vendor,
    request: Request,
    devices: Sequence[Registered],
    usage: Mapping[str, Usage],
    *,
    terms: Terms | None = None,
    policy: str = SPREAD,
) -> tuple[tuple[Placed, ...], str]:
    """Devices of one node for one request.

    They are tried from the end of the list in order of use: the fullest first (``binpack``) or the emptiest,
    of equals the one registered last.

    Returns:
        (the devices in the order they were taken, ""), or ((), reasons like ``2/8 CardNotHealth``).
    """
    known = [d for d in devices if not d.type or vendor.name.lower() in d.type.lower()]
    if request.count > len(known):
        return (), NOT_ENOUGH
    sign = 1 if policy == BINPACK else -1
    ordered = sorted(known, key=lambda d: sign * load(d, usage.get(d.id, Usage())))
    return take(vendor, request, ordered, usage, terms or Terms())


def take(
    vendor: Vendor, request: Request, devices: Sequence[Registered], usage: Mapping[str, Usage], terms: Terms
) -> tuple[tuple[Placed, ...], str]:
    """The vendor's own part of `fit`: devices are tried from the last to the first.

    Returns:
        As `fit`.
    """
    reasons: Counter[str] = Counter()
    fitting: list[Registered] = []
    needs: dict[str, Usage] = {}
    for device in reversed(devices):
        need, why = _judge(vendor, request, device, usage.get(device.id, Usage()), terms)
        if why:
            reasons[why] += 1
            continue
        fitting.append(device)
        needs[device.id] = need
        if len(fitting) == request.count and vendor.combine is None:
            break
    taken: Sequence[Registered] = ()
    total = len(devices)
    if len(fitting) >= request.count:
        if vendor.combine is None:
            taken = fitting
        elif not (taken := vendor.combine(request, fitting, devices)):
            total = request.count  # of devices that do not go together upstream counts so (D.9)
    if not taken:
        if fitting:
            reasons[TOO_FEW] = len(fitting)
        return (), told(reasons, total)

    def placed(device: Registered) -> Placed:
        type_ = vendor.name if vendor.writes_word else device.type or vendor.name
        return Placed(device.id, type_, needs[device.id].memory_mib, needs[device.id].cores)

    return tuple(placed(device) for device in taken), ""


def _judge(
    vendor: Vendor, request: Request, device: Registered, used: Usage, terms: Terms
) -> tuple[Usage, str]:
    """(what is asked of a device, the first reason in HAMi's order why it will not do, or nothing)."""
    memory = request.memory_mib
    if not memory and request.memory_percent != NO_MEMORY:
        memory = device.memory_mib * request.memory_percent // 100
    need = vendor.cores_of(request, device.cores, device.unit if terms.whole_units else 1)
    cores = 100 if terms.soft else device.cores
    wanted = request.word == vendor.word and device.is_a(request.profile)
    alone, strict = not used.slots, vendor.exclusive
    objections = (
        (terms.soft and not device.soft, "ModeNotFit"),
        (not device.healthy, "CardNotHealth"),
        (not wanted or not terms.wish.wants_type(device.type), "CardTypeMismatch"),
        (not terms.wish.wants_id(device.id), "CardUuidMismatch"),
        (used.slots >= device.count, "CardTimeSlicingExhausted"),
        (strict and terms.mutex and not alone, "ExclusiveDeviceAllocateConflict"),
        (used.memory_mib + memory > device.memory_mib, "CardInsufficientMemory"),
        (used.cores + need > cores or (not strict and not need), "CardInsufficientCore"),
        (strict and need == cores == 100 and not alone, "ExclusiveDeviceAllocateConflict"),
        (not need and 0 < cores <= used.cores, "CardComputeUnitsExhausted"),
    )
    return Usage(1, memory, need), next((why for holds, why in objections if holds), "")


def load(device: Registered, used: Usage) -> float:
    """How full a device is: 0 to 3, the sum of its shares in slots, memory and cores."""
    parts = ((used.slots, device.count), (used.memory_mib, device.memory_mib), (used.cores, device.cores))
    return sum(have / total for have, total in parts if total > 0)
