"""AMD products as data: one frozen row each, no behaviour but sums (kfd.md 2, product table)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CacheKind:
    """One kind of cache of a node (kfd.md 1, Caches)."""

    level: int
    type: int
    """9 data, 10 instruction."""
    kib: int
    sharers: int
    """CUs that share one; 0: one cache for the whole node."""
    line: int


@dataclass(frozen=True, slots=True)
class Product:
    """What silicon and firmware of one product say, whatever the host."""

    name: str
    market_name: str
    device_id: int
    gfx: int
    """gfx_target_version."""
    pci_class: int
    xccs: int
    engines: int
    """Shader engines per XCC."""
    arrays: int
    """Shader arrays per engine."""
    cus_per_array: int
    """Physical CUs of one array."""
    bitmaps: tuple[int, ...]
    """Default active CUs per array of one XCC."""
    vram_bytes: int
    """mem_info_vram_total; 0 when it is host memory."""
    partitionable: bool
    """An XCP manager exists: extra minors, partition files."""
    vf: bool = False
    apu: bool = False
