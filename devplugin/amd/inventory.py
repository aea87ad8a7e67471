"""What an AMD node has, as immutable values: the one thing discovery makes and all else reads.

Bytes and CU counts as the kernel states them; MiB and annotation spellings belong to
`registration`. A GPU is a PCI device, a partition one KFD GPU node of it; the first is the one that
shares the PCI device's minors (decision 1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from devplugin.dmem import Usable

LINK_PCIE = 2
LINK_XGMI = 11


@dataclass(frozen=True, slots=True)
class Partition:
    """One KFD GPU node: what a runtime sees as an agent, and what partition mode offers."""

    number: int
    """0 .. n-1 within its GPU; 0 is the PCI device's own node."""
    key: str
    """Directory name: the BDF for partition 0, the platform device's name otherwise."""
    node: int
    """KFD node index at the time of discovery (renumbered by every switch)."""
    render_minor: int
    card: int | None
    """DRM primary minor; None where the kernel had none left (decision 20)."""
    cus: int
    """Active compute units: simd_count / simd_per_cu (decision 6)."""
    xccs: int | None
    """num_xcc of the KFD node; None on kernels without that line."""
    bank_bytes: int | None
    """size_in_bytes of the KFD memory bank: for labels, never for capacity (decision 7)."""
    rocr_name: str | None
    """``GPU-<16 hex>`` when exactly one KFD node of the machine has that unique_id (decision 12)."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One PCI GPU bound to amdgpu and known to KFD."""

    bdf: str
    """PCI directory name, lower case: ``0000:75:00.0``."""
    id: str
    """Registered id of the whole GPU (decisions 10, 11)."""
    device_id: int | None
    """PCI device id, for instance 0x75a3."""
    market_name: str
    """Registered ``type`` (decision 14)."""
    vram_bytes: int
    """mem_info_vram_total: the whole GPU (decision 6)."""
    compute: str
    """``spx``, ``dpx``, ``tpx``, ``qpx``, ``cpx``, or empty without a partition file."""
    memory: str
    """``nps1``, …, or empty."""
    changeable: bool
    """available_compute_partition exists: a VF has none and stays soft (decision 13)."""
    numa: int
    """-1 when unknown (decision 27)."""
    gfx: int
    """gfx_target_version, 90500 for gfx950; 0 when the kernel has no such line."""
    compute_queues: int
    """num_cp_queues; 0 when missing."""
    total_xccs: int | None
    partitions: tuple[Partition, ...]
    """The listed KFD nodes in partition order; never empty."""
    whole: bool
    """One KFD node that is the entire GPU (decision 4): SPX, hidden partitions, RDNA, VF."""
    ids: tuple[str, ...]
    """Registered id of each entry of `partitions` when offered as hard devices (decision 10)."""
    xgmi_peers: tuple[str, ...] = ()
    """BDFs of the other offered GPUs that an XGMI link joins to this one, sorted."""
    host_memory: bool = False
    """An APU whose KFD bank is GTT: its runtime allocates host memory, which no dmem region limits."""
    healthy: bool = True
    ways: int = 1
    """Partitions this GPU is cut into, listed or not: the divisor of decision 7; 1 for a whole GPU."""

    @property
    def cus(self) -> int:
        """All CUs the listed nodes have together (decision 9)."""
        return sum(p.cus for p in self.partitions)

    @property
    def partitionable(self) -> bool:
        """Offered hard in partition mode: it has a partition type and may change it (decision 13)."""
        return bool(self.compute) and self.changeable

    @property
    def partition_type(self) -> str:
        """``<compute>_<memory>``, or empty when not `partitionable` or without memory type (decision 15)."""
        return f"{self.compute}_{self.memory}" if self.partitionable and self.memory else ""

    @property
    def cu_unit(self) -> int:
        """CUs handed out together: a work-group processor is two on gfx10 and later."""
        return 2 if self.gfx >= 100000 else 1


@dataclass(frozen=True, slots=True)
class Standing:
    """What the looks at a GPU's health have come to (`devplugin.amd.health`)."""

    healthy: bool = True
    reason: str = ""
    """Why not; empty while healthy."""
    against: int = 0
    """Looks in a row that contradict the verdict and are too few to turn it."""
    told: str = ""
    """What the exporter last had against it: it stands while the exporter does not answer."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """A device that is not offered, and why."""

    device: str
    reason: str


@dataclass(frozen=True, slots=True)
class Inventory:
    """Everything decisions need to know of the node's AMD GPUs."""

    gpus: tuple[Gpu, ...] = ()
    """In KFD order of their first node."""
    skipped: tuple[Skipped, ...] = ()
    warnings: tuple[str, ...] = ()
    """One line each, stable between passes so that a caller logs a line once."""
    links: Mapping[tuple[int, int], int] = field(default_factory=dict)
    """(node, node), lower first → link type (11 XGMI, 2 PCIe, other), of joined listed nodes."""
    dmem_regions: tuple[str, ...] = ()
    """Region names as `dmem.capacity` spells them."""
    dmem: Usable = field(default_factory=lambda: Usable(False, "not looked at"))
    """Whether this node can limit VRAM by cgroup at all (decision 31)."""
    excluded: tuple[str, ...] = ()
    """PCI addresses of GPUs that the operator keeps back; their reasons are in `skipped`."""
    health: Mapping[str, Standing] = field(default_factory=dict, compare=False)
    """BDF → what its health looks have come to; empty while nobody looks. Carried to the next inventory."""
