"""Small node descriptions and their KFD lists, for the tests of the KFD views."""

from __future__ import annotations

from collections.abc import Sequence

from gpusim.amd.gpufacts import gpu_facts
from gpusim.amd.kfd import Topology
from gpusim.spec import Cpus, GpuSpec, NodeSpec

BUSES = (0x75, 0x05, 0x65, 0x15, 0xF5, 0x85, 0xE5, 0x95)


def node(
    product: str = "MI355X",
    modes: Sequence[str] = ("SPX",),
    *,
    numa: Sequence[int | None] = (0,),
    **rest: object,
) -> NodeSpec:
    """GPUs of one product, a mode each; `numa` repeats; `rest` are fields of NodeSpec."""
    gpus = tuple(
        GpuSpec(product, f"0000:{BUSES[i]:02x}:00.0", mode=mode, numa=numa[i % len(numa)])
        for i, mode in enumerate(modes)
    )
    fields: dict[str, object] = {"kernel": "6.14", "driver": "dkms-6.14.14", "gpus": gpus, **rest}
    return NodeSpec("test", **fields)  # type: ignore[arg-type]


def minors(index: int) -> tuple[int, ...]:
    """Render minors of GPU `index` on a host without a display: eight apart."""
    return tuple(range(128 + 8 * index, 136 + 8 * index))


def listed(spec: NodeSpec) -> Topology:
    """The list right after the driver loaded."""
    topology = Topology.boot(spec)
    for index, gpu in enumerate(spec.gpus):
        topology = topology.with_gpu(
            gpu_facts(spec, index), minors(index), mode=gpu.mode, nps=gpu.nps, numa=gpu.numa
        )
    return topology


def switched(topology: Topology, index: int, mode: str) -> Topology:
    """The list after GPU `index` changed its mode."""
    spec = topology.spec
    gpu = spec.gpus[index]
    return topology.without_gpu(gpu.bdf).with_gpu(
        gpu_facts(spec, index), minors(index), mode=mode, nps=gpu.nps, numa=gpu.numa
    )


__all__ = ["BUSES", "Cpus", "GpuSpec", "NodeSpec", "listed", "minors", "node", "switched"]
