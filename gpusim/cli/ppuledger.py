"""What ``gpusim ledger`` says of the state file of a container with PPUs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gpusim.cli.sizes import mib

if TYPE_CHECKING:
    from gpusim.ppu.layout import Card

LAYOUT = "PPU 1"


def as_json(cards: Sequence[Card]) -> dict[str, object]:
    """All of it, in bytes; cards that say nothing are left out."""
    return {
        "layout": LAYOUT,
        "cards": [
            {
                "card": number,
                "limit": card.quota,
                "used": card.used,
                "stored": card.stored,
                "sm_limit": card.sm_limit,
                "busy": card.busy,
                "slots": [{"slot": slot.row, "pid": slot.pid, "used": slot.used} for slot in card.slots],
            }
            for number, card in _shown(cards)
        ],
    }


def lines(cards: Sequence[Card]) -> Iterator[str]:
    """The same for people, in MiB."""
    yield f"layout {LAYOUT}"
    for number, card in _shown(cards):
        of = f"of {mib(card.quota)}" if card.quota else "not limited"
        compute = f"{card.sm_limit}% of compute" if card.sm_limit % 100 else "all of compute"
        yield f"card {number}: {mib(card.used)} {of}, {compute}, busy {card.busy}%"
        for slot in card.slots:
            yield f"  slot {slot.row}: pid {slot.pid}: {mib(slot.used)}"
    if not any(card.slots for card in cards):
        yield "no process is registered"


def _shown(cards: Sequence[Card]) -> list[tuple[int, Card]]:
    """The file does not tell how many cards there are: the first, and those that say something."""
    return [
        (number, card)
        for number, card in enumerate(cards)
        if number == 0 or card.quota or card.stored or card.sm_limit or card.busy or card.slots
    ]
