"""What the dry-run objects of all vendors have in common: the devices that kubelet would be offered.

Scripts read these objects whatever the vendor, so the form stands here once; what else an object holds is
the vendor's own (its `report`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from devplugin.answers import Offer

SCHEMA = 1
"""Keys are added, never removed or given another meaning."""


def resources(offers: Mapping[str, Offer]) -> dict[str, list[dict[str, Any]]]:
    """Resource → its devices."""
    return {
        name: [
            {
                "id": device.id,
                "health": "Healthy" if device.healthy else "Unhealthy",
                "numa": list(device.numa),
            }
            for device in offer.devices
        ]
        for name, offer in offers.items()
    }
