"""The text in which HAMi says why devices did not do: ``3/8 CardNotHealth, 2/8 CardInsufficientCore``.

Sorted as text, joined by commas (ascend_ppu_hami.md D.8); read back in case C14.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

_PIECE = re.compile(r"(\d+)/(\d+) (\w+)", re.ASCII)


def told(reasons: Mapping[str, int], total: int) -> str:
    """Reasons of `total` devices as one text."""
    return ", ".join(sorted(f"{number}/{total} {why}" for why, number in reasons.items()))


def parse(text: str) -> dict[str, int]:
    """Reason → how many devices gave it; pieces of another form (``NodeInsufficientDevice``) are skipped."""
    found = (_PIECE.fullmatch(piece.strip()) for piece in text.split(","))
    return {match[3]: int(match[1]) for match in found if match}


def summed(texts: Iterable[str]) -> dict[str, int]:
    """Reason → how many devices gave it on all nodes together."""
    total: Counter[str] = Counter()
    for text in texts:
        total.update(parse(text))
    return dict(total)
