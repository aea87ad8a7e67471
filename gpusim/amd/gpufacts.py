"""What is true of one GPU for as long as the machine lives: a node description with its defaults resolved.

Defaults are kfd.md 2's. What can change (mode, NPS, NUMA node, memory in use, binding) is state of the
machine and not here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from gpusim.amd.kfd_ids import invented
from gpusim.amd.products import PRODUCTS, Product
from gpusim.spec import Cpus, GpuSpec, NodeSpec

VENDOR = 0x1002


@dataclass(frozen=True, slots=True, eq=False)
class GpuFacts:
    """One GPU, all defaults resolved. Compared by identity; machines of one description may share it."""

    bdf: str
    product: Product
    unique_id: int
    """0: the product, or this one, has none."""
    hive_id: int
    """0: in no xGMI hive."""
    subsystem: tuple[int, int]
    """PCI subsystem vendor and device."""
    vram_bytes: int
    """mem_info_vram_total."""
    gtt_bytes: int
    """mem_info_gtt_total."""
    fw_version: int
    sdma_fw_version: int
    xgmi_physical: int
    """Number of the GPU's place on the xGMI mesh, 0..7."""
    bitmaps: tuple[tuple[int, ...], ...]
    """Active CUs per XCC and shader array, bit k = CU k."""

    @property
    def active_cus(self) -> int:
        """Active CUs of the whole GPU."""
        return sum(bitmap.bit_count() for xcc in self.bitmaps for bitmap in xcc)

    @property
    def bank_bytes(self) -> int:
        """What KFD takes for the GPU's local memory before partitions share it."""
        return self.gtt_bytes if self.product.bank_is_gtt else self.vram_bytes


_Fused = list[dict[int, tuple[int, ...]]]
_resolved: dict[int, tuple[NodeSpec, _Fused, tuple[GpuFacts, ...]]] = {}
"""By identity of a description, which is kept so that no other gets its identity."""
_RESOLVED = 16
"""Descriptions kept before all are forgotten: a test makes its machines of a few, a property of many."""


def facts_of(spec: NodeSpec) -> tuple[GpuFacts, ...]:
    """Resolve all GPUs of `spec`; again for the same description, they are the same ones."""
    # A description is a value but for this mapping, which somebody may have changed.
    fused = [dict(gpu.fused) for gpu in spec.gpus]
    known = _resolved.get(id(spec))
    if known is None or known[1] != fused:
        if len(_resolved) >= _RESOLVED:
            _resolved.clear()
        known = _resolved[id(spec)] = spec, fused, tuple(map(partial(gpu_facts, spec), range(len(fused))))
    return known[2]


def gpu_facts(spec: NodeSpec, index: int) -> GpuFacts:
    """Resolve GPU `index` of `spec`."""
    gpu = spec.gpus[index]
    product = PRODUCTS[gpu.product]
    return GpuFacts(
        bdf=gpu.bdf,
        product=product,
        unique_id=_unique_id(spec, index, product),
        hive_id=_hive_id(spec, gpu, product),
        subsystem=gpu.subsystem or (VENDOR, product.subsystem_device or product.device_id),
        vram_bytes=gpu.vram_bytes or product.vram_bytes or node_bytes(spec.cpus, max(gpu.numa or 0, 0)),
        gtt_bytes=gpu.gtt_bytes or product.gtt_bytes or _half_of_memory(spec.cpus),
        fw_version=product.fw_version if gpu.fw_version is None else gpu.fw_version,
        sdma_fw_version=product.sdma_fw_version if gpu.sdma_fw_version is None else gpu.sdma_fw_version,
        xgmi_physical=_physical(spec, index, product),
        bitmaps=tuple(gpu.fused.get(xcc, product.bitmaps) for xcc in range(product.xccs)),
    )


def link_generation(spec: NodeSpec, product: Product) -> int:
    """PCIe generation of the GPU's link: the slower of host and product; an APU's is the product's alone."""
    return product.pcie_generation if product.apu else min(product.pcie_generation, spec.pcie_generation)


def node_bytes(cpus: Cpus, node: int) -> int:
    """Managed memory of NUMA node `node`; the last value described repeats."""
    return cpus.bytes_per_node[min(node, len(cpus.bytes_per_node) - 1)]


def _half_of_memory(cpus: Cpus) -> int:
    """TTM's default limit, half of the host's memory, in whole pages."""
    return sum(node_bytes(cpus, node) for node in range(cpus.nodes)) // 2 // 4096 * 4096


def _unique_id(spec: NodeSpec, index: int, product: Product) -> int:
    given = spec.gpus[index].unique_id
    if given is not None:
        return given
    # Small APUs have none (kernel.md 1.5; apu-strixpoint-890m).
    return 0 if product.bank_is_gtt else invented(spec.seed, 0x55494420, index)


def _hive_id(spec: NodeSpec, gpu: GpuSpec, product: Product) -> int:
    if gpu.hive_id is not None:
        return gpu.hive_id
    # A GPU alone is in no hive: hive_id 0 on a single MI350X (kfd.md 1, CRP).
    meshed = sum(PRODUCTS[other.product].xgmi for other in spec.gpus)
    return invented(spec.seed, 0x48495645) if product.xgmi and meshed > 1 else 0


def _physical(spec: NodeSpec, index: int, product: Product) -> int:
    given = spec.gpus[index].xgmi_physical
    if given is not None:
        return given
    return product.xgmi_physical[index % len(product.xgmi_physical)]
