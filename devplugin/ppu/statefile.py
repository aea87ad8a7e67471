"""Reading the state file that PPU-HAMi-core keeps for one container: who uses how much memory of which card.

The layout is decision 53's, from public third-party material. What the process slots say is the truth; a
card's own sum is a cache that is written last. A short, torn or foreign file has no numbers for anybody (as
decision 48 says of the NPUs' ledger). Containers write this file, so nothing in it is used as an index or a
size, and every field is checked (ascend_ppu_hami.md E.1). This file knows the layout by itself and only
reads.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from devplugin.containerdirs import check_file
from devplugin.host import Host, words

MAGIC = b"VPPUREGN"
CARDS = 64
SIZE = 36_960
_HEAD = struct.Struct("<8s4I")
_EXPECTED = (1, 96, CARDS, 32)
"""Version, bytes of the head, cards, process slots of a card."""
_CARD = struct.Struct("<QQII")
_CARD_SIZE, _SLOTS, _SLOTS_END = 576, 64, 576
_SLOT = struct.Struct("<iIQ")
_PID_MAX = 1 << 22
_BYTES_MAX = 1 << 44
"""More than sixty-four PPUs have."""
_READS = 4
"""Of a file whose sums and slots differ: a writer is at work for microseconds, or was killed at work."""


class NoStateError(Exception):
    """There is nothing to be read from this file; the text says why."""


class NotYetError(NoStateError):
    """There is no file: the library makes it when the container's first program reaches for a card."""


@dataclass(frozen=True, slots=True)
class CardUse:
    """One card, by the container's own index."""

    quota: int = 0
    """Bytes; 0: not limited."""
    used: int = 0
    """Bytes of all registered processes; a dead one counts until somebody sweeps it."""
    sm_limit: int = 0
    """Percent; 0 and 100: not limited."""
    busy: int = 0
    """Percent, as reported last."""
    processes: int = 0
    settled: bool = True
    """Whether the card's own sum agrees with its slots."""


def read(host: Host, path: str) -> tuple[CardUse, ...]:
    """All 64 cards of a file that others may be writing, whether the container has them or not.

    Raises:
        NotYetError: there is none yet.
        NoStateError: it cannot be read, or does not hold what can be believed.
    """
    try:
        check_file(host, path, SIZE)
        for _ in range(_READS):
            found = parse(host.read(path))
            if all(card.settled for card in found):
                break
    except FileNotFoundError as error:
        raise NotYetError(f"{path}: ENOENT") from error
    except OSError as error:
        raise NoStateError(f"{path}: {words(error)}") from error
    except NoStateError as error:
        raise NoStateError(f"{path}: {error}") from error
    return found


def parse(data: bytes) -> tuple[CardUse, ...]:
    """What the bytes of a state file say.

    Raises:
        NoStateError: another magic, version or size; an implausible field.
    """
    _believe(data.startswith(MAGIC), f"it begins with {data[:8]!r}")
    _believe(len(data) == SIZE, f"{len(data)} bytes")
    _, *head = _HEAD.unpack_from(data)
    _believe(tuple(head) == _EXPECTED, f"version and sizes {head}")
    return tuple(_card(data, card) for card in range(CARDS))


def _card(data: bytes, card: int) -> CardUse:
    at = _EXPECTED[1] + card * _CARD_SIZE
    quota, stored, sm_limit, busy = _CARD.unpack_from(data, at)
    _believe(quota <= _BYTES_MAX, f"card {card}: quota {quota}")
    _believe(sm_limit <= 100 and busy <= 100, f"card {card}: SM limit {sm_limit}, busy {busy}")
    used = processes = 0
    for pid, _, size in _SLOT.iter_unpack(data[at + _SLOTS : at + _SLOTS_END]):
        _believe(0 <= pid <= _PID_MAX, f"card {card}: pid {pid}")
        if pid:
            _believe(size <= _BYTES_MAX, f"card {card}: process {pid} uses {size} bytes")
            used, processes = used + size, processes + 1
    return CardUse(quota, used, sm_limit, busy, processes, used == stored)


def _believe(plausible: bool, otherwise: str) -> None:
    if not plausible:
        raise NoStateError(f"no state file that can be read: {otherwise}")
