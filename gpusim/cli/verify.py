"""``gpusim verify``: how well the rules describe a capture."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from gpusim.cli.diff import shown
from gpusim.cli.infer import WHERE
from gpusim.stdout import say

if TYPE_CHECKING:
    from gpusim.snapshots.verify import Area, Verdict


def add_commands(commands: Any) -> None:
    """``verify``."""
    command = commands.add_parser(
        "verify",
        help="infer a capture's fixture, generate the node, and score the rules",
        description="Infer the fixture of a capture, generate the node from it, and compare every file the "
        "capture has: equal byte for byte, explained (a reading, or what no rule can give), or different. "
        "Exit 1 when a file differs.",
        examples="  gpusim verify ./capture\n  gpusim verify node.pack --json",
    )
    command.add_argument("snapshot", metavar="SNAPSHOT", help=WHERE)
    command.add_argument("--json", action="store_true", help="print the verdict as one JSON object")
    command.set_defaults(run=_verify)


def _verify(args: argparse.Namespace) -> int:
    from gpusim.snapshots.infer import node_name
    from gpusim.snapshots.sources import opened
    from gpusim.snapshots.verify import verify

    with opened(args.snapshot) as source:
        verdict = verify(source, node_name(args.snapshot))
    if args.json:
        say(json.dumps(as_json(verdict), indent=2))
    else:
        _print(verdict)
    return int(bool(verdict.different))


def percent(area: Area) -> str:
    """The score; a dash where there is nothing that rules should give. Only a full score reads 100 %."""
    if not area.equal + area.different:
        return "–"
    return "100 %" if not area.different else f"{min(area.score, 0.9999):.2%}".replace("%", " %")


def as_json(verdict: Verdict) -> dict[str, object]:
    """The whole verdict."""

    def sums(area: Area) -> dict[str, object]:
        return {
            "equal": area.equal,
            "explained": area.explained,
            "different": area.different,
            "score": area.score,
        }

    return {
        **sums(verdict.total),
        "areas": {area.name: sums(area) for area in verdict.areas},
        "reasons": verdict.explained,
        "files": [
            {
                "path": f.path,
                "state": f.state.value,
                "lines": [{"field": c.field, "captured": c.a, "made": c.b} for c in f.changes],
            }
            for f in verdict.different
        ],
        "notes": list(verdict.inferred.notes),
        "fixture": verdict.inferred.text(),
    }


def _print(verdict: Verdict) -> None:
    width = max(len(area.name) for area in (*verdict.areas, verdict.total))
    say(f"{'':<{width}}  {'equal':>6}  {'explained':>9}  {'different':>9}  {'score':>8}")
    for area in (*verdict.areas, verdict.total):
        say(
            f"{area.name:<{width}}  {area.equal:>6}  {area.explained:>9}  {area.different:>9}  "
            f"{percent(area):>8}"
        )
    for why, count in verdict.explained.items():
        say(f"explained {count}: {why}")
    for finding in verdict.different:
        how = "not made" if finding.state.value == "only in A" else finding.state.value
        say(f"different: {finding.path} ({how})")
        for change in finding.changes:
            for line in shown(change):
                say(f"    {line}")
    for note in verdict.inferred.notes:
        say(f"note: {note}")
