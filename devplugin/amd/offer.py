"""What kubelet is told: which resource has which device ids, their health and their NUMA node.

Soft devices are ``<bdf>#<slot>``, hard ones ``<key>#<mode>`` (decision 13). `single` has one resource,
``amd.com/gpu``; `mixed` names GPUs of known partition types after both of them, as in ``amd.com/cpx_nps1``
(decision 15). Discovery alone makes the list: whether preference works has no part in it (B19).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from devplugin.amd.devices import Device, devices
from devplugin.amd.inventory import Gpu, Inventory
from devplugin.amd.settings import Settings
from devplugin.answers import Offer, OfferedDevice

DOMAIN = "amd.com"
PLAIN = f"{DOMAIN}/gpu"

_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")


def resource_of(gpu: Gpu, settings: Settings) -> str:
    """The resource a GPU is offered under."""
    if settings.naming == "mixed" and gpu.partition_type:
        return f"{DOMAIN}/{gpu.partition_type}"
    return PLAIN


def offers(inventory: Inventory, settings: Settings) -> Mapping[str, Offer]:
    """Resource name → its devices, names sorted, devices by key; empty when there is no GPU.

    A node whose every GPU is kept back offers an empty list: kubelet would otherwise remember for five
    minutes what an earlier life of the plugin offered.
    """
    lists: dict[str, list[Device]] = {}
    if inventory.excluded and not inventory.gpus:
        lists[PLAIN] = []
    for device in sorted(devices(inventory, settings), key=lambda device: device.key):
        lists.setdefault(resource_of(device.gpu, settings), []).append(device)
    return {
        name: Offer(name, tuple(entry for device in lists[name] for entry in _entries(device)))
        for name in sorted(lists)
        if is_resource_name(name)
    }


def naming_notices(inventory: Inventory, settings: Settings) -> tuple[str, ...]:
    """Warnings about names that an operator may not expect."""
    types = sorted({gpu.partition_type for gpu in inventory.gpus if gpu.partition_type})
    if settings.naming == "single":
        if len(types) < 2:
            return ()
        told = f"GPUs of different partition types ({', '.join(types)}) are all offered as {PLAIN}: "
        return (told + "-resource_naming_strategy=mixed names them apart",)
    if types and PLAIN not in {resource_of(gpu, settings) for gpu in inventory.gpus}:
        told = f"nothing is offered as {PLAIN} (-resource_naming_strategy=mixed): "
        return (told + "HAMi removes this node's registration while that capacity is 0",)
    return ()


def is_resource_name(name: str) -> bool:
    """Whether kubelet takes a name for an extended resource: ``<dns domain>/<qualified name>`` (B43)."""
    domain, slash, rest = name.partition("/")
    labels: Iterable[str] = domain.split(".")
    return bool(slash and len(domain) <= 253 and all(map(_LABEL.fullmatch, labels)) and _NAME.fullmatch(rest))


def _entries(device: Device) -> Iterable[OfferedDevice]:
    """The lines of one device: all slots share its health and NUMA node; unknown NUMA is left out."""
    numa = (device.gpu.numa,) if device.gpu.numa >= 0 else ()
    return (OfferedDevice(name, device.gpu.healthy, numa) for name in device.kubelet_ids)
