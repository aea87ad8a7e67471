"""What kubelet is told: ``<UUID>-<i>`` for each share i of every card, all of one resource.

Which id kubelet picks means nothing: Allocate follows the scheduler's annotation. So no preference is
announced, and no NUMA node. Source: ascend_ppu_hami.md A.1 and A.4.
"""

from __future__ import annotations

from collections.abc import Mapping

from devplugin.answers import Offer, OfferedDevice
from devplugin.ascend.inventory import Inventory
from devplugin.ascend.settings import Settings


def offers(inventory: Inventory, settings: Settings) -> Mapping[str, Offer]:
    """The node's one resource; an empty list when it has no card, nothing while its kind is not known.

    kubelet would otherwise remember for five minutes what an earlier life of the plugin offered.
    """
    if inventory.chip is None:
        return {}
    shares = inventory.shares(settings)
    devices = tuple(
        OfferedDevice(f"{npu.uuid}-{share}", npu.healthy) for npu in inventory.npus for share in range(shares)
    )
    resource = inventory.chip.resource
    return {resource: Offer(resource, devices, preferred=False)}
