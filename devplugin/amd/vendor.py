"""AMD's answers to `devplugin.vendor.Vendor`, each from the file that has the question as its name."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from devplugin.amd import allocation, cdispec, events, flags, health, metrics, partition, preference, ready
from devplugin.amd.caps import caps
from devplugin.amd.discovery import discover
from devplugin.amd.events import Seen
from devplugin.amd.inventory import Inventory
from devplugin.amd.notices import details, notices
from devplugin.amd.offer import offers
from devplugin.amd.registration import ANNOTATION, CAPACITY_CORES, CAPACITY_MEMORY, node_patch
from devplugin.amd.report import report
from devplugin.amd.settings import MODE_PARTITION, Settings
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
)
from devplugin.explain import Choice
from devplugin.hami import Claim, Node, Pod, Vocabulary
from devplugin.host import Host
from devplugin.metered import Measured, Series, Watched
from devplugin.plain import Plain
from devplugin.preflight import Check
from devplugin.vendor import SettingsInput

VOCABULARY = Vocabulary(
    register=ANNOTATION,
    to_allocate="hami.io/amd-devices-to-allocate",
    allocated="hami.io/amd-devices-allocated",
)
"""It has no handshake (ascend_ppu_hami.md D.1)."""


class Amd(Plain[Inventory, Settings]):
    """The AMD vendor. Holds nothing."""

    name = "amd"

    def add_flags(self, parser: argparse.ArgumentParser) -> None:
        """Declare the flags of the guide."""
        flags.add_flags(parser)

    def settings(self, given: SettingsInput) -> tuple[Settings, tuple[str, ...]]:
        """Settings and warnings; raises SettingsError."""
        return flags.resolve(given)

    def choices(self, given: SettingsInput, settings: Settings) -> Mapping[str, Choice]:
        """What environment and node annotations decide."""
        return flags.choices(given, settings)

    def describe(self, settings: Settings) -> str:
        """The guide's line about the resolved mode."""
        if settings.mode == MODE_PARTITION and settings.compute_partition:
            return f"operating mode: {settings.mode}, compute partition: {settings.compute_partition}"
        return f"operating mode: {settings.mode}"

    def vocabulary(self, inventory: Inventory, settings: Settings) -> Vocabulary:
        """AMD's keys, the same on every node."""
        del inventory, settings
        return VOCABULARY

    @property
    def registered_under(self) -> str:
        """Where the monitor finds the registration."""
        return ANNOTATION

    def discover(self, host: Host, settings: Settings, previous: Inventory | None) -> Inventory:
        """What the node has now; health is what the last look at it found."""
        return health.carried(discover(host, settings, previous), previous)

    def notices(self, inventory: Inventory, settings: Settings) -> tuple[str, ...]:
        """Lines to log once each."""
        return notices(inventory, settings)

    def details(self, inventory: Inventory, settings: Settings) -> tuple[str, ...]:
        """GPUs and partitions as discovery read them."""
        return details(inventory, settings)

    def cdi(self, inventory: Inventory, settings: Settings) -> CdiSpec | None:
        """One name for each card or render node."""
        return cdispec.specification(inventory, settings)

    def prepares(self, inventory: Inventory, settings: Settings) -> bool:
        """Whether a GPU is to be switched."""
        return partition.wanted(inventory, settings)

    def prepare(self, host: Host, inventory: Inventory, settings: Settings, pods: Sequence[Pod]) -> Prepared:
        """Switch idle GPUs to the compute partition asked for."""
        return partition.switch(host, inventory, settings, pods)

    def health_source(self, settings: Settings) -> HealthSource | None:
        """AMD's metrics exporter, while health is looked at."""
        return health.source(settings)

    def health(self, host: Host, inventory: Inventory, settings: Settings, reports: Reports) -> Inventory:
        """One look at every GPU."""
        return health.look(host, inventory, reports)

    def registration(self, inventory: Inventory, settings: Settings, now: float) -> NodePatch:
        """The register annotation; it carries no time."""
        del now
        return node_patch(inventory, settings)

    def replacing(
        self, inventory: Inventory, settings: Settings, registered: str, pods: Sequence[Pod]
    ) -> tuple[Effect, ...]:
        """The event about GPUs whose mode changed under their pods."""
        return events.changed_in_use(inventory, settings, registered, pods)

    def events(
        self, inventory: Inventory, settings: Settings, seen: Seen | None
    ) -> tuple[tuple[Effect, ...], Seen]:
        """Events about health and about devices that came or went."""
        return events.transitions(inventory, settings, seen)

    def offers(self, inventory: Inventory, settings: Settings) -> Mapping[str, Offer]:
        """kubelet's lists by resource."""
        return offers(inventory, settings)

    def prefer(self, inventory: Inventory, settings: Settings, query: PreferenceQuery) -> tuple[str, ...]:
        """Best ids for a request."""
        return preference.prefer(inventory, settings, query)

    def needs(self, inventory: Inventory, settings: Settings, claim: Claim) -> tuple[FactRequest, ...]:
        """Facts to gather before `allocate`."""
        return allocation.needs(inventory, settings, claim)

    def allocate(
        self,
        inventory: Inventory,
        settings: Settings,
        claim: Claim,
        pods: Sequence[Pod],
        facts: Mapping[FactRequest, Any],
    ) -> Allocation:
        """One container's edits and records; raises Refused."""
        return allocation.allocate(inventory, settings, claim, pods, facts)

    def caps(self, inventory: Inventory, settings: Settings, pods: Sequence[Pod]) -> Caps:
        """VRAM limits of pods with slices."""
        return caps(inventory, settings, pods)

    @property
    def domain(self) -> str:
        """Of every resource name there is."""
        return "amd.com"

    def checks(self, host: Host, inventory: Inventory, settings: Settings) -> tuple[Check, ...]:
        """Driver, device nodes, memory hook, dmem."""
        return ready.checks(host, inventory, settings)

    def leftovers(self, node: Node) -> NodePatch:
        """The registration, and the capacities that -report_node_capacity publishes."""
        del node
        return NodePatch({ANNOTATION: None}, {CAPACITY_MEMORY: None, CAPACITY_CORES: None})

    def report(self, host: Host, inventory: Inventory, settings: Settings) -> Mapping[str, Any]:
        """The `-dry_run` object: all of it comes from the inventory."""
        del host
        return report(inventory, settings)

    def series(self) -> tuple[Series, ...]:
        """What the monitor may export."""
        return metrics.SERIES

    def samples(self, host: Host, watched: Watched) -> Measured:
        """The monitor's values now."""
        return metrics.samples(host, watched)
