"""Small nodes built from a report's numbers: KFD nodes, PCI GPUs and partition devices as one dict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from devplugin.amd.discovery import discover
from devplugin.amd.inventory import Inventory
from devplugin.amd.report import report
from devplugin.amd.settings import Settings

from .dict_host import DictHost, Link, Tree, device_node, directory

NODES = "/sys/class/kfd/kfd/topology/nodes"
BOUND = "/sys/module/amdgpu/drivers/pci:amdgpu"
PLATFORM = "/sys/devices/platform"

CPU = {"cpu_cores_count": 48, "simd_count": 0, "drm_render_minor": 0, "simd_per_cu": 0}


def lines(values: Mapping[str, Any]) -> str:
    return "".join(f"{name} {value}\n" for name, value in values.items())


def kfd_node(index: int, **values: Any) -> Tree:
    """One node directory; `bank` is its memory bank in bytes."""
    bank = values.pop("bank", None)
    tree: Tree = {f"{NODES}/{index}/properties": lines(values), f"{NODES}/{index}/gpu_id": "4711\n"}
    if bank is not None:
        tree[f"{NODES}/{index}/mem_banks/0/properties"] = lines({"heap_type": 1, "size_in_bytes": bank})
    return tree


def cpu_node(index: int) -> Tree:
    return {f"{NODES}/{index}/properties": lines(CPU), f"{NODES}/{index}/gpu_id": "0\n"}


def gpu_node(index: int, minor: int, location: int, cus: int, **more: Any) -> Tree:
    """A GPU node with the lines discovery reads; `more` replaces or adds lines, None leaves one out."""
    values: dict[str, Any] = {
        "simd_count": cus * 4,
        "simd_per_cu": 4,
        "gfx_target_version": 90402,
        "device_id": 0x74A1,
        "location_id": location,
        "domain": 0,
        "drm_render_minor": minor,
        "unique_id": 0x1000 + (location >> 3) + (more.get("domain", 0) << 32),
        "num_cp_queues": 24,
        "num_xcc": 8,
    }
    values.update(more)
    return kfd_node(index, **{name: value for name, value in values.items() if value is not None})


def pci_gpu(bdf: str, card: int | None, render: int | None, **files: Any) -> Tree:
    """A PCI directory bound to amdgpu; `files` replaces or adds files, None leaves one out."""
    content: dict[str, Any] = {"mem_info_vram_total": 206141652992, "numa_node": 0}
    content.update(files)
    at = f"{BOUND}/{bdf}"
    tree: Tree = {f"{at}/{name}": f"{value}\n" for name, value in content.items() if value is not None}
    tree[f"{at}/drm"] = directory()
    if card is not None:
        tree |= {f"{at}/drm/card{card}": directory(), f"/dev/dri/card{card}": device_node()}
    if render is not None:
        tree |= {f"{at}/drm/renderD{render}": directory(), f"/dev/dri/renderD{render}": device_node()}
    return tree


def xcp(name: str, card: int | None, render: int) -> Tree:
    """A partition's platform device with its device nodes."""
    at = f"{PLATFORM}/{name}"
    tree: Tree = {f"{at}/drm/renderD{render}": directory(), f"/dev/dri/renderD{render}": device_node()}
    if card is not None:
        tree |= {f"{at}/drm/card{card}": directory(), f"/dev/dri/card{card}": device_node()}
    return tree


def link(source: int, kind: str, index: int, target: int, of_type: int) -> Tree:
    """One entry of ``io_links`` or ``p2p_links``."""
    text = lines({"type": of_type, "node_from": source, "node_to": target, "weight": 15})
    return {f"{NODES}/{source}/{kind}/{index}/properties": text}


def machine(*parts: Tree) -> DictHost:
    """All parts together, with `/dev/kfd`."""
    tree: Tree = {"/dev/kfd": device_node()}
    for part in parts:
        tree |= part
    return DictHost(tree)


def pci_link(bdf: str, driver: str | None, **files: str) -> Tree:
    """An entry of the PCI bus that is not amdgpu's."""
    at = f"/sys/bus/pci/devices/{bdf}"
    tree: Tree = {f"{at}/{name}": f"{value}\n" for name, value in files.items()}
    if driver is not None:
        tree[f"{at}/driver"] = Link(f"../../../bus/pci/drivers/{driver}")
    return tree


def found(host: Any, **choices: Any) -> Inventory:
    return discover(host, Settings(**choices))


def registered(host: Any, **choices: Any) -> list[dict[str, Any]]:
    settings = Settings(**choices)
    entries: list[dict[str, Any]] = report(discover(host, settings), settings)["registration"]
    return entries


def offered(host: Any, **choices: Any) -> dict[str, Sequence[str]]:
    settings = Settings(**choices)
    resources = report(discover(host, settings), settings)["resources"]
    return {name: [device["id"] for device in devices] for name, devices in resources.items()}


def reasons(inventory: Inventory) -> dict[str, str]:
    return {skipped.device: skipped.reason for skipped in inventory.skipped}
