"""How libvnpu shares a card's compute among containers: rounds of kernel launches, one container at a time.

The numbers of a round and of the learnt kernel time are plain functions; `Card` plays managers and their
workers in virtual microseconds. What tokens are for, where the known faults are (a token taken below zero)
and all constants: ascend_ppu_hami.md B.5, environment B.2.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gpusim.ascend.runtime import LedgerError, number
from gpusim.ascend.shm import MAX_MANAGERS, MAX_WORKERS

MOST = 2_000_000
"""Tokens, and tokens before scaling, of one round."""
NO_PROGRESS_US = 5_000
POLL_US = 200
"""A manager looks this often whether its round is over, ..."""
BATON_POLL_US = 1_000
"""... and this often whether it is its turn."""
STALE_US = 1_000_000
"""A baton that nobody has touched for longer is taken over."""
MANAGER_AGE_US = 3_000_000
"""A process is this old before it may become its container's manager."""
MANAGER_TIMEOUT_US = 3_000_000
"""A manager whose heartbeat is older is succeeded."""


@dataclass(frozen=True, slots=True)
class Settings:
    """A container's share.

    Attributes:
        priority: percent of the card in fixed-share mode, else a weight.
        scale: tokens of a round for each token of the plan.
        alpha: weight of a new measurement.
        fixed_share: rest after each round, so that the share is kept even on an idle card.
    """

    priority: float = 1.0
    scale: float = 100.0
    alpha: float = 0.7
    fixed_share: bool = False

    @classmethod
    def of_environment(cls, environ: Mapping[str, str]) -> Settings:
        """What libvnpu makes of its variables; a scale that is no number is 1, not 100 (B.2)."""
        return cls(
            priority=number(environ, "NPU_PRIORITY", 1.0, 1.0),
            scale=max(0.1, number(environ, "NPU_TOKEN_SCALE", 100.0, 1.0)),
            alpha=min(0.95, max(0.05, number(environ, "NPU_AVG_ALPHA", 0.7, 0.7))),
            fixed_share=environ.get("NPU_FIXED_SHARE_RATIO", "").lower() in {"1", "true"},
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """One round, in tokens (launches) and microseconds."""

    tokens: int
    expected_us: int
    timeout_us: float
    rest_us: int

    @property
    def measuring_us(self) -> float:
        """How long the manager waits at most for its workers' reports after the round."""
        return max(500_000.0, self.timeout_us / 4 + 10_000)


def plan(settings: Settings, own_us: int, active_us: tuple[int, ...]) -> Plan:
    """The round of a container.

    Args:
        settings: its share.
        own_us: its average kernel time.
        active_us: the averages of all active managers of the card, its own included.
    """
    anchor, own = max(1, *active_us, 1), max(own_us, 1)
    weight = max(settings.priority, 0.01 if settings.fixed_share else 1.0)
    base = _clamp(-int(-weight * anchor // own), 1, MOST)
    tokens = _clamp(int(base * settings.scale), 1, MOST)
    expected = tokens * own
    percent = min(100.0, max(1.0, weight))
    rest = round((100 - percent) * anchor * settings.scale) if settings.fixed_share else 0
    return Plan(tokens, expected, 1.5 * expected + 50_000, rest)


def average(old_us: int, duration_us: int, tokens: int, alpha: float) -> int:
    """The learnt kernel time after a round; a round that measured nothing changes nothing.

    One round moves it by a factor of four at most.
    """
    if duration_us <= 0 or tokens <= 0:
        return old_us
    measured = _clamp(duration_us // tokens, max(1, old_us // 4), old_us * 4)
    return int(old_us * (1 - alpha) + measured * alpha)


def measured(reports: tuple[tuple[int, int], ...]) -> int:
    """Microseconds from the first start to the last end of the reports (start, duration) of one batch."""
    valid = [(start, start + duration) for start, duration in reports if duration > 0]
    return max(end for _, end in valid) - min(start for start, _ in valid) if valid else 0


def _clamp(value: int, low: int, high: int) -> int:
    return min(high, max(low, value))


@dataclass(slots=True)
class Tokens:
    """Launches left in a round."""

    left: int = 0

    def take(self) -> bool:
        """One, if there is one: compare and swap."""
        if self.left == 0:
            return False
        self.left -= 1
        return True

    def take_as_1_4_0(self) -> bool:
        """A plain decrement: of two that race for the last token the second wraps it (B.5, known fault)."""
        self.left = (self.left - 1) % (1 << 64)
        return True


@dataclass(slots=True)
class Manager:
    """A container at the card: its manager, and its workers as one stream of kernels.

    Attributes:
        kernel_us: how long each launch really takes; 0: it has no work.
        average_us: what has been learnt.
        used_us: time its kernels have had the card.
        rests_until: its next round does not start before.
    """

    name: str
    settings: Settings
    kernel_us: int
    workers: int = 1
    average_us: int = 500
    used_us: int = 0
    rounds: int = 0
    rests_until: int = 0
    active: bool = True
    alive: bool = True
    """False: killed. It neither works nor hands over, and stays active until somebody notices."""
    silent: bool = False
    """A worker has died within the batch: its report never comes."""


@dataclass(frozen=True, slots=True)
class Round:
    """What happened in one turn, in microseconds of the card's clock; why it ended."""

    manager: str
    start: int
    end: int
    launched: int
    ended_by: str


@dataclass
class Card:
    """One physical NPU, its ring of managers and its clock."""

    now: int = 0
    managers: list[Manager] = field(default_factory=list)
    history: list[Round] = field(default_factory=list)
    signals: int = 0
    """How often the baton was handed over."""
    _touched: int = 0
    _turn: int = 0

    def join(
        self, name: str, settings: Settings, *, kernel_us: int, workers: int = 1, average_us: int = 500
    ) -> Manager:
        """A container's manager takes a slot.

        Raises:
            LedgerError: 64 managers are there, or more than 32 workers want to report.
        """
        if sum(one.active for one in self.managers) >= MAX_MANAGERS:
            raise LedgerError(f"{name}: all {MAX_MANAGERS} manager slots of the card are taken")
        if not 1 <= workers <= MAX_WORKERS:
            raise LedgerError(f"{name}: {workers} workers; there are {MAX_WORKERS} report slots")
        made = Manager(name, settings, kernel_us, workers, average_us)
        self.managers.append(made)
        return made

    def run(self, microseconds: int) -> None:
        """Let rounds begin for this long; the last one is played to its end."""
        end = self.now + microseconds
        while self.now < end:
            owner = self._owner()
            if owner is None:
                self.now = end
            elif not owner.alive:
                # Waiters look at the baton every millisecond; the first to find it stale drops its owner.
                stale = self._touched + STALE_US
                waited = max(0, stale - self.now)
                self.now += -(-waited // BATON_POLL_US) * BATON_POLL_US + (BATON_POLL_US if not waited else 0)
                owner.active = False
                self._pass()
            else:
                self._turn_of(owner, end)

    def _owner(self) -> Manager | None:
        if not any(one.active for one in self.managers):
            return None
        while not self.managers[self._turn % len(self.managers)].active:
            self._turn += 1
        return self.managers[self._turn % len(self.managers)]

    def _pass(self) -> None:
        self._turn += 1
        self.signals += 1
        self._touched = self.now

    def _turn_of(self, owner: Manager, end: int) -> None:
        if owner.rests_until > self.now:
            # The owner rests with the baton in its hand. B.5 does not say from when; we count from the end of
            # its last round, so that the time of others is part of its rest and shares add up to 100 %.
            self.now = min(owner.rests_until, end)
            self._touched = self.now
            if owner.rests_until > self.now:
                return
        active = tuple(one.average_us for one in self.managers if one.active)
        todo = plan(owner.settings, owner.average_us, active)
        launched, spent, why = self._play(owner, todo)
        start, self.now = self.now, self.now + spent
        if owner.silent:
            self.now += _polled(math.ceil(todo.measuring_us))
        elif launched:
            # Every worker measures its own stretch of the batch; together they span all its kernels.
            reports = ((start, launched * owner.kernel_us),) * owner.workers
            owner.average_us = average(owner.average_us, measured(reports), launched, owner.settings.alpha)
        owner.used_us += launched * owner.kernel_us
        owner.rounds += 1
        owner.rests_until = self.now + todo.rest_us
        self.history.append(Round(owner.name, start, self.now, launched, why))
        self._pass()

    def _play(self, owner: Manager, todo: Plan) -> tuple[int, int, str]:
        """(launched, microseconds, what ended it): tokens, budget, no progress, or timeout."""
        if owner.kernel_us == 0:
            idle = todo.expected_us if owner.settings.fixed_share else NO_PROGRESS_US
            return 0, _polled(idle), "budget" if owner.settings.fixed_share else "no progress"
        limit, why = todo.timeout_us, "timeout"
        if owner.settings.fixed_share:
            limit, why = min(limit, todo.expected_us), "budget"
        elif owner.kernel_us > NO_PROGRESS_US:
            # A kernel that runs longer than that looks like no progress; measuring waits for its end.
            limit, why = min(limit, NO_PROGRESS_US), "no progress"
        # What is launched before the limit runs to its end.
        tokens = Tokens(todo.tokens)
        fitting = max(1, -(-int(limit) // owner.kernel_us))
        launched = sum(1 for _ in itertools.takewhile(lambda _: tokens.take(), range(fitting)))
        return launched, _polled(launched * owner.kernel_us), why if tokens.left else "tokens"


def _polled(microseconds: int) -> int:
    """When the manager, which polls, sees that it is over."""
    return -(-microseconds // POLL_US) * POLL_US


@dataclass(frozen=True, slots=True)
class Managed:
    """A container's manager fields: who manages, and when it last said so."""

    pid: int = 0
    heartbeat_us: int = 0


def claim(seen: Managed, pid: int, born_us: int, now_us: int) -> Managed:
    """What one poll of a process's supervisor leaves in the fields: compare and swap.

    A manager refreshes its heartbeat. Another process takes over when nobody manages or the heartbeat is
    older than three seconds, and when it is itself three seconds old: a short-lived child manages nothing.
    """
    if seen.pid == pid:
        return replace(seen, heartbeat_us=now_us)
    vacant = seen.pid == 0 or now_us - seen.heartbeat_us > MANAGER_TIMEOUT_US
    if vacant and now_us - born_us >= MANAGER_AGE_US:
        return Managed(pid, now_us)
    return seen
