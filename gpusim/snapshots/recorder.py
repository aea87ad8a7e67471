"""The command `gpusim record`, and all of ``gpusim-record.pyz``.

Exit codes: 0 recorded, 1 it cannot be (the reason stands on stderr), 2 wrong usage, 130 interrupted; then
nothing is left behind. Runs on Python 3.9 without anything installed.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from gpusim.errors import GpusimError
from gpusim.snapshots import directory, pack, scrub
from gpusim.snapshots.pack import Capture, Command, Kind
from gpusim.snapshots.programs import TOOLS, ask
from gpusim.snapshots.record import DirectorySource, record
from gpusim.stdout import forget, say

PROG = "gpusim-record"
QUIET = 2.0
"""Seconds after which progress is shown."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's words."""
    parser.add_argument(
        "out", metavar="OUT", help="file to write, or a directory: an empty one, or a name that ends with /"
    )
    parser.add_argument(
        "--root",
        default="/",
        metavar="DIR",
        help="where the node's files are; in a debug pod /host (default /)",
    )
    parser.add_argument(
        "--scrub",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="replace serial numbers, ids, MAC addresses and host names by placeholders (default yes)",
    )
    parser.add_argument(
        "--run",
        action="append",
        choices=sorted(TOOLS),
        default=[],
        dest="tools",
        metavar="TOOL",
        help="also record what this program says (npu-smi or ppu-smi); it opens devices. May be repeated",
    )
    parser.add_argument("--force", action="store_true", help="replace a packed file that is there")


def run(args: argparse.Namespace) -> int:
    """Record, hide identifiers, write.

    Raises:
        GpusimError: the root is no directory, OUT is taken, an identifier would stay.
        OSError: OUT cannot be written.
    """
    out: str = args.out
    as_directory = out.endswith("/") or (out != "" and Path(out).is_dir())
    _refuse_taken(out, as_directory=as_directory, force=args.force)
    root = os.path.abspath(args.root)  # noqa: PTH100  links stay as they are
    if not Path(root).is_dir():
        raise GpusimError(f"--root {args.root}: is no directory")
    progress = Progress()
    # What a rendered or unpacked tree has beside it is all that its programs will ever say.
    noted = directory.commands_beside(root)
    commands: list[Command] = [] if args.tools else list(noted)
    for tool in dict.fromkeys(args.tools):
        answers = [one for one in noted if one.argv[0] == tool] or ask(tool, root)
        if not answers:
            sys.stderr.write(f"{PROG}: warning: {tool} cannot be run here; it is left out\n")
        commands += answers
    try:
        recorded = record(
            DirectorySource(root), progress=progress.show, commands=commands, about={"recorder": PROG}
        )
    finally:
        progress.end()
    if not any(recorded.entry(path) for path in ("/sys/class/kfd", "/sys/class/drm", "/sys/bus/pci/devices")):
        raise GpusimError(
            f"--root {args.root}: has no sys/class/kfd, sys/class/drm or sys/bus/pci; no node is there"
        )
    hidden: dict[str, int] = {}
    if args.scrub:
        hidden = scrub.counts(recorded)
        hosts = _host_names(root)
        for name in scrub.unhidden(recorded, hosts):
            sys.stderr.write(f"{PROG}: warning: {warning(name)}\n")
        recorded = scrub.scrub(recorded, hosts)
    if as_directory:
        directory.write(recorded, out.rstrip("/") or "/")
    else:
        pack.write(recorded, out)
    for line in summary(recorded, hidden):
        say(line if line.startswith(" ") else f"{out}: {line}")
    return 0


def warning(name: str) -> str:
    """What to tell of a host name that stays (`scrub.unhidden`)."""
    return f"the host name {name!r} is too short, or a file's name too: it stays where it stands"


