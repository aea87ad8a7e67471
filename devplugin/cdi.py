"""The CDI specification of a node's devices: which device nodes a name stands for.

A container runtime reads it from a directory and puts the nodes of a named device into the container, so
that Allocate answers with names only. Format: the Container Device Interface, version 0.6.0 (decision 59);
file name, order of keys and names: amd.md 9, decision 20. It is an ordinary JSON file, written under a
temporary name that no runtime reads (they look at ``*.json`` and ``*.yaml``) and renamed.
"""

from __future__ import annotations

import errno
import itertools
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from devplugin.host import Files, Host

VERSION = "0.6.0"

AMD_KIND = "amd.com/gpu"
AMD_SHARED = ("/dev/kfd",)
"""The compute interface, which every AMD device of a container needs, once (amd.md 9)."""

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?")
"""Device names start and end with a letter or digit, between them also ``_ - . :``."""

_KIND = re.compile(r"[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?/[A-Za-z](?:[A-Za-z0-9_-]*[A-Za-z0-9])?")
"""``<vendor>/<class>``: both start with a letter and end with a letter or digit."""


class Place(Host, Files, Protocol):
    """Where the specification is kept."""


class CdiError(Exception):
    """No valid specification can be made of these devices; the text says of which and why."""


@dataclass(frozen=True, slots=True)
class CdiDevice:
    """A name and the device nodes it stands for."""

    name: str
    nodes: tuple[str, ...]
    """Absolute paths, the same on the host and in the container."""


class Published(Enum):
    """What `publish` did."""

    WRITTEN = "written"
    UNCHANGED = "unchanged"
    NOTHING = "no device"
    """A specification without devices is none: a runtime refuses the file. What is there stays."""


def drm_device(card: int | None, render: int) -> CdiDevice:
    """One GPU or partition by its DRM minors: ``card<N>``, or ``renderD<M>`` where there is no card node.

    Partitions without a card node never borrow another's, so that names are distinct (decision 20).
    """
    node = f"/dev/dri/renderD{render}"
    if card is None:
        return CdiDevice(f"renderD{render}", (node,))
    return CdiDevice(f"card{card}", (f"/dev/dri/card{card}", node))


def qualified(kind: str, name: str) -> str:
    """The name as Allocate answers it: ``amd.com/gpu=card1``."""
    return f"{kind}={name}"


def file_name(kind: str) -> str:
    """``amd.com-gpu.json``."""
    return f"{kind.replace('/', '-')}.json"


def specification(kind: str, devices: Iterable[CdiDevice], shared: Sequence[str] = ()) -> bytes:
    """The file's content; the same for the same devices in any order.

    Args:
        kind: ``<vendor>/<class>``.
        devices: at least one, names distinct.
        shared: device nodes every container gets once, whichever devices it has.

    Raises:
        CdiError: no device, a name twice, or a name, kind or path the format does not allow.
    """
    if not _KIND.fullmatch(kind):
        raise CdiError(f"{kind!a} is no CDI kind")
    ordered = sorted(devices, key=lambda device: _natural(device.name))
    if not ordered:
        raise CdiError(f"{kind}: no device")
    for device, following in itertools.pairwise(ordered):
        if device.name == following.name:
            raise CdiError(
                f"{kind}={device.name}: named twice ({_listed(device.nodes)} and {_listed(following.nodes)})"
            )
    for device in ordered:
        if not _NAME.fullmatch(device.name):
            raise CdiError(f"{device.name!a} is no CDI device name")
        if not device.nodes:
            raise CdiError(f"{kind}={device.name}: no device node")
    content: dict[str, object] = {
        "cdiVersion": VERSION,
        "kind": kind,
        "devices": [
            {"name": device.name, "containerEdits": _edits(kind, device.nodes)} for device in ordered
        ],
    }
    if shared:
        content["containerEdits"] = _edits(kind, shared)
    return json.dumps(content, indent=2).encode()


def publish(
    place: Place, directory: str, kind: str, devices: Iterable[CdiDevice], shared: Sequence[str] = ()
) -> Published:
    """Have ``<directory>/<vendor>-<class>.json`` say these devices; what says so already is not touched.

    Blocking file operations: for the thread that owns the node.

    Raises:
        CdiError: as `specification`, except that no device is no error.
        OSError: the directory cannot be made or the file not written; allocate by device nodes then.
    """
    wanted = tuple(devices)
    if not wanted:
        return Published.NOTHING
    data = specification(kind, wanted, shared)
    path = f"{directory.rstrip('/')}/{file_name(kind)}"
    try:
        if place.read(path) == data:
            return Published.UNCHANGED
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR):
            raise
    place.mkdir(directory, 0o755)
    place.put(path, data, 0o644)
    return Published.WRITTEN


def _edits(kind: str, paths: Sequence[str]) -> dict[str, list[dict[str, str]]]:
    for path in paths:
        if not path.startswith("/") or not path.isprintable():
            raise CdiError(f"{kind}: {path!a} is no absolute path")
    return {"deviceNodes": [{"path": path} for path in paths]}


def _natural(name: str) -> list[tuple[int, str]]:
    """``card9`` before ``card10``."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"([0-9]+)", name)]


def _listed(nodes: Sequence[str]) -> str:
    return ", ".join(nodes)
