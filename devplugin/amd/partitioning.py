"""Into how many partitions a GPU is cut, and what that mode is called: the file against KFD.

Pure arithmetic. `current_compute_partition` says a name, KFD lists nodes with XCC counts; where they
disagree, KFD is what runtimes see, so KFD wins (decision 4). Kernel 6.8.0-136 is the known case: the file
says QPX and KFD has one node with all XCCs (decision 5). Mode names and counts: kernel.md 2.1, 2.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from devplugin.amd.products import Product

_WAYS = {"spx": 1, "dpx": 2, "tpx": 3, "qpx": 4}
MODES = (*_WAYS, "cpx")


@dataclass(frozen=True, slots=True)
class Cut:
    """How a GPU is cut."""

    ways: int
    """Partitions there should be; 1: the GPU is whole."""
    compute: str
    """Mode name to register, or empty."""
    total_xccs: int | None
    warning: str | None = None
    """Where file and KFD disagree."""


def ways_of(mode: str, total_xccs: int | None) -> int | None:
    """Partitions that a mode makes; None for what is no mode, or CPX of an unknown number of XCCs."""
    return total_xccs if mode == "cpx" else _WAYS.get(mode)


def name_of(ways: int, total_xccs: int | None, product: Product | None) -> str:
    """The mode that makes so many partitions, or empty: by the product's profiles, else by its XCCs."""
    if ways == 1:
        return "spx"
    for profile in product.profiles if product else ():
        if profile.partitions == ways:
            return profile.type.lower()
    if ways == total_xccs:  # 2 and 6 XCCs have no other mode of that count; QPX takes exactly 8
        return "cpx"
    return {2: "dpx", 3: "tpx", 4: "qpx", 8: "cpx"}.get(ways, "")


def cut(
    mode: str,
    has_modes: bool,
    numbers: Sequence[int],
    *,
    xccs: int | None,
    shares: int | None,
    product: Product | None,
) -> Cut:
    """Decide how a GPU is cut.

    Args:
        mode: What the mode file says, lower case; empty without one.
        has_modes: The GPU has a mode file or offers modes: it can be partitioned.
        numbers: Partition numbers of the KFD nodes it has, not empty.
        xccs: XCCs of one of these nodes; None where the kernel does not say.
        shares: VRAM of the whole GPU over one node's bank, rounded; None where unknown.
        product: The product, if known.
    """
    total = product.xccs if product else None
    if total is None and shares and xccs:
        total = shares * xccs
    listed = max(len(numbers), max(numbers) + 1)
    claimed = ways_of(mode, total)
    by_kfd = total // xccs if total and xccs else shares
    ways = max(by_kfd or claimed or 1, listed)

    if claimed == ways:
        return Cut(ways, mode, total)
    if claimed is None and not has_modes:
        return Cut(ways, "", total)
    seen = "one node that is the whole GPU" if ways == 1 else f"partitions of a {ways}-way mode"
    if claimed is not None and ways == 1:
        return Cut(1, mode, total, f"current_compute_partition says {mode}, KFD lists {seen}: offered whole")
    name = name_of(ways, total, product) or (mode if claimed is not None else "")
    said = f"says {mode}" if claimed is not None else "names no mode"
    return Cut(
        ways, name, total, f"current_compute_partition {said}, KFD lists {seen}: taken as {name or 'no mode'}"
    )
