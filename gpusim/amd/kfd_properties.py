"""The lines of a KFD node's ``properties``, one table in the kernel's order, and those beside it.

Most lines are the same in all nodes of a GPU: their text is made once per GPU, mode and release, and a read
fills in the others. Counts are lengths of the lists that make the directories, so they cannot disagree with
them. Sources: kernel.md 1.1-1.6, kfd.md 1 (properties: fields by rule; capability as a sum of bits; cwsr
sizes).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from gpusim.amd.gpufacts import VENDOR, GpuFacts
from gpusim.amd.kfd import CpuNode, GpuNode, Topology
from gpusim.amd.kfd_caches import node_caches
from gpusim.amd.kfd_ids import die_id, parse_bdf
from gpusim.amd.kfd_links import cpu_hive, sdma_engines
from gpusim.kernel import Behaviour, behaviour

GpuValue = Callable[[Topology, int, GpuNode], int]
CpuValue = Callable[[Topology, int, CpuNode], int]


class Field(NamedTuple):
    """One line."""

    name: str
    gpu: GpuValue
    cpu: CpuValue | None = lambda *_: 0
    """None: a CPU node has no such line."""
    when: Callable[[Behaviour], bool] = lambda _: True
    """Whether this kernel and driver print it."""
    own: bool = False
    """Whether nodes of one GPU in one mode, or CPU nodes alike, can differ in it."""


def _modern(rules: Behaviour) -> bool:
    return not rules.kfd_legacy


def _zero(*_: object) -> int:
    return 0


_FIELDS: tuple[Field, ...] = (
    Field("cpu_cores_count", _zero, lambda t, i, n: n.cores),
    Field("simd_count", lambda t, i, n: n.facts.product.simd_per_cu * (n.facts.active_cus // n.parts)),
    Field("mem_banks_count", lambda t, i, n: 1, lambda t, i, n: 1),
    Field("caches_count", lambda t, i, n: len(node_caches(n, t.rules)), own=True),
    Field("io_links_count", lambda t, i, n: len(t.peers(i)), lambda t, i, n: len(t.peers(i)), own=True),
    Field(
        "p2p_links_count",
        lambda t, i, n: len(t.peers(i, p2p=True)),
        lambda t, i, n: len(t.peers(i, p2p=True)),
        when=_modern,
        own=True,
    ),
    Field("cpu_core_id_base", _zero, lambda t, i, n: n.apic_id),
    Field("simd_id_base", lambda t, i, n: n.simd_base, own=True),
    Field("max_waves_per_simd", lambda t, i, n: n.facts.product.waves_per_simd),
    Field("lds_size_in_kb", lambda t, i, n: n.facts.product.lds_kib),
    Field("gds_size_in_kb", _zero),
    Field("num_gws", lambda t, i, n: 64, when=_modern),
    Field("wave_front_size", lambda t, i, n: n.facts.product.wave_size),
    Field("array_count", lambda t, i, n: n.facts.product.engines * n.facts.product.arrays * n.xccs),
    Field("simd_arrays_per_engine", lambda t, i, n: n.facts.product.arrays),
    Field("cu_per_simd_array", lambda t, i, n: n.facts.product.cus_per_array),
    Field("simd_per_cu", lambda t, i, n: n.facts.product.simd_per_cu),
    Field("max_slots_scratch_cu", lambda t, i, n: n.facts.product.scratch_slots),
    Field("gfx_target_version", lambda t, i, n: n.facts.product.gfx, when=_modern),
    Field("vendor_id", lambda t, i, n: VENDOR),
    Field("device_id", lambda t, i, n: n.facts.product.device_id),
    Field("location_id", lambda t, i, n: location_id(n), own=True),
    Field("domain", lambda t, i, n: parse_bdf(n.facts.bdf)[0], when=_modern),
    Field("drm_render_minor", lambda t, i, n: n.minor, own=True),
    Field("hive_id", lambda t, i, n: n.hive, lambda t, i, n: cpu_hive(t, i), when=_modern, own=True),
    Field("num_sdma_engines", lambda t, i, n: sdma_engines(n)[0], when=_modern),
    Field("num_sdma_xgmi_engines", lambda t, i, n: sdma_engines(n)[1], when=_modern),
    Field("num_sdma_queues_per_engine", lambda t, i, n: n.facts.product.sdma_queues, when=_modern),
    Field("num_cp_queues", lambda t, i, n: n.facts.product.cp_queues, when=_modern),
    Field("cwsr_size", lambda t, i, n: save_area(n)[0], when=lambda rules: rules.kfd_cwsr),
    Field("ctl_stack_size", lambda t, i, n: save_area(n)[1], when=lambda rules: rules.kfd_cwsr),
    Field("max_engine_clk_fcompute", lambda t, i, n: n.facts.product.fcompute_mhz, None),
    Field("local_mem_size", lambda t, i, n: n.bytes if t.rules.kfd_legacy else 0, None, own=True),
    Field("fw_version", lambda t, i, n: n.facts.fw_version, None),
    Field("capability", lambda t, i, n: capability(n, t.rules), None),
    Field(
        "capability2",
        lambda t, i, n: int(n.facts.product.sdma_queue_reset),
        None,
        when=lambda rules: rules.kfd_capability2,
    ),
    Field("debug_prop", lambda t, i, n: debug_prop(n.facts.product.gfx), None, when=_modern),
    Field("sdma_fw_version", lambda t, i, n: n.facts.sdma_fw_version, None),
    Field("unique_id", lambda t, i, n: unique_id(n, t.rules), None, own=True),
    Field("num_xcc", lambda t, i, n: n.xccs, None, when=_modern),
    Field(
        "max_engine_clk_ccompute",
        lambda t, i, n: t.spec.cpus.max_mhz,
        lambda t, i, n: t.spec.cpus.max_mhz,
        own=True,
    ),
)


@lru_cache(maxsize=64)
def fields(kernel: str, driver: str) -> tuple[Field, ...]:
    """The lines that a kernel with a driver prints, in order."""
    rules = behaviour(kernel, driver)
    return tuple(field for field in _FIELDS if field.when(rules))


def properties(topology: Topology, index: int) -> list[tuple[str, int]]:
    """Names and values of a node's ``properties``, in order."""
    node = topology.nodes[index]
    lines = fields(topology.rules.kernel, topology.rules.driver)
    if isinstance(node, GpuNode):
        return [(line.name, line.gpu(topology, index, node)) for line in lines]
    return [(line.name, line.cpu(topology, index, node)) for line in lines if line.cpu is not None]


