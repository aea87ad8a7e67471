"""The one object that `-dry_run` prints: what this node would register, offer and leave out.

Stable for scripts: ``schema`` 1, keys never removed. It needs neither a node name nor an API server;
without NODE_NAME the node is called ``node``, which shows only in ids of GPUs without serial.
"""

from __future__ import annotations

from typing import Any

from devplugin.amd.caps import dmem_state
from devplugin.amd.inventory import Inventory
from devplugin.amd.offer import offers
from devplugin.amd.registration import registration
from devplugin.amd.settings import Settings
from devplugin.dryrun import SCHEMA, resources


def report(inventory: Inventory, settings: Settings) -> dict[str, Any]:
    """The object, of JSON's types only."""
    usable = dmem_state(inventory, settings)
    return {
        "schema": SCHEMA,
        "vendor": "amd",
        "mode": settings.mode,
        "registration": registration(inventory, settings),
        "resources": resources(offers(inventory, settings)),
        "dmem": {"usable": usable.ok, "reason": usable.reason},
        "skipped": [{"device": skipped.device, "reason": skipped.reason} for skipped in inventory.skipped],
    }
