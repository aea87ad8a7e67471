"""Commands that change a served machine: switch a GPU, hold devices as a process, pull and plug GPUs.

A refusal is the kernel's own errno, with what to do about it in words.
"""

from __future__ import annotations

import argparse
import errno
import json
import shlex
import signal
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gpusim import hosts
from gpusim.errors import GpusimError
from gpusim.process import DeviceRules, Process
from gpusim.stdout import say

if TYPE_CHECKING:
    from gpusim.remote import RemoteMachine

_HOST = "unix:SOCKET of a served machine"
_GPU = "PCI address (0000:75:00.0), card (card1), or place in probe order (0)"


def add_commands(commands: Any) -> None:
    """``set``, ``open``, ``close``, ``remove`` and ``add``."""
    command = commands.add_parser(
        "set",
        help="switch a GPU's compute partition mode",
        description="Write a mode to the GPU's current_compute_partition, as root would.",
        examples="  gpusim set unix:/tmp/node.sock mode card1 QPX\n"
        "  gpusim set unix:/tmp/node.sock mode 0 spx",
    )
    command.add_argument("host", metavar="HOST", help=_HOST)
    command.add_argument("what", metavar="mode", choices=["mode"], help="what to set: mode")
    command.add_argument("gpu", metavar="GPU", help=_GPU)
    command.add_argument("mode", metavar="MODE", help="SPX, DPX, TPX, QPX or CPX, in any case")
    command.set_defaults(run=_run, action=_set)

    command = commands.add_parser(
        "open",
        help="open a file or device as a process of the node, which then holds it",
        description="Start a process on the node that opens PATH and keeps it open: until `gpusim close`, or "
        "with --hold until this command is interrupted. Holding /dev/kfd makes the node busy for switches. "
        "The process lives on the node: a command that is killed (SIGKILL) cannot end it, and `gpusim close` "
        "with the PID that `gpusim show` prints still does.",
        examples="  gpusim open unix:/tmp/node.sock /dev/kfd --hold\n"
        "  gpusim open unix:/tmp/node.sock /dev/dri/renderD128 --device 'c 226:128 rw'",
    )
    command.add_argument("host", metavar="HOST", help=_HOST)
    command.add_argument("path", metavar="PATH", help="path on the node, such as /dev/kfd")
    command.add_argument("--hold", action="store_true", help="stay, and end the process on Ctrl-C")
    command.add_argument("--uid", type=_uid, default=0, help="user of the process (default: 0, root)")
    command.add_argument(
        "--device",
        action="append",
        metavar="RULE",
        help="put the process into a device cgroup that allows RULE ('c 226:128 rw'); may be repeated; "
        "without it everything is allowed",
    )
    command.set_defaults(run=_run, action=_open)

    command = commands.add_parser(
        "close",
        help="end a process of the node; what it holds is closed",
        description="End a process that `gpusim open` started.",
        examples="  gpusim close unix:/tmp/node.sock 1000",
    )
    command.add_argument("host", metavar="HOST", help=_HOST)
    command.add_argument("pid", metavar="PID", type=int, help="as `gpusim open` and `gpusim show` print it")
    command.set_defaults(run=_run, action=_close)

    for name, action, summary in (
        ("remove", _remove, "pull a GPU out of the node, whoever uses it"),
        ("add", _add, "plug a removed GPU in again; it probes with the numbers that are free now"),
    ):
        command = commands.add_parser(
            name,
            help=summary,
            description=summary[0].upper() + summary[1:] + ".",
            examples=f"  gpusim {name} unix:/tmp/node.sock 0000:75:00.0",
        )
        command.add_argument("host", metavar="HOST", help=_HOST)
        command.add_argument("gpu", metavar="GPU", help=_GPU)
        command.set_defaults(run=_run, action=action)

    for name in ("set", "open", "close", "remove", "add"):
        commands.choices[name].add_argument("--json", action="store_true", help="print the result as JSON")


def _uid(text: str) -> int:
    """A user id of 32 bits; the highest means nobody at all (setuid(2))."""
    if not (text.isascii() and text.isdecimal() and len(text) <= 10 and int(text) < 0xFFFFFFFF):
        raise argparse.ArgumentTypeError(f"{text!r} is no user id: 0 to 4294967294")
    return int(text)


def _run(args: argparse.Namespace) -> int:
    with hosts.connected(args.host) as machine:
        return int(args.action(machine, args))


def find_gpu(state: Mapping[str, Any], asked: str) -> Mapping[str, Any]:
    """The GPU a person means, from `Machine.describe()`.

    Raises:
        GpusimError: none, with those there are.
    """
    gpus: list[Mapping[str, Any]] = state["gpus"]
    for index, gpu in enumerate(gpus):
        cards = [f"card{part['card']}" for part in gpu["partitions"]]
        if asked.lower() in (gpu["bdf"], str(index), *cards):
            return gpu
    known = ", ".join(
        f"{index} = {gpu['bdf']}" + (f" = card{gpu['partitions'][0]['card']}" if gpu["partitions"] else "")
        for index, gpu in enumerate(gpus)
    )
    raise GpusimError(f"no GPU {asked!r} on this node; there are: {known or 'none'}")


