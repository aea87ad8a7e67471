"""Where the directories of GPUs, partitions and DRM devices hang below /sys, and every link to them.

Source: kernel.md 2.6, 3 and 7 (unbound devices, stale XCP devices, module without GPUs).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MethodType

from gpusim.amd import drmfs, hwmon, pci, xcp
from gpusim.amd.driver import Driver
from gpusim.amd.gpu import Gpu
from gpusim.amd.kfd_ids import invented
from gpusim.amd.kfd_proc import process_entries
from gpusim.amd.kfd_tree import KfdTree
from gpusim.amd.vram import Vram
from gpusim.nodes import Attr, Dir, Entries, Link, Node

_VGA = 0x030000


class Sysfs:
    """The amdgpu part of /sys for one driver, and what to forget when devices come or go.

    Args:
        driver: whose devices.
        vram: whose processes KFD shows.
        others: PCI address → a PPU that is plugged in now.
    """

    def __init__(
        self, driver: Driver, vram: Vram, others: Callable[[], Mapping[str, pci.Other]] | None = None
    ) -> None:
        self._driver = driver
        self._others: Callable[[], Mapping[str, pci.Other]] = others or dict
        self._changing: list[Dir] = []
        self._homes = {card.spec.bdf: card.home for card in driver.cards}
        self._homes |= {gpu.bdf: gpu.home for gpu in driver.gpus.values()}
        if ppus := [ppu.bdf for ppu in driver.spec.ppus]:
            # After all the rest, whose places on the bus are as without them.
            places = pci.homes([*driver.gpus, *(card.spec.bdf for card in driver.cards), *ppus])
            self._homes |= {bdf: places[bdf] for bdf in ppus}
        self._platforms = self._lazy(self._platform)
        kfd = KfdTree(lambda: driver.topology, lambda bdf: driver.gpus[bdf].vram_used, driver.kfd_major)
        self._kfd = kfd.root
        self._metrics: dict[xcp.Owner, Dir] = {}

        def switched() -> None:
            kfd.changed()
            for directory in self._metrics.values():
                directory.invalidate()

        driver.topology_changed = switched
        processes = Dir(lambda: process_entries(vram))
        vram.contexts_changed = processes.invalidate
        kfd.root.add("proc", processes)
        self._drm: tuple[drmfs.Device, ...] = ()
        """What DRM has, worked out at the first look after a change."""
        self._class_drm = self._lazy(lambda: drmfs.class_entries(self._drm_devices()))
        self.root = Dir(
            {
                "bus": Dir(self._bus()),
                "class": self._lazy(self._class),
                "dev": Dir({"char": self._lazy(self._char)}),
                "devices": self._lazy(self._devices),
                "module": self._lazy(self._module),
            }
        )
        self.dri = self._lazy(lambda: drmfs.dev_entries(self._drm_devices(), driver.open_minor))

    def invalidate(self) -> None:
        """Devices came or went: every list of them is made anew at the next look."""
        self._drm = ()
        for directory in self._changing:
            directory.invalidate()

    def _drm_devices(self) -> tuple[drmfs.Device, ...]:
        self._drm = self._drm or tuple(self._driver.drm_devices())
        return self._drm

    def _lazy(self, entries: Entries) -> Dir:
        directory = Dir(entries)
        self._changing.append(directory)
        return directory

    # Buses, classes, module: links

    def _pci_devices(self) -> dict[str, str]:
        """BDF → directory of every PCI device that is plugged in."""
        gone = {gpu.bdf for gpu in self._driver.gpus.values() if not gpu.present}
        gone |= {ppu.bdf for ppu in self._driver.spec.ppus} - self._others().keys()
        return {bdf: home for bdf, home in self._homes.items() if bdf not in gone}

    def _bus(self) -> dict[str, Node]:
        return {
            "pci": Dir({"devices": self._lazy(self._bus_pci), "drivers": self._lazy(self._pci_drivers)}),
            "platform": Dir({"devices": self._lazy(self._bus_platform)}),
        }

    def _bus_pci(self) -> dict[str, Node]:
        homes = self._pci_devices()
        for home in self._homes.values():
            bus, port = _above(home)
            if port is not None:
                homes[port] = f"/sys/devices/{bus}/{port}"
        return {bdf: Link(f"../../../{home.removeprefix('/sys/')}") for bdf, home in homes.items()}

    def _pci_drivers(self) -> dict[str, Node]:
        driver = self._driver
        members: dict[str, dict[str, str]] = {}
        if driver.loaded:
            members["amdgpu"] = {}
        ports = {port: bus for bus, port in map(_above, self._homes.values()) if port is not None}
        if ports:
            members["pcieport"] = {port: f"/sys/devices/{bus}/{port}" for port, bus in ports.items()}
        for card in driver.cards:
            members.setdefault(card.spec.driver, {})[card.spec.bdf] = card.home
        for gpu in driver.gpus.values():
            if gpu.present and gpu.driver:
                members.setdefault(gpu.driver, {})[gpu.bdf] = gpu.home
        for bdf, other in self._others().items():
            if other.driver:
                members.setdefault(other.driver, {})[bdf] = self._homes[bdf]
        return {name: Dir(_driver_entries(name, found)) for name, found in members.items()}

    def _bus_platform(self) -> dict[str, Node]:
        rules = self._driver.rules
        names = (xcp.device_name(number, rules) for number, _ in self._driver.slots)
        return {name: Link(f"../../../devices/platform/{name}") for name in names}

    def _class(self) -> dict[str, Node]:
        found: dict[str, Node] = {"drm": self._class_drm}
        sensors = hwmon.class_entries(self._driver.gpus.values())
        if sensors:
            found["hwmon"] = Dir(sensors)
        if self._driver.loaded:
            found["kfd"] = Dir({"kfd": Link("../../devices/virtual/kfd/kfd")})
        return found

    def _char(self) -> dict[str, Node]:
        found = drmfs.char_entries(self._drm_devices())
        if self._driver.loaded:
            found[f"{self._driver.kfd_major}:0"] = Link("../../devices/virtual/kfd/kfd")
        return found

    def _module(self) -> dict[str, Node]:
        """The module stays loaded when it cannot drive what it was loaded for."""
        others = {other.driver for other in self._others().values() if other.driver}
        modules: dict[str, Node] = {name: Dir({"initstate": Attr("live\n")}) for name in sorted(others)}
        if not self._driver.loaded:
            return modules
        version = self._driver.rules.module_version
        found: dict[str, Node] = {
            "drivers": Dir({"pci:amdgpu": Link("../../../bus/pci/drivers/amdgpu")}),
            "initstate": Attr("live\n"),
            # The kernel prints a checksum of the module's sources; ours only has its form.
            "srcversion": Attr(f"{_srcversion(self._driver.spec.seed)}\n"),
        }
        if version is not None:
            found["version"] = Attr(f"{version}\n")
        return {"amdgpu": Dir(found), **modules}

    # Devices

    def _devices(self) -> dict[str, Node]:
        found: dict[str, Node] = {"platform": self._platforms}
        if self._driver.loaded:
            found["virtual"] = Dir({"kfd": Dir({"kfd": self._kfd})})
        present = self._pci_devices()
        buses: dict[str, dict[str, Node]] = {}
        for bdf, home in self._homes.items():
            device = {bdf: self._pci_device(bdf)} if bdf in present else {}
            bus, port = _above(home)
            if port is None:
                buses.setdefault(bus, {}).update(device)
            else:
                bridge = pci.bridge_entries(f"/sys/devices/{bus}/{port}")
                buses.setdefault(bus, {})[port] = Dir({**bridge, **device})
        return found | {bus: Dir(kids) for bus, kids in buses.items()}

    def _pci_device(self, bdf: str) -> Dir:
        driver = self._driver
        gpu = driver.gpus.get(bdf)
        if gpu is not None:
            return Dir(MethodType(self._gpu_entries, gpu))
        if (other := self._others().get(bdf)) is not None:
            index = list(self._homes).index(bdf)
            return Dir(lambda: pci.other_entries(self._homes[bdf], other, index, driver.spec))
        card = next(card for card in driver.cards if card.spec.bdf == bdf)

        def made() -> dict[str, Node]:
            spec = card.spec
            ids = pci.Ids(spec.vendor, spec.device, spec.subsystem or (spec.vendor, spec.device), _VGA)
            found = pci.device_entries(card.home, ids, spec.driver)
            if card.nodes is not None:
                found["drm"] = drmfs.device_drm(card.home, card.nodes, connectors=card.connectors)
            return found

        return Dir(made)

    def _gpu_entries(self, gpu: Gpu) -> Mapping[str, Node]:
        driver = self._driver
        return pci.gpu_entries(gpu, driver.spec, driver.rules, driver, self._partition(gpu.bdf, 0))

    def _platform(self) -> dict[str, Node]:
        return {
            xcp.device_name(number, self._driver.rules): Dir(self._xcp(number, owner))
            for number, owner in self._driver.slots
        }

    def _xcp(self, number: int, owner: xcp.Owner | None) -> Entries:
        driver = self._driver

        def made() -> dict[str, Node]:
            drm = metrics = None
            if owner is not None:
                bdf, partition = owner
                metrics = self._partition(bdf, partition)
                gpu = driver.gpus[bdf]
                drm = drmfs.device_drm(driver.drm_home(gpu, partition), gpu.drm[partition])
            return xcp.entries(number, driver.rules, drm, metrics)

        return made

    def _partition(self, bdf: str, partition: int) -> Dir | None:
        """xcp/ of a partition, which a switch fills or empties; None where the driver has none."""
        if not self._driver.rules.xcp_directory:
            return None
        gpu = self._driver.gpus[bdf]
        made = self._metrics.get((bdf, partition))
        if made is None:
            made = Dir(lambda: xcp.metrics(gpu.bound and partition < gpu.partitions))
            self._metrics[bdf, partition] = made
        return made


def _srcversion(seed: int) -> str:
    """23 hexadecimal digits."""
    return f"{invented(seed, 0x737263, 0):016X}{invented(seed, 0x737263, 1):016X}"[:23]


def _above(home: str) -> tuple[str, str | None]:
    """Names of the root bus and, unless the device hangs on the bus itself, of the root port above `home`."""
    bus, *port = home.split("/")[3:-1]
    return bus, port[0] if port else None


def _driver_entries(name: str, members: Mapping[str, str]) -> dict[str, Node]:
    found: dict[str, Node] = {
        bdf: Link(f"../../../../{home.removeprefix('/sys/')}") for bdf, home in members.items()
    }
    if name == "amdgpu":
        found["module"] = Link("../../../../module/amdgpu")
    return found
