"""AMD GPUs of the machine that KFD does not list, each with the reason that can be seen from outside.

A GPU that nobody explains looks like a plugin that lost it. Asked are, in this order: devices bound to
amdgpu, all PCI devices (unbound, vfio-pci, radeon), and, where a partial tree has no PCI bus, the DRM
cards. States: kernel.md 7.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Set

from devplugin.amd.inventory import Skipped
from devplugin.amd.pcidev import BOUND, read_text
from devplugin.amd.topology import NODES
from devplugin.amd.uuid import is_bdf, normal_bdf
from devplugin.host import Host, words

PCI = "/sys/bus/pci/devices"
CARDS = "/sys/class/drm"

_AMD = "0x1002"
_GPU_CLASSES = ("0x03", "0x12")
"""Display controllers and processing accelerators; audio functions and bridges are no GPUs."""

_CARD = re.compile(r"card[0-9]{1,7}")


def absent_gpus(host: Host, bound: Iterable[str], seen: Set[str], missing: str | None) -> Iterator[Skipped]:
    """Every AMD GPU that no KFD node stands for.

    Args:
        host: The node.
        bound: PCI addresses bound to amdgpu.
        seen: PCI addresses that a KFD node, offered or not, accounts for.
        missing: Why there is no KFD topology at all, as path and cause; None where there is one.
    """
    told = set(seen)
    for bdf in sorted(bound):
        if bdf not in told:
            told.add(bdf)
            yield Skipped(bdf, missing or _no_node(bdf))
    try:
        names = host.list(PCI)
    except OSError:
        yield from _cards(host, told, missing)
        return
    for bdf in names:
        if is_bdf(bdf) and bdf not in told and _is_gpu(host, f"{PCI}/{bdf}"):
            yield Skipped(bdf, _not_bound(host, bdf))


def _no_node(bdf: str) -> str:
    return f"bound to amdgpu, but no KFD node is at {bdf}: {NODES}"


def _is_gpu(host: Host, directory: str) -> bool:
    """Whether a PCI device is an AMD GPU; one that does not say is not taken for one."""
    try:
        return read_text(host, f"{directory}/vendor") == _AMD and read_text(
            host, f"{directory}/class"
        ).startswith(_GPU_CLASSES)
    except OSError:
        return False


def _not_bound(host: Host, bdf: str) -> str:
    """Which driver has it instead of amdgpu."""
    link = f"{PCI}/{bdf}/driver"
    try:
        driver = host.readlink(link).rpartition("/")[2]
    except OSError as error:
        return f"no driver is bound: {link}: {words(error)}"
    return f"bound to {driver}, not to amdgpu: {BOUND}/{bdf}: ENOENT"


def _cards(host: Host, told: set[str], missing: str | None) -> Iterator[Skipped]:
    """AMD cards of `/sys/class/drm` that nothing explained yet."""
    try:
        names = host.list(CARDS)
    except OSError:
        return
    for card in sorted((n for n in names if _CARD.fullmatch(n)), key=lambda n: (len(n), n)):
        device = f"{CARDS}/{card}/device"
        try:
            if read_text(host, f"{device}/vendor") != _AMD:
                continue
        except OSError:
            continue
        driver, bdf = _uevent(host, f"{device}/uevent")
        if bdf in told:
            continue
        if driver in ("", "amdgpu"):
            why = missing or f"{BOUND}/{bdf or card}: ENOENT"
        else:
            why = f"bound to {driver}, not to amdgpu: {BOUND}/{bdf or card}: ENOENT"
        yield Skipped(bdf or card, f"{card}: {why}")


def _uevent(host: Host, path: str) -> tuple[str, str]:
    """(driver, PCI address) of a device, empty where its uevent does not say."""
    try:
        text = read_text(host, path)
    except OSError:
        return "", ""
    pairs = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    bdf = normal_bdf(pairs.get("PCI_SLOT_NAME", ""))
    driver = pairs.get("DRIVER", "")
    return driver if driver.isprintable() else "", bdf if is_bdf(bdf) else ""
