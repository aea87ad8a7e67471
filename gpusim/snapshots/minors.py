"""Which displays of other drivers a capture's DRM minors tell of, and in which order its GPUs were probed.

Minors are given in probe order, a partitionable GPU takes eight (kernel.md 2.6), so a gap is a device that is
not described otherwise, and a number that is missing at the end one too many.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpusim.amd.driver import BMC
from gpusim.amd.drm import PER_TYPE, RENDER_BASE
from gpusim.amd.partition import MAX_PARTITIONS
from gpusim.kernel import Behaviour
from gpusim.snapshots.board import Board, Say
from gpusim.snapshots.reading import Pci, Xcp
from gpusim.spec import CardSpec

_STAND_IN = CardSpec("bochs-drm", "", vendor=0x1234, device=0x1111, render=False)
"""A display nobody recorded: the emulated one, which no real node has."""
_LAST = 1 << 30


def probe_order(boards: Sequence[Board]) -> list[Board]:
    """The GPUs by the first minor each holds, then as KFD lists them; without either by address."""

    def place(board: Board) -> tuple[int, int, str]:
        minor = board.first_minor
        if minor is not None:
            minor -= RENDER_BASE
        elif board.pci is not None and board.pci.card is not None:
            minor = board.pci.card
        node = board.nodes[0].index if board.nodes else _LAST
        return (_LAST if minor is None else minor, node, board.bdf)

    return sorted(boards, key=place)


def displays(
    boards: Sequence[Board], devices: Mapping[str, Pci], xcps: Sequence[Xcp], say: Say
) -> tuple[bool, tuple[CardSpec, ...]]:
    """Whether a BMC's display is there, and the other displays in probe order.

    Args:
        boards: the GPUs in probe order.
        devices: every PCI device of the capture.
        xcps: partition devices.
        say: takes what was concluded.
    """
    known = {board.bdf for board in boards}
    others = [d for d in devices.values() if d.card is not None and d.bdf not in known]
    for device in others:
        if not device.vendor or not device.device:
            say(f"{device.bdf} has no recorded vendor or device id: left out, stand-ins take its minors")
    foreign = sorted(
        (d for d in others if d.vendor and d.device),
        key=lambda device: device.card or 0,
    )
    cards: list[CardSpec] = []
    card, render = 0, RENDER_BASE
    for index, board in enumerate([*boards, None]):
        own = board.pci.card if board and board.pci else None
        while (
            foreign and (own is None or (foreign[0].card or 0) < own) and (board is None or own is not None)
        ):
            device = foreign.pop(0)
            cards += _unknown(card, device.card, render, device.render, index)
            cards.append(_card(device, index))
            card = (device.card or 0) + 1
            render = render if device.render is None else device.render + 1
        if board is None:
            break
        minor = board.first_minor
        if own is None and minor is None:
            continue
        cards += _unknown(card, own, render, minor, index)
        taken = MAX_PARTITIONS if board.product.partitionable else 1
        card = (card + (minor or render) - render if own is None else own) + taken
        render = (render if minor is None else minor) + taken
    missing = lost(boards, xcps)
    if missing and not cards:
        say(
            f"the last GPU lacks {missing} partition{'s' if missing > 1 else ''}: a display without render "
            f"node took a minor, and there are {PER_TYPE} of a type"
        )
        cards = [_STAND_IN] * missing
    return _told(cards, boards, say)


def _unknown(card: int, own: int | None, render: int, minor: int | None, index: int) -> list[CardSpec]:
    """Stand-ins for the devices between two known ones."""
    renders = 0 if minor is None else max(minor - render, 0)
    count = max(own - card, 0) if own is not None else renders
    return [replace(_STAND_IN, render=k < renders, before=index) for k in range(count)]


def _card(device: Pci, index: int) -> CardSpec:
    return CardSpec(
        driver=device.driver or "unknown",
        bdf=device.bdf,
        vendor=device.vendor or 0,
        device=device.device or 0,
        render=device.render is not None or not device.drm_names,
        before=index,
        subsystem=device.subsystem,
    )


def lost(boards: Sequence[Board], xcps: Sequence[Xcp]) -> int:
    """How many partitions of the last GPU have no DRM device."""
    able = [board for board in boards if board.product.partitionable]
    if not able:
        return 0
    if xcps:
        return max((MAX_PARTITIONS - 1) * len(able) - len(xcps), 0)
    last, others = able[-1], able[:-1]
    full = all(len(board.nodes) == board.parts for board in others)
    return last.parts - len(last.nodes) if others and full and last.nodes else 0


def _told(cards: list[CardSpec], boards: Sequence[Board], say: Say) -> tuple[bool, tuple[CardSpec, ...]]:
    """A board controller where a server would have one; addresses for what nobody recorded."""
    taken = {board.bdf for board in boards} | {card.bdf for card in cards}
    server = any(board.product.pci_class == 0x120000 for board in boards)
    first = cards[0] if cards else None
    bmc = False
    if first is not None and not first.before and not first.render:
        usual = next(
            (b for b in (f"0000:{bus:02x}:00.0" for bus in range(3, 256)) if b not in taken - {first.bdf}), ""
        )
        known = (first.driver, first.vendor, first.device) == (BMC.driver, BMC.vendor, BMC.device)
        if (known and first.bdf == usual) or (not first.bdf and server):
            bmc = True
            if not first.bdf:
                say("something without render node holds a card before the GPUs: a BMC's display is assumed")
            cards = cards[1:]
    # All first functions first: a stand-in has a slot of its own as long as there are any.
    free = (f"0000:00:{slot:02x}.{function}" for function in range(8) for slot in range(1, 32))
    placed = []
    for card in cards:
        if card.bdf:
            placed.append(card)
        else:
            say("a minor before a GPU is held by a device that is not recorded: a stand-in display takes it")
            place = next((bdf for bdf in free if bdf not in taken), None)
            if place is None:
                say("more minors are held by unrecorded devices than there are addresses: left out")
                break
            placed.append(replace(card, bdf=place))
    return bmc, tuple(placed)


def limit(boards: Sequence[Board], xcps: Sequence[Xcp], rules: Behaviour) -> int | None:
    """`minors_per_type`: 64 where minors ran out although the chosen kernel has no limit."""
    return PER_TYPE if lost(boards, xcps) and rules.extended_minors else None
