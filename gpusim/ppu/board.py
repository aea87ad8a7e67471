"""The PPUs of a node as `gpusim.machine` holds them: state, device numbers, files, and the program ppu-smi.

Made only for a node that has PPUs, so that another pays nothing.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Container, Sequence

from gpusim import hostfs, programs
from gpusim.nodes import CharDev, Node
from gpusim.ppu import ppufs, smi
from gpusim.ppu.check import check_ppus
from gpusim.ppu.describe import describe
from gpusim.ppu.health import Health
from gpusim.ppu.ppu import Ppus
from gpusim.spec import NodeSpec
from gpusim.tree import Tree
from gpusim.view import Completed


class PpuBoard:
    """A node's PPUs.

    Args:
        spec: the node.
        taken: majors that somebody has.
        dynamic: majors the kernel gives out.
        kept: the ordinary directories, which get the installer's files.

    Attributes:
        stale: handles of PPUs that vanished since they were opened.

    Raises:
        SpecError: PPUs that cannot exist.
    """

    def __init__(
        self, spec: NodeSpec, taken: Container[int], dynamic: Sequence[int], kept: dict[str, Node]
    ) -> None:
        check_ppus(spec)
        self.ppus = Ppus(spec)
        self.majors = ppufs.majors(dynamic, taken)
        self.stale: frozenset[int] = frozenset()
        hostfs.lay(kept, ppufs.files(spec.ppu_driver, spec.ppu_sdk, spec.ppu_smi))

    def copy(self) -> PpuBoard:
        """An independent one in the same state."""
        twin = PpuBoard.__new__(PpuBoard)
        twin.ppus, twin.majors, twin.stale = self.ppus.copy(), self.majors, self.stale
        return twin

    def describe(self) -> dict[str, object]:
        """The state as plain values."""
        return describe(self.ppus)

    # Device nodes

    def nodes(self) -> dict[str, CharDev]:
        """Name in /dev → node, now."""
        return ppufs.nodes(self.ppus, self.majors)

    def owns(self, name: str) -> bool:
        """Whether only the driver makes this name in /dev."""
        return name in ppufs.COMMON or (name.startswith(ppufs.STEM) and name[len(ppufs.STEM) :].isdecimal())

    def drives(self, major: int) -> bool:
        """Whether the major is the driver's, and it is loaded."""
        return self.ppus.loaded and major in self.majors.values()

    def open(self, major: int, minor: int) -> None:
        """open(2) of a device number.

        Raises:
            OSError: ENODEV, no such device; EIO, it does not answer.
        """
        if major != self.majors[ppufs.STEM]:
            code = errno.ENODEV if minor else 0
        else:
            found = [ppu for ppu in self.ppus.listed if ppu.minor == minor]
            code = errno.ENODEV if not found else errno.EIO if found[0].health is Health.HUNG else 0
        if code:
            raise OSError(code, os.strerror(code))

    def run(self, tree: Tree, argv: Sequence[str]) -> Completed:
        """ppu-smi as root of the host runs it.

        Raises:
            OSError: ENOENT, no such program; EACCES, not executable.
        """
        programs.find(tree, argv[0], self.ppus.tool)
        return smi.run(self.ppus, argv[1:])
