"""The PCI directory of a GPU: what the PCI core and amdgpu put there, by release and SR-IOV state.

Sources: kernel.md 2.1, 2.2, 2.4 and 3; drivers/pci/pci-sysfs.c, drivers/gpu/drm/amd/amdgpu/
amdgpu_{vram_mgr,gfx,gmc,pm,device}.c. What the PCI core shows of any device is `pcicore`, amdgpu's small
files `pmfiles`, the board's texts `fru`, the sensors `hwmon`, compute_partition_config/ `xcpconfig`.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from types import MethodType
from typing import Protocol

from gpusim.amd import fru, hwmon, pcicore, pmfiles, xcpconfig
from gpusim.amd.drmfs import depth, device_drm
from gpusim.amd.gpu import Gpu, not_resetting
from gpusim.amd.gpufacts import VENDOR, link_generation
from gpusim.amd.partition import listed, memory_modes
from gpusim.amd.products import PRODUCTS
from gpusim.kernel import Behaviour
from gpusim.nodes import Attr, Caller, Dir, Link, Node
from gpusim.spec import Cpus, NodeSpec

LINK_SPEED = {1: "2.5", 2: "5.0", 3: "8.0", 4: "16.0", 5: "32.0"}
"""GT/s by PCIe generation."""
_SMALL_BAR = 256 << 20
_VGA = 0x030000
_WHOLE = re.compile(rb"[-+]?[0-9]{1,9}\n?")
_UEVENT_ACTIONS = (b"add", b"remove", b"change", b"move", b"online", b"offline", b"bind", b"unbind")


class Actions(Protocol):
    """What the files of the directory do when written: `gpusim.amd.driver.Driver` is one."""

    def write_compute_partition(self, gpu: Gpu, data: bytes) -> None:
        """Switch a GPU's compute mode, or refuse."""
        ...

    def write_memory_partition(self, gpu: Gpu, data: bytes) -> None:
        """Record a memory mode for the next driver load, or refuse."""
        ...


@dataclass(frozen=True, slots=True)
class Ids:
    """What a device's configuration space says of it."""

    vendor: int
    device: int
    subsystem: tuple[int, int]
    pci_class: int
    revision: int = 0


@dataclass(frozen=True, slots=True)
class Other:
    """A device of another vendor that is no display, such as a PPU."""

    ids: Ids
    driver: str | None
    numa: int
    """-1 where firmware does not say."""


def homes(addresses: Iterable[str]) -> dict[str, str]:
    """A directory below /sys/devices for every PCI address.

    A device on bus 0 hangs on the root bus itself, as synthetic domains of guests have it; every other one
    sits behind a root port of its own, on a root bus that starts each sixteen buses.
    """
    found: dict[str, str] = {}
    ports: dict[str, int] = {}
    for bdf in addresses:
        domain, bus, _ = bdf.split(":")
        if bus == "00":
            found[bdf] = f"/sys/devices/pci{domain}:00/{bdf}"
            continue
        root = f"{domain}:{(int(bus, 16) - 1) & 0xF0:02x}"
        ports[root] = port = ports.get(root, 0) + 1
        found[bdf] = f"/sys/devices/pci{root}/{root}:{port & 0x1F:02x}.{1 + (port >> 5)}/{bdf}"
    return found


def device_entries(home: str, ids: Ids, driver: str | None) -> dict[str, Node]:
    """What the PCI core itself shows of any device."""
    return _device_entries(home, ids, driver).copy()


@lru_cache(maxsize=512)
def _device_entries(home: str, ids: Ids, driver: str | None) -> dict[str, Node]:
    """Nodes that never change, so that all machines with such a device there share them."""
    vendor, device, subsystem, pci_class = ids.vendor, ids.device, ids.subsystem, ids.pci_class
    bdf = home.rpartition("/")[2]
    modalias = (
        f"pci:v{vendor:08X}d{device:08X}sv{subsystem[0]:08X}sd{subsystem[1]:08X}"
        f"bc{pci_class >> 16:02X}sc{pci_class >> 8 & 0xFF:02X}i{pci_class & 0xFF:02X}\n"
    )
    lines = [f"DRIVER={driver}"] if driver else []
    lines += [
        f"PCI_CLASS={pci_class:04X}",
        f"PCI_ID={vendor:04X}:{device:04X}",
        f"PCI_SUBSYS_ID={subsystem[0]:04X}:{subsystem[1]:04X}",
        f"PCI_SLOT_NAME={bdf}",
        f"MODALIAS={modalias}",
    ]
    up = depth(home)
    found: dict[str, Node] = {
        "class": Attr(f"0x{pci_class:06x}\n"),
        "device": Attr(f"0x{device:04x}\n"),
        "modalias": Attr(modalias),
        "power": Dir(),
        "revision": Attr(f"0x{ids.revision:02x}\n"),
        "subsystem": Link(f"{up}bus/pci"),
        "subsystem_device": Attr(f"0x{subsystem[1]:04x}\n"),
        "subsystem_vendor": Attr(f"0x{subsystem[0]:04x}\n"),
        "uevent": Attr("\n".join(lines), _uevent, mode=0o644),
        "vendor": Attr(f"0x{vendor:04x}\n"),
    }
    if driver:
        found["driver"] = Link(f"{up}bus/pci/drivers/{driver}")
    return found


