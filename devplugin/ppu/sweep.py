"""What pods left on the node, asked again and again: the directories of containers that are gone."""

from __future__ import annotations

from collections.abc import Mapping

from devplugin import containerdirs
from devplugin.answers import Effect, Turn
from devplugin.host import Host
from devplugin.ppu.words import CONTAINERS

PERIOD = 60.0
"""Seconds between turns."""


def sweep(host: Host, turn: Turn) -> tuple[tuple[Effect, ...], Mapping[str, float]]:
    """One turn; its memory is since when each directory has been without a pod."""
    gone = turn.memory if isinstance(turn.memory, dict) else {}
    return containerdirs.leftovers(host, CONTAINERS, turn.pods, gone, turn.now)
