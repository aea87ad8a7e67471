"""What a node's container runtimes do for a container beyond cgroups and a process.

A RuntimeClass names a handler of the node; pods without one get the default, which does nothing more. The
kubelet knows handlers by name only: what one of them does is its own business, a vendor's for instance
(ascend_ppu_hami.md A.4, A.7: RuntimeClass ``ascend``, handler ``ascend``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from gpusim.cluster.kubelet_edits import Mount
from gpusim.machine import Machine
from gpusim.remote import RemoteMachine


class Started(Protocol):
    """What a container got."""

    @property
    def devices(self) -> tuple[str, ...]:
        """Paths of device nodes on the host, which it may open under the same path."""
        ...


class ContainerRuntime(Protocol):
    """A handler of one node. It may have been restarted since a container started."""

    def start(self, container: str, environ: Mapping[str, str], mounts: Sequence[Mount] = ()) -> Started:
        """Start a container: its id, environment and mounts.

        Raises:
            GpusimError: it cannot be; the message is what the kubelet tells.
            OSError: what the machine answers.
        """
        ...

    def stop(self, container: str) -> None:
        """It ended. Fine when this handler has nothing of it."""
        ...

    def clear(self) -> None:
        """The node rebooted: no container is left."""
        ...


def installed(machine: Machine | RemoteMachine) -> dict[str, ContainerRuntime]:
    """Handlers that a node has, by name; an AMD node needs none.

    Raises:
        GpusimError, OSError: a served machine does not answer.
    """
    # A description of a machine in this process would be made for nothing.
    if not (machine.spec.npus if isinstance(machine, Machine) else "npus" in machine.describe()):
        return {}
    from gpusim.cluster.ascendruntime import HANDLER, AscendRuntime

    return {HANDLER: AscendRuntime(machine)}
