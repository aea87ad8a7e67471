"""A state machine for whatever shares devices among pods: an allocator of two methods is all it needs.

What an allocator gives is recounted naively, in ints and sets, after every step (style.md, example 6).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Protocol

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from gpusim.errors import GpusimError
from gpusim.machine import Machine
from gpusim.spec import NodeSpec
from gpusim.testing.machines.broken import ensure

_FITS = "no-refusal-of-what-fits"


@dataclass(frozen=True, slots=True)
class Device:
    """Something that is shared."""

    id: str
    memory_mib: int
    cus: int = 0
    """Compute units, numbered from 0; 0: they are not shared out."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a pod wants: so many devices, and of each so much."""

    devices: int = 1
    memory_mib: int = 1
    cus: int = 0


@dataclass(frozen=True, slots=True)
class Share:
    """What a pod got of one device."""

    device: str
    memory_mib: int
    cus: Collection[int] = ()
    """Numbers of its compute units."""


class Allocator(Protocol):
    """What is tested. `PluginMachine.make` gives it the devices."""

    def allocate(self, pod: str, request: Request) -> Sequence[Share] | None:
        """Shares of distinct devices for a new pod; None when it does not fit."""
        ...

    def free(self, pod: str) -> None:
        """The pod is gone: what it had can be given to others."""
        ...


def devices_of(spec: NodeSpec) -> list[Device]:
    """The KFD nodes of a simulated node as devices: whole GPUs and partitions, by render node."""
    machine, found = Machine(spec), []
    nodes = "/sys/class/kfd/kfd/topology/nodes"
    for name in sorted(machine.list(nodes), key=int):
        lines = machine.read(f"{nodes}/{name}/properties").decode().splitlines()
        facts = {key: int(value) for key, value in (line.split(" ") for line in lines)}
        if facts["simd_count"]:
            bank = machine.read(f"{nodes}/{name}/mem_banks/0/properties").decode()
            size = int(bank.split("size_in_bytes ")[1].split("\n")[0])
            cus = facts["simd_count"] // facts["simd_per_cu"]
            found.append(Device(f"renderD{facts['drm_render_minor']}", size >> 20, cus))
    return found


@st.composite  # not a map: a counter-example then shows the devices themselves
def _devices(draw: st.DrawFn, memory: st.SearchStrategy[int], cus: st.SearchStrategy[int]) -> list[Device]:
    pairs = draw(st.lists(st.tuples(memory, cus), min_size=1, max_size=4))
    return [Device(f"gpu-{n}", *pair) for n, pair in enumerate(pairs)]


