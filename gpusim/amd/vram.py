"""Who allocated which memory of which GPU, and how it was let: KFD, DRM, dmem.

One ledger for the node. What a GPU has in use is its driver's base use and the sum of what is here; each
cgroup's charge is taken and given back with it. Sources: kernel.md 4.4, 6 and 7; drivers/gpu/drm/amd/amdgpu
(amdgpu_amdkfd_gpuvm.c: `amdgpu_amdkfd_reserve_mem_limit`, amdgpu_object.c: sizes are whole pages), amdkfd
(kfd_chardev.c: `kfd_ioctl_alloc_memory_of_gpu`), drivers/gpu/drm/ttm/ttm_resource.c (`ttm_resource_alloc`:
the charge comes before the memory).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from gpusim.allocation import Allocation
from gpusim.amd.driver import Driver
from gpusim.amd.drm import MAJOR
from gpusim.amd.gpu import Gpu
from gpusim.amd.kfd import GpuNode
from gpusim.cgroup import Cgroups
from gpusim.cgroupnode import Cgroup
from gpusim.dmem import Copies, Dmem, LimitError, Pool, Region
from gpusim.errors import GpusimError
from gpusim.process import Handle, Process

PAGE = 4096


@dataclass(frozen=True, slots=True)
class Context:
    """A process's KFD context: the GPU nodes its device cgroup let it have when it opened /dev/kfd."""

    pid: int
    nodes: dict[int, GpuNode]
    """By render minor."""


