"""Where a pod fits: devices for each of its containers, the best node, or the reasons why none will do.

Pure. Containers one after the other, vendors of one container in the table's order, nodes by score
(ascend_ppu_hami.md D.8); what one request gets on one node is `scheduler_fit`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpusim.cluster.pods import Placed
from gpusim.cluster.scheduler_devices import Registered
from gpusim.cluster.scheduler_fit import BINPACK, DEVICE_POLICY, POLICIES, SPREAD, fit, load, terms
from gpusim.cluster.scheduler_ledger import Ledger, Usage
from gpusim.cluster.scheduler_vendors import Request, Slots, Vendor, container_requests

Object = dict[str, Any]

NODE_POLICY = "hami.io/node-scheduler-policy"


@dataclass(frozen=True, slots=True)
class Rules:
    """In what HAMi's releases and configurations differ."""

    node_policy: str = BINPACK
    device_policy: str = SPREAD
    whole_units: bool = True
    """Round compute units up to work-group pairs, as newer releases do (D.10)."""
    empty_slots: bool = True
    """False: upstream's slip, which files the empty slot of a container without devices under the product
    type instead of the vendor, so that AMD's slots close up; Ascend's are one word, so its positions hold.
    A container that asks another vendor only gets no empty slot of any (D.8, *Empty-slot padding*)."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The filter's answer."""

    node: str = ""
    """Empty: no node will do."""
    slots: Mapping[str, Slots] = field(default_factory=dict)
    """Vendor's word → slots, of those vendors the pod asks anything of."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Node → why not."""


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
    asks = {word: terms(pod, rows[word], whole_units=rules.whole_units) for word in slots}
    for one in requests:
        given: dict[str, tuple[Placed, ...]] = {}
        for request in one:
            vendor = rows[request.word]
            seen = _seen(vendor, devices)
            taken, why = fit(vendor, request, seen, after, terms=asks[request.word], policy=policy)
            if why:
                return {}, {}, why
            given[request.word] = given.get(request.word, ()) + taken
            for device in taken:
                after[device.id] = after.get(device.id, Usage()).plus(device.memory_mib, device.cores)
        for word, listed in slots.items():
            if word in given or rules.empty_slots or (rows[word].padded and not one):
                listed.append(given.get(word, ()))
    return {word: tuple(listed) for word, listed in slots.items()}, after, ""


def _seen(vendor: Vendor, devices: Mapping[str, Sequence[Registered]]) -> list[Registered]:
    """The vendor's devices, and those of other words whose type contains its own (D.8 (a))."""
    return [
        device
        for word, listed in devices.items()
        for device in listed
        if word == vendor.word or vendor.name.lower() in device.type.lower()
    ]


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
        full = sum(load(device, after.get(device.id, Usage())) for device in listed) / len(listed)
        score = full if policy == BINPACK else -full
        score += sum(v.score(slots[v.word], listed) for v in vendors if v.score and v.word in slots)
        if best is None or score > best[0]:
            best = score, Choice(name, slots)
    return best[1] if best is not None else Choice(reasons=reasons)


def _policy(pod: Object, key: str, default: str) -> str:
    """A pod may choose for itself; the annotation is a comma list (D.4)."""
    text = (pod["metadata"].get("annotations") or {}).get(key, "")
    return next((word for word in map(str.strip, text.split(",")) if word in POLICIES), default)
