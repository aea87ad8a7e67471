"""What a vendor is asked; the values that carry its answers are `devplugin.answers`.

Whatever else the plugin is made of asks through this file and knows no vendor's name. An answer depends on
the arguments of its question alone, and names deeds to be done (`Effect`) instead of doing them.
"""

from __future__ import annotations

import argparse
import errno
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from devplugin.answers import (
    Allocation,
    Caps,
    CdiSpec,
    Effect,
    FactRequest,
    HealthSource,
    NodePatch,
    Offer,
    PreferenceQuery,
    Prepared,
    Reports,
    Turn,
)
from devplugin.explain import Choice
from devplugin.hami import Claim, Node, Pod, Vocabulary
from devplugin.host import Host
from devplugin.metered import Measured, Series
from devplugin.preflight import Check

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
