"""A state machine for ledgers that count bytes per device and owner, and two ledgers to show it on.

The rules are those of every such ledger, whatever counts: cgroup dmem (kernel.md 4.3), or a vendor's shared
file (decisions 36 and 47: each device on its own, process sums are the truth).
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gpusim.machine import Allocation, Machine
from gpusim.process import Process
from gpusim.testing.build import addresses, node
from gpusim.testing.machines.broken import ensure

_OWNERS = st.sampled_from(("a", "b", "c"))


class Ledger(Protocol):
    """What is tested. `LedgerMachine.make` gives it the limit of each device."""

    def charge(self, device: int, owner: str, size: int) -> bool:
        """Take `size` bytes for an owner, or say False and take nothing."""
        ...

    def free(self, device: int, owner: str, size: int) -> None:
        """Give back one charge of exactly this size that the owner has there."""
        ...

    def exit(self, owner: str) -> None:
        """The owner is gone, with all it has on every device."""
        ...

    def used(self, device: int) -> int:
        """Bytes in use."""
        ...


class LedgerMachine(RuleBasedStateMachine):
    """Owners charge and free on several devices; subclass it and set `make`.

    =============================== =================================================================
    invariant                       holds when
    =============================== =================================================================
    ``used-is-the-sum``             what a device says is used is what was charged and not freed
    ``within-the-limit``            no device has more in use than its limit
    ``charged-when-it-fits``        a charge that fits the device's limit is taken
    ``refused-takes-nothing``       a refused charge changes nothing, on any device
    ``devices-apart``               a charge or free on one device leaves all others as they were
    ``exit-frees-all``              nothing of an owner that is gone is left, and all of the others is
    =============================== =================================================================
    """

    make: ClassVar[Any]
    """Called with the limits in bytes, a list; gives the `Ledger`."""
    unit: ClassVar[int] = 1
    """Limits and sizes are multiples of it."""
    max_devices: ClassVar[int] = 3
    max_units: ClassVar[int] = 16
    """The largest limit, in units."""

    def __init__(self) -> None:
        super().__init__()
        self.limits: list[int] = []
        self.charges: list[tuple[int, str, int]] = []
        """What was charged and not freed: device, owner, bytes."""

    @initialize(
        limits=st.runner().flatmap(
            lambda self: st.lists(st.integers(1, self.max_units), min_size=1, max_size=self.max_devices)
        )
    )
    def limits_are(self, limits: list[int]) -> None:
        """The ledger starts; limits in units."""
        self.limits = [units * self.unit for units in limits]
        self.ledger: Ledger = type(self).make(list(self.limits))

    @rule(device=st.integers(0, 7), owner=_OWNERS, units=st.runner().flatmap(lambda self: self.sizes))
    def charge(self, device: int, owner: str, units: int) -> None:
        """An owner asks for memory."""
        device, size = device % len(self.limits), units * self.unit
        before = self._all_used()
        fits = self._sum(device) + size <= self.limits[device]
        used = f"{self._sum(device)} of {self.limits[device]} in use"
        said = f"{size} bytes for {owner} on device {device}, {used}"
        if self.ledger.charge(device, owner, size):
            self.charges.append((device, owner, size))
            ensure(fits, "within-the-limit", f"taken: {said}")
        else:
            ensure(not fits, "charged-when-it-fits", f"refused: {said}")
            after = self._all_used()
            ensure(after == before, "refused-takes-nothing", f"{said}: {before} before, {after} after")
        self._apart(device, before)

    @property
    def sizes(self) -> st.SearchStrategy[int]:
        """Of a charge, in units."""
        return st.integers(1, self.max_units)

    @precondition(lambda self: self.charges)
    @rule(number=st.integers(0, 15))
    def free(self, number: int) -> None:
        """An owner gives one charge back."""
        device, owner, size = self.charges.pop(number % len(self.charges))
        before = self._all_used()
        self.ledger.free(device, owner, size)
        self._apart(device, before)

    @rule(owner=_OWNERS)
    def exit(self, owner: str) -> None:
        """An owner dies."""
        if not self.limits:
            return
        self.ledger.exit(owner)
        self.charges = [charge for charge in self.charges if charge[1] != owner]
        sums, used = [self._sum(device) for device in range(len(self.limits))], self._all_used()
        ensure(
            used == sums, "exit-frees-all", f"{owner} is gone: {used} bytes in use, {sums} are the others'"
        )

    @invariant()
    def used_is_the_sum(self) -> None:
        """Recounted after every step."""
        for device in range(len(self.limits)):
            used, total = self.ledger.used(device), self._sum(device)
            ensure(
                used == total, "used-is-the-sum", f"device {device} says {used} bytes, charged are {total}"
            )

    def _sum(self, device: int) -> int:
        return sum(size for where, _, size in self.charges if where == device)

    def _all_used(self) -> list[int]:
        return [self.ledger.used(device) for device in range(len(self.limits))]

    def _apart(self, device: int, before: Sequence[int]) -> None:
        for other, was in enumerate(before):
            now = self.ledger.used(other)
            ensure(
                other == device or now == was,
                "devices-apart",
                f"something on device {device} changed device {other} from {was} to {now} bytes",
            )


class ToyLedger:
    """The plainest ledger: a list of charges."""

    def __init__(self, limits: Sequence[int]) -> None:
        self.limits = list(limits)
        self.charges: list[tuple[int, str, int]] = []

    def charge(self, device: int, owner: str, size: int) -> bool:
        """As `Ledger.charge`."""
        if self.used(device) + size > self.limits[device]:
            return False
        self.charges.append((device, owner, size))
        return True

    def free(self, device: int, owner: str, size: int) -> None:
        """As `Ledger.free`."""
        self.charges.remove((device, owner, size))

    def exit(self, owner: str) -> None:
        """As `Ledger.exit`."""
        self.charges = [charge for charge in self.charges if charge[1] != owner]

    def used(self, device: int) -> int:
        """As `Ledger.used`."""
        return sum(size for where, _, size in self.charges if where == device)


_GROUP = "/sys/fs/cgroup/kubepods.slice/kubepods-pod0.slice"
_MIB = 1 << 20
_MOST = 8


class DmemLedger:
    """The dmem controller of a simulated node: one cgroup, a limit for each GPU, owners are processes."""

    _booted: ClassVar[Machine | None] = None

    def __init__(self, limits: Sequence[int]) -> None:
        if DmemLedger._booted is None:
            small = {"vram_bytes": 64 * _MIB, "vram_used": 0}
            DmemLedger._booted = Machine(node(count=_MOST, kernel="7.2", driver="in-tree", gpu=small))
        self.machine = DmemLedger._booted.fork()
        self.gpus = addresses(len(limits))
        self.machine.write("/sys/fs/cgroup/kubepods.slice/cgroup.subtree_control", b"+dmem")
        self.machine.mkdir(_GROUP)
        for bdf, limit in zip(self.gpus, limits, strict=True):
            self.machine.write(f"{_GROUP}/dmem.max", f"drm/{bdf}/vram {limit}\n".encode())
        self.owners: dict[str, Process] = {}
        self.held: list[tuple[int, str, int, Allocation]] = []

    def charge(self, device: int, owner: str, size: int) -> bool:
        """As `Ledger.charge`; ENOMEM is no."""
        if owner not in self.owners:
            process = self.machine.process(cgroup=_GROUP.removeprefix("/sys/fs/cgroup"))
            self.machine.open("/dev/kfd", process)
            self.owners[owner] = process
        try:
            made = self.machine.allocate_vram(self.owners[owner], self.gpus[device], size)
        except OSError as error:
            if error.errno != errno.ENOMEM:
                raise
            return False
        self.held.append((device, owner, size, made))
        return True

    def free(self, device: int, owner: str, size: int) -> None:
        """As `Ledger.free`."""
        place = next(i for i, entry in enumerate(self.held) if entry[:3] == (device, owner, size))
        self.machine.free(self.held.pop(place)[3])

    def exit(self, owner: str) -> None:
        """As `Ledger.exit`."""
        process = self.owners.pop(owner, None)
        if process is not None:
            self.machine.exit(process)
        self.held = [entry for entry in self.held if entry[1] != owner]

    def used(self, device: int) -> int:
        """As `Ledger.used`, from dmem.current."""
        region = f"drm/{self.gpus[device]}/vram"
        lines = self.machine.read(f"{_GROUP}/dmem.current").decode().splitlines()
        return next(int(value) for name, value in map(str.split, lines) if name == region)
