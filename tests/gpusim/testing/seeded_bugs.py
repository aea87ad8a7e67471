"""For each invariant of the state machines a bug that it catches: a table of docs/property-tests.md as data.

A row is a machine with one mistake in what it tests; `test_machines` runs each and asks what broke.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis.stateful import RuleBasedStateMachine

from gpusim.machine import Machine
from gpusim.spec import NodeSpec
from gpusim.testing import strategies
from gpusim.testing.machines import (
    Device,
    LedgerMachine,
    NodeMachine,
    PluginMachine,
    Request,
    Share,
    ToyLedger,
)
from gpusim.testing.machines.walk import KFD

PCI = "/sys/bus/pci/devices"


@dataclass(frozen=True, slots=True)
class Bug:
    """One row."""

    machine: str
    invariant: str
    mistake: str
    """What is wrong, as a sentence for the table."""
    test: type[RuleBasedStateMachine]


# ------------------------------------------------------------------ nodes


class HoleInKfd(Machine):
    def list(self, path: str) -> Sequence[str]:
        return [name for name in super().list(path) if path != f"{KFD}/nodes" or name != "3"]


class SameGpuId(Machine):
    def read(self, path: str) -> bytes:
        content = super().read(path)
        return b"4711\n" if path.endswith("/gpu_id") and content != b"0\n" else content


class LosesPartition(Machine):
    def list(self, path: str) -> Sequence[str]:
        names = sorted(super().list(path))
        if path != f"{KFD}/nodes" or len(names) <= 9:
            return names
        return sorted(names, key=int)[:-1]


class ShutPartition(Machine):
    def probe(self, path: str) -> None:
        if path.endswith("renderD129"):
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        super().probe(path)


class StaleMode(Machine):
    def read(self, path: str) -> bytes:
        return (
            b"SPX\n"
            if path.endswith("current_compute_partition") and super().read(path)
            else super().read(path)
        )


class RefusesAndResets(Machine):
    def switch(self, bdf: str, mode: str) -> None:
        try:
            super().switch(bdf, mode)
        except OSError:
            if not list(self.processes) and self.gpu(bdf).bound:
                self.write(f"{PCI}/{bdf}/current_compute_partition", b"SPX")
            raise


class IgnoresHolders(Machine):
    def __init__(self, spec: NodeSpec) -> None:
        super().__init__(spec)
        self.driver.holders = lambda gpu: []  # type: ignore[method-assign]


class KeepsGoneGpu(Machine):
    def list(self, path: str) -> Sequence[str]:
        names = super().list(path)
        return names if path != PCI else sorted({*names, *self.driver.gpus})


class NoDeviceNode(Machine):
    def list(self, path: str) -> Sequence[str]:
        return [name for name in super().list(path) if path != "/dev/dri" or name != "renderD128"]


class FrozenGeneration(Machine):
    def read(self, path: str) -> bytes:
        return b"1\n" if path == f"{KFD}/generation_id" else super().read(path)


class LeaksMemory(Machine):
    def free(self, allocation: Any) -> None:
        super().free(allocation)
        self.gpu(allocation.bdf).vram_used += 4096


class ForkForgets(Machine):
    def fork(self) -> Machine:
        twin = super().fork()
        for gpu in twin.driver.gpus.values():
            gpu.vram_used = 0
        return twin


class ForkShares(Machine):
    def fork(self) -> Machine:
        twin = super().fork()
        twin.driver.gpus = self.driver.gpus
        return twin


def on_node(made: type[Machine]) -> type[NodeMachine]:
    body = {"make": made, "nodes": strategies.nodes(products=["MI355X"], max_gpus=2, mixed=False, odd=False)}
    return type(made.__name__, (NodeMachine,), body)


# ------------------------------------------------------------------ allocators


class Right:
    """An allocator without mistakes: memory, and compute units lowest first."""

    def __init__(self, devices: list[Device]) -> None:
        self.devices = devices
        self.pods: dict[str, list[Share]] = {}

    def held(self, device: Device) -> list[Share]:
        return [share for shares in self.pods.values() for share in shares if share.device == device.id]

    def free_cus(self, device: Device) -> list[int]:
        taken = {cu for share in self.held(device) for cu in share.cus}
        return [cu for cu in range(device.cus) if cu not in taken]

    def fits(self, device: Device, request: Request) -> bool:
        used = sum(share.memory_mib for share in self.held(device))
        return used + request.memory_mib <= device.memory_mib and len(self.free_cus(device)) >= request.cus

    def choose(self, request: Request) -> list[Device] | None:
        found = [device for device in self.devices if self.fits(device, request)]
        return found[: request.devices] if len(found) >= request.devices else None

    def share(self, device: Device, request: Request) -> Share:
        return Share(device.id, request.memory_mib, self.free_cus(device)[: request.cus])

    def allocate(self, pod: str, request: Request) -> list[Share] | None:
        chosen = self.choose(request)
        if chosen is None:
            return None
        self.pods[pod] = [self.share(device, request) for device in chosen]
        return self.pods[pod]

    def free(self, pod: str) -> None:
        del self.pods[pod]


class UnknownDevice(Right):
    def share(self, device: Device, request: Request) -> Share:
        return Share(device.id.upper(), request.memory_mib, self.free_cus(device)[: request.cus])


class OneTooFew(Right):
    def choose(self, request: Request) -> list[Device] | None:
        chosen = super().choose(request)
        return chosen if chosen is None or len(chosen) < 2 else chosen[:-1]


class TwiceTheSame(Right):
    def choose(self, request: Request) -> list[Device] | None:
        chosen = super().choose(request)
        return chosen and [chosen[0]] * len(chosen)


class HalfTheMemory(Right):
    def share(self, device: Device, request: Request) -> Share:
        return Share(device.id, (request.memory_mib + 1) // 2, self.free_cus(device)[: request.cus])


class TooFewCus(Right):
    def share(self, device: Device, request: Request) -> Share:
        return Share(device.id, request.memory_mib, self.free_cus(device)[: max(request.cus - 1, 1)])


class OffByOne(Right):
    """Compares with < where the running total counts: one MiB too many fits."""

    def fits(self, device: Device, request: Request) -> bool:
        used = sum(share.memory_mib for share in self.held(device))
        return used + request.memory_mib < device.memory_mib + 2 and len(self.free_cus(device)) >= request.cus


class CountsFromOne(Right):
    def share(self, device: Device, request: Request) -> Share:
        return Share(device.id, request.memory_mib, [cu + 1 for cu in self.free_cus(device)[: request.cus]])


class ForgetsCus(Right):
    def free_cus(self, device: Device) -> list[int]:
        return list(range(device.cus))


class StopsAtFirst(Right):
    """Looks at the first devices only."""

    def choose(self, request: Request) -> list[Device] | None:
        first = self.devices[: request.devices]
        return first if all(self.fits(device, request) for device in first) else None


class NeverFrees(Right):
    """Frees one device of a pod that had several."""

    def free(self, pod: str) -> None:
        self.pods[f"{pod} once"] = self.pods.pop(pod)[1:]


def on_allocator(made: type[Right], **options: Any) -> type[PluginMachine]:
    return type(made.__name__, (PluginMachine,), {"make": made, "with_cus": True, **options})


# ------------------------------------------------------------------ ledgers


class Forgets(ToyLedger):
    def used(self, device: int) -> int:
        return sum(size for where, _, size in self.charges[:3] if where == device)


class NoLimit(ToyLedger):
    def charge(self, device: int, owner: str, size: int) -> bool:
        self.charges.append((device, owner, size))
        return True


class OneLess(ToyLedger):
    def charge(self, device: int, owner: str, size: int) -> bool:
        return self.used(device) + size < self.limits[device] and super().charge(device, owner, size)


class ChargesThenLooks(ToyLedger):
    def charge(self, device: int, owner: str, size: int) -> bool:
        self.charges.append((device, owner, size))
        return self.used(device) <= self.limits[device]


class CurrentDevice(ToyLedger):
    """What is freed while another device is current is credited there (case B68)."""

    def free(self, device: int, owner: str, size: int) -> None:
        current = self.charges[-1][0]
        if current == device:
            super().free(device, owner, size)
            return
        at = next(i for i, charge in enumerate(self.charges) if charge[0] == current)
        del self.charges[at]


class ExitOfOneDevice(ToyLedger):
    def exit(self, owner: str) -> None:
        self.charges = [charge for charge in self.charges if charge[1] != owner or charge[0]]


def on_ledger(made: type[ToyLedger]) -> type[LedgerMachine]:
    return type(made.__name__, (LedgerMachine,), {"make": made})


# ------------------------------------------------------------------ the table


def _rows() -> list[Bug]:
    nodes = [
        ("kfd-nodes-without-holes", "node 3 is left out of KFD's list", HoleInKfd),
        ("partitions-once", "every GPU node answers the same gpu_id", SameGpuId),
        ("partitions-make-the-gpu", "the last partition is lost", LosesPartition),
        ("listed-partitions-open", "renderD129 is ENOENT while KFD lists it", ShutPartition),
        ("mode-as-written", "the mode file always says SPX", StaleMode),
        ("refusal-changes-nothing", "a refused switch sets SPX", RefusesAndResets),
        ("busy-gpu-keeps-its-mode", "processes that hold /dev/kfd block no switch", IgnoresHolders),
        ("gone-gpu-is-gone", "an unplugged GPU stays in the PCI list", KeepsGoneGpu),
        ("dev-as-sysfs", "/dev/dri lacks renderD128", NoDeviceNode),
        ("generation-goes-on", "generation_id never moves", FrozenGeneration),
        ("vram-used-is-what-is-held", "a free gives back a page too little", LeaksMemory),
        ("fork-reads-alike", "a fork forgets the memory in use", ForkForgets),
        ("fork-stays", "a fork shares its GPUs with the original", ForkShares),
    ]
    plugins = [
        ("known-devices", "ids are written in capitals", on_allocator(UnknownDevice)),
        ("as-many-as-asked", "a pod that wants several devices gets one too few", on_allocator(OneTooFew)),
        ("distinct-devices", "a pod gets the same device twice", on_allocator(TwiceTheSame)),
        ("as-much-memory-as-asked", "pods get half the memory", on_allocator(HalfTheMemory)),
        ("as-many-cus-as-asked", "pods get one compute unit too few", on_allocator(TooFewCus)),
        ("memory-within-device", "one MiB more than there is fits", on_allocator(OffByOne)),
        ("cus-within-device", "compute units are counted from one", on_allocator(CountsFromOne)),
        ("cus-apart", "compute units in use are forgotten", on_allocator(ForgetsCus)),
        ("no-refusal-of-what-fits", "only the first devices are looked at", on_allocator(StopsAtFirst)),
        ("empty-again", "of several devices only one is freed", on_allocator(NeverFrees, complete=False)),
    ]
    ledgers = [
        ("used-is-the-sum", "only the first three charges count", Forgets),
        ("within-the-limit", "limits are ignored", NoLimit),
        ("charged-when-it-fits", "the last byte cannot be used", OneLess),
        ("refused-takes-nothing", "a refused charge stays charged", ChargesThenLooks),
        ("devices-apart", "a free is credited to the current device", CurrentDevice),
        ("exit-frees-all", "an exit frees device 0 alone", ExitOfOneDevice),
    ]
    return [
        *(Bug("NodeMachine", name, mistake, on_node(made)) for name, mistake, made in nodes),
        *(Bug("PluginMachine", name, mistake, made) for name, mistake, made in plugins),
        *(Bug("LedgerMachine", name, mistake, on_ledger(made)) for name, mistake, made in ledgers),
    ]


BUGS = tuple(_rows())
"""Every invariant with its bug."""
