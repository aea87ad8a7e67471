"""Builds ``gpusim-record.pyz``: the recorder as one file for nodes that have Python 3.9 and nothing else.

The same sources always give the same bytes, so a published file can be checked. ``bin/build-recorder`` runs
this.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import gpusim
from gpusim.stdout import say

MODULES = (
    "__init__",
    "errors",
    "stdout",
    *(
        f"snapshots/{name}"
        for name in (
            "__init__",
            "children",
            "directory",
            "identifiers",
            "pack",
            "plan",
            "programs",
            "record",
            "recorder",
            "scrub",
            "shape",
        )
    ),
)
"""Everything the recorder imports; `tests/gpusim/test_record.py` starts it alone."""

_MAIN = """\
import sys

if sys.version_info < (3, 9):
    sys.exit("gpusim-record: needs Python 3.9 or newer, this is %d.%d" % sys.version_info[:2])

from gpusim.snapshots.recorder import main

sys.exit(main())
"""
_WHEN = (1980, 1, 1, 0, 0, 0)  # the zero of zip files


def build(out: str | os.PathLike[str]) -> int:
    """Write the archive, at once and whole; its size in bytes. OSError as writing gives it."""
    target = Path(out)
    home = Path(gpusim.__file__).parent
    descriptor, part = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(b"#!/usr/bin/env python3\n")
            with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
                archive.writestr(_entry("__main__.py"), _MAIN)
                for name in MODULES:
                    archive.writestr(_entry(f"gpusim/{name}.py"), (home / f"{name}.py").read_bytes())
        Path(part).chmod(0o755)
        Path(part).replace(target)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise
    return target.stat().st_size


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, _WHEN)
    entry.external_attr = 0o100644 << 16
    entry.compress_type = zipfile.ZIP_DEFLATED
    return entry


def main(argv: Sequence[str] | None = None) -> int:
    """``bin/build-recorder``; its exit code."""
    parser = argparse.ArgumentParser(
        prog="bin/build-recorder",
        allow_abbrev=False,
        description="Build gpusim-record.pyz: `gpusim record` in one file that needs only Python 3.9.",
    )
    parser.add_argument("out", nargs="?", default="dist/gpusim-record.pyz", metavar="FILE")
    args = parser.parse_args(argv)
    try:
        Path(args.out).parent.mkdir(parents=True, exist_ok=True)
        size = build(args.out)
    except OSError as error:
        sys.stderr.write(f"{parser.prog}: {error}\n")
        return 1
    say(f"{args.out}: {size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
