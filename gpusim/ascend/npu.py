"""The NPUs of a node: their health, what is used of them, and the vNPUs cut out of them.

A vNPU is made from one of its chip's templates while the chip has the AICore, AICPU and memory for it;
ids start at phy × 16 + 100 (decision 42). Numbers a chip has are data (`gpusim.ascend.chips`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from gpusim.ascend.chips import CHIPS, Chip, Template
from gpusim.ascend.health import WORDS, Health
from gpusim.errors import GpusimError
from gpusim.programs import Breakable
from gpusim.spec import NodeSpec

FIRST_VNPU = 100
PER_CHIP = 16
"""Ids a chip has for its vNPUs (decision 42)."""
NO_CONTAINER = "0" * 12
"""Container column of an idle vNPU (decision 42)."""

FORMS = (
    *("info", "info -l", "info -m", "info -t board", "info -t phyid-remap", "info -t health"),
    *("info -t info-vnpu", "info -t template-info", "info -t device-share"),
    *("set -t device-share", "set -t create-vnpu", "set -t destroy-vnpu"),
)
"""What npu-smi can be asked for (decision 42)."""


class NpuError(GpusimError):
    """The driver refuses; the text is what npu-smi prints as its message."""


@dataclass(frozen=True, slots=True)
class Vnpu:
    """A slice of a chip.

    Attributes:
        number: unique on the node; ``/dev/vdavinci<number>``.
        template: its size.
        container: twelve hexadecimal digits of the container that uses it; None: idle.
    """

    number: int
    template: Template
    container: str | None = None


@dataclass(slots=True)
class Npu:
    """One chip and its state; a logic id is its place among `Npus`."""

    chip: Chip
    logic: int
    phy: int
    card: int
    """NPU ID of npu-smi."""
    number: int
    """Chip ID on that card."""
    bdf: str
    uuid: str
    health: Health = Health.OK
    error_codes: tuple[int, ...] = ()
    """What is wrong, in the driver's numbers."""
    used_mib: int = 0
    busy: int = 0
    """AICore utilisation in percent."""
    share: bool = False
    """device-share: several containers may open it (A.5)."""
    vnpus: dict[int, Vnpu] = field(default_factory=dict)

    @property
    def free(self) -> tuple[int, int, int]:
        """AICore, AICPU and MiB that no vNPU has."""
        taken = [v.template for v in self.vnpus.values()]
        return (
            self.chip.ai_cores - sum(t.ai_cores for t in taken),
            self.chip.ai_cpus - sum(t.ai_cpus for t in taken),
            self.chip.memory_mib - sum(t.memory_mib for t in taken),
        )

    def shortage(self, size: Template) -> str:
        """What the container runtime says of a template for which the chip has not enough left; or nothing.

        The words for AICore are those of field report G row 3; AICPU and memory are ours after them.
        """
        chip, (cores, cpus, mib) = self.chip, self.free
        for what, short, need, left, total in (
            ("aicore num", "core", size.ai_cores, cores, chip.ai_cores),
            ("aicpu num", "cpu", size.ai_cpus, cpus, chip.ai_cpus),
            ("memory size", "memory", size.memory_mib, mib, chip.memory_mib),
        ):
            if need > left:
                used = f"{short}_need:{need}, used:{total - left}, total:{total}"
                return f"check {what} failed, phy_id:{self.phy}, {used}"
        return ""

    @property
    def vnpu_ids(self) -> range:
        """Ids its vNPUs can have."""
        first = FIRST_VNPU + self.phy * PER_CHIP
        return range(first, first + PER_CHIP)


