"""Every AMD product by the name that fixtures use.

The rows stand by family in `products_instinct` and `products_radeon`, what a row is in `product`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from gpusim.amd import products_instinct, products_radeon
from gpusim.amd.product import DATA, INSTRUCTION, NO_CAPS, CacheKind, Cap, Product
from gpusim.amd.products_instinct import MI300A, MI300X, MI355X

__all__ = [
    "DATA",
    "INSTRUCTION",
    "MI300A",
    "MI300X",
    "MI355X",
    "NO_CAPS",
    "PRODUCTS",
    "CacheKind",
    "Cap",
    "Product",
]

PRODUCTS: Mapping[str, Product] = MappingProxyType(
    {row.name: row for row in (*products_instinct.ROWS, *products_radeon.ROWS)}
)
"""Every product, Instinct first."""
