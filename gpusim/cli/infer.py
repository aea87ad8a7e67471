"""``gpusim infer``: the fixture that describes a capture."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import stat
import tempfile
from pathlib import Path
from typing import Any

from gpusim.errors import GpusimError
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
    command.add_argument("--force", action="store_true", help="replace FILE when it is there")
    command.add_argument("--name", help="name of the node (default: that of the capture)")
    command.add_argument("--json", action="store_true", help='print {"fixture": ..., "notes": [...]}')
    command.set_defaults(run=_infer)


def _infer(args: argparse.Namespace) -> int:
    from gpusim.snapshots.infer import infer, node_name
    from gpusim.snapshots.sources import opened

    if args.output is not None:
        _refuse_taken(args.output, force=args.force)
    with opened(args.snapshot) as source:
        found = infer(source, args.name or node_name(args.snapshot))
    text = found.text()
    if args.output is not None:
        _refuse_taken(args.output, force=args.force)
        _write(text, Path(args.output))
    if args.json:
        say(json.dumps({"fixture": text, "notes": list(found.notes)}, indent=2))
    elif args.output is None:
        say(text.rstrip("\n"))
    else:
        gpus = len(found.spec.gpus)
        say(f"{args.output}: {gpus} GPU{'' if gpus == 1 else 's'}, {len(found.notes)} notes")
    return 0


def _refuse_taken(output: str, *, force: bool) -> None:
    """Find out before the capture is read that FILE is taken; only a regular file is ever replaced."""
    try:
        mode = os.lstat(output).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        raise GpusimError(f"{output}: is there and no regular file; name another file")
    if not force:
        raise GpusimError(f"{output}: is there already; name another file, or --force to replace it")


def _write(text: str, target: Path) -> None:
    """Write the fixture at once and whole: an interruption leaves what was there."""
    descriptor, part = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(part).chmod(0o644)
        Path(part).replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(part).unlink()
        raise
