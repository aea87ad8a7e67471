"""Commands about nodes: list the fixtures, show one, write one out, serve one."""

from __future__ import annotations

import argparse
import json
import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gpusim import fixture, hosts
from gpusim.cli.show import print_state
from gpusim.errors import GpusimError
from gpusim.export.render import render
from gpusim.stdout import say

if TYPE_CHECKING:
    from gpusim.machine import Machine
    from gpusim.remote import RemoteMachine

_WHERE = "a fixture (name or path), or unix:SOCKET of a served machine"


def add_commands(commands: Any) -> None:
    """``fixtures``, ``show``, ``render`` and ``serve``."""
    command = commands.add_parser(
        "fixtures",
        help="list the nodes that come with the simulator",
        description="List the fixtures beside this checkout, each with the sentence that says what it is.",
    )
    command.add_argument("--json", action="store_true", help='print [{"name": ..., "about": ...}]')
    command.set_defaults(run=_fixtures)

    command = commands.add_parser(
        "show",
        help="show a node's GPUs, partitions, KFD nodes, minors and NUMA nodes",
        description="Show a node. A partition without a KFD node has a dash there.",
        examples="  gpusim show mi355x/cpx-6.8-bmc-63\n  gpusim show unix:/tmp/node.sock --json",
    )
    command.add_argument("node", metavar="FIXTURE", help=_WHERE)
    command.add_argument("--json", action="store_true", help="print the whole state as one JSON object")
    command.set_defaults(run=_show)

    command = commands.add_parser(
        "render",
        help="write a node's whole file tree into a directory",
        description="Write /sys, /dev, /proc and the rest below DIR, for tools that only know real files. "
        "Device nodes become empty files; attributes that cannot be read are left out and listed.",
        examples="  gpusim render mi355x/qpx-6.14 /tmp/node\n  amd-device-plugin -root /tmp/node -dry_run",
    )
    command.add_argument("node", metavar="FIXTURE", help=_WHERE)
    command.add_argument("directory", metavar="DIR", help="a new or empty directory")
    command.add_argument("--force", action="store_true", help="replace an earlier rendering in DIR")
    command.add_argument("--json", action="store_true", help="print counts and what was left out as JSON")
    command.set_defaults(run=_render)

    command = commands.add_parser(
        "serve",
        help="serve one machine on a unix socket for many processes",
        description="Serve the node until interrupted; one line on stdout says when it is ready.",
        examples="  gpusim serve mi355x/spx-6.14 --socket /tmp/node.sock\n"
        "  amd-device-plugin -simulate unix:/tmp/node.sock -dry_run",
    )
    command.add_argument(
        "fixture", metavar="FIXTURE", help="a fixture: a name `gpusim fixtures` lists, or a path"
    )
    command.add_argument(
        "--socket", required=True, metavar="S", help="path of the socket; removed at the end"
    )
    command.set_defaults(run=_serve)


def _fixtures(args: argparse.Namespace) -> int:
    listed = [{"name": name, "about": fixture.about(name)} for name in fixture.names()]
    if args.json:
        say(json.dumps(listed, indent=2))
        return 0
    width = max((len(entry["name"]) for entry in listed), default=0)
    for entry in listed:
        say(f"{entry['name']:<{width}}  {entry['about']}".rstrip())
    return 0


def _show(args: argparse.Namespace) -> int:
    with hosts.simulated(args.node) as machine:
        state = machine.describe()
    if args.json:
        say(json.dumps(state, indent=2))
    else:
        print_state(state)
    return 0


def _notes(machine: Machine | RemoteMachine) -> bytes:
    """What programs of the node say, for whoever reads the tree as ``-root``; empty when it has none."""
    from gpusim.snapshots import directory
    from gpusim.snapshots.pack import Command
    from gpusim.snapshots.programs import TOOLS, ask

    def run(argv: Sequence[str]) -> Command | None:
        try:
            done = machine.run(argv)
        except FileNotFoundError:
            return None
        return Command(tuple(argv), done.status, done.stdout, done.stderr)

    commands = [answer for tool in TOOLS for answer in ask(tool, run=run)]
    return directory.beside(commands) if commands else b""


def _render(args: argparse.Namespace) -> int:
    with hosts.simulated(args.node) as machine:
        try:
            report = render(machine, args.directory, force=args.force, notes=_notes(machine))
        except OSError as error:
            where = "" if error.filename in (None, args.directory) else f"{error.filename}: "
            raise GpusimError(
                f"{args.directory}: cannot be written: {where}{error.strerror}; "
                "name a directory of a writable file system"
            ) from error
    if args.json:
        skipped = [{"path": path, "errno": code} for path, code in report.skipped]
        counts = {key: getattr(report, key) for key in ("directories", "files", "links", "devices")}
        say(json.dumps({"directory": args.directory, **counts, "skipped": skipped}, indent=2))
        return 0
    say(
        f"{args.directory}: {report.files} files, {report.links} links, {report.directories} directories, "
        f"{report.devices} device nodes as empty files"
    )
    for path, code in report.skipped:
        say(f"left out: {path} ({code})")
    return 0


def _serve(args: argparse.Namespace) -> int:
    from gpusim.machine import Machine
    from gpusim.serve import serve

    machine = Machine(fixture.load(args.fixture))
    server = serve(machine, args.socket)
    try:
        server.start()
        say(f"serving {machine.spec.name} on {hosts.SOCKET}{args.socket}")
        while True:
            signal.pause()
    except KeyboardInterrupt:
        return 0
    finally:
        # A second Ctrl-C must not leave the socket behind.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        server.stop()
