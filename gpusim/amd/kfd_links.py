"""What a KFD link says: type, weight, bandwidth, engines and flags, for any two nodes of a list.

Which links exist and in which order is `Topology.peers`; the content is here. Sources: kernel.md 1.7 and
kfd.md 1 (Corrections, Link lists, recommended_sdma_engine_id_mask).
"""

from __future__ import annotations

from typing import NamedTuple

from gpusim.amd.gpufacts import link_generation
from gpusim.amd.kfd import GpuNode, Topology

HYPERTRANSPORT, PCIE, QPI, XGMI = 1, 2, 5, 11
ENABLED, NON_COHERENT = 1, 2

_LANES = 16
_LANE_MBPS = (0, 250, 500, 1000, 2000, 4000)
"""MB/s of one lane by PCIe generation."""
_FAST = 819200
"""Bandwidth inside a package: partitions of one GPU, an APU's CPU link."""

_ALDEBARAN, _ALDEBARAN_MBPS = 90010, 50000
"""One xGMI link of gfx90a, whatever the driver (kfd.md 1, 1.7 [cap C210])."""

# Which SDMA engine serves which xGMI neighbour, by physical number of source and target (kfd.md 1: source,
# one entry seen in a capture); 0 on the diagonal is never used.
ENGINES = (
    (0, 14, 12, 2, 4, 8, 10, 6),
    (14, 0, 2, 10, 8, 4, 6, 12),
    (10, 2, 0, 12, 14, 6, 4, 8),
    (2, 12, 10, 0, 6, 14, 8, 4),
    (4, 8, 14, 6, 0, 10, 12, 2),
    (8, 4, 6, 14, 12, 0, 2, 10),
    (10, 6, 4, 8, 12, 2, 0, 14),
    (6, 12, 8, 4, 2, 10, 14, 0),
)


class Link(NamedTuple):
    """One directed link."""

    type: int
    weight: int
    min_mbps: int
    max_mbps: int
    engines: int
    """Mask of recommended SDMA engines."""
    flags: int


def link(topology: Topology, source: int, target: int, *, p2p: bool = False) -> Link:
    """The link between two nodes that `Topology.peers` joins.

    Args:
        topology: the list.
        source: index of the node in whose directory the link stands.
        target: index of the other node.
        p2p: one of p2p_links instead of io_links.
    """
    a, b = topology.nodes[source], topology.nodes[target]
    if isinstance(a, GpuNode):
        if isinstance(b, GpuNode):
            return _pcie(topology, a, b, source > target) if p2p else _xgmi(topology, a, b, source > target)
        return _cpu_p2p(topology, a, target, ENABLED) if p2p else _cpu_link(topology, a, ENABLED)
    if isinstance(b, GpuNode):
        inbound = ENABLED if b.facts.product.cpu_xgmi else ENABLED | NON_COHERENT
        return _cpu_p2p(topology, b, source, inbound) if p2p else _cpu_link(topology, b, inbound)
    cpus = topology.spec.cpus
    return Link(
        HYPERTRANSPORT if cpus.vendor == "amd" else QPI, distance(topology, source, target), 0, 0, 0, 0
    )


def link_text(topology: Topology, source: int, target: int, *, p2p: bool = False) -> str:
    """Content of the link's ``properties``."""
    kind, weight, low, high, engines, flags = link(topology, source, target, p2p=p2p)
    mask = f"recommended_sdma_engine_id_mask {engines}\n" if topology.rules.kfd_sdma_mask else ""
    return (
        f"type {kind}\nversion_major 0\nversion_minor 0\nnode_from {source}\nnode_to {target}\n"
        f"weight {weight}\nmin_latency 0\nmax_latency 0\nmin_bandwidth {low}\nmax_bandwidth {high}\n"
        f"recommended_transfer_size 0\n{mask}flags {flags}\n"
    )


