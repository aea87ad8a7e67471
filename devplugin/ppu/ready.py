"""What a PPU plugin needs on its node: ppu-smi, the driver's device nodes, the runtime library.

Sources: ascend_ppu_hami.md C.2 (nodes, tool, what the tool says without a driver), decisions 53 and 54.
"""

from __future__ import annotations

from devplugin.host import Host, words
from devplugin.ppu.allocation import INSTALL
from devplugin.ppu.discovery import PCI
from devplugin.ppu.inventory import Inventory
from devplugin.ppu.settings import Settings
from devplugin.ppu.smi import TOOL
from devplugin.ppu.words import COMMON_NODES, HOST, NODE, PCI_VENDOR
from devplugin.preflight import Check, good

_NODES = "load the driver, and run privileged with the node's /dev"


def checks(host: Host, inventory: Inventory, settings: Settings) -> tuple[Check, ...]:
    """All of them, in the order in which one needs the other."""
    found = [_tool(inventory), _bus(host, inventory)]
    found += [_there(host, path, path, _NODES) for path in COMMON_NODES]
    found += [
        Check(skipped.device, "warning", skipped.reason, "it is not offered; see the reason")
        for skipped in inventory.skipped
    ]
    for ppu in inventory.ppus:
        name = f"PPU {ppu.index}"
        if ppu.reason:
            remedy = "see ppu-smi and the driver's log; it is offered as unhealthy"
            found.append(Check(name, "warning", ppu.reason, remedy))
        else:
            found.append(_there(host, name, f"{NODE}{ppu.minor}", _NODES))
    found.append(good("shares", f"{settings.split} of each PPU, as {settings.resource}"))
    found.append(_library(inventory))
    return tuple(found)


def _tool(inventory: Inventory) -> Check:
    if inventory.trouble:
        remedy = "load the driver, and mount ppu-smi and /usr/local/PPU_SDK into the plugin's container"
        return Check("ppu-smi", "missing", inventory.trouble, remedy)
    return good("ppu-smi", inventory.tool if inventory.tool != TOOL.name else "found in PATH")


def _bus(host: Host, inventory: Inventory) -> Check:
    """Whether the tool lists as many cards as are on the bus: one may have fallen out of the driver."""
    name, there = "PCI bus", 0
    try:
        addresses = host.list(PCI)
    except OSError as error:
        return Check(name, "warning", f"{PCI}: {words(error)}", "mount the node's /sys")
    for address in addresses:
        try:
            there += host.read(f"{PCI}/{address}/vendor").strip().lower() == PCI_VENDOR.encode()
        except OSError:
            continue
    listed = len(inventory.ppus) + len(inventory.skipped)
    if not inventory.tool or there == listed:
        return good(name, f"{there} devices of vendor {PCI_VENDOR[2:]}")
    remedy = "see the driver's log: a card that it does not drive is not offered"
    return Check(name, "warning", f"{there} PPUs on the bus, ppu-smi lists {listed}", remedy)


def _library(inventory: Inventory) -> Check:
    if inventory.library.trouble:
        return Check("PPU-HAMi-core", "missing", inventory.library.trouble, INSTALL)
    return good("PPU-HAMi-core", HOST)


def _there(host: Host, name: str, path: str, remedy: str) -> Check:
    try:
        host.stat(path)
    except OSError as error:
        return Check(name, "missing", f"{path}: {words(error)}", remedy)
    return good(name, path)
