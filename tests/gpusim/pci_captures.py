"""Which files of a recorded PCI or platform directory a machine must give, and why not the others.

Every captured file is one of: *equal*, byte for byte; *moving*, telemetry whose name must be there;
*excluded*, with the reason beside its pattern. A pattern that meets no file of any capture is an error, so
the lists cannot rot.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from gpusim.machine import Machine

MARKER = ".captured-as-directory"

MOVING = {
    # Telemetry: the name is compared, the reading is of one moment.
    "*/device/*_busy_percent": "load",
    "*/device/mem_info_*_used": "memory in use",
    "*/hwmon*/*_input": "reading",
    "*/hwmon*/power1_average": "reading",
    "*/hwmon*/fan1_target": "follows the temperature",
    "*/hwmon*/pwm1": "follows the temperature",
    "*/device/power/runtime_active_time": "time since boot",
    "*/device/irq": "the host's numbering of interrupts",
}

EXCLUDED = {
    # Binary tables and texts of firmware: nothing here can compute them.
    "*/device/gpu_metrics": "binary table of the firmware",
    "*/device/ip_discovery/*": "the chip's own table of its blocks and their addresses",
    "*/device/pp_dpm_*": "clock tables of the firmware, with the level of the moment",
    "*/device/pp_features": "feature list of the firmware",
    "*/device/pp_od_clk_voltage": "overclocking table of the board",
    "*/device/pp_power_profile_mode": "profile table of the firmware",
    "*/device/gpu_od/*": "fan curve of the board and its user",
    "*/device/usbc_pd_fw": "USB-C controller of one board",
    "*/device/vbios_version": "the board's BIOS",
    "*/device/pcie_bw": "answers an error: the recorder kept nothing",
    # Firmware files of the host; mec and sdma are compared, KFD prints them too.
    "*/device/fw_version/[!ms]*_fw_version": "firmware package of the host",
    "*/device/fw_version/mc_*": "firmware package of the host",
    "*/device/fw_version/me_*": "firmware package of the host",
    "*/device/fw_version/mec2_*": "firmware package of the host",
    "*/device/fw_version/mes_*": "firmware package of the host",
    "*/device/fw_version/s[!d]*": "firmware package of the host",
    "*/device/fw_version/sdma2_*": "firmware package of the host",
    # The host and its user.
    "*/device/link/*": "PCIe power saving as the host's BIOS set it",
    "*/device/msi_irqs/*": "the host's numbering of interrupts",
    "*/device/resource?_resize": "sizes the board's BAR can take",
}

HOST = {
    # One capture each.
    ("rdna2-rx6900xt", "*/device/local_cpus"): "width of the mask: how many CPUs the BIOS leaves room for",
    ("rdna2-rx6900xt", "*/hwmon*/power/autosuspend_delay_ms"): "EIO: the recorder kept nothing",
    ("rdna4-rx9070", "*/power_dpm_force_performance_level"): "the user's choice",
    ("rdna4-rx9070", "*/hwmon*/power1_cap"): "the user's choice, below power1_cap_default",
    ("gcn1-hd7870-radeon-driver", "*/hwmon/*"): "sensors of another driver, whose displays are not modelled",
    ("gcn1-hd7870-radeon-driver", "*/current_link_*"): "link of a display that is not modelled",
}

FIXTURES = {
    "apu-strixpoint-890m": "apu/strixpoint-890m",
    "gcn1-hd7870-radeon-driver": "gcn1/hd7870-radeon",
    "mi300a-4apu-spx": "mi300a/spx-intree",
    "mi355x-8gpu-spx-6.8": "mi355x/spx-6.8",
    "rdna2-rx6900xt": "rdna2/rx6900xt",
    "rdna4-rx9070": "rdna4/rx9070",
}
"""Capture → the fixture that describes its node. Those with nothing outside KFD are not here."""


@dataclass(frozen=True, slots=True)
class Captured:
    """The files of one capture outside KFD, by what is asked of them; paths below ``sys/``."""

    equal: dict[str, bytes]
    moving: dict[str, str]
    """Path → reason."""
    excluded: dict[str, str]
    directories: tuple[str, ...]
    """Recorded by name alone."""


def captured(snapshots: Path, name: str) -> Captured:
    """Sort the files of a capture."""
    top = snapshots / name / "sys"
    found = Captured({}, {}, {}, tuple(sorted(_directories(top))))
    for path in sorted(top.rglob("*")):
        where = path.relative_to(top).as_posix()
        if path.name == MARKER or "/kfd/" in where or not (path.is_symlink() or path.is_file()):
            continue
        if reason := _first(where, EXCLUDED) or _own(name, where):
            found.excluded[where] = reason
        elif reason := _first(where, MOVING):
            found.moving[where] = reason
        else:
            # Recorders pad with NUL (PROVENANCE of the captures). A link is its target.
            link = path.is_symlink()
            found.equal[where] = str(path.readlink()).encode() if link else path.read_bytes().rstrip(b"\0")
    return found


def _directories(top: Path) -> Iterator[str]:
    for path in top.rglob(MARKER):
        if "/kfd/" not in path.as_posix():
            yield path.parent.relative_to(top).as_posix()


def _first(where: str, patterns: dict[str, str]) -> str | None:
    return next((reason for pattern, reason in patterns.items() if fnmatchcase(where, pattern)), None)


def _own(name: str, where: str) -> str | None:
    return next(
        (
            reason
            for (board, pattern), reason in HOST.items()
            if board == name and fnmatchcase(where, pattern)
        ),
        None,
    )


def place(machine: Machine, where: str) -> str:
    """The machine's path of a captured one: the number after ``hwmon`` is arbitrary on both sides."""
    match = re.fullmatch(r"(.*/hwmon)/hwmon\d+(/.*)", where)
    if match is None:
        return f"/sys/{where}"
    (chip,) = machine.list(f"/sys/{match[1]}")
    return f"/sys/{match[1]}/{chip}{match[2]}"


def content(machine: Machine, where: str) -> bytes:
    """What the machine has at a captured path: a file's bytes, a link's target."""
    path = place(machine, where)
    if machine.stat(path, follow=False).kind.name == "LINK":
        return machine.readlink(path).encode()
    return machine.read(path)


def unused(snapshots: Path) -> set[str]:
    """Patterns that meet no file of any capture."""
    files = {
        (name, path.relative_to(snapshots / name / "sys").as_posix())
        for name in FIXTURES
        for path in (snapshots / name / "sys").rglob("*")
        if path.is_file()
    }
    general = {p for p in (*MOVING, *EXCLUDED) if not any(fnmatchcase(where, p) for _, where in files)}
    own = {p for name, p in HOST if not any(n == name and fnmatchcase(where, p) for n, where in files)}
    return general | own
