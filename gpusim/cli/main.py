"""The command line of the simulator: one parser, one place where failures become words and exit codes.

Exit codes: 0 fine, 1 the thing asked for cannot be had (a refused fixture, EBUSY, nobody listens; the reason
stands on stderr), 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator, Sequence

from gpusim.cli import (
    actions,
    around,
    diff,
    faults,
    infer,
    ledger,
    mount,
    nodes,
    put,
    record,
    replay,
    run,
    top,
    verify,
)
from gpusim.cli.extras import remedy
from gpusim.cli.parser import Command
from gpusim.errors import GpusimError
from gpusim.stdout import forget

_EXAMPLES = """\
  gpusim fixtures                                        which nodes there are
  gpusim show mi355x/qpx-6.14                            GPUs, partitions, KFD nodes, minors, NUMA
  gpusim show ./mine.yaml --json                         the same for a program
  gpusim render mi355x/qpx-6.14 /tmp/node                the node as plain files, for `-root /tmp/node`
  gpusim serve mi355x/spx-6.14 --socket /tmp/node.sock   one machine for many processes
  gpusim top unix:/tmp/node.sock                         who uses which memory now, refreshed
  gpusim set unix:/tmp/node.sock mode card1 QPX          switch a GPU's compute partition mode
  gpusim open unix:/tmp/node.sock /dev/kfd --hold        be the process that makes a switch EBUSY
  gpusim remove unix:/tmp/node.sock 0000:75:00.0         pull a GPU; `gpusim add` puts it back

A FIXTURE is a name that `gpusim fixtures` lists or a path to a YAML file. A HOST is unix:SOCKET of a
served machine. A GPU is a PCI address (0000:75:00.0), a card (card1) or its place in probe order (0, 1, ...).
`gpusim COMMAND --help` says more.
"""


def parser() -> Command:
    """The whole command line."""
    whole = Command(
        prog="gpusim",
        description="A simulated accelerator node: look at it, write it out, serve it, and do things to it.",
        examples=_EXAMPLES,
    )
    commands = whole.add_subparsers(metavar="COMMAND", required=True, title="commands", parser_class=Command)
    nodes.add_commands(commands)
    mount.add_commands(commands)
    run.add_commands(commands)
    actions.add_commands(commands)
    put.add_commands(commands)
    faults.add_commands(commands)
    around.add_commands(commands)
    top.add_commands(commands)
    record.add_commands(commands)
    replay.add_commands(commands)
    infer.add_commands(commands)
    ledger.add_commands(commands)
    diff.add_commands(commands)
    verify.add_commands(commands)
    return whole


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    try:
        return _run(argv)
    except ModuleNotFoundError as error:
        said = remedy(error)
        if said is None:
            raise
        sys.stderr.write(f"{said}\n")
        return 1


def _run(argv: Sequence[str] | None) -> int:
    try:
        args = parser().parse_args(argv)
    except SystemExit as leaving:
        # argparse leaves by itself: 0 after --help, 2 after wrong usage.
        return leaving.code if isinstance(leaving.code, int) else 2
    try:
        with _ended_like_interrupted():
            return int(args.run(args))
    except BrokenPipeError:
        # The reader (`| head`) has seen enough.
        forget()
        return 0
    except KeyboardInterrupt:
        return 130
    except GpusimError as error:
        sys.stderr.write(f"gpusim: {error}\n")
        return 1
    except OSError as error:
        where = "" if error.filename is None else f"{error.filename}: "
        sys.stderr.write(f"gpusim: {where}{error.strerror or error}\n")
        return 1


@contextlib.contextmanager
def _ended_like_interrupted() -> Iterator[None]:
    """Make SIGTERM what Ctrl-C is: sockets and processes are cleaned up on the way out.

    Python allows handlers in the main thread only; a caller in another one ends its commands itself.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
