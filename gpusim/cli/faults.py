"""Commands that let a served machine's GPUs and driver fail: reset, hang, unbind, reload.

A refusal is the kernel's own errno, with what to do about it in words.
"""

from __future__ import annotations

import argparse
import errno
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gpusim import hosts
from gpusim.cli.actions import find_gpu, named
from gpusim.errors import GpusimError
from gpusim.stdout import say

if TYPE_CHECKING:
    from gpusim.remote import RemoteMachine

_HOST = "unix:SOCKET of a served machine"
_GPU = "PCI address (0000:75:00.0), card (card1), or place in probe order (0)"
_SOCKET = "unix:/tmp/node.sock"

_ON_GPUS = {
    "reset": "let amdgpu begin to reset a GPU: its files answer EPERM until `gpusim recover`",
    "hang": "let a GPU stop answering: sensors and open(2) fail with EIO until `gpusim recover`",
    "recover": "end a GPU's reset or hang",
    "unbind": "take a GPU from its driver; it stays on the bus",
}


def add_commands(commands: Any) -> None:
    """``reset``, ``hang``, ``recover``, ``unbind``, ``bind``, ``probe`` and ``driver``."""
    for name, summary in _ON_GPUS.items():
        command = _command(commands, name, summary, f"  gpusim {name} {_SOCKET} card1")
        command.add_argument("gpu", metavar="GPU", help=_GPU)
        command.set_defaults(act=_on_gpu, name=name)

    command = _command(
        commands,
        "bind",
        "give a GPU to a driver: amdgpu probes it, any other only holds it",
        f"  gpusim unbind {_SOCKET} 0 && gpusim bind {_SOCKET} 0 vfio-pci",
    )
    command.add_argument("gpu", metavar="GPU", help=_GPU)
    command.add_argument("driver", metavar="DRIVER", nargs="?", default="amdgpu", help="default: amdgpu")
    command.set_defaults(act=_bind)

    command = _command(
        commands,
        "probe",
        "decide whether amdgpu's next probes of a GPU fail, as with broken firmware",
        f"  gpusim probe {_SOCKET} 0 fails && gpusim driver {_SOCKET} reload",
    )
    command.add_argument("gpu", metavar="GPU", help=_GPU)
    command.add_argument("outcome", metavar="OUTCOME", choices=["fails", "works"], help="fails or works")
    command.set_defaults(act=_probe)

    command = _command(
        commands,
        "driver",
        "unload or load amdgpu; a memory mode written before holds after a reload",
        f"  gpusim driver {_SOCKET} unload",
    )
    command.add_argument(
        "what", metavar="WHAT", choices=["load", "unload", "reload"], help="load, unload or reload"
    )
    command.set_defaults(act=_driver)


def _command(commands: Any, name: str, summary: str, examples: str) -> Any:
    description = summary[0].upper() + summary[1:] + "."
    command = commands.add_parser(name, help=summary, description=description, examples=examples)
    command.add_argument("host", metavar="HOST", help=_HOST)
    command.add_argument("--json", action="store_true", help="print the result as JSON")
    command.set_defaults(run=_run)
    return command


def _run(args: argparse.Namespace) -> int:
    act: Callable[[RemoteMachine, argparse.Namespace], tuple[str, dict[str, Any]]] = args.act
    with hosts.connected(args.host) as machine:
        words, result = act(machine, args)
    say(json.dumps(result) if args.json else words)
    return 0


def _bdf(machine: RemoteMachine, args: argparse.Namespace) -> str:
    return str(find_gpu(machine.describe(), args.gpu)["bdf"])


def _state(machine: RemoteMachine, bdf: str) -> tuple[str, dict[str, Any]]:
    gpu = find_gpu(machine.describe(), bdf)
    result = {"gpu": bdf, **{key: gpu[key] for key in ("present", "driver", "resetting", "hung")}}
    words = [f"driver {gpu['driver'] or 'none'}"]
    words += [word for key, word in (("resetting", "in reset"), ("hung", "hung")) if gpu[key]]
    return f"{bdf}: {', '.join(words)}", result


def _on_gpu(machine: RemoteMachine, args: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    bdf = _bdf(machine, args)
    try:
        getattr(machine, args.name)(bdf)
    except OSError as error:
        raise _refused(f"{args.name} {bdf}", error) from error
    return _state(machine, bdf)


def _bind(machine: RemoteMachine, args: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    bdf = _bdf(machine, args)
    try:
        machine.bind(bdf, args.driver)
    except OSError as error:
        raise _refused(f"bind {bdf} to {args.driver}", error) from error
    return _state(machine, bdf)


def _probe(machine: RemoteMachine, args: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    bdf = _bdf(machine, args)
    machine.fail_probe(bdf, args.outcome == "fails")
    return f"{bdf}: amdgpu's probe {args.outcome} from now on", {"gpu": bdf, "probe": args.outcome}


def _driver(machine: RemoteMachine, args: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    try:
        getattr(machine, args.what)()
    except OSError as error:
        raise _refused(f"{args.what} amdgpu", error) from error
    state = machine.describe()
    bound = [gpu["bdf"] for gpu in state["gpus"] if gpu["driver"] == "amdgpu"]
    loaded = bool(state["loaded"])
    words = f"amdgpu is loaded and has {len(bound)} GPUs" if loaded else "amdgpu is not loaded"
    return words, {"loaded": loaded, "gpus": bound}


_REMEDIES = {
    errno.EBUSY: "a process holds a device of amdgpu, or a driver holds the GPU: end or unbind it first",
    errno.ENODEV: "no driver has it, or it is not plugged in",
    errno.ENOENT: "amdgpu is not loaded",
    errno.EEXIST: "amdgpu is loaded already",
    errno.EINVAL: "amdgpu's probe failed; `gpusim probe HOST GPU works` mends broken firmware",
}


def _refused(what: str, error: OSError) -> GpusimError:
    remedy = _REMEDIES.get(error.errno or 0, "the node's kernel gives no other reason")
    return GpusimError(f"{what}: {named(error)}; {remedy}")
