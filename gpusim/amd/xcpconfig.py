"""``compute_partition_config/``: what a GPU's partitions would have in a mode, without switching to it.

Writing ``xcp_config`` selects the mode whose numbers the other files show. Source: kernel.md 2.5;
drivers/gpu/drm/amd/amdgpu/amdgpu_xcp.c (`amdgpu_xcp_cfg_sysfs_init`). The numbers are those that amd-smi
recorded on an MI355X in all modes (mi355x-8gpu-spx-6.8) and an MI300X in two (mi300x-partition-profiles).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from gpusim.amd.gpu import Gpu
from gpusim.amd.partition import NOT_SUPPORTED, memory_modes, named
from gpusim.amd.product import Product
from gpusim.kernel import Behaviour
from gpusim.nodes import Attr, Caller, Dir, Node

NAME = "compute_partition_config"


def resources(product: Product) -> dict[str, tuple[int, int]]:
    """Directory → how many blocks of a kind the GPU has, and how many instances one block counts for."""
    return {
        "xcc": (product.xccs, 1),
        "dma": (product.sdma_engines, 1),
        "dec": (product.decoders, 1),
        "jpeg": (product.decoders, product.jpeg_rings),
    }


def share(blocks: int, each: int, partitions: int) -> tuple[int, int]:
    """Instances one partition has, and how many partitions share one."""
    return max(1, blocks // partitions) * each, partitions // blocks if blocks < partitions else 1


def entries(gpu: Gpu, rules: Behaviour) -> dict[str, Node]:
    """Content of the directory."""
    product = gpu.product

    def store(data: bytes, _: Caller) -> None:
        mode = named(data)
        if mode is None or mode not in product.modes():
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        gpu.config = mode

    found: dict[str, Node] = {
        "supported_xcp_configs": Attr(", ".join(product.modes()) + "\n"),
        "xcp_config": Attr(lambda: f"{gpu.config or gpu.mode}\n", store, mode=0o644),
    }
    if memory_modes(product, rules):
        found["supported_nps_configs"] = Attr(lambda: f"{memory(gpu, rules)}\n")
    for name, (blocks, each) in resources(product).items():
        found[name] = Dir(
            {
                "num_inst": Attr(_number(gpu, blocks, each, 0), mode=0o400),
                "num_shared": Attr(_number(gpu, blocks, each, 1), mode=0o400),
            }
        )
    return found


def memory(gpu: Gpu, rules: Behaviour) -> str:
    """Memory modes of this GPU that go with the selected compute mode."""
    product, mode = gpu.product, gpu.config or gpu.mode
    fits = (
        f"NPS{nps}"
        for nps in memory_modes(product, rules)
        if rules.nps_rule.allows(mode, nps, product.xccs, vf=product.vf)
    )
    return ", ".join(fits) or NOT_SUPPORTED


def _number(gpu: Gpu, blocks: int, each: int, which: int) -> Callable[[], str]:
    def show() -> str:
        return f"{share(blocks, each, gpu.product.partitions(gpu.config or gpu.mode))[which]}\n"

    return show
