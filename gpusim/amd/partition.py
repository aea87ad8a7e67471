"""Compute partition modes as the driver names, lists and chooses them, apart from any state.

What the silicon can do is `Product.modes`; which memory mode allows which compute mode is a row of
`gpusim.kernel`. Sources: kernel.md 2.1-2.4; drivers/gpu/drm/amd/amdgpu/amdgpu_gfx.c, aqua_vanjaram.c.
"""

from __future__ import annotations

from gpusim.amd.products import Product
from gpusim.kernel import Behaviour

MODES = ("SPX", "DPX", "TPX", "QPX", "CPX")
"""In the order the driver tests and prints them."""
MAX_PARTITIONS = 8
"""MAX_XCP: what a GPU reserves DRM devices for, whatever its XCC count (kernel.md 2.6)."""
NOT_SUPPORTED = "Not supported"


def named(data: bytes) -> str | None:
    """The mode a written text means: its first three letters, any case, with nothing before them."""
    word = data[:3].decode("ascii", "replace").upper()
    return word if word in MODES else None


def legal(product: Product, mode: str, nps: int, rules: Behaviour) -> bool:
    """Whether this GPU may be in `mode` while its memory is in ``NPS<nps>``."""
    return mode in product.modes() and rules.nps_rule.allows(mode, nps, product.xccs, vf=product.vf)


def listed(product: Product, nps: int, rules: Behaviour) -> str:
    """Content of `available_compute_partition` without newline (kernel.md 2.2).

    Up to 6.12 every mode of the silicon is listed, also those the current NPS refuses.
    """
    if product.xccs % 2:
        return NOT_SUPPORTED
    modes = product.modes()
    if rules.available_compute == "dynamic":
        modes = tuple(mode for mode in modes if legal(product, mode, nps, rules))
    return ", ".join(modes) or NOT_SUPPORTED


def memory_modes(product: Product, rules: Behaviour) -> tuple[int, ...]:
    """The NPS numbers the driver offers for this GPU; empty: it knows of no choice (kernel.md 2.4).

    6.13 and 6.14 carry NPS1 and NPS4 for GC 9.4.3 and 9.4.4 in the source and nothing for 9.5.0.
    """
    if product.vf or product.apu or not product.partitionable or rules.memory_partition == "read-only":
        return ()
    if rules.memory_partition == "fixed":
        return (1, 4) if 90400 <= product.gfx < 90500 else ()
    return product.nps_modes


def automatic(product: Product, nps: int, rules: Behaviour) -> str | None:
    """The mode a driver chooses when it loads without a module parameter; None: UNKNOWN (kernel.md 2.3)."""
    if nps == 1:
        return "SPX"
    if nps == 2:
        return "DPX"
    return rules.auto_half if nps * 2 == product.xccs else None
