"""Ascend chips by the name that npu-smi prints, and the templates each can be cut by.

Source: chip table of the shipped device configuration, ascend_ppu_hami.md A.3 (memory, AICore, AICPU,
templates); columns of ``npu-smi info`` and its memory total from the dumps ascend-310p3-hami-softslice,
ascend-910b4-1-npu-smi and ascend-910c-npu-smi. What no source says is our choice and marked so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Template:
    """A size a vNPU can have."""

    name: str
    memory_mib: int
    ai_cores: int
    ai_cpus: int = 0
    """0: the table counts no AICPU for this chip (910A)."""


@dataclass(frozen=True, slots=True)
class Chip:
    """One kind of chip."""

    name: str
    """As fixtures and configurations call it, ``910B4``."""
    memory_mib: int
    """What can be handed out: memoryAllocatable, not memoryCapacity (310P3: 21527 of 24576)."""
    ai_cores: int
    ai_cpus: int
    """0: not counted."""
    templates: tuple[Template, ...]
    shown_as: str = ""
    """Name column of npu-smi when it differs: 910C prints ``Ascend910``."""
    shown_mib: int = 0
    """Memory total of npu-smi when it differs: 21525 on 310P3, where 21527 is registered (A.4)."""
    per_card: int = 1
    """Chips of one NPU: two on 910C."""
    most_per_card: int = 0
    """Where boards with more of them exist: a 300I Duo has two 310P3 on one card (field report G row 14)."""
    hbm: bool = True
    """Whether npu-smi has the HBM column; 310P3 prints its memory in the other one, on a wider table."""
    phy_column: bool = False
    """Whether npu-smi has a Phy-ID column (dump ascend-910c-npu-smi)."""
    idle_mib: int = 3410
    """Used with no program on it; measured on 310P3, 910B4-1 and 910C, our choice elsewhere."""
    slice_prefix: str = ""
    """Before the template in a slice's name: ``310Pvir02`` (dump ascend-310pvir02-npu-smi); else the name."""

    @property
    def room(self) -> int:
        """Chips a card can have."""
        return max(self.per_card, self.most_per_card)

    @property
    def label(self) -> str:
        """Name column of npu-smi."""
        return self.shown_as or self.name

    @property
    def total_mib(self) -> int:
        """Memory total of npu-smi."""
        return self.shown_mib or self.memory_mib

    def template(self, name: str) -> Template | None:
        """The template of that name, if this chip has it."""
        return next((t for t in self.templates if t.name == name), None)

    def slice_mib(self, template: Template) -> int:
        """Memory total npu-smi shows inside a slice: the chip's share by AICore.

        It gives the 5381 of a vir02 (dump ascend-310pvir02-npu-smi), and A.3's own sizes on every other chip.
        """
        return self.total_mib * template.ai_cores // self.ai_cores


_B3 = (Template("vir05_1c_16g", 16384, 5, 1), Template("vir10_3c_32g", 32768, 10, 3))

_ROWS = (
    Chip(
        "910A",
        32768,
        30,
        0,
        (
            Template("vir02", 2184, 2),
            Template("vir04", 4369, 4),
            Template("vir08", 8738, 8),
            Template("vir16", 17476, 16),
        ),
    ),
    Chip(
        "910B2",
        65536,
        24,
        6,
        (
            Template("vir03_1c_8g", 8192, 3, 1),
            Template("vir06_1c_16g", 16384, 6, 1),
            Template("vir12_3c_32g", 32768, 12, 3),
        ),
    ),
    Chip("910B3", 65536, 20, 7, _B3),
    Chip("910B4-1", 65536, 20, 7, _B3),
    Chip(
        "910B4",
        32768,
        20,
        7,
        (Template("vir05_1c_8g", 8192, 5, 1), Template("vir10_3c_16g", 16384, 10, 3)),
    ),
    Chip("910C", 65536, 20, 7, _B3, shown_as="Ascend910", per_card=2, phy_column=True, idle_mib=3133),
    Chip(
        "310P3",
        21527,
        8,
        7,
        (Template("vir01", 3072, 1, 1), Template("vir02", 6144, 2, 2), Template("vir04", 12288, 4, 4)),
        shown_mib=21525,
        most_per_card=2,
        hbm=False,
        idle_mib=1848,
        slice_prefix="310P",
    ),
)

CHIPS: Mapping[str, Chip] = MappingProxyType({chip.name: chip for chip in _ROWS})
"""Every chip, in the order of A.3."""
