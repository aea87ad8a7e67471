"""AMD products as data: one frozen row each, no behaviour but sums.

Figures are those of the product table of kfd.md 2, in bold there when read from a capture. Where this file
adds a figure the table lacks, the comment beside it says where it comes from; `inf` marks what no capture
shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntFlag
from types import MappingProxyType
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
    """gfx_target_version: major × 10000 + minor × 100 + stepping."""
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
    """FRU text of the PCI file product_name; empty: the file is absent (VF, APU, most consumer cards)."""
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
    cpu_xgmi: bool = False
    """GPU and CPU are one package: link type 11 instead of PCIe (MI300A)."""
    pcie_generation: int = 0
    """The CPU link's when the product decides it; 0: the host's."""
    chip_name: str = "ip discovery"
    """KFD ``name`` (kfd.md: only GPUs of the driver's static id table print a chip name)."""
    xgmi_physical: tuple[int, ...] = (0, 1, 2, 3, 4, 5, 6, 7)
    """xGMI physical numbers of the GPUs of one host in probe order."""

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


# gfx942 and gfx950: kfd.md 1, Caches [cap MI308X, MI355X].
_INSTINCT_CACHES = (
    CacheKind(1, DATA, 32, 1, 128),
    CacheKind(1, INSTRUCTION, 64, 2, 64),
    CacheKind(1, DATA, 16, 2, 64),
    CacheKind(2, DATA, 4096, 0, 128),
    CacheKind(3, DATA, 262144, 0, 64),
)

_INSTINCT_RAS = Cap.UMC_ECC | Cap.RAS | Cap.GFX_ECC | Cap.SVM | Cap.DEBUG_FIRMWARE

MI300X = Product(
    name="MI300X",
    market_name="AMD Instinct MI300X",
    product_name="AMD Instinct MI300X OAM",  # kernel.md 3
    device_id=0x74A1,
    gfx=90402,
    pci_class=0x120000,
    xccs=8,
    engines=4,
    arrays=1,
    cus_per_array=10,
    bitmaps=(0x3FF, 0x1FF, 0x3FF, 0x1FF),  # sums cap, spread inf
    vram_bytes=206141652992,
    caches=_INSTINCT_CACHES,
    partitionable=True,
    nps_modes=(1, 4),  # kernel.md 2.3
    xgmi=True,
    fcompute_mhz=2100,
    mem_mhz=1300,
    fw_version=177,  # mi300x-8gpu-cpx; 166 to 192 seen
    sdma_fw_version=24,
    revision=1,
    capability=_INSTINCT_RAS,
    sdma_queue_reset=True,
)

MI300A = Product(
    name="MI300A",
    market_name="AMD Instinct MI300A",
    device_id=0x74A0,
    gfx=90402,
    pci_class=0x120000,
    apu=True,
    xccs=6,
    engines=4,
    arrays=1,
    cus_per_array=10,
    bitmaps=(0x3FF, 0x1FF, 0x3FF, 0x1FF),
    vram_bytes=0,
    caches=_INSTINCT_CACHES,
    partitionable=True,
    sdma_engines=12,
    xgmi=True,
    fcompute_mhz=2100,
    mem_mhz=1300,
    fw_version=138,
    sdma_fw_version=19,
    revision=1,
    capability=Cap.RAS | Cap.GFX_ECC | Cap.SVM | Cap.DEBUG_FIRMWARE | Cap.COHERENT_HOST,  # no UMC ECC [cap]
    cpu_xgmi=True,
)

_MI355X_PHYSICAL = (4, 6, 5, 7, 0, 2, 1, 3)  # amd-smi oam_id in probe order, mi355x-8gpu-spx-6.8

MI355X = Product(
    name="MI355X",
    market_name="AMD Instinct MI355X",
    product_name="AMD Instinct MI355X OAM",  # inf, after the MI300X's text
    device_id=0x75A3,
    gfx=90500,
    pci_class=0x120000,
    xccs=8,
    engines=4,
    arrays=1,
    cus_per_array=9,
    bitmaps=(0x0FF, 0x1EF, 0x0FF, 0x1EF),  # sums cap, spread inf
    vram_bytes=309220868096,
    caches=_INSTINCT_CACHES,
    partitionable=True,
    nps_modes=(1, 2),  # mi355x-8gpu-spx-6.8: available_memory_partition
    lds_kib=160,
    xgmi=True,
    fcompute_mhz=2400,
    mem_mhz=2000,
    fw_version=36,  # 36 to 41 seen
    sdma_fw_version=12,
    revision=0,
    capability=_INSTINCT_RAS,
    sdma_queue_reset=True,
    xgmi_physical=_MI355X_PHYSICAL,
)

MI355X_VF = Product(
    name="MI355X-VF",
    market_name="AMD Instinct MI355X",
    device_id=0x75B3,
    subsystem_device=0x75A3,  # the MI350X VF's subsystem is the physical card's [cap]; inf here
    gfx=90500,
    pci_class=0x120000,
    vf=True,
    xccs=8,
    engines=4,
    arrays=1,
    cus_per_array=9,
    bitmaps=(0x0FF, 0x1EF, 0x0FF, 0x1EF),
    vram_bytes=308902100992,  # MI350X VF [cap]
    caches=_INSTINCT_CACHES,
    partitionable=True,
    lds_kib=160,
    xgmi=True,
    cp_queues=30,  # MI350X VF [cap]
    fcompute_mhz=2400,
    mem_mhz=2000,
    fw_version=32810,  # MI350X VF [cap]
    sdma_fw_version=12,
    revision=0,
    capability=_INSTINCT_RAS,
    xgmi_physical=_MI355X_PHYSICAL,
)

RX9070XT = Product(
    name="RX9070XT",
    market_name="AMD Radeon RX 9070 XT",
    device_id=0x7550,  # rdna4-rx9070
    revision_id=0xC0,  # inf
    gfx=120001,
    pci_class=0x030000,  # rdna4-rx9070
    xccs=1,
    engines=4,  # 4 × 2 × 8 = 64 CUs, which the captured cwsr pair of a gfx1201 confirms as a sum (kfd.md 1)
    arrays=2,
    cus_per_array=8,
    bitmaps=(0xFF,) * 8,
    vram_bytes=17163091968,  # inf: 16 GiB less 16 MiB, as rdna2-rx6900xt
    caches=(
        # inf: the gfx11 kinds of kfd.md without the array cache, with the public L2 and L3 sizes of this card
        CacheKind(1, DATA, 32, 1, 128),
        CacheKind(1, INSTRUCTION, 32, 2, 128),
        CacheKind(1, DATA, 16, 2, 64),
        CacheKind(2, DATA, 8192, 0, 128),
        CacheKind(3, DATA, 65536, 0, 64),
    ),
    simd_per_cu=2,
    waves_per_simd=16,
    wave_size=32,
    sdma_engines=2,
    sdma_queues=6,
    cp_queues=4,
    fcompute_mhz=2400,  # inf: this card's game clock, as rdna4-rx9070 shows that card's
    mem_width=256,  # inf
    mem_mhz=1258,  # rdna4-rx9070, highest pp_dpm_mclk
    fw_version=2780,  # invented: no capture shows this card's firmware
    sdma_fw_version=356,  # invented, likewise
    revision=0,  # inf
    capability=Cap.SVM | Cap.DEBUG_FIRMWARE,  # inf
)

STRIX_POINT = Product(
    name="STRIX_POINT",  # every figure: apu-strixpoint-890m
    market_name="AMD Radeon 890M Graphics",
    device_id=0x150E,
    gfx=110500,
    pci_class=0x038000,
    apu=True,
    xccs=1,
    engines=1,
    arrays=2,
    cus_per_array=8,
    bitmaps=(0xFC, 0xF3),
    vram_bytes=536870912,
    gtt_bytes=16441004032,
    bank_is_gtt=True,
    caches=(
        CacheKind(1, DATA, 32, 1, 128),
        CacheKind(1, INSTRUCTION, 32, 2, 128),
        CacheKind(1, DATA, 16, 2, 64),
        CacheKind(1, DATA, 256, -1, 128),
        CacheKind(2, DATA, 2048, 0, 128),
    ),
    simd_per_cu=2,
    waves_per_simd=16,
    wave_size=32,
    sdma_engines=1,
    sdma_queues=6,
    cp_queues=8,
    fcompute_mhz=2900,
    mem_width=128,
    mem_mhz=1000,
    fw_version=32,
    sdma_fw_version=14,
    revision=4,
    capability=Cap.DEBUG_FIRMWARE,
    pcie_generation=4,
)

VEGA10 = Product(
    name="VEGA10",  # every figure: vega10-single-legacy-kernel
    market_name="AMD Radeon Instinct MI25",
    device_id=0x6860,
    gfx=90000,
    pci_class=0x030000,
    xccs=1,
    engines=4,
    arrays=1,
    cus_per_array=16,
    bitmaps=(0xFFFF,) * 4,
    vram_bytes=17163091968,
    caches=(
        CacheKind(1, DATA, 16, 1, 0),
        CacheKind(1, INSTRUCTION, 8, 4, 0),
        CacheKind(1, DATA, 4, 4, 0),
    ),
    waves_per_simd=10,
    sdma_engines=2,
    fcompute_mhz=1500,
    mem_width=2048,
    mem_mhz=945,
    fw_version=392,
    sdma_fw_version=421,
    capability=NO_CAPS,
    chip_name="vega10",
)

PRODUCTS: Mapping[str, Product] = MappingProxyType(
    {row.name: row for row in (MI300X, MI300A, MI355X, MI355X_VF, RX9070XT, STRIX_POINT, VEGA10)}
)
"""Every product by the name fixtures use."""
