"""Rows of the table checked in several processes, seed after seed, until the time is over."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import count
from multiprocessing import get_context

from gpusim.testing.parsers import ParserError, Survived, check_parser

from .table import BY_NAME, Row, again

Checked = tuple[str, int, Survived | str]


def checks(rows: list[Row], first: int, seconds: float, jobs: int) -> Iterator[Checked]:
    """Rows and seeds, one after the other, until the time is over; what failed is not tried again."""
    end = time.monotonic() + seconds
    todo = ((row.name, seed) for seed in count(first) for row in rows)
    broken: set[str] = set()
    going: set[Future[Checked]] = set()
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        while len(broken) < len(rows):
            while len(going) < jobs and time.monotonic() < end:
                name, seed = next(todo)
                if name not in broken:
                    going.add(pool.submit(check, name, seed))
            if not going:
                return
            ready, going = wait(going, return_when=FIRST_COMPLETED)
            for one in ready:
                name, _, done = one.result()
                if not isinstance(done, Survived):
                    broken.add(name)
                yield one.result()


def check(name: str, seed: int) -> Checked:
    """A row with one seed: what it survived, or what a person should read."""
    row = BY_NAME[name]
    try:
        return name, seed, check_parser(row.parser(), runs=row.runs, seed=seed)
    except ParserError as error:
        return name, seed, f"{error}\n{again(error)}"
