"""Sets of compute units as ints (bit k is CU k): the id-list text, and the aligned first fit.

amd.md 5.5 and 5.6; decision 21 for the empty set and odd totals. `HSA_CU_MASK` takes the same id lists.
"""

from __future__ import annotations

import re

_TOKEN = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", re.ASCII)


class CuError(ValueError):
    """An id list that does not parse or leaves the device, or a request that does not fit."""


def everything(total: int) -> int:
    """All CUs of a device of `total`."""
    return (1 << total) - 1


def parse(text: str, total: int) -> int:
    """The set an id list names: ``0-3,8``; blanks around tokens and empty tokens are allowed.

    Raises:
        CuError: a token is no number or range, a range runs backwards, or a CU is not below `total`
            (the message says "out of bounds").
    """
    mask = 0
    for token in text.split(","):
        plain = token.strip(" ")
        if not plain:
            continue
        found = _TOKEN.fullmatch(plain)
        if found is None:
            raise CuError(f"{plain[:40]!a} is no CU number or range")
        first = int(found[1])
        last = first if found[2] is None else int(found[2])
        if last < first:
            raise CuError(f"CU range {first}-{last} runs backwards")
        if last >= total:
            raise CuError(f"CU {last} is out of bounds: the device has {total}")
        mask |= ((1 << (last - first + 1)) - 1) << first
    return mask


def text(mask: int) -> str:
    """The id list of a set: ascending, longest runs as ``a-b``; the empty set is the empty string."""
    runs = []
    start = 0
    while mask:
        skip = (mask & -mask).bit_length() - 1
        start += skip
        mask >>= skip
        length = (~mask & (mask + 1)).bit_length() - 1
        runs.append(f"{start}-{start + length - 1}" if length > 1 else f"{start}")
        start += length
        mask >>= length
    return ",".join(runs)


def first_fit(taken: int, total: int, count: int, unit: int) -> int:
    """The lowest free CUs for a request, in aligned units; `taken` itself is never changed.

    A request is rounded up to whole units (a work-group processor has two CUs on RDNA). A unit counts
    as free only when all its CUs are, and a trailing partial unit is left out, except that a request
    for all `total` CUs takes exactly these (decision 21).

    Args:
        taken: CUs in use.
        total: CUs of the device.
        count: CUs asked for, at least 1.
        unit: CUs handed out together; below 1 counts as 1.

    Raises:
        CuError: `count` is not positive, or the free units do not suffice.
    """
    if count <= 0:
        raise CuError(f"a request needs at least one CU, not {count}")
    if count == total:
        if taken & everything(total):
            raise CuError(f"all {total} CUs are wanted, {(taken & everything(total)).bit_count()} are in use")
        return everything(total)
    unit = max(unit, 1)
    chosen = 0
    missing = -(-count // unit)
    block = everything(unit)
    for start in range(0, total - unit + 1, unit):
        if not taken >> start & block:
            chosen |= block << start
            missing -= 1
            if not missing:
                return chosen
    free = total - (taken & everything(total)).bit_count()
    raise CuError(f"{count} of {total} CUs wanted in units of {unit}, {free} are free")
