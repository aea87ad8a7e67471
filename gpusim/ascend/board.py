"""The NPUs of a node as `gpusim.machine` holds them: state, device numbers, files, and the program npu-smi.

Made only for a node that has NPUs, so that another pays nothing.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from gpusim import hostfs, programs
from gpusim.ascend import npufs, smi
from gpusim.ascend.check import check_npus
from gpusim.ascend.describe import describe
from gpusim.ascend.npu import Npus
from gpusim.nodes import CharDev, Node
from gpusim.spec import NodeSpec
from gpusim.tree import Tree
from gpusim.view import Completed


class Board:
    """A node's NPUs.

    Args:
        spec: the node.
        kfd: the major that is taken.
        dynamic: majors the kernel gives out.
        kept: the ordinary directories, which get the driver's files.

    Raises:
        SpecError: NPUs that cannot exist.
    """

    def __init__(self, spec: NodeSpec, kfd: int, dynamic: Sequence[int], kept: dict[str, Node]) -> None:
        check_npus(spec)
        self.npus = Npus(spec)
        self.majors = npufs.majors(kfd, dynamic)
        hostfs.lay(kept, npufs.files(spec.npu_driver, spec.npu_smi))

    def copy(self) -> Board:
        """An independent one in the same state."""
        twin = Board.__new__(Board)
        twin.npus, twin.majors = self.npus.copy(), self.majors
        return twin

    def describe(self) -> dict[str, object]:
        """The state as plain values."""
        return describe(self.npus)

    # Device nodes

    def nodes(self) -> dict[str, CharDev]:
        """Name in /dev → node, now."""
        return npufs.nodes(self.npus, self.majors)

    def owns(self, name: str) -> bool:
        """Whether only the driver makes this name in /dev."""
        return any(
            name.startswith(stem) and name[len(stem) :].isdecimal() for stem in ("davinci", "vdavinci")
        )

    def drives(self, major: int) -> bool:
        """Whether the major is the driver's."""
        return major in self.majors.values()

    def open(self, major: int, minor: int) -> None:
        """open(2) of a device number.

        Raises:
            OSError: ENODEV, no such device.
        """
        there = {(node.major, node.minor) for node in self.nodes().values()}
        if (major, minor) not in there:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))

    # Programs

    def run(self, tree: Tree, argv: Sequence[str], stdin: bytes) -> Completed:
        """npu-smi as root of the host runs it.

        Raises:
            OSError: ENOENT, no such program; EACCES, not executable.
        """
        programs.find(tree, argv[0], self.npus.tool)
        return smi.run(self.npus, argv[1:], stdin)
