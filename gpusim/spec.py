"""The description of a node: what cannot follow from rules, as frozen values.

`fixture` reads and writes it as YAML; `machine` builds a node from it. Defaults are kfd.md 2's.
Addresses are lower-case ``dddd:bb:dd.f``; sizes are bytes; bitmaps are ints, bit k = CU k present.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpusim.errors import GpusimError


class SpecError(GpusimError):
    """A node that cannot exist: where in the description, and why.

    Attributes:
        path: the value at fault, ``gpus[3].mode``.
        why: one sentence for a person.
    """

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path}: {why}")
        self.path = path
        self.why = why


@dataclass(frozen=True, slots=True)
class Cpus:
    """The host's NUMA nodes that have CPUs."""

    vendor: str = "amd"
    """``amd`` or ``intel``: decides the CPU-CPU link type and default distance."""
    nodes: int = 2
    threads_per_node: int = 96
    first_apic_ids: tuple[int, ...] = (0, 128)
    """APIC id of the first CPU of each node; continued with the last step when shorter."""
    distance: int | tuple[tuple[int, ...], ...] = 32
    """NUMA distance between any two nodes, or the full matrix."""
    max_mhz: int = 2400
    bytes_per_node: tuple[int, ...] = (1 << 40,)
    """Managed memory of each node; the last value repeats."""
    dmi_width: int = 64
    dmi_mhz: int = 5600


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """One PCI GPU, in probe order."""

    product: str
    """Key of `gpusim.amd.products.PRODUCTS`, for instance ``MI355X``."""
    bdf: str
    numa: int | None = 0
    """-1 when firmware does not say; None when the kernel has no numa_node file."""
    unique_id: int | None = None
    """None: made from the seed; 0: the file is absent."""
    hive_id: int | None = None
    """None: made from the seed, one hive for all GPUs of an xGMI product; 0: no hive."""
    mode: str = "SPX"
    boot_mode: str | None = None
    """Mode when the driver loaded, if switched since; None = `mode`."""
    nps: int = 1
    bound: str | None = "amdgpu"
    """Driver that holds the device, or None."""
    subsystem: tuple[int, int] | None = None
    """Subsystem vendor and device; None: 0x1002 and the product's."""
    fw_version: int | None = None
    sdma_fw_version: int | None = None
    vram_bytes: int | None = None
    """mem_info_vram_total; None: the product's."""
    gtt_bytes: int | None = None
    vram_used: int = 300 << 20
    xgmi_physical: int | None = None
    fused: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """XCC → bitmap per shader array, where it differs from the product's default."""


@dataclass(frozen=True, slots=True)
class CardSpec:
    """A display device of another driver: it takes DRM minors and a place on the bus, nothing more."""

    driver: str
    """``ast``, ``i915``, ``nvidia``, …"""
    bdf: str
    vendor: int
    device: int
    render: bool = True
    """Whether it has a render node; a BMC has none."""
    before: int = 0
    """How many of the node's GPUs probe before it."""
    subsystem: tuple[int, int] | None = None
    """Subsystem vendor and device; None: those of the device itself."""


@dataclass(frozen=True, slots=True)
class NpuSpec:
    """One Ascend chip, in the order of logic ids."""

    chip: str
    """Key of `gpusim.ascend.chips.CHIPS`, for instance ``910B4``."""
    bdf: str
    card: int | None = None
    """NPU ID of npu-smi; None: counted on, the chips of one NPU together."""
    phy: int | None = None
    """N of /dev/davinciN; None: the logic id."""
    uuid: str | None = None
    """VDie ID, words joined by ``-``; None: made from the seed."""
    health: str = "OK"
    used_mib: int | None = None
    """Memory in use; None: what an idle chip of the kind shows."""
    busy: int = 0
    """AICore utilisation in percent."""
    share: bool = False
    """Whether device-share is on."""
    vnpus: Mapping[str, int] = field(default_factory=dict)
    """Template → how many idle vNPUs of it there are."""


@dataclass(frozen=True, slots=True)
class PpuSpec:
    """One PPU, in the order of the bus."""

    product: str
    """Key of `gpusim.ppu.products.PRODUCTS`, for instance ``PPU-ZW810E``."""
    bdf: str
    numa: int = 0
    """-1 when firmware does not say."""
    minor: int | None = None
    """N of /dev/alixpu_ppuN, which is not the index of ppu-smi; None: its place among the PPUs."""
    uuid: str | None = None
    """``GPU-`` and the groups of a UUID; None: made from the seed."""
    health: str = "OK"
    used_mib: int | None = None
    """Memory in use; None: what an idle card of the kind shows."""
    busy: int = 0
    """Utilisation in percent."""
    unknown: tuple[str, ...] = ()
    """What ppu-smi says N/A of: fields of --query-ppu, and ``minor_number``."""


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """One node."""

    name: str
    kernel: str
    """``6.8.0-136-generic``: DRM core and cgroup behaviour follow it."""
    driver: str = "in-tree"
    """``in-tree`` or ``dkms-6.14.14``: amdgpu, KFD and XCP behaviour follow it."""
    gpus: tuple[GpuSpec, ...] = ()
    cpus: Cpus = Cpus()
    bmc: bool = False
    """An ASPEED display that takes card0."""
    cards: tuple[CardSpec, ...] = ()
    """Other vendors' displays, in probe order."""
    kfd_partitions: str = "listed"
    """``listed``, ``hidden`` or ``truncated`` (decision 5)."""
    seed: int = 1
    pcie_generation: int = 5
    large_bar: bool = True
    p2p: bool = True
    """CONFIG_HSA_AMD_P2P."""
    platform_oem: int = 0
    platform_id: int = 0
    platform_rev: int = 2
    minors_per_type: int | None = None
    """64 forces the old DRM limit; None: by kernel."""
    cgroup_driver: str = "systemd"
    """``systemd`` makes kubepods.slice, ``cgroupfs`` makes kubepods."""
    dmem_regions: bool | None = None
    """Whether amdgpu registers its VRAM; None: by driver and kernel."""
    npus: tuple[NpuSpec, ...] = ()
    npu_driver: str = "25.5.1"
    """Version of the Ascend driver and of npu-smi."""
    npu_smi: tuple[str, ...] = ("/usr/local/Ascend/driver/tools/npu-smi", "/usr/local/bin/npu-smi")
    """Where npu-smi is."""
    npu_smi_status: int = 1
    """Exit status of an npu-smi that refuses or fails."""
    ppus: tuple[PpuSpec, ...] = ()
    ppu_driver: str = "1.4.0"
    """Version of the PPU driver and of ppu-smi."""
    ppu_loaded: bool = True
    """Whether the PPU driver is loaded."""
    ppu_smi: tuple[str, ...] = ("/usr/local/bin/ppu-smi",)
    """Where ppu-smi is."""
    ppu_smi_status: int = 0
    """Exit status of a ppu-smi that refuses or fails."""
    ppu_sdk: str = "lib64"
    """Directory of the SDK's libraries below /usr/local/PPU_SDK: ``lib64`` or ``lib``."""
