"""The one object that `-dry_run` prints: what this node would register, offer and leave out.

Stable for scripts: ``schema`` 1, keys never removed. The handshake is no part of it: it is a time.
"""

from __future__ import annotations

from typing import Any

from devplugin.dryrun import SCHEMA, resources
from devplugin.ppu.inventory import Inventory
from devplugin.ppu.offer import offers
from devplugin.ppu.registration import registration
from devplugin.ppu.settings import Settings

MODE = "hami-core"
"""PPUs are shared by their runtime library and in no other way."""


def report(inventory: Inventory, settings: Settings) -> dict[str, Any]:
    """The object, of JSON's types only."""
    return {
        "schema": SCHEMA,
        "vendor": "ppu",
        "mode": MODE,
        "registration": registration(inventory, settings),
        "resources": resources(offers(inventory, settings)),
        "trouble": inventory.trouble,
        "skipped": [{"device": skipped.device, "reason": skipped.reason} for skipped in inventory.skipped],
    }
