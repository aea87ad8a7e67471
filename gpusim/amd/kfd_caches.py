"""The caches of a KFD node, from which CUs are fused off.

Results are kept per small value (cache kinds, array width, bitmaps), relative to the node's first SIMD id:
all 63 partitions of a CPX node share one list. Source: kfd.md 1, Caches (order, groups, the sibling map
that is off by one array in L2 and L3).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from gpusim.amd.kfd import GpuNode
from gpusim.amd.products import CacheKind
from gpusim.kernel import Behaviour

_L1_WIDTH = 32
_LEGACY_WIDTH = 256
_GFX942, _GFX950 = 90402, 90500


class Cache(NamedTuple):
    """One cache, relative to its node."""

    offset: int
    """processor_id_low less the node's simd_id_base."""
    tail: str
    """Every line of ``properties`` after the first."""


def node_caches(node: GpuNode, rules: Behaviour) -> tuple[Cache, ...]:
    """The caches of a node in directory order."""
    product = node.facts.product
    lines = rules.kfd_gfx942_lines or product.gfx != _GFX942
    divides = product.gfx == _GFX942 or (product.gfx == _GFX950 and rules.kfd_gfx950_l3_by_nps)
    return caches(
        product.caches,
        product.cus_per_array,
        node.bitmaps,
        lines=lines,
        l3_share=node.nps if divides else 1,
        width=_LEGACY_WIDTH if rules.kfd_legacy else _L1_WIDTH,
    )


def cache_text(simd_base: int, cache: Cache) -> str:
    """Content of a cache's ``properties``."""
    return f"processor_id_low {simd_base + cache.offset}\n{cache.tail}"


@lru_cache(maxsize=256)
def caches(
    kinds: tuple[CacheKind, ...],
    cus_per_array: int,
    bitmaps: tuple[tuple[int, ...], ...],
    *,
    lines: bool = True,
    l3_share: int = 1,
    width: int = _L1_WIDTH,
) -> tuple[Cache, ...]:
    """All caches of a node, kind by kind.

    Args:
        kinds: what the product has.
        cus_per_array: physical CUs of one shader array.
        bitmaps: active CUs per XCC and array.
        lines: cache_line_size is printed; else 0.
        l3_share: memory partitions among which the L3 is divided.
        width: values in an L1's sibling_map.
    """
    found: list[Cache] = []
    arrays = tuple(bitmap for xcc in bitmaps for bitmap in xcc)
    for kind in kinds:
        kib = kind.kib // l3_share if kind.level == 3 else kind.kib
        line = kind.line if lines else 0
        entries = (
            _shared(bitmaps[0], arrays)
            if kind.sharers == 0
            else _groups(arrays, cus_per_array, kind.sharers if kind.sharers > 0 else cus_per_array, width)
        )
        found += (Cache(offset, _tail(kind, kib, line, siblings)) for offset, siblings in entries)
    return tuple(found)


def _tail(kind: CacheKind, kib: int, line: int, siblings: str) -> str:
    return (
        f"level {kind.level}\nsize {kib}\ncache_line_size {line}\ncache_lines_per_tag 0\nassociation 0\n"
        f"latency 0\ntype {kind.type}\nsibling_map {siblings}\n"
    )


def _groups(arrays: tuple[int, ...], cus: int, size: int, width: int) -> Iterator[tuple[int, str]]:
    """One entry per group of `size` CUs that has an active one; groups do not span arrays."""
    counter = 0
    for bitmap in arrays:
        for start in range(0, cus, size):
            length = min(size, cus - start)
            active = bitmap >> start & (1 << length) - 1
            if active:
                first = _first(active)
                yield counter + first, _values(active >> first, width)
            counter += length


def _shared(first_xcc: tuple[int, ...], arrays: tuple[int, ...]) -> Iterator[tuple[int, str]]:
    """The one entry of an L2 or L3: its map has array i - 1 at place i, and the first one, shifted, at 0."""
    bitmap = next((bitmap for bitmap in first_xcc if bitmap), 0)
    first = _first(bitmap) if bitmap else 0
    shown = (first_xcc[0] >> first, *arrays[:-1])
    yield first, ",".join(_values(array, _L1_WIDTH) for array in shown)


def _first(bitmap: int) -> int:
    return (bitmap & -bitmap).bit_length() - 1


@lru_cache(maxsize=1024)
def _values(bitmap: int, width: int) -> str:
    return ",".join("1" if bitmap >> bit & 1 else "0" for bit in range(width))
