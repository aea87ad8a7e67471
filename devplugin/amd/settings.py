"""What an operator may choose for the AMD plugin, as one immutable value.

`flags` resolves it from, weakest first: defaults, flags and environment, node annotations (amd.md 1, 13;
decisions 32, 34).
"""

from __future__ import annotations

from dataclasses import dataclass

MODE_CU = "cu"
MODE_PARTITION = "partition"


@dataclass(frozen=True, slots=True)
class Settings:
    """Resolved choices; immutable for the life of the process."""

    node_name: str = ""
    mode: str = MODE_CU
    split_count: int = 0
    """Sharers per soft GPU; 0 chooses per GPU (2 on gfx12 and later, else 10)."""
    allocator_policy: str = "besteffort"
    """``besteffort`` (also spelled ``binpack`` or empty) or ``spread``."""
    naming: str = "single"
    """``single`` or ``mixed``."""
    dmem_backend: bool = True
    pulse: int = 0
    """Seconds between health checks; 0 is off."""
    hook_path: str = ""
    """HOST_HOOK_PATH: host prefix of ``/vgpu/libamvgpu.so``, without a slash at the end."""
    verbosity: int = 0
