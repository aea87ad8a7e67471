"""How well a PPU is.

No public word of ppu-smi for it is known: what a plugin can see is that values read N/A, that the node
cannot be opened, or that the PPU is not listed at all (decision 54; ascend_ppu_hami.md C.2). The words are
ours, and so is the errno of a PPU that does not answer, which is that of other vendors' drivers.
"""

from __future__ import annotations

from enum import Enum


class Health(Enum):
    """Whether the driver gets an answer from it."""

    OK = "OK"
    HUNG = "Hung"
    """Listed with its identity; what would have to be measured reads N/A, opening its node is EIO."""


WORDS = tuple(health.value for health in Health)
"""What a fixture may say."""
