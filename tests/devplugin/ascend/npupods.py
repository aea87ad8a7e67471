"""NPUs, pods and claims as the tests of Allocate and of the sweep want them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from devplugin.ascend.inventory import Inventory, Npu
from devplugin.ascend.runtimeinfo import key, vocabulary
from devplugin.ascend.settings import ChipConfig, Settings, Template
from devplugin.hami import (
    ALLOCATING,
    ASSIGNED_NODE,
    BIND_PHASE,
    BIND_TIME,
    Claim,
    ContainerDevice,
    Pod,
    decode,
    encode,
)

NODE = "node-1"
B4_1 = ChipConfig(
    "910B4-1",
    "Ascend910B4-1",
    "huawei.com/Ascend910B4-1",
    65536,
    65536,
    20,
    7,
    (Template("vir05_1c_16g", 16384, 5, 1), Template("vir10_3c_32g", 32768, 10, 3)),
)
B4 = ChipConfig(
    "910B4",
    "Ascend910B4",
    "huawei.com/Ascend910B4",
    32768,
    32768,
    20,
    7,
    (Template("vir05_1c_8g", 8192, 5, 1), Template("vir10_3c_16g", 16384, 10, 3)),
)
P3 = ChipConfig(
    "310P3",
    "Ascend310P",
    "huawei.com/Ascend310P",
    21527,
    24576,
    8,
    7,
    (Template("vir01", 3072, 1, 1), Template("vir02", 6144, 2, 2), Template("vir04", 12288, 4, 4)),
)
C910 = ChipConfig("Ascend910", "Ascend910C", "huawei.com/Ascend910C", 65536, 65536, 20, 7)

HARD = Settings(node_name=NODE, chips=(B4_1, P3, B4, C910))
SOFT = Settings(node_name=NODE, chips=(B4_1, P3, B4, C910), soft=True)
SOFT_POD = {"huawei.com/vnpu-mode": "hami-core"}


def node(chip: ChipConfig = P3, count: int = 8, *, dies: int = 1, phys: Sequence[int] = ()) -> Inventory:
    """Cards of `dies` chips each; chip n is ``uuid<n>``."""
    order = phys or range(count)
    npus = tuple(
        Npu(f"uuid{n}", n, phy, n // dies, n % dies, chip.chip)
        for n, phy in zip(range(count), order, strict=True)
    )
    return Inventory(chip, npus, tool="/usr/local/sbin/npu-smi")


def device(uuid: str, memory: int, cores: int = 0, kind: str = "Ascend310P") -> ContainerDevice:
    return ContainerDevice(uuid, kind, memory, cores)


def entry(uuid: str, temp: str = "", memory: int = 0, core: int = 0) -> dict[str, Any]:
    """As the scheduler writes it: zeros left out."""
    said = {"UUID": uuid, "temp": temp, "memory": memory, "core": core}
    return {name: value for name, value in said.items() if value}


def pod(
    slots: Sequence[Sequence[ContainerDevice]],
    entries: Any,
    *,
    chip: ChipConfig = P3,
    annotations: Mapping[str, str] | None = None,
    allocated: bool = True,
    **fields: Any,
) -> Pod:
    """A bound pod with a container for every slot; `entries` as text stands in the annotation as it is."""
    words = vocabulary(chip.word)
    text = encode(slots)
    said = {
        words.to_allocate: text,
        ASSIGNED_NODE: NODE,
        BIND_PHASE: ALLOCATING,
        BIND_TIME: "1700000000",
        **({words.allocated: text} if allocated else {}),
        **(
            {}
            if entries is None
            else {key(chip.word): entries if isinstance(entries, str) else json.dumps(entries)}
        ),
        **(annotations or {}),
    }
    base: dict[str, Any] = {
        "namespace": "ns",
        "name": "p",
        "uid": "0000-uid",
        "node": NODE,
        "phase": "Pending",
        "containers": tuple(f"c{i}" for i in range(len(slots))),
    }
    return Pod(**{**base, **fields}, annotations=said)


def claim(served: Pod, slot: int = 0, chip: ChipConfig = P3) -> Claim:
    """The claim of one of its slots."""
    devices = decode(served.annotations[vocabulary(chip.word).to_allocate])[slot]
    return Claim(tuple(f"id-{i}" for i in range(len(devices))), served, slot, devices)
