"""What HAMi's scheduler knows of a vendor: names of resources and annotations, and how requests are read.

A table with one row per vendor (ascend_ppu_hami.md D.1); what differs in more than names is a function of
the row. AMD: D.10 and amd.md 17. A bad number makes the whole request empty, so that the pod is bound and
runs unaccounted: HAMi does so (D.10), and the plugin has to live with it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpusim.cluster.pods import allocated_key, to_allocate_key
from gpusim.cluster.resourcenames import exact

Object = dict[str, Any]
Limits = Mapping[str, str]
"""Resource name → quantity, as a container's limits say it."""

_INT32 = 1 << 31
_PROFILE = re.compile(r"(?:spx|dpx|tpx|qpx|cpx)_nps[1-8]", re.ASCII)


@dataclass(frozen=True, slots=True)
class Request:
    """What one container asks of one vendor: `count` devices, each with so much."""

    word: str
    """The vendor's, see `Vendor.word`."""
    count: int
    memory_mib: int = 0
    """Per device; 0 = all that the device has."""
    percent: int = 100
    """Of a device's cores."""
    profile: str = ""
    """Only devices of this partition type (``cpx_nps1``); empty: any."""


@dataclass(frozen=True, slots=True)
class Vendor:
    """One row of the table."""

    word: str
    """In the pod annotations' keys: ``hami.io/<word>-devices-to-allocate``."""
    name: str
    """The scheduler's own word; only devices whose type contains it, whatever the case, are seen (D.8)."""
    register: str
    """Node annotation with the devices."""
    count: str
    memory: str
    cores: str
    use_types: str
    """Pod annotations of the user: lists, see `scheduler_filter.Wishes`."""
    avoid_types: str
    use_ids: str
    avoid_ids: str
    read: Callable[[Vendor, Limits], tuple[Request, ...]]
    """A container's limits → its requests; nothing when a number is bad."""
    check: Callable[[Vendor, Limits], tuple[bool, str]]
    """Admission of a container (D.11): (does it ask for this vendor, why it is refused)."""
    cores_of: Callable[[Request, int, int], int]
    """(request, the device's cores, its alignment) → cores it takes of the device; 0 = it has none."""
    typed: bool = False
    """Count names like ``amd.com/cpx_nps1`` are counted too (the plugin's naming strategy `mixed`)."""

    @property
    def to_allocate(self) -> str:
        """Key of the slots that the plugin consumes."""
        return to_allocate_key(self.word)

    @property
    def allocated(self) -> str:
        """Key of the slots that stay."""
        return allocated_key(self.word)

    def profile(self, resource: str) -> str | None:
        """The partition type a count resource names; empty for the plain one, None when it is none."""
        if resource == self.count:
            return ""
        domain, _, last = resource.rpartition("/")
        named = domain == self.count.rpartition("/")[0] and _PROFILE.fullmatch(last)
        return last if self.typed and named else None

    def counted(self, amounts: Mapping[str, str]) -> int:
        """Devices that a node's capacity or allocatable lists."""
        return sum(_whole(n) or 0 for resource, n in amounts.items() if self.profile(resource) is not None)


def _whole(quantity: str | int) -> int | None:
    """A quantity that is a whole number; None when it is something else."""
    try:
        value = exact(quantity)
    except ValueError:
        return None
    return int(value) if value.denominator == 1 else None


def _read_amd(vendor: Vendor, limits: Limits) -> tuple[Request, ...]:
    memory, percent = limits.get(vendor.memory, "0"), limits.get(vendor.cores, "100")
    mib, share = _whole(memory), _whole(percent)
    found = []
    for resource in sorted(limits):
        profile = vendor.profile(resource)
        if profile is None:
            continue
        count = _whole(limits[resource])
        if count is None or mib is None or share is None:
            return ()
        if not (1 <= count < _INT32 and 0 <= mib < _INT32 and 1 <= share <= 100):
            return ()
        found.append(Request(vendor.word, count, mib, share, profile))
    return tuple(found)


def _check_amd(vendor: Vendor, limits: Limits) -> tuple[bool, str]:
    if vendor.cores in limits:
        share = _whole(limits[vendor.cores])
        if share is None or not 1 <= share <= 100:
            return True, f"{vendor.cores} must be an integer percentage between 1 and 100"
    asked = vendor.memory in limits or vendor.cores in limits
    return asked or any(vendor.profile(resource) is not None for resource in limits), ""


def amd_cores(request: Request, total: int, unit: int = 1) -> int:
    """Compute units of one device: the floor of the percentage, at least one, at most all.

    With a `unit` above 1 (RDNA's work-group processors) rounded up to whole ones, capped at the total.
    """
    if total <= 0:
        return 0
    units = max(1, min(total, total * request.percent // 100))
    return min(total, -(-units // unit) * unit) if unit > 1 else units


AMD = Vendor(
    word="amd",
    name="AMD",
    register="hami.io/node-amd-register",
    count="amd.com/gpu",
    memory="amd.com/gpumem",
    cores="amd.com/gpucores",
    use_types="amd.com/use-gputype",
    avoid_types="amd.com/nouse-gputype",
    use_ids="amd.com/use-gpu-uuid",
    avoid_ids="amd.com/nouse-gpu-uuid",
    read=_read_amd,
    check=_check_amd,
    cores_of=amd_cores,
)
AMD_MIXED = replace(AMD, typed=True)
"""Ours, for nodes with ``-resource_naming_strategy=mixed``: upstream knows one count name (decision 15)."""
VENDORS = {"amd": AMD, "amd-mixed": AMD_MIXED}


def container_requests(vendors: tuple[Vendor, ...], container: Object) -> tuple[Request, ...]:
    """What a container asks, in the vendors' order; only its limits are looked at (D.10)."""
    limits = (container.get("resources") or {}).get("limits") or {}
    return tuple(request for vendor in vendors for request in vendor.read(vendor, limits))
