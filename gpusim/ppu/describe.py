"""The state of a node's PPUs as plain values: a part of what `gpusim show --json` prints."""

from __future__ import annotations

from gpusim.ppu.ppu import Ppu, Ppus


def describe(ppus: Ppus) -> dict[str, object]:
    """Everything that matters; can be written as JSON."""
    listed = ppus.listed
    return {
        "driver": ppus.version,
        "loaded": ppus.loaded,
        "devices": [_ppu(ppu, listed.index(ppu) if ppu in listed else None) for ppu in ppus],
    }


def _ppu(ppu: Ppu, index: int | None) -> dict[str, object]:
    return {
        "product": ppu.product.name,
        "index": index,
        "minor": ppu.minor,
        "bdf": ppu.bdf,
        "numa": ppu.numa,
        "uuid": ppu.uuid,
        "present": ppu.present,
        "health": ppu.health.value,
        "used_mib": ppu.used_mib,
        "total_mib": ppu.product.memory_mib,
        "busy": ppu.busy,
        "unknown": sorted(ppu.unknown),
    }
