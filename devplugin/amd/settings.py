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
    compute_partition: str = ""
    """Partition idle GPUs are switched to at the start, in partition mode: ``spx``, …; empty: none."""
    split_count: int = 0
    """Sharers per soft GPU; 0 chooses per GPU (2 on gfx12 and later, else 10)."""
    allocator_policy: str = "besteffort"
    """``besteffort`` (also spelled ``binpack`` or empty) or ``spread``."""
    naming: str = "single"
    """``single`` or ``mixed``."""
    dmem_backend: bool = True
    exclude: tuple[str, ...] = ()
    """GPUs the node keeps for itself: PCI addresses as the kernel spells them, or DRM cards (``card1``)."""
    memory_scaling: float = 1.0
    """Factor on the registered memory of soft devices; finite and above 0 (decision 8)."""
    report_capacity: bool = False
    """Publish ``amd.com/gpumem`` and ``amd.com/gpucores`` as node capacity; removed when off."""
    cdi_dir: str = ""
    """Directory of the CDI specification; empty: containers get device nodes."""
    musl_fail_closed: bool = False
    """Look into the image of a slice, and refuse it when it cannot load the memory hook (amd.md 8)."""
    hip_log_level: int = 0
    """Log level of the memory hook, 1 to 4; 0 keeps the library's own."""
    pulse: int = 0
    """Seconds between health checks; 0 is off."""
    exporter_socket: str = ""
    """Socket of AMD's metrics exporter; empty: where it is by default."""
    hook_path: str = ""
    """HOST_HOOK_PATH: host prefix of ``/vgpu/libamvgpu.so``, without a slash at the end."""
    verbosity: int = 0
