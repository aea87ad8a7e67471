"""A simulated accelerator node: a machine as an object, for tests and for tools.

>>> from gpusim import Machine, load
>>> machine = Machine(load("mi355x/qpx-6.14"))
>>> machine.read("/sys/class/kfd/kfd/topology/nodes/0/gpu_id")
b'0\\n'

Everything is imported when it is first asked for, so that ``import gpusim`` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpusim.allocation import Allocation
    from gpusim.errors import GpusimError, NoServerError, SocketInUseError
    from gpusim.fixture import BadFixture, dump, load
    from gpusim.machine import Machine
    from gpusim.process import DeviceRules, Handle, Process
    from gpusim.remote import RemoteMachine
    from gpusim.serve import Server
    from gpusim.spec import Cpus, GpuSpec, NodeSpec

__all__ = [
    "Allocation",
    "BadFixture",
    "Cpus",
    "DeviceRules",
    "GpuSpec",
    "GpusimError",
    "Handle",
    "Machine",
    "NoServerError",
    "NodeSpec",
    "Process",
    "RemoteMachine",
    "Server",
    "SocketInUseError",
    "dump",
    "load",
]

_HOMES = {
    "allocation": ("Allocation",),
    "errors": ("GpusimError", "NoServerError", "SocketInUseError"),
    "fixture": ("BadFixture", "dump", "load"),
    "machine": ("Machine",),
    "process": ("DeviceRules", "Handle", "Process"),
    "remote": ("RemoteMachine",),
    "serve": ("Server",),
    "spec": ("Cpus", "GpuSpec", "NodeSpec"),
}
_HOME = {name: f"gpusim.{module}" for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
