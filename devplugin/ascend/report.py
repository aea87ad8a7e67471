"""The one object that `-dry_run` prints: what this node would register, offer and leave out.

Stable for scripts: ``schema`` 1, keys never removed. The handshake is no part of it: it is a time.
"""

from __future__ import annotations

from typing import Any

from devplugin.ascend.inventory import Inventory
from devplugin.ascend.offer import offers
from devplugin.ascend.registration import registration
from devplugin.ascend.settings import Settings
from devplugin.dryrun import SCHEMA, resources


def report(inventory: Inventory, settings: Settings) -> dict[str, Any]:
    """The object, of JSON's types only."""
    return {
        "schema": SCHEMA,
        "vendor": "ascend",
        "mode": settings.mode,
        "chip": inventory.chip.word if inventory.chip else "",
        "registration": registration(inventory, settings),
        "resources": resources(offers(inventory, settings)),
        "trouble": inventory.trouble,
        "skipped": [{"device": skipped.device, "reason": skipped.reason} for skipped in inventory.skipped],
    }
