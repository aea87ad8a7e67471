"""The state of a node's NPUs as plain values: a part of what `gpusim show --json` prints."""

from __future__ import annotations

from gpusim.ascend.npu import Npu, Npus


def describe(npus: Npus) -> dict[str, object]:
    """Everything that matters; can be written as JSON."""
    return {"driver": npus.version, "chips": [_npu(npu) for npu in npus]}


def _npu(npu: Npu) -> dict[str, object]:
    cores, cpus, mib = npu.free
    return {
        "chip": npu.chip.name,
        "logic": npu.logic,
        "phy": npu.phy,
        "card": npu.card,
        "chip_id": npu.number,
        "bdf": npu.bdf,
        "uuid": npu.uuid,
        "health": npu.health.value,
        "error_codes": [f"{code:08X}" for code in npu.error_codes],
        "used_mib": npu.used_mib,
        "total_mib": npu.chip.total_mib,
        "busy": npu.busy,
        "share": npu.share,
        "free": {"ai_cores": cores, "ai_cpus": cpus, "memory_mib": mib},
        "vnpus": [
            {"id": v.number, "template": v.template.name, "container": v.container}
            for v in npu.vnpus.values()
        ],
    }
