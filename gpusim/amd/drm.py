"""The DRM core's device numbers: who gets which card and render minor.

The only place that knows the 64-per-type limit, the extended range and first-come order. What the
numbers look like as files is `gpusim.amd.drmfs`.

Sources: kernel.md 2.6 and 3; drivers/gpu/drm/drm_drv.c (`drm_minor_alloc`): the render minor of a
device is taken before its primary, and a device that cannot have both has none.
"""

from __future__ import annotations

import errno
from heapq import heappop, heappush
from typing import NamedTuple

MAJOR = 226
"""Character major of all DRM nodes."""
RENDER_BASE = 128
"""First render minor; primaries start at 0, the control type between them is no longer used."""
PER_TYPE = 64
"""Minors a type has before the extended range (drm_drv.c: 64 * type .. 64 * type + 63)."""
EXTENDED_BASE = 192
"""First minor of the range all types share since "Expand max DRM device number to full MINORBITS"."""
CONTROL_OFFSET = 64
"""A controlD link carries its card's number plus this."""


class Nodes(NamedTuple):
    """The minors of one DRM device."""

    card: int
    render: int | None
    """None: a display driver without rendering, such as ast."""

    @property
    def card_name(self) -> str:
        """``card3``."""
        return f"card{self.card}"

    @property
    def render_name(self) -> str | None:
        """``renderD131``; None when the device has no render node."""
        return None if self.render is None else f"renderD{self.render}"

    @property
    def minors(self) -> tuple[int, ...]:
        """Every minor this device holds."""
        return (self.card,) if self.render is None else (self.card, self.render)


class Minors:
    """What `drm_minor_alloc` keeps: the minors in use, lowest free first.

    Args:
        extended: whether minors from 192 on serve devices that found their type full; without it the
            65th device of a type is refused (kernel.md 2.6, "Minor exhaustion").
    """

    __slots__ = ("_cards", "_extended", "_next", "_renders", "_spare")

    def __init__(self, *, extended: bool) -> None:
        self._extended = extended
        # A sorted list is a heap: the lowest free minor of each type is always on top.
        self._cards = list(range(PER_TYPE))
        self._renders = list(range(RENDER_BASE, RENDER_BASE + PER_TYPE))
        self._next = EXTENDED_BASE
        self._spare: list[int] = []

    def copy(self) -> Minors:
        """An independent allocator in the same state."""
        twin = Minors.__new__(Minors)
        twin._extended = self._extended
        twin._cards = self._cards.copy()
        twin._renders = self._renders.copy()
        twin._next = self._next
        twin._spare = self._spare.copy()
        return twin

    def allocate(self, *, render: bool) -> Nodes:
        """Numbers for a new DRM device: render first, then primary, both or none.

        Raises:
            OSError: ENOSPC, a type is full and this kernel has no extended range.
        """
        render_minor = self._take(self._renders) if render else None
        try:
            card = self._take(self._cards)
        except OSError:
            if render_minor is not None:
                self._give(render_minor)
            raise
        return Nodes(card, render_minor)

    def release(self, nodes: Nodes) -> None:
        """Give a device's numbers back; the next probe takes the lowest of them."""
        for minor in nodes.minors:
            self._give(minor)

    def _take(self, free: list[int]) -> int:
        if free:
            return heappop(free)
        if not self._extended:
            raise OSError(errno.ENOSPC, f"all {PER_TYPE} minors of this type are in use")
        if self._spare:
            return heappop(self._spare)
        self._next += 1
        return self._next - 1

    def _give(self, minor: int) -> None:
        if minor >= EXTENDED_BASE:
            heappush(self._spare, minor)
        else:
            heappush(self._renders if minor >= RENDER_BASE else self._cards, minor)