def _set(machine: RemoteMachine, args: argparse.Namespace) -> int:
    gpu = find_gpu(machine.describe(), args.gpu)
    try:
        machine.switch(gpu["bdf"], args.mode)
    except OSError as error:
        remedy = _remedy(machine, args.host, gpu, error)
        mode = args.mode if args.mode.isalnum() else repr(args.mode)
        raise GpusimError(f"{gpu['bdf']}: mode {mode} refused: {named(error)}; {remedy}") from error
    state = machine.describe()
    now = find_gpu(state, gpu["bdf"])
    nodes = [node["node"] for node in state["kfd"]["gpu_nodes"] if node["gpu"] == gpu["bdf"]]
    listed = (
        f"KFD nodes {nodes[0]} to {nodes[-1]}" if len(nodes) > 1 else f"KFD node {nodes[0]}" if nodes else ""
    )
    return _done(
        args,
        f"{gpu['bdf']}: {now['mode']} (was {gpu['mode']}); {listed or 'no KFD node'}",
        {"gpu": gpu["bdf"], "was": gpu["mode"], "mode": now["mode"], "kfd_nodes": nodes},
    )


def named(error: OSError) -> str:
    """An errno for people: ``EBUSY (Device or resource busy)``."""
    return f"{errno.errorcode.get(error.errno or 0, 'error')} ({error.strerror})"


def _remedy(machine: RemoteMachine, host: str, gpu: Mapping[str, Any], error: OSError) -> str:
    """What to do about a refused switch; the reasons are kernel.md 2.1's."""
    if error.errno == errno.EBUSY:
        return _busy(machine, host)
    if error.errno == errno.EINVAL:
        return f"in NPS{gpu['nps']} this GPU offers {_offered(machine, gpu['bdf'])}"
    if error.errno == errno.ENOENT and not gpu["present"]:
        return f"the GPU was removed: `gpusim add {shlex.quote(host)} {gpu['bdf']}` puts it back"
    return _REMEDIES.get(error.errno or 0, "the node's kernel gives no other reason")


_REMEDIES = {
    errno.EACCES: "the file is read-only: a virtual function cannot switch itself, its host does",
    errno.ENOENT: "no driver holds the GPU, or it is of a kind that cannot be partitioned",
    errno.EPERM: "the GPU is in reset: try again later",
    errno.EIO: "the driver could not start again in the new mode",
}


def _busy(machine: RemoteMachine, host: str) -> str:
    holders = [
        str(process["pid"])
        for process in machine.describe()["processes"]
        if any(handle["path"] == "/dev/kfd" for handle in process["open"])
    ]
    if not holders:
        return "a process uses KFD: end it first"
    close = f"`gpusim close {shlex.quote(host)} {holders[0]}`"
    if len(holders) == 1:
        return f"process {holders[0]} holds /dev/kfd: end it first ({close})"
    who = f"{', '.join(holders[:-1])} and {holders[-1]}"
    return f"processes {who} hold /dev/kfd: end them first ({close}, …)"


def _offered(machine: RemoteMachine, bdf: str) -> str:
    try:
        path = f"/sys/bus/pci/devices/{bdf}/available_compute_partition"
        return machine.read(path).decode().strip()
    except OSError:
        return "nothing"


def _open(machine: RemoteMachine, args: argparse.Namespace) -> int:
    rules = DeviceRules.parse(*args.device) if args.device is not None else None
    process = machine.process(rules, args.uid)
    try:
        handle = machine.open(args.path, process)
        remedy = (
            "Ctrl-C ends it"
            if args.hold
            else f"`gpusim close {shlex.quote(args.host)} {process.pid}` ends it"
        )
        result = {"pid": process.pid, "path": handle.path, "handle": handle.number}
        _done(args, f"process {process.pid} holds {handle.path}; {remedy}", result)
        while args.hold:
            signal.pause()
    except OSError as error:
        machine.exit(process)
        if isinstance(error, BrokenPipeError):
            raise
        raise GpusimError(f"{args.path}: cannot be opened: {named(error)}") from error
    except KeyboardInterrupt:
        # Without this command the process has no owner.
        machine.exit(process)
        if not args.hold:
            raise
    return 0


def _close(machine: RemoteMachine, args: argparse.Namespace) -> int:
    machine.exit(Process(args.pid))
    return _done(args, f"process {args.pid} ended", {"pid": args.pid})


def _remove(machine: RemoteMachine, args: argparse.Namespace) -> int:
    bdf = find_gpu(machine.describe(), args.gpu)["bdf"]
    machine.remove(bdf)
    return _done(args, f"{bdf}: removed", {"gpu": bdf, "present": False})


def _add(machine: RemoteMachine, args: argparse.Namespace) -> int:
    bdf = find_gpu(machine.describe(), args.gpu)["bdf"]
    machine.add(bdf)
    return _done(args, f"{bdf}: added", {"gpu": bdf, "present": True})


def _done(args: argparse.Namespace, words: str, result: Mapping[str, Any]) -> int:
    say(json.dumps(result) if args.json else words)
    return 0
