"""AMD's CDI names: one for each DRM card, or render node where a partition has no card (decision 20).

Which device nodes a name stands for is written to a file that the container runtime reads
(`devplugin.cdi`); Allocate then answers with names (amd.md 5.3 and 9, decision 59).
"""

from __future__ import annotations

from collections.abc import Iterable

from devplugin.amd.inventory import Inventory, Partition
from devplugin.amd.settings import Settings
from devplugin.answers import CdiSpec, FactRequest
from devplugin.cdi import AMD_KIND, AMD_SHARED, CdiDevice, drm_device, qualified


def specification(inventory: Inventory, settings: Settings) -> CdiSpec | None:
    """The file's content: every partition of every offered GPU, in either operating mode."""
    if not settings.cdi_dir:
        return None
    devices = tuple(_device(part) for gpu in inventory.gpus for part in gpu.partitions)
    return CdiSpec(settings.cdi_dir, AMD_KIND, devices, AMD_SHARED)


def fact(settings: Settings) -> FactRequest:
    """Whether that file is there and says this; until then containers get device nodes."""
    return FactRequest("cdi", settings.cdi_dir)


def names(agents: Iterable[Partition]) -> tuple[str, ...]:
    """What Allocate answers: ``amd.com/gpu=card1`` for each agent."""
    return tuple(qualified(AMD_KIND, _device(agent).name) for agent in agents)


def _device(part: Partition) -> CdiDevice:
    return drm_device(part.card, part.render_minor)
