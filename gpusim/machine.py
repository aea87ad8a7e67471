"""One simulated node and what can be done to it.

`Machine` is a host seen by root: it reads, writes, lists, probes as the plugin's seam asks, and has the
actions no file offers: processes that hold devices, hot-plug, a fork. State is small and in
`gpusim.amd.driver`; the tree below is a lazy view of it, so a machine costs little until it is read.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from gpusim import hostfs
from gpusim.allocation import Allocation
from gpusim.amd.check import check
from gpusim.amd.describe import describe
from gpusim.amd.driver import Driver
from gpusim.amd.drm import MAJOR
from gpusim.amd.drmfs import NODE_MODE, RENDER_GID
from gpusim.amd.sysfs import Sysfs
from gpusim.amd.vram import Vram
from gpusim.cgroup import Cgroups
from gpusim.cgroupfs import CgroupFs
from gpusim.dmem import Copies, Dmem
from gpusim.errors import GpusimError
from gpusim.kernel import Behaviour, behaviour
from gpusim.ppuactions import PpuActions
from gpusim.process import DeviceRules, Processes
from gpusim.spec import NodeSpec
from gpusim.tree import Caller, CharDev, Dir, Node, Tree
from gpusim.view import Completed, View

if TYPE_CHECKING:
    from pyfakefs.fake_filesystem import FakeFilesystem

    from gpusim.ascend.board import Board
    from gpusim.ascend.npu import Npus
    from gpusim.ppu.board import PpuBoard

__all__ = ["Allocation", "Completed", "Machine", "View"]

_KFD_MAJORS = range(234, 255)
"""Where the kernel looks first for a dynamic character major, from the top down."""
_NULL = (1, 3)
_KERNELS = frozenset({"dev", "proc", "sys"})
"""What the kernel makes at the root; everything else there is ordinary files."""
_UDEVS = frozenset({"dri", "kfd", "null"})
"""What devtmpfs and udev make in /dev."""


class Machine(PpuActions):
    """One node, as root of the host sees it.

    Args:
        spec: what cannot follow from rules.

    Raises:
        SpecError: a node that cannot exist.
    """

    def __init__(self, spec: NodeSpec) -> None:
        check(spec)
        self.spec = spec
        self.rules: Behaviour = behaviour(spec.kernel, spec.driver)
        self.processes = Processes()
        major = _KFD_MAJORS[spec.seed % len(_KFD_MAJORS)]
        self.driver = Driver(spec, self.rules, self.processes, major)
        self.cgroups = Cgroups(self._dmem() if self.rules.dmem_controller else None)
        self.vram = Vram(self.driver, self.cgroups)
        kept = hostfs.kept()
        self._board: Board | None = _board(spec, major, kept) if spec.npus else None
        self._ppu_board: PpuBoard | None = None
        if spec.ppus:
            taken = {major} if self._board is None else {major, *self._board.majors.values()}
            self._ppu_board = _ppu_board(spec, taken, kept)
        self._build(kept, {})
        self.write("/sys/fs/cgroup/cgroup.subtree_control", _all(self.cgroups))
        self._groups.make("kubepods.slice" if spec.cgroup_driver == "systemd" else "kubepods")

    # Looking

    def describe(self) -> dict[str, object]:
        """The state of the node for people and scripts; can be written as JSON."""
        state = describe(self.driver, self.vram)
        if self._board is not None:
            state["npus"] = self._board.describe()
        if self._ppu_board is not None:
            state["ppus"] = self._ppu_board.describe()
        return state

    @property
    def npus(self) -> Npus:
        """The Ascend NPUs.

        Raises:
            GpusimError: the node has none.
        """
        if self._board is None:
            raise GpusimError(f"{self.spec.name} has no NPUs")
        return self._board.npus

    def npu_health(self, phy: int, health: str, codes: Sequence[int] = ()) -> None:
        """Let an NPU be well or ill, by its physical id and a word of `gpusim.ascend.health`.

        Raises:
            GpusimError: no such NPU, no such word.
        """
        self.npus.ail(phy, health, codes)
        self.events.append({"event": "npu health", "phy": phy, "health": health})

    def npu_smi_fails(self, form: str, output: str | None, status: int = 1) -> None:
        """Let npu-smi print `output` and end with `status` instead of working; None: let it work again.

        Args:
            form: ``info -m``, ``info -t board``, …; empty: every form that has no failure of its own.
            output: all it prints.
            status: 0 too is possible (decision 42); it is also that of every refusal from now on.

        Raises:
            GpusimError: the node has no NPUs; no such form or status.
        """
        self.npus.fail(form, output, status)

    def npu_cut(self, phy: int, template: str, container: str) -> int:
        """Make a vNPU for a container, as the container runtime does; the number of ``/dev/vdavinci<n>``.

        Raises:
            GpusimError: no such NPU or template, or not enough is left of the chip; the runtime's words.
        """
        npu = self.npus.phy(phy)
        size = npu.chip.template(template)
        if size is not None and (why := npu.shortage(size)):
            raise GpusimError(why)
        return self.npus.create(npu, template, container=container).number

    def npu_release(self, number: int, *, destroy: bool = True) -> None:
        """The container of a vNPU ended; without `destroy` the vNPU stays, idle.

        Raises:
            GpusimError: there is no such vNPU.
        """
        self.npus.use(number, None)
        if destroy:
            self.npus.destroy(number)

    def npu_smi_inside(
        self,
        argv: Sequence[str],
        phys: Sequence[int],
        *,
        vnpu: int | None = None,
        quota_mib: int | None = None,
        tracked: Sequence[int | None] = (),
    ) -> Completed:
        """npu-smi as a container runs it; the arguments are `gpusim.ascend.inside.Inside`'s.

        Raises:
            GpusimError: NPUs that are not there.
            OSError: ENOENT, another program.
        """
        from gpusim.ascend.inside import Inside

        return Inside(self.npus, tuple(phys), vnpu, quota_mib, lambda rank: tracked[rank]).run(argv)

    def run(self, argv: Sequence[str], *, timeout: float = 30.0, stdin: bytes = b"") -> Completed:
        """Run a program: npu-smi where there are NPUs and it is installed, ppu-smi where there are PPUs.

        Raises:
            OSError: ENOENT, no such program; EACCES, not executable.
        """
        if self._ppu_board is not None and argv[0].rpartition("/")[2] == self._ppu_board.ppus.tool:
            return self._ppu_board.run(self.tree, argv)
        if self._board is None:
            return super().run(argv, timeout=timeout, stdin=stdin)
        return self._board.run(self.tree, argv, stdin)

    def view(
        self,
        uid: int = 0,
        gids: Sequence[int] = (),
        devices: DeviceRules | None = None,
        readonly: bool | Sequence[str] = False,
        cgroup: str | None = None,
    ) -> View:
        """The same node for another caller.

        Args:
            uid: user; 0 is root, whom permission bits do not stop (a missing write bit in sysfs does).
            gids: its groups.
            devices: its device cgroup; None: unrestricted.
            readonly: directories mounted read-only where it lives; True means /sys and /proc/sys, as
                container runtimes mount them.
            cgroup: root of its cgroup namespace, ``/kubepods.slice/…``; None: the host's. It decides what may
                be written (kernel.md 4.3: EPERM on its own root's limits) and how /proc/<pid>/cgroup names
                a group; paths below /sys/fs/cgroup stay the host's.
        """
        mounts = ("/sys", "/proc/sys") if readonly is True else tuple(readonly or ())
        namespace = None if cgroup is None else f"/{cgroup.strip('/')}"
        return View(self.tree, Caller(uid, tuple(gids), devices, mounts, namespace))

    def install(self, fs: FakeFilesystem) -> None:
        """Fill pyfakefs with this node, lazily: `gpusim.export.pyfakefs.install` says how far it goes.

        Raises:
            GpusimError: `fs` has a /sys, /proc or /dev already.
        """
        from gpusim.export.pyfakefs import install

        install(self, fs)

    # Names only the kernel or a runtime makes

    def delegate(self, cgroup: str, uid: int, gid: int = 0) -> None:
        """Give a cgroup to a user: its directory, cgroup.procs, .threads and .subtree_control, no limit.

        Raises:
            OSError: ENOENT, no such cgroup.
        """
        self._groups.delegate(self.cgroups.find(cgroup), uid, gid)

    def mknod(self, path: str, major: int, minor: int, mode: int = 0o666) -> None:
        """Make a device node, as a container runtime does in a container's own /dev.

        It is a number, not a device: it stays when the device goes, and opening it asks the driver then.

        Raises:
            OSError: ENOENT, ENOTDIR, EEXIST, EPERM (a directory where only the kernel makes names).
        """
        where, _, name = path.rstrip("/").rpartition("/")
        directory = self.tree.node(where or "/")
        if not isinstance(directory, Dir):
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        if name in directory.kids():
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        if not directory.writable:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM), path)
        directory.add(name, self._device(CharDev(major, minor, mode)))

    # Copies

    def fork(self) -> Machine:
        """An independent machine in the same state, with the same pids, handles, files and history.

        Its processes and handles are copies: ask ``fork.processes.get(pid)`` and ``.handle(number)``.
        """
        twin = Machine.__new__(type(self))
        twin._become(self)
        return twin

    def rewind(self, saved: Machine) -> None:
        """Be in the state of a machine forked earlier, this one's or another's, which stays as it is.

        Views, processes and handles taken before belong to the state that is left: ask for them anew.
        """
        self._become(saved)

    def _become(self, other: Machine) -> None:
        """Take over a copy of another machine's state, and hang new views into a new tree."""
        spec, rules = other.spec, other.rules
        processes = other.processes.fork()
        driver = other.driver.copy(processes)
        copies = Copies()
        dmem = other.cgroups.dmem
        cgroups = other.cgroups.fork(None if dmem is None else dmem.fork(self._oops, copies), copies)
        vram = other.vram.fork(driver, cgroups, copies)
        root, dev = other.tree.root.kids(), other._dev.kids()
        kept = {name: node for name, node in root.items() if name not in _KERNELS}
        ours = _UDEVS.union(*(board.nodes() for board in other._boards))
        made = {name: node for name, node in dev.items() if name not in ours}
        self.spec, self.rules = spec, rules
        self._board = None if other._board is None else other._board.copy()
        self._ppu_board = None if other._ppu_board is None else other._ppu_board.copy()
        self.processes, self.driver, self.cgroups, self.vram = processes, driver, cgroups, vram
        self._build(hostfs.copied(kept, self._device), hostfs.copied(made, self._device))

    # The tree

    def _build(self, kept: dict[str, Node], made: dict[str, Node]) -> None:
        """Hang the views of the state into a new tree, beside ordinary files and self-made device nodes."""
        driver = self.driver
        self._sysfs = Sysfs(driver, self.vram, self._ppus_on_the_bus)
        self._groups = CgroupFs(self.cgroups, peak=self.rules.dmem_peak, moved=self._moved)
        sys = self._sysfs.root
        sys.add("fs", Dir({"cgroup": self._groups.root}))
        dev: dict[str, Node] = {**made, "null": self._device(CharDev(*_NULL, 0o666))}
        self._dev = Dir(dev, writable=True)
        if self._board is not None:
            self._board.npus.changed = partial(self._nodes_changed, self._board)
        if self._ppu_board is not None:
            self._ppu_board.ppus.changed = self._ppus_changed
        for board in self._boards:
            self._nodes_changed(board)
        self._proc = hostfs.proc(self.spec.kernel, self._majors)
        for pid in self.cgroups.pids():
            self._show(pid)
        root = {**kept, "dev": self._dev, "proc": self._proc, "sys": sys}
        super().__init__(Tree(Dir(root, writable=True)))
        self._devices_changed()

    def _devices_changed(self) -> None:
        self._sysfs.invalidate()
        if not self.driver.loaded and "kfd" in self._dev.kids():
            self._dev.drop("kfd")
        elif self.driver.loaded and "kfd" not in self._dev.kids():
            kfd = CharDev(self.driver.kfd_major, 0, NODE_MODE, gid=RENDER_GID)
            self._dev.add("kfd", self._device(kfd))
        if any(self.driver.drm_devices()):
            self._dev.add("dri", self._sysfs.dri)
        elif "dri" in self._dev.kids():
            self._dev.drop("dri")

    @property
    def _boards(self) -> Sequence[Board | PpuBoard]:
        """Of the accelerators that are no GPUs."""
        return [board for board in (self._board, self._ppu_board) if board is not None]

    def _nodes_changed(self, board: Board | PpuBoard) -> None:
        """Make a board's device nodes those of what there is on it."""
        wanted, there = board.nodes(), self._dev.kids()
        for name in [name for name in there if board.owns(name) and name not in wanted]:
            self._dev.drop(name)
        for name, node in wanted.items():
            if name not in there:
                self._dev.add(name, self._device(node))

    def _ppus_changed(self) -> None:
        """PPUs or their driver came or went."""
        assert self._ppu_board is not None
        self._nodes_changed(self._ppu_board)
        self._sysfs.invalidate()

    def _majors(self) -> list[tuple[int, str]]:
        """Character majors in /proc/devices."""
        kfd = [(self.driver.kfd_major, "kfd")] if self.driver.loaded else []
        others = [(n, name) for board in self._boards for name, n in board.majors.items() if board.drives(n)]
        return [(1, "mem"), (MAJOR, "drm"), *kfd, *others]

    def _device(self, node: CharDev) -> CharDev:
        """`node` with this machine's driver behind its number."""

        def opener(_: Caller) -> None:
            self._open_number(node.major, node.minor)

        return CharDev(node.major, node.minor, node.mode, opener, uid=node.uid, gid=node.gid)

    def _open_number(self, major: int, minor: int) -> None:
        """What open(2) of a device number answers after all permission checks (kernel.md 3 and 6).

        Raises:
            OSError: ENXIO, no driver has this major; ENODEV, the driver has no such device; ENOENT, a
                partition the current mode does not have.
        """
        if major == MAJOR:
            self.driver.open_minor(minor)
        elif major == self.driver.kfd_major and self.driver.loaded:
            if minor:
                raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        elif boards := [board for board in self._boards if board.drives(major)]:
            boards[0].open(major, minor)
        elif (major, minor) != _NULL:
            raise OSError(errno.ENXIO, os.strerror(errno.ENXIO))

    def _dmem(self) -> Dmem:
        rules = self.rules
        return Dmem(many_lines=rules.dmem_many_lines, bare_region=rules.dmem_bare_region, oops=self._oops)

    def _oops(self, why: str) -> None:
        """The real kernel would have died here (kernel.md 4.1); ours writes it down and goes on."""
        self.events.append({"event": "oops", "why": why})


def _board(spec: NodeSpec, kfd: int, kept: dict[str, Node]) -> Board:
    """The NPUs, imported where there are any."""
    from gpusim.ascend.board import Board

    return Board(spec, kfd, _KFD_MAJORS, kept)


def _ppu_board(spec: NodeSpec, taken: set[int], kept: dict[str, Node]) -> PpuBoard:
    """The PPUs, imported where there are any."""
    from gpusim.ppu.board import PpuBoard

    return PpuBoard(spec, taken, _KFD_MAJORS, kept)


def _all(cgroups: Cgroups) -> bytes:
    """What systemd and runc together hand down from the root (kernel.md 4.5)."""
    return " ".join(f"+{name}" for name in cgroups.controllers).encode()