class Frame(NamedTuple):
    """The text of a GPU node but for what differs between the nodes of one GPU; of a CPU node likewise."""

    text: str
    """With a ``%d`` for every value of `own`."""
    own: tuple[Callable[[Topology, int, Any], int], ...]


_frames: dict[tuple[GpuFacts | CpuNode, int, str, str], Frame] = {}
"""By GPU or CPU node, number of nodes, kernel and driver; not by topology: every switch makes a new one."""
_FRAMES = 512
"""Frames kept before all are forgotten: machines come and go."""


def properties_text(topology: Topology, index: int) -> str:
    """Content of a node's ``properties``."""
    node, rules = topology.nodes[index], topology.rules
    who, parts = (node.facts, node.parts) if isinstance(node, GpuNode) else (node, 1)
    key = who, parts, rules.kernel, rules.driver
    frame = _frames.get(key)
    if frame is None:
        if len(_frames) >= _FRAMES:
            _frames.clear()
        frame = _frames[key] = _frame(topology, index)
    return frame.text % tuple([value(topology, index, node) for value in frame.own])


def _frame(topology: Topology, index: int) -> Frame:
    own = {line.name: line for line in fields(topology.rules.kernel, topology.rules.driver) if line.own}
    gpu = isinstance(topology.nodes[index], GpuNode)
    shown, values = [], []
    for name, value in properties(topology, index):
        line = own.get(name)
        shown.append(f"{name} {value if line is None else '%d'}\n")
        if line is not None:
            values.append(line.gpu if gpu else line.cpu)
    return Frame("".join(shown), tuple(filter(None, values)))


def text(pairs: list[tuple[str, int]]) -> str:
    """Lines of ``name value``."""
    return "".join([f"{name} {value}\n" for name, value in pairs])


