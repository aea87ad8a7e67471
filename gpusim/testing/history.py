"""A partition history as values: steps that any node can take, and what each one answered.

A step names a GPU by its place among those the node was described with, so a history does not depend on
addresses and stays possible when the node shrinks.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from gpusim.errors import GpusimError

STEPS = (
    "switch",
    "unplug",
    "plug",
    "hold",
    "release",
    "reset",
    "hang",
    "recover",
    "unbind",
    "bind",
    "reload",
)
"""What a step can do. ``hold``: a new process opens /dev/kfd; ``release``: a process exits."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step.

    Raises:
        GpusimError: an unknown word.
    """

    do: str
    gpu: int = 0
    """Place of the GPU (for ``release``: of the process), modulo how many there are."""
    mode: str = ""
    """What is written by ``switch``: a mode, or any other text."""

    def __post_init__(self) -> None:
        if self.do not in STEPS:
            raise GpusimError(f"step {self.do!r}: one of {', '.join(STEPS)}")


def play(machine: Any, steps: Iterable[Step]) -> list[str]:
    """Take the steps on a machine, whatever they answer.

    Returns:
        For each step an empty string, the errno's name, or ``refused`` where there is nothing to do it to.
    """
    return [perform(machine, step) for step in steps]


def perform(machine: Any, step: Step) -> str:
    """Take one step; what `play` says of it."""
    try:
        _take(machine, step)
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, "OSError")
    except GpusimError:
        return "refused"
    return ""


def _take(machine: Any, step: Step) -> None:
    if step.do == "hold":
        process = machine.process()
        try:
            machine.open("/dev/kfd", process)
        except OSError:
            machine.exit(process)
            raise
    elif step.do == "release":
        alive = list(machine.processes)
        if not alive:
            raise GpusimError("no process to end")
        machine.exit(alive[step.gpu % len(alive)])
    elif step.do == "reload":
        machine.reload()
    else:
        gpus = machine.spec.gpus
        if not gpus:
            raise GpusimError("no GPU on this node")
        bdf = gpus[step.gpu % len(gpus)].bdf
        if step.do == "switch":
            machine.switch(bdf, step.mode)
        else:
            getattr(machine, {"unplug": "remove", "plug": "add"}.get(step.do, step.do))(bdf)
