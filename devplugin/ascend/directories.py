"""The directory each soft container has on the host for its ledger: where Ascend's are, and what is in them.

``<hook>/containers/<pod UID>_<container>``, mounted at /hami-vnpu-shmem (A.7, decision 44). How they are
named, made and removed is what other vendors' containers have, too: `devplugin.containerdirs`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from devplugin import containerdirs
from devplugin.ascend.settings import Settings
from devplugin.containerdirs import GRACE, Owner, container, fresh, owner
from devplugin.deeds import RemoveDir
from devplugin.hami import Pod
from devplugin.host import Host

__all__ = ["GRACE", "LEDGER", "Owner", "container", "directory", "fresh", "leftovers", "names", "owner"]

LEDGER = "vnpu_local_shmem"
"""The ledger's name in the directory: written by the runtime, read by us."""


def directory(settings: Settings, uid: str, name: str) -> str:
    """The host path of a container's directory; raises ValueError."""
    return containerdirs.directory(settings.containers, uid, name)


def names(host: Host, settings: Settings) -> tuple[str, ...]:
    """The container directories there are, by name; none while there is no soft pod yet."""
    return containerdirs.names(host, settings.containers)


def leftovers(
    host: Host, settings: Settings, pods: Sequence[Pod], gone: Mapping[str, float], now: float
) -> tuple[tuple[RemoveDir, ...], dict[str, float]]:
    """Directories to remove, and since when those that still wait have been without a pod."""
    return containerdirs.leftovers(host, settings.containers, pods, gone, now)
