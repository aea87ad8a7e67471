"""What the plugins' answers change about a container, merged over its resources.

kubelet.md 2 *Container edits*: the first answer wins for each environment variable, mount path, device path
and annotation, a conflict is only logged; CDI names are listed once. The order of resources is random in the
original; here the caller gives it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from devplugin.kubeletapi import api_pb2 as api


@dataclass(frozen=True, slots=True)
class Mount:
    """One bind mount."""

    container_path: str
    host_path: str
    read_only: bool


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """One device node; permissions are letters of r, w, m."""

    container_path: str
    host_path: str
    permissions: str


@dataclass(frozen=True, slots=True)
class Edits:
    """The container as the runtime gets it."""

    ids: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Resource → device ids it holds."""
    envs: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    devices: tuple[DeviceNode, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    """For the runtime, not for the pod object."""
    cdi_devices: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    """Keys two resources disagreed on: ``env X``, ``mount /p``, ``device /p``, ``annotation k``."""


def merge(ids: Mapping[str, tuple[str, ...]], answers: Sequence[api.ContainerAllocateResponse]) -> Edits:
    """Merge answers, the first one winning."""
    envs: dict[str, str] = {}
    annotations: dict[str, str] = {}
    mounts: dict[str, Mount] = {}
    devices: dict[str, DeviceNode] = {}
    cdi: dict[str, None] = {}
    conflicts: list[str] = []

    def keep(what: str, table: dict[str, Any], key: str, value: Any) -> None:
        if table.setdefault(key, value) != value:
            conflicts.append(f"{what} {key}")

    for answer in answers:
        for name in sorted(answer.envs):
            keep("env", envs, name, answer.envs[name])
        for name in sorted(answer.annotations):
            keep("annotation", annotations, name, answer.annotations[name])
        for mount in answer.mounts:
            keep(
                "mount",
                mounts,
                mount.container_path,
                Mount(mount.container_path, mount.host_path, mount.read_only),
            )
        for node in answer.devices:
            keep(
                "device",
                devices,
                node.container_path,
                DeviceNode(node.container_path, node.host_path, node.permissions),
            )
        cdi.update(dict.fromkeys(device.name for device in answer.cdi_devices))
    return Edits(
        dict(ids),
        envs,
        tuple(mounts.values()),
        tuple(devices.values()),
        annotations,
        tuple(cdi),
        tuple(conflicts),
    )


@dataclass(frozen=True, slots=True)
class Admission:
    """How the admission of a pod ended."""

    admitted: bool
    reason: str = ""
    """``UnexpectedAdmissionError``, ``TopologyAffinityError``, ``OutOf<resource>``; empty when admitted."""
    message: str = ""
    containers: Mapping[str, Edits] = field(default_factory=dict)
    """Container name (init containers too) → its edits."""
    blocked: str = ""
    """Admitted, but a PreStartContainer error keeps its containers from starting."""
    sandbox: str = ""
    """Admitted, but the runtime cannot make its sandbox."""
    failures: Mapping[str, str] = field(default_factory=dict)
    """Admitted; container → why the runtime could not start it."""

    @property
    def waits(self) -> bool:
        """Whether it is admitted and something of it is to be started again."""
        return bool(self.blocked or self.sandbox or self.failures)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return asdict(self)
