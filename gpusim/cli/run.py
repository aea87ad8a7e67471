"""The command that runs a program on a node: in its own mount namespace, with the node's /sys and /dev."""

from __future__ import annotations

import argparse
from typing import Any

from gpusim import hosts


def add_commands(commands: Any) -> None:
    """``run``."""
    command = commands.add_parser(
        "run",
        help="run a program on the node: its /sys and /dev laid over the real ones",
        description="Run CMD unmodified in a mount namespace of its own, where /sys/class/kfd, "
        "/sys/class/drm, /sys/module/amdgpu, /sys/devices, /sys/bus/pci, /sys/fs/cgroup, /dev/dri and "
        "/dev/kfd are the node's, live. Nothing of it is seen outside. The exit status is CMD's. Needs root, "
        "or user namespaces and a /dev/fuse open to this user. CPUs, disks and network stay the host's.",
        examples="  gpusim run mi355x/qpx-6.14 -- ls -l /sys/class/kfd/kfd/topology/nodes\n"
        "  gpusim run unix:/tmp/node.sock -- amd-device-plugin -root / -dry_run",
    )
    command.add_argument(
        "node", metavar="FIXTURE", help="a fixture (name or path), or unix:SOCKET of a served machine"
    )
    command.add_argument("command", metavar="CMD", nargs="+", help="after --: the program and its arguments")
    command.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    from gpusim.export import namespace

    with hosts.simulated(args.node) as machine:
        return namespace.run(machine, args.command)
