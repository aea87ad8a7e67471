"""`bin/fuzz`: damaged input through the parsers of the table for as long as you like, or one input alone.

A seed of a row is as many inputs as the suite gives it; seeds follow each other until the time is over. A
failure prints the input and the command that does it again.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

from gpusim.testing.parsers import Survived, case, check_parser

from .running import checks
from .table import BY_NAME, ROWS, Row


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="bin/fuzz",
        allow_abbrev=False,
        description="Put damaged input through the parsers. Exit 0: each answered or refused as documented, "
        "in time, and kept no memory; 1: not; 2: usage.",
    )
    parser.add_argument("parser", nargs="*", help=f"one of {', '.join(BY_NAME)} (default: all)")
    parser.add_argument("--seconds", type=float, default=180, metavar="S", help="how long (default: 180)")
    parser.add_argument(
        "--seed", type=int, default=None, metavar="N", help="the first seed (default: by the clock)"
    )
    parser.add_argument("--number", type=int, metavar="N", help="only this input of the seed, of one parser")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes")
    args = parser.parse_args()
    if unknown := [name for name in args.parser if name not in BY_NAME]:
        parser.error(f"no parser {unknown[0]!r}: one of {', '.join(BY_NAME)}")
    rows = [BY_NAME[name] for name in args.parser] or list(ROWS)
    if args.number is not None:
        if len(rows) != 1 or args.seed is None or args.number < 0:
            parser.error("--number needs --seed and one parser")
        return _alone(rows[0], args.seed, args.number)
    if args.jobs < 1 or not args.seconds > 0:  # not a number is not above 0
        parser.error("--jobs starts at 1, --seconds above 0")
    first = int(time.time()) if args.seed is None else args.seed
    print(f"seeds from {first}, {args.seconds:g} s, {len(rows)} parsers")
    runs = failures = 0
    for name, seed, done in checks(rows, first, args.seconds, args.jobs):
        if isinstance(done, Survived):
            runs += done.runs
        else:
            failures += 1
            print(f"{name}, seed {seed}: {done}", flush=True)
    print(f"{runs} damaged inputs, {failures} failures")
    return 1 if failures else 0


def _alone(row: Row, seed: int, number: int) -> int:
    """One input, shown in full; whatever the parser raises is shown as Python shows it."""
    parser = row.parser()
    print(repr(case(parser, seed=seed, number=number)))
    done = check_parser(parser, runs=1, seed=seed, first=number)
    print(f"{'refused' if done.refused else 'taken'} in {1e3 * done.slowest:.1f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
