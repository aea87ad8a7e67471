"""PPUs by the name that ppu-smi prints, and the numbers a kind of card has.

Source: ascend_ppu_hami.md C.2, PPU hardware facts (memory, power, cards of a node, memory in use of the idle
card whose table row is recorded), decision 54 (PCI vendor). What no source says is our choice and marked so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

VENDOR = 0x1DED
"""PCI vendor of every PPU (decision 54)."""
MOST_PER_NODE = 16


@dataclass(frozen=True, slots=True)
class Product:
    """One kind of card.

    Attributes:
        name: as fixtures call it, and the name column of ppu-smi.
        memory_mib: all of it.
        power_watts: limit of the board.
        device_id: PCI device; ours.
        listed_as: its name in ``ppu-smi -L``, which says PPU whatever the model is.
        idle_mib: in use with no program on it.
        pci_class: processing accelerator; ours.
    """

    name: str
    memory_mib: int
    power_watts: int
    device_id: int
    listed_as: str = "PPU"
    idle_mib: int = 49
    pci_class: int = 0x120000


PRODUCTS: Mapping[str, Product] = MappingProxyType(
    {one.name: one for one in (Product("PPU-ZW810E", 98304, 400, 0x8100),)}
)
"""Every kind there is."""
