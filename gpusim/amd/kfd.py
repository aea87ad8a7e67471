"""KFD topology state: which nodes there are, in which order, with which ids (kfd.md 1, kernel.md 1). See signatures."""

from __future__ import annotations

from dataclasses import dataclass

from gpusim.amd.products import Product


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """All that the topology must know of one GPU; `gpusim.amd.gpufacts.gpu_facts(spec, index)` resolves it from a NodeSpec."""

    bdf: str
    product: Product
    mode: str
    nps: int
    numa: int
    unique_id: int
    hive_id: int
    subsystem: tuple[int, int]
    vram_bytes: int
    gtt_bytes: int
    fw_version: int
    sdma_fw_version: int
    xgmi_physical: int
    bitmaps: tuple[tuple[int, ...], ...]
    """Active CUs: per XCC, per shader array."""
