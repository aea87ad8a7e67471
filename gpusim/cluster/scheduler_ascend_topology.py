"""Which Ascend cards go together: networks of 910 boards, pairs of 910C chips.

ascend_ppu_hami.md D.9, cases S21 and S25.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from gpusim.cluster.scheduler_devices import Registered
from gpusim.cluster.scheduler_vendors import Request, Slots

WEIGHT = 1.0
"""Of the network's share in a node's score, in the measure of one resource's load."""


def same_network(
    request: Request, fitting: Sequence[Registered], devices: Sequence[Registered]
) -> Sequence[Registered]:
    """The first that fit, from the network with most that fit on; see `Vendor.combine`.

    Only where every device of the node says its network; one device is the first that fits.
    """
    if request.count > 1 and all(device.network is not None for device in devices):
        groups = _groups(fitting, [device.network for device in fitting])
        fitting = [device for group in sorted(groups, key=len, reverse=True) for device in group]
    return fitting[: request.count]


def pairs(
    request: Request, fitting: Sequence[Registered], devices: Sequence[Registered]
) -> Sequence[Registered]:
    """Several 910C chips are whole pairs (index div 2); with too few whole pairs that fit there are none."""
    if request.count == 1:
        return fitting[:1]
    groups = _groups(fitting, [device.index // 2 for device in fitting])
    whole = [device for group in groups if len(group) == 2 for device in group]
    return whole[: request.count] if len(whole) >= request.count and request.count % 2 == 0 else ()


def share(slots: Slots, devices: Sequence[Registered]) -> float:
    """The part of a pod's devices that is in one network, times `WEIGHT`; see `Vendor.score`."""
    networks = {device.id: device.network for device in devices if device.network is not None}
    given = [networks[one.id] for slot in slots for one in slot if one.id in networks]
    return WEIGHT * max(map(given.count, given)) / len(given) if given else 0.0


def _groups(devices: Sequence[Registered], keys: Sequence[Hashable]) -> list[list[Registered]]:
    """Devices of one key together, in the order in which keys come."""
    found: dict[Hashable, list[Registered]] = {}
    for device, key in zip(devices, keys, strict=True):
        found.setdefault(key, []).append(device)
    return list(found.values())
