"""What a node registered: the device list of its annotation, and whether the scheduler believes in it.

The annotation's JSON is ascend_ppu_hami.md D.2, every key left out when it is zero; of vendors that wrote one
before, the older string, too (`scheduler_legacy`). The judgement of D.3 here is the one of a vendor without a
handshake: as long as the node counts any of the vendor's devices. The other is `scheduler_handshake`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpusim.cluster import scheduler_legacy
from gpusim.cluster.scheduler_vendors import Vendor
from gpusim.errors import GpusimError

Object = dict[str, Any]


class RegistrationError(GpusimError):
    """A node's annotation cannot be used: the vendor is skipped on this node this round."""


@dataclass(frozen=True, slots=True)
class Registered:
    """One device as the scheduler sees it."""

    id: str
    type: str = ""
    count: int = 0
    """How many containers may share it."""
    memory_mib: int = 0
    cores: int = 0
    index: int = 0
    numa: int = 0
    mode: str = ""
    healthy: bool = False
    unit: int = 1
    """Cores are taken in multiples of this (custominfo's ``cuPerWGP``)."""
    profile: str = ""
    """Partition type of a partition (``partitionProfile``)."""
    partitionable: bool = False
    """A whole GPU that has partition profiles."""
    network: float | None = None
    """Ascend 910 boards: cards of one network are linked (custominfo's ``NetworkID``)."""
    soft: bool = False
    """Its node made soft slices when the registration was read (`Vendor.soft_key`)."""

    def is_a(self, profile: str) -> bool:
        """Whether it is of a partition type that a request names; the empty one is any.

        A whole GPU does not register its memory partition, a soft one not even its mode: then what is
        not said is not compared, and a soft one counts as ``spx``.
        """
        if not profile:
            return True
        if self.profile:
            return self.profile == profile
        compute = profile.partition("_")[0]
        return self.mode == compute if self.mode else self.partitionable and compute == "spx"


def registered(node: Object, vendor: Vendor) -> tuple[Registered, ...]:
    """The devices of a node's annotation, in its order.

    Raises:
        RegistrationError: no annotation, an empty list, or no list of devices.
    """
    annotations = node["metadata"].get("annotations") or {}
    text = annotations.get(vendor.register)
    if text is None:
        raise RegistrationError(f"annos not found {vendor.register}")
    said = annotations.get(vendor.soft_key) if vendor.soft_key else None
    soft = said == "true" if said is not None else vendor.soft  # the node beats the configuration (D.9)
    try:
        listed = json.loads(text)
    except (ValueError, RecursionError) as error:
        if not vendor.legacy:
            raise RegistrationError(f"{vendor.register}: no JSON: {error}") from None
        listed = _legacy(text, vendor)
    if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
        raise RegistrationError(f"{vendor.register}: no list of devices")
    if not listed:
        raise RegistrationError("no gpu found on node")
    return tuple(_device({str(k).lower(): v for k, v in one.items()}, vendor, soft) for one in listed)


def _legacy(text: str, vendor: Vendor) -> list[Object]:
    """The older form as the newer one has it."""
    try:
        return [entry.json() for entry in scheduler_legacy.decode(text)]
    except scheduler_legacy.LegacyError as error:
        raise RegistrationError(f"{vendor.register}: {error}") from None


def _device(entry: Mapping[str, Any], vendor: Vendor, soft: bool) -> Registered:
    custom = entry.get("custominfo")
    custom = custom if isinstance(custom, dict) else {}
    unit, network = custom.get("cuPerWGP", 1), custom.get("NetworkID")
    try:
        return Registered(
            id=str(entry.get("id", "")),
            type=str(entry.get("type", "")),
            count=_int32(entry, "count"),
            memory_mib=_int32(entry, "devmem"),
            cores=_int32(entry, "devcore"),
            index=_int32(entry, "index"),
            numa=_int32(entry, "numa"),
            mode=str(entry.get("mode", "")),
            healthy=entry.get("health") is True,
            unit=int(unit) if isinstance(unit, int | float) and unit > 1 and unit == int(unit) else 1,
            profile=str(custom.get("partitionProfile", "")),
            partitionable=bool(custom.get("partitionProfiles")),
            network=float(network) if isinstance(network, int | float) else None,  # compared as floats (D.2)
            soft=soft,
        )
    except (ValueError, OverflowError) as error:  # JSON's numbers may be infinite, or larger than a float
        raise RegistrationError(f"{vendor.register}: {error}") from None


def _int32(entry: Mapping[str, Any], key: str) -> int:
    value = entry.get(key, 0)
    if isinstance(value, bool) or not isinstance(value, int) or not -(1 << 31) <= value < 1 << 31:
        raise ValueError(f"{key} {value!r} of device {entry.get('id')!r} is no int32")
    return value


def alive(node: Object, vendor: Vendor, field: str = "capacity") -> bool:
    """Whether kubelet counts any device of the vendor: `field` is ``capacity`` or, newer, ``allocatable``.

    A vendor without a count resource is always believed (D.3).
    """
    return not vendor.count or vendor.counted((node.get("status") or {}).get(field) or {}) > 0
