"""Whether a GPU works: its render nodes open, and AMD's metrics exporter has nothing against it.

All devices of a GPU, slots and partitions, share one verdict: the hardware is one (B48). Only render nodes
are opened, never `/dev/kfd`, whose holder keeps all GPUs from being switched (decision 28). One
bad look is enough to take a GPU out, two good ones in a row bring it back: a pod on a dead GPU fails, one
that waits another pulse does not. Sources: amd.md 4.4 and 10; kernel.md 7 (reads of a GPU in reset: EPERM).
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import dataclass, replace

from devplugin.amd.inventory import Gpu, Inventory, Standing
from devplugin.amd.pcidev import BOUND
from devplugin.amd.settings import Settings
from devplugin.amd.uuid import normal_bdf
from devplugin.answers import HealthSource, Reports
from devplugin.hami.codec import clip
from devplugin.host import Host, words

DOWN = 1
"""Bad looks in a row after which a healthy GPU is not healthy any more."""
UP = 2
"""Good looks in a row after which it is again."""

SOCKET = "/var/lib/amd-metrics-exporter/amdgpu_device_metrics_exporter_grpc.socket"
"""Of the exporter (amd.md 1.6)."""
SERVICES = ("metricssvc.MetricsService", "gpumetricssvc.MetricsService")
"""The exporter registers the first; its repository also has a package of the second name (amd.md 10)."""
HEALTHY = "healthy"

_NOT_THE_DEVICE = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN})
"""Answers that speak of this process or this node, not of the device."""


@dataclass(frozen=True, slots=True)
class Look:
    """What one look at a GPU found."""

    problem: str | None = ""
    """Why it cannot be used; empty: it can be; None: the look says nothing of the GPU."""
    told: str = ""
    """What the exporter has against it; empty: nothing, or there is none."""


def step(before: Standing | None, look: Look) -> Standing:
    """The verdict after one more look; `before` is None at the first, which decides alone."""
    reason = look.told or look.problem
    if reason is None:
        return before or Standing()
    if before is None:
        return Standing(not reason, reason, told=look.told)
    if before.healthy == (not reason):
        return Standing(before.healthy, reason, told=look.told)
    against = before.against + 1
    if against >= (DOWN if before.healthy else UP):
        return Standing(not reason, reason, told=look.told)
    return replace(before, against=against, told=look.told)


def source(settings: Settings) -> HealthSource | None:
    """Where the exporter is; None while health is not looked at (`-pulse` 0)."""
    return HealthSource(settings.exporter_socket or SOCKET, SERVICES) if settings.pulse else None


def look(host: Host, inventory: Inventory, reports: Reports) -> Inventory:
    """The inventory after one look at every GPU."""
    against = complaints(reports)
    standings: dict[str, Standing] = {}
    for gpu in inventory.gpus:
        before = inventory.health.get(gpu.bdf)
        told = against.get(gpu.bdf, "")
        if reports.silent and before is not None:
            told = before.told
        standings[gpu.bdf] = step(before, Look(problem_of(host, gpu), told))
    return _with(inventory, standings)


def carried(found: Inventory, previous: Inventory | None) -> Inventory:
    """A new inventory with the verdicts of the one before, of GPUs that are still the same."""
    if previous is None or not previous.health:
        return found
    ids = {gpu.bdf: gpu.id for gpu in previous.gpus}
    kept = {
        gpu.bdf: previous.health[gpu.bdf]
        for gpu in found.gpus
        if gpu.bdf in previous.health and ids.get(gpu.bdf) == gpu.id
    }
    return _with(found, kept)


def problem_of(host: Host, gpu: Gpu) -> str | None:
    """Why a GPU cannot be used now; empty when every render node opens, None when nothing can be said."""
    unclear = False
    for partition in gpu.partitions:
        path = f"/dev/dri/renderD{partition.render_minor}"
        try:
            host.probe(path)
        except OSError as error:
            if error.errno not in _NOT_THE_DEVICE:
                return f"{path}: {words(error)}"
            unclear = True
    try:
        host.read(f"{BOUND}/{gpu.bdf}/unique_id")
    except OSError as error:
        # Many GPUs have no such file; EPERM to root is amdgpu's answer while it resets the GPU (kernel.md 7).
        if error.errno == errno.EPERM:
            return "in reset"
    return None if unclear else ""


def complaints(reports: Reports) -> Mapping[str, str]:
    """PCI address → what the exporter has against the device there: any word but exactly ``healthy``."""
    return {
        normal_bdf(device): f"the metrics exporter says {clip(word)}"
        for device, word in sorted(reports.states.items())
        if word != HEALTHY
    }


def _with(inventory: Inventory, standings: Mapping[str, Standing]) -> Inventory:
    gpus = tuple(
        gpu
        if gpu.bdf not in standings or gpu.healthy == standings[gpu.bdf].healthy
        else replace(gpu, healthy=standings[gpu.bdf].healthy)
        for gpu in inventory.gpus
    )
    return replace(inventory, gpus=gpus, health=standings)