class Npus(Breakable):
    """Every NPU of a node, in the order of their logic ids.

    Args:
        spec: the node; its NPUs have passed `gpusim.ascend.check`.

    Attributes:
        version: of the driver and of npu-smi.
        exit_status: what npu-smi ends with when it refuses or fails; 0 is possible (decision 42).
        broken: form of npu-smi (``info -m``, ``info -t board``, ``set -t create-vnpu``; ``""``: every form) →
            what it prints instead of working.
        changed: called when vNPUs came or went.
    """

    tool, forms, refusal = "npu-smi", FORMS, NpuError

    def __init__(self, spec: NodeSpec) -> None:
        self.version = spec.npu_driver
        self.exit_status = spec.npu_smi_status
        self.broken: dict[str, str] = {}
        self.changed: Callable[[], None] = _nothing
        self._npus: list[Npu] = []
        places = placed(spec)
        for logic, (npu, (card, number, phy)) in enumerate(zip(spec.npus, places, strict=True)):
            chip = CHIPS[npu.chip]
            made = Npu(chip, logic, phy, card, number, npu.bdf, npu.uuid or _uuid(spec.seed, logic))
            made.health = Health(npu.health)
            made.used_mib = chip.idle_mib if npu.used_mib is None else npu.used_mib
            made.busy, made.share = npu.busy, npu.share
            self._npus.append(made)
            for template, count in npu.vnpus.items():
                for _ in range(count):
                    self.create(made, template)

    def __iter__(self) -> Iterator[Npu]:
        return iter(self._npus)

    def __len__(self) -> int:
        return len(self._npus)

    def phy(self, phy: int) -> Npu:
        """The chip with that physical id.

        Raises:
            NpuError: none has it.
        """
        return self._one(lambda npu: npu.phy == phy, f"The chip of phy id {phy} does not exist.")

    def at(self, card: int, number: int) -> Npu:
        """The chip of that NPU ID and Chip ID.

        Raises:
            NpuError: there is none.
        """
        why = f"This device does not exist: NPU {card}, chip {number}."
        return self._one(lambda npu: (npu.card, npu.number) == (card, number), why)

    def _one(self, wanted: Callable[[Npu], bool], why: str) -> Npu:
        for npu in self._npus:
            if wanted(npu):
                return npu
        raise NpuError(why)

    # What goes wrong

    def ail(self, phy: int, health: str, codes: Sequence[int] = ()) -> None:
        """Let a chip be well or ill.

        Raises:
            NpuError: no such chip, no such word.
        """
        if health not in WORDS:
            raise NpuError(f"{health!r} is none of {', '.join(WORDS)}")
        npu = self.phy(phy)
        npu.health, npu.error_codes = Health(health), tuple(codes)

    # vNPUs

    def vnpu(self, number: int) -> tuple[Npu, Vnpu]:
        """A vNPU and the chip it is of.

        Raises:
            NpuError: there is none of that id.
        """
        for npu in self._npus:
            if number in npu.vnpus:
                return npu, npu.vnpus[number]
        raise NpuError(f"The vnpu {number} does not exist.")

    def create(
        self, npu: Npu, template: str, number: int | None = None, container: str | None = None
    ) -> Vnpu:
        """Cut a vNPU out of a chip.

        Args:
            npu: of this node.
            template: one of its chip's.
            number: the id; None: the lowest free one of the chip.
            container: who uses it from the start.

        Raises:
            NpuError: no such template; an id of another chip, or taken; not enough left of the chip.
        """
        size = npu.chip.template(template)
        if size is None:
            raise NpuError(f"The template {template} is not supported by {npu.chip.label}.")
        free = [i for i in npu.vnpu_ids if i not in npu.vnpus]
        if number is not None and number not in free:
            raise NpuError(f"The vnpu id {number} is not free on this chip.")
        if not free or npu.shortage(size):
            raise NpuError(f"The resources of the chip are not enough for {template}.")
        made = Vnpu(free[0] if number is None else number, size, container)
        npu.vnpus = dict(sorted({**npu.vnpus, made.number: made}.items()))
        self.changed()
        return made

    def destroy(self, number: int) -> None:
        """Give a vNPU back to its chip.

        Raises:
            NpuError: there is none of that id; a container uses it.
        """
        npu, vnpu = self.vnpu(number)
        if vnpu.container is not None:
            raise NpuError(f"The vnpu {number} is used by container {vnpu.container}.")
        del npu.vnpus[number]
        self.changed()

    def use(self, number: int, container: str | None) -> None:
        """Let a container hold a vNPU; None: it let go.

        Raises:
            NpuError: there is none of that id; another container has it.
        """
        npu, vnpu = self.vnpu(number)
        if container is not None and vnpu.container not in (None, container):
            raise NpuError(f"The vnpu {number} is used by container {vnpu.container}.")
        npu.vnpus[number] = replace(vnpu, container=container)

    def copy(self) -> Npus:
        """The same NPUs in the same state, independent; nobody is told of its changes yet."""
        twin = Npus.__new__(Npus)
        twin.version, twin.exit_status = self.version, self.exit_status
        twin.broken, twin.changed = dict(self.broken), _nothing
        twin._npus = [replace(npu, vnpus=dict(npu.vnpus)) for npu in self._npus]
        return twin


def placed(spec: NodeSpec) -> list[tuple[int, int, int]]:
    """(NPU ID, Chip ID, physical id) of every chip; what the node does not say is counted on."""
    found: list[tuple[int, int, int]] = []
    next_card = 0
    for index, npu in enumerate(spec.npus):
        room = CHIPS[npu.chip].per_card
        beside = bool(found) and found[-1][1] + 1 < room and spec.npus[index - 1].chip == npu.chip
        if npu.card is not None:
            card = npu.card
        elif beside and spec.npus[index - 1].card is None:
            card = found[-1][0]
        else:
            card = next_card
        number = sum(other == card for other, _, _ in found)
        found.append((card, number, index if npu.phy is None else npu.phy))
        next_card = max(next_card, card + 1)
    return found


def _uuid(seed: int, logic: int) -> str:
    """Five invented words of a VDie ID."""
    draw = Random(f"vdie {seed} {logic}")
    return "-".join(f"{draw.getrandbits(32):08X}" for _ in range(5))


def _nothing() -> None:
    """Nobody wants to know."""
