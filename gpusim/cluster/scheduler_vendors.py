"""What HAMi's scheduler knows of a vendor: names of resources and annotations, and how requests are read.

A table with one row per vendor (ascend_ppu_hami.md D.1); what differs in more than names is a function of
the row. AMD's row stands here (D.10 and amd.md 17), Ascend's rows are made from a device configuration
(`scheduler_ascend`), PPU's from another block of it (`scheduler_ppu`). A bad number makes the whole
request empty, so that the pod is bound and runs unaccounted: HAMi does so (D.9, D.10), and a plugin has
to live with it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from gpusim.cluster.pods import Placed, allocated_key, to_allocate_key
from gpusim.cluster.resourcenames import exact

if TYPE_CHECKING:
    from gpusim.cluster.scheduler_devices import Registered

Object = dict[str, Any]
Limits = Mapping[str, str]
"""Resource name → quantity, as a container's limits or requests say it."""
Slots = tuple[tuple[Placed, ...], ...]
"""The devices of each container, init containers first."""

INT32 = 1 << 31
NO_MEMORY = 101
"""A memory percentage that asks for none (D.9)."""
_PROFILE = re.compile(r"(?:spx|dpx|tpx|qpx|cpx)_nps[1-8]", re.ASCII)


@dataclass(frozen=True, slots=True)
class Resources:
    """What a container says it wants."""

    limits: Limits = field(default_factory=dict)
    requests: Limits = field(default_factory=dict)

    def get(self, name: str) -> str | None:
        """A quantity, from the limits first; None when neither has it."""
        return self.limits.get(name, self.requests.get(name)) if name else None


def resources(container: Object) -> Resources:
    """The resources of a container of a pod."""
    listed = container.get("resources") or {}
    limits, requests = ({n: str(v) for n, v in (listed.get(k) or {}).items()} for k in ("limits", "requests"))
    return Resources(limits, requests)


@dataclass(frozen=True, slots=True)
class Request:
    """What one container asks of one vendor: `count` devices, each with so much."""

    word: str
    """The vendor's, see `Vendor.word`."""
    count: int
    memory_mib: int = 0
    """Per device; 0 = `memory_percent` of what the device has."""
    percent: int = 100
    """Of a device's cores."""
    profile: str = ""
    """Only devices of this partition type (``cpx_nps1``); empty: any."""
    memory_percent: int = 100
    """Of a device's memory when `memory_mib` is 0; `NO_MEMORY`: none."""


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
    """Pod annotations of the user: lists, see `scheduler_fit.Wishes`. Empty: there is none."""
    avoid_types: str
    use_ids: str
    avoid_ids: str
    read: Callable[[Vendor, Resources], tuple[Request, ...]]
    """A container's resources → its requests; nothing when a number is bad."""
    check: Callable[[Vendor, Object, Object], tuple[bool, str]]
    """Admission of (pod, container), both of which it may change (D.11): (does the container ask for this
    vendor, why it is refused)."""
    cores_of: Callable[[Request, int, int], int]
    """(request, the device's cores, its alignment) → cores it takes of the device."""
    handshake: str = ""
    """Node annotation by which plugin and scheduler tell each other that they live; empty: none (D.3)."""
    typed: bool = False
    """Count names like ``amd.com/cpx_nps1`` are counted too (the plugin's naming strategy `mixed`)."""
    exclusive: bool = True
    """All cores are given of an unused card only, none of a full one, and ``mutex`` counts (D.9)."""
    writes_word: bool = True
    """Annotations say `name` for the device's type, not the registered product."""
    padded: bool = False
    """Product types equal `word`, so that upstream's padding files empty slots where they belong (D.8)."""
    legacy: bool = False
    """The registration may be the older string form, too (D.2)."""
    mode_key: str = ""
    """Pod annotation that asks for soft slices with ``hami-core``; empty: the vendor has no modes."""
    soft_key: str = ""
    """Node annotation ``true`` or ``false``: the node makes soft slices."""
    soft: bool = False
    """What holds for nodes without `soft_key`."""
    combine: Callable[[Request, Sequence[Registered], Sequence[Registered]], Sequence[Registered]] | None = (
        None
    )
    """(request, devices that fit in the order tried, all devices) → those to take, or none that go together.
    None: the first that fit."""
    notes: Callable[[Slots, bool, int], Mapping[str, str]] | None = None
    """(slots, whether the pod is soft, unix seconds) → further pod annotations."""
    score: Callable[[Slots, Sequence[Registered]], float] | None = None
    """(slots, the node's devices) → what is added to a node's score."""

    @property
    def to_allocate(self) -> str:
        """Key of the slots that the plugin consumes."""
        return to_allocate_key(self.word)

    @property
    def allocated(self) -> str:
        """Key of the slots that stay."""
        return allocated_key(self.word)

    def is_soft(self, pod: Object) -> bool:
        """Whether a pod asks for soft slices of this vendor."""
        annotations = pod["metadata"].get("annotations") or {}
        return bool(self.mode_key) and annotations.get(self.mode_key) == SOFT

    def profile(self, resource: str) -> str | None:
        """The partition type a count resource names; empty for the plain one, None when it is none."""
        if resource == self.count:
            return ""
        domain, _, last = resource.rpartition("/")
        named = domain == self.count.rpartition("/")[0] and _PROFILE.fullmatch(last)
        return last if self.typed and named else None

    def counted(self, amounts: Mapping[str, str]) -> int:
        """Devices that a node's capacity or allocatable lists."""
        return sum(whole(n) or 0 for resource, n in amounts.items() if self.profile(resource) is not None)


