"""One simulated node and what can be done to it.

`Machine` is a host seen by root: it reads, writes, lists, probes as the plugin's seam asks, and has the
actions no file offers: processes that hold devices, hot-plug, a fork. State is small and in
`gpusim.amd.driver`; the tree below is a lazy view of it, so a machine costs little until it is read.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass

from gpusim import hostfs
from gpusim.amd.check import check
from gpusim.amd.describe import describe
from gpusim.amd.driver import Driver
from gpusim.amd.drm import MAJOR
from gpusim.amd.drmfs import NODE_MODE, RENDER_GID
from gpusim.amd.gpu import Gpu
from gpusim.amd.sysfs import Sysfs
from gpusim.errors import GpusimError
from gpusim.kernel import Behaviour, behaviour
from gpusim.process import DeviceRules, Handle, Process, Processes
from gpusim.spec import NodeSpec
from gpusim.tree import ROOT, Caller, CharDev, Dir, Node, Stat, Tree

_KFD_MAJORS = range(234, 255)
"""Where the kernel looks first for a dynamic character major, from the top down."""
_NULL = (1, 3)
_KERNELS = frozenset({"dev", "proc", "sys"})
"""What the kernel makes at the root; everything else there is ordinary files."""
_UDEVS = frozenset({"dri", "kfd", "null"})
"""What devtmpfs and udev make in /dev."""


@dataclass(frozen=True, slots=True)
class Completed:
    """What a finished program left: its exit status and what it printed."""

    status: int
    stdout: bytes
    stderr: bytes


class View:
    """A node as one caller sees it; every method raises OSError with the errno that caller gets."""

    def __init__(self, tree: Tree, caller: Caller = ROOT) -> None:
        self.tree = tree
        self.caller = caller

    def read(self, path: str) -> bytes:
        """The whole content of a file."""
        return self.tree.read(path, self.caller)

    def write(self, path: str, data: bytes) -> int:
        """One write(2) to an existing file; the byte count."""
        return self.tree.write(path, data, self.caller)

    def list(self, path: str) -> Sequence[str]:
        """Names in a directory, sorted."""
        return self.tree.list(path, self.caller)

    def readlink(self, path: str) -> str:
        """The text of a link; EINVAL when it is none."""
        return self.tree.readlink(path, self.caller)

    def stat(self, path: str, *, follow: bool = True) -> Stat:
        """What the path leads to; with ``follow=False`` the link itself."""
        return self.tree.stat(path, self.caller, follow=follow)

    def probe(self, path: str) -> None:
        """Open a device node for reading and writing, and close it again."""
        self.tree.probe(path, self.caller)

    def put(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Write a whole new file over `path`."""
        self.tree.put(path, data, mode, self.caller)

    def mkdir(self, path: str, mode: int = 0o755) -> None:
        """Make a directory and its parents; no error when it is there."""
        self.tree.makedirs(path, mode, self.caller)

    def unlink(self, path: str) -> None:
        """Remove one file."""
        self.tree.unlink(path, self.caller)

    def copy(self, source: str, target: str, mode: int) -> None:
        """Copy a file's bytes to `target`, as `put` does."""
        self.tree.copy(source, target, mode, self.caller)

    def run(self, argv: Sequence[str], *, timeout: float = 30.0, stdin: bytes = b"") -> Completed:
        """Run a program: an AMD node has none that the plugin calls, so this is ENOENT."""
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), argv[0])


