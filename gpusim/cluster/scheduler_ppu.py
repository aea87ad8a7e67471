"""PPU's row of the scheduler's table, from the ``alibaba:`` block of a device configuration.

Names and defaults: chart values in ascend_ppu_hami.md C.2, keys of decision 52. Open-source HAMi has no
PPU back end (G 24); as decided there the rules are those of its NVIDIA back end: a count may be missing
where memory or cores are asked for, memory may be a percentage, what is not asked for has a default.
Ours, because nothing is public: the user's annotation keys, and the policy's environment variable, which
is NVIDIA's.

The split count and the scalings are the plugin's to judge: it registers what they make of a card.
``overwriteEnv`` is checked and has no effect: no variable is known that hides PPUs from a container.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from gpusim.cluster.scheduler_block import BadDeviceConfigError, Block
from gpusim.cluster.scheduler_vendors import (
    INT32,
    NO_MEMORY,
    Request,
    Resources,
    Vendor,
    negative,
    percent_of_card,
    resources,
    whole,
)

Object = dict[str, Any]
POLICIES = ("default", "force", "disable")
POLICY_VARIABLE = "GPU_CORE_UTILIZATION_POLICY"
_DOMAIN = "alibaba.com"


@dataclass(frozen=True, slots=True)
class Defaults:
    """The ``alibaba:`` block as far as the scheduler uses it."""

    count: str = f"{_DOMAIN}/ppu"
    memory: str = f"{_DOMAIN}/ppu-memory"
    memory_percentage: str = f"{_DOMAIN}/ppu-memory-percentage"
    cores: str = f"{_DOMAIN}/gpu-core"
    default_memory: int = 0
    """MiB that a request without memory gets; 0: the whole card."""
    default_cores: int = 0
    default_count: int = 1
    """Devices for a container that asks for memory or cores only; 0: none, it is not ours."""
    factor: int = 1
    """MiB of one unit of the memory resource when above 1."""
    policy: str = "default"
    runtime_class: str = ""


def ppu_vendors(config: Mapping[str, Any] | None = None) -> tuple[Vendor, ...]:
    """PPU's row; none when the configuration has no ``alibaba`` block.

    Args:
        config: the device configuration; the chart's defaults unless given.

    Raises:
        BadDeviceConfigError: the configuration cannot be used; the text names the key.
    """
    root = Block("", config if config is not None else {"alibaba": {}})
    if root.data.get("alibaba") is None:
        return ()
    return (vendor_of(_defaults(root.block("alibaba"))),)


def vendor_of(defaults: Defaults) -> Vendor:
    """The row."""
    return Vendor(
        word="ppu",
        name="PPU",
        register="hami.io/node-register-ppu",
        handshake="hami.io/node-handshake-ppu",
        count=defaults.count,
        memory=defaults.memory,
        cores=defaults.cores,
        use_types=f"{_DOMAIN}/use-gputype",
        avoid_types=f"{_DOMAIN}/nouse-gputype",
        use_ids=f"{_DOMAIN}/use-gpuuuid",
        avoid_ids=f"{_DOMAIN}/nouse-gpuuuid",
        read=partial(_read, defaults),
        check=partial(_check, defaults),
        cores_of=percent_of_card,
        legacy=True,
    )


def _defaults(block: Block) -> Defaults:
    block.flag("overwriteEnv")
    policy = block.text("gpuCorePolicy", "default") or "default"
    if policy not in POLICIES:
        raise BadDeviceConfigError(
            f"{block.path}.gpuCorePolicy: expected one of {', '.join(POLICIES)}, got {policy!r}"
        )
    mine = Defaults()
    return Defaults(
        count=block.text("resourceCountName", mine.count),
        memory=block.text("resourceMemoryName", mine.memory),
        memory_percentage=block.text("resourceMemoryPercentageName", mine.memory_percentage),
        cores=block.text("resourceCoreName", mine.cores),
        default_memory=block.number("defaultMemory", 0),
        default_cores=block.number("defaultCores", 0),
        default_count=block.number("defaultGPUNum", 1),
        factor=block.number("memoryFactor", 1),
        policy=policy,
        runtime_class=block.text("runtimeClassName", ""),
    )


def _check(mine: Defaults, vendor: Vendor, pod: Object, container: Object) -> tuple[bool, str]:
    """Admission: add the default count, the policy and the runtime class."""
    limits = resources(container).limits
    if vendor.count not in limits:
        others = (vendor.memory, mine.memory_percentage, vendor.cores)
        if not mine.default_count or not any(name in limits for name in others):
            return False, ""
        container["resources"]["limits"][vendor.count] = str(mine.default_count)
    if mine.policy != "default":
        container.setdefault("env", []).append({"name": POLICY_VARIABLE, "value": mine.policy})
    if mine.runtime_class and not pod["spec"].get("runtimeClassName"):
        pod["spec"]["runtimeClassName"] = mine.runtime_class
    return True, ""


def _read(mine: Defaults, vendor: Vendor, asked: Resources) -> tuple[Request, ...]:
    """Limits, then requests; a count or number that is out of bounds empties the request."""
    count = whole(asked.get(vendor.count))
    amounts = [asked.get(name) for name in (vendor.memory, mine.memory_percentage, vendor.cores)]
    if count is None or not 1 <= count < INT32 or any(text and negative(text) for text in amounts):
        return ()
    memory, percentage, cores = map(whole, amounts)
    memory = (memory or 0) * max(1, mine.factor)
    percent = NO_MEMORY if percentage is None else percentage
    if percent == NO_MEMORY and not memory:
        memory, percent = mine.default_memory, NO_MEMORY if mine.default_memory else 100
    cores = mine.default_cores if cores is None else cores
    if memory >= INT32 or percent >= INT32 or cores >= INT32:
        return ()
    return (Request(vendor.word, count, memory, cores, memory_percent=percent),)