@lru_cache(maxsize=256)  # made anew for every request, it would cost more than the request
def _requests(devices: int, sizes: tuple[int, ...], cus: int) -> st.SearchStrategy[Request]:
    """Requests for devices of these sizes, the largest first, in MiB; without compute units if `cus` is 0.

    Of a device with 300,000 MiB a number drawn at random leaves nearly always room for the next pods: what
    does not, or does just so, is drawn by itself. Several devices are wanted more often than one, which
    Hypothesis, fond of what is simple, comes to by itself.
    """
    counts = (1, *(count for count in range(2, devices + 1) for _ in range(3)))
    telling = tuple(dict.fromkeys((*sizes, *(size // 2 + 1 for size in sizes))))
    return st.builds(
        Request,
        devices=st.sampled_from(counts),
        memory_mib=st.sampled_from(telling) | st.integers(1, sizes[0]),
        **({"cus": st.integers(1, cus)} if cus else {}),
    )


def _shares(answer: Any, asked: str) -> list[Share]:
    """What an allocator answered, listed once: it may be a generator."""
    expected = "a list of Share(device, memory_mib, cus) is expected, or None"
    if isinstance(answer, (str, bytes)) or not isinstance(answer, Iterable):
        raise GpusimError(f"{asked} answered {answer!r:.80}: {expected}")
    shares = list(answer)
    for share in shares:
        # Whatever has the three attributes will do.
        if not all(hasattr(share, name) for name in ("device", "memory_mib", "cus")):
            raise GpusimError(f"{asked} answered {shares!r:.200}; {share!r:.80} is no Share: {expected}")
    return shares


def _of(name: str) -> st.SearchStrategy[Any]:
    """A strategy that the machine, subclassed, has under this name."""
    return st.runner().flatmap(lambda machine: getattr(machine, name))


class PluginMachine(RuleBasedStateMachine):
    """Pods come and go; subclass it and set `make`.

    =============================== =================================================================
    invariant                       holds when
    =============================== =================================================================
    ``known-devices``               every share is of a device that exists
    ``as-many-as-asked``            a pod has as many shares as it wanted devices
    ``distinct-devices``            no pod has two shares of one device
    ``as-much-memory-as-asked``     every share has the memory that was wanted
    ``as-many-cus-as-asked``        … and at least the compute units (units may be handed out in pairs)
    ``memory-within-device``        all shares of a device fit into its memory
    ``cus-within-device``           compute units have numbers that the device has
    ``cus-apart``                   no compute unit belongs to two pods
    ``no-refusal-of-what-fits``     a pod that fits, looking at each device alone, is served (`complete`)
    ``empty-again``                 when all pods are gone, a device can be given whole, as at the start
    =============================== =================================================================

    >>> class Mine(PluginMachine):
    ...     make = MyAllocator
    >>> TestMine = Mine.TestCase

    Raises:
        GpusimError: no `make`, no devices, or an allocator that does not answer as `Allocator` says.
    """

    make: ClassVar[Any]
    """Called with a list of `Device`; gives the `Allocator`."""
    with_cus: ClassVar[bool] = False
    """Whether requests are for compute units, too."""
    complete: ClassVar[bool] = True
    """Whether a refusal of what would fit is a bug."""

    def __init__(self) -> None:
        super().__init__()
        name = type(self).__name__
        if not callable(getattr(type(self), "make", None)):
            raise GpusimError(
                f"{name}: set `make`, which is called with a list of Device and gives the allocator: "
                f"class {name}(PluginMachine): make = MyAllocator"
            )
        self.pods: dict[str, Sequence[Share]] = {}
        self.capacity: dict[str, Device] = {}
        self._next = 1

    @property
    def devices(self) -> st.SearchStrategy[list[Device]]:
        """What there is to share; override it with ``strategies.nodes().map(devices_of)`` for real nodes."""
        return _devices(st.integers(1, 16), st.integers(1, 8) if self.with_cus else st.just(0))

    @property
    def requests(self) -> st.SearchStrategy[Request]:
        """What pods want, given the devices of this run: often all that a device has, or over half."""
        sizes = sorted({device.memory_mib for device in self.capacity.values()}, reverse=True)
        cus = max(device.cus for device in self.capacity.values())
        return _requests(min(3, len(self.capacity)), tuple(sizes), cus if self.with_cus else 0)

    @initialize(devices=_of("devices"))
    def devices_are(self, devices: list[Device]) -> None:
        """The allocator starts."""
        name = type(self).__name__
        if not devices:
            raise GpusimError(
                f"{name}: `devices` drew an empty list, and nothing can be asked of that; "
                "devices.filter(bool) leaves such out"
            )
        for device in devices:
            if not all(hasattr(device, key) for key in ("id", "memory_mib", "cus")):
                raise GpusimError(f"{name}: `devices` drew {device!r:.80}: no Device(id, memory_mib, cus)")
        self.capacity = {device.id: device for device in devices}
        self.allocator: Allocator = type(self).make(list(devices))
        for method in ("allocate", "free"):
            if not callable(getattr(self.allocator, method, None)):
                raise GpusimError(f"{name}: what `make` gave, {self.allocator!r:.80}, has no {method}()")

    @rule(request=_of("requests"))
    def allocate(self, request: Request) -> None:
        """A pod comes."""
        self._allocate(request)

    @precondition(lambda self: self.pods)
    @rule(number=st.integers(0, 7))
    def free(self, number: int) -> None:
        """A pod goes."""
        self._free(list(self.pods)[number % len(self.pods)])

    @precondition(lambda self: self.capacity)
    @rule()
    def empty(self) -> None:
        """All pods go; then every device is wanted whole, one after the other."""
        for pod in list(self.pods):
            self._free(pod)
        for device in self.capacity.values():
            whole = Request(1, device.memory_mib, device.cus if self.with_cus else 0)
            fresh = type(self).make(list(self.capacity.values())).allocate("pod-0", whole) is not None
            self._allocate(whole, "empty-again" if fresh else _FITS)
            for pod in list(self.pods):
                self._free(pod)

    def _allocate(self, request: Request, invariant: str = _FITS) -> None:
        pod = f"pod-{self._next}"
        self._next += 1
        fits = self._fits(request)
        shares = self.allocator.allocate(pod, request)
        if shares is None:
            served = ", ".join(f"{name}: {list(held)}" for name, held in self.pods.items()) or "none"
            why = f"{request} fits and is refused; pods served: {served}"
            ensure(not fits or (invariant == _FITS and not self.complete), invariant, why)
            return
        shares = self.pods[pod] = _shares(shares, f"allocate({pod!r}, {request})")
        self._as_asked(pod, request, shares)
        self._recount()

    def _free(self, pod: str) -> None:
        self.allocator.free(pod)
        del self.pods[pod]

    def _left(self, device: Device) -> tuple[int, int]:
        """Free MiB and compute units, recounted."""
        held = [share for shares in self.pods.values() for share in shares if share.device == device.id]
        taken = {cu for share in held for cu in share.cus}
        return device.memory_mib - sum(share.memory_mib for share in held), device.cus - len(taken)

    def _fits(self, request: Request) -> bool:
        left = [self._left(device) for device in self.capacity.values()]
        return sum(mib >= request.memory_mib and cus >= request.cus for mib, cus in left) >= request.devices

    def _as_asked(self, pod: str, request: Request, shares: Sequence[Share]) -> None:
        said = f"{pod} wanted {request} and got {list(shares)}"
        ids = [share.device for share in shares]
        ensure(set(ids) <= set(self.capacity), "known-devices", f"{said}; there are {list(self.capacity)}")
        ensure(len(ids) == request.devices, "as-many-as-asked", said)
        ensure(len(set(ids)) == len(ids), "distinct-devices", said)
        for share in shares:
            ensure(share.memory_mib == request.memory_mib, "as-much-memory-as-asked", said)
            ensure(len(set(share.cus)) >= request.cus, "as-many-cus-as-asked", said)
            total = self.capacity[share.device].cus
            ensure(all(0 <= cu < total for cu in share.cus), "cus-within-device", f"{said}; CUs: {total}")

    def _recount(self) -> None:
        for device in self.capacity.values():
            held = [(p, s) for p, shares in self.pods.items() for s in shares if s.device == device.id]
            total = sum(share.memory_mib for _, share in held)
            text = ", ".join(f"{pod}: {share.memory_mib} MiB" for pod, share in held)
            ensure(
                total <= device.memory_mib,
                "memory-within-device",
                f"{device.id} has {device.memory_mib} MiB and {total} are given away ({text})",
            )
            owner: dict[int, str] = {}
            for pod, share in held:
                for cu in share.cus:
                    other = owner.setdefault(cu, pod)
                    ensure(
                        other == pod, "cus-apart", f"CU {cu} of {device.id} belongs to {other} and to {pod}"
                    )
