"""Radeon cards and the small APUs of desktops and laptops.

A row with a capture names it; ``inf`` marks what no capture shows: for cards without one that is the maker's
public figures, for firmware versions a number of our own.
"""

from __future__ import annotations

from dataclasses import replace

from gpusim.amd.product import DATA, INSTRUCTION, CacheKind, Cap, Product

_GFX11_L1 = (
    # kfd.md 1, Caches: the gfx11 APUs [cap]
    CacheKind(1, DATA, 32, 1, 128),
    CacheKind(1, INSTRUCTION, 32, 2, 128),
    CacheKind(1, DATA, 16, 2, 64),
    CacheKind(1, DATA, 256, -1, 128),
)

RX6900XT = Product(
    name="RX6900XT",
    market_name="AMD Radeon RX 6900 XT",
    device_id=0x73BF,  # this to revision, memory, clocks and firmware: rdna2-rx6900xt
    revision_id=0xC0,
    gfx=100300,
    pci_class=0x030000,
    vram_bytes=17163091968,
    vram_vendor="samsung",
    fcompute_mhz=2660,
    mem_mhz=1000,
    fw_version=104,
    sdma_fw_version=81,
    pcie_generation=4,
    xccs=1,
    engines=4,  # inf: 4 × 2 × 10 = 80 CUs
    arrays=2,
    cus_per_array=10,
    bitmaps=(0x3FF,) * 8,
    caches=(
        # The kinds of a gfx10.3 APU (kfd.md 1, Van Gogh [cap]); array, L2 and L3 of this card inf
        CacheKind(1, DATA, 16, 1, 128),
        CacheKind(1, INSTRUCTION, 32, 2, 64),
        CacheKind(1, DATA, 16, 2, 64),
        CacheKind(1, DATA, 128, -1, 128),
        CacheKind(2, DATA, 4096, 0, 128),
        CacheKind(3, DATA, 131072, 0, 64),
    ),
    simd_per_cu=2,
    waves_per_simd=16,
    wave_size=32,
    sdma_engines=2,  # kfd.md 1: two on the captured Radeons, this one not among them
    cp_queues=8,
    mem_width=256,  # inf
    capability=Cap.SVM | Cap.DEBUG_FIRMWARE,  # inf
    chip_name="sienna_cichlid",  # inf: the static id table has it beside Navi23's dimgrey_cavefish (kfd.md 1)
)

RX7600 = Product(
    name="RX7600",  # inf throughout but for the 32 CU ids of a node, which kfd.md 1 has of a Navi33 [cap]
    market_name="AMD Radeon RX 7600",
    device_id=0x7480,
    gfx=110002,
    pci_class=0x030000,
    xccs=1,
    engines=2,
    arrays=2,
    cus_per_array=8,
    bitmaps=(0xFF,) * 4,
    vram_bytes=(8 << 30) - (16 << 20),
    caches=(*_GFX11_L1, CacheKind(2, DATA, 2048, 0, 128), CacheKind(3, DATA, 32768, 0, 64)),
    simd_per_cu=2,
    waves_per_simd=16,
    wave_size=32,
    sdma_engines=2,
    sdma_queues=6,
    cp_queues=8,
    fcompute_mhz=2655,
    mem_width=128,
    mem_mhz=1124,
    fw_version=550,
    sdma_fw_version=20,
    capability=Cap.SVM | Cap.DEBUG_FIRMWARE,
    pcie_generation=4,
)

RX7900XTX = replace(
    RX7600,  # inf throughout
    name="RX7900XTX",
    market_name="AMD Radeon RX 7900 XTX",
    device_id=0x744C,
    revision_id=0xC8,
    gfx=110000,
    engines=6,
    bitmaps=(0xFF,) * 12,
    vram_bytes=(24 << 30) - (16 << 20),
    caches=(*_GFX11_L1, CacheKind(2, DATA, 6144, 0, 128), CacheKind(3, DATA, 98304, 0, 64)),
    fcompute_mhz=2500,
    mem_width=384,
    mem_mhz=1249,
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
    vram_vendor="hynix",  # rdna4-rx9070
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
    revision_id=0xC4,
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
    caches=(*_GFX11_L1, CacheKind(2, DATA, 2048, 0, 128)),
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

PHOENIX = replace(
    STRIX_POINT,  # fused CUs, revision, caches, engines, link: kfd.md 1 [cap CAPU]; memory: case B13
    name="PHOENIX",
    market_name="AMD Radeon 780M Graphics",
    device_id=0x15BF,  # inf, as the figures below with no word of their own
    revision_id=0xC4,
    pci_class=0x030000,
    gfx=110003,
    cus_per_array=6,
    bitmaps=(0x3F, 0x3F),
    vram_bytes=4294967296,  # case B13: Phoenix 780M
    gtt_bytes=31433977856,  # likewise
    fcompute_mhz=2700,
    mem_mhz=1600,
    fw_version=40,
    sdma_fw_version=18,
    revision=9,
    capability=Cap.SVM | Cap.DEBUG_FIRMWARE,  # kfd.md 1: of the APUs Strix alone is said to lack SVM
)

ROWS = (RX9070XT, RX7900XTX, RX7600, RX6900XT, STRIX_POINT, PHOENIX)
"""This family, in the order fixtures are told of it."""
