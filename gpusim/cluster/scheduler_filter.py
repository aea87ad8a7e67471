"""Where a pod fits: devices for each of its containers, the best node, or the reasons why none will do.

Pure. Rules and reason texts of HAMi's filter for a vendor of AMD's kind (ascend_ppu_hami.md D.8, D.10, cases
F.5; amd.md 17): nothing exclusive, the memory given or all of it, a percentage that becomes compute units.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpusim.cluster.pods import Placed
from gpusim.cluster.scheduler_devices import Registered
from gpusim.cluster.scheduler_ledger import Ledger, Usage
from gpusim.cluster.scheduler_vendors import Request, Vendor, container_requests

Object = dict[str, Any]

BINPACK, SPREAD = "binpack", "spread"
POLICIES = (BINPACK, SPREAD)
NODE_POLICY = "hami.io/node-scheduler-policy"
DEVICE_POLICY = "hami.io/gpu-scheduler-policy"
NOT_ENOUGH = "NodeInsufficientDevice"

Slots = tuple[tuple[Placed, ...], ...]
"""The devices of each container, init containers first."""


@dataclass(frozen=True, slots=True)
class Rules:
    """In what HAMi's releases and configurations differ."""

    node_policy: str = BINPACK
    device_policy: str = SPREAD
    whole_units: bool = True
    """Round compute units up to work-group pairs, as newer releases do (D.10)."""
    empty_slots: bool = True
    """False: upstream's slip for AMD, which files the empty slot of a container without devices under the
    product type instead of the vendor, so that the vendor's slots close up (D.8, *Empty-slot padding*)."""


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
        text = annotations.get(key, "")
        return tuple(filter(None, map(str.strip, text.split(",")))) if text.strip() else None

    return Wishes(
        members(vendor.use_types),
        members(vendor.avoid_types) or (),
        members(vendor.use_ids),
        members(vendor.avoid_ids) or (),
    )


@dataclass(frozen=True, slots=True)
class Choice:
    """The filter's answer."""

    node: str = ""
    """Empty: no node will do."""
    slots: Mapping[str, Slots] = field(default_factory=dict)
    """Vendor's word → slots, of those vendors the pod asks anything of."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Node → why not."""