def _refuse_taken(out: str, *, as_directory: bool, force: bool) -> None:
    """Find out before the node is read, not after, that OUT cannot be written."""
    if not out:
        raise GpusimError("OUT is empty; name a file, or a directory that ends with /")
    if not as_directory and os.path.lexists(out) and not force:
        raise GpusimError(f"{out}: is there already; name another file, or --force to replace it")
    if not as_directory:
        pack.refuse_irregular(out)
    if as_directory and Path(out).is_dir() and any(Path(out).iterdir()):
        raise GpusimError(f"{out}: is not empty; name a new directory")
    parent = Path(out).parent
    if not parent.is_dir():
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), str(parent))


def summary(recorded: Capture, hidden: dict[str, int]) -> list[str]:
    """What was recorded and what was not: the first line for everybody, the others for who looks closely."""
    kinds: Counter[Kind] = Counter()
    errors: Counter[str] = Counter()
    slow: list[str] = []
    for path, entry in recorded.entries():
        kinds[entry.kind] += 1
        if entry.error:
            errors[entry.error] += 1
            if entry.error == "ETIMEDOUT":
                slow.append(path)
    first = f"{kinds[Kind.FILE]} files, {kinds[Kind.LINK]} links, {kinds[Kind.DIRECTORY]} directories"
    lines = [f"{first}, {kinds[Kind.CHARACTER]} device nodes"]
    if recorded.commands:
        lines.append(f"  answers of programs: {len(recorded.commands)}")
    if errors:
        told = ", ".join(f"{count} {name}" for name, count in sorted(errors.items()))
        lines.append(f"  not readable, kept with their errors: {told}")
    if errors["EACCES"] and os.geteuid() != 0:
        lines.append("  recorded as an ordinary user: root reads more")
    lines += [f"  no answer, given up: {path}" for path in slow]
    if hidden:
        lines.append(
            f"  replaced by placeholders: {hidden['numbers']} ids, {hidden['texts']} serial numbers, "
            f"{hidden['uuids']} UUIDs, {hidden['macs']} MAC addresses"
        )
    elif not recorded.about.get("scrubbed"):
        lines.append("  identifiers are still in it: publish nothing of it")
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """The program ``gpusim-record.pyz``; its exit code."""
    parser = argparse.ArgumentParser(
        prog=PROG,
        allow_abbrev=False,
        description="Record an accelerator node into one file: read-only, opens no device.",
        epilog="The file is a node for `amd-device-plugin -root FILE -dry_run` and `gpusim infer FILE`.",
    )
    add_arguments(parser)
    try:
        args = parser.parse_args(argv)
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return run(args)
    except BrokenPipeError:
        forget()
        return 0
    except KeyboardInterrupt:
        return 130
    except (GpusimError, OSError) as error:
        sys.stderr.write(f"{PROG}: {error}\n")
        return 1


class Progress:
    """What is shown on stderr of a recording that takes longer than `QUIET`."""

    def __init__(self) -> None:
        self._next = time.monotonic() + QUIET
        self._terminal = sys.stderr is not None and sys.stderr.isatty()
        self._shown = False

    def show(self, done: int, total: int) -> None:
        """Tell how far it is, ten times a second to a person, every five seconds to a log."""
        now = time.monotonic()
        if now < self._next or sys.stderr is None:
            return
        self._next = now + (0.1 if self._terminal else 5.0)
        self._shown = True
        text = f"recording: {done} of {total} files"
        sys.stderr.write(f"\r{text}\x1b[K" if self._terminal else f"{text}\n")
        sys.stderr.flush()

    def end(self) -> None:
        """Clear the line."""
        if self._shown and self._terminal:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def _host_names(root: str) -> list[str]:
    """Every name this node goes by."""
    names = [os.environ.get("NODE_NAME", ""), os.environ.get("HOSTNAME", ""), os.uname().nodename]
    for path in scrub.HOST_FILES:
        with contextlib.suppress(OSError):
            names.append(
                directory.slurp(f"{root.rstrip('/')}{path}", 4096).decode("utf-8", "replace").strip()
            )
    return [name for name in names if name]
