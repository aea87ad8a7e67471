"""What an Ascend plugin needs on its node and in its image: npu-smi, the driver's device nodes, the library.

Device nodes are looked at, not opened: without device-share a chip lets in one process at a time (A.5).
Sources: ascend_ppu_hami.md A.4 (nodes), A.5 (tool), A.6 (library).
"""

from __future__ import annotations

from devplugin.ascend import smi
from devplugin.ascend.allocation import LIBRARY, PRELOAD
from devplugin.ascend.inventory import Inventory
from devplugin.ascend.settings import Settings
from devplugin.hami.codec import clip
from devplugin.host import Host, words
from devplugin.preflight import Check, Verdict, good

MANAGER = "/dev/davinci_manager"
"""Without it no process reaches a chip; the other two some programs do without (A.4)."""
OPTIONAL = ("/dev/devmm_svm", "/dev/hisi_hdc")

_NODES = "load the driver, and run privileged with the node's /dev"


def checks(host: Host, inventory: Inventory, settings: Settings) -> tuple[Check, ...]:
    """All of them, in the order in which one needs the other."""
    found = [_tool(inventory), _there(host, "driver", MANAGER, "missing", _NODES)]
    found += [_there(host, path, path, "warning", _NODES) for path in OPTIONAL]
    if inventory.chip is not None:
        shares = inventory.shares(settings)
        found.append(good("device configuration", f"{inventory.chip.chip}: {shares} shares of each card"))
    found += [
        Check(skipped.device, "warning", skipped.reason, "it is not offered; see the reason")
        for skipped in inventory.skipped
    ]
    for npu in inventory.npus:
        name = f"NPU {npu.card} chip {npu.device}"
        if not npu.healthy:
            remedy = "see npu-smi info -t health and the driver's log"
            found.append(Check(name, "warning", f"npu-smi says {clip(npu.reason)}", remedy))
        found.append(_there(host, name, f"/dev/davinci{npu.phy}", "missing", _NODES))
    if settings.soft:
        remedy = "use an image that has the runtime library, or say where it is: HAMI_VNPU_ASSETS_PATH"
        found += [
            _there(host, name, f"{settings.assets_path}/{name}", "missing", remedy)
            for name in (LIBRARY, PRELOAD)
        ]
    return tuple(found)


def _tool(inventory: Inventory) -> Check:
    if inventory.trouble:
        remedy = "mount the directory that has it, and the driver's libraries, into the plugin's container"
        return Check("npu-smi", "missing", inventory.trouble, remedy)
    return good("npu-smi", inventory.tool if inventory.tool != smi.NAME else "found in PATH")


def _there(host: Host, name: str, path: str, otherwise: Verdict, remedy: str) -> Check:
    try:
        host.stat(path)
    except OSError as error:
        return Check(name, otherwise, f"{path}: {words(error)}", remedy)
    return good(name, path)
