"""amdgpu as it acts on a node: probe, partition switch, and who may open what.

It owns the state that changes (the GPUs, the minors, the XCP numbers, the KFD topology); files are
computed from it. How GPUs come and go is `gpusim.amd.lifecycle`. Sources: kernel.md 0, 2.1, 2.4, 2.6, 6 and
7; drivers/gpu/drm/amd/amdgpu/amdgpu_gfx.c (`amdgpu_gfx_set_compute_partition`), amdgpu_xcp.c,
amdxcp/amdgpu_xcp_drv.c, amdkfd/kfd_chardev.c.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from gpusim.amd.drm import MAJOR, Minors, Nodes
from gpusim.amd.drmfs import Device
from gpusim.amd.gpu import Gpu
from gpusim.amd.gpufacts import GpuFacts, facts_of
from gpusim.amd.kfd import Topology
from gpusim.amd.partition import MAX_PARTITIONS, memory_modes, named
from gpusim.amd.pci import homes
from gpusim.amd.xcp import PLATFORM, Slots, device_name
from gpusim.kernel import Behaviour
from gpusim.process import Process, Processes
from gpusim.spec import CardSpec, NodeSpec

BMC = CardSpec("ast", "0000:03:00.0", 0x1A03, 0x2000, render=False)
"""The display of a baseboard controller: card0, no render node, one VGA output (kernel.md 7)."""
EVENT = dict[str, object]


@dataclass(slots=True, eq=False)
class Card:
    """A display of another driver and the minors it holds."""

    spec: CardSpec
    home: str
    nodes: Nodes | None = None
    """None: the DRM core had no minor left."""

    @property
    def connectors(self) -> tuple[str, ...]:
        """Outputs; only the BMC's is described."""
        return ("VGA-1",) if self.spec.driver == "ast" else ()


