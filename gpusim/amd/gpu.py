"""One simulated GPU: what it is, and the few things about it that change.

A partition switch sets one field here (and changes the KFD topology), and every file
of `gpusim.amd.pci` and `gpusim.amd.drmfs` is computed from these fields when somebody reads it.
"""

from __future__ import annotations

import copy
import errno
import os
from dataclasses import dataclass

from gpusim.amd.drm import Nodes
from gpusim.amd.kfd import GpuFacts
from gpusim.amd.products import Product
from gpusim.nodes import Caller
from gpusim.spec import GpuSpec


@dataclass(slots=True, eq=False)
class Gpu:
    """A GPU in its slot, whether it is plugged in, bound to a driver, or neither."""

    index: int
    """Place in the description, which is the order of probing at boot."""
    spec: GpuSpec
    facts: GpuFacts
    """What does not change while the machine runs, resolved once."""
    home: str
    """Its directory below /sys/devices."""
    numa: int | None
    """numa_node as the PCI core knows it; root may write it. None: no such file."""
    mode: str
    nps: int
    vram_used: int
    """Bytes: the driver's base use and what processes have."""
    present: bool = True
    """False after a hot-remove."""
    driver: str | None = None
    """Driver bound to the device."""
    drm: tuple[Nodes, ...] = ()
    """DRM devices by partition; shorter than 8 when minors ran out, empty without amdgpu."""
    platform: tuple[int, ...] = ()
    """Numbers of the XCP platform devices of partitions 1, 2, …"""
    gtt_used: int = 0
    """Bytes of system memory behind its table."""
    config: str = ""
    """Compute mode whose numbers compute_partition_config/ shows; empty: amdgpu never drove it."""
    level: str = "auto"
    """power_dpm_force_performance_level."""
    isolation: tuple[int, ...] = ()
    """enforce_isolation as it was last written; partitions beyond it have 0."""
    wants: str | None = "amdgpu"
    """Driver that takes it when it is probed."""
    resetting: bool = False
    """amdgpu resets it just now."""
    hung: bool = False
    """It fell off the bus, or does not answer for another reason."""
    probe_fails: bool = False
    """Its firmware does not start: amdgpu's probe fails."""

    @property
    def bdf(self) -> str:
        """PCI address."""
        return self.spec.bdf

    @property
    def product(self) -> Product:
        """Its row of the product table."""
        return self.facts.product

    @property
    def partitions(self) -> int:
        """How many partitions the current mode makes."""
        return self.product.partitions(self.mode)

    @property
    def bound(self) -> bool:
        """Whether amdgpu drives it."""
        return self.driver == "amdgpu"

    def copy(self) -> Gpu:
        """An independent GPU in the same state."""
        return copy.copy(self)


def not_resetting(gpu: Gpu, _: Caller | None = None) -> None:
    """What amdgpu's own attributes ask before they answer (amdgpu_pm.c; kernel.md 7).

    Raises:
        OSError: EPERM, the GPU is in reset.
    """
    if gpu.resetting:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))


def answers(gpu: Gpu, _: Caller | None = None) -> None:
    """What an attribute meets that has to ask the hardware itself (kernel.md 7).

    Raises:
        OSError: EPERM, in reset; EIO, the GPU hangs (which errno differs by attribute: EIO, ETIME, …).
    """
    not_resetting(gpu)
    if gpu.hung:
        raise OSError(errno.EIO, os.strerror(errno.EIO))
