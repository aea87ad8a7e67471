"""Which described nodes can exist: every refusal says where and why.

`Machine` and the fixture loader ask the same question, so an impossible node is refused wherever it
comes from. What is merely unlucky (a tenth GPU that finds no platform device) is a possible node.

Sources: kernel.md 2.1-2.4 (modes, memory modes), kfd.md 2 (what a fixture may say).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from gpusim.amd.gpufacts import gpu_facts
from gpusim.amd.partition import MODES
from gpusim.amd.products import PRODUCTS, Product
from gpusim.kernel import Behaviour, UnknownReleaseError, behaviour, parse_driver
from gpusim.spec import CardSpec, Cpus, GpuSpec, NodeSpec, SpecError

_ANY_NPS = (1, 2, 4)
_MIB = 1 << 20
_MOST_VRAM = 64 << 40
"""Far above any card there is, and small enough that no sum of KFD's 64-bit numbers overflows."""
_BDF = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]")


def check(spec: NodeSpec) -> None:
    """Refuse a node that cannot exist.

    Raises:
        SpecError: the first impossible value, in the order of the description.
    """
    try:
        parse_driver(spec.driver)
    except UnknownReleaseError as error:
        raise SpecError("driver", str(error)) from error
    try:
        rules = behaviour(spec.kernel, spec.driver)
    except UnknownReleaseError as error:
        raise SpecError("kernel", str(error)) from error
    _one_of("kfd_partitions", spec.kfd_partitions, ("listed", "hidden", "truncated"))
    _one_of("cgroup_driver", spec.cgroup_driver, ("systemd", "cgroupfs"))
    if spec.minors_per_type not in (None, 64):
        raise SpecError(
            "minors_per_type", f"DRM gives a type 64 minors, or has no limit: not {spec.minors_per_type}"
        )
    if not 1 <= spec.pcie_generation <= 5:
        raise SpecError("pcie_generation", f"KFD knows link generations 1 to 5, not {spec.pcie_generation}")
    _check_cpus(spec.cpus)
    for index, gpu in enumerate(spec.gpus):
        _check_gpu(f"gpus[{index}]", gpu, spec, rules)
    _check_hives(spec)
    for index, card in enumerate(spec.cards):
        _check_card(f"cards[{index}]", card, len(spec.gpus))
    _check_addresses(spec)


def _one_of(path: str, value: str, allowed: Iterable[str]) -> None:
    if value not in (names := tuple(allowed)):
        raise SpecError(path, f"{value!r} is none of {', '.join(names)}")


def _check_cpus(cpus: Cpus) -> None:
    _one_of("cpus.vendor", cpus.vendor, ("amd", "intel"))
    if cpus.nodes < 1:
        raise SpecError("cpus.nodes", "a host has at least one NUMA node")
    if not cpus.first_apic_ids:
        raise SpecError("cpus.first_apic_ids", "the first node's first APIC id is needed")
    if not cpus.bytes_per_node or min(cpus.bytes_per_node) <= 0:
        raise SpecError("cpus.bytes_per_node", "every node has memory")
    matrix = cpus.distance
    if not isinstance(matrix, int) and {len(matrix), *map(len, matrix)} != {cpus.nodes}:
        raise SpecError("cpus.distance", f"a matrix of {cpus.nodes} rows and columns is needed")


def _check_gpu(path: str, gpu: GpuSpec, spec: NodeSpec, rules: Behaviour) -> None:
    product = PRODUCTS.get(gpu.product)
    if product is None:
        raise SpecError(f"{path}.product", f"{gpu.product!r} is none of {', '.join(sorted(PRODUCTS))}")
    if gpu.numa is not None and not -1 <= gpu.numa < spec.cpus.nodes:
        raise SpecError(f"{path}.numa", f"the host has NUMA nodes 0 to {spec.cpus.nodes - 1}, not {gpu.numa}")
    for name, value in (("unique_id", gpu.unique_id), ("hive_id", gpu.hive_id)):
        if value is not None and not 0 <= value < 1 << 64:
            raise SpecError(f"{path}.{name}", "an unsigned 64-bit number is needed")
    _one_of(f"{path}.bound", gpu.bound or "amdgpu", ("amdgpu", "vfio-pci", "pci-stub"))
    _check_modes(path, gpu, product, rules)
    _check_fused(path, gpu, product)
    if gpu.vram_bytes is not None and not _MIB <= gpu.vram_bytes <= _MOST_VRAM:
        raise SpecError(
            f"{path}.vram_bytes",
            f"a GPU's memory has a size from 1 MiB to 64 TiB, not {gpu.vram_bytes} bytes",
        )
    total = gpu.vram_bytes or product.vram_bytes
    if gpu.vram_used < 0 or (total and gpu.vram_used > total):
        raise SpecError(f"{path}.vram_used", f"between 0 and the GPU's {total} bytes, not {gpu.vram_used}")


