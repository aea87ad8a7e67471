"""DRM minors as files: the drm/ directory of a device, /sys/class/drm and /dev/dri.

Sources: kernel.md 2.6, 3 and 6; udev's 50-udev-default.rules (groups and modes).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, partial

from gpusim.amd.drm import CONTROL_OFFSET, MAJOR, Nodes
from gpusim.nodes import Attr, Caller, CharDev, Dir, Link, Node

CLASS_DRM = "/sys/class/drm"
VERSION = "drm 1.1.0 20060810\n"
VIDEO_GID = 44
"""Group of the card nodes (Debian's fixed number of ``video``)."""
RENDER_GID = 104
"""Group of the render nodes and of /dev/kfd: ``render`` has a dynamic number; this one is ours."""
NODE_MODE = 0o660
"""What Debian and Ubuntu give both kinds (upstream udev gives render nodes 0666)."""


def depth(path: str) -> str:
    """``../`` as often as it takes to climb from `path` to /sys."""
    return "../" * (path.count("/") - 1)


def device_drm(home: str, nodes: Nodes, *, control: bool = False, connectors: Iterable[str] = ()) -> Dir:
    """The drm/ directory of the device at `home`.

    Args:
        home: the device's directory below /sys/devices.
        nodes: its minors.
        control: also list controlD<64 + card>, a link to the card that old kernels kept.
        connectors: outputs of the card, ``VGA-1``.
    """

    return Dir(partial(_device_drm, home, nodes, control, connectors))


def _device_drm(home: str, nodes: Nodes, control: bool, connectors: Iterable[str]) -> Mapping[str, Node]:
    found: dict[str, Node] = {
        nodes.card_name: _minor(home, nodes.card_name, nodes.card, connectors),
    }
    if nodes.render is not None and nodes.render_name is not None:
        found[nodes.render_name] = _minor(home, nodes.render_name, nodes.render)
    if control:
        found[f"controlD{CONTROL_OFFSET + nodes.card}"] = Link(nodes.card_name)
    return found


def _minor(home: str, name: str, minor: int, connectors: Iterable[str] = ()) -> Dir:
    def made() -> Mapping[str, Node]:
        up = depth(f"{home}/drm/{name}")
        found: dict[str, Node] = {
            "dev": Attr(f"{MAJOR}:{minor}\n"),
            "device": Link(f"../../../{home.rpartition('/')[2]}"),
            "power": Dir(),
            "subsystem": Link(f"{up}class/drm"),
            "uevent": Attr(f"MAJOR={MAJOR}\nMINOR={minor}\nDEVNAME=dri/{name}\nDEVTYPE=drm_minor\n"),
        }
        for connector in connectors:
            found[f"{name}-{connector}"] = Dir(
                {
                    "device": Link(f"../../{name}"),
                    "enabled": Attr("enabled\n"),
                    "status": Attr("connected\n"),
                    "subsystem": Link(f"../{up}class/drm"),
                    "uevent": Attr("DEVTYPE=drm_connector\n"),
                }
            )
        return found

    return Dir(made)


Device = tuple[str, Nodes, tuple[str, ...]]
"""Home directory, minors and connectors of one DRM device."""


def class_entries(devices: tuple[Device, ...]) -> dict[str, Node]:
    """Content of /sys/class/drm: links into the devices' directories, and the core's version."""
    return _class_entries(devices).copy()


@lru_cache(maxsize=32)
def _class_entries(devices: tuple[Device, ...]) -> dict[str, Node]:
    """Nodes that never change, so that all machines with these devices share them."""
    found: dict[str, Node] = {"version": Attr(VERSION)}
    for home, nodes, connectors in devices:
        below = f"../../{home.removeprefix('/sys/')}/drm/"
        found[nodes.card_name] = Link(below + nodes.card_name)
        if nodes.render_name is not None:
            found[nodes.render_name] = Link(below + nodes.render_name)
        for connector in connectors:
            output = f"{nodes.card_name}-{connector}"
            found[output] = Link(f"{below}{nodes.card_name}/{output}")
    return found


def char_entries(devices: Iterable[Device]) -> dict[str, Node]:
    """The DRM part of /sys/dev/char."""
    found: dict[str, Node] = {}
    for home, nodes, _ in devices:
        below = f"../../{home.removeprefix('/sys/')}/drm/"
        found[f"{MAJOR}:{nodes.card}"] = Link(below + nodes.card_name)
        if nodes.render_name is not None:
            found[f"{MAJOR}:{nodes.render}"] = Link(below + nodes.render_name)
    return found


def dev_entries(devices: tuple[Device, ...], opened: Callable[[int], None]) -> dict[str, Node]:
    """Content of /dev/dri: the nodes, and by-path/ with systemd's names.

    Args:
        devices: all DRM devices.
        opened: the DRM core's open of a minor; raises what it answers.
    """
    found: dict[str, Node] = {}
    for _, nodes, _ in devices:
        found[nodes.card_name] = Minor(nodes.card, opened, VIDEO_GID)
        if nodes.render is not None:
            found[f"renderD{nodes.render}"] = Minor(nodes.render, opened, RENDER_GID)
    found["by-path"] = Dir(partial(_by_path, devices))
    return found


def _by_path(devices: Iterable[Device]) -> dict[str, Node]:
    found: dict[str, Node] = {}
    for home, nodes, _ in devices:
        bus = "platform" if home.startswith("/sys/devices/platform/") else "pci"
        stem = f"{bus}-{home.rpartition('/')[2]}"
        found[f"{stem}-card"] = Link(f"../{nodes.card_name}")
        if nodes.render_name is not None:
            found[f"{stem}-render"] = Link(f"../{nodes.render_name}")
    return found


class Minor(CharDev):
    """A device node of a DRM minor as udev leaves it; one object each, for a node has more than a hundred.

    Args:
        minor: device number.
        opened: the DRM core's open of a minor.
        gid: owning group.
    """

    __slots__ = ("opened",)

    def __init__(self, minor: int, opened: Callable[[int], None], gid: int) -> None:
        self.major = MAJOR
        self.minor = minor
        self.mode = NODE_MODE
        self.uid = 0
        self.gid = gid
        self.opened = opened

    def opener(self, _: Caller) -> None:
        """The driver's open."""
        self.opened(self.minor)
