"""The platform devices that carry the DRM nodes of partitions 1 to 7.

They are reserved when a GPU probes, whatever its mode, and know nothing of their GPU: no vendor, no
link to the parent (kernel.md 2.6). `Slots` numbers them; `entries` is one device's directory.

Source: drivers/gpu/drm/amd/amdxcp/amdgpu_xcp_drv.c.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator

from gpusim.kernel import Behaviour
from gpusim.nodes import Attr, Dir, Link, Node

MAX_PLATFORM_DEVICES = 64
"""MAX_XCP_PLATFORM_DEVICE, for all GPUs of the machine together."""
PLATFORM = "/sys/devices/platform"

Owner = tuple[str, int]
"""BDF and partition number."""


class Slots:
    """Which number belongs to which partition: the lowest free one, or a running counter.

    Args:
        lowest_free: since 6.10 a device takes the lowest free number; before, numbers only grew.
        freed: whether an unplug gives numbers back; if not, the device stays behind without drm/. No
            release frees numbers and still counts up.
    """

    __slots__ = ("_freed", "_lowest_free", "_next", "_owners")

    def __init__(self, *, lowest_free: bool, freed: bool) -> None:
        self._lowest_free = lowest_free
        self._freed = freed
        self._next = 0
        self._owners: dict[int, Owner | None] = {}

    def copy(self) -> Slots:
        """Independent slots in the same state."""
        twin = Slots(lowest_free=self._lowest_free, freed=self._freed)
        twin._next = self._next
        twin._owners = self._owners.copy()
        return twin

    def __iter__(self) -> Iterator[tuple[int, Owner | None]]:
        return iter(sorted(self._owners.items()))

    def take(self, bdf: str, partition: int) -> int:
        """A number for one partition of a GPU.

        Raises:
            OSError: ENODEV, the driver's 64 platform devices are used up; the GPU's probe fails with it.
        """
        number = self._next
        if self._lowest_free:
            while number in self._owners:
                number += 1
        if number >= MAX_PLATFORM_DEVICES:
            raise OSError(errno.ENODEV, "no amdgpu_xcp platform device left")
        self._owners[number] = (bdf, partition)
        self._next = number + 1
        return number

    def undo(self, number: int) -> None:
        """Give back a number whose device could not be completed; a running counter steps back too."""
        del self._owners[number]
        self._next = min(self._next, number)

    def clear(self) -> None:
        """The module is gone, and every device with it, also those that lingered."""
        self._owners.clear()
        self._next = 0

    def release(self, number: int) -> None:
        """The GPU is gone: the number is free again, or its device lingers, by release."""
        if self._freed:
            self.undo(number)
        else:
            self._owners[number] = None


def device_name(number: int, rules: Behaviour) -> str:
    """``amdgpu_xcp_3``, or ``amdgpu_xcp.3`` where the driver still used the platform bus's own numbers."""
    return f"amdgpu_xcp{rules.xcp_separator}{number}"


def metrics(valid: bool) -> dict[str, Node]:
    """Content of xcp/: the metrics of a partition while the current mode has it (kernel.md 2.6).

    They are a binary table of the firmware; nothing here can compute it, so the file reads empty, as
    it does when firmware has no such table.
    """
    return {"xcp_metrics": Attr("")} if valid else {}


def entries(number: int, rules: Behaviour, drm: Dir | None, partition: Dir | None = None) -> dict[str, Node]:
    """Content of one device's directory: uevent, modalias, subsystem and, while it lives, drm/ and xcp/.

    The dotted devices all share the name ``amdgpu_xcp`` and so the modalias; the others are unique names.
    """
    name = "amdgpu_xcp" if rules.xcp_separator == "." else device_name(number, rules)
    modalias = f"platform:{name}\n"
    found: dict[str, Node] = {
        "driver_override": Attr("(null)\n"),
        "modalias": Attr(modalias),
        "power": Dir(),
        "subsystem": Link("../../../bus/platform"),
        "uevent": Attr(f"MODALIAS={modalias}"),
    }
    if drm is not None:
        found["drm"] = drm
    if partition is not None:
        found["xcp"] = partition
    return found