def fit(
    vendor: Vendor,
    request: Request,
    devices: Sequence[Registered],
    usage: Mapping[str, Usage],
    *,
    wish: Wishes | None = None,
    policy: str = SPREAD,
    whole_units: bool = True,
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
    ordered = sorted(known, key=lambda d: sign * _load(d, usage.get(d.id, Usage())))
    reasons: Counter[str] = Counter()
    taken: list[Placed] = []
    for device in reversed(ordered):
        used = usage.get(device.id, Usage())
        memory = request.memory_mib or device.memory_mib
        cores = vendor.cores_of(request, device.cores, device.unit if whole_units else 1)
        why = _objection(device, used, wish or Wishes(), request.profile, Usage(1, memory, cores))
        if why:
            reasons[why] += 1
            continue
        taken.append(Placed(device.id, device.type or vendor.name, memory, cores))
        if len(taken) == request.count:
            return tuple(taken), ""
    if taken:
        reasons["AllocatedCardsInsufficientRequest"] = len(taken)
    return (), ", ".join(sorted(f"{n}/{len(known)} {why}" for why, n in reasons.items()))


def _objection(device: Registered, used: Usage, wish: Wishes, profile: str, need: Usage) -> str:
    """Why a device will not do, the first reason in HAMi's order; empty when it will."""
    after = used.plus(need.memory_mib, need.cores, need.slots)
    objections = (
        (not device.healthy, "CardNotHealth"),
        (not wish.wants_type(device.type) or not device.is_a(profile), "CardTypeMismatch"),
        (not wish.wants_id(device.id), "CardUuidMismatch"),
        (after.slots > device.count, "CardTimeSlicingExhausted"),
        (after.memory_mib > device.memory_mib, "CardInsufficientMemory"),
        (not need.cores or after.cores > device.cores, "CardInsufficientCore"),
    )
    return next((why for holds, why in objections if holds), "")


def _load(device: Registered, used: Usage) -> float:
    parts = ((used.slots, device.count), (used.memory_mib, device.memory_mib), (used.cores, device.cores))
    return sum(have / total for have, total in parts if total > 0)


def containers(pod: Object) -> list[Object]:
    """Init containers first, as slots are written."""
    spec = pod.get("spec") or {}
    return [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]


def asked(pod: Object, vendors: tuple[Vendor, ...]) -> list[tuple[Request, ...]]:
    """Requests container by container, init containers first."""
    return [container_requests(vendors, one) for one in containers(pod)]


def place(
    pod: Object,
    vendors: tuple[Vendor, ...],
    devices: Mapping[str, Sequence[Registered]],
    usage: Mapping[str, Usage],
    rules: Rules,
) -> tuple[dict[str, Slots], dict[str, Usage], str]:
    """All containers of a pod on one node, one after the other.

    Args:
        pod: the pod.
        vendors: the table's rows in use.
        devices: vendor's word → the node's devices.
        usage: device id → what is used of it before.
        rules: see `Rules`.

    Returns:
        (word → slots, usage afterwards, ""), or ({}, {}, reasons) of the first request that does not fit.
    """
    after = dict(usage)
    policy = _policy(pod, DEVICE_POLICY, rules.device_policy)
    requests = asked(pod, vendors)
    rows = {vendor.word: vendor for vendor in vendors}
    slots: dict[str, list[tuple[Placed, ...]]] = {r.word: [] for one in requests for r in one}
    for one in requests:
        given: dict[str, tuple[Placed, ...]] = {}
        for request in one:
            vendor = rows[request.word]
            taken, why = fit(
                vendor,
                request,
                devices.get(vendor.word, ()),
                after,
                wish=wishes(pod, vendor),
                policy=policy,
                whole_units=rules.whole_units,
            )
            if why:
                return {}, {}, why
            given[request.word] = given.get(request.word, ()) + taken
            for device in taken:
                after[device.id] = after.get(device.id, Usage()).plus(device.memory_mib, device.cores)
        for word, listed in slots.items():
            if word in given or rules.empty_slots:
                listed.append(given.get(word, ()))
    return {word: tuple(listed) for word, listed in slots.items()}, after, ""


def choose(
    pod: Object,
    vendors: tuple[Vendor, ...],
    nodes: Mapping[str, Mapping[str, Sequence[Registered]]],
    ledger: Ledger,
    rules: Rules,
) -> Choice:
    """The best node for a pod that asks for devices.

    Args:
        pod: the pod.
        vendors: the table's rows in use.
        nodes: node → vendor's word → registered devices.
        ledger: what the other pods hold.
        rules: see `Rules`.
    """
    policy = _policy(pod, NODE_POLICY, rules.node_policy)
    best: tuple[float, Choice] | None = None
    reasons: dict[str, str] = {}
    for name in sorted(nodes):
        usage = {id_: used for (node, id_), used in ledger.items() if node == name}
        slots, after, why = place(pod, vendors, nodes[name], usage, rules)
        if why:
            reasons[name] = why
            continue
        listed = [device for devices in nodes[name].values() for device in devices]
        load = sum(_load(device, after.get(device.id, Usage())) for device in listed) / len(listed)
        score = load if policy == BINPACK else -load
        if best is None or score > best[0]:
            best = score, Choice(name, slots)
    return best[1] if best is not None else Choice(reasons=reasons)


def _policy(pod: Object, key: str, default: str) -> str:
    """A pod may choose for itself; the annotation is a comma list (D.4)."""
    text = (pod["metadata"].get("annotations") or {}).get(key, "")
    return next((word for word in map(str.strip, text.split(",")) if word in POLICIES), default)