def _check_modes(path: str, gpu: GpuSpec, product: Product, rules: Behaviour) -> None:
    # A guest cannot change its memory mode and does not know what the host can choose from.
    offered = _ANY_NPS if product.vf else product.nps_modes or (1,)
    if gpu.nps not in offered:
        names = ", ".join(f"NPS{n}" for n in offered)
        raise SpecError(f"{path}.nps", f"{product.name} has {names}, not NPS{gpu.nps}")
    for name, mode in (("mode", gpu.mode), ("boot_mode", gpu.boot_mode or gpu.mode)):
        where = f"{path}.{name}"
        _one_of(where, mode, MODES)
        if mode not in product.modes():
            what = f"does not exist on the {product.xccs} XCCs of" if product.partitionable else "is not for"
            raise SpecError(where, f"{mode} {what} {product.name}, which has {', '.join(product.modes())}")
        if not rules.nps_rule.allows(mode, gpu.nps, product.xccs, vf=product.vf):
            raise SpecError(where, f"{mode} is not legal while memory is in NPS{gpu.nps}")


def _check_fused(path: str, gpu: GpuSpec, product: Product) -> None:
    for xcc, bitmaps in gpu.fused.items():
        where = f"{path}.fused[{xcc}]"
        if not 0 <= xcc < product.xccs:
            raise SpecError(where, f"{product.name} has XCCs 0 to {product.xccs - 1}")
        arrays = product.engines * product.arrays
        if len(bitmaps) != arrays:
            raise SpecError(where, f"an XCC has {arrays} shader arrays, not {len(bitmaps)}")
        if any(not 0 <= bitmap < 1 << product.cus_per_array for bitmap in bitmaps):
            raise SpecError(where, f"an array has {product.cus_per_array} CUs")
    if not any(bitmap for xcc in range(product.xccs) for bitmap in gpu.fused.get(xcc, product.bitmaps)):
        raise SpecError(f"{path}.fused", "all CUs are fused off: a GPU has one at least")


def _check_hives(spec: NodeSpec) -> None:
    """GPUs of one hive have different physical ids: only a described id is anybody's fault."""
    if all(gpu.xgmi_physical is None for gpu in spec.gpus):
        return
    taken: dict[tuple[int, int], int] = {}
    for index, gpu in enumerate(spec.gpus):
        facts = gpu_facts(spec, index)
        other = taken.setdefault((facts.hive_id, facts.xgmi_physical), index)
        if facts.hive_id and other != index:
            said = index if gpu.xgmi_physical is not None else other
            if spec.gpus[said].xgmi_physical is None:
                continue
            rest = other if said == index else index
            raise SpecError(
                f"gpus[{said}].xgmi_physical",
                f"{facts.xgmi_physical} is already that of gpus[{rest}], which is of the same hive",
            )


def _check_card(path: str, card: CardSpec, gpus: int) -> None:
    if not 0 <= card.before <= gpus:
        raise SpecError(f"{path}.before", f"the node has {gpus} GPUs")
    if card.driver == "amdgpu":
        raise SpecError(f"{path}.driver", "a GPU of amdgpu belongs among gpus")


def _check_addresses(spec: NodeSpec) -> None:
    taken: dict[str, str] = {}
    devices = [(f"gpus[{i}].bdf", g.bdf) for i, g in enumerate(spec.gpus)]
    devices += [(f"cards[{i}].bdf", c.bdf) for i, c in enumerate(spec.cards)]
    devices += [(f"npus[{i}].bdf", n.bdf) for i, n in enumerate(spec.npus)]
    devices += [(f"ppus[{i}].bdf", p.bdf) for i, p in enumerate(spec.ppus)]
    for path, bdf in devices:
        if not _BDF.fullmatch(bdf):
            raise SpecError(path, f"{bdf!r} is no PCI address of the form 0000:05:00.0")
        if bdf in taken:
            raise SpecError(path, f"{bdf} is already the address of {taken[bdf]}")
        taken[bdf] = path.removesuffix(".bdf")
