"""What the node object says to HAMi's scheduler: the cards, and that the plugin lives.

The handshake is written with the cards each time, because the scheduler reads a register annotation only
after it (ascend_ppu_hami.md D.3, decision 41). Every value of an entry that is zero is left out: `index` 0,
`numa` 0, and `health` of a card that is not well (D.2). Numbers: decision 52. No capacity is published.
"""

from __future__ import annotations

import json
import re
from typing import Any

from devplugin.answers import NodePatch
from devplugin.hami import Node, reported
from devplugin.ppu.inventory import Inventory, Ppu
from devplugin.ppu.settings import Settings
from devplugin.ppu.words import TYPE, VOCABULARY

_GRAMMAR = re.compile(r"[,:;]")
"""What parts the pieces of a pod's annotation (D.5)."""


def registration(inventory: Inventory, settings: Settings) -> list[dict[str, Any]]:
    """The array as Python objects, by index."""
    return [_entry(ppu, settings) for ppu in inventory.ppus]


def node_patch(inventory: Inventory, settings: Settings, now: float) -> NodePatch:
    """Cards and handshake in one patch; nothing before the first look that succeeded.

    Args:
        inventory: without a card the register annotation is ``[]``, which clears an older one.
        settings: of the node.
        now: seconds since the epoch.
    """
    if not inventory.tool:
        return NodePatch()
    text = json.dumps(registration(inventory, settings), separators=(",", ":"))
    told: dict[str, str | None] = {VOCABULARY.register: text}
    if VOCABULARY.handshake is not None:
        told[VOCABULARY.handshake] = reported(now)
    return NodePatch(annotations=told)


def leftovers(node: Node) -> NodePatch:
    """All that a plugin wrote of a node's PPUs, to be removed."""
    keys = (VOCABULARY.register, VOCABULARY.handshake)
    return NodePatch({key: None for key in node.annotations if key in keys})


def type_of(name: str) -> str:
    """The registered type: ``PPU-<name>``, not doubled, without what the grammar uses (decision 52)."""
    plain = _GRAMMAR.sub("", name)
    return plain if plain.startswith(TYPE) else f"{TYPE}{plain}"


def _entry(ppu: Ppu, settings: Settings) -> dict[str, Any]:
    """One card. Keys in the order of D.2, zero values left out."""
    entry = {
        "id": ppu.uuid,
        "index": ppu.index,
        "count": settings.split,
        "devmem": settings.memory_mib(ppu.memory_mib),
        "devcore": settings.cores,
        "type": type_of(ppu.name),
        "numa": ppu.numa,
        "health": ppu.healthy,
    }
    return {key: value for key, value in entry.items() if value}
