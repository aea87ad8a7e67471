"""The labels of a node with AMD GPUs, and what must change for a node to have just these.

A generator makes the labels of one property. A counted property is told per GPU or partition (KFD node):
``amd.com/gpu.X=<value>`` when all agree, ``amd.com/gpu.X.<value>=<count>`` when not, and the same under
``beta.amd.com`` with the count always. A property of the node has one label in ``amd.com``. Names, forms and
clean-up: amd.md 12 and 14.10. No label is ever empty or illegal (case B58).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from devplugin.amd.devices import GIB
from devplugin.amd.labelfacts import Agent, LabelFacts
from devplugin.amd.products import product

STABLE = "amd.com/gpu"
BETA = "beta.amd.com/gpu"

GENERATORS: Mapping[str, str] = {
    "family": "GPU family by KFD's gfx_target_version: AI, NV, GC_12_0_0, …",
    "device-id": "PCI device id, hexadecimal",
    "product-name": "product name of the GPU, else of its device id in a table",
    "vram": "memory in GiB as KFD reports it for each GPU or partition: 144G",
    "simd-count": "SIMDs of each GPU or partition",
    "cu-count": "compute units of each GPU or partition",
    "firmware": "no labels: firmware versions take ioctls on the device nodes, which is not done here",
    "driver-version": "version of an out-of-tree amdgpu driver",
    "driver-src-version": "source version of the amdgpu driver",
    "compute-memory-partition": "partition modes of the node when all its GPUs agree: cpx_nps4",
    "compute-partitioning-supported": "whether the first GPU can change its compute partition",
    "memory-partitioning-supported": "whether the first GPU can change its memory partition",
}
"""Flag → meaning. All twelve are cleaned up, also those that are not asked for."""

_LONGEST = 63
"""Of a label's value, and of its name after the slash (Kubernetes API conventions)."""

_NO_END = "_.-"
"""What a label's value may hold, but not begin or end with."""

_FAMILIES: Mapping[int, str] = {
    70000: "KV",
    70001: "CI",
    80001: "CZ",
    80002: "VI",
    80003: "VI",
    90000: "AI",
    90002: "RV",
    90004: "AI",
    90006: "AI",
    90008: "AI",
    90010: "AI",
    90012: "RV",
    90400: "AI",
    90401: "AI",
    90402: "AI",
    90500: "AI",
    100100: "NV",
    100101: "NV",
    100102: "NV",
    100103: "NV",
    100300: "NV",
    100301: "NV",
    100302: "NV",
    100303: "VGH",
    100304: "NV",
    100305: "YC",
    100306: "GC_10_3_6",  # also GC 10.3.7, which KFD does not tell apart
    110000: "GC_11_0_0",
    110001: "GC_11_0_0",
    110002: "GC_11_0_0",
    110003: "GC_11_0_1",
    110500: "GC_11_5_0",
    110501: "GC_11_5_0",
    110502: "GC_11_5_0",
    110503: "GC_11_5_0",
    120000: "GC_12_0_0",
    120001: "GC_12_0_0",
}
"""Family names of amd.md 12 by gfx_target_version: the ioctl tells the family's number, KFD only this
version. Which IP version belongs to which family: the kernel's amdgpu_discovery.c; which gets which
gfx_target_version: its kfd_device.c (Raven2 counts as Raven, 110001 is GC 11.0.3, 110003 GC 11.0.1 and
11.0.4).
"""


def labels(facts: LabelFacts, generators: Collection[str]) -> dict[str, str]:
    """Every label the node should have, sorted by name.

    Args:
        facts: what the node has.
        generators: names out of `GENERATORS`; others make nothing.
    """
    made: dict[str, str] = {}
    for name in GENERATORS:
        if name in generators:
            made.update(_one(name, facts))
    return dict(sorted(made.items()))


def is_managed(label: str) -> bool:
    """Whether a label is one of ours: a generator's in either domain, or one below it (amd.md 14.10)."""
    return any(label == key or label.startswith(f"{key}.") for key in _MANAGED)


def changes(have: Mapping[str, str], want: Mapping[str, str]) -> dict[str, str | None]:
    """What to patch so that `have` has just `want` of ours: new values, and None for what goes."""
    gone: dict[str, str | None] = {name: None for name in have if is_managed(name) and name not in want}
    return gone | {name: value for name, value in want.items() if have.get(name) != value}


def family(gfx: int) -> str | None:
    """The family of a gfx_target_version, None where this table does not know it."""
    return _FAMILIES.get(gfx)


def label_value(text: str, longest: int = _LONGEST) -> str:
    """A text as a label's value: no parentheses, foreign characters as ``_``, ends with letter or digit.

    May be empty: then there is no label.
    """
    plain = re.sub(r"[^A-Za-z0-9_.-]", "_", re.sub(r"[()]", "", text))
    return plain.strip(_NO_END)[:longest].strip(_NO_END)


_MANAGED = tuple(f"{domain}.{name}" for domain in (STABLE, BETA) for name in GENERATORS)


def _one(name: str, facts: LabelFacts) -> dict[str, str]:
    """The labels of one generator."""
    if name in _COUNTED:
        return _counted(name, _COUNTED[name](facts.agents))
    value = label_value(_of_node(name, facts))
    return {f"{STABLE}.{name}": value} if value else {}


def _of_node(name: str, facts: LabelFacts) -> str:
    """A property that the node has once; empty: no label."""
    if name == "driver-version":
        return facts.driver_version
    if name == "driver-src-version":
        return facts.driver_source
    if name == "compute-memory-partition":
        return facts.configurations[0] if len(set(facts.configurations)) == 1 else ""
    known = {
        "compute-partitioning-supported": facts.compute_partitioning,
        "memory-partitioning-supported": facts.memory_partitioning,
    }.get(name)
    return "" if known is None else str(known).lower()


def _counted(name: str, texts: Iterable[str]) -> dict[str, str]:
    """Labels of a property every GPU or partition has one value of."""
    room = _LONGEST - len(f"gpu.{name}.")
    counts = Counter(value for text in texts if (value := label_value(text, room)))
    made = {f"{BETA}.{name}.{value}": str(count) for value, count in counts.items()}
    if len(counts) == 1:
        return made | dict.fromkeys((f"{STABLE}.{name}", f"{BETA}.{name}"), next(iter(counts)))
    return made | {f"{STABLE}.{name}.{value}": str(count) for value, count in counts.items()}


def _product_name(agent: Agent) -> str:
    known = product(agent.device_id)
    return agent.product_name or (known.market_name if known else "")


def _gib(size: int | None) -> str:
    """Rounded to the nearest GiB: 154610434048 is 144G (cases B11)."""
    return f"{(size + GIB // 2) // GIB}G" if size else ""


_COUNTED = {
    "family": lambda agents: [family(agent.gfx) or "" for agent in agents],
    "device-id": lambda agents: [f"{agent.device_id:04x}" for agent in agents if agent.device_id],
    "product-name": lambda agents: [_product_name(agent) for agent in agents],
    "vram": lambda agents: [_gib(agent.bank_bytes) for agent in agents],
    "simd-count": lambda agents: [str(agent.simds) for agent in agents if agent.simds],
    "cu-count": lambda agents: [str(agent.cus) for agent in agents if agent.cus],
}