def _uevent(data: bytes, _: Caller) -> None:
    if not data.startswith(_UEVENT_ACTIONS):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))


def bridge_entries(home: str) -> dict[str, Node]:
    """A root port: just enough that a scan of the bus sees a bridge and no GPU."""
    return device_entries(home, Ids(0x1022, 0x1500, (0, 0), 0x060400), "pcieport")


def gpu_entries(
    gpu: Gpu, spec: NodeSpec, rules: Behaviour, actions: Actions, metrics: Dir | None = None
) -> Mapping[str, Node]:
    """Everything in a GPU's PCI directory.

    Args:
        gpu: whose.
        spec: the node's description.
        rules: what kernel and driver do.
        actions: what writing does.
        metrics: the xcp/ directory of partition 0, where the driver has one.
    """
    product = gpu.product
    ids = Ids(VENDOR, product.device_id, gpu.facts.subsystem, product.pci_class, product.revision_id)
    numa = -1 if gpu.numa is None else gpu.numa
    link = link_generation(spec, product)
    found = _on_the_bus(gpu.home, ids, gpu.driver, link, _slot(gpu, spec), near=(spec.cpus, numa)).copy()
    if gpu.numa is not None:
        found["numa_node"] = _numa(gpu, spec.cpus.nodes)
    if gpu.bound:
        found |= _amdgpu_entries(gpu, spec, rules)
        if product.partitionable:
            found |= _compute_entries(gpu, rules, actions)
            found |= _memory_entries(gpu, rules, actions)
            if metrics is not None:
                found["xcp"] = metrics
            if rules.partition_config:
                found[xcpconfig.NAME] = Dir(partial(xcpconfig.entries, gpu, rules))
    return found


def other_entries(home: str, other: Other, index: int, spec: NodeSpec) -> dict[str, Node]:
    """Everything in the PCI directory of a device that is no GPU of ours: what the core shows.

    Args:
        home: the directory.
        other: whose.
        index: its place among all accelerators of the node; interrupts are counted by it.
        spec: the node's description.
    """
    slot = pcicore.Slot(index, other.driver is not None, 64 if other.driver else 32, inside=False)
    near = (spec.cpus, other.numa)
    core = _on_the_bus(home, other.ids, other.driver, spec.pcie_generation, slot, near=near)
    return {**core, "numa_node": Attr(f"{other.numa}\n")}


@lru_cache(maxsize=512)
def _on_the_bus(
    home: str, ids: Ids, driver: str | None, generation: int, slot: pcicore.Slot, *, near: tuple[Cpus, int]
) -> dict[str, Node]:
    """All that the PCI core shows of an accelerator but its NUMA node; shared like `_device_entries`."""
    cpus, numa = near
    found = device_entries(home, ids, driver)
    for end in ("current", "max"):
        found[f"{end}_link_speed"] = Attr(f"{LINK_SPEED[generation]} GT/s PCIe\n")
        found[f"{end}_link_width"] = Attr("16\n")
    return found | pcicore.entries(slot, cpus, numa)


def _slot(gpu: Gpu, spec: NodeSpec) -> pcicore.Slot:
    product = gpu.product
    vga = product.pci_class == _VGA
    # Firmware uses a baseboard controller's display where there is one, else the first it finds.
    before = spec.gpus[: gpu.index] if vga else ()
    first = not spec.bmc and all(PRODUCTS[one.product].pci_class != _VGA for one in before)
    return pcicore.Slot(
        index=gpu.index,
        driver=gpu.driver is not None,
        # gmc_v9_0.c: 48 bits from GC 9.4.2 on, else 44 (both captures); 32 until a driver asks for more.
        mask_bits=(48 if 90010 <= product.gfx < 100000 else 44) if gpu.bound else 32,
        inside=product.apu,
        # rdna2-rx6900xt sleeps, apu-strixpoint-890m does not; Instinct taken like the latter: inf.
        runtime_pm=gpu.bound and product.gfx >= 100000 and not product.apu,
        boot_vga=first if vga else None,
    )


