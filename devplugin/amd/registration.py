"""The node annotation that tells HAMi's scheduler what this node has, exactly as amd.md 3.1.

A compact JSON array with an object for each device, in the order of their keys as text, zero values left out
(`health` false and `index` 0 too: consumers default to them), `custominfo` keys in alphabetical order as
Go writes a map, profiles under their capitalised Go names. Capacity: decisions 6 to 9; ids: 10, 11.
"""

from __future__ import annotations

import json
from typing import Any

from devplugin.amd.devices import Device, devices
from devplugin.amd.inventory import Gpu, Inventory
from devplugin.amd.products import product
from devplugin.amd.settings import Settings
from devplugin.answers import NodePatch

ANNOTATION = "hami.io/node-amd-register"

CAPACITY_MEMORY = "amd.com/gpumem"
CAPACITY_CORES = "amd.com/gpucores"


def registration(inventory: Inventory, settings: Settings) -> list[dict[str, Any]]:
    """The array as Python objects, in annotation order."""
    return [_entry(device) for device in sorted(devices(inventory, settings), key=lambda device: device.key)]


def annotation(inventory: Inventory, settings: Settings) -> str:
    """The annotation's text; ``[]`` when there is nothing, which clears a stale registration."""
    return json.dumps(registration(inventory, settings), separators=(",", ":"), ensure_ascii=False)


def capacity(inventory: Inventory, settings: Settings) -> dict[str, int | None]:
    """Memory and CUs of all healthy devices, as registered; None, to be removed, when that is off.

    CUs here, while a pod's ``amd.com/gpucores`` limit is in percent (amd.md 3.6).
    """
    if not settings.report_capacity:
        return {CAPACITY_MEMORY: None, CAPACITY_CORES: None}
    healthy = [device for device in devices(inventory, settings) if device.gpu.healthy]
    return {
        CAPACITY_MEMORY: sum(device.memory_mib for device in healthy),
        CAPACITY_CORES: sum(device.cus for device in healthy),
    }


def node_patch(inventory: Inventory, settings: Settings) -> NodePatch:
    """What the node object is to say."""
    return NodePatch(
        annotations={ANNOTATION: annotation(inventory, settings)},
        capacity=capacity(inventory, settings),
    )


def _entry(device: Device) -> dict[str, Any]:
    """One device. Keys in the order of amd.md 3.1, zero values left out."""
    gpu = device.gpu
    entry = {
        "id": device.id,
        "index": device.agents[0].card,
        "count": device.slots,
        "devmem": device.memory_mib,
        "devcore": device.cus,
        "type": gpu.market_name,
        "numa": gpu.numa,
        "mode": gpu.compute if device.hard else "",
        "health": gpu.healthy,
        "devicevendor": "amd",
        "custominfo": _custominfo(device),
    }
    return {key: value for key, value in entry.items() if value}


def _custominfo(device: Device) -> dict[str, Any]:
    """What the scheduler and people look up about a device; a partition names its parent's address."""
    gpu = device.gpu
    info: dict[str, Any] = {"pciBDF": gpu.bdf, "cuPerWGP": gpu.cu_unit}
    if gpu.compute_queues > 0:
        info["computeQueues"] = gpu.compute_queues
    if gpu.xgmi_peers:
        info["xgmiPeers"] = list(gpu.xgmi_peers)
    if device.hard and not gpu.whole:
        if gpu.memory:
            info["partitionProfile"] = f"{gpu.compute}_{gpu.memory}"
    elif gpu.compute and (profiles := _profiles(gpu)):
        info["partitionProfiles"] = profiles
    return dict(sorted(info.items()))


def _profiles(gpu: Gpu) -> list[dict[str, Any]]:
    """The product's partition profiles; empty for a VF and for products nobody recorded."""
    known = product(gpu.device_id)
    return [
        {
            "ProfileIndex": profile.index,
            "Type": profile.type,
            "MemoryCaps": profile.memory_caps,
            "NumPartitions": profile.partitions,
            "XCCPerPartition": profile.xccs,
        }
        for profile in (known.profiles if known else ())
    ]
