"""``gpusim infer``: the fixture that describes a capture."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from gpusim.stdout import say

WHERE = "a directory (/ is this host), a packed capture, a fixture, or unix:SOCKET"


def add_commands(commands: Any) -> None:
    """``infer``."""
    command = commands.add_parser(
        "infer",
        help="write the fixture that describes a capture",
        description="Read back from a capture what cannot follow from rules, and print it as a fixture. What "
        "had to be assumed stands in it as comments. A partial capture is enough; one without a GPU is "
        "refused.",
        examples="  gpusim infer ./capture > node.yaml\n  gpusim infer node.pack --output node.yaml\n"
        "  gpusim show node.yaml",
    )
    command.add_argument("snapshot", metavar="SNAPSHOT", help=WHERE)
    command.add_argument("--output", metavar="FILE", help="write the fixture to FILE instead of printing it")
    command.add_argument("--name", help="name of the node (default: that of the capture)")
    command.add_argument("--json", action="store_true", help='print {"fixture": ..., "notes": [...]}')
    command.set_defaults(run=_infer)


def _infer(args: argparse.Namespace) -> int:
    from gpusim.snapshots.infer import infer, node_name
    from gpusim.snapshots.sources import opened

    with opened(args.snapshot) as source:
        found = infer(source, args.name or node_name(args.snapshot))
    text = found.text()
    if args.output is not None:
        Path(args.output).write_text(text, encoding="utf-8")
    if args.json:
        say(json.dumps({"fixture": text, "notes": list(found.notes)}, indent=2))
    elif args.output is None:
        say(text.rstrip("\n"))
    else:
        gpus = len(found.spec.gpus)
        say(f"{args.output}: {gpus} GPU{'' if gpus == 1 else 's'}, {len(found.notes)} notes")
    return 0
