"""What kubelet is told: ``<uuid>-<i>`` for each share i of every card (decision 52).

Which id kubelet picks means nothing: Allocate follows the scheduler's annotation. So no preference is
announced.
"""

from __future__ import annotations

from collections.abc import Mapping

from devplugin.answers import Offer, OfferedDevice
from devplugin.ppu.inventory import Inventory
from devplugin.ppu.settings import Settings


def offers(inventory: Inventory, settings: Settings) -> Mapping[str, Offer]:
    """The node's one resource; an empty list when it has no card, nothing while nothing is known of it.

    kubelet would otherwise remember for five minutes what an earlier life of the plugin offered.
    """
    if not inventory.tool:
        return {}
    devices = tuple(
        OfferedDevice(f"{ppu.uuid}-{share}", ppu.healthy, (ppu.numa,) if ppu.numa >= 0 else ())
        for ppu in inventory.ppus
        for share in range(settings.split)
    )
    return {settings.resource: Offer(settings.resource, devices, preferred=False)}
