"""A Kubernetes quantity as an exact number: ``4096``, ``196k``, ``4Ki``, ``1e3``.

The API server rewrites amounts in their shortest form (196000 becomes ``196k``), so a resource that
counts MiB has to be read with all of the grammar. Source: the API conventions, "Quantities".
"""

from __future__ import annotations

import re
from fractions import Fraction

_QUANTITY = re.compile(
    r"([+-]?(?:[0-9]{1,19}(?:\.[0-9]{0,19})?|\.[0-9]{1,19}))([eE][+-]?[0-9]{1,2}|[a-zA-Z]{0,2})"
)
_FACTORS = {
    "": Fraction(1),
    **{name: Fraction(1, 1000**n) for n, name in enumerate("mun", 1)},
    **{name: Fraction(1000**n) for n, name in enumerate("kMGTPE", 1)},
    **{f"{name}i": Fraction(1024**n) for n, name in enumerate("KMGTPE", 1)},
}


def quantity(text: str) -> Fraction | None:
    """The number, or None for what is no quantity."""
    if text.isascii() and text.isdecimal() and len(text) < 20:
        return Fraction(int(text))
    found = _QUANTITY.fullmatch(text)
    if found is None:
        return None
    number, suffix = Fraction(found[1]), found[2]
    if suffix in _FACTORS:
        return number * _FACTORS[suffix]
    exponent = suffix[1:]
    return number * Fraction(f"1e{exponent}") if exponent.lstrip("+-").isdecimal() else None
