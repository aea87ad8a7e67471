"""Kernel and driver releases as two axes, and what each combination does.

The table itself, a row with its sources for each difference, is `gpusim.kernel_rows` and, for small files of
the PCI directory, `gpusim.kernel_rows_pci`.

What DRM's and the cgroups' cores do depends on the running kernel; what amdgpu, amdkfd, amdxcp and TTM do,
on the driver: the kernel's own or a DKMS package from outside the tree (kernel.md 0). Nothing else in the
simulator asks for a version: a view asks the `Behaviour`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any

from gpusim.errors import GpusimError
from gpusim.kernel_rows import MODES, NpsRule, Row, Step, Version
from gpusim.kernel_rows import ROWS as FIRST_ROWS
from gpusim.kernel_rows_pci import PCI_ROWS

__all__ = [
    "MODES",
    "ROWS",
    "Behaviour",
    "NpsRule",
    "Row",
    "Step",
    "UnknownReleaseError",
    "Version",
    "behaviour",
    "explain",
    "parse_driver",
    "parse_kernel",
    "row_names",
]

ROWS: tuple[Row, ...] = (*FIRST_ROWS, *PCI_ROWS)
"""The whole table, in the order of `Behaviour`."""

_KERNEL = re.compile(
    r"(\d{1,2})\.(\d{1,3})(?:\.(\d{1,3}))?(?:-(\d{1,6}))?(?:[-.+~][0-9A-Za-z.+~_-]*[0-9A-Za-z])?"
)
_DKMS = re.compile(r"dkms-(\d{1,2})\.(\d{1,3})(?:\.(\d{1,3}))?")


class UnknownReleaseError(GpusimError):
    """A kernel or driver release that cannot be parsed or that no row describes."""


def parse_kernel(text: str) -> Version:
    """``6.8.0-136-generic`` → (6, 8, 0, 136); a part that is not there is 0.

    The fourth number is the distribution's ABI number, which tells Ubuntu's updates of a release apart.

    Raises:
        UnknownReleaseError: text is no kernel release.
    """
    match = _KERNEL.fullmatch(text)
    if match is None:
        raise UnknownReleaseError(f"kernel {text!r}: not a release such as 6.8.0-136-generic or 6.14")
    return tuple(int(part or 0) for part in match.groups())


def parse_driver(text: str) -> Version | None:
    """``dkms-6.14.14`` → (6, 14, 14); ``in-tree`` → None.

    Raises:
        UnknownReleaseError: text is neither.
    """
    if text == "in-tree":
        return None
    match = _DKMS.fullmatch(text)
    if match is None:
        raise UnknownReleaseError(f"driver {text!r}: neither in-tree nor dkms-A.B.C")
    return tuple(int(part or 0) for part in match.groups())


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What one kernel with one driver does. Every field is a row of `ROWS`, where its source stands."""

    kernel: str
    driver: str
    module_version: str | None = field(metadata={"row": False})
    """Content of /sys/module/amdgpu/version without newline; None: no such file."""
    module_version_file: bool
    """/sys/module/amdgpu/version exists."""
    # DRM core and cgroup core
    extended_minors: bool
    """Minors go on above 191 for both types once the 64 of a type are used up; else 64 is the limit."""
    control_links: bool
    """The PCI device's drm/ also lists controlD<64 + card>."""
    dmem_controller: bool
    """The cgroup controller ``dmem`` exists."""
    dmem_many_lines: bool
    """One write to a dmem limit may hold several lines; else exactly one pair."""
    dmem_bare_region: str
    """What a write of a region without a value does: ``oops``, or ``EINVAL`` alone."""
    dmem_peak: bool
    """File dmem.peak."""
    # amdgpu
    gfx950: bool
    """The driver knows GC 9.5.0; else an MI350X or MI355X is not bound at all."""
    dmem_region: bool
    """amdgpu registers its VRAM with the dmem controller."""
    xcp_separator: str
    """Between ``amdgpu_xcp`` and the number: ``.`` or ``_``."""
    xcp_lowest_free: bool
    """An XCP platform device takes the lowest free number; else a running counter."""
    xcp_freed_on_unplug: bool
    """XCP platform devices go with their GPU; else they stay behind without drm/."""
    available_compute: str
    """``static``: by XCC count; ``dynamic``: only modes legal under the current NPS."""
    vf_compute_files: str
    """``absent``, or ``read-only``: current_compute_partition 0444 and no available_compute_partition."""
    partition_config: bool
    """compute_partition_config/ exists."""
    memory_partition: str
    """``read-only``: current file only, 0444; ``fixed``: NPS1 and NPS4 of GC 9.4.3 only; ``firmware``: the
    product's list."""
    nps_rule: NpsRule
    """Which compute modes are legal under which NPS."""
    auto_half: str
    """Automatic compute mode when NPS = XCCs / 2."""
    busy_rule: str
    """What blocks a switch: ``machine``: any KFD process anywhere; ``device``: one that may use this GPU."""
    reset_errno: str
    """Writing a mode while the GPU resets: errno name, or empty: not checked."""
    reset_read: bool
    """Reading the partition files while the GPU resets is EPERM."""
    xcp_directory: bool
    """xcp/ in the PCI directory and in each XCP platform device, with xcp_metrics while valid."""
    # KFD
    kfd_legacy: bool
    """Key set, gpu_id hash and link values of the 5.x kernels."""
    kfd_gfx942_lines: bool
    """Cache line sizes of gfx942 are printed; else 0."""
    kfd_sdma_mask: bool
    """Link line recommended_sdma_engine_id_mask."""
    kfd_pcie_minimum: int
    """min_bandwidth of a GPU's PCIe link, MB/s."""
    kfd_queue_reset: bool
    """Bit 31 of capability on gfx9."""
    kfd_capability2: bool
    """Node line capability2."""
    kfd_cwsr: bool
    """Node lines cwsr_size and ctl_stack_size."""
    kfd_used_memory: bool
    """File used_memory in a GPU's memory bank."""
    kfd_xgmi_mbps: int
    """Bandwidth of one xGMI link of gfx942 and gfx950, MB/s."""
    kfd_gfx950_l3_by_nps: bool
    """The L3 size of gfx950 is divided by the NPS number, as that of gfx942 always is."""
    kfd_unique_id: str
    """``shared``: all partitions print the GPU's; ``xcd``: each prints its first XCC's id, in SPX too;
    ``xcd-but-spx``: in SPX the GPU's."""
    # Small files of the PCI directory
    fru_without_eeprom: bool
    """product_name, product_number and serial_number exist, empty, on cards that have no FRU EEPROM."""
    hwmon_board_voltage: bool
    """Sensor in2 of GC 9.4.3 and later."""
    enforce_isolation: bool
    """File enforce_isolation."""
    reset_masks: bool
    """Files gfx_reset_mask, sdma_reset_mask, …"""


