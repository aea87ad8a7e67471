"""What a comparison of two nodes does not take literally, each row with its reason.

A glob is matched with the path as `walk.place` writes it: PCI devices by address below
``/sys/bus/pci/devices``, ``hwmon*`` without its number; ``*`` crosses slashes. ``GLOB#FIELD`` is one line of
a ``name value`` file. Sources: kernel.md 3, kfd.md 1, and the captures that show a reading move.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from gpusim.snapshots import identifiers


@dataclass(frozen=True, slots=True)
class Rule:
    """Files, or one line of them, that are not compared."""

    glob: str
    reason: str
    absent: bool = False
    """One side may also lack them altogether."""

    @property
    def path(self) -> str:
        """The glob without the field."""
        return self.glob.partition("#")[0]

    @property
    def field(self) -> str:
        """The line that is meant; empty: the whole file."""
        return self.glob.partition("#")[2]


def rule(text: str) -> Rule:
    """``GLOB`` or ``GLOB=reason``, as ``--ignore`` takes it; one that starts with a name matches anywhere."""
    glob, _, reason = text.partition("=")
    glob = glob if glob.startswith(("/", "*")) else f"*/{glob}"
    return Rule(glob, reason or "ignored by the caller", absent=True)


def reason(rules: tuple[Rule, ...], path: str, field: str = "", *, absent: bool = False) -> str | None:
    """Why this file, or this line of it, is not compared; None: it is.

    Args:
        rules: the rows, first match wins.
        path: place of the file.
        field: name of the line; empty: the whole file.
        absent: it is about a file that one side lacks.
    """
    for row in rules:
        fits = row.field in ("", field) if field else not row.field
        if fits and (row.absent or not absent) and fnmatchcase(path, row.path):
            return row.reason
    return None


IN_USE = (
    Rule("*/mem_info_*_used", "memory in use"),
    Rule("*/used_memory", "memory in use"),
    Rule("/sys/fs/cgroup/*/dmem.current", "memory in use"),
    Rule("/sys/fs/cgroup/*/dmem.peak", "memory in use"),
    Rule("/sys/fs/cgroup/dmem.current", "memory in use"),
)
"""Memory in use: it moves, but a fixture can say it (``vram_used``)."""

READINGS = (
    Rule("*_busy_percent", "load of the moment"),
    Rule("*/hwmon/hwmon*/*_input", "reading of a sensor"),
    Rule("*/hwmon/hwmon*/*_average", "reading of a sensor"),
    Rule("*/hwmon/hwmon*/fan1_target", "follows the temperature"),
    Rule("*/hwmon/hwmon*/pwm1", "follows the temperature"),
    Rule("*/power/*_time", "time since boot"),
    Rule("*/power/runtime_status", "sleeps and wakes"),
    Rule("*/power_state", "sleeps and wakes"),
    Rule("*/power/wakeup_*", "counts events"),
    Rule("*/gpu_metrics", "table of readings", absent=True),
    Rule("*/pm_metrics", "table of readings", absent=True),
    Rule("*/xcp_metrics", "table of readings", absent=True),
    Rule("*/pcie_bw", "counts bytes", absent=True),
    Rule("*/pcie_replay_count", "counts events"),
    Rule("*/aer_*", "counts errors"),
    Rule("*/ras/*", "counts errors", absent=True),
    Rule("*/irq", "the kernel numbers interrupts as they come"),
    Rule("*/msi_irqs/*", "the kernel numbers interrupts as they come", absent=True),
    Rule("/sys/class/hwmon/*", "the kernel numbers sensor chips as they come", absent=True),
    Rule("*/kfd/proc/*", "processes of the moment", absent=True),
)
"""Counters and telemetry: names are compared, contents are of one moment."""

COUNTERS = (*IN_USE, *READINGS)
"""What `diff` ignores unless told otherwise."""

_UNMODELLED = {
    "*/ip_discovery/*": "the chip's own table of its blocks and their addresses",
    "*/pp_dpm_*": "clock tables of the firmware, with the level of the moment",
    "*/pp_features": "feature list of the firmware",
    "*/pp_od_clk_voltage": "overclocking table of the board",
    "*/pp_power_profile_mode": "profile table of the firmware",
    "*/pp_table": "table of the firmware",
    "*/gpu_od/*": "fan curve of the board and its user",
    "*/usbc_pd_fw": "USB-C controller of one board",
    "*/vbios_version": "the board's BIOS",
    "*/fw_version/*": "firmware package of the host; mec and sdma, which KFD prints too, are compared",
    "*/link/*": "PCIe power saving as the host's BIOS set it",
    "*/resource?_resize": "sizes the board's BAR can take",
    "*/local_cpus": "width of the mask: how many CPUs the BIOS leaves room for",
    "*/power_dpm_force_performance_level": "the user's choice",
    "*/hwmon/hwmon*/power1_cap": "the user's choice, below power1_cap_default",
    "*/hwmon/hwmon*/power/autosuspend_delay_ms": "answers EIO: the recorder kept nothing",
    "*/product_number": "part number of one board",
}
UNMODELLED = tuple(Rule(glob, reason, absent=True) for glob, reason in _UNMODELLED.items())
"""What no rule gives: of the firmware, the board or its user. What is equal all the same counts as equal."""

IDENTIFIER_FIELDS = {**dict.fromkeys(identifiers.KFD_FIELDS, 10), "gpu_id": 10}
"""Lines of ``properties`` that name one GPU or hive → base of the number."""

IDENTIFIER_FILES = {
    **dict.fromkeys(identifiers.HEX_FILES, 16),
    **dict.fromkeys(identifiers.DECIMAL_FILES, 10),
    **dict.fromkeys(identifiers.TEXT_FILES, 0),
    "gpu_id": 10,
    "srcversion": 0,
}
"""Files whose whole text names one thing → base of the number in it; 0: it is a text.

KFD's gpu_id is a hash of a GPU's place and memory, ``srcversion`` one of the driver's sources.
"""
