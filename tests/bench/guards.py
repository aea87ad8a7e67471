"""The shape of a speed guard: one measured operation, one floor measured in the same run, one ratio."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

SCALES = {"ms": 1e3, "MiB": 1 / (1 << 20)}
"""From seconds and from bytes to what is shown."""


def best(
    operation: Callable[[], Any],
    rounds: int = 7,
    number: int = 1,
    *,
    clock: Callable[[], float] = time.perf_counter,
    collected: bool = False,
) -> float:
    """Seconds of the fastest of `rounds` runs, each of `number` calls: the least disturbed one.

    Args:
        operation: what is measured.
        rounds: how often.
        number: calls in a round.
        clock: whose seconds.
        collected: whether the garbage collector runs meanwhile.
    """
    gc.collect()
    if not collected:
        gc.disable()
    try:
        times = []
        for _ in range(rounds):
            begin = clock()
            for _ in range(number):
                operation()
            times.append((clock() - begin) / number)
        return min(times)
    finally:
        gc.enable()


@dataclass
class Guard:
    """Runs an operation under pytest-benchmark and holds it to a ratio."""

    benchmark: Any

    def __call__(
        self,
        operation: Callable[[], Any],
        *,
        floor: float,
        limit: float,
        floor_name: str,
        setup: Callable[[], Any] | None = None,
        rounds: int = 7,
        number: int = 1,
    ) -> None:
        """`operation` may take at most `limit` times `floor` seconds (the fastest round counts)."""
        kwargs = {"setup": setup} if setup else {}
        self.benchmark.pedantic(
            operation, rounds=rounds, iterations=1 if setup else number, warmup_rounds=1, **kwargs
        )
        self.record(self.benchmark.stats.stats.min, floor=floor, limit=limit, floor_name=floor_name)

    def noted(self, amount: float, *, floor: float, limit: float, floor_name: str, unit: str = "ms") -> None:
        """Note a ratio of something that pytest-benchmark did not run: seconds, or with `unit` MiB bytes."""
        self.benchmark.pedantic(lambda: None, rounds=1)
        self.record(amount, floor=floor, limit=limit, floor_name=floor_name, unit=unit)

    def record(
        self, seconds: float, *, floor: float, limit: float, floor_name: str, unit: str = "ms"
    ) -> None:
        """Note a ratio measured otherwise, and hold it."""
        ratio = seconds / floor
        self.benchmark.extra_info.update(
            seconds=seconds, floor=floor, floor_name=floor_name, ratio=ratio, limit=limit, held=ratio <= limit
        )
        self.benchmark.extra_info.update(unit=unit, scale=SCALES[unit])
        assert ratio <= limit, (
            f"{seconds * SCALES[unit]:.3f} {unit} is {ratio:.2f} times {floor_name}; at most {limit} allowed"
        )
