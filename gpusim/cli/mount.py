"""The command that mounts a node as a file system, for programs that only know real files."""

from __future__ import annotations

import argparse
from typing import Any

from gpusim import hosts
from gpusim.stdout import say


def add_commands(commands: Any) -> None:
    """``mount``."""
    command = commands.add_parser(
        "mount",
        help="mount a node as a live file system (FUSE)",
        description="Mount /sys, /dev, /proc and the rest of the node on DIR, live: writing a mode switches "
        "the GPU, a refusal is the kernel's errno. Device nodes are regular files there; holding one open "
        "holds the device. Ends with Ctrl-C, SIGTERM or umount DIR. Needs /dev/fuse, libfuse and mfusepy.",
        examples="  gpusim mount mi355x/qpx-6.14 /mnt\n  gpusim mount unix:/tmp/node.sock /mnt",
    )
    command.add_argument(
        "node", metavar="FIXTURE", help="a fixture (name or path), or unix:SOCKET of a served machine"
    )
    command.add_argument("directory", metavar="DIR", help="an empty directory")
    command.set_defaults(run=_mount)


def _mount(args: argparse.Namespace) -> int:
    from gpusim.export import fuse

    with hosts.simulated(args.node) as machine:
        fuse.mount(machine, args.directory, ready=lambda: say(f"mounted {args.node} on {args.directory}"))
    return 0
