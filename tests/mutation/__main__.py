"""`bin/mutate`: change a module in one place after the other, run its tests, and print what no test noticed.

Each mutant runs in a process forked from one that has all loaded that the change does not touch. The exit
status is 0 only when the survivors are those that docs/mutation.md explains, no more and no fewer, and at
least 90 % of each module's mutants were noticed.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from .mutants import Mutant, mutants
from .running import KILLED, SURVIVED, Runner

ROOT = Path(__file__).resolve().parents[2]
EXPLAINED = ROOT / "docs" / "mutation.md"
RATE = 0.9


@dataclass(frozen=True, slots=True)
class Target:
    """A module and the tests that are to notice what is wrong with it, the quickest first."""

    name: str
    file: str
    tests: tuple[str, ...]

    @property
    def module(self) -> str:
        return self.file.removesuffix(".py").replace("/", ".").removesuffix(".__init__")


TARGETS = (
    Target(
        "cumask",
        "devplugin/amd/cumask.py",
        ("tests/devplugin/amd/test_cumask.py", "tests/properties/test_cumask.py"),
    ),
    Target(
        "codec",
        "devplugin/hami/codec.py",
        (
            "tests/devplugin/test_hami_codec.py",
            "tests/devplugin/test_hami_claim.py",
            "tests/properties/test_codec.py",
        ),
    ),
    Target(
        "shares",
        "devplugin/amd/taken.py",
        (
            "tests/devplugin/amd/test_taken.py",
            "tests/devplugin/amd/test_scaling.py",
            "tests/devplugin/amd/test_allocation.py",
            "tests/properties/test_allocation_histories.py",
        ),
    ),
    Target(
        "devices",
        "devplugin/amd/devices.py",
        (
            "tests/devplugin/amd/test_devices.py",
            "tests/devplugin/amd/test_scaling.py",
            "tests/devplugin/amd/test_registration.py",
            "tests/devplugin/amd/test_offer.py",
            "tests/devplugin/amd/test_allocation.py",
            "tests/devplugin/amd/test_taken.py",
        ),
    ),
    Target(
        "dmem",
        "devplugin/dmem.py",
        (
            "tests/devplugin/test_dmem_usable.py",
            "tests/devplugin/test_dmem_caps.py",
            "tests/devplugin/amd/test_caps.py",
        ),
    ),
    Target(
        "caps",
        "devplugin/amd/caps.py",
        (
            "tests/devplugin/amd/test_caps.py",
            "tests/devplugin/test_dmem_usable.py",
            "tests/devplugin/amd/test_hooking.py",
        ),
    ),
    Target(
        "kernel-dmem",
        "gpusim/dmem.py",
        (
            "tests/gpusim/test_dmem_controller.py",
            "tests/gpusim/test_dmem.py",
            "tests/properties/test_dmem_histories.py",
        ),
    ),
    Target(
        "kernel-dmem-text",
        "gpusim/dmem_parse.py",
        (
            "tests/gpusim/test_dmem_parse.py",
            "tests/gpusim/test_dmem_controller.py",
            "tests/gpusim/test_dmem.py",
            "tests/properties/test_dmem_histories.py",
        ),
    ),
)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="bin/mutate",
        allow_abbrev=False,
        description="Change CU masks, shares, dmem and codec in one place after the other, run their tests "
        "on each change, and print the survivors. Exit 0: they are those that docs/mutation.md explains, and "
        "of each module at least 90 % were noticed; 1: not; 2: usage.",
    )
    names = [target.name for target in TARGETS]
    parser.add_argument("target", nargs="*", help=f"one of {', '.join(names)} (default: all)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only every N-th mutant")
    parser.add_argument("--list", action="store_true", help="print the mutants and run nothing")
    args = parser.parse_args()
    if unknown := [name for name in args.target if name not in names]:
        parser.error(f"no target {unknown[0]!r}: one of {', '.join(names)}")
    if args.jobs < 1 or args.every < 1:
        parser.error("--jobs and --every start at 1")
    wanted = [target for target in TARGETS if not args.target or target.name in args.target]
    chosen = {target.name: _chosen(target, args.every) for target in wanted}
    for target in wanted:
        if not chosen[target.name]:
            parser.error(f"--every {args.every} leaves no mutant of {target.file}: nothing would be tested")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the mutants that run end, too
    known = explained(EXPLAINED.read_text())
    noticed = total = wrong = 0
    for target in wanted:
        if args.list:
            for mutant in chosen[target.name]:
                print(f"{target.file}:{mutant.line}: {mutant.key}")
            continue
        begun = time.monotonic()
        found = _outcomes(target, chosen[target.name], args.jobs)
        killed = sum(result != SURVIVED for _, result in found)
        noticed, total = noticed + killed, total + len(found)
        print(f"{target.file}: {_rate(killed, len(found))}, {time.monotonic() - begun:.0f} s")
        wrong += killed < RATE * len(found)
        for mutant, result in found:
            said = _judged(result, f"{target.file}: {mutant.key}" in known)
            if said:
                print(f"  {said} {target.file}:{mutant.line}: {mutant.key}", flush=True)
            wrong += said in WRONG
    if args.list:
        return 0
    print(f"all: {_rate(noticed, total)}; {'docs/mutation.md says so' if not wrong else 'see above'}")
    return 1 if wrong else 0


def _chosen(target: Target, every: int) -> list[Mutant]:
    return [one for one in mutants((ROOT / target.file).read_text()) if one.number % every == 0]


WRONG = ("SURVIVED", "EXPLAINED BUT NOTICED")


def _judged(result: str, told: bool) -> str:
    """What is to be said of a mutant, given whether the page explains it; empty: nothing."""
    if result == SURVIVED:
        return "explained" if told else WRONG[0]
    return WRONG[1] if told and result == KILLED else ""  # a slow one may yet survive on an idle machine


def _rate(noticed: int, total: int) -> str:
    return f"{noticed} of {total} mutants noticed ({100 * noticed / max(total, 1):.1f} %)"


def _outcomes(target: Target, chosen: list[Mutant], jobs: int) -> list[tuple[Mutant, str]]:
    """Every mutant with its outcome, in the order of the lines."""
    runner = Runner(ROOT, target.module, target.tests)
    fails = f"bin/mutate: the tests of {target.file} fail without any change: {' '.join(target.tests)}"
    if runner.unchanged() != SURVIVED:
        sys.exit(fails)
    found = sorted(runner.run(chosen, jobs), key=lambda pair: pair[0].number)
    if runner.unchanged() != SURVIVED:  # or somebody changed the checkout meanwhile
        sys.exit(f"{fails}, by now")
    return found


def explained(page: str) -> list[str]:
    """``file: key`` of every survivor that the page gives a reason for: its table rows, file by heading."""
    found, file = [], ""
    for line in page.splitlines():
        if heading := re.fullmatch(r"#+ `([^`]+\.py)`.*", line):
            file = heading[1]
        elif row := re.fullmatch(r"\| (.+?: `.*` → `.*`) \| (.+) \|", line):
            found.append(f"{file}: {row[1].replace(chr(92) + '|', '|')}")
    return found


if __name__ == "__main__":
    sys.exit(main())
