"""What processes do on a node: they start, open devices, take memory, move between cgroups, exit.

The actions of `gpusim.machine.Machine` that concern processes; state is in `gpusim.process`,
`gpusim.cgroup` and `gpusim.amd.vram`. Sources: kernel.md 2.1, 4.4, 4.5, 6.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from gpusim import hostfs
from gpusim.allocation import Allocation
from gpusim.amd.driver import Driver
from gpusim.amd.vram import Vram
from gpusim.cgroup import Cgroups
from gpusim.cgroupfs import CgroupFs
from gpusim.nodes import Caller, Dir
from gpusim.process import DeviceRules, Handle, Process, Processes
from gpusim.view import View


class Workloads(View):
    """A node's processes and what they hold; `Machine` fills in the state."""

    driver: Driver
    processes: Processes
    cgroups: Cgroups
    """Every cgroup and who is in it."""
    vram: Vram
    """Who allocated what."""
    _groups: CgroupFs
    _proc: Dir

    @property
    def events(self) -> list[dict[str, object]]:
        """What happened on the node, in order; each entry can be written as JSON."""
        return self.driver.events

    # Processes

    def process(
        self,
        devices: DeviceRules | None = None,
        uid: int = 0,
        gids: Sequence[int] = (),
        cgroup: str = "/",
    ) -> Process:
        """Start a process.

        Args:
            devices: its device cgroup's allow list; None: on the host, unrestricted.
            uid: user.
            gids: groups.
            cgroup: where it starts, as ``/kubepods.slice/…`` below /sys/fs/cgroup.

        Raises:
            OSError: ENOENT, no such cgroup; EBUSY, it hands controllers down; EOPNOTSUPP, it is no valid
                domain.
        """
        group = self.cgroups.find(cgroup)
        self.cgroups.vet(group)
        process = self.processes.spawn(uid=uid, gids=gids, devices=devices, cgroup=group.path)
        self.cgroups.enter(process.pid, group)
        self._show(process.pid)
        return process

    def move(self, process: Process, cgroup: str) -> None:
        """Write a process to a group's cgroup.procs, as root. What it was charged stays where it was.

        Raises:
            OSError: ENOENT, EBUSY, EOPNOTSUPP.
        """
        self.write(f"/sys/fs/cgroup/{cgroup.strip('/')}/cgroup.procs", f"{process.pid}\n".encode())

    def exit(self, process: Process, *, reap: bool = True) -> None:
        """End a process: everything it holds is closed, everything it allocated is free.

        Args:
            process: which.
            reap: False leaves a zombie until `reap`: in no cgroup.procs, but still in /proc.
        """
        for handle in list(process.files.values()):
            self.close(handle)
        self.processes.exit(process, reap=reap)
        self.cgroups.leave(process.pid)
        if reap:
            self._forget(process.pid)

    def reap(self, process: Process) -> None:
        """Wait for a zombie: its pid is gone.

        Raises:
            GpusimError: it is none.
        """
        self.processes.reap(process)
        self._forget(process.pid)

    def _forget(self, pid: int) -> None:
        self.cgroups.forget(pid)
        self._proc.drop(str(pid))

    def _show(self, pid: int) -> None:
        self._proc.add(str(pid), hostfs.process(lambda root: self.cgroups.proc_text(pid, root)))

    def _moved(self, pid: int) -> None:
        self.processes.get(pid).cgroup = self.cgroups.of(pid).path

    def kill(self, cgroup: str) -> None:
        """End every process in a group and below it, as a 1 in cgroup.kill does.

        Raises:
            OSError: ENOENT, no such group.
        """
        todo = [self.cgroups.find(cgroup)]
        while todo:
            group = todo.pop()
            todo.extend(group.children.values())
            for pid in list(group.pids):
                self.exit(self.processes.get(pid))

    # Open files

    def open(self, path: str, process: Process) -> Handle:
        """Open a file or device node as a process, which then holds it.

        The first /dev/kfd of a process makes its KFD context, closing the last one ends it.

        Raises:
            OSError: as open(2), for this process; for devices see `Driver.open_minor`.
        """
        opened = self.tree.open(path, Caller(process.uid, process.gids, process.devices))
        handle = self.processes.open(process, opened.path, opened.rdev, opened.release)
        self.vram.opened(process, handle)
        self.events.append({"event": "opened", "pid": process.pid, "path": opened.path})
        return handle

    def use(self, handle: Handle) -> None:
        """Do anything with an open device, such as an ioctl.

        Raises:
            OSError: EBADF, it was closed; ENODEV, its device was unplugged since.
        """
        if handle.closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), handle.path)
        if handle.number in self.vram.stale:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV), handle.path)

    def close(self, handle: Handle) -> None:
        """Close what `open` gave; memory allocated through it is free."""
        if self.processes.handle(handle.number) is handle:
            self.vram.closing(self.processes.get(handle.pid), handle)
        self.processes.close(handle)
        self.events.append({"event": "closed", "pid": handle.pid, "path": handle.path})

    # Memory

    def allocate_vram(
        self, process: Process, device: str | int, size: int, gtt_ok: bool = False
    ) -> Allocation:
        """Allocate VRAM as a process; its cgroup is charged, and stays charged wherever it moves.

        Args:
            process: has /dev/kfd or the render node open.
            device: render minor of a partition, or PCI address for partition 0.
            size: bytes; whole pages are taken.
            gtt_ok: fall back to system memory where VRAM is short.

        Raises:
            OSError: ENOMEM, out of VRAM (a dmem limit, the partition's share, the GPU); EBADF, nothing open;
                EINVAL, hidden by the device cgroup; ENODEV, unplugged or no such partition now.
            GpusimError: no such GPU.
        """
        return self.vram.allocate(process, device, size, gtt_ok=gtt_ok)

    def free(self, allocation: Allocation) -> None:
        """Give an allocation back: it is uncharged where it was charged.

        Raises:
            GpusimError: freed already.
        """
        self.vram.free(allocation)

    def evict(self, allocation: Allocation) -> None:
        """Move an allocation to system memory, as the driver does under pressure; it is uncharged.

        Raises:
            OSError: EINVAL, it is not in VRAM; ENODEV, unplugged; ENOMEM, no room in system memory.
        """
        self.vram.evict(allocation)

    def restore(self, allocation: Allocation, process: Process | None = None) -> None:
        """Move an evicted allocation back; `process` (default: its owner) triggers it and is charged.

        Raises:
            OSError: EINVAL, it is in VRAM; ENODEV, unplugged; ENOMEM, it does not fit, and stays.
        """
        self.vram.restore(allocation, process or self.processes.get(allocation.pid))

    def occupy(self, process: Process, device: str | int, cus: int) -> None:
        """Say how many CUs of a partition run a process's waves: its cu_occupancy in KFD.

        Raises:
            OSError: EINVAL, no KFD context there, or more CUs than the partition has.
        """
        self.vram.occupy(process, device, cus)
