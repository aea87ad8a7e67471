"""The ledger of NPUs (performance.md: model against a bare dict): histories with it, and its calls alone."""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpusim.ascend.ledger import Ledger
from gpusim.ascend.ledgerview import read_file
from tests.bench.guards import Guard, best
from tests.properties.ledger_driver import Driver, Model, Ours, agree

HISTORIES, PART = 500, 100
SHARED = "/dev/shm" if os.path.isdir("/dev/shm") else None


@pytest.fixture
def directory() -> Iterator[Path]:
    """In memory, where containers would have it."""
    with tempfile.TemporaryDirectory(dir=SHARED) as made:
        yield Path(made)


def test_histories_of_60_steps_with_ledger_and_recount(guard: Guard, directory: Path) -> None:
    logging.getLogger("gpusim.ascend.ledger").setLevel(logging.ERROR)  # warnings of unknown frees cost more
    path = str(directory / "ledger")

    def seconds(first: int, *, ledger: bool) -> float:
        spent = 0.0
        for seed in range(first, first + PART):
            begin = time.process_time()
            model = Model()
            ours = [Ours(path)] if ledger else []
            Driver(seed, model, *ours).run()
            spent += time.process_time() - begin
            for one in ours:
                agree(model, one)
                one.close()
                os.unlink(path)
        return spent

    firsts = range(0, HISTORIES, PART)  # in turns, so that noise meets both
    measured = [(seconds(first, ledger=True), seconds(first, ledger=False)) for first in firsts]
    ours, floor = min(measured, key=lambda pair: pair[0] / pair[1])
    guard.noted(ours, floor=floor, limit=3, floor_name="the same histories of a bare dict model")


def test_a_reading_of_a_ledger_of_64_processes(guard: Guard, directory: Path) -> None:
    path = directory / "ledger"
    ledgers = [Ledger(str(path), (1 << 40,) * 8, pid=1 + n, alive=lambda *_: True) for n in range(64)]
    for ledger in ledgers:
        ledger.commit(ledger.reserve(1 << 20), "a")
    floor = best(path.read_bytes, number=200)
    guard(lambda: read_file(str(path)), floor=floor, limit=120, floor_name="reading its bytes", number=20)
    for ledger in ledgers:
        ledger._map.close()
