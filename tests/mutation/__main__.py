"""`bin/mutate`: change a module in one place after the other, run its tests, and print what no test noticed.

Each mutant runs in a process forked from one that has pytest and Hypothesis loaded. A survivor that
docs/mutation.md does not explain makes the exit status 1, as does a kill rate below 90 %.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .mutants import Mutant, mutants
from .running import KILLED, SLOW, SURVIVED, Runner

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
        ("tests/gpusim/test_dmem.py", "tests/properties/test_dmem_histories.py"),
    ),
    Target(
        "kernel-dmem-text",
        "gpusim/dmem_parse.py",
        (
            "tests/gpusim/test_dmem_parse.py",
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
        "on each change, and print the survivors. Exit 0: docs/mutation.md explains every survivor, and at "
        "least 90 % were noticed; 1: not; 2: usage.",
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
    known = set(explained(EXPLAINED.read_text())) if EXPLAINED.exists() else set()
    noticed = total = 0
    new: list[str] = []
    for target in TARGETS:
        if args.target and target.name not in args.target:
            continue
        chosen = [m for m in mutants((ROOT / target.file).read_text()) if m.number % args.every == 0]
        if args.list:
            for mutant in chosen:
                print(f"{target.file}:{mutant.line}: {mutant.key}")
            continue
        begun = time.monotonic()
        survivors = list(_survivors(target, chosen, args.jobs))
        killed = len(chosen) - len(survivors)
        noticed, total = noticed + killed, total + len(chosen)
        print(f"{target.file}: {_rate(killed, len(chosen))}, {time.monotonic() - begun:.0f} s")
        for mutant in survivors:
            told = f"{target.file}: {mutant.key}" in known
            print(f"  {'explained' if told else 'SURVIVED'} {target.file}:{mutant.line}: {mutant.key}")
            if not told:
                new.append(mutant.key)
    if args.list:
        return 0
    print(f"all: {_rate(noticed, total)}; {len(new)} survivors not explained in docs/mutation.md")
    return 0 if not new and noticed >= RATE * total else 1


def _rate(noticed: int, total: int) -> str:
    return f"{noticed} of {total} mutants noticed ({100 * noticed / max(total, 1):.1f} %)"


def _survivors(target: Target, chosen: list[Mutant], jobs: int) -> Iterator[Mutant]:
    runner = Runner(ROOT, target.module, target.tests)
    if runner.unchanged() != SURVIVED:
        sys.exit(f"bin/mutate: the tests of {target.file} fail without any change: {' '.join(target.tests)}")
    for mutant, result in runner.run(chosen, jobs):
        if result == SURVIVED:
            yield mutant
        else:
            assert result in (KILLED, SLOW)


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
