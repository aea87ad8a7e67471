"""The kernel's dmem controller: can it limit VRAM on this node, of which GPUs, and setting a pod's limits.

It takes cgroup v2 with the ``dmem`` controller (6.14 and later) and kubelet's systemd cgroup driver;
amdgpu must have registered a region for the GPU (in-tree since 6.15-rc2; out-of-tree where the kernel
has the helper). Sources: amd.md 7, kernel.md 4.1 to 4.3 and 5, decisions 30 and 31.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from devplugin.host import Host, words

CGROUP_ROOT = "/sys/fs/cgroup"
CONTROLLERS = f"{CGROUP_ROOT}/cgroup.controllers"
CAPACITY = f"{CGROUP_ROOT}/dmem.capacity"
KUBEPODS = f"{CGROUP_ROOT}/kubepods.slice"

_UID = re.compile(r"[0-9A-Za-z](?:[-0-9A-Za-z]{0,126}[0-9A-Za-z])?")
_GONE = frozenset({errno.ENOENT, errno.ENODEV})
"""ENODEV: the cgroup was removed between open and write (kernel.md 4.3)."""


@dataclass(frozen=True, slots=True)
class Usable:
    """Whether dmem limits can be set here, and one line that says why not."""

    ok: bool
    reason: str
    """Empty when usable."""


def usable(host: Host) -> Usable:
    """Controller listed and kubelet's slice present; otherwise the first thing that is missing."""
    try:
        controllers = host.read(CONTROLLERS).split()
    except OSError as error:
        return Usable(False, f"{CONTROLLERS}: {words(error)}")
    if b"dmem" not in controllers:
        return Usable(False, f"{CONTROLLERS} does not list dmem (kernel 6.14 or later has it)")
    try:
        kind = host.stat(KUBEPODS).kind
    except OSError as error:
        return Usable(False, f"{KUBEPODS}: {words(error)} (kubelet's systemd cgroup driver makes it)")
    if kind.name != "DIRECTORY":
        return Usable(False, f"{KUBEPODS} is no directory")
    return Usable(True, "")


def regions(host: Host) -> tuple[str, ...]:
    """Names of all registered regions, as `dmem.capacity` spells them; empty when it cannot be read."""
    try:
        text = host.read(CAPACITY).decode("utf-8", "replace")
    except OSError:
        return ()
    return tuple(fields[0] for line in text.splitlines() if (fields := line.split()))


def region_of(bdf: str, known: Iterable[str]) -> str | None:
    """The region of one PCI GPU in the kernel's own spelling, or None: that GPU stays uncapped.

    One region a GPU, ``drm/<bdf>/vram``; partitions have none of their own (kernel.md 4.1).
    """
    wanted = f"drm/{bdf}/vram".lower()
    return next((name for name in known if name.lower() == wanted), None)


def pod_group(uid: str, qos: str) -> str:
    """Directory of a pod's cgroup under kubelet's systemd driver (kernel.md 5, amd.md 7).

    Args:
        uid: kubelet's uid of the pod: 8-4-4-4-12 hex digits, of a static pod 32 without dashes.
        qos: ``Guaranteed``, ``Burstable`` or ``BestEffort``; anything else counts as Guaranteed.

    Raises:
        ValueError: a uid that is not letters, digits and dashes and so must not get into a path.
    """
    if not _UID.fullmatch(uid):
        raise ValueError(f"{uid[:80]!a} is no pod uid")
    part = {"Burstable": "-burstable", "BestEffort": "-besteffort"}.get(qos, "")
    parent = f"{KUBEPODS}/kubepods{part}.slice" if part else KUBEPODS
    return f"{parent}/kubepods{part}-pod{uid.replace('-', '_')}.slice"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one pod's limits; regions by their name."""

    no_group: bool = False
    """The cgroup is not there: not yet, or not any more."""
    no_file: bool = False
    """The cgroup is there, its ``dmem.max`` is not: no ancestor hands the controller down to it."""
    replaced: Mapping[str, str] = field(default_factory=dict)
    """What stood there before, where ours stands now and did not before."""
    kept: Mapping[str, str] = field(default_factory=dict)
    """What the kernel still says after it accepted our write: a limit below use is not taken."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """Why a limit could not be written or read."""

    @property
    def holds(self) -> bool:
        """Whether every limit is in force."""
        return not (self.no_group or self.no_file or self.kept or self.failed)


def set_limits(host: Host, group: str, limits: Mapping[str, int]) -> Outcome:
    """Make ``dmem.max`` of a cgroup say these bytes; what says so already is not written.

    One line a write, because kernels before 7.2 stop at the first bad line and later ones take only one
    (kernel.md 4.3). Then it is read back, for only that tells whether a limit was taken (decision 30).
    Never raises OSError.
    """
    path = f"{group}/dmem.max"
    try:
        before = _values(host.read(path))
    except OSError as error:
        return _unreadable(host, group, limits, error)
    failed: dict[str, str] = {}
    written: list[str] = []
    for region, limit in limits.items():
        if region not in before:
            failed[region] = f"{path} does not list it (any more)"
        elif before[region] != str(limit):
            try:
                host.write(path, f"{region} {limit}\n".encode())
            except OSError as error:
                failed[region] = f"{path}: {words(error)}"
            else:
                written.append(region)
    if not written and not failed:
        return Outcome()
    try:
        after = _values(host.read(path))
    except OSError as error:
        return _unreadable(host, group, limits, error)
    taken = [region for region in written if after.get(region) == str(limits[region])]
    return Outcome(
        replaced={region: before[region] for region in taken},
        kept={region: after.get(region, "nothing") for region in written if region not in taken},
        failed=failed,
    )


def _unreadable(host: Host, group: str, limits: Mapping[str, int], error: OSError) -> Outcome:
    if error.errno not in _GONE:
        return Outcome(failed=dict.fromkeys(limits, f"{group}/dmem.max: {words(error)}"))
    try:
        host.stat(group)
    except OSError:
        return Outcome(no_group=True)
    return Outcome(no_file=True)


def _values(text: bytes) -> dict[str, str]:
    """Region → value, as a limit file lists them (kernel.md 4.2)."""
    lines = (line.split() for line in text.decode("utf-8", "replace").splitlines())
    return {fields[0]: fields[1] for fields in lines if len(fields) == 2}
