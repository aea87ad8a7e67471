"""Commands about captures: record a node, pack a directory, unpack a file.

Their flags and running are imported when asked for.
"""

from __future__ import annotations

from typing import Any


def add_commands(commands: Any) -> None:
    """``record``, ``pack`` and ``unpack``."""
    commands.add_parser(
        "record",
        help="record a real node into one file, without identifiers",
        description="Read what device plugins read of this node (KFD, PCI, DRM, cgroups, versions, the names "
        "in /dev) into one file or a directory. Nothing is written to the node and no device is opened; a "
        "file that does not answer within two seconds is given up. bin/build-recorder makes the same command "
        "as one file for nodes where nothing is installed.",
        examples="  gpusim record node-a.gpusim\n"
        "  gpusim record node-a.gpusim --root /host --run npu-smi\n"
        "  amd-device-plugin -root node-a.gpusim -dry_run",
        module="gpusim.snapshots.recorder",
    )
    commands.add_parser(
        "pack",
        help="pack a directory into one file",
        description="Pack an unpacked capture, a rendered node or any directory that holds a node's tree.",
        examples="  gpusim render mi355x/qpx-6.14 /tmp/node\n  gpusim pack /tmp/node qpx.gpusim --scrub",
        module="gpusim.cli.pack",
    )
    commands.add_parser(
        "unpack",
        help="unpack a packed capture into a directory",
        description="Write a packed capture as plain files; what plain files cannot hold (errnos, device "
        "numbers, links that would lead outside) stands beside them in .gpusim-capture.json.",
        examples="  gpusim unpack node-a.gpusim /tmp/node-a",
        module="gpusim.cli.unpack",
    )
