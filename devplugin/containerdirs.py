"""The directory a container has on the host for its ledger: its name, its birth and its end.

``<root>/<pod UID>_<container>``, mounted into the container. One that is there already belonged to an earlier
life of the container and may still be mapped: it is moved aside, never emptied, and removed once its pod is
gone (ascend_ppu_hami.md A.7, decisions 44 and 53). Monitors find a container's ledger by the same functions.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from devplugin.deeds import STALE, Deed, MakeDir, MoveAside, RemoveDir
from devplugin.hami import CodecError, ContainerDevice, Pod, decode
from devplugin.host import Host, Kind

GRACE = 300.0
"""Seconds a directory's pod must have been gone: a list may be older than a directory just made, and files
tell no age through the seam."""

_UID = re.compile(r"[0-9A-Za-z][0-9A-Za-z-]{0,127}")
_CONTAINER = re.compile(r"[0-9a-z](?:[0-9a-z-]{0,61}[0-9a-z])?")
_NAME = re.compile(rf"({_UID.pattern})_({_CONTAINER.pattern})({re.escape(STALE)}[0-9]+)?")


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose directory it is."""

    uid: str
    container: str
    stale: bool = False
    """Moved aside: of an earlier life of the container."""


def container(pod: Pod, slot: int | None) -> str | None:
    """The container of a slot: init containers come first (D.8); None when there is none of that index."""
    names = (*pod.init_containers, *pod.containers)
    return names[slot] if slot is not None and 0 <= slot < len(names) else None


def directory(root: str, uid: str, name: str) -> str:
    """The host path of a container's directory.

    Raises:
        ValueError: a pod UID or container name that no such object can have; they make a path.
    """
    if not _UID.fullmatch(uid):
        raise ValueError(f"pod UID {uid[:60]!a} cannot name a directory")
    if not _CONTAINER.fullmatch(name):
        raise ValueError(f"container name {name[:60]!a} cannot name a directory")
    return f"{root}/{uid}_{name}"


def of_slot(root: str, pod: Pod, slot: int | None) -> str:
    """The host path of the directory of a slot's container.

    Raises:
        ValueError: the pod does not say what it is called, or what it says cannot name one.
    """
    name = container(pod, slot)
    if not pod.uid or not name:
        raise ValueError(f"its UID or the container of slot {slot} has no name")
    return directory(root, pod.uid, name)


def fresh(path: str) -> tuple[Deed, ...]:
    """What makes a new empty directory of that name, open to whatever user the container runs as."""
    return (MoveAside(path), MakeDir(path, 0o777))


def owner(name: str) -> Owner | None:
    """Whose directory has this name, also when it was moved aside; None: it is none of ours."""
    match = _NAME.fullmatch(name)
    return Owner(match[1], match[2], match[3] is not None) if match else None


def names(host: Host, root: str) -> tuple[str, ...]:
    """The container directories there are, by name; none while there is no such container yet."""
    try:
        return tuple(name for name in host.list(root) if owner(name) is not None)
    except OSError:
        return ()


def living(host: Host, root: str, pods: Iterable[Pod]) -> Iterator[tuple[str, Pod, str]]:
    """Path, pod and container of each directory in use: its pod is known and has not ended.

    A directory whose pod is not known is passed over: the list may be older than the directory.
    """
    by_uid = {pod.uid: pod for pod in pods if not pod.terminal}
    for name in names(host, root):
        whose = owner(name)
        if whose is not None and not whose.stale and whose.uid in by_uid:
            yield f"{root}/{name}", by_uid[whose.uid], whose.container


def devices(pod: Pod, key: str, name: str) -> tuple[ContainerDevice, ...]:
    """What the permanent record under `key` gives a container, by its name.

    Raises:
        CodecError: the record cannot be read, or has no slot for it.
    """
    slots = decode(pod.annotations.get(key, ""))
    by_name = {container(pod, place): slot for place, slot in enumerate(slots)}
    if name not in by_name:
        raise CodecError(f"it has no slot for container {name}")
    return tuple(by_name[name])


def check_file(host: Host, path: str, most: int) -> None:
    """See that what is to be read is a file, and not larger than any of its kind.

    A container has written it, or put something else in its place: a link would be followed with our rights
    and on our side of the mount, to a device that does things when it is opened.

    Raises:
        OSError: ENOENT; ELOOP, a link; EINVAL, no file; EFBIG.
    """
    found = host.stat(path, follow=False)
    kind = found.kind.name
    if kind != Kind.FILE.name:
        number = errno.ELOOP if kind == Kind.LINK.name else errno.EINVAL
        raise OSError(number, "no plain file", path)
    if found.size > most:
        raise OSError(errno.EFBIG, f"{found.size} bytes", path)


def leftovers(
    host: Host, root: str, pods: Sequence[Pod], gone: Mapping[str, float], now: float
) -> tuple[tuple[RemoveDir, ...], dict[str, float]]:
    """Directories to remove, and since when those that still wait have been without a pod.

    Args:
        host: the node.
        root: where they are.
        pods: of the node, just read; one that has ended uses its directory no more.
        gone: what the turn before handed on.
        now: seconds of a clock that only grows.
    """
    living = {pod.uid for pod in pods if not pod.terminal}
    waiting: dict[str, float] = {}
    removed = []
    for name in names(host, root):
        whose = owner(name)
        if whose is None or whose.uid in living:
            continue
        since = waiting[name] = gone.get(name, now)
        if now - since >= GRACE:
            removed.append(RemoveDir(f"{root}/{name}"))
    return tuple(removed), waiting
