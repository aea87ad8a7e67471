"""The state file of PPU-HAMi-core, as numbers at places: read from bytes, and written to bytes.

36,960 bytes, little-endian: a head of 96 bytes with magic, version and, from byte 32 on, one byte a card that
is locked while the card's numbers change; then 64 cards of 576 bytes, each with 32 process slots. Source:
decision 53, which takes it from public third-party material; ascend_ppu_hami.md B.7 (a version that is not
ours, and a file that is not ours, are refused).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from gpusim.errors import GpusimError

MAGIC = b"VPPUREGN"
VERSION = 1
HEADER = 96
CARDS = 64
PROCESSES = 32
LOCKS = 32
"""Where the lock bytes are; card N's is N after."""
CARD = 576
SLOTS = 64
"""Where a card's process slots are, from its start."""
SLOT = 16
SIZE = HEADER + CARDS * CARD
PID_MAX = 1 << 22
"""Linux gives no larger pid (PID_MAX_LIMIT)."""

_HEAD = struct.Struct("<8sIIII")
_CARD = struct.Struct("<QQII")
_SLOT = struct.Struct("<i4xQ")


class UnknownStateError(GpusimError):
    """The bytes are no state file that can be read: foreign, of another version, or torn."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A process that uses a card.

    Attributes:
        row: its place among the card's slots.
        pid: as the container numbers it.
        used: bytes.
    """

    row: int
    pid: int
    used: int


@dataclass(frozen=True, slots=True)
class Card:
    """A card of the container.

    Attributes:
        quota: bytes; 0: not limited.
        stored: bytes in use as the file counts them: a sum that is written last.
        sm_limit: percent of the card's compute; 0 and 100: not limited.
        busy: utilisation in percent, as reported last.
        slots: who uses it.
    """

    quota: int = 0
    stored: int = 0
    sm_limit: int = 0
    busy: int = 0
    slots: tuple[Slot, ...] = ()

    @property
    def used(self) -> int:
        """Bytes that its processes have; what counts where `stored` differs."""
        return sum(slot.used for slot in self.slots)


def base(card: int) -> int:
    """Where a card starts."""
    return HEADER + card * CARD


def check(data: bytes) -> None:
    """Refuse what is no state file of this version.

    Raises:
        UnknownStateError: and why.
    """
    if not data.startswith(MAGIC):
        raise UnknownStateError(f"it starts with {bytes(data[:8])!r}, not with {MAGIC!r}: no state file")
    if len(data) < _HEAD.size:
        raise UnknownStateError(f"{len(data)} bytes: it ends in its head")
    _, version, header, cards, processes = _HEAD.unpack_from(data)
    if version != VERSION:
        raise UnknownStateError(f"version {version}: only {VERSION} can be read")
    if (header, cards, processes) != (HEADER, CARDS, PROCESSES):
        found = f"a head of {header} bytes, {cards} cards, {processes} processes"
        raise UnknownStateError(f"{found}: {HEADER}, {CARDS} and {PROCESSES} are version {VERSION}'s")
    if len(data) != SIZE:
        raise UnknownStateError(f"{len(data)} bytes: version {VERSION} has {SIZE}")


def read(data: bytes) -> tuple[Card, ...]:
    """What a file says: all 64 cards, whether the container has them or not.

    Raises:
        UnknownStateError: it is none, or says what cannot be.
    """
    check(data)
    return tuple(_card(data, card) for card in range(CARDS))


def _card(data: bytes, card: int) -> Card:
    at = base(card)
    quota, stored, sm_limit, busy = _CARD.unpack_from(data, at)
    if sm_limit > 100 or busy > 100:
        raise UnknownStateError(f"card {card}: SM limit {sm_limit}, busy {busy}: percentages end at 100")
    slots = []
    for row in range(PROCESSES):
        pid, used = _SLOT.unpack_from(data, at + SLOTS + row * SLOT)
        if not 0 <= pid <= PID_MAX:
            raise UnknownStateError(f"card {card}: process slot {row} has pid {pid}")
        if pid:
            slots.append(Slot(row, pid, used))
    return Card(quota, stored, sm_limit, busy, tuple(slots))


def write(cards: Sequence[Card]) -> bytes:
    """The bytes of a file that says this; `read` of them gives the same, and cards that say nothing.

    Raises:
        GpusimError: more than 64 cards; a number that has no room.
    """
    if len(cards) > CARDS:
        raise GpusimError(f"a state file has room for {CARDS} cards, not {len(cards)}")
    data = bytearray(SIZE)
    _HEAD.pack_into(data, 0, MAGIC, VERSION, HEADER, CARDS, PROCESSES)
    for number, card in enumerate(cards):
        try:
            _CARD.pack_into(data, base(number), card.quota, card.stored, card.sm_limit, card.busy)
            for slot in card.slots:
                _SLOT.pack_into(data, base(number) + SLOTS + slot.row * SLOT, slot.pid, slot.used)
        except struct.error as error:
            raise GpusimError(f"card {number} has a number without room in the file: {error}") from error
    return bytes(data)
