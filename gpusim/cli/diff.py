"""``gpusim diff``: where two nodes differ, for people and for programs.

Exit codes are those of diff(1): 0 the same, 1 different, 2 trouble.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from gpusim.cli.infer import WHERE
from gpusim.errors import GpusimError
from gpusim.stdout import is_terminal, say

if TYPE_CHECKING:
    from gpusim.snapshots.diff import Change, Finding

_SHOWN = 40
"""Names on one side, and changed files, shown to people unless they ask for more."""
_STYLES = {"only in A": "red", "only in B": "green", "changed": "yellow"}


def add_commands(commands: Any) -> None:
    """``diff``."""
    command = commands.add_parser(
        "diff",
        help="compare two nodes: fixtures, captures, served machines, this host",
        description="Compare the files of two nodes: names on one side, changed lines with their field. "
        "Identifiers may differ as long as one renaming explains all of them; counters and readings are "
        "ignored. Exit 0: the same; 1: different; 2: trouble.",
        examples="  gpusim diff mi355x/spx-6.14 mi355x/qpx-6.14 --limit 5\n"
        "  gpusim diff ./capture node.yaml\n"
        "  gpusim diff / before.pack --ignore '*/fw_version=updated today'\n"
        "  gpusim diff a.pack b.pack --only '*/topology/*' --ignore '*/properties#fw_version'",
    )
    command.add_argument("a", metavar="A", help=WHERE)
    command.add_argument("b", metavar="B", help="the same")
    command.add_argument(
        "--ignore",
        metavar="GLOB[=REASON]",
        action="append",
        default=[],
        help="leave out these files (* crosses slashes); GLOB#FIELD leaves out one line; may be repeated",
    )
    command.add_argument(
        "--only", metavar="GLOB", action="append", default=[], help="look at these alone; may be repeated"
    )
    command.add_argument("--counters", action="store_true", help="compare counters and readings too")
    command.add_argument(
        "--limit",
        type=_count,
        default=_SHOWN,
        metavar="N",
        help=f"names and changed files to show (default {_SHOWN}; 0: all)",
    )
    command.add_argument("--json", action="store_true", help="print everything as one JSON object")
    command.set_defaults(run=_diff)


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 on")
    return int(text)


def _diff(args: argparse.Namespace) -> int:
    from gpusim.snapshots import tables
    from gpusim.snapshots.diff import compare
    from gpusim.snapshots.sources import opened

    rules = (*map(tables.rule, args.ignore), *(() if args.counters else tables.COUNTERS))
    try:
        with opened(args.a) as a, opened(args.b) as b:
            findings = list(compare(a, b, ignore=rules, only=args.only))
        if not findings:
            what = (
                f"no file of either fits --only {' or '.join(args.only)}"
                if args.only
                else "neither has files"
            )
            raise GpusimError(f"nothing to compare: {what}")
    except BrokenPipeError:
        raise
    except (GpusimError, OSError) as error:
        sys.stderr.write(f"gpusim: {error}\n")
        return 2
    if args.json:
        say(json.dumps(as_json(args.a, args.b, findings), indent=2))
    else:
        for line, style in lines(findings, args.limit):
            _print(line, style)
    return int(any(finding.state.value in _STYLES for finding in findings))


def _print(line: str, style: str) -> None:
    if not style or not is_terminal():
        say(line)
        return
    from rich.console import Console
    from rich.text import Text

    Console(soft_wrap=True).print(Text(line, style=style))


def as_json(a: str, b: str, findings: Sequence[Finding]) -> dict[str, object]:
    """The whole comparison."""
    by_state: dict[str, list[Finding]] = {}
    for finding in findings:
        by_state.setdefault(finding.state.value, []).append(finding)
    return {
        "a": a,
        "b": b,
        "equal": len(by_state.get("equal", ())),
        "renamed": [f.path for f in by_state.get("renamed", ())],
        "ignored": [{"path": f.path, "reason": f.reason} for f in by_state.get("ignored", ())],
        "only_a": [f.path for f in by_state.get("only in A", ())],
        "only_b": [f.path for f in by_state.get("only in B", ())],
        "changed": [
            {"path": f.path, "lines": [{"field": c.field, "a": c.a, "b": c.b} for c in f.changes]}
            for f in by_state.get("changed", ())
        ],
    }


def lines(findings: Sequence[Finding], limit: int = 0) -> Iterator[tuple[str, str]]:
    """What people read, each line with its style: one-sided directories, changed files, the sums."""
    for side in ("only in A", "only in B"):
        names = list(one_sided([f for f in findings if f.state.value == side]))
        yield from ((f"{side}: {name}", _STYLES[side]) for name in names[: limit or None])
        if limit and len(names) > limit:
            yield f"{side}: {len(names) - limit} more names (--limit 0 shows all)", _STYLES[side]
    changed = [f for f in findings if f.state.value == "changed"]
    for finding in changed[: limit or None]:
        yield f"changed: {finding.path}", _STYLES["changed"]
        yield from ((f"    {line}", "") for change in finding.changes for line in shown(change))
    if limit and len(changed) > limit:
        yield f"changed: {len(changed) - limit} more files (--limit 0 shows all)", _STYLES["changed"]
    states = Counter(f.state.value for f in findings)
    yield ", ".join(f"{count} {state}" for state, count in states.items()), ""
    for why, count in Counter(f.reason for f in findings if f.state.value == "ignored").most_common():
        yield f"    ignored {count}: {why}", ""


def one_sided(findings: Sequence[Finding]) -> Iterator[str]:
    """The highest names that one side lacks; numbered ones beside each other make one line.

    ``nodes/{16-39}/ (4368 files)``
    """
    counts = Counter(finding.top for finding in findings)
    directories = {f.top for f in findings if f.top != f.path}
    numbered: dict[str, list[int]] = {}
    for top in counts:
        above, _, name = top.rpartition("/")
        if name.isdecimal():
            numbered.setdefault(above, []).append(int(name))
    for top, count in counts.items():
        above, _, name = top.rpartition("/")
        group = numbered.get(above, []) if name.isdecimal() else []
        if len(group) < 2:
            yield f"{top}/ ({count} file{'' if count == 1 else 's'})" if top in directories else top
        elif int(name) == min(group):
            files = sum(counts[f"{above}/{number}"] for number in group)
            yield f"{above}/{{{_runs(sorted(group))}}}/ ({files} files)"


def _runs(numbers: Sequence[int]) -> str:
    """``3,8-11``"""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ",".join("-".join(map(str, run)) for run in runs)


def shown(change: Change) -> Iterator[str]:
    """A changed line: ``simd_count: 1024 → 256``, or what was taken out and put in."""
    if change.a is not None and change.b is not None:
        yield f"{change.field}: {change.a} → {change.b}" if change.field else f"{change.a} → {change.b}"
        return
    sign, text = ("-", change.a) if change.b is None else ("+", change.b)
    yield f"{sign} {change.field} {text}" if change.field else f"{sign} {text}"
