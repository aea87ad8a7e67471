"""``gpusim put``: lay a file on a served machine, as an installer or an image would.

Runtime libraries that limit memory are closed or other projects' code (decision 58), so a simulated node has
none: whoever tries slices by hand lays one, real or a stand-in, where the plugin looks for it.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from gpusim import hosts
from gpusim.cli.actions import named
from gpusim.errors import GpusimError
from gpusim.stdout import say

MOST = 64 << 20
"""Bytes: as much as a plugin reads of one file."""


def add_commands(commands: Any) -> None:
    """``put``."""
    command = commands.add_parser(
        "put",
        help="lay a file on the node: a runtime library, a configuration",
        description="Copy FILE to PATH on the node, directories on the way made, an existing file replaced.",
        examples="  gpusim put unix:/tmp/node.sock libamvgpu.so /usr/local/vgpu/libamvgpu.so\n"
        "  echo /hami-vnpu-core/libvnpu.so |\n"
        "    gpusim put unix:/tmp/node.sock - /usr/local/hami-vnpu-core-assets/ld.so.preload --mode 0644",
    )
    command.add_argument("host", metavar="HOST", help="unix:SOCKET of a served machine")
    command.add_argument("file", metavar="FILE", help="a file here; -: standard input")
    command.add_argument("path", metavar="PATH", help="absolute path on the node")
    command.add_argument("--mode", type=_mode, default=0o755, help="permission bits (default: 0755)")
    command.add_argument("--json", action="store_true", help="print the result as JSON")
    command.set_defaults(run=_run)


def _mode(text: str) -> int:
    if not (0 < len(text) <= 5 and set(text) <= set("01234567")) or int(text, 8) > 0o7777:
        raise argparse.ArgumentTypeError(f"{text!r} is no mode: octal digits, as 0644")
    return int(text, 8)


def _run(args: argparse.Namespace) -> int:
    if not args.path.startswith("/") or args.path.endswith("/"):
        raise GpusimError(f"{args.path}: name the file on the node by its absolute path")
    data = _content(args.file)
    with hosts.connected(args.host) as machine:
        try:
            machine.mkdir(args.path.rpartition("/")[0] or "/")
            machine.put(args.path, data, args.mode)
        except OSError as error:
            raise GpusimError(f"{args.path}: cannot be written: {named(error)}") from error
    result = {"path": args.path, "bytes": len(data), "mode": f"{args.mode:04o}"}
    say(json.dumps(result) if args.json else f"{args.path}: {len(data)} bytes, mode {args.mode:04o}")
    return 0


def _content(file: str) -> bytes:
    """What is to be laid.

    Raises:
        GpusimError: it cannot be read, or is larger than any file a node's tools read.
    """
    try:
        if file == "-":
            data = sys.stdin.buffer.read(MOST + 1)
        else:
            with Path(file).open("rb") as stream:
                data = stream.read(MOST + 1)
    except OSError as error:
        raise GpusimError(f"{file}: {error.strerror}") from error
    if len(data) > MOST:
        raise GpusimError(f"{file}: more than {MOST >> 20} MiB")
    return data
