"""Input as it arrives from a torn write, a failing disk, a foreign program or a hostile hand, made by a seed.

For parsers that must survive all of it: `damaged` breaks sound inputs in ways a parser has to expect, and the
same random generator gives the same bytes, in any process and on any Python. `gpusim.testing.parsers` puts
them through a parser. Nothing here needs Hypothesis; its `damaged_files` draws a few kinds of damage that
shrink, this makes a hundred thousand in seconds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from random import Random
from types import MappingProxyType

from gpusim.errors import GpusimError

LONGEST = 160 << 10
"""Bytes of a damaged input: more than a line, a page or a directory entry may have."""
_PAGE = 4096
_DIGITS = re.compile(rb"[0-9]+")
_SEPARATORS = (b",", b";", b":", b"\n", b"\t", b" ", b"=", b"#", b"-", b"/", b"|", b".", b'"', b"'", b"\\")
_FOREIGN = (
    *(b"\0", b"\r", b"\r\n", b"\v", b"\f", b"\x1c", b"\x85", b"\xa0", b"\xff\xfe", b"\xef\xbb\xbf"),
    *(sign.encode() for sign in "\x85\xa0\u2028\u2029\u3000\uff0c\uff1a\uff1b\u200b\u202e\ufeff"),
)
"""Blanks and line ends of other systems, alphabets and encodings; full-width signs; half a surrogate pair."""
_NUMBERS = (
    *(b"0", b"-0", b"-1", b"+1", b"00", b"1", b"255", b"256", b"65536", b"2147483647", b"2147483648"),
    *(b"-2147483649", b"4294967296", b"9223372036854775807", b"9223372036854775808"),
    *(b"18446744073709551615", b"18446744073709551616", b"99999999999999999999999"),
    *(b"", b"1_0", b" 1", b"0x10", b"0b1", b"0o7", b"08", b"1.5", b"1e9", b"1e999", b"-1e-999", b".5", b"5."),
    *(b"NaN", b"Infinity", b"-Infinity", b"inf", b"max", b"null", b"true", b'"1"', b"[1]", b"{}"),
    # YAML 1.1 calls these a date, two integers and a float, and readers then fail to make them that.
    *(b"2001-13-45", b"0b_", b"0x_", b"._"),
    # 4300 digits are the most that int() takes; a float has 309 of them.
    *(b"9" * 40, b"9" * 400, b"9" * 4300, b"9" * 4301),
    *(digits.encode() for digits in ["٣", "१", "１", "²", "①", "𝟙", "۱۲"]),
)
"""What a number is not, or not to every reader; among them digits that str.isdigit and int() judge apart."""
_OPENINGS = (b"[", b"(", b"{", b'{"a":', b'[{"a":[', b"- ", b"? ", b"{a: ", b"'", b"\\", b"<", b"&a [")
_ESCAPES = (
    b"\\u0000",
    b"\\ud800",
    b"\\udfff\\ud800",
    b"\\x00",
    b"\\n",
    b"%00",
    b"${x}",
    b"*a",
    b"&a ",
    b"!!",
    b"<<",
)


Damage = Callable[[Random, bytes, bytes], bytes]
"""Changes the second, maybe with pieces of the third."""


def damaged(sound: Sequence[bytes], random: Random, *, longest: int = LONGEST) -> bytes:
    """One of the sound inputs after one or several kinds of damage.

    Args:
        sound: inputs that a parser takes; any of them may end up as part of another.
        random: decides everything.
        longest: what is longer is cut.

    Returns:
        At most `longest` bytes, seldom more than a few times the sound input. Now and then it is a sound
        input after all.

    Raises:
        GpusimError: there is no sound input.
    """
    if not sound:
        raise GpusimError("damage needs at least one sound input")
    content, other = random.choice(sound), random.choice(sound)
    while True:
        kinds = _GROWING if random.random() < _SELDOM else _USUAL
        content = random.choice(kinds)(random, content, other)[:longest]
        if random.random() < _ENOUGH:
            return content


def _span(random: Random, content: bytes) -> tuple[int, int]:
    """Start and end of a piece, mostly a short one."""
    size = len(content)
    start = int(random.random() * (size + 1))
    reach = size - start if random.random() < 0.2 else min(size - start, 16)
    return start, start + int(random.random() * (reach + 1))


def _flip(random: Random, content: bytes, other: bytes) -> bytes:
    if not content:
        return b"\x01"
    changed = bytearray(content)
    for _ in range(random.choice((1, 1, 1, 2, 8))):
        changed[int(random.random() * len(changed))] ^= 1 << int(random.random() * 8)
    return bytes(changed)


def _byte(random: Random, content: bytes, other: bytes) -> bytes:
    at = int(random.random() * (len(content) + 1))
    return content[:at] + random.choice((*_SEPARATORS, *_FOREIGN)) + content[at + 1 :]


def _insert(random: Random, content: bytes, other: bytes) -> bytes:
    at = int(random.random() * (len(content) + 1))
    word = random.choice((*_SEPARATORS, *_FOREIGN, *_NUMBERS[:-11], *_ESCAPES, *_OPENINGS))
    return content[:at] + word + content[at:]


def _cut(random: Random, content: bytes, other: bytes) -> bytes:
    at = int(random.random() * (len(content) + 1))
    return content[at:] if random.random() < 0.25 else content[:at]


def _nuls(random: Random, content: bytes, other: bytes) -> bytes:
    """Padding as some recorders leave it, a hole as a crash leaves it, or NULs in front."""
    start, end = _span(random, content)
    return random.choice(
        (
            content + bytes(_PAGE - len(content) % _PAGE),
            content + bytes(1 + int(random.random() * 32)),
            content[:start] + bytes(end - start) + content[end:],
            bytes(1 + int(random.random() * 8)) + content,
            bytes(len(content)),
        )
    )


def _lost(random: Random, content: bytes, other: bytes) -> bytes:
    start, end = _span(random, content)
    return content[:start] + content[end:]


def _twice(random: Random, content: bytes, other: bytes) -> bytes:
    start, end = _span(random, content)
    return content[:end] + content[start:]


def _swapped(random: Random, content: bytes, other: bytes) -> bytes:
    a, b = sorted((_span(random, content), _span(random, content)))
    if a[1] > b[0]:
        return content[: a[0]] + content[a[0] : a[1]][::-1] + content[a[1] :]
    return content[: a[0]] + content[slice(*b)] + content[a[1] : b[0]] + content[slice(*a)] + content[b[1] :]


def _lines(random: Random, content: bytes, other: bytes) -> bytes:
    """A line lost, said twice, taken from elsewhere, cut, moved in; two exchanged; all in another order."""
    lines = content.split(b"\n")
    a, b = int(random.random() * len(lines)), int(random.random() * len(lines))
    change = int(random.random() * 8)
    if change == 0:
        del lines[a]
    elif change == 1:
        lines.insert(b, lines[a])
    elif change == 2:
        lines[a], lines[b] = lines[b], lines[a]
    elif change == 3:
        lines[a] = random.choice(other.split(b"\n"))
    elif change == 4:
        lines[a] = lines[a][: int(random.random() * (len(lines[a]) + 1))]
    elif change == 5:
        lines[a] = random.choice((b" ", b"  ", b"\t", b"- ", b"#")) + lines[a]
    elif change == 6:
        lines[a : a + 2] = [b"".join(lines[a : a + 2])]
    else:
        random.shuffle(lines)
    return b"\n".join(lines)


def _number(random: Random, content: bytes, other: bytes) -> bytes:
    """A run of digits replaced by what is no number, or a very large one."""
    found = list(_DIGITS.finditer(content))
    if not found:
        return _insert(random, content, other)
    start, end = random.choice(found).span()
    word = random.choice(_NUMBERS)
    if random.random() < 0.1:
        return content.replace(content[start:end], word)
    return content[:start] + word + content[end:]


def _separators(random: Random, content: bytes, other: bytes) -> bytes:
    """One separator replaced by another, once or everywhere."""
    old = random.choice([one for one in _SEPARATORS if one in content] or [b""])
    if not old:
        return _insert(random, content, other)
    new = random.choice((*_SEPARATORS, *_FOREIGN, b""))
    if random.random() < 0.5:
        return content.replace(old, new)
    return content.replace(old, new, 1 + int(random.random() * 3))


def _splice(random: Random, content: bytes, other: bytes) -> bytes:
    """The beginning of one and the end of another, or a piece of one inside the other."""
    start, end = _span(random, other)
    at = int(random.random() * (len(content) + 1))
    if random.random() < 0.5:
        return content[:at] + other[start:]
    return content[:at] + other[start:end] + content[at:]


def _case(random: Random, content: bytes, other: bytes) -> bytes:
    start, end = _span(random, content)
    return content[:start] + content[start:end].swapcase() + content[end:]


def _nested(random: Random, content: bytes, other: bytes) -> bytes:
    """Openings without end, or with the ends that fit: deeper than any stack."""
    at = int(random.random() * (len(content) + 1))
    depth = random.choice((3, 64, 1_100, 20_000))
    opening = random.choice(_OPENINGS)
    closing = {b"[": b"]", b"(": b")", b'{"a":': b"}", b"{a: ": b"}"}.get(opening, b"")
    end = closing if random.random() < 0.5 else b""
    if random.random() < 0.3:  # around the whole
        return opening * depth + content + end * depth
    return content[:at] + opening * depth + content[at : at + 8] + end * depth + content[at + 8 :]


def _long(random: Random, content: bytes, other: bytes) -> bytes:
    """A byte or a word, many times: a token, line or list longer than anybody expects."""
    start, end = _span(random, content)
    word = content[start:end][:64] or random.choice((b"a", b"1", b" ", b",", b"\xc3"))
    word = random.choice((word, word[:1], b"a", b"0", b"9", b" ", b",", b"\n", b"\\", b"\xf0\x9f\x98\x80"))
    size = random.choice((300, 5_000, 70_000))
    return content[:start] + word * (size // len(word)) + content[end:]


def _many(random: Random, content: bytes, other: bytes) -> bytes:
    return random.choice((content, content + other, content + b"\n")) * random.choice((2, 3, 20))


KINDS: Mapping[str, Damage] = MappingProxyType(
    {
        "bits flipped": _flip,
        "byte replaced": _byte,
        "word put in": _insert,
        "cut": _cut,
        "NULs": _nuls,
        "piece lost": _lost,
        "piece twice": _twice,
        "pieces exchanged": _swapped,
        "lines": _lines,
        "number": _number,
        "separators": _separators,
        "two joined": _splice,
        "case": _case,
        "nested": _nested,
        "long": _long,
        "many": _many,
    }
)
"""Every kind of damage."""

_SELDOM = 0.02
"""Share of damages that make an input large: they cost as much as all others together."""
_ENOUGH = 0.5
"""Chance that no further damage follows: half of the inputs have one, a quarter two, …"""
_GROWING = (_nested, _long, _many)
_USUAL = tuple(kind for kind in KINDS.values() if kind not in _GROWING)
