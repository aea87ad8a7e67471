"""npu-smi where a container runs: only what the runtime gave it is there, and nothing can be changed.

A template container sees its slice, ``310Pvir02`` (dump ascend-310pvir02-npu-smi). A soft container sees
the memory the accounting tracks of its quota, the card's own utilisation (decision 51), and NPU IDs from
32768 on (dump ascend-310p3-hami-softslice, one card; that a second one is 32769 is our choice).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpusim.ascend.npu import Npu, Npus
from gpusim.ascend.smi import overview
from gpusim.ascend.smitext import Row
from gpusim.view import Completed

SOFT_NPU = 32768


@dataclass(frozen=True, slots=True)
class Inside:
    """A container's npu-smi.

    Attributes:
        npus: of the node.
        phys: physical ids it was given, in ascending order (decision 39).
        vnpu: the slice it was given instead of the one whole chip; None: whole chips.
        quota_mib: limit of each device of a soft container; None: it is none.
        tracked: MiB in use of the device with that rank, of a soft container; None: nobody can tell, and no
            number is shown.
    """

    npus: Npus
    phys: tuple[int, ...]
    vnpu: int | None = None
    quota_mib: int | None = None
    tracked: Callable[[int], int | None] = lambda rank: 0

    def run(self, argv: Sequence[str], *, timeout: float = 30.0, stdin: bytes = b"") -> Completed:
        """``npu-smi info``; any other form is refused, the management interface is not in a container.

        Raises:
            OSError: ENOENT, another program.
        """
        if argv[0].rpartition("/")[2] != self.npus.tool:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), argv[0])
        if (failure := self.npus.failure("info")) is not None:
            return failure
        if list(argv[1:]) != ["info"]:
            text = "This operation is not supported in a container.\n"
            return Completed(self.npus.exit_status, text.encode(), b"")
        rows = [self._row(rank, self.npus.phy(phy)) for rank, phy in enumerate(sorted(self.phys))]
        return Completed(0, overview(self.npus, rows).encode(), b"")

    def _row(self, rank: int, npu: Npu) -> Row:
        card, name, total = npu.card, npu.chip.label, npu.chip.total_mib
        used: int | None = npu.used_mib
        if self.vnpu is not None:
            template = self.npus.vnpu(self.vnpu)[1].template
            name = (npu.chip.slice_prefix or npu.chip.label) + template.name
            used, total = 0, npu.chip.slice_mib(template)
        elif self.quota_mib is not None:
            card, used, total = SOFT_NPU + rank, self.tracked(rank), self.quota_mib
        first = npu.number == 0 or self.quota_mib is not None
        return Row(card, npu.number, npu.phy, name, npu.health.value, npu.bdf, npu.busy, used, total, first)
