"""The values that carry a vendor's answers, and what may be asked for in them.

Frozen, and free of any vendor's words: the daemon, kubelet's service and the node object are told by these.
An answer names deeds to be done (`Effect`) instead of doing them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from devplugin.cdi import CdiDevice
from devplugin.deeds import Deed
from devplugin.hami import Pod
from devplugin.imagecheck import PullImage

# ------------------------------------------------------------------ towards kubelet


@dataclass(frozen=True, slots=True)
class OfferedDevice:
    """One line of a ListAndWatch list."""

    id: str
    healthy: bool = True
    numa: tuple[int, ...] = ()
    """NUMA nodes to report; empty when unknown (decision 27)."""


@dataclass(frozen=True, slots=True)
class Offer:
    """All devices of one resource, in the order they are listed."""

    resource: str
    devices: tuple[OfferedDevice, ...]
    preferred: bool = True
    """Whether GetPreferredAllocation is announced."""


@dataclass(frozen=True, slots=True)
class PreferenceQuery:
    """One container request of GetPreferredAllocation, as kubelet sent it."""

    available: tuple[str, ...]
    must_include: tuple[str, ...]
    size: int


@dataclass(frozen=True, slots=True)
class Mount:
    """A host path mounted into the container."""

    container_path: str
    host_path: str
    read_only: bool = True


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A device node given to the container under its own path."""

    path: str
    permissions: str = "rw"


@dataclass(frozen=True, slots=True)
class ContainerEdits:
    """What kubelet hands to the container runtime."""

    envs: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    devices: tuple[DeviceNode, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    cdi: tuple[str, ...] = ()


# ------------------------------------------------------------------ towards the API server


@dataclass(frozen=True, slots=True)
class NodePatch:
    """What the node object is to say. None removes a key."""

    annotations: Mapping[str, str | None] = field(default_factory=dict)
    capacity: Mapping[str, int | None] = field(default_factory=dict)
    """Extended resources set (or removed) in both capacity and allocatable."""


# ------------------------------------------------------------------ things to be done


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """A Kubernetes event about the node."""

    type: str
    reason: str
    message: str
    name: str | None = None
    """Deterministic object name for once-only events (decision 33)."""


@dataclass(frozen=True, slots=True)
class PodEvent:
    """A Kubernetes event about a pod."""

    namespace: str
    pod: str
    uid: str
    type: str
    reason: str
    message: str
    name: str | None = None
    """As `NodeEvent.name`."""


Effect = NodeEvent | PodEvent | PullImage | Deed
"""Closed set of idempotent things to do; `daemon.hands` has the one executor for them."""


@dataclass(frozen=True, slots=True)
class PodCap:
    """What one pod's containers may use of devices' memory, all together; held by `daemon.caps`."""

    pod: Pod
    limits: Mapping[str, int]
    """dmem region, as the kernel spells it → bytes; never empty."""


@dataclass(frozen=True, slots=True)
class Caps:
    """All limits there should be now; a pod that is not named keeps what its cgroup has."""

    pods: tuple[PodCap, ...] = ()
    warnings: tuple[str, ...] = ()
    """Why a pod is not limited that should be: one line each, stable so that it is logged once."""


@dataclass(frozen=True, slots=True)
class HealthSource:
    """A service beside the plugin that knows more of the devices' health: gRPC on a unix socket."""

    socket: str
    services: tuple[str, ...]
    """Full names the service may have, the likelier first."""


@dataclass(frozen=True, slots=True)
class Reports:
    """What that service said, if there is one."""

    states: Mapping[str, str] = field(default_factory=dict)
    """Device as the service names it → its word for the health, both as sent."""
    silent: bool = False
    """It is there and does not answer: what it said last still stands."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What became of the work at the start, a line for each device."""

    done: tuple[str, ...] = ()
    troubles: tuple[str, ...] = ()
    """Left as it was, and why; none of it keeps the daemon from starting."""
    effects: tuple[Effect, ...] = ()
    """Best effort."""
    changed: bool = False
    """The node is another one now: discover again."""
    fatal: str = ""
    """Why nothing may be offered on this node as it is; the daemon ends with this line."""


@dataclass(frozen=True, slots=True)
class FactRequest:
    """Something only the outside can tell, needed before `allocate` (AMD: an image's libc).

    Kinds: ``file`` (an absolute path of the host; bool, whether it is there), ``libc`` (an image as the pod
    names it; `devplugin.libc.Finding`), ``cdi`` (a directory; bool, whether the specification in it says
    what `Vendor.cdi` wants).
    """

    kind: str
    subject: str


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of `Vendor.sweep`."""

    pods: tuple[Pod, ...]
    """Of this node, just read."""
    memory: Any
    """What the turn before handed on; None the first time of a life."""
    now: float
    """Seconds of a clock that only grows."""


@dataclass(frozen=True, slots=True)
class CdiSpec:
    """The CDI specification there should be, for `devplugin.cdi.publish`."""

    directory: str
    kind: str
    devices: tuple[CdiDevice, ...]
    shared: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Allocation:
    """The answer to one container's Allocate."""

    edits: ContainerEdits
    annotations: Mapping[str, str | None] = field(default_factory=dict)
    """Pod annotations besides the erased slot and the phase, in the same patch (decision 19)."""
    before: tuple[Effect, ...] = ()
    """Must succeed before the reply."""
    after: tuple[Effect, ...] = ()
    """Background."""
    notes: tuple[str, ...] = ()
    """Lines for the log: what was given."""
    warnings: tuple[str, ...] = ()
    """What is wrong with the node's records, stable so that each is logged once (decision 18)."""


Why = Literal["pod", "lock", "device", "cores", "limit", "image", "record", "node"]
"""What an Allocate is refused for, in classes an operator counts: no pod waits for it · the node lock is not
the pod's · the device is not there · its cores are taken · nothing would limit memory · the image cannot load
the hook, or is not known · a record cannot be read · a file of the node cannot be prepared."""


class Refused(Exception):  # noqa: N818  # the answer no, not something gone wrong
    """A decision says no. The text names the object and the remedy; it reaches the pod as an Event."""

    def __init__(self, text: str, after: Sequence[Effect] = (), *, why: Why = "device") -> None:
        super().__init__(text)
        self.why: Why = why
        self.after = tuple(after)
        """What is to be done nevertheless, in the background: so that the next try is answered yes."""
