"""What an operator may choose for the PPU plugin, as one immutable value (ascend_ppu_hami.md C.2)."""

from __future__ import annotations

import math
from dataclasses import dataclass

RESOURCE = "alibaba.com/ppu"
SPLIT = 2
SCALING = 1.0


@dataclass(frozen=True, slots=True)
class Settings:
    """Resolved choices; immutable for the life of the process."""

    node_name: str = ""
    resource: str = RESOURCE
    """resourceCountName of the file: what kubelet is told; the scheduler reads the same file."""
    split: int = SPLIT
    """Pods that may share one PPU: shares, not more capacity."""
    memory_scaling: float = SCALING
    """Factor on the registered memory of every PPU; above 0."""
    core_scaling: float = SCALING
    """Factor on the registered compute; above 0."""
    verbosity: int = 0

    @property
    def cores(self) -> int:
        """Percent of compute that a PPU registers: round(100 x scaling) (decision 52)."""
        return cores(self.core_scaling)

    def memory_mib(self, physical: int) -> int:
        """What a PPU of so many MiB registers: trunc(MiB x scaling) (decision 52)."""
        return int(physical * self.memory_scaling)


def cores(scaling: float) -> int:
    """A half goes up, as with Go's math.Round of a number above 0."""
    return math.floor(100 * scaling + 0.5)