class Vram:
    """The ledger of one node.

    Args:
        driver: the GPUs.
        cgroups: where processes are.
    """

    def __init__(self, driver: Driver, cgroups: Cgroups) -> None:
        self._driver = driver
        self._cgroups = cgroups
        self.allocations: dict[int, Allocation] = {}
        """Everything not freed, by number."""
        self.contexts: dict[int, Context] = {}
        """KFD contexts by pid."""
        self.asked: dict[tuple[int, int], int] = {}
        """(pid, gpu_id) → bytes asked of KFD as VRAM and not freed, wherever they are now."""
        self.occupied: dict[tuple[int, int], int] = {}
        """(pid, gpu_id) → CUs with waves of the process."""
        self.contexts_changed: Callable[[], None] = _nobody
        """Called when contexts or their nodes come or go; the view of them sets this."""
        self.stale: dict[int, Region | None] = {}
        """Handle number → region of the unplugged GPU it still holds."""
        self._next = 1
        self._regions: dict[str, Region] = {}
        for bdf in driver.regions:
            self.plugged(driver.gpus[bdf])

    @property
    def _dmem(self) -> Dmem | None:
        return self._cgroups.dmem

    # Devices

    def plugged(self, gpu: Gpu) -> None:
        """A GPU was probed: amdgpu registers its memory, by release or as the description says."""
        spec, rules = self._driver.spec, self._driver.rules
        registers = rules.dmem_region if spec.dmem_regions is None else spec.dmem_regions
        if gpu.bound and registers and self._dmem is not None:
            self._regions[gpu.bdf] = self._dmem.register(f"drm/{gpu.bdf}/vram", gpu.facts.vram_bytes)

    def unplugged(self, gpu: Gpu, handles: Collection[int]) -> None:
        """A GPU went away while `handles` are open on its DRM nodes.

        Its region stays listed until the last of them is closed (kernel.md 4.4), and so does what is charged.
        """
        region = self._regions.pop(gpu.bdf, None)
        for number in handles:
            self.stale[number] = region
        if not handles:
            self._unregister(region)
        for allocation in self.allocations.values():
            if allocation.bdf == gpu.bdf:
                allocation.lost = True
                self._uncount(allocation)  # the GPU may return under the same gpu_id and is empty then
        for pid, context in list(self.contexts.items()):
            left = {minor: node for minor, node in context.nodes.items() if node.facts.bdf != gpu.bdf}
            if len(left) < len(context.nodes):
                self.contexts[pid] = replace(context, nodes=left)
        gpu.vram_used, gpu.gtt_used = gpu.spec.vram_used, 0
        self.contexts_changed()

    def _unregister(self, region: Region | None) -> None:
        if region is not None and self._dmem is not None and region not in self.stale.values():
            self._dmem.unregister(region)

    # Processes

    def opened(self, process: Process, handle: Handle) -> None:
        """A process opened something; the first /dev/kfd makes its context (kernel.md 6)."""
        if handle.rdev != (self._driver.kfd_major, 0) or process.pid in self.contexts:
            return
        devices = process.devices
        nodes = {
            node.minor: node
            for _, node in self._driver.topology.gpu_nodes()
            if devices is None or devices.allows(MAJOR, node.minor, "rw")
        }
        self.contexts[process.pid] = Context(process.pid, nodes)
        self.contexts_changed()

    def closing(self, process: Process, handle: Handle) -> None:
        """A process is about to close a handle: what it owns is freed, a last /dev/kfd ends the context."""
        kfd = (self._driver.kfd_major, 0)
        last = handle.rdev == kfd and sum(one.rdev == kfd for one in process.files.values()) == 1
        if last or (handle.rdev is not None and handle.rdev[0] == MAJOR):
            for allocation in list(self.allocations.values()):
                owner = handle.number if allocation.handle is not None else None
                if allocation.pid == process.pid and allocation.handle == owner and (owner or last):
                    self.free(allocation)
        if last and self.contexts.pop(process.pid, None) is not None:
            self.occupied = {key: cus for key, cus in self.occupied.items() if key[0] != process.pid}
            self.contexts_changed()
        if handle.number in self.stale:
            self._unregister(self.stale.pop(handle.number))

    # Memory

    def allocate(self, process: Process, device: str | int, size: int, *, gtt_ok: bool) -> Allocation:
        """Take VRAM for a process.

        Args:
            process: who asks; its cgroup is charged.
            device: render minor, or PCI address for its partition 0.
            size: bytes.
            gtt_ok: system memory does where VRAM is short (it is charged to nobody).

        Raises:
            OSError: EBADF, neither the render node nor /dev/kfd is open; EINVAL, /dev/kfd is, but the
                process's device cgroup hid this node from it, or size is not positive; ENODEV, unplugged,
                or a partition the mode no longer has; ENOMEM, a dmem limit, the partition's share or the GPU
                itself is exhausted.
            GpusimError: no such GPU on this node.
        """
        if size <= 0:
            raise _error(errno.EINVAL)
        gpu, partition, minor = self._locate(device)
        node, handle = self._way(process, gpu, partition, minor)
        size = -(-size // PAGE) * PAGE
        made = Allocation(self._next, process.pid, gpu.bdf, minor, size, "gtt", "")
        if node is not None:
            made.gpu_id = node.gpu_id
        else:
            assert handle is not None
            made.handle = handle.number
        why = "no VRAM of its own" if gpu.product.bank_is_gtt else self._settle(made, gpu, node, process)
        if why:
            self._spill(made, gpu, why, allowed=gtt_ok or gpu.product.bank_is_gtt)
        self._next += 1
        self.allocations[made.number] = made
        if node is not None and made.place == "vram":
            made.counted = True
            key = (process.pid, node.gpu_id)
            self.asked[key] = self.asked.get(key, 0) + size
        return made

    def _locate(self, device: str | int) -> tuple[Gpu, int, int]:
        """GPU, partition and render minor. ENODEV when there is none behind a number."""
        gpus = self._driver.gpus
        if isinstance(device, str):
            if device not in gpus:
                raise GpusimError(f"no GPU at {device}; this node has {', '.join(gpus) or 'none'}")
            drm = gpus[device].drm
            if not drm or drm[0].render is None:
                raise _error(errno.ENODEV)
            return gpus[device], 0, drm[0].render
        for gpu in gpus.values():
            for partition, nodes in enumerate(gpu.drm):
                if nodes.render == device:
                    return gpu, partition, device
        raise _error(errno.ENODEV)

    def _way(
        self, process: Process, gpu: Gpu, partition: int, minor: int
    ) -> tuple[GpuNode | None, Handle | None]:
        """The KFD node or the open render node that an allocation is made through."""
        context = self.contexts.get(process.pid)
        node = context.nodes.get(minor) if context is not None else None
        if node is not None:
            return node, None
        held = [handle for handle in process.files.values() if handle.rdev == (MAJOR, minor)]
        for handle in held:
            if handle.number not in self.stale:
                if partition >= gpu.partitions:  # what the driver answers then is not known
                    raise _error(errno.ENODEV)
                return None, handle
        if held:
            raise _error(errno.ENODEV)
        raise _error(errno.EBADF if context is None else errno.EINVAL)

    def _settle(self, allocation: Allocation, gpu: Gpu, node: GpuNode | None, process: Process) -> str:
        """Put an allocation into VRAM: charge, then take. Empty, or why it does not fit."""
        size = allocation.bytes
        if node is not None:
            # KFD lets a partition have its share, though with NPS1 the memory is one pool (kernel.md 1.6).
            used = sum(asked for (_, gpu_id), asked in self.asked.items() if gpu_id == node.gpu_id)
            if used + size > node.bytes:
                return f"partition {node.part} has {node.bytes} bytes"
        group = self._charged(process.pid)
        region = self._regions.get(gpu.bdf)
        pool: Pool | None = None
        if self._dmem is not None and region is not None and group is not None and group.css is not None:
            try:
                pool = self._dmem.charge(group.css, region, size)
            except LimitError as error:
                return f"dmem.max of {self._owner(group, region, error.pool)}"
        if gpu.vram_used + size > gpu.facts.vram_bytes:
            if pool is not None and self._dmem is not None:
                self._dmem.uncharge(pool, size)
            return "VRAM is full"
        gpu.vram_used += size
        allocation.place, allocation.pool = "vram", pool
        allocation.cgroup = group.path if pool is not None and group is not None else ""
        return ""

    def _spill(self, allocation: Allocation, gpu: Gpu, why: str, *, allowed: bool) -> None:
        """Put an allocation into system memory behind the GPU's table. ENOMEM."""
        if not allowed or gpu.gtt_used + allocation.bytes > gpu.facts.gtt_bytes:
            event = {"event": "out of memory", "pid": allocation.pid, "gpu": gpu.bdf}
            self._driver.events.append({**event, "bytes": allocation.bytes, "why": why})
            raise _error(errno.ENOMEM)
        gpu.gtt_used += allocation.bytes
        allocation.place, allocation.pool, allocation.cgroup = "gtt", None, ""

    def _charged(self, pid: int) -> Cgroup | None:
        """The group whose css is charged for a process: its own or the nearest above with dmem."""
        return next((group for group in self._cgroups.of(pid).lineage() if group.css is not None), None)

    def _owner(self, group: Cgroup, region: Region, pool: Pool) -> str:
        return next(
            (g.path for g in group.lineage() if g.css is not None and g.css.pools.get(region) is pool), "?"
        )

    def free(self, allocation: Allocation) -> None:
        """Give an allocation back.

        Raises:
            GpusimError: it is freed already, or of another node.
        """
        if self.allocations.pop(allocation.number, None) is not allocation:
            raise GpusimError(f"allocation {allocation.number} is not of this node, or freed")
        self._uncount(allocation)
        self._vacate(allocation)
        allocation.place = "freed"

    def _uncount(self, allocation: Allocation) -> None:
        """KFD forgets that it was asked for this as VRAM."""
        if allocation.counted:
            key = (allocation.pid, allocation.gpu_id)
            self.asked[key] -= allocation.bytes
            if not self.asked[key]:
                del self.asked[key]
            allocation.counted = False

    def _vacate(self, allocation: Allocation) -> None:
        """Take an allocation out of where it lies, and its charge with it."""
        gpu = self._driver.gpus[allocation.bdf]
        if not allocation.lost:
            if allocation.place == "vram":
                gpu.vram_used -= allocation.bytes
            else:
                gpu.gtt_used -= allocation.bytes
        if allocation.pool is not None and self._dmem is not None:
            self._dmem.uncharge(allocation.pool, allocation.bytes)
        allocation.pool, allocation.cgroup = None, ""

    def evict(self, allocation: Allocation) -> None:
        """Move a buffer from VRAM to system memory, as the driver does under pressure; it is uncharged.

        Raises:
            OSError: EINVAL, it is not in VRAM; ENODEV, its GPU was unplugged; ENOMEM, no room there.
        """
        gpu = self._movable(allocation, "vram")
        if gpu.gtt_used + allocation.bytes > gpu.facts.gtt_bytes:
            raise _error(errno.ENOMEM)
        self._vacate(allocation)
        gpu.gtt_used += allocation.bytes
        allocation.place = "gtt"
        self._moved("evicted", allocation, allocation.pid)

    def restore(self, allocation: Allocation, process: Process) -> None:
        """Move a buffer back into VRAM; whoever triggers it is charged (kernel.md 4.4).

        Raises:
            OSError: EINVAL, it is not in system memory; ENODEV; ENOMEM, it does not fit, and stays.
        """
        gpu = self._movable(allocation, "gtt")
        why = self._settle(allocation, gpu, None, process)
        if why:
            raise _error(errno.ENOMEM)
        gpu.gtt_used -= allocation.bytes
        self._moved("restored", allocation, process.pid)

    def _movable(self, allocation: Allocation, place: str) -> Gpu:
        if self.allocations.get(allocation.number) is not allocation:
            raise GpusimError(f"allocation {allocation.number} is not of this node, or freed")
        if allocation.lost:
            raise _error(errno.ENODEV)
        if allocation.place != place:
            raise _error(errno.EINVAL)
        return self._driver.gpus[allocation.bdf]

    def _moved(self, what: str, allocation: Allocation, pid: int) -> None:
        self._driver.events.append(
            {
                "event": what,
                "pid": pid,
                "allocation": allocation.number,
                "gpu": allocation.bdf,
                "bytes": allocation.bytes,
            }
        )

    def occupy(self, process: Process, device: str | int, cus: int) -> None:
        """Say how many CUs of a node run waves of a process: its cu_occupancy.

        Raises:
            OSError: EINVAL, it has no KFD context on the node, or more than the node's CUs.
            GpusimError: no such GPU on this node.
        """
        context = self.contexts.get(process.pid)
        node = context.nodes.get(self._locate(device)[2]) if context is not None else None
        if node is None or not 0 <= cus <= node.facts.active_cus // node.parts:
            raise _error(errno.EINVAL)
        self.occupied[process.pid, node.gpu_id] = cus

    # Looking

    def get(self, number: int) -> Allocation:
        """The allocation of that number.

        Raises:
            GpusimError: there is none.
        """
        try:
            return self.allocations[number]
        except KeyError:
            raise GpusimError(f"no allocation {number} on this node (freed, or never made)") from None

    def region(self, bdf: str) -> Region | None:
        """The dmem region of a GPU that is plugged in; None where there is none."""
        return self._regions.get(bdf)

    def of(self, process: Process) -> list[Allocation]:
        """What a process has, oldest first."""
        return [one for one in self.allocations.values() if one.pid == process.pid]

    def fork(self, driver: Driver, cgroups: Cgroups, copies: Copies) -> Vram:
        """An independent ledger in the same state, with the same numbers."""
        twin = Vram.__new__(Vram)
        twin._driver, twin._cgroups = driver, cgroups
        twin.allocations = {
            number: replace(one, pool=None if one.pool is None else copies.pool(one.pool))
            for number, one in self.allocations.items()
        }
        twin.contexts, twin.stale = self.contexts.copy(), self.stale.copy()
        twin.asked, twin.occupied = self.asked.copy(), self.occupied.copy()
        twin.contexts_changed = _nobody
        twin._next, twin._regions = self._next, self._regions.copy()
        return twin


def _error(code: int) -> OSError:
    return OSError(code, os.strerror(code))


def _nobody() -> None:
    """Nobody looks at the contexts yet."""
