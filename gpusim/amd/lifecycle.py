"""How GPUs and amdgpu meet and part: hot-plug, bind and unbind, and the module's own coming and going.

What a probe does is `gpusim.amd.driver`; here is in which order things appear and vanish, and what is
remembered in between. Sources: kernel.md 2.4 (a memory mode waits for the next load), 2.6 (platform devices
of partitions live as long as the module) and 7; drivers/base/bus.c (`bind_store`, `unbind_store`),
drivers/base/dd.c (`driver_attach`: a module asks for every device that has no driver).
"""

from __future__ import annotations

import errno
import os

from gpusim.amd.driver import Driver
from gpusim.amd.gpu import Gpu
from gpusim.amd.kfd import Topology
from gpusim.amd.partition import automatic

AMDGPU = "amdgpu"


def remove(driver: Driver, gpu: Gpu) -> list[int]:
    """Unplug: XCP nodes, the PCI device's nodes, KFD nodes, then the device (kernel.md 7).

    Returns:
        The minors that vanished: whoever has them open gets ENODEV from now on.
    """
    gone = _leave(driver, gpu)
    gpu.present = False
    driver.events.append({"event": "removed", "gpu": gpu.bdf})
    return gone


def add(driver: Driver, gpu: Gpu) -> None:
    """Plug in again: a fresh probe with whatever numbers are free, if the module is there."""
    gpu.present = True
    gpu.numa = gpu.spec.numa
    gpu.wants = gpu.spec.bound
    driver.events.append({"event": "added", "gpu": gpu.bdf})
    if driver.loaded or gpu.wants != AMDGPU:
        driver.probe(gpu, _mode_at_load(driver, gpu))


def unbind(driver: Driver, gpu: Gpu) -> list[int]:
    """Take the device from its driver; it stays on the bus, and the next load of amdgpu takes it again.

    Returns:
        As `remove`.

    Raises:
        OSError: ENODEV, no driver has it.
    """
    if not gpu.present or gpu.driver is None:
        raise _error(errno.ENODEV)
    was = gpu.driver
    gone = _leave(driver, gpu)
    gpu.wants = AMDGPU
    driver.events.append({"event": "unbound", "gpu": gpu.bdf, "from": was})
    return gone


def bind(driver: Driver, gpu: Gpu, name: str) -> None:
    """Give the device to a driver, as a write to the driver's ``bind`` does.

    Raises:
        OSError: ENODEV, not plugged in; EBUSY, a driver has it; ENOENT, amdgpu is not loaded; what the
            probe failed with.
    """
    if not gpu.present:
        raise _error(errno.ENODEV)
    if gpu.driver is not None:
        raise _error(errno.EBUSY)
    if name == AMDGPU and not driver.loaded:
        raise _error(errno.ENOENT)
    gpu.wants = name
    problem = driver.probe(gpu, _mode_at_load(driver, gpu))
    if problem is not None:
        raise problem
    driver.events.append({"event": "bound", "gpu": gpu.bdf, "to": name})


def unload(driver: Driver) -> None:
    """Take the module out, which nobody uses: it leaves every GPU, and partition devices of any age go.

    Raises:
        OSError: ENOENT, it is not loaded.
    """
    if not driver.loaded:
        raise _error(errno.ENOENT)
    for gpu in driver.gpus.values():
        if gpu.bound:
            _leave(driver, gpu)
    driver.loaded = False
    driver.slots.clear()
    driver.topology = Topology.boot(driver.spec)
    driver.topology_changed()
    driver.events.append({"event": "driver unloaded"})


def load(driver: Driver) -> None:
    """Load the module: KFD starts anew and every device without driver is probed, in the order of boot.

    A memory mode that was asked for holds from now on, and the compute mode is the automatic one for it.

    Raises:
        OSError: EEXIST, it is loaded.
    """
    if driver.loaded:
        raise _error(errno.EEXIST)
    driver.loaded = True
    driver.events.append({"event": "driver loaded"})
    for gpu in driver.gpus.values():
        if gpu.present and gpu.driver is None and gpu.wants == AMDGPU:
            gpu.nps = driver.requested_nps.get(gpu.facts.hive_id or gpu.bdf, gpu.nps)
    driver.requested_nps.clear()
    for gpu in driver.gpus.values():
        if gpu.present and gpu.driver is None and gpu.wants == AMDGPU:
            driver.probe(gpu, _mode_at_load(driver, gpu))


def _leave(driver: Driver, gpu: Gpu) -> list[int]:
    gone = [minor for nodes in (*gpu.drm[1:], *gpu.drm[:1]) for minor in nodes.minors]
    driver.give_minors(gpu)
    if gpu.bound:
        driver.regions.remove(gpu.bdf)
        driver.topology = driver.topology.without_gpu(gpu.bdf)
        driver.topology_changed()
    gpu.driver, gpu.resetting, gpu.hung = None, False, False
    return gone


def _mode_at_load(driver: Driver, gpu: Gpu) -> str:
    """The automatic mode; where that is UNKNOWN the mode before counts as set by module parameter.

    A guest's mode is its host's affair and stays.
    """
    if gpu.product.vf:
        return gpu.mode
    return automatic(gpu.product, gpu.nps, driver.rules) or gpu.mode


def _error(code: int) -> OSError:
    return OSError(code, os.strerror(code))
