"""What PPU-HAMi-core reads from a container's environment: where the state file is, and the limits.

A variable with the card's index counts before the one without; only one that is *unset* falls back, a value
that cannot be read is refused (ascend_ppu_hami.md B.7, decision 50): taking it for "no limit" would lift the
limit. Names and units: decision 53. The index is the container's own (B.7).
"""

from __future__ import annotations

from collections.abc import Mapping

from gpusim.errors import GpusimError

PATH = "HGGC_LEDGER_PATH"
MEMORY = "HGGC_DEVICE_MEMORY_LIMIT"
"""MiB as a bare number."""
SM = "HGGC_DEVICE_SM_LIMIT"
"""Percent."""
MIB = 1 << 20
_MOST_MIB = (1 << 64) // MIB - 1


class BadLimitError(GpusimError):
    """A limit says nothing that could be meant."""


def quotas(environ: Mapping[str, str], cards: int) -> tuple[int, ...]:
    """Bytes a card; 0 where nothing is set: not limited.

    Raises:
        BadLimitError: a variable that is set and no whole number of MiB below 2^64 bytes.
    """
    return tuple(_number(environ, MEMORY, card, _MOST_MIB) * MIB for card in range(cards))


def sm_limits(environ: Mapping[str, str], cards: int) -> tuple[int, ...]:
    """Percent a card; 0 where nothing is set: not limited.

    Raises:
        BadLimitError: a variable that is set and no whole number from 0 to 100.
    """
    return tuple(_number(environ, SM, card, 100) for card in range(cards))


def _number(environ: Mapping[str, str], name: str, card: int, most: int) -> int:
    own = f"{name}_{card}"
    name = own if own in environ else name
    text = environ.get(name)
    if text is None:
        return 0
    # int() alone would take '1_0', ' 5' and digits of other scripts.
    if not (text.isascii() and text.isdecimal() and len(text) <= 20) or int(text) > most:
        raise BadLimitError(
            f"{name}={text!r}: a bare whole number from 0 to {most} is wanted, without a unit"
        )
    return int(text)
