"""Which described NPUs can exist: every refusal says where and why.

Sources: ascend_ppu_hami.md A.3, decision 42 (UUID words, vNPU ids).
"""

from __future__ import annotations

import re

from gpusim import programs
from gpusim.ascend.chips import CHIPS, Chip
from gpusim.ascend.health import WORDS
from gpusim.ascend.npu import PER_CHIP, NpuError, Npus, placed
from gpusim.spec import NodeSpec, NpuSpec, SpecError

_UUID = re.compile(r"[0-9A-F]{8}(-[0-9A-F]{8}){4}")
_MOST_PHY = 63


def check_npus(spec: NodeSpec) -> None:
    """Refuse NPUs that cannot exist; their addresses are `gpusim.amd.check`'s.

    Raises:
        SpecError: the first impossible value.
    """
    programs.check("npu", spec.npu_driver, spec.npu_smi_status, spec.npu_smi)
    for index, npu in enumerate(spec.npus):
        if npu.chip not in CHIPS:
            raise SpecError(f"npus[{index}].chip", f"{npu.chip!r} is none of {', '.join(CHIPS)}")
        _check_npu(f"npus[{index}]", npu, CHIPS[npu.chip])
    if len({CHIPS[npu.chip].hbm for npu in spec.npus}) > 1:
        raise SpecError("npus", "310P3 and 910 have no driver, and no table of npu-smi, in common")
    _check_places(spec)
    try:
        Npus(spec)
    except NpuError as error:
        raise SpecError("npus", f"vnpus do not fit: {error}") from error


def _check_npu(path: str, npu: NpuSpec, chip: Chip) -> None:
    if npu.health not in WORDS:
        raise SpecError(f"{path}.health", f"{npu.health!r} is none of {', '.join(WORDS)}")
    if npu.uuid is not None and not _UUID.fullmatch(npu.uuid):
        raise SpecError(f"{path}.uuid", f"{npu.uuid!r} is not five words of eight hexadecimal digits")
    if npu.used_mib is not None and not 0 <= npu.used_mib <= chip.total_mib:
        raise SpecError(f"{path}.used_mib", f"between 0 and the chip's {chip.total_mib} MiB")
    if not 0 <= npu.busy <= 100:
        raise SpecError(f"{path}.busy", f"AICore is busy 0 to 100 percent of the time, not {npu.busy}")
    for template, count in npu.vnpus.items():
        if chip.template(template) is None:
            names = ", ".join(t.name for t in chip.templates)
            raise SpecError(f"{path}.vnpus", f"{chip.name} has templates {names}, not {template!r}")
        if not 0 <= count <= PER_CHIP:
            raise SpecError(f"{path}.vnpus", f"a chip has ids for {PER_CHIP} vNPUs")


def _check_places(spec: NodeSpec) -> None:
    phys: dict[int, int] = {}
    uuids: dict[str, int] = {}
    for index, (npu, (card, number, phy)) in enumerate(zip(spec.npus, placed(spec), strict=True)):
        path = f"npus[{index}]"
        room = CHIPS[npu.chip].room
        if number >= room:
            raise SpecError(f"{path}.card", f"NPU {card} has {room} chips of {npu.chip} already")
        if card < 0 or not 0 <= phy <= _MOST_PHY:
            raise SpecError(
                f"{path}.{'card' if card < 0 else 'phy'}", f"{card if card < 0 else phy} is no id"
            )
        if (other := phys.setdefault(phy, index)) != index:
            raise SpecError(f"{path}.phy", f"{phy} is already that of npus[{other}]")
        if npu.uuid is not None and (other := uuids.setdefault(npu.uuid, index)) != index:
            raise SpecError(f"{path}.uuid", f"already that of npus[{other}]")
