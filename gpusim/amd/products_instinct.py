"""Instinct GPUs and their virtual functions: MI25 as Linux 5 saw it, MI210, the MI300 and MI350 families.

Figures are those of the product table of kfd.md 2, in bold there when read from a capture. Where a row adds
a figure the table lacks, the comment beside it says where it comes from; ``inf`` marks what no capture shows.
A row that differs from another in little is made from it.
"""

from __future__ import annotations

from dataclasses import replace

from gpusim.amd.product import DATA, INSTRUCTION, NO_CAPS, CacheKind, Cap, Product

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
    jpeg_rings=8,  # mi300x-partition-profiles: 32 of 4 decoders
    fcompute_mhz=2100,
    mem_mhz=1300,
    fw_version=177,  # mi300x-8gpu-cpx; 166 to 192 seen
    sdma_fw_version=24,
    revision=1,
    capability=_INSTINCT_RAS,
    sdma_queue_reset=True,
)

MI300X_VF = replace(
    MI300X,
    name="MI300X-VF",
    device_id=0x74B5,
    subsystem_device=0x74A1,  # inf: that of the physical card, as the MI350X VF [cap]
    vf=True,
    product_name="",
    nps_modes=(),
    vram_bytes=205822885888,  # amd.md 3.1: 196288 MiB
    sdma_queue_reset=False,  # kfd.md 1, capability2: 0 on VFs
)

MI308X = replace(
    MI300X,
    name="MI308X",
    market_name="AMD Instinct MI308X",
    product_name="AMD Instinct MI308X OAM",  # inf, after the MI300X's text
    device_id=0x74A2,
    xccs=4,
    bitmaps=(0x1F, 0x2F, 0x1F, 0x2F),
    sdma_engines=8,
    fcompute_mhz=1420,
    fw_version=149,
    sdma_fw_version=19,
)

MI325X = replace(
    MI300X,  # inf throughout: no capture; the silicon of MI300X with other memory
    name="MI325X",
    market_name="AMD Instinct MI325X",
    product_name="AMD Instinct MI325X OAM",
    device_id=0x74A5,
    vram_bytes=(256 << 30) - (16 << 20),  # inf: the data sheet's 256 GiB less what MI355X lacks
    mem_mhz=1500,  # inf: the data sheet's 6 Gbit/s, four transfers a clock as MI300X's 5.2
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
    jpeg_rings=8,
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
    jpeg_rings=10,  # amd-smi of mi355x-8gpu-spx-6.8: 40 of 4 decoders
    fcompute_mhz=2400,
    mem_mhz=2000,
    fw_version=36,  # 36 to 41 seen
    sdma_fw_version=12,
    revision=0,
    capability=_INSTINCT_RAS,
    sdma_queue_reset=True,
    xgmi_physical=_MI355X_PHYSICAL,
)

MI350X = replace(
    MI355X,
    name="MI350X",
    market_name="AMD Instinct MI350X",
    product_name="AMD Instinct MI350X OAM",  # inf, after the MI300X's text
    device_id=0x75A0,
    fcompute_mhz=2200,
    mem_mhz=1900,
    xgmi_physical=(0, 1, 2, 3, 4, 5, 6, 7),
)

MI350X_VF = replace(
    MI350X,  # every figure: C350VF, kernel.md 1.6 and kfd.md 2
    name="MI350X-VF",
    device_id=0x75B0,
    subsystem_device=0x75A0,
    vf=True,
    product_name="",
    nps_modes=(),
    vram_bytes=308902100992,
    cp_queues=30,
    mem_mhz=2000,
    fw_version=32810,
    sdma_queue_reset=False,
)

MI355X_VF = replace(
    MI350X_VF,  # inf throughout, after the MI350X VF
    name="MI355X-VF",
    market_name="AMD Instinct MI355X",
    device_id=0x75B3,
    subsystem_device=0x75A3,
    fcompute_mhz=2400,
    xgmi_physical=_MI355X_PHYSICAL,
)

MI210 = Product(
    name="MI210",
    market_name="AMD Instinct MI210",
    product_name="AMD Instinct MI210",  # inf
    device_id=0x740F,
    gfx=90010,
    pci_class=0x120000,  # kernel.md 3, for Instinct; not captured
    xccs=1,
    engines=8,
    arrays=1,
    cus_per_array=14,
    bitmaps=(0x1FFF,) * 8,  # sum cap, spread inf
    vram_bytes=68702699520,
    caches=(
        CacheKind(1, DATA, 16, 1, 64),
        CacheKind(1, INSTRUCTION, 32, 2, 64),
        CacheKind(1, DATA, 16, 2, 64),
        CacheKind(2, DATA, 8192, 0, 128),
    ),
    sdma_engines=5,
    xgmi=True,
    fcompute_mhz=1700,
    mem_width=4096,
    mem_mhz=1600,
    fw_version=92,
    sdma_fw_version=9,
    revision=1,
    capability=_INSTINCT_RAS,
    pcie_generation=4,
    chip_name="aldebaran",  # kfd.md 1: amdgpu still knows its PCI id by heart
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
    pcie_generation=3,  # inf; the capture's kernel prints no bandwidth
    chip_name="vega10",
)

ROWS = (MI300X, MI300X_VF, MI308X, MI325X, MI300A, MI355X, MI355X_VF, MI350X, MI350X_VF, MI210, VEGA10)
"""This family, in the order fixtures are told of it."""
