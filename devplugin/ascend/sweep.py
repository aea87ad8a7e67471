"""What pods left on the node, asked again and again: directories, vNPUs, and a library that had to wait.

Three questions that have only their moment in common: `containerdirs`, `idle` and `hostprep` answer them.
Chips that appeared after the start get their device-share here, for the start had not seen them (P26).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from devplugin import containerdirs
from devplugin.answers import Effect, Turn
from devplugin.ascend import hostprep, idle
from devplugin.ascend.inventory import Inventory
from devplugin.ascend.settings import Settings
from devplugin.host import Host

PERIOD = 60.0
"""Seconds between turns, unless idle vNPUs are to be looked for more often."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What one turn hands to the next."""

    gone: Mapping[str, float] = field(default_factory=dict)
    """Directory → since when it has been without a pod."""
    vnpus: idle.Memory = field(default_factory=idle.Memory)
    kept: bool | None = None
    """Whether the host's library is another than the image's; None: not looked yet."""
    shared: Mapping[tuple[int, int], int] | None = None
    """(card, chip) → how often its device-share was seen to; None before the first turn."""


def every(settings: Settings) -> float | None:
    """Seconds between two turns; there is always work."""
    return min(settings.idle_interval, PERIOD)


def sweep(
    host: Host, inventory: Inventory, settings: Settings, turn: Turn
) -> tuple[tuple[Effect, ...], Memory]:
    """One turn.

    Args:
        host: the node; nothing is changed here.
        inventory: its NPUs.
        settings: what is to be looked for.
        turn: pods, time and the memory of the turn before.
    """
    memory = turn.memory if isinstance(turn.memory, Memory) else Memory()
    removed, gone = containerdirs.leftovers(host, settings.containers, turn.pods, memory.gone, turn.now)
    effects: list[Effect] = [*removed]
    kept = memory.kept
    if settings.soft and kept is not False:
        again, kept = hostprep.retry(host, settings, turn.pods, kept is True)
        effects += again
    shared = memory.shared
    if settings.soft and inventory.npus and inventory.tool:
        late, shared = hostprep.late(inventory, shared)
        effects += late
    destroyed, looked = idle.look(host, inventory, settings, turn, memory.vnpus)
    return (*effects, *destroyed), Memory(gone, looked, kept, shared)
