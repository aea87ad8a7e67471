"""``gpusim replay``: do again what a trace tells, and say whether every answer is the same."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from gpusim.errors import GpusimError
from gpusim.stdout import say


def add_commands(commands: Any) -> None:
    """``replay``."""
    command = commands.add_parser(
        "replay",
        help="do again what a failing test did to a node, and compare the answers",
        description="Build the node that a trace describes, let the same things go wrong, make the same "
        "calls, and compare all answers, events and the state at the end, byte for byte. Exit 0: the same; "
        "1: not.",
        examples="  gpusim replay trace.jsonl\n  gpusim replay trace.jsonl --show",
    )
    command.add_argument("trace", metavar="TRACE", help="a file of JSON lines that a recorder wrote")
    command.add_argument("--show", action="store_true", help="print every call with its answer")
    command.add_argument("--output", metavar="FILE", help="write the trace of the replay to FILE")
    command.add_argument("--json", action="store_true", help="print the result as JSON")
    command.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    from gpusim.testing.picture import clip, words
    from gpusim.testing.trace import BadTrace, replay

    try:
        text = Path(args.trace).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise GpusimError(f"{args.trace}: not UTF-8 text, so no trace") from None
    try:
        done = replay(text)
    except BadTrace as error:
        raise GpusimError(f"{args.trace}: {error}") from error
    if args.output is not None:
        Path(args.output).write_text(done.text, encoding="utf-8")
    if args.json:
        result = {"same": done.same, "calls": done.calls, "line": done.line, "was": done.was, "now": done.now}
        say(json.dumps(result))
        return 0 if done.same else 1
    if args.show:
        for line in done.text.splitlines()[1:-1]:
            say(words(json.loads(line)))
    if done.same:
        say(f"{args.trace}: {done.calls} calls, every answer the same")
        return 0
    say(
        f"{args.trace}: line {done.line} differs\n  was: {clip(done.was)}\n  now: {clip(done.now)}\n"
        "the simulator has changed since, or the trace was made on a changed machine"
    )
    return 1
