"""Nodes for tests, made in one call: the eight-GPU MI355X server and small variations of it."""

from __future__ import annotations

from typing import Any

from gpusim.spec import Cpus, GpuSpec, NodeSpec

BUSES = ("75", "05", "65", "15", "f5", "85", "e5", "95")
"""Buses of the eight-MI355X server in probe order (snapshot mi355x-8gpu-spx-6.8)."""
NUMA = (0, 1, 3, 2, 4, 5, 7, 6)
"""Its NUMA node of each GPU, in the same order."""


def node(
    product: str = "MI355X",
    count: int = 8,
    *,
    kernel: str = "6.14",
    driver: str = "dkms-6.14.14",
    name: str = "node",
    gpu: dict[str, Any] | None = None,
    **fields: Any,
) -> NodeSpec:
    """`count` equal GPUs on eight NUMA nodes.

    Args:
        product: key of the product table.
        count: up to 8 GPUs on the server's own addresses, more on 0001:xx:00.0.
        kernel: running kernel.
        driver: ``in-tree`` or ``dkms-A.B.C``.
        name: the node's.
        gpu: further fields of every `GpuSpec`, such as ``{"mode": "QPX"}``.
        fields: further fields of the `NodeSpec`.
    """
    addresses = [f"0000:{bus}:00.0" for bus in BUSES] + [f"0001:{bus:02x}:00.0" for bus in range(1, 65)]
    gpus = tuple(
        GpuSpec(product, bdf, **{"numa": NUMA[place % 8], **(gpu or {})})
        for place, bdf in enumerate(addresses[:count])
    )
    return NodeSpec(name, kernel, driver, gpus=gpus, cpus=Cpus(nodes=8), **fields)
