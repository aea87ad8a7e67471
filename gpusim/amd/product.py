"""What a row of the product table is: one frozen value per product, no behaviour but sums.

The rows themselves are in `gpusim.amd.products_instinct` and `gpusim.amd.products_radeon`; `products` has
them all by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntFlag
from typing import NamedTuple

DATA, INSTRUCTION = 9, 10
"""KFD cache types: SIMD plus data or instruction bit (kernel.md 1.6)."""


class Cap(IntFlag):
    """Bits of the KFD line ``capability`` that a product has whatever the driver (kfd.md 1, properties)."""

    UMC_ECC = 1 << 20
    RAS = 1 << 21
    GFX_ECC = 1 << 26
    SVM = 1 << 27
    COHERENT_HOST = 1 << 28
    DEBUG_FIRMWARE = 1 << 29


NO_CAPS = Cap(0)


class CacheKind(NamedTuple):
    """One kind of cache of a node (kfd.md 1, Caches); part of a key that is looked up at every read."""

    level: int
    type: int
    """9 data, 10 instruction."""
    kib: int
    sharers: int
    """CUs that share one; 0: one cache for the whole node; -1: one per shader array."""
    line: int


@dataclass(frozen=True, slots=True)
class Product:
    """What silicon and firmware of one product say, whatever the host."""

    name: str
    market_name: str
    """AMD SMI's market name."""
    device_id: int
    gfx: int
    """gfx_target_version, decimal: 90402 is gfx9.4.2 (two digits each for minor and stepping)."""
    pci_class: int
    xccs: int
    engines: int
    """Shader engines per XCC."""
    arrays: int
    """Shader arrays per engine."""
    cus_per_array: int
    """Physical CUs of one array."""
    bitmaps: tuple[int, ...]
    """Default active CUs per array of one XCC, in the driver's order."""
    vram_bytes: int
    """mem_info_vram_total; 0 when it is the memory of the host's NUMA node."""
    caches: tuple[CacheKind, ...]
    """In the order KFD lists them."""
    partitionable: bool = False
    """An XCP manager exists: extra minors, partition files."""
    vf: bool = False
    apu: bool = False
    product_name: str = ""
    """FRU text of the PCI file product_name; empty: the board has no FRU EEPROM (VF, APU, consumer card)."""
    vram_vendor: str = ""
    """mem_info_vram_vendor; empty: no such file."""
    subsystem_device: int = 0
    """Default subsystem device id; 0: the device id."""
    revision_id: int = 0
    """PCI revision."""
    nps_modes: tuple[int, ...] = ()
    """Memory partitions firmware offers; empty: cannot change."""
    simd_per_cu: int = 4
    waves_per_simd: int = 8
    wave_size: int = 64
    lds_kib: int = 64
    scratch_slots: int = 32
    sdma_engines: int = 16
    """All SDMA engines of the GPU."""
    xgmi: bool = False
    """SDMA engines beyond two per node are xGMI engines; several such GPUs form a hive."""
    sdma_queues: int = 8
    cp_queues: int = 24
    fcompute_mhz: int = 0
    mem_width: int = 8192
    mem_mhz: int = 0
    fw_version: int = 0
    sdma_fw_version: int = 0
    revision: int = 0
    """ASIC revision inside ``capability``."""
    capability: Cap = NO_CAPS
    sdma_queue_reset: bool = False
    """Bit 0 of ``capability2``."""
    bank_is_gtt: bool = False
    """The KFD memory bank is the GTT size (small APUs)."""
    gtt_bytes: int = 0
    """mem_info_gtt_total; 0: half of the host's memory."""
    jpeg_rings: int = 0
    """JPEG rings of one decoder block."""
    cpu_xgmi: bool = False
    """GPU and CPU are one package: link type 11 instead of PCIe (MI300A)."""
    pcie_generation: int = 5
    """The fastest link the product can have; an APU's link is inside the package and always has it."""
    chip_name: str = "ip discovery"
    """KFD ``name`` (kfd.md: a chip name only where amdgpu knows the PCI id by heart)."""
    xgmi_physical: tuple[int, ...] = (0, 1, 2, 3, 4, 5, 6, 7)
    """xGMI physical numbers of the GPUs of one host in probe order."""

    @property
    def decoders(self) -> int:
        """Video decoder blocks, one beside each four SDMA engines.

        MI355X and MI300X have 4 and 16 (amd-smi of mi355x-8gpu-spx-6.8, mi300x-partition-profiles); the
        ratio of the others is inferred.
        """
        return self.sdma_engines // 4 if self.partitionable else 0

    def total_cus(self) -> int:
        """Active CUs of the whole GPU with default fusing."""
        return self.xccs * sum(bitmap.bit_count() for bitmap in self.bitmaps)

    def partitions(self, mode: str) -> int:
        """How many partitions a compute mode makes of this GPU (decision 4)."""
        return {"SPX": 1, "DPX": 2, "TPX": 3, "QPX": 4, "CPX": self.xccs}[mode]

    def modes(self) -> tuple[str, ...]:
        """Compute modes the silicon can do, in the driver's order, NPS ignored (kernel.md 2.1, 2.2)."""
        if not self.partitionable:
            return ("SPX",)
        rules = (
            ("SPX", True),
            ("DPX", self.xccs % 4 == 0),
            ("TPX", self.xccs == 6),
            ("QPX", self.xccs == 8),
            ("CPX", self.xccs > 1),
        )
        return tuple(name for name, fits in rules if fits)