def distance(topology: Topology, a: int, b: int) -> int:
    """NUMA distance of two CPU nodes; 10 of a node to itself."""
    given = topology.spec.cpus.distance
    if not isinstance(given, int):
        return given[a][b]
    return given if a != b else 10


def sdma_engines(node: GpuNode) -> tuple[int, int]:
    """PCIe and xGMI SDMA engines of a node: two and the rest, or all and none (kfd.md 1, properties)."""
    share = node.facts.product.sdma_engines // node.parts
    plain = min(share, 2) if node.facts.product.xgmi else share
    return plain, share - plain


def _own_mask(node: GpuNode) -> int:
    return (1 << sdma_engines(node)[0]) - 1


def _pcie_bandwidth(topology: Topology, node: GpuNode) -> tuple[int, int]:
    generation = link_generation(topology.spec, node.facts.product)
    return topology.rules.kfd_pcie_minimum, _LANES * _LANE_MBPS[generation]


def _cpu_link(topology: Topology, gpu: GpuNode, flags: int) -> Link:
    """GPU and its own CPU; `flags` by direction."""
    if gpu.facts.product.cpu_xgmi:
        return Link(XGMI, 13, _FAST, _FAST, _own_mask(gpu), flags)
    if topology.rules.kfd_legacy:
        return Link(PCIE, 20, 0, 0, 0, 0)
    return Link(PCIE, 20, *_pcie_bandwidth(topology, gpu), _own_mask(gpu), flags)


def _cpu_p2p(topology: Topology, gpu: GpuNode, cpu: int, flags: int) -> Link:
    """GPU and another socket: over its own CPU, so the weights add up and the bandwidth is not known."""
    own = _cpu_link(topology, gpu, flags)
    return own._replace(
        weight=own.weight + distance(topology, gpu.cpu, cpu), min_mbps=0, max_mbps=0, engines=0
    )


def _xgmi(topology: Topology, source: GpuNode, target: GpuNode, source_is_later: bool) -> Link:
    """Two nodes of a hive: the one that joined the list later decides, in both directions (kfd.md 1).

    GPUs of a hive in different modes are described by source only; no capture shows them.
    """
    later = source if source_is_later else target
    plain, meshed = sdma_engines(later)
    mask = ((1 << meshed) - 1) << plain if meshed else 3
    if later.parts > 1:
        if source.facts is target.facts:
            return Link(XGMI, 13, _FAST, _FAST, mask, ENABLED)
        return Link(XGMI, 41, 0, 0, mask, ENABLED)
    product = later.facts.product
    if meshed >= 14 and topology.hives[later.hive].gpus == 8 and not product.vf and not product.apu:
        mask = 1 << ENGINES[source.facts.xgmi_physical][target.facts.xgmi_physical]
    # One hop and one link between any two GPUs of the products described here.
    speed = _ALDEBARAN_MBPS if product.gfx == _ALDEBARAN else topology.rules.kfd_xgmi_mbps
    return Link(XGMI, 15, speed, speed, mask, ENABLED)


def _pcie(topology: Topology, source: GpuNode, target: GpuNode, source_is_later: bool) -> Link:
    """Two GPUs that share no hive: over the root complexes (kfd.md 1; on one socket from source only)."""
    mask = _own_mask(target) if source_is_later else 0
    if source.cpu == target.cpu:
        return Link(PCIE, 40, *_pcie_bandwidth(topology, source), mask, ENABLED | NON_COHERENT)
    weight = 40 + distance(topology, source.cpu, target.cpu)
    return Link(PCIE, weight, 0, 0, mask, ENABLED | NON_COHERENT)


def cpu_hive(topology: Topology, cpu: int) -> int:
    """hive_id of a CPU node: that of the GPU in its package, else 0 (kfd.md 1, MI300A)."""
    for _, gpu in topology.gpu_nodes():
        if gpu.cpu == cpu and gpu.facts.product.cpu_xgmi:
            return gpu.hive
    return 0
