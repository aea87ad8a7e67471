"""Nodes for tests, made in one call: the eight-GPU MI355X server and small variations of it.

No Hypothesis here: the pytest plugin and plain tests use it too. What a strategy draws is printed as a call
of `node`, so a counter-example is one short line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpusim.errors import GpusimError
from gpusim.spec import Cpus, GpuSpec, NodeSpec

BUSES = ("75", "05", "65", "15", "f5", "85", "e5", "95")
"""Buses of the eight-MI355X server in probe order (snapshot mi355x-8gpu-spx-6.8)."""
NUMA = (0, 1, 3, 2, 4, 5, 7, 6)
"""Its NUMA node of each GPU, in the same order."""
_MOST = len(BUSES) + 64


def addresses(count: int) -> list[str]:
    """PCI addresses of the first `count` GPUs: the server's own, then 0001:xx:00.0.

    Raises:
        GpusimError: more than 72.
    """
    if not 0 <= count <= _MOST:
        raise GpusimError(f"a test node has 0 to {_MOST} GPUs, not {count}")
    known = [f"0000:{bus}:00.0" for bus in BUSES] + [f"0001:{bus:02x}:00.0" for bus in range(1, 65)]
    return known[:count]


def node(
    product: str = "MI355X",
    count: int | None = None,
    *,
    kernel: str = "6.14",
    driver: str = "dkms-6.14.14",
    name: str = "node",
    gpu: Mapping[str, Any] | None = None,
    each: Sequence[Mapping[str, Any]] | None = None,
    **fields: Any,
) -> NodeSpec:
    """GPUs of one product on eight NUMA nodes.

    Args:
        product: key of the product table.
        count: how many; None: as many as `each` has, else 8.
        kernel: running kernel.
        driver: ``in-tree`` or ``dkms-A.B.C``.
        name: the node's.
        gpu: further fields of every `GpuSpec`, such as ``{"mode": "QPX"}``.
        each: further fields of each `GpuSpec`, in probe order; stronger than `gpu`.
        fields: further fields of the `NodeSpec`.

    Raises:
        GpusimError: more than 72 GPUs, or `count` differs from what `each` has.
    """
    if count is None:
        count = 8 if each is None else len(each)
    own = [{}] * count if each is None else each
    if len(own) != count:
        raise GpusimError(f"{len(own)} descriptions in `each` for {count} GPUs")
    gpus = tuple(
        GpuSpec(**{"product": product, "bdf": bdf, "numa": NUMA[place % 8], **(gpu or {}), **mine})
        for place, (bdf, mine) in enumerate(zip(addresses(count), own, strict=True))
    )
    return NodeSpec(**{"cpus": Cpus(nodes=8), **fields}, name=name, kernel=kernel, driver=driver, gpus=gpus)
