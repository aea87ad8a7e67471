"""Which GPUs the node keeps for itself: neither registered nor offered (guide-amd.md, dp.excludeGPUs).

An entry is a PCI address or a DRM card. The same value goes to every node of a DaemonSet, so an entry
that means no GPU here is a warning and no error. A card of one partition stands for its whole GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from devplugin.amd.inventory import Gpu, Skipped
from devplugin.settings import shown

FLAG = "-exclude_gpus"


@dataclass(frozen=True, slots=True)
class Kept:
    """What is left to offer."""

    gpus: tuple[Gpu, ...]
    excluded: tuple[Skipped, ...] = ()
    """One for each GPU that is left out; `device` is its PCI address."""
    warnings: tuple[str, ...] = ()


def without(gpus: Iterable[Gpu], entries: Sequence[str], elsewhere: Iterable[str] = ()) -> Kept:
    """The GPUs that no entry names.

    Args:
        gpus: all that could be offered.
        entries: `Settings.exclude`.
        elsewhere: PCI addresses of GPUs that are not offered for another reason: to name one is no mistake.
    """
    kept: list[Gpu] = []
    excluded: list[Skipped] = []
    met = set(elsewhere)
    for gpu in gpus:
        names = (gpu.bdf, *(f"card{part.card}" for part in gpu.partitions if part.card is not None))
        named = [entry for entry in entries if entry in names]
        met.update(named)
        if named:
            excluded.append(Skipped(gpu.bdf, f"excluded by {FLAG}={','.join(named)}"))
        else:
            kept.append(gpu)
    return Kept(
        tuple(kept),
        tuple(excluded),
        tuple(f"{FLAG}: no GPU of this node is {shown(entry)}" for entry in entries if entry not in met),
    )