@lru_cache(maxsize=256)
def behaviour(kernel: str, driver: str) -> Behaviour:
    """What this kernel with this driver does.

    Args:
        kernel: running kernel's release, as ``uname -r`` prints it.
        driver: ``in-tree`` or ``dkms-A.B.C``.

    Raises:
        UnknownReleaseError: a release that cannot be parsed, or in-tree 6.0 to 6.4, of which no source tells.
    """
    release, dkms = parse_kernel(kernel), parse_driver(driver)
    if dkms is None and (6, 0) <= release < (6, 5):
        raise UnknownReleaseError(
            f"kernel {kernel!r}: nothing is known of amdgpu from 6.0 to 6.4; 5.x and 6.5 on are described"
        )
    values: dict[str, Any] = {row.name: row.value(release, dkms) for row in ROWS}
    values["module_version"] = driver.removeprefix("dkms-") if values["module_version_file"] else None
    return Behaviour(kernel=kernel, driver=driver, **values)


def explain(kernel: str, driver: str) -> Iterator[tuple[str, Any, str, str]]:
    """Name, value, tag and source of every row for this kernel and driver."""
    release, dkms = parse_kernel(kernel), parse_driver(driver)
    for row in ROWS:
        step = row.step(release, dkms)
        yield row.name, step.value, step.tag, step.source


def row_names() -> tuple[str, ...]:
    """Fields of `Behaviour` that must have a row: all but the two releases and what is derived from a row."""
    return tuple(
        f.name
        for f in fields(Behaviour)
        if f.name not in {"kernel", "driver"} and f.metadata.get("row", True)
    )