def location_id(node: GpuNode) -> int:
    """Bus and devfn, with the partition number in the function bits if there are several (kernel.md 1.5)."""
    _, bus, devfn = parse_bdf(node.facts.bdf)
    return bus << 8 | devfn | (node.part if node.parts > 1 else 0)


def unique_id(node: GpuNode, rules: Behaviour) -> int:
    """The GPU's id or its die's, by driver (kernel.md 1.5)."""
    own = node.facts.unique_id
    shared = rules.kfd_unique_id == "shared" or (rules.kfd_unique_id == "xcd-but-spx" and node.parts == 1)
    if shared or not own or not node.facts.product.partitionable:
        return own
    return die_id(own, node.first_xcc)


def capability(node: GpuNode, rules: Behaviour) -> int:
    """The sum of HSA capability bits (kfd.md 1: every captured value follows)."""
    product = node.facts.product
    watch_points = 1 << 7 | 2 << 8  # supported, log2 of four
    doorbell = 2 << 12
    value = watch_points | doorbell
    if rules.kfd_legacy:
        return value
    value |= 0x38000  # trap debug: support, launch trap override, launch trap mode
    value |= product.capability | product.revision << 22
    gfx9 = 90000 <= product.gfx < 100000
    if gfx9 and product.gfx >= 90010:
        value |= 1 << 18  # precise memory operations, from gfx90a on
    if product.gfx >= 120000:
        value |= 1 << 30  # precise ALU operations
    if gfx9 and rules.kfd_queue_reset and not product.vf:
        value |= 1 << 31
    return int(value)


def debug_prop(gfx: int) -> int:
    """Debugger watch mask and dispatch info bits by generation (kfd.md 1)."""
    if gfx >= 100000:
        return 7 | 29 << 4 | 1 << 10
    if 90400 <= gfx < 90500:
        return 7 | 30 << 4 | 1 << 10
    return 6 | 29 << 4 | (0 if gfx == 90010 else 1 << 10)


def save_area(node: GpuNode) -> tuple[int, int]:
    """cwsr_size and ctl_stack_size of one XCC, bytes (kfd.md 1)."""
    product = node.facts.product
    cus = node.facts.active_cus // node.parts // node.xccs
    old = product.gfx < 100100
    waves = min(40 * cus, 512 * product.engines) if old else 32 * cus
    control = _pages(48 + waves * (8 if old else 12))
    if 100000 <= product.gfx < 110000:
        control = min(control, 0x7000)
    if product.gfx in {90008, 90010, 90402, 90500}:
        vgpr = 0x80000
    elif product.gfx in {110000, 110001, 110501, 120000, 120001}:
        vgpr = 0x60000
    else:
        vgpr = 0x40000
    return control + _pages(cus * (vgpr + 0x4000 + product.lds_kib * 1024 + 0x1000)), control


def _pages(size: int) -> int:
    return (size + 4095) // 4096 * 4096


def memory_bank(topology: Topology, index: int) -> list[tuple[str, int]]:
    """The one memory bank of a node (kernel.md 1.3, 1.6)."""
    node = topology.nodes[index]
    if isinstance(node, CpuNode):
        # DMI facts are patched into node 0 only.
        heap, width, clock = 0, topology.spec.cpus.dmi_width, topology.spec.cpus.dmi_mhz
        if index:
            width = clock = 0
    else:
        product = node.facts.product
        # 1 public, 2 private: the BAR does not show all memory. APU memory is always public.
        heap = 1 if topology.spec.large_bar or product.apu else 2
        width, clock = product.mem_width, product.mem_mhz
    return [
        ("heap_type", heap),
        ("size_in_bytes", node.bytes),
        ("flags", 0),
        ("width", width),
        ("mem_clk_max", clock),
    ]


def node_name(topology: Topology, index: int) -> str:
    """Content of ``name`` without newline: empty for CPUs, and for all nodes of the 5.x kernels."""
    node = topology.nodes[index]
    if isinstance(node, CpuNode) or topology.rules.kfd_legacy:
        return ""
    return node.facts.product.chip_name


def system_properties(topology: Topology) -> list[tuple[str, int]]:
    """OEM ids of the ACPI tables (kernel.md 1.1)."""
    spec = topology.spec
    return [
        ("platform_oem", spec.platform_oem),
        ("platform_id", spec.platform_id),
        ("platform_rev", spec.platform_rev),
    ]
