"""`gpusim unpack FILE DIR`: a packed capture as plain files."""

from __future__ import annotations

import argparse

from gpusim.snapshots import directory, pack
from gpusim.stdout import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's words."""
    parser.add_argument("file", metavar="FILE", help="a packed capture")
    parser.add_argument("directory", metavar="DIR", help="a new or empty directory")


def run(args: argparse.Namespace) -> int:
    """Load, write, say.

    Raises:
        GpusimError: FILE is no pack, is damaged or of a newer version; DIR is not empty.
        OSError: DIR cannot be written.
    """
    recorded = pack.read(args.file)
    directory.write(recorded, args.directory)
    say(f"{args.directory}: {sum(1 for _ in recorded.entries())} entries")
    return 0
