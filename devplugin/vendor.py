"""What a vendor is asked, and the values that carry its answers.

Whatever else the plugin is made of asks through this file and knows no vendor's name. An answer depends on
the arguments of its question alone, and names deeds to be done (`Effect`) instead of doing them.
"""

from __future__ import annotations

import argparse
import errno
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, Protocol, TypeVar

from devplugin.cdi import CdiDevice
from devplugin.deeds import Deed
from devplugin.explain import Choice
from devplugin.hami import Claim, Node, Pod, Vocabulary
from devplugin.host import Host
from devplugin.imagecheck import PullImage
from devplugin.metered import Measured, Series
from devplugin.preflight import Check

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


Inv = TypeVar("Inv")
S = TypeVar("S")


def no_files(path: str) -> bytes:
    """A reader of configuration files where there are none: ENOENT."""
    raise FileNotFoundError(errno.ENOENT, "no configuration files here", path)


@dataclass(frozen=True, slots=True)
class SettingsInput:
    """All that settings may come from, weakest first: defaults, flags, environment, annotations."""

    args: argparse.Namespace
    env: Mapping[str, str]
    node_annotations: Mapping[str, str] | None
    """None while the node object is unknown."""
    node: str = ""
    """The node's name; empty in a dry run that was not told one."""
    read: Callable[[str], bytes] = no_files
    """A configuration file by its path; raises OSError."""


@dataclass(frozen=True, slots=True)
class Exports(Generic[Inv]):
    """What the plugin's own process shows of devices and containers (`devplugin.metered` has the values)."""

    flag: str
    """Of the address, without the dash."""
    address: str
    """Where: ``:9395``."""
    series: tuple[Series, ...]
    """Everything it may export, in the order it is shown."""
    samples: Callable[[Host, Inv, Sequence[Pod] | None], Measured]
    """What there is to see now; pods None: the API server has not said or its word is too old. Reads files,
    keeps nothing, never raises OSError."""


class Vendor(Protocol[Inv, S]):
    """One vendor's answers. `Inv` is its inventory, `S` its settings; both immutable."""

    name: str
    """Short lower-case word: ``amd``."""

    def add_flags(self, parser: argparse.ArgumentParser) -> None:
        """Declare this vendor's flags."""
        ...

    def settings(self, given: SettingsInput) -> tuple[S, tuple[str, ...]]:
        """Resolved settings and the warnings met on the way; raises SettingsError (decision 34)."""
        ...

    def choices(self, given: SettingsInput, settings: S) -> Mapping[str, Choice]:
        """What did not come from a flag alone, by the name of the setting: value in force and its source."""
        ...

    def describe(self, settings: S) -> str:
        """The line that start-up logs: ``operating mode: cu``."""
        ...

    def vocabulary(self, inventory: Inv, settings: S) -> Vocabulary | None:
        """Annotation keys in the HAMi protocol; None while the devices do not tell yet which they are."""
        ...

    def discover(self, host: Host, settings: S, previous: Inv | None) -> Inv:
        """What the node has now. Never raises for a broken device: that goes to `skipped`."""
        ...

    def notices(self, inventory: Inv, settings: S) -> tuple[str, ...]:
        """Warnings to log once each."""
        ...

    def details(self, inventory: Inv, settings: S) -> tuple[str, ...]:
        """How discovery read the node, a line for each device: for ``-v 4``."""
        ...

    def cdi(self, inventory: Inv, settings: S) -> CdiSpec | None:
        """The specification that names given by `allocate` rely on; None: containers get device nodes."""
        ...

    def prepares(self, inventory: Inv, settings: S) -> bool:
        """Whether `prepare` has work: it costs a list of the node's pods and a second discovery."""
        ...

    def prepare(self, host: Host, inventory: Inv, settings: S, pods: Sequence[Pod]) -> Prepared:
        """Bring the node into the wanted state, once, before anything is offered. Never raises OSError."""
        ...

    def sweeps(self, settings: S) -> float | None:
        """Seconds between two calls of `sweep`, the first of which comes at once; None: there is no work."""
        ...

    def sweep(self, host: Host, inventory: Inv, settings: S, turn: Turn) -> tuple[tuple[Effect, ...], Any]:
        """What is left over on the node and has to go, and what to hand in as `Turn.memory` the next time.

        Looks only; each effect is tried whatever became of the others. Never raises OSError.
        """
        ...

    def exports(self, settings: S) -> Exports[Inv] | None:
        """What this process shows to Prometheus; None: nothing, or a program of its own does."""
        ...

    def health_source(self, settings: S) -> HealthSource | None:
        """Where to ask for `Reports`; None: there is no such service."""
        ...

    def health(self, host: Host, inventory: Inv, settings: S, reports: Reports) -> Inv:
        """The inventory after one look at every device's health. Never raises OSError.

        What it has to remember it keeps in the inventory, which the next `discover` gets as `previous`.
        """
        ...

    def registration(self, inventory: Inv, settings: S, now: float) -> NodePatch:
        """Annotations set and removed, capacity."""
        ...

    def replacing(
        self, inventory: Inv, settings: S, registered: str, pods: Sequence[Pod]
    ) -> tuple[Effect, ...]:
        """What is to be said before the old register annotation `registered` gives way to another."""
        ...

    def events(self, inventory: Inv, settings: S, seen: Any) -> tuple[tuple[Effect, ...], Any]:
        """What is new since the last registration, and what to hand in as `seen` after the next one.

        `seen` is None after the first registration of a life: that is only a baseline.
        """
        ...

    def offers(self, inventory: Inv, settings: S) -> Mapping[str, Offer]:
        """Resource name → its devices. Empty: nothing is announced to kubelet."""
        ...

    def prefer(self, inventory: Inv, settings: S, query: PreferenceQuery) -> tuple[str, ...]:
        """Best device ids for a request; raises ValueError on a bad one (decision 26)."""
        ...

    def needs(self, inventory: Inv, settings: S, claim: Claim) -> tuple[FactRequest, ...]:
        """Facts to gather before `allocate`."""
        ...

    def allocate(
        self,
        inventory: Inv,
        settings: S,
        claim: Claim,
        pods: Sequence[Pod],
        facts: Mapping[FactRequest, Any],
    ) -> Allocation:
        """Edits and records for one container; raises Refused."""
        ...

    def caps(self, inventory: Inv, settings: S, pods: Sequence[Pod]) -> Caps:
        """The memory limits that the node's pods should have by what they were given so far.

        Asked again whenever pods or inventory change, never during an Allocate.
        """
        ...

    def checks(self, host: Host, inventory: Inv, settings: S) -> tuple[Check, ...]:
        """What this vendor needs on the node and in its image, looked at without changing anything."""
        ...

    def leftovers(self, node: Node) -> NodePatch:
        """What of a node's annotations and capacity this plugin writes: all of it to be removed (None)."""
        ...

    @property
    def domain(self) -> str:
        """Of its resource names: ``amd.com``."""
        ...

    def report(self, host: Host, inventory: Inv, settings: S) -> Mapping[str, Any]:
        """The `-dry_run` object: ``schema``, ``vendor``, ``mode``, ``registration``, …"""
        ...
