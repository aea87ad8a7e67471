"""What a write to dmem.max, dmem.low or dmem.min means, byte by byte.

Sources: kernel.md 4.3; kernel/cgroup/dmem.c (`dmemcg_limit_write`, `dmemcg_parse_limit`), lib/cmdline.c
(`memparse`), lib/kstrtox.c (`_parse_integer_fixup_radix`, `_parse_integer_limit`), lib/ctype.c.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass

UNLIMITED = (2**63 - 1) // 4096
"""PAGE_COUNTER_MAX of a 64-bit kernel with 4 KiB pages: from here on a limit prints ``max``."""
_SPACE = " \t\n\v\f\r\xa0"
"""isspace() of the kernel: its table is Latin-1, so a no-break space counts."""
_SUFFIXES = "KMGTPE"
_MASK = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Line:
    """One ``region value`` of a write. Value is the rest verbatim; None: there is none."""

    region: str
    value: str | None


def lines(data: bytes, *, many: bool) -> Iterator[Line]:
    """The lines of one write, one after the other: what comes before a bad one has been applied.

    Args:
        data: the bytes of one write(2); what follows a NUL is not seen.
        many: the buffer is split at newlines, empty lines are nothing (6.14 to 7.1); else it holds exactly
            one pair.

    Raises:
        OSError: EINVAL, nothing but blanks where exactly one pair is asked for.
    """
    text = data.partition(b"\0")[0].decode("latin-1")
    if not many:
        stripped = text.strip(_SPACE)
        if not stripped:
            raise invalid()
        yield _line(stripped)
        return
    for line in text.split("\n"):
        stripped = line.strip(_SPACE)
        if stripped:
            yield _line(stripped)


def _line(text: str) -> Line:
    """strsep at the first blank or tab."""
    end = next((place for place, letter in enumerate(text) if letter in " \t"), None)
    return Line(text, None) if end is None else Line(text[:end], text[end + 1 :])


def limit(value: str) -> int:
    """The number of a limit: ``max``, or what memparse makes of all of it.

    Returns:
        Bytes, modulo 2^64; `UNLIMITED` for ``max``.

    Raises:
        OSError: EINVAL, something is left over.
    """
    if value == "max":
        return UNLIMITED
    number, rest = memparse(value)
    if rest:
        raise invalid()
    return number


def memparse(text: str) -> tuple[int, str]:
    """A C number (decimal, 0 octal, 0x hexadecimal) with one suffix of K M G T P E, and what is left over.

    No digit at all is 0, so a bare suffix is too; nothing is checked for overflow, 64 bits wrap.
    """
    base, start = 10, 0
    if text[:1] == "0":
        base = 8
        if text[1:2] in ("x", "X") and _digit(text[2:3]) < 16:
            base, start = 16, 2
    number, place = 0, start
    while (digit := _digit(text[place : place + 1])) < base:
        number = (number * base + digit) & _MASK
        place += 1
    suffix = text[place : place + 1].upper()
    if suffix and suffix in _SUFFIXES:
        number = (number << 10 * (_SUFFIXES.index(suffix) + 1)) & _MASK
        place += 1
    return number, text[place:]


def _digit(letter: str) -> int:
    """Value of a digit in any base up to 16; 16 for everything else, the end included."""
    place = "0123456789abcdef".find(letter.lower()) if letter and letter.isascii() else -1
    return place if place >= 0 else 16


def invalid() -> OSError:
    """EINVAL."""
    return OSError(errno.EINVAL, os.strerror(errno.EINVAL))
