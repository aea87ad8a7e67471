"""Which described PPUs can exist: every refusal says where and why.

Sources: ascend_ppu_hami.md C.2 (cards of a node, UUIDs), decision 54.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpusim import programs
from gpusim.ppu.health import WORDS
from gpusim.ppu.ppu import FIELDS, MINOR, minors, uuids
from gpusim.ppu.products import MOST_PER_NODE, PRODUCTS
from gpusim.spec import NodeSpec, PpuSpec, SpecError

_UUID = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_MOST_MINOR = 255


def check_ppus(spec: NodeSpec) -> None:
    """Refuse PPUs that cannot exist; their addresses are `gpusim.amd.check`'s.

    Raises:
        SpecError: the first impossible value.
    """
    programs.check("ppu", spec.ppu_driver, spec.ppu_smi_status, spec.ppu_smi)
    if spec.ppu_sdk not in ("lib64", "lib"):
        raise SpecError("ppu_sdk", f"{spec.ppu_sdk!r} is neither lib64 nor lib")
    if len(spec.ppus) > MOST_PER_NODE:
        raise SpecError("ppus", f"a node has at most {MOST_PER_NODE} PPUs, not {len(spec.ppus)}")
    for index, ppu in enumerate(spec.ppus):
        _check_ppu(f"ppus[{index}]", ppu, spec.cpus.nodes)
    _check_distinct("minor", [str(minor) for minor in minors(spec)])
    _check_distinct("uuid", uuids(spec))


def _check_distinct(name: str, values: Sequence[str]) -> None:
    taken: dict[str, int] = {}
    for index, value in enumerate(values):
        if (other := taken.setdefault(value, index)) != index:
            raise SpecError(f"ppus[{index}].{name}", f"{value} is already that of ppus[{other}]")


def _check_ppu(path: str, ppu: PpuSpec, nodes: int) -> None:
    product = PRODUCTS.get(ppu.product)
    if product is None:
        raise SpecError(f"{path}.product", f"{ppu.product!r} is none of {', '.join(PRODUCTS)}")
    if not -1 <= ppu.numa < nodes:
        raise SpecError(f"{path}.numa", f"the host has NUMA nodes 0 to {nodes - 1}, not {ppu.numa}")
    if ppu.minor is not None and not 0 <= ppu.minor <= _MOST_MINOR:
        raise SpecError(f"{path}.minor", f"a minor is 0 to {_MOST_MINOR}, not {ppu.minor}")
    if ppu.uuid is not None and not _UUID.fullmatch(ppu.uuid):
        raise SpecError(f"{path}.uuid", f"{ppu.uuid!r} is not GPU- and the groups of a UUID in lower case")
    if ppu.health not in WORDS:
        raise SpecError(f"{path}.health", f"{ppu.health!r} is none of {', '.join(WORDS)}")
    if ppu.used_mib is not None and not 0 <= ppu.used_mib <= product.memory_mib:
        raise SpecError(f"{path}.used_mib", f"between 0 and the card's {product.memory_mib} MiB")
    if not 0 <= ppu.busy <= 100:
        raise SpecError(f"{path}.busy", f"a PPU is busy 0 to 100 percent of the time, not {ppu.busy}")
    for field in ppu.unknown:
        if field not in (*FIELDS, MINOR):
            raise SpecError(f"{path}.unknown", f"{field!r} is none of {', '.join((*FIELDS, MINOR))}")
