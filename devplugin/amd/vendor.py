"""AMD's answers to `devplugin.vendor.Vendor`, each from the file that has the question as its name."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from devplugin.amd import allocation, flags, metrics, preference
from devplugin.amd.caps import caps
from devplugin.amd.discovery import discover
from devplugin.amd.inventory import Inventory
from devplugin.amd.notices import notices
from devplugin.amd.offer import offers
from devplugin.amd.registration import ANNOTATION, node_patch
from devplugin.amd.report import report
from devplugin.amd.settings import Settings
from devplugin.hami import Claim, Pod, Vocabulary
from devplugin.host import Host
from devplugin.vendor import (
    Allocation,
    Caps,
    FactRequest,
    Measured,
    NodePatch,
    Offer,
    PreferenceQuery,
    Series,
    SettingsInput,
    Watched,
)


class Amd:
    """The AMD vendor. Holds nothing."""

    name = "amd"

    def add_flags(self, parser: argparse.ArgumentParser) -> None:
        """Declare the flags of the guide."""
        flags.add_flags(parser)

    def settings(self, given: SettingsInput) -> tuple[Settings, tuple[str, ...]]:
        """Settings and warnings; raises SettingsError."""
        return flags.resolve(given)

    def describe(self, settings: Settings) -> str:
        """The guide's line about the resolved mode."""
        return f"operating mode: {settings.mode}"

    def vocabulary(self) -> Vocabulary:
        """AMD's keys; it has no handshake (ascend_ppu_hami.md D.1)."""
        return Vocabulary(
            register=ANNOTATION,
            to_allocate="hami.io/amd-devices-to-allocate",
            allocated="hami.io/amd-devices-allocated",
        )

    def discover(self, host: Host, settings: Settings, previous: Inventory | None) -> Inventory:
        """What the node has now."""
        return discover(host, settings, previous)

    def notices(self, inventory: Inventory, settings: Settings) -> tuple[str, ...]:
        """Lines to log once each."""
        return notices(inventory, settings)

    def registration(self, inventory: Inventory, settings: Settings, now: float) -> NodePatch:
        """The register annotation; it carries no time."""
        del now
        return node_patch(inventory, settings)

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
