"""Whether the kernel's dmem controller can limit VRAM on this node, and for which GPUs.

It takes cgroup v2 with the ``dmem`` controller (6.14 and later) and kubelet's systemd cgroup driver;
amdgpu must have registered a region for the GPU (in-tree since 6.15-rc2; out-of-tree where the kernel
has the helper). Sources: amd.md 7, kernel.md 4.1 and 4.2, decision 31.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from devplugin.host import Host, words

CGROUP_ROOT = "/sys/fs/cgroup"
CONTROLLERS = f"{CGROUP_ROOT}/cgroup.controllers"
CAPACITY = f"{CGROUP_ROOT}/dmem.capacity"
KUBEPODS = f"{CGROUP_ROOT}/kubepods.slice"


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