SOFT = "hami-core"
"""The mode of soft slices."""


def whole(quantity: str | int | None) -> int | None:
    """A quantity that is a whole number; None when it is something else."""
    try:
        value = exact(quantity) if quantity is not None else None
    except ValueError:
        return None
    return int(value) if value is not None and value.denominator == 1 else None


def negative(quantity: str | int) -> bool:
    """Whether a quantity is less than nothing."""
    try:
        return exact(quantity) < 0
    except ValueError:
        return False


def percent_of_card(request: Request, total: int, unit: int = 1) -> int:
    """For `Vendor.cores_of`: percent whatever the card registers; more than all of it counts as all (D.9)."""
    return min(request.percent, 100)


def _read_amd(vendor: Vendor, asked: Resources) -> tuple[Request, ...]:
    limits = asked.limits  # requests are not looked at (D.10)
    memory, percent = limits.get(vendor.memory, "0"), limits.get(vendor.cores, "100")
    mib, share = whole(memory), whole(percent)
    found = []
    for resource in sorted(limits):
        profile = vendor.profile(resource)
        if profile is None:
            continue
        count = whole(limits[resource])
        if count is None or mib is None or share is None:
            return ()
        if not (1 <= count < INT32 and 0 <= mib < INT32 and 1 <= share <= 100):
            return ()
        found.append(Request(vendor.word, count, mib, share, profile))
    return tuple(found)


def _check_amd(vendor: Vendor, pod: Object, container: Object) -> tuple[bool, str]:
    limits = resources(container).limits
    if vendor.cores in limits:
        share = whole(limits[vendor.cores])
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
    exclusive=False,
    writes_word=False,
)
AMD_MIXED = replace(AMD, typed=True)
"""Ours, for nodes with ``-resource_naming_strategy=mixed``: upstream knows one count name (decision 15)."""
VENDORS = {"amd": AMD, "amd-mixed": AMD_MIXED}


def container_requests(vendors: Sequence[Vendor], container: Object) -> tuple[Request, ...]:
    """What a container asks, in the vendors' order."""
    asked = resources(container)
    return tuple(request for vendor in vendors for request in vendor.read(vendor, asked))
