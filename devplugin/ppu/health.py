"""One look, each pulse, whether every PPU's device node opens: a card that hangs answers with an errno.

No public word of ppu-smi tells a card's health; what discovery sees besides is that its values read ``N/A``
or that its node is not there (decision 54). The verdict stands until the next pulse.
"""

from __future__ import annotations

from dataclasses import replace

from devplugin.host import Host, words
from devplugin.ppu.inventory import Inventory, Ppu
from devplugin.ppu.words import NODE


def health(host: Host, inventory: Inventory) -> Inventory:
    """The inventory after trying all of them. Never raises OSError."""
    return replace(inventory, ppus=tuple(_tried(host, ppu) for ppu in inventory.ppus))


def _tried(host: Host, ppu: Ppu) -> Ppu:
    path = f"{NODE}{ppu.minor}"
    try:
        host.probe(path)
    except OSError as error:
        return replace(ppu, unopened=f"{path} does not open: {words(error)}")
    return replace(ppu, unopened="")
