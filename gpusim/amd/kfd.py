"""KFD topology as state: which nodes exist, in which order, with which numbers.

The order of the list counts: a switch takes a GPU's nodes out and puts new ones at the end, so others move up
(kernel.md 1.4). Beside the list there are two integers, the generation and the SIMD counter, which only
grow. A `Topology` is a value: a change makes a new one and leaves the old one to whoever still reads it.
Files are `gpusim.amd.kfd_tree`; what stands in them `kfd_properties`, `kfd_links`, `kfd_caches`.

Not proven by any capture (kfd.md): anything that changes while the machine runs, hives with GPUs in
different modes, DPX/TPX/QPX trees of GPUs with 8 XCCs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpusim.amd.gpufacts import GpuFacts, gpu_facts, node_bytes
from gpusim.amd.kfd_ids import gpu_id, legacy_gpu_id, parse_bdf, partition_bytes
from gpusim.kernel import Behaviour, behaviour
from gpusim.spec import NodeSpec

__all__ = ["CpuNode", "GpuFacts", "GpuNode", "Node", "Topology", "gpu_facts"]

SIMD_BASE = 0x80001000
"""simd_id_base of the first GPU node ever created."""


@dataclass(frozen=True, slots=True)
class CpuNode:
    """A NUMA node with CPUs; these are always the first nodes of the list."""

    numa: int
    cores: int
    apic_id: int
    bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class GpuNode:
    """One compute partition as KFD knows it, or a whole GPU. Compared by identity."""

    facts: GpuFacts
    part: int
    parts: int
    """Partitions KFD made of the GPU; 1: the whole GPU."""
    nps: int
    cpu: int
    """List index of the CPU node it hangs on."""
    hive: int
    """0: no hive; equal values are linked by xGMI."""
    simd_base: int
    gpu_id: int
    bytes: int
    """Local memory of this node."""
    minor: int
    """Its DRM render minor."""

    @property
    def xccs(self) -> int:
        """XCCs of this node."""
        return self.facts.product.xccs // self.parts

    @property
    def first_xcc(self) -> int:
        """Index of its first XCC on the GPU."""
        return self.part * self.xccs

    @property
    def bitmaps(self) -> tuple[tuple[int, ...], ...]:
        """Active CUs per XCC of this node and shader array."""
        return self.facts.bitmaps[self.first_xcc : self.first_xcc + self.xccs]


Node = CpuNode | GpuNode


@dataclass(frozen=True, slots=True)
class Hive:
    """The nodes that reach each other over xGMI."""

    members: tuple[int, ...]
    """List indexes, ascending."""
    gpus: int
    """How many GPUs these belong to."""


class Topology:
    """An immutable node list with its two counters.

    Attributes:
        spec: the host it belongs to.
        rules: behaviour of its kernel and driver.
        nodes: list order, which is the directory number.
        generation: content of generation_id.
        simd_next: simd_id_base of the next GPU node.
        cpus: number of CPU nodes.
        hives: hive id → its nodes; worked out once per list, because counting them inside every link
            costs ten times the whole tree (kfd.md).
    """

    __slots__ = ("_others", "_peers", "cpus", "generation", "hives", "nodes", "rules", "simd_next", "spec")

    def __init__(
        self, spec: NodeSpec, rules: Behaviour, nodes: tuple[Node, ...], generation: int, simd_next: int
    ) -> None:
        self.spec = spec
        self.rules = rules
        self.nodes = nodes
        self.generation = generation
        self.simd_next = simd_next
        self.cpus = sum(isinstance(node, CpuNode) for node in nodes)
        self.hives = _hives(nodes)
        self._peers: dict[tuple[int, bool], tuple[int, ...]] = {}
        self._others: dict[int, tuple[int, ...]] = {}

    @classmethod
    def boot(cls, spec: NodeSpec) -> Topology:
        """What is there before any GPU: a node per NUMA node with CPUs, generation 1."""
        cpus = spec.cpus
        nodes = tuple(
            CpuNode(numa, cpus.threads_per_node, apic_id(cpus.first_apic_ids, numa), node_bytes(cpus, numa))
            for numa in range(cpus.nodes)
        )
        return cls(spec, behaviour(spec.kernel, spec.driver), nodes, 1, SIMD_BASE)

    def with_gpu(
        self, facts: GpuFacts, minors: Sequence[int | None], *, mode: str, nps: int = 1, numa: int | None = 0
    ) -> Topology:
        """The list after the driver added a GPU: one node per partition that has a render minor.

        Where a partition found no DRM device KFD makes no node, and neither the SIMD counter nor the
        generation moves (kernel.md 1.4). Minors beyond the partitions of `mode` are not used.

        Args:
            facts: the GPU.
            minors: render minor of partition 0, 1, …, None where it has no DRM device; may be shorter.
            mode: compute mode. With ``kfd_partitions: hidden`` KFD makes one node of the whole GPU
                whatever the mode, and with ``truncated`` the last partition has none (decision 5).
            nps: memory partitions.
            numa: PCI NUMA node; -1, None or one without CPUs means CPU node 0 (kernel.md 1.7).
        """
        product = facts.product
        parts = 1 if self.spec.kfd_partitions == "hidden" else product.partitions(mode)
        last = parts - 1 if self.spec.kfd_partitions == "truncated" and parts > 1 else parts
        cpu = numa if numa is not None and 0 <= numa < self.cpus else 0
        hive = facts.hive_id
        if not hive and parts > 1:
            # kernel.md 1.5: without a hive a GPU's partitions form one, named by pci_dev_id (no domain).
            _, bus, devfn = parse_bdf(facts.bdf)
            hive = bus << 8 | devfn
        step = product.engines * product.arrays * product.cus_per_array
        taken = {node.gpu_id for node in self.nodes if isinstance(node, GpuNode)}
        added: list[Node] = []
        simd = self.simd_next
        for part in range(last):
            minor = minors[part] if part < len(minors) else None
            if minor is None:
                continue
            memory = partition_bytes(facts.bank_bytes, nps, parts, part)
            number = self._gpu_id(facts, memory, part, parts, taken)
            taken.add(number)
            added.append(GpuNode(facts, part, parts, nps, cpu, hive, simd, number, memory, minor))
            simd += step
        return Topology(self.spec, self.rules, (*self.nodes, *added), self.generation + len(added), simd)

    def without_gpu(self, bdf: str) -> Topology:
        """The list after the driver took the GPU's nodes out; the rest is renumbered.

        Every removal raises the generation; the SIMD counter keeps its value.
        """
        kept = tuple(node for node in self.nodes if isinstance(node, CpuNode) or node.facts.bdf != bdf)
        removed = len(self.nodes) - len(kept)
        return Topology(self.spec, self.rules, kept, self.generation + removed, self.simd_next)

    def gpu_nodes(self, bdf: str | None = None) -> Iterable[tuple[int, GpuNode]]:
        """List index and node of every GPU node, or of those of one GPU."""
        for index, node in enumerate(self.nodes):
            if isinstance(node, GpuNode) and bdf in (None, node.facts.bdf):
                yield index, node

    def peers(self, index: int, *, p2p: bool = False) -> tuple[int, ...]:
        """Where the links of node `index` lead, in directory order (kfd.md 1, Link lists).

        Args:
            index: list index.
            p2p: p2p_links instead of io_links.
        """
        found = self._peers.get((index, p2p))
        if found is None:
            found = self._peers[index, p2p] = self._p2p_peers(index) if p2p else self._io_peers(index)
        return found

    def _io_peers(self, index: int) -> tuple[int, ...]:
        node = self.nodes[index]
        if isinstance(node, GpuNode):
            members = self.hives[node.hive].members if node.hive else ()
            return (node.cpu, *(member for member in members if member != index))
        cpus = (cpu for cpu in range(self.cpus) if cpu != index)
        return (*cpus, *(i for i, gpu in self.gpu_nodes() if gpu.cpu == index and self._cpu_sees(gpu)))

    def _p2p_peers(self, index: int) -> tuple[int, ...]:
        node = self.nodes[index]
        if isinstance(node, CpuNode):
            return tuple(i for i, gpu in self.gpu_nodes() if gpu.cpu != index and self._cpu_sees(gpu))
        cpus = tuple(cpu for cpu in range(self.cpus) if cpu != node.cpu)
        if not self.spec.p2p or not _pcie_peer(node):
            return cpus
        # Between GPUs over PCIe, unless xGMI joins them. Same socket and small BAR: no capture.
        return (*cpus, *(other for other in self._outside(node.hive) if other != index))

    def _outside(self, hive: int) -> tuple[int, ...]:
        """GPU nodes that can do PCIe peer-to-peer and are not of this hive; of hive 0 nobody is."""
        found = self._others.get(hive)
        if found is None:
            found = self._others[hive] = tuple(
                i for i, gpu in self.gpu_nodes() if (not hive or gpu.hive != hive) and _pcie_peer(gpu)
            )
        return found

    def _cpu_sees(self, gpu: GpuNode) -> bool:
        return self.spec.large_bar or gpu.facts.product.cpu_xgmi

    def _gpu_id(self, facts: GpuFacts, memory: int, part: int, parts: int, taken: set[int]) -> int:
        product = facts.product
        if self.rules.kfd_legacy:
            return legacy_gpu_id(facts.bdf, facts.subsystem, product.device_id, memory, taken)
        xccs = product.xccs // parts
        return gpu_id(facts.bdf, facts.subsystem, product.device_id, memory, (part * xccs, xccs), taken)


def apic_id(first: tuple[int, ...], numa: int) -> int:
    """APIC id of the first CPU of a node; beyond the described ones the last step goes on."""
    if numa < len(first):
        return first[numa]
    step = first[-1] - first[-2] if len(first) > 1 else 0
    return first[-1] + step * (numa - len(first) + 1)


def _pcie_peer(node: GpuNode) -> bool:
    """Whether PCIe peer-to-peer is possible at all; a small APU's p2p_links are empty (kfd.md 1)."""
    return not node.facts.product.bank_is_gtt


def _hives(nodes: tuple[Node, ...]) -> dict[int, Hive]:
    members: dict[int, list[int]] = {}
    gpus: dict[int, set[str]] = {}
    for index, node in enumerate(nodes):
        if isinstance(node, GpuNode) and node.hive:
            members.setdefault(node.hive, []).append(index)
            gpus.setdefault(node.hive, set()).add(node.facts.bdf)
    return {hive: Hive(tuple(found), len(gpus[hive])) for hive, found in members.items()}
