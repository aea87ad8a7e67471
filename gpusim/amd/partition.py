"""Compute partition modes: their names, what hardware has them, which memory mode allows them.

The arithmetic of drivers/gpu/drm/amd/amdgpu/aqua_vanjaram.c and amdgpu_gfx.c, apart from any state.

Sources: kernel.md 2.1-2.4 (prefix match, per-name hardware rule, legal modes per NPS, auto mode).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

MODES = ("SPX", "DPX", "TPX", "QPX", "CPX")
"""In the order the driver tests and prints them."""
MAX_PARTITIONS = 8
"""MAX_XCP: what a GPU reserves DRM devices for, whatever its XCC count."""

Rules = Literal["6.5", "6.10", "6.13", "dkms-6.16"]
"""Columns of kernel.md 2.3 by the release that introduced them."""


def named(data: bytes) -> str | None:
    """The mode a written text means: its first three letters, any case, nothing before them."""
    word = data[:3].decode("ascii", "replace").upper()
    return word if word in MODES else None


def partitions(mode: str, xccs: int) -> int:
    """How many partitions a GPU of `xccs` XCCs has in `mode`."""
    return {"SPX": 1, "DPX": 2, "TPX": 3, "QPX": 4, "CPX": xccs}[mode]


def hardware_has(mode: str, xccs: int) -> bool:
    """Whether a GPU of `xccs` XCCs can be cut this way: DPX needs a multiple of 4, TPX 6, QPX 8.

    An odd number of XCCs has no mode at all (kernel.md 2.1).
    """
    if xccs % 2:
        return False
    return {"DPX": xccs % 4 == 0, "TPX": xccs == 6, "QPX": xccs == 8}.get(mode, True)


def memory_allows(mode: str, nps: int, xccs: int, rules: Rules, *, vf: bool = False) -> bool:
    """Whether `mode` is legal while memory is in ``NPS<nps>`` (kernel.md 2.3, one column per release).

    The out-of-tree driver 6.14.14 follows the 6.13 column: on eight MI355X it lists CPX for NPS1 only
    although the firmware offers NPS2 (snapshot mi355x-8gpu-spx-6.8).
    """
    match mode:
        case "SPX":
            return nps == 1
        case "DPX":
            return nps != 8 if rules == "6.5" else nps in (1, 2)
        case "TPX":
            # The older test counts memory ranges, which is what NPS counts.
            return nps in (1, 4) if rules == "6.13" else nps in (1, 3)
        case "QPX":
            return nps in (1, 4)
        case "CPX":
            if rules == "dkms-6.16":
                return xccs % nps == 0
            return nps in (1, 4) or (rules == "6.13" and vf and nps == 2)
    return False


def static_list(xccs: int) -> Sequence[str]:
    """Modes printed by `available_compute_partition` up to 6.12: by XCC count, NPS ignored."""
    return {
        8: ("SPX", "DPX", "QPX", "CPX"),
        6: ("SPX", "TPX", "CPX"),
        4: ("SPX", "DPX", "CPX"),
        2: ("SPX", "CPX"),
    }.get(xccs, ())


def auto_mode(nps: int, xccs: int, rules: Rules) -> str | None:
    """The mode a driver chooses when it loads; None is printed as UNKNOWN (kernel.md 2.3)."""
    if nps == 1:
        return "SPX"
    if nps == 2:
        return "DPX"
    if nps * 2 == xccs:
        # 8 XCCs in NPS4 meant QPX until the change of May 2024 made it CPX.
        return "QPX" if rules == "6.5" else "CPX"
    return None