class Driver:
    """All GPUs of one node and what amdgpu knows of them.

    Args:
        spec: the node, already checked.
        rules: what this kernel and driver do.
        processes: who runs on the node and what they hold open.
        kfd_major: device major of /dev/kfd.
    """

    def __init__(self, spec: NodeSpec, rules: Behaviour, processes: Processes, kfd_major: int) -> None:
        self.spec = spec
        self.rules = rules
        self.processes = processes
        self.kfd_major = kfd_major
        self.events: list[EVENT] = []
        extended = rules.extended_minors and spec.minors_per_type is None
        self._minors = Minors(extended=extended)
        self.slots = Slots(lowest_free=rules.xcp_lowest_free, freed=rules.xcp_freed_on_unplug)
        self.loaded = any(gpu.bound in ("amdgpu", None) for gpu in spec.gpus)
        """Whether the module is: a GPU on the bus asks for it unless another driver was told to hold it."""
        self.regions: list[str] = []
        """BDFs whose VRAM the dmem controller would know, in order of registration."""
        self.requested_nps: dict[int | str, int] = {}
        """Memory mode asked for at the next driver load, by hive (by BDF without one)."""
        self.topology = Topology.boot(spec)
        self.topology_changed: Callable[[], None] = _nobody
        """Called after every change of the node list; the view of it sets this."""
        cards = (*self._bmc(), *spec.cards)
        places = homes([*(g.bdf for g in spec.gpus), *(c.bdf for c in cards)])
        self.cards = tuple(Card(card, places[card.bdf]) for card in cards)
        facts = facts_of(spec)
        self.gpus = {one.bdf: self._gpu(index, places[one.bdf], one) for index, one in enumerate(facts)}
        self._boot()

    def copy(self, processes: Processes) -> Driver:
        """An independent driver in the same state, among the copied `processes`."""
        twin = Driver.__new__(Driver)
        twin.spec, twin.rules, twin.kfd_major = self.spec, self.rules, self.kfd_major
        twin.processes = processes
        twin.events = self.events.copy()
        twin._minors = self._minors.copy()
        twin.slots = self.slots.copy()
        twin.loaded = self.loaded
        twin.regions = self.regions.copy()
        twin.requested_nps = self.requested_nps.copy()
        twin.topology = self.topology
        twin.topology_changed = _nobody
        twin.cards = self.cards  # their minors are taken once, at boot
        twin.gpus = {bdf: gpu.copy() for bdf, gpu in self.gpus.items()}
        return twin

    def _bmc(self) -> tuple[CardSpec, ...]:
        if not self.spec.bmc:
            return ()
        taken = {g.bdf for g in self.spec.gpus} | {c.bdf for c in self.spec.cards}
        free = (f"0000:{bus:02x}:00.0" for bus in range(3, 256))
        return (replace(BMC, bdf=next(bdf for bdf in free if bdf not in taken)),)

    def _gpu(self, index: int, home: str, facts: GpuFacts) -> Gpu:
        gpu = self.spec.gpus[index]
        return Gpu(index, gpu, facts, home, gpu.numa, gpu.mode, gpu.nps, gpu.vram_used, wants=gpu.bound)

    # Probe

    def _boot(self) -> None:
        cards = list(self.cards)
        for gpu in self.gpus.values():
            while cards and cards[0].spec.before <= gpu.index:
                self._probe_card(cards.pop(0))
            self.probe(gpu, gpu.spec.boot_mode or gpu.spec.mode)
        for card in cards:
            self._probe_card(card)
        for gpu in self.gpus.values():
            if gpu.bound and gpu.mode != gpu.spec.mode:
                self._enter(gpu, gpu.spec.mode)

    def _probe_card(self, card: Card) -> None:
        try:
            card.nodes = self._minors.allocate(render=card.spec.render)
        except OSError as error:
            self._fail(card.spec.bdf, error)

    def probe(self, gpu: Gpu, mode: str) -> OSError | None:
        """Bind the device to the driver that wants it, if that one takes it; else what it failed with."""
        if gpu.wants != "amdgpu":
            gpu.driver = gpu.wants
            return None
        try:
            if gpu.probe_fails:
                # kernel.md 7: PSP or firmware error; such a device looks as if nobody had bound it.
                raise OSError(errno.EINVAL, "PSP firmware loading failed")
            if 90500 <= gpu.product.gfx < 90600 and not self.rules.gfx950:
                # IP discovery: "Failed to add gfx ip block(GC_HWIP:0x...)" (kernel.md 0).
                raise OSError(errno.EINVAL, "GC 9.5.0 is unknown to this driver")
            self._take_minors(gpu)
        except OSError as error:
            self._fail(gpu.bdf, error)
            return error
        gpu.driver = "amdgpu"
        gpu.mode = gpu.config = mode
        gpu.level, gpu.isolation = "auto", ()  # what a driver before had been told went with it
        self.regions.append(gpu.bdf)
        self._join_kfd(gpu)
        self.events.append({"event": "probed", "gpu": gpu.bdf, "mode": mode, "minors": len(gpu.drm)})
        return None

    def _take_minors(self, gpu: Gpu) -> None:
        """The device's own DRM node and, whatever the mode, those of seven more partitions."""
        drm, platform = [self._minors.allocate(render=True)], list[int]()
        if gpu.product.partitionable:
            for partition in range(1, MAX_PARTITIONS):
                try:
                    number = self.slots.take(gpu.bdf, partition)
                except OSError:
                    gpu.drm, gpu.platform = tuple(drm), tuple(platform)
                    self.give_minors(gpu)
                    raise
                try:
                    drm.append(self._minors.allocate(render=True))
                except OSError:
                    self.slots.undo(number)
                    why = f"Skip xcp node #{partition} when out of drm node resource."
                    self.events.append(
                        {"event": "xcp skipped", "gpu": gpu.bdf, "partition": partition, "why": why}
                    )
                    break
                platform.append(number)
        gpu.drm, gpu.platform = tuple(drm), tuple(platform)

    def give_minors(self, gpu: Gpu) -> None:
        """Give back every number a GPU's DRM and platform devices have."""
        for nodes in gpu.drm:
            self._minors.release(nodes)
        for number in gpu.platform:
            self.slots.release(number)
        gpu.drm, gpu.platform = (), ()

    def _fail(self, bdf: str, error: OSError) -> None:
        name = errno.errorcode.get(error.errno or 0, "?")
        self.events.append({"event": "probe failed", "device": bdf, "errno": name, "why": error.strerror})

    def _join_kfd(self, gpu: Gpu) -> None:
        minors = tuple(nodes.render for nodes in gpu.drm[: gpu.partitions])
        numa = gpu.numa
        self.topology = self.topology.with_gpu(gpu.facts, minors, mode=gpu.mode, nps=gpu.nps, numa=numa)
        self.topology_changed()

    # Partition switch

    def write_compute_partition(self, gpu: Gpu, data: bytes) -> None:
        """One write to current_compute_partition, in the kernel's order of checks (kernel.md 2.1).

        Raises:
            OSError: EINVAL (odd XCC count, unknown name, not on this silicon, not under this NPS); EBUSY, a
                process uses KFD; EBUSY or EPERM by release, the GPU is in reset; EIO, it hangs.
        """
        product = gpu.product
        mode = named(data)
        if product.xccs % 2 or mode is None or mode not in product.modes():
            raise self._refusal(gpu, mode or data.decode("ascii", "replace").strip(), errno.EINVAL)
        if gpu.resetting and self.rules.reset_errno:
            raise self._refusal(gpu, mode, getattr(errno, self.rules.reset_errno))
        if mode == gpu.mode:
            return
        if not self.rules.nps_rule.allows(mode, gpu.nps, product.xccs, vf=product.vf):
            raise self._refusal(gpu, mode, errno.EINVAL)
        if holders := self.holders(gpu):
            raise self._refusal(gpu, mode, errno.EBUSY, [process.pid for process in holders])
        if gpu.hung:  # inferred: a GPU that does not answer cannot be started again in another mode
            raise self._refusal(gpu, mode, errno.EIO)
        before = gpu.mode
        self._enter(gpu, mode)
        self.events.append({"event": "switched", "gpu": gpu.bdf, "from": before, "to": mode})

    def _enter(self, gpu: Gpu, mode: str) -> None:
        """KFD drops the GPU's nodes and appends new ones at the end; DRM devices stay (kernel.md 1.4)."""
        self.topology = self.topology.without_gpu(gpu.bdf)
        gpu.mode = mode
        self._join_kfd(gpu)

    def holders(self, gpu: Gpu) -> list[Process]:
        """The processes whose KFD context blocks a switch of `gpu`, by pid.

        By release any KFD process of the machine, or only those whose device cgroup lets them use one of
        this GPU's nodes (kernel.md 2.1). Plain render clients never block.
        """
        contexts = self.processes.holding((self.kfd_major, 0))
        if self.rules.busy_rule == "machine":
            return contexts
        return [process for process in contexts if self.serves(gpu, process)]

    def serves(self, gpu: Gpu, process: Process) -> bool:
        """Whether KFD gives this process a context on the GPU: its device cgroup allows a node's minor."""
        devices = process.devices
        return devices is None or any(
            nodes.render is not None and devices.allows(MAJOR, nodes.render, "rw")
            for nodes in gpu.drm[: gpu.partitions]
        )

    def _refusal(self, gpu: Gpu, mode: str, code: int, holders: list[int] | None = None) -> OSError:
        event: EVENT = {"event": "switch refused", "gpu": gpu.bdf, "to": mode, "errno": errno.errorcode[code]}
        if holders is not None:
            event["holders"] = holders
        self.events.append(event)
        return OSError(code, os.strerror(code))

    def write_memory_partition(self, gpu: Gpu, data: bytes) -> None:
        """One write to current_memory_partition: only recorded for the next driver load (kernel.md 2.4).

        GPUs of a hive share one request; the last writer wins for all of them.

        Raises:
            OSError: EPERM, in reset (newer releases); EINVAL, no such mode or not offered.
        """
        if gpu.resetting and self.rules.reset_read:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
        word = data[:4].decode("ascii", "replace").upper()
        wanted = next((n for n in memory_modes(gpu.product, self.rules) if word == f"NPS{n}"), None)
        if wanted is None:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        if wanted != gpu.nps:
            self.requested_nps[gpu.facts.hive_id or gpu.bdf] = wanted
            self.events.append({"event": "memory mode requested", "gpu": gpu.bdf, "nps": wanted})

    # DRM

    def drm_devices(self) -> Iterator[Device]:
        """Home directory, minors and outputs of every DRM device of the node."""
        for card in self.cards:
            if card.nodes is not None:
                yield card.home, card.nodes, card.connectors
        for gpu in self.gpus.values():
            for partition, nodes in enumerate(gpu.drm):
                yield self.drm_home(gpu, partition), nodes, ()

    def drm_home(self, gpu: Gpu, partition: int) -> str:
        """Directory of the device that carries a partition's DRM nodes."""
        if partition == 0:
            return gpu.home
        return f"{PLATFORM}/{device_name(gpu.platform[partition - 1], self.rules)}"

    def open_minor(self, minor: int) -> None:
        """open(2) of a DRM minor, after all permission checks.

        Raises:
            OSError: ENODEV, no device has this minor (any more); ENOENT, the render node of a partition the
                current mode does not have (dmesg "renderD%d partition %d not valid!"). Its card opens.
                EIO, the GPU hangs: inferred, for the GPU itself clears the page tables a new client gets.
        """
        for gpu in self.gpus.values():
            for partition, nodes in enumerate(gpu.drm):
                if gpu.hung and minor in nodes.minors:
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
                if minor == nodes.card:
                    return
                if minor == nodes.render:
                    if partition >= gpu.partitions:
                        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
                    return
        if any(card.nodes is not None and minor in card.nodes.minors for card in self.cards):
            return
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))


def _nobody() -> None:
    """Nobody looks at the topology yet."""
