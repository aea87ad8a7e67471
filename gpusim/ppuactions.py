"""What happens to a node's PPUs and to their driver, and what a container sees of them.

The actions of `gpusim.machine.Machine` that concern PPUs; state is in `gpusim.ppu`, imported only where a
node has some.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gpusim.amd.pci import Ids, Other
from gpusim.errors import GpusimError
from gpusim.hardware import Hardware
from gpusim.process import Handle
from gpusim.spec import NodeSpec
from gpusim.view import Completed

if TYPE_CHECKING:
    from gpusim.ppu.board import PpuBoard
    from gpusim.ppu.ppu import Ppus


class PpuActions(Hardware):
    """A node's PPUs; `Machine` fills in the state."""

    spec: NodeSpec
    _ppu_board: PpuBoard | None

    @property
    def ppus(self) -> Ppus:
        """The PPUs.

        Raises:
            GpusimError: the node has none.
        """
        return self._ppus().ppus

    def _ppus(self) -> PpuBoard:
        if self._ppu_board is None:
            raise GpusimError(f"{self.spec.name} has no PPUs: use a fixture with ppus, such as ppu/zw810e-1")
        return self._ppu_board

    def ppu_health(self, minor: int, health: str) -> None:
        """Let a PPU answer or not, by its minor and a word of `gpusim.ppu.health`.

        Raises:
            GpusimError: no such PPU, no such word.
        """
        self.ppus.ail(minor, health)
        self.events.append({"event": "ppu health", "minor": minor, "health": health})

    def ppu_use(self, minor: int, used_mib: int, busy: int = 0) -> None:
        """Let a PPU have that much memory in use and be busy that many percent of the time.

        Raises:
            GpusimError: no such PPU; more than it has.
        """
        self.ppus.use(minor, used_mib, busy)

    def ppu_vanish(self, minor: int) -> None:
        """Let a PPU fall off the bus, whoever uses it: their handles answer ENODEV from now on.

        Raises:
            GpusimError: no such PPU; it is gone already.
        """
        board = self._ppus()
        held = self._holding({(major, number) for major, number in self._numbers() if number == minor})
        board.ppus.vanish(minor)
        board.stale |= {handle.number for handle in held}
        self.events.append({"event": "ppu vanished", "minor": minor})

    def ppu_return(self, minor: int) -> None:
        """Let a vanished PPU be found again, under its minor and UUID.

        Raises:
            GpusimError: no such PPU; it is there.
        """
        self.ppus.come_back(minor)
        self.events.append({"event": "ppu returned", "minor": minor})

    def ppu_unload(self) -> None:
        """Unload the PPU driver: no node, and ppu-smi says so.

        Raises:
            GpusimError: it is not loaded.
            OSError: EBUSY, a process holds a device of it.
        """
        ppus = self.ppus
        held = self._holding({(node.major, node.minor) for node in self._ppus().nodes().values()})
        if ppus.loaded and held:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), held[0].path)
        ppus.load(loaded=False)
        self.events.append({"event": "ppu driver unloaded"})

    def ppu_load(self) -> None:
        """Load the PPU driver, as a node does whose driver comes late.

        Raises:
            GpusimError: it is loaded.
        """
        self.ppus.load(loaded=True)
        self.events.append({"event": "ppu driver loaded"})

    def ppu_smi_fails(self, form: str, output: str | None, status: int = 0) -> None:
        """Let ppu-smi print `output` and end with `status` instead of working; None: let it work again.

        Args:
            form: ``table``, ``-L``, ``-q``, ``--query-ppu``; empty: every form without a failure of its own.
            output: all it prints.
            status: 0 as the real one's (decision 54); it is also that of every refusal from now on.

        Raises:
            GpusimError: the node has no PPUs; no such form or status.
        """
        self.ppus.fail(form, output, status)

    def ppu_smi_unknown(self, minor: int, fields: Sequence[str]) -> None:
        """Let ppu-smi say N/A of these fields of a PPU, and of no others.

        Raises:
            GpusimError: no such PPU, no such field.
        """
        self.ppus.forget(minor, fields)

    def ppu_smi_inside(self, argv: Sequence[str], nodes: Sequence[str]) -> Completed:
        """ppu-smi as a container with these device nodes runs it.

        Raises:
            GpusimError: nodes that are not there, or that are not enough.
            OSError: ENOENT, another program.
        """
        from gpusim.ppu.inside import inside

        return inside(self.ppus, nodes).run(argv)

    def use(self, handle: Handle) -> None:
        """Do anything with an open device, such as an ioctl.

        Raises:
            OSError: EBADF, it was closed; ENODEV, its device was unplugged since.
        """
        super().use(handle)
        if self._ppu_board is not None and handle.number in self._ppu_board.stale:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV), handle.path)

    def _numbers(self) -> set[tuple[int, int]]:
        """Device numbers of the PPUs' own nodes."""
        from gpusim.ppu.ppufs import COMMON

        nodes = self._ppus().nodes().items()
        return {(node.major, node.minor) for name, node in nodes if name not in COMMON}

    def _holding(self, numbers: set[tuple[int, int]]) -> list[Handle]:
        """Who has one of these devices open."""
        files = [handle for process in self.processes for handle in process.files.values()]
        return [handle for handle in files if handle.rdev in numbers]

    def _ppus_on_the_bus(self) -> Mapping[str, Other]:
        """PCI address → device, for the view of the bus."""
        if self._ppu_board is None:
            return {}
        from gpusim.ppu.ppufs import MODULE
        from gpusim.ppu.products import VENDOR

        ppus = self._ppu_board.ppus
        found = {}
        for ppu in ppus:
            if ppu.present:
                number = ppu.product.device_id
                ids = Ids(VENDOR, number, (VENDOR, number), ppu.product.pci_class)
                found[ppu.bdf] = Other(ids, MODULE if ppus.loaded else None, ppu.numa)
        return found
