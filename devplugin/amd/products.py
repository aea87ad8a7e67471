"""AMD products by PCI device id, as far as a device plugin must know them without AMD SMI.

Name, XCC count and partition profiles. Sources: kfd.md 2 (device ids, XCCs), amd.md 2.5 and 13 and the
recorded `amd-smi` data of an MI355X server and an MI300X (names, profiles). What no record shows is
marked "inferred". A product missing here still works: name from `product_name`, XCCs from KFD.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Profile:
    """One row of AMD SMI's accelerator partition profile table."""

    index: int
    type: str
    """SPX, DPX, TPX, QPX or CPX."""
    memory_caps: str
    """Memory modes it works in, ``NPS1,NPS4``."""
    partitions: int
    xccs: int
    """XCCs of one partition."""


@dataclass(frozen=True, slots=True)
class Product:
    """What a PCI device id stands for."""

    market_name: str
    xccs: int | None = None
    profiles: tuple[Profile, ...] = ()


def _profiles(*rows: tuple[str, str, int, int]) -> tuple[Profile, ...]:
    """Rows in the order of their profile index."""
    return tuple(Profile(index, *row) for index, row in enumerate(rows))


_MI350 = _profiles(
    ("SPX", "NPS1", 1, 8), ("DPX", "NPS1,NPS2", 2, 4), ("QPX", "NPS1", 4, 2), ("CPX", "NPS1", 8, 1)
)
"""Recorded on MI355X; MI350X is the same silicon, inferred."""

_MI300X = _profiles(
    ("SPX", "NPS1", 1, 8), ("DPX", "NPS1", 2, 4), ("QPX", "NPS1,NPS4", 4, 2), ("CPX", "NPS1,NPS4", 8, 1)
)
"""First three rows recorded on MI300X; CPX inferred from its documented pair with NPS4 (kernel.md 2.3)."""

_MI308X = _profiles(("SPX", "NPS1", 1, 4), ("DPX", "NPS1", 2, 2), ("CPX", "NPS1,NPS4", 4, 1))
"""Inferred from the modes of four XCCs (kernel.md 2.2, 2.3); a recorded node is CPX under NPS4."""

_MI300A = _profiles(("SPX", "NPS1", 1, 6), ("TPX", "NPS1", 3, 2), ("CPX", "NPS1", 6, 1))
"""First row recorded; the rest inferred from the modes of six XCCs (kernel.md 2.2)."""

PRODUCTS: Mapping[int, Product] = {
    0x6860: Product("AMD Radeon Instinct MI25"),  # inferred, the maker's name
    0x740C: Product("AMD Instinct MI250X"),
    0x740F: Product("AMD Instinct MI210"),
    0x74A0: Product("AMD Instinct MI300A", 6, _MI300A),
    0x74A1: Product("AMD Instinct MI300X", 8, _MI300X),
    0x74A2: Product("AMD Instinct MI308X", 4, _MI308X),
    0x74A5: Product("AMD Instinct MI325X", 8, _MI300X),
    0x74B5: Product("AMD Instinct MI300X VF"),
    0x75A0: Product("AMD Instinct MI350X", 8, _MI350),
    0x75A3: Product("AMD Instinct MI355X", 8, _MI350),
    0x75B0: Product("AMD Instinct MI350X VF"),
    0x75B3: Product("AMD Instinct MI355X VF"),
    0x7550: Product("AMD Radeon RX 9070"),
    0x73BF: Product("AMD Radeon RX 6900 XT"),  # inferred, as the next three: the maker's names
    0x744C: Product("AMD Radeon RX 7900 XTX"),
    0x7480: Product("AMD Radeon RX 7600"),
    0x15BF: Product("AMD Radeon 780M"),
    0x150E: Product("AMD Radeon 890M"),
}
"""A VF has no profiles: it cannot change its partition, and its share of the silicon is the host's choice."""


def product(device_id: int | None) -> Product | None:
    """The product of a PCI device id, or None."""
    return PRODUCTS.get(device_id) if device_id is not None else None


def clean_name(text: str) -> str:
    """A product name fit for the annotation: no ``, : ;``, printable, single blanks (decision 14)."""
    kept = "".join(c if c.isprintable() and c not in ",:;" else " " if c.isspace() else "" for c in text)
    return " ".join(kept.split())[:120]
