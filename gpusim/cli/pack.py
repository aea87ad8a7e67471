"""`gpusim pack DIR FILE`: any tree of a node into one file."""

from __future__ import annotations

import argparse
import os
import sys

from gpusim.errors import GpusimError
from gpusim.snapshots import directory, pack, scrub
from gpusim.snapshots.recorder import warning
from gpusim.stdout import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's words."""
    parser.add_argument("directory", metavar="DIR", help="a capture's or rendered node's directory")
    parser.add_argument("file", metavar="FILE", help="the packed file to write")
    parser.add_argument(
        "--scrub",
        action="store_true",
        help="replace identifiers by placeholders, as `gpusim record` does. Of host names only those are "
        "known that DIR itself says (etc/hostname, proc/sys/kernel/hostname): others stay, and so do names "
        "of one or two letters",
    )
    parser.add_argument("--force", action="store_true", help="replace FILE when it is there")


def run(args: argparse.Namespace) -> int:
    """Collect, write, say.

    Raises:
        GpusimError: FILE is there or no regular file; an identifier would stay; DIR's notes are damaged.
        OSError: DIR cannot be listed, FILE cannot be written.
    """
    if os.path.lexists(args.file) and not args.force:
        raise GpusimError(f"{args.file}: is there already; name another file, or --force to replace it")
    pack.refuse_irregular(args.file)
    recorded = directory.collect(args.directory)
    if args.scrub:
        for name in scrub.unhidden(recorded):
            sys.stderr.write(f"gpusim: warning: {warning(name)}\n")
        recorded = scrub.scrub(recorded)
    size = pack.write(recorded, args.file)
    say(f"{args.file}: {sum(1 for _ in recorded.entries())} entries, {size} bytes")
    return 0
