"""What AMD's plugin needs on a node: the driver, its device nodes, the topology, and what limits memory.

Each check looks where discovery looks, and says what to do (amd.md 1.3, 7, 8; decision 31).
"""

from __future__ import annotations

from devplugin.amd import hooking
from devplugin.amd.inventory import Inventory
from devplugin.amd.settings import MODE_CU, Settings
from devplugin.host import Host, words
from devplugin.preflight import Check, good

DRIVER = "/sys/module/amdgpu"
KFD = "/dev/kfd"


def checks(host: Host, inventory: Inventory, settings: Settings) -> tuple[Check, ...]:
    """All of them, in the order in which one needs the other."""
    found = [_driver(host), _kfd(host)]
    found += [
        Check(f"GPU {skipped.device}", "warning", skipped.reason, "it is not offered; see the reason")
        for skipped in inventory.skipped
        if skipped.device not in inventory.excluded
    ]
    minors = sorted({one.render_minor for gpu in inventory.gpus for one in gpu.partitions})
    found += [_render(host, minor) for minor in minors]
    if settings.mode == MODE_CU:
        found += [_hook(host, inventory, settings), _dmem(inventory, settings)]
    return tuple(found)


def _driver(host: Host) -> Check:
    try:
        host.stat(DRIVER)
    except OSError as error:
        return Check(
            "driver", "missing", f"{DRIVER}: {words(error)}", "load amdgpu, and mount the node's /sys"
        )
    return good("driver", "amdgpu is loaded")


def _kfd(host: Host) -> Check:
    """Whether it is there; opening it would keep every GPU from being switched meanwhile (decision 28)."""
    try:
        host.stat(KFD)
    except OSError as error:
        remedy = "mount the node's /dev, and see dmesg for the driver"
        return Check("compute interface", "missing", f"{KFD}: {words(error)}", remedy)
    return good("compute interface", KFD)


def _render(host: Host, minor: int) -> Check:
    path = f"/dev/dri/renderD{minor}"
    try:
        host.probe(path)
    except OSError as error:
        remedy = "run privileged with the node's /dev; a GPU in reset answers again by itself"
        return Check(path, "missing", words(error), remedy)
    return good(path, "opens")


def _hook(host: Host, inventory: Inventory, settings: Settings) -> Check:
    """Without it dmem must limit a slice; without both every slice is refused."""
    path = hooking.source(settings)
    try:
        host.stat(path)
    except OSError as error:
        remedy = "let the chart install it (dp.hookInstaller.enabled), or set HOST_HOOK_PATH to where it is"
        if settings.dmem_backend and inventory.dmem.ok:
            return Check("memory hook", "warning", f"{path}: {words(error)}", remedy)
        why = f"{path}: {words(error)}; dmem limits nothing either, so every slice is refused"
        return Check("memory hook", "missing", why, remedy)
    return good("memory hook", path)


def _dmem(inventory: Inventory, settings: Settings) -> Check:
    if not settings.dmem_backend:
        return Check("dmem controller", "warning", "switched off by -dmem_backend=false", "drop the flag")
    if inventory.dmem.ok:
        return good("dmem controller", "limits VRAM")
    remedy = "only the memory hook can limit slices; use a kernel from 6.14 with CONFIG_CGROUP_DMEM"
    return Check("dmem controller", "warning", inventory.dmem.reason, remedy)
