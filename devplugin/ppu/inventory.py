"""What a PPU node has, as immutable values: the one thing discovery makes and all else reads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ppu:
    """One card (ascend_ppu_hami.md C.2, decision 54)."""

    uuid: str
    """``GPU-…``, as the tool says it."""
    index: int
    """The tool's: its place among what the driver drives now."""
    minor: int
    """Number of ``/dev/alixpu_ppu<minor>``; not the index."""
    name: str
    """``PPU-ZW810E``."""
    bdf: str
    """PCI address as sysfs spells it; empty: the tool does not know it."""
    memory_mib: int
    numa: int = -1
    """-1: unknown (decision 27)."""
    trouble: str = ""
    """Why it cannot be used now, by the tool and /dev; empty: it can."""
    unopened: str = ""
    """Why its device node did not open at the last pulse; empty: it did, or was not tried."""

    @property
    def reason(self) -> str:
        """Why it is unhealthy; empty: it is not."""
        return self.trouble or self.unopened

    @property
    def healthy(self) -> bool:
        """Whether pods may get it."""
        return not self.reason


@dataclass(frozen=True, slots=True)
class Skipped:
    """A device that is not offered, and why."""

    device: str
    reason: str


@dataclass(frozen=True, slots=True)
class Library:
    """PPU-HAMi-core as it lies on the host."""

    files: tuple[str, ...] = ()
    """Host paths of the preload list and of all it names: what must be there for a limit to hold."""
    trouble: str = ""
    """Why no container can be limited by it; empty: it can."""


@dataclass(frozen=True, slots=True)
class Inventory:
    """Everything decisions need to know of the node's PPUs."""

    ppus: tuple[Ppu, ...] = ()
    """By the tool's index."""
    skipped: tuple[Skipped, ...] = ()
    trouble: str = ""
    """Why the last look failed, all of it; the PPUs are those of the look before."""
    tool: str = ""
    """Where ppu-smi was found; empty: no look succeeded yet, so nothing is known of the node."""
    library: Library = Library()
    assets: tuple[str, ...] = ()
    """Files of PPU-HAMi-core that the image has, below `words.ASSETS`."""

    def ppu(self, uuid: str) -> Ppu | None:
        """The card of that UUID."""
        return next((ppu for ppu in self.ppus if ppu.uuid == uuid), None)


def ordered(ppus: Iterable[Ppu]) -> tuple[Ppu, ...]:
    """The cards of a container as its processes count them: from 0, in the order the host has them (C.2)."""
    return tuple(sorted(ppus, key=lambda ppu: ppu.index))
