"""Putting PPU-HAMi-core onto the node, when this image was built with it (deploy/image).

Files go into place by rename, the preload list last, so that no container ever loads half a library or the
name of one that is not there. What lies on the host already is replaced only while no pod of the node holds a
PPU: a process that starts in a running container would load the new library over the old one's state file (as
decision 45 says of the NPUs' library). Container directories and whatever else is there are never touched.
"""

from __future__ import annotations

from collections.abc import Sequence

from devplugin.answers import Prepared
from devplugin.deeds import DeedError, Ground, InstallFile, MakeDir, carry_out
from devplugin.hami import CodecError, Pod, decode
from devplugin.host import words
from devplugin.ppu.inventory import Inventory
from devplugin.ppu.words import ASSETS, HOST, PRELOAD, VOCABULARY

_NAMED = 10
"""Pods named in one line."""


def prepares(inventory: Inventory) -> bool:
    """Whether the image has it and the node has cards."""
    return bool(inventory.assets and inventory.ppus)


def prepare(host: Ground, inventory: Inventory, pods: Sequence[Pod]) -> Prepared:
    """Install what is missing or another. Whatever fails leaves the host's own copy, and is told."""
    done: list[str] = []
    troubles: list[str] = []
    holders = [str(pod) for pod in pods if holds(pod)]
    try:
        for name in inventory.assets:
            source, target = f"{ASSETS}/{name}", f"{HOST}/{name}"
            if holders and _another(host, source, target):
                named = ", ".join(holders[:_NAMED]) + (", …" if len(holders) > _NAMED else "")
                troubles.append(
                    f"{target}: another than the image's, kept while pods hold PPUs ({named}); "
                    "restart the plugin when they are gone"
                )
                continue
            carry_out(host, MakeDir(target.rpartition("/")[0]))
            mode = 0o644 if name == PRELOAD else 0o755
            if line := carry_out(host, InstallFile(source, target, mode)):
                done.append(line)
    except DeedError as error:
        troubles.append(f"PPU-HAMi-core not installed: {error}")
    except OSError as error:
        troubles.append(f"PPU-HAMi-core not installed: {words(error)}")
    return Prepared(tuple(done), tuple(troubles), changed=bool(done))


def holds(pod: Pod) -> bool:
    """Whether a pod's containers may have a PPU; a record that cannot be read counts as yes."""
    if pod.terminal:
        return False
    try:
        return any(decode(pod.annotations.get(VOCABULARY.allocated, "")))
    except CodecError:
        return True


def _another(host: Ground, source: str, target: str) -> bool:
    """Whether the host has a file of that name and other bytes."""
    try:
        there = host.read(target)
    except FileNotFoundError:
        return False
    return there != host.read(source)