class Machine(View):
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
        self._unplugged: set[int] = set()
        major = _KFD_MAJORS[spec.seed % len(_KFD_MAJORS)]
        self.driver = Driver(spec, self.rules, self.processes, major)
        self._build(hostfs.kept(), {})

    # Looking

    @property
    def events(self) -> list[dict[str, object]]:
        """What happened on the node, in order; each entry can be written as JSON."""
        return self.driver.events

    def describe(self) -> dict[str, object]:
        """The state of the node for people and scripts; can be written as JSON."""
        return describe(self.driver)

    def view(
        self,
        uid: int = 0,
        gids: Sequence[int] = (),
        devices: DeviceRules | None = None,
        readonly: bool | Sequence[str] = False,
    ) -> View:
        """The same node for another caller.

        Args:
            uid: user; 0 is root, whom permission bits do not stop (a missing write bit in sysfs does).
            gids: its groups.
            devices: its device cgroup; None: unrestricted.
            readonly: directories mounted read-only where it lives; True means /sys and /proc/sys, as
                container runtimes mount them.
        """
        mounts = ("/sys", "/proc/sys") if readonly is True else tuple(readonly or ())
        return View(self.tree, Caller(uid, tuple(gids), devices, mounts))

    # Processes and what they hold

    def process(self, devices: DeviceRules | None = None, uid: int = 0, gids: Sequence[int] = ()) -> Process:
        """Start a process; `devices` is its device cgroup (None: on the host, unrestricted)."""
        return self.processes.spawn(uid=uid, gids=gids, devices=devices)

    def open(self, path: str, process: Process) -> Handle:
        """Open a file or device node as a process, which then holds it.

        The first /dev/kfd of a process makes its KFD context, closing the last one ends it.

        Raises:
            OSError: as open(2), for this process; for devices see `Driver.open_minor`.
        """
        opened = self.tree.open(path, Caller(process.uid, process.gids, process.devices))
        handle = self.processes.open(process, opened.path, opened.rdev, opened.release)
        self.events.append({"event": "opened", "pid": process.pid, "path": opened.path})
        return handle

    def use(self, handle: Handle) -> None:
        """Do anything with an open device, such as an ioctl.

        Raises:
            OSError: EBADF, it was closed; ENODEV, its device was unplugged since.
        """
        if handle.closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), handle.path)
        if handle.number in self._unplugged:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV), handle.path)

    def close(self, handle: Handle) -> None:
        """Close what `open` gave."""
        self.processes.close(handle)
        self.events.append({"event": "closed", "pid": handle.pid, "path": handle.path})

    def exit(self, process: Process) -> None:
        """End a process; everything it holds is closed."""
        for handle in list(process.files.values()):
            self.close(handle)
        self.processes.exit(process)

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

    # GPUs

    def gpu(self, bdf: str) -> Gpu:
        """The state of one GPU, plugged in or not.

        Raises:
            GpusimError: this node never had one at that address.
        """
        try:
            return self.driver.gpus[bdf]
        except KeyError:
            known = ", ".join(self.driver.gpus) or "none"
            raise GpusimError(f"no GPU at {bdf}; this node has {known}") from None

    def switch(self, bdf: str, mode: str) -> None:
        """Write a mode to the GPU's current_compute_partition, as root.

        Raises:
            OSError: ENOENT (no such file), EACCES (read-only file), EINVAL, EBUSY.
        """
        self.write(f"{self.gpu(bdf).home}/current_compute_partition", f"{mode}\n".encode())

    def remove(self, bdf: str) -> None:
        """Unplug a GPU, whoever uses it: their handles answer ENODEV from now on.

        Raises:
            GpusimError: it is not plugged in.
        """
        gpu = self.gpu(bdf)
        if not gpu.present:
            raise GpusimError(f"{bdf} is not plugged in")
        gone = {(MAJOR, minor) for minor in self.driver.remove(gpu)}
        for process in self.processes:
            self._unplugged.update(n for n, handle in process.files.items() if handle.rdev in gone)
        self._devices_changed()

    def add(self, bdf: str) -> None:
        """Plug a removed GPU in again: it probes with the numbers that are free now.

        Raises:
            GpusimError: it is plugged in.
        """
        gpu = self.gpu(bdf)
        if gpu.present:
            raise GpusimError(f"{bdf} is plugged in already")
        self.driver.add(gpu)
        self._devices_changed()

    def fork(self) -> Machine:
        """An independent machine in the same state, with the same pids, handles, files and history.

        Its processes and handles are copies: ask ``fork.processes.get(pid)`` and ``.handle(number)``.
        """
        twin = Machine.__new__(Machine)
        twin.spec, twin.rules = self.spec, self.rules
        twin.processes = self.processes.fork()
        twin._unplugged = self._unplugged.copy()
        twin.driver = self.driver.copy(twin.processes)
        root, dev = self.tree.root.kids(), self._dev.kids()
        kept = {name: node for name, node in root.items() if name not in _KERNELS}
        made = {name: node for name, node in dev.items() if name not in _UDEVS}
        twin._build(hostfs.copied(kept, twin._device), hostfs.copied(made, twin._device))
        return twin

    # The tree

    def _build(self, kept: dict[str, Node], made: dict[str, Node]) -> None:
        """Hang the views of the state into a new tree, beside ordinary files and self-made device nodes."""
        driver = self.driver
        self._sysfs = Sysfs(driver)
        sys = self._sysfs.root
        pods = "kubepods.slice" if self.spec.cgroup_driver == "systemd" else "kubepods"
        capacity = self._dmem_capacity if self.rules.dmem_controller else None
        sys.add("fs", Dir({"cgroup": hostfs.cgroup(pods, capacity)}))
        majors = [(1, "mem"), (MAJOR, "drm")]
        dev: dict[str, Node] = {**made, "null": self._device(CharDev(*_NULL, 0o666))}
        if driver.loaded:
            majors.append((driver.kfd_major, "kfd"))
            dev["kfd"] = self._device(CharDev(driver.kfd_major, 0, NODE_MODE, gid=RENDER_GID))
        self._dev = Dir(dev, writable=True)
        root = {**kept, "dev": self._dev, "proc": hostfs.proc(self.spec.kernel, majors), "sys": sys}
        super().__init__(Tree(Dir(root, writable=True)))
        self._devices_changed()

    def _devices_changed(self) -> None:
        self._sysfs.invalidate()
        if any(self.driver.drm_devices()):
            self._dev.add("dri", self._sysfs.dri)
        elif "dri" in self._dev.kids():
            self._dev.drop("dri")

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
        elif (major, minor) != _NULL:
            raise OSError(errno.ENXIO, os.strerror(errno.ENXIO))

    def _dmem_capacity(self) -> str:
        """One region per GPU, however partitioned (kernel.md 4.1); none where amdgpu registers nothing."""
        registered = self.rules.dmem_region if self.spec.dmem_regions is None else self.spec.dmem_regions
        if not registered:
            return ""
        gpus = self.driver.gpus
        return "".join(f"drm/{bdf}/vram {gpus[bdf].facts.vram_bytes}\n" for bdf in self.driver.regions)
