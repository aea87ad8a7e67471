"""The state file of a container with PPUs, as the processes of the container keep it.

Each card has its quota of bytes. Memory is charged before the driver is asked for it, under the card's lock
byte; before a request is refused, processes that are gone are swept. What the process slots say is the truth,
the card's sum is a cache written last, so that whoever comes after a killed writer counts right. What is in
doubt is refused: a full table, a deleted file, limits that somebody changed.

A slot holds no more of a process than its pid (decision 53): one whose pid a living stranger has by now
stays charged until that ends, too, and a process that finds a slot under its own pid is its successor and
clears it. Slots are looked for in the whole table, so an emptied one hides none behind it and needs no
tombstone.

Source: decision 53; ascend_ppu_hami.md B.7 (lessons of such ledgers). What the public layout leaves open, the
order of stores and who may refuse what, follows the NPU ledger's decisions 47 to 50.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpusim.liveness import start_of
from gpusim.ppu import layout
from gpusim.ppu.environment import PATH, quotas, sm_limits
from gpusim.ppu.layout import CARDS, PROCESSES, SLOT, SLOTS, Card, UnknownStateError
from gpusim.ppu.mapping import StateError, bytes_of, open_mapping

Alive = Callable[[int], bool]
"""pid → whether that process lives."""

# Of a card: 64-bit words, and 32-bit halves.
_QUOTA, _STORED, _SM, _BUSY = 0, 1, 4, 5
_FIRST, _STRIDE = SLOTS // 8, SLOT // 8
_MOST = (1 << 64) - 1


class RefusedError(StateError):
    """The memory is not granted; nothing is charged."""


@dataclass(frozen=True, slots=True)
class Charge:
    """Bytes that a process has on a card.

    Attributes:
        number: unique in its process.
    """

    number: int
    card: int
    size: int


def alive(pid: int) -> bool:
    """Neither dead nor a zombie. What cannot be told counts as alive."""
    return start_of(pid) is not None


def read_file(path: str) -> tuple[Card, ...]:
    """What a state file says, all 64 cards of it; nothing is registered, made or changed.

    Raises:
        UnknownStateError: it is none.
        OSError: ENOENT, EACCES, ...
    """
    try:
        return layout.read(bytes_of(path))
    except UnknownStateError as error:
        raise UnknownStateError(f"{path}: {error}") from error


class StateFile:
    """One process's hold on its container's state file.

    Several threads may use it. After a fork the child's copy is a process of its own, with nothing charged.

    Args:
        path: of the file.
        limits: bytes, one a card in container order, 0 for one that is not limited; the file is made if there
            is none. None: it must be there.
        sm: percent of compute a card, 0 for no limit; for a file that is made.
        pid: who is registered; None: this process, now.
        alive: tells whether a registered process lives.

    Raises:
        StateError: the file has other limits; more cards than it has room for.
        NotReadyError, UnknownStateError, OSError: as `open_mapping`.
    """

    def __init__(
        self,
        path: str,
        limits: tuple[int, ...] | None = None,
        sm: tuple[int, ...] | None = None,
        *,
        pid: int | None = None,
        alive: Alive = alive,
    ) -> None:
        wanted = None if limits is None else _cards(limits, sm or (0,) * len(limits))
        self.path = path
        self._map = open_mapping(path, wanted)
        words = self._map.words
        self.limits = tuple(words[_word(card) + _QUOTA] for card in range(CARDS))
        if limits is not None:
            self._agree(limits + (0,) * (CARDS - len(limits)))
        self._simulated = pid is not None
        self.pid = os.getpid() if pid is None else pid
        self._alive = alive
        self._reset()
        self._map.join(self)

    def _agree(self, asked: tuple[int, ...]) -> None:
        for card, (limit, want) in enumerate(zip(self.limits, asked, strict=True)):
            if limit != want:
                self._map.close()
                raise StateError(
                    f"{self.path}: card {card} has a quota of {limit} bytes, not {want}: a container "
                    "keeps its quota; give a new container a new file"
                )

    @classmethod
    def of_environment(cls, environ: Mapping[str, str], cards: int, *, alive: Alive = alive) -> StateFile:
        """As a process of a container with this many PPUs finds it; nothing is registered yet.

        Raises:
            BadLimitError: a limit cannot be read.
            StateError: no path is set; and as the constructor.
            UnknownStateError, OSError: as `open_mapping`.
        """
        path = environ.get(PATH)
        if not path:
            raise StateError(f"{PATH} is not set: without a state file no limit could be kept")
        return cls(path, quotas(environ, cards), sm_limits(environ, cards), alive=alive)

    # ---- what a process does

    def allocate(self, card: int, size: int) -> Charge:
        """Charge `size` bytes of a card before the driver is asked for them.

        Raises:
            RefusedError: they do not fit, or it cannot be told whether they do.
            StateError: the file has no such card, or another `StateFile` counts for this process.
        """
        _check_card(self.path, card)
        with self._map.locked(card):
            if not self._map.intact:
                raise RefusedError(f"{self.path}: it was deleted or cut; what others use cannot be known")
            if self._map.words[_word(card) + _QUOTA] != self.limits[card]:
                raise RefusedError(f"{self.path}: somebody changed the quota of card {card}")
            self._claim(card)
            most = self.limits[card] or _MOST
            used = self._recount(card)
            if not 0 <= size <= most - used and self._sweep(card):
                used = self._recount(card)
            # Integers here do not wrap: a size near 2^64 is simply too much.
            if not 0 <= size <= most - used:
                raise RefusedError(f"{self.path}: card {card}: {size} bytes asked, {used} of {most} used")
            charge = Charge(next(self._numbers), card, size)
            self._charges[charge.number] = charge
            self._held[card] += size
            self._store(card)
        return charge

    def free(self, charge: Charge) -> None:
        """Give back what `allocate` charged.

        Raises:
            StateError: it is not charged, here and now: freed before, or another process's.
        """
        with self._map.locked(charge.card):
            if self._charges.get(charge.number) != charge:
                raise StateError(f"{self.path}: {charge} is not charged to process {self.pid}")
            del self._charges[charge.number]
            self._held[charge.card] -= charge.size
            if self._owns(charge.card):
                self._store(charge.card)

    def report(self, card: int, busy: int) -> None:
        """Write how busy a card is, in percent.

        Raises:
            StateError: no such card; no percentage.
        """
        _check_card(self.path, card)
        if not 0 <= busy <= 100:
            raise StateError(f"{self.path}: card {card} is busy 0 to 100 percent of the time, not {busy}")
        with self._map.locked(card):
            self._map.halves[_word(card) * 2 + _BUSY] = busy

    def exit(self) -> None:
        """Give back all this process has, and its slots."""
        for card in list(self._rows):
            with self._map.locked(card):
                if self._owns(card):
                    self._clear(self._rows[card])
                    self._recount(card)
        self._reset()

    def close(self) -> None:
        """`exit`, and forget the file. It stays."""
        self.exit()
        self._map.leave(self)
        self._map.close()

    def fork(self, pid: int) -> StateFile:
        """The hold of a simulated child: nothing is charged to it and it has no slot yet."""
        return StateFile(self.path, pid=pid, alive=self._alive)

    # ---- looking

    def mem_info(self, card: int) -> tuple[int, int] | None:
        """(free, total) of a card as its processes see it, in bytes, or None: it is not limited.

        Raises:
            StateError: no such card.
        """
        _check_card(self.path, card)
        limit = self.limits[card]
        return (max(0, limit - self.used(card)), limit) if limit else None

    def used(self, card: int) -> int:
        """Bytes that all processes together have on a card."""
        _check_card(self.path, card)
        with self._map.locked(card):
            return sum(used for _, pid, used in self._slots(card) if pid)

    def sm_limit(self, card: int) -> int:
        """Percent of a card's compute; 0 and 100: not limited."""
        _check_card(self.path, card)
        return int(self._map.halves[_word(card) * 2 + _SM])

    def sweep(self, card: int) -> dict[int, int]:
        """Release what dead processes had on a card: bytes by pid. Of several sweepers one gets each."""
        _check_card(self.path, card)
        with self._map.locked(card):
            found = self._sweep(card)
            self._recount(card)
        return found

    # ---- with the card's lock held; a row is named by its first 64-bit word

    def _slots(self, card: int) -> list[tuple[int, int, int]]:
        """(row, pid, bytes) of every slot."""
        first = _word(card) + _FIRST
        words, halves = self._map.words, self._map.halves
        rows = range(first, first + PROCESSES * _STRIDE, _STRIDE)
        return [(row, halves[row * 2], words[row + 1]) for row in rows]

    def _recount(self, card: int) -> int:
        """Write the card's sum anew, last of all, and tell it. A sum without room counts as full."""
        total = min(_MOST, sum(used for _, pid, used in self._slots(card) if pid))
        self._map.words[_word(card) + _STORED] = total
        return total

    def _sweep(self, card: int) -> dict[int, int]:
        found: dict[int, int] = {}
        for row, pid, used in self._slots(card):
            if pid and pid != self.pid and not self._alive(pid):
                self._clear(row)
                found[pid] = found.get(pid, 0) + used
        return found

    def _clear(self, row: int) -> None:
        """Empty a slot. Its pid goes last: until then the next sweeper finds it dead."""
        self._map.words[row + 1] = 0
        self._map.halves[row * 2] = 0

    def _store(self, card: int) -> None:
        """Write what this process has on a card: its slot first, then the sum."""
        self._map.words[self._rows[card] + 1] = self._held[card]
        self._recount(card)

    def _owns(self, card: int) -> bool:
        row = self._rows.get(card)
        return row is not None and self._map.halves[row * 2] == self.pid

    def _claim(self, card: int) -> None:
        """Have a slot of the card, and in it what this process has there: nothing, when it is new or forked.

        Raises:
            RefusedError: living processes have all of them. Never a reason to go without a limit.
            StateError: another `StateFile` counts for this process; each would overwrite the other.
        """
        if self._owns(card):
            return
        for user in self._map.users:
            if isinstance(user, StateFile) and user is not self and user.pid == self.pid and user._owns(card):
                raise StateError(
                    f"{self.path}: another StateFile counts for process {self.pid}: use that one"
                )
        row = self._row(card)
        if row is None and self._sweep(card):
            row = self._row(card)
        if row is None:
            raise RefusedError(
                f"{self.path}: card {card}: all {PROCESSES} process slots are taken; try again later"
            )
        self._clear(row)
        self._map.words[row + 1] = self._held[card]
        self._map.halves[row * 2] = self.pid
        self._rows[card] = row

    def _row(self, card: int) -> int | None:
        """A slot with our pid, which is a predecessor's, else an empty one."""
        pids = {pid: row for row, pid, _ in reversed(self._slots(card))}
        return pids.get(self.pid, pids.get(0))

    def _reset(self) -> None:
        self._charges: dict[int, Charge] = {}
        self._held = [0] * CARDS
        self._rows: dict[int, int] = {}
        self._numbers = itertools.count(1)

    def forked(self) -> None:
        """In a forked child: the parent's charges stay with the parent."""
        if not self._simulated:
            self.pid = os.getpid()
            self._reset()


def _cards(limits: tuple[int, ...], sm: tuple[int, ...]) -> tuple[Card, ...]:
    if not 1 <= len(limits) <= CARDS:
        raise StateError(f"a container has 1 to {CARDS} cards, not {len(limits)}")
    if any(not 0 <= limit <= _MOST for limit in limits):
        raise StateError(f"{limits}: a quota is a number of bytes below 2^64")
    if len(sm) != len(limits) or any(not 0 <= percent <= 100 for percent in sm):
        raise StateError(f"{sm}: a percentage from 0 to 100 is wanted for each of {len(limits)} cards")
    return tuple(Card(quota=limit, sm_limit=percent) for limit, percent in zip(limits, sm, strict=True))


def _check_card(path: str, card: int) -> None:
    if not 0 <= card < CARDS:
        raise StateError(f"{path}: no card {card}: a state file has cards 0 to {CARDS - 1}")


def _word(card: int) -> int:
    """A card's first 64-bit word."""
    return layout.base(card) // 8
