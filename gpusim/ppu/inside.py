"""ppu-smi where a container runs: only the PPUs whose nodes it was given are there.

The SDK numbers them from 0 on, in the order the host has them (ascend_ppu_hami.md C.2: renumbered inside the
container; the order is our choice). Nothing public says that PPU-HAMi-core stands in front of ppu-smi, so
memory and utilisation are the whole card's.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpusim.ppu import smi
from gpusim.ppu.ppu import Ppu, PpuError, Ppus
from gpusim.ppu.ppufs import COMMON, STEM
from gpusim.view import Completed

_DEV = "/dev/"


@dataclass(frozen=True, slots=True)
class PpuInside:
    """A container's PPUs and its ppu-smi.

    Attributes:
        ppus: of the node.
        minors: of the PPUs it was given.
    """

    ppus: Ppus
    minors: tuple[int, ...]

    @property
    def devices(self) -> tuple[Ppu, ...]:
        """By the index they have in the container; none without the driver."""
        return tuple(ppu for ppu in self.ppus.listed if ppu.minor in self.minors)

    def run(self, argv: Sequence[str], *, timeout: float = 30.0, stdin: bytes = b"") -> Completed:
        """ppu-smi in any of its forms.

        Raises:
            OSError: ENOENT, another program.
        """
        if argv[0].rpartition("/")[2] != self.ppus.tool:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), argv[0])
        return smi.run(self.ppus, argv[1:], self.devices)


def inside(ppus: Ppus, nodes: Iterable[str]) -> PpuInside:
    """The PPUs of a container with these device nodes.

    Args:
        ppus: of the node.
        nodes: paths on the host, ``/dev/alixpu_ppu3``; others than PPUs' do no harm.

    Raises:
        PpuError: a node of a PPU that is not there; a PPU without the nodes that go with every PPU.
    """
    names = {path.removeprefix(_DEV) for path in nodes}
    listed = {f"{STEM}{ppu.minor}": ppu.minor for ppu in ppus.listed}
    asked = {name for name in names if name.startswith(STEM)}
    if missing := sorted(asked - listed.keys()):
        raise PpuError(
            f"{_DEV}{missing[0]}: no such device on this node; it has {', '.join(listed) or 'none'}"
        )
    if asked and (missing := [name for name in COMMON if name not in names]):
        raise PpuError(f"a container with PPUs needs {_DEV}{missing[0]}, too: add it to its devices")
    return PpuInside(ppus, tuple(sorted(listed[name] for name in asked)))
