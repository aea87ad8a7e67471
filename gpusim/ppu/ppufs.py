"""What the PPU driver and its SDK leave in a node's file tree: device nodes, libraries, ppu-smi.

Device nodes, the SDK's directory and the libraries' names: ascend_ppu_hami.md C.2, PPU hardware facts,
decision 53. Majors are dynamic on real nodes; ours are those that nobody else has. The libraries are there
to be mounted and hold no code.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from gpusim.nodes import CharDev
from gpusim.ppu.ppu import Ppus

MODULE = "alixpu"
"""Name of the driver on the bus and among the modules."""
COMMON = ("alixpu", "alixpu_ctl", "alixpu_sep")
"""Nodes that every container needs, whichever PPU it has."""
STEM = "alixpu_ppu"
"""Before the minor in the name of a PPU's own node."""
DRIVERS = (STEM, *COMMON)
"""Names in /proc/devices, one major each (ours)."""
MODE = 0o666
SDK = "/usr/local/PPU_SDK"
LIBRARIES = ("libhggc.so", "libhggcrt.so", "libhgml.so")


def majors(dynamic: Sequence[int], taken: Container[int]) -> dict[str, int]:
    """Driver → its character major: the first dynamic ones that nobody has."""
    free = [major for major in dynamic if major not in taken]
    return dict(zip(DRIVERS, free, strict=False))


def nodes(ppus: Ppus, numbers: dict[str, int]) -> dict[str, CharDev]:
    """Name in /dev → node, for the state the PPUs are in; none without the driver."""
    if not ppus.loaded:
        return {}
    found = {name: (numbers[name], 0) for name in COMMON}
    found |= {f"{STEM}{ppu.minor}": (numbers[STEM], ppu.minor) for ppu in ppus.listed}
    return {name: CharDev(*number, MODE) for name, number in found.items()}


def files(version: str, sdk: str, places: Sequence[str]) -> dict[str, tuple[str, int]]:
    """Path → (content, mode) of what the installer writes.

    Args:
        version: of the driver.
        sdk: directory of libraries below the SDK, ``lib64`` or ``lib``.
        places: of ppu-smi.
    """
    texts = {f"{SDK}/{sdk}/{name}": "simulated\n" for name in LIBRARIES}
    texts[f"{SDK}/version.txt"] = f"{version}\n"
    programs = dict.fromkeys(places, ("simulated\n", 0o755))
    return {**{path: (text, 0o644) for path, text in texts.items()}, **programs}
