"""What the node object says to HAMi's scheduler: the cards, that the plugin lives, and the node's mode.

The handshake is written with the cards each time, because the scheduler reads a register annotation only
after it (ascend_ppu_hami.md D.3, decision 41). Every value of an entry that is zero is left out: `index` 0,
and `health` of a card that is not well (A.4, D.2). No capacity is published (decision 43).
"""

from __future__ import annotations

import json
from typing import Any

from devplugin.answers import NodePatch
from devplugin.ascend.inventory import Inventory, Npu
from devplugin.ascend.runtimeinfo import vocabulary
from devplugin.ascend.settings import ChipConfig, Settings
from devplugin.hami import Node, reported

SOFT_KEY = "hami-vnpu-core"
"""Whether the node's containers are limited by the runtime library; always written (A.4)."""

_BOARD = 4
"""Cards of one board that are linked with each other: of 910, except 910C, which are linked all (A.4)."""


def registration(inventory: Inventory, settings: Settings) -> list[dict[str, Any]]:
    """The array as Python objects; a card's index is its place in it."""
    chip = inventory.chip
    if chip is None:
        return []
    return [_entry(index, npu, chip, inventory, settings) for index, npu in enumerate(inventory.npus)]


def node_patch(inventory: Inventory, settings: Settings, now: float) -> NodePatch:
    """Cards, handshake and mode in one patch; nothing while the keys are not known.

    Args:
        inventory: without a card the register annotation is ``[]``, which clears an older one.
        settings: of the node.
        now: seconds since the epoch; written in the process's own time zone (decision 41).
    """
    if inventory.chip is None:
        return NodePatch()
    words = vocabulary(inventory.chip.word)
    text = json.dumps(registration(inventory, settings), separators=(",", ":"))
    told: dict[str, str | None] = {words.register: text, SOFT_KEY: "true" if settings.soft else "false"}
    if words.handshake is not None:
        told[words.handshake] = reported(now + settings.time_offset)
    return NodePatch(annotations=told)


def leftovers(node: Node) -> NodePatch:
    """All that a plugin wrote of a node's Ascend cards, whatever their kind, to be removed.

    Other vendors have keys of the same shape (``hami.io/node-register-xpu``, D.1): theirs stay.
    """
    ours = vocabulary("Ascend")
    stems = tuple(stem for stem in (ours.register, ours.handshake) if stem)
    return NodePatch({key: None for key in node.annotations if key == SOFT_KEY or key.startswith(stems)})


def _entry(
    index: int, npu: Npu, chip: ChipConfig, inventory: Inventory, settings: Settings
) -> dict[str, Any]:
    """One card. Keys in the order of D.2, zero values left out."""
    entry: dict[str, Any] = {
        "id": npu.uuid,
        "index": index,
        "count": inventory.shares(settings),
        "devmem": chip.allocatable_mib,
        "devcore": settings.soft_cores if settings.soft else chip.ai_cores,
        "type": chip.word,
        "health": npu.healthy,
    }
    entry = {key: value for key, value in entry.items() if value}
    if chip.word.startswith("Ascend910"):
        entry["custominfo"] = {"NetworkID": network(chip, index)}
    return entry


def network(chip: ChipConfig, index: int) -> int:
    """Which of a node's networks the card of that index is on."""
    return 0 if chip.word.startswith("Ascend910C") or index < _BOARD else 1