def _numa(gpu: Gpu, nodes: int) -> Attr:
    return Attr(MethodType(_numa_is, gpu), MethodType(_set_numa, (gpu, nodes)), mode=0o644)


def _numa_is(gpu: Gpu) -> str:
    return f"{gpu.numa}\n"


def _set_numa(of: tuple[Gpu, int], data: bytes, _: Caller) -> None:
    gpu, nodes = of
    # numa_node_store: a whole number (kstrtoint), -1 or an online node.
    if not _WHOLE.fullmatch(data) or not -1 <= int(data) < nodes:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    gpu.numa = int(data)


def _amdgpu_entries(gpu: Gpu, spec: NodeSpec, rules: Behaviour) -> dict[str, Node]:
    facts = gpu.facts
    vram = facts.vram_bytes
    # An APU reaches its memory without a BAR, as KFD says too (heap_type 1).
    visible = vram if spec.large_bar or gpu.product.apu else min(vram, _SMALL_BAR)
    found: dict[str, Node] = {
        "hwmon": Dir(partial(hwmon.entries, gpu, rules)),
        "mem_info_gtt_total": Attr(f"{facts.gtt_bytes}\n"),
        "mem_info_gtt_used": Attr(MethodType(_gtt_used, gpu)),
        "mem_info_vis_vram_total": Attr(f"{visible}\n"),
        "mem_info_vis_vram_used": Attr(MethodType(_visible_used, (gpu, visible))),
        "mem_info_vram_total": Attr(f"{vram}\n"),
        "mem_info_vram_used": Attr(MethodType(_vram_used, gpu)),
    }
    # Methods bound to the GPU are one object each, where functions with closures are three or four.
    if gpu.drm:
        found["drm"] = device_drm(gpu.home, gpu.drm[0], control=rules.control_links)
    if facts.unique_id:
        found["unique_id"] = Attr(f"{facts.unique_id:016x}\n", guard=MethodType(not_resetting, gpu))
    return found | fru.entries(gpu, spec, rules) | pmfiles.entries(gpu, rules)


def _gtt_used(gpu: Gpu) -> str:
    return f"{gpu.gtt_used}\n"


def _visible_used(of: tuple[Gpu, int]) -> str:
    gpu, visible = of
    return f"{min(gpu.vram_used, visible)}\n"


def _vram_used(gpu: Gpu) -> str:
    return f"{gpu.vram_used}\n"


def _compute_mode(gpu: Gpu) -> str:
    # A GPU that does not answer reads all ones, which is no mode (kernel.md 2.1, 7).
    return "UNKNOWN\n" if gpu.hung else f"{gpu.mode}\n"


def _compute_modes(of: tuple[Gpu, Behaviour]) -> str:
    gpu, rules = of
    return f"{listed(gpu.product, gpu.nps, rules)}\n"


def _switch(of: tuple[Gpu, Actions], data: bytes, _: Caller) -> None:
    gpu, actions = of
    actions.write_compute_partition(gpu, data)


def _ask(of: tuple[Gpu, Actions], data: bytes, _: Caller) -> None:
    gpu, actions = of
    actions.write_memory_partition(gpu, data)


def _memory_mode(gpu: Gpu) -> str:
    return f"NPS{gpu.nps}\n"


def _compute_entries(gpu: Gpu, rules: Behaviour, actions: Actions) -> dict[str, Node]:
    """current_ and available_compute_partition (kernel.md 2.1, 2.2)."""
    current = MethodType(_compute_mode, gpu)
    guard = MethodType(not_resetting, gpu) if rules.reset_read else None
    if gpu.product.vf:
        if rules.vf_compute_files == "absent":
            return {}
        return {"current_compute_partition": Attr(current, guard=guard)}
    return {
        "available_compute_partition": Attr(MethodType(_compute_modes, (gpu, rules))),
        "current_compute_partition": Attr(current, MethodType(_switch, (gpu, actions)), guard, mode=0o644),
    }


def _memory_entries(gpu: Gpu, rules: Behaviour, actions: Actions) -> dict[str, Node]:
    """current_ and available_memory_partition (kernel.md 2.4; up to 6.12 not in a guest, kernel.md 7)."""
    if gpu.product.vf and rules.vf_compute_files == "absent":
        return {}
    current = MethodType(_memory_mode, gpu)
    guard = MethodType(not_resetting, gpu) if rules.reset_read else None
    offered = memory_modes(gpu.product, rules)
    if len(offered) < 2:
        return {"current_memory_partition": Attr(current, guard=guard)}
    return {
        "available_memory_partition": Attr(", ".join(f"NPS{n}" for n in offered) + "\n"),
        "current_memory_partition": Attr(current, MethodType(_ask, (gpu, actions)), guard, mode=0o644),
    }
