"""What an Ascend node has, as immutable values: the one thing discovery makes and all else reads.

Numbers of memory and cores are those of the device configuration (A.3): nothing is measured. One node has
one kind of chip; another kind beside it is skipped with the reason.
"""

from __future__ import annotations

from dataclasses import dataclass

from devplugin.ascend.settings import ChipConfig, Settings


@dataclass(frozen=True, slots=True)
class Npu:
    """One chip: a logical device of the driver (ascend_ppu_hami.md A.4)."""

    uuid: str
    """VDie id, its words joined by ``-``: cached for life (decision 42)."""
    logic: int
    phy: int
    """Number of ``/dev/davinci<phy>`` and in ASCEND_VISIBLE_DEVICES."""
    card: int
    """NPU id of the tool, compared with filterDevices.index."""
    device: int
    """Chip id on its card."""
    name: str
    """As the tool says: ``910B4``."""
    healthy: bool = True
    reason: str = ""
    """The tool's word when it is not ``OK``."""


@dataclass(frozen=True, slots=True)
class Known:
    """What was once asked of a chip and does not change while the process lives (decision 42)."""

    card: int
    device: int
    logic: int
    """An answer belongs to this row of the tool's table: another logic id here is asked again."""
    uuid: str
    phy: int


@dataclass(frozen=True, slots=True)
class Skipped:
    """A device that is not offered, and why."""

    device: str
    reason: str


@dataclass(frozen=True, slots=True)
class Inventory:
    """Everything decisions need to know of the node's NPUs."""

    chip: ChipConfig | None = None
    """None: no NPU was seen yet, or the configuration does not know it."""
    npus: tuple[Npu, ...] = ()
    """By logic id; those that the operator keeps back are left out."""
    skipped: tuple[Skipped, ...] = ()
    warnings: tuple[str, ...] = ()
    """One line each, stable between passes."""
    trouble: str = ""
    """Why the last look failed, all of it (A.4: all or nothing); the NPUs are those of the look before."""
    tool: str = ""
    """Where npu-smi was found (A.5), empty while it was not."""
    known: tuple[Known, ...] = ()
    """Every chip ever asked, kept-back ones too."""

    def npu(self, uuid: str) -> Npu | None:
        """The NPU of that UUID."""
        return next((npu for npu in self.npus if npu.uuid == uuid), None)

    def shares(self, settings: Settings) -> int:
        """kubelet ids a card (A.2): the node's own number, else how often the smallest template fits."""
        if settings.count > 0:
            return settings.count
        if self.chip is None or not self.chip.templates:
            return 1
        return self.chip.allocatable_mib // self.chip.templates[0].memory_mib
