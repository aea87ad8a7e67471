"""The PPUs of a node: who is on the bus, how well each is, and whether the driver is there.

The index of ppu-smi is a PPU's place among those that are listed, so it moves when one vanishes; minor and
UUID stay (decision 54: the node number is not the index; that the rest move up is our choice, as with other
vendors' tools). Numbers a kind of card has are data (`gpusim.ppu.products`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from random import Random

from gpusim.errors import GpusimError
from gpusim.ppu.health import WORDS, Health
from gpusim.ppu.products import PRODUCTS, Product
from gpusim.programs import Breakable
from gpusim.spec import NodeSpec

FORMS = ("table", "-L", "-q", "--query-ppu")
"""What ppu-smi can be asked for (decision 54); ``table`` is it without an argument."""
FIELDS = (
    *("index", "name", "uuid", "pci.bus_id", "memory.total"),
    *("memory.used", "memory.free", "utilization.ppu", "power.limit", "driver_version"),
)
"""Fields of ``--query-ppu``: the first five are decision 54's, the others ours after other vendors' tools."""
MINOR = "minor_number"
"""What ``-q`` says besides; no field of ``--query-ppu``."""
MEASURED = frozenset({"memory.total", "memory.used", "memory.free", "utilization.ppu", "power.limit"})
"""What a PPU has to answer for itself; the rest the driver knows since it was probed."""


class PpuError(GpusimError):
    """There is no such PPU, or it cannot be put into that state; the text says what there is."""


@dataclass(slots=True)
class Ppu:
    """One PPU and its state.

    Attributes:
        product: what kind.
        place: among the PPUs of the node, whoever has vanished.
        minor: N of ``/dev/alixpu_ppuN``.
        bdf: PCI address.
        numa: node of the host, -1 where nobody knows.
        uuid: ``GPU-…``.
        health: whether it answers.
        used_mib: memory in use.
        busy: utilisation in percent.
        unknown: fields that ppu-smi says N/A of.
        present: on the bus.
    """

    product: Product
    place: int
    minor: int
    bdf: str
    numa: int
    uuid: str
    health: Health = Health.OK
    used_mib: int = 0
    busy: int = 0
    unknown: frozenset[str] = frozenset()
    present: bool = True

    @property
    def bus_id(self) -> str:
        """As ppu-smi prints it: eight digits of domain, upper case (ours, after other vendors' tools)."""
        domain, _, rest = self.bdf.partition(":")
        return f"{domain:0>8}:{rest}".upper()

    def knows(self, field: str) -> bool:
        """Whether ppu-smi has a value of a field."""
        return field not in self.unknown and not (self.health is Health.HUNG and field in MEASURED)


class Ppus(Breakable):
    """Every PPU of a node, in the order of the bus.

    Args:
        spec: the node; its PPUs have passed `gpusim.ppu.check`.

    Attributes:
        version: of the driver and of ppu-smi.
        loaded: whether the driver is.
        exit_status: what ppu-smi ends with when it refuses or fails; 0 by itself (decision 54).
        broken: form of `FORMS` (``""``: every form) → what it prints instead of working.
        changed: called when PPUs or the driver came or went.
    """

    tool, forms, refusal = "ppu-smi", FORMS, PpuError

    def __init__(self, spec: NodeSpec) -> None:
        self.version = spec.ppu_driver
        self.loaded = spec.ppu_loaded
        self.exit_status = spec.ppu_smi_status
        self.broken: dict[str, str] = {}
        self.changed: Callable[[], None] = _nothing
        self._ppus = [_ppu(spec, place) for place in range(len(spec.ppus))]

    def __iter__(self) -> Iterator[Ppu]:
        return iter(self._ppus)

    def __len__(self) -> int:
        return len(self._ppus)

    @property
    def listed(self) -> tuple[Ppu, ...]:
        """What the driver drives, by the index of ppu-smi; nothing without a driver."""
        return tuple(ppu for ppu in self._ppus if ppu.present and self.loaded)

    def minor(self, minor: int) -> Ppu:
        """The PPU with that minor, on the bus or vanished.

        Raises:
            PpuError: none has it.
        """
        for ppu in self._ppus:
            if ppu.minor == minor:
                return ppu
        known = ", ".join(str(ppu.minor) for ppu in self._ppus)
        raise PpuError(f"no PPU has minor {minor}; this node has {known}")

    # What happens

    def ail(self, minor: int, health: str) -> None:
        """Let a PPU answer or not.

        Raises:
            PpuError: no such PPU, no such word.
        """
        if health not in WORDS:
            raise PpuError(f"{health!r} is no health of a PPU: use one of {', '.join(WORDS)}")
        self.minor(minor).health = Health(health)

    def use(self, minor: int, used_mib: int, busy: int) -> None:
        """Let a PPU be in use.

        Raises:
            PpuError: no such PPU; more memory than it has; no percentage.
        """
        ppu = self.minor(minor)
        if not 0 <= used_mib <= ppu.product.memory_mib:
            raise PpuError(f"PPU {minor} has 0 to {ppu.product.memory_mib} MiB in use, not {used_mib}")
        if not 0 <= busy <= 100:
            raise PpuError(f"PPU {minor} is busy 0 to 100 percent of the time, not {busy}")
        ppu.used_mib, ppu.busy = used_mib, busy

    def forget(self, minor: int, fields: Iterable[str]) -> None:
        """Let ppu-smi say N/A of these fields of a PPU, and of no others.

        Raises:
            PpuError: no such PPU, no such field.
        """
        ppu, unknown = self.minor(minor), frozenset(fields)
        if wrong := sorted(unknown - {*FIELDS, MINOR}):
            raise PpuError(f"ppu-smi has no field {wrong[0]!r}; it has {', '.join((*FIELDS, MINOR))}")
        ppu.unknown = unknown

    def vanish(self, minor: int) -> Ppu:
        """Let a PPU fall off the bus; those after it move up in ppu-smi.

        Raises:
            PpuError: no such PPU; it is gone already.
        """
        return self._move(minor, present=False)

    def come_back(self, minor: int) -> Ppu:
        """Let a vanished PPU be found again: idle, and well.

        Raises:
            PpuError: no such PPU; it is there.
        """
        ppu = self._move(minor, present=True)
        ppu.health, ppu.used_mib, ppu.busy = Health.OK, ppu.product.idle_mib, 0
        return ppu

    def _move(self, minor: int, *, present: bool) -> Ppu:
        ppu = self.minor(minor)
        if ppu.present == present:
            state, remedy = ("there", "vanish") if present else ("gone", "return")
            raise PpuError(f"PPU {minor} is {state} already; let it {remedy} first")
        ppu.present = present
        self.changed()
        return ppu

    def load(self, *, loaded: bool) -> None:
        """Load the driver, or unload it.

        Raises:
            PpuError: it is so already.
        """
        if self.loaded == loaded:
            raise PpuError(f"the PPU driver is {'loaded' if loaded else 'not loaded'} already")
        self.loaded = loaded
        self.changed()

    def copy(self) -> Ppus:
        """The same PPUs in the same state, independent; nobody is told of its changes yet."""
        twin = Ppus.__new__(Ppus)
        twin.version, twin.loaded, twin.exit_status = self.version, self.loaded, self.exit_status
        twin.broken, twin.changed = dict(self.broken), _nothing
        twin._ppus = [replace(ppu) for ppu in self._ppus]
        return twin


def minors(spec: NodeSpec) -> list[int]:
    """Of every PPU; what the node does not say is its place."""
    return [place if ppu.minor is None else ppu.minor for place, ppu in enumerate(spec.ppus)]


def uuids(spec: NodeSpec) -> list[str]:
    """Of every PPU; what the node does not say is made from the seed."""
    return [ppu.uuid or _uuid(spec.seed, place) for place, ppu in enumerate(spec.ppus)]


def _ppu(spec: NodeSpec, place: int) -> Ppu:
    ppu = spec.ppus[place]
    product = PRODUCTS[ppu.product]
    return Ppu(
        product,
        place,
        minors(spec)[place],
        ppu.bdf,
        ppu.numa,
        uuids(spec)[place],
        Health(ppu.health),
        product.idle_mib if ppu.used_mib is None else ppu.used_mib,
        ppu.busy,
        frozenset(ppu.unknown),
    )


def _uuid(seed: int, place: int) -> str:
    """In the form that C.2 records: the fourth group and half of the last are zero."""
    draw = Random(f"ppu {seed} {place}")
    first, *groups = (draw.getrandbits(bits) for bits in (32, 16, 16))
    middle = "-".join(f"{group:04x}" for group in groups)
    return f"GPU-{first:08x}-{middle}-0000-0000{draw.getrandbits(32):08x}"


def _nothing() -> None:
    """Nobody wants to know."""
