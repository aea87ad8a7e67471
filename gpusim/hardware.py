"""What happens to a node's GPUs and to their driver, whoever is using them.

The actions of `gpusim.machine.Machine` that concern devices; what they do is in `gpusim.amd.driver` and
`gpusim.amd.lifecycle`. Sources: kernel.md 2.1, 2.4 and 7.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from gpusim.amd import lifecycle
from gpusim.amd.drm import MAJOR
from gpusim.amd.gpu import Gpu
from gpusim.errors import GpusimError
from gpusim.workloads import Workloads


class Hardware(Workloads):
    """A node's devices."""

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
            OSError: ENOENT (no such file), EACCES (read-only file), EINVAL, EBUSY, EPERM (in reset), EIO.
        """
        self.write(f"{self.gpu(bdf).home}/current_compute_partition", f"{mode}\n".encode())

    # Hot-plug

    def remove(self, bdf: str) -> None:
        """Unplug a GPU, whoever uses it: their handles answer ENODEV from now on.

        Raises:
            GpusimError: it is not plugged in.
        """
        gpu = self.gpu(bdf)
        if not gpu.present:
            raise GpusimError(f"{bdf} is not plugged in")
        self._parted(gpu, lifecycle.remove(self.driver, gpu))

    def add(self, bdf: str) -> None:
        """Plug a removed GPU in again: it probes with the numbers that are free now.

        Raises:
            GpusimError: it is plugged in.
        """
        gpu = self.gpu(bdf)
        if gpu.present:
            raise GpusimError(f"{bdf} is plugged in already")
        lifecycle.add(self.driver, gpu)
        self._met([gpu])

    # Driver

    def unbind(self, bdf: str) -> None:
        """Take a GPU from its driver; open handles answer ENODEV, the device stays on the bus.

        Raises:
            OSError: ENODEV, no driver has it.
        """
        gpu = self.gpu(bdf)
        self._parted(gpu, lifecycle.unbind(self.driver, gpu))

    def bind(self, bdf: str, driver: str = "amdgpu") -> None:
        """Give a GPU to a driver: ``amdgpu``, or another that shows nothing of it, such as ``vfio-pci``.

        Raises:
            OSError: ENODEV, not plugged in; EBUSY, a driver has it; ENOENT, amdgpu is not loaded; EINVAL,
                ENODEV, ENOSPC: amdgpu's probe failed.
        """
        gpu = self.gpu(bdf)
        lifecycle.bind(self.driver, gpu, driver)
        self._met([gpu])

    def unload(self) -> None:
        """Unload amdgpu, as ``modprobe -r``: a node whose driver comes late begins like this.

        Raises:
            OSError: EBUSY, a process holds a device of it; ENOENT, it is not loaded.
        """
        minors = {minor for gpu in self.driver.gpus.values() for nodes in gpu.drm for minor in nodes.minors}
        held = {(MAJOR, minor) for minor in minors} | {(self.driver.kfd_major, 0)}
        files = [handle for process in self.processes for handle in process.files.values()]
        # Whoever still holds a node of an unplugged GPU holds the module, too.
        if any(handle.rdev in held or handle.number in self.vram.stale for handle in files):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        bound = [gpu for gpu in self.driver.gpus.values() if gpu.bound]
        lifecycle.unload(self.driver)
        for gpu in bound:
            self.vram.unplugged(gpu, ())
        self._devices_changed()

    def load(self) -> None:
        """Load amdgpu: every GPU that no driver has is probed, with the memory mode asked for before.

        Raises:
            OSError: EEXIST, it is loaded.
        """
        lifecycle.load(self.driver)
        self._met(list(self.driver.gpus.values()))

    def reload(self) -> None:
        """Unload and load again.

        Raises:
            OSError: as `unload`.
        """
        self.unload()
        self.load()

    # Faults

    def reset(self, bdf: str) -> None:
        """Let amdgpu begin to reset a GPU; it lasts until `recover`. Buffers stay in the ledger.

        Raises:
            GpusimError: amdgpu does not drive it.
        """
        self._driven(bdf).resetting = True
        self.events.append({"event": "reset", "gpu": bdf})

    def hang(self, bdf: str) -> None:
        """Let a GPU stop answering: sensors EIO, mode UNKNOWN, open EIO; until `recover` or a new probe.

        Raises:
            GpusimError: amdgpu does not drive it.
        """
        self._driven(bdf).hung = True
        self.events.append({"event": "hung", "gpu": bdf})

    def recover(self, bdf: str) -> None:
        """End a reset or a hang: the GPU is as it was.

        Raises:
            GpusimError: amdgpu does not drive it.
        """
        gpu = self._driven(bdf)
        gpu.resetting = gpu.hung = False
        self.events.append({"event": "recovered", "gpu": bdf})

    def fail_probe(self, bdf: str, fails: bool = True) -> None:
        """Let amdgpu's next probes of a GPU fail, as with broken firmware; ``fails=False`` mends it."""
        self.gpu(bdf).probe_fails = fails

    def _driven(self, bdf: str) -> Gpu:
        gpu = self.gpu(bdf)
        if not gpu.bound:
            raise GpusimError(f"{bdf} is not bound to amdgpu")
        return gpu

    # What others have to know

    def _parted(self, gpu: Gpu, minors: Sequence[int]) -> None:
        """A GPU left its driver, and these minors with it."""
        gone = {(MAJOR, minor) for minor in minors}
        files = [handle for process in self.processes for handle in process.files.values()]
        held = [h.number for h in files if h.rdev in gone and h.number not in self.vram.stale]
        self.vram.unplugged(gpu, held)
        self._devices_changed()

    def _met(self, gpus: Sequence[Gpu]) -> None:
        """GPUs were probed, with or without success."""
        for gpu in gpus:
            self.vram.plugged(gpu)
        self._devices_changed()

    def _devices_changed(self) -> None:
        """Make the views of the devices anew."""
        raise AssertionError("the machine has the views")
