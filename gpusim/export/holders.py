"""Who holds a mounted node's devices: for each program of the host with one open, a process of the node.

The node's rules ask which of *its* processes has /dev/kfd open (kernel.md 2.1); a program outside is none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpusim.process import Handle, Process

if TYPE_CHECKING:
    from gpusim.machine import Machine
    from gpusim.remote import RemoteMachine


@dataclass(slots=True)
class _Holder:
    process: Process
    files: int = 0


class Holders:
    """The processes that stand for programs of the host; each lives as long as something is open."""

    def __init__(self, machine: Machine | RemoteMachine) -> None:
        self._machine = machine
        self._holders: dict[int, _Holder] = {}

    def open(self, pid: int, ids: tuple[int, tuple[int, ...]], path: str) -> Handle:
        """Open a device for the program `pid` of the host, whose user and groups are `ids`.

        Raises:
            OSError: as open(2).
        """
        holder = self._holders.get(pid)
        if holder is None:
            holder = self._holders[pid] = _Holder(self._machine.process(uid=ids[0], gids=ids[1]))
        holder.files += 1
        try:
            return self._machine.open(path, holder.process)
        except BaseException:
            self._less(pid)
            raise

    def close(self, pid: int, handle: Handle) -> None:
        """Close what `pid` opened, whoever has it now; its process ends with the last one."""
        try:
            self._machine.close(handle)
        finally:
            self._less(pid)

    def _less(self, pid: int) -> None:
        holder = self._holders[pid]
        holder.files -= 1
        if not holder.files:
            del self._holders[pid]
            self._machine.exit(holder.process)
