"""What the HAMi protocol looks at in pods and nodes, as immutable values (ascend_ppu_hami.md D.1, D.4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

BIND_PHASE = "hami.io/bind-phase"
BIND_TIME = "hami.io/bind-time"
ASSIGNED_NODE = "hami.io/vgpu-node"
LOCK = "hami.io/mutex.lock"

ALLOCATING = "allocating"
SUCCESS = "success"
FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Pod:
    """The facts of a pod object that the protocol and the vendors look at."""

    namespace: str
    name: str
    uid: str
    node: str
    phase: str
    """``Pending``, ``Running``, ``Succeeded``, ``Failed``."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    qos: str = ""
    containers: tuple[str, ...] = ()
    init_containers: tuple[str, ...] = ()
    images: Mapping[str, str] = field(default_factory=dict)
    """Container name → image reference."""
    limits: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Container name → resource → quantity as written (``4Gi``), of containers that have limits."""
    container_ids: Mapping[str, str] = field(default_factory=dict)
    """The runtime's id, without its scheme → container name; init containers too, started ones only."""
    waiting: Mapping[str, str] = field(default_factory=dict)
    """Container name → why it waits (``ContainerCreating``), of those that wait; init containers too."""
    resource_version: str = ""
    deleting: bool = False

    @property
    def terminal(self) -> bool:
        """Whether its containers have ended for good: it holds no device any more."""
        return self.phase in {"Succeeded", "Failed"}

    @property
    def bind_phase(self) -> str:
        """``allocating``, ``success``, ``failed``, or empty."""
        return self.annotations.get(BIND_PHASE, "")

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Node:
    """The facts of a node object that the protocol looks at."""

    name: str
    uid: str
    annotations: Mapping[str, str] = field(default_factory=dict)
    capacity: Mapping[str, str] = field(default_factory=dict)
    allocatable: Mapping[str, str] = field(default_factory=dict)
    resource_version: str = ""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Annotation keys of one vendor (ascend_ppu_hami.md D.1)."""

    register: str
    to_allocate: str
    allocated: str
    handshake: str | None = None


@dataclass(frozen=True, slots=True)
class ContainerDevice:
    """One device of one container as the scheduler wrote it: ``id,type,MiB,cores[,slots]``."""

    id: str
    type: str
    memory_mib: int
    cores: int
    slots: int = 1
    """Kubelet slots the device takes; written only when more than one."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One container's request, resolved to a pod's slot (or to kubelet's own ids)."""

    ids: tuple[str, ...]
    """kubelet's ids, in the order it sent them (random)."""
    pod: Pod | None
    """None for the fallback of decision 17."""
    slot: int | None
    """Index of the served slot: for the log only (decision 16)."""
    devices: tuple[ContainerDevice, ...]
    """What the slot asks for, in annotation order; empty in the fallback."""
    passed_over: tuple[str, ...] = ()
    """In the fallback: why each pod that could have been meant was not (for a refusal's text)."""
