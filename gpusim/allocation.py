"""One buffer that a process took of a GPU: the value that `gpusim.amd.vram` keeps and a client gets."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpusim.dmem import Pool


@dataclass(slots=True, eq=False)
class Allocation:
    """One buffer of a process. A client of a served machine has a copy, as it was when it asked."""

    number: int
    """Unique on the node, never reused."""
    pid: int
    bdf: str
    minor: int
    """Render minor of the partition it was made on."""
    bytes: int
    """What it takes: the size asked for, rounded up to whole pages."""
    place: str
    """``vram``, ``gtt`` (evicted, or fallen back), or ``freed``."""
    cgroup: str
    """Path of the group that is charged for it; empty while none is."""
    gpu_id: int = 0
    """KFD node it was made on; 0: through the render node alone."""
    handle: int | None = None
    """Open render node that owns it; None: the KFD context does."""
    pool: Pool | None = field(default=None, repr=False)
    """The dmem counter that is charged."""
    counted: bool = False
    """KFD counts it as VRAM asked for, wherever it lies since."""
    lost: bool = False
    """Its GPU was unplugged; only the charge is left."""
