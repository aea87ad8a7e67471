"""PPU's answers to `devplugin.vendor.Vendor`, each from the file that has the question as its name."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, cast

from devplugin.answers import Allocation, Effect, FactRequest, NodePatch, Offer, Prepared, Reports, Turn
from devplugin.deeds import Ground
from devplugin.explain import Choice
from devplugin.hami import Claim, Node, Pod, Vocabulary
from devplugin.healthevents import Seen
from devplugin.host import Host
from devplugin.plain import Plain
from devplugin.ppu import allocation, events, flags, hostprep, ready, sweep
from devplugin.ppu import health as looking
from devplugin.ppu.discovery import discover
from devplugin.ppu.inventory import Inventory
from devplugin.ppu.notices import details, notices
from devplugin.ppu.offer import offers
from devplugin.ppu.registration import leftovers, node_patch
from devplugin.ppu.report import MODE, report
from devplugin.ppu.settings import Settings
from devplugin.ppu.words import DOMAIN, VOCABULARY
from devplugin.preflight import Check
from devplugin.vendor import SettingsInput


class Ppu(Plain[Inventory, Settings]):
    """The PPU vendor. Holds nothing."""

    name = "ppu"
    domain = DOMAIN

    def add_flags(self, parser: argparse.ArgumentParser) -> None:
        """Declare the flags of decision 53."""
        flags.add_flags(parser)

    def settings(self, given: SettingsInput) -> tuple[Settings, tuple[str, ...]]:
        """Settings and warnings; raises SettingsError."""
        return flags.resolve(given)

    def choices(self, given: SettingsInput, settings: Settings) -> Mapping[str, Choice]:
        """What the configuration file and the environment decide."""
        return flags.choices(given, settings)

    def describe(self, settings: Settings) -> str:
        """How the node's cards are shared."""
        return f"operating mode: {MODE}, {settings.split} shares of each PPU as {settings.resource}"

    def vocabulary(self, inventory: Inventory, settings: Settings) -> Vocabulary:
        """The keys of decision 52."""
        del inventory, settings
        return VOCABULARY

    def discover(self, host: Host, settings: Settings, previous: Inventory | None) -> Inventory:
        """What the node has now."""
        return discover(host, settings, previous)

    def notices(self, inventory: Inventory, settings: Settings) -> tuple[str, ...]:
        """Lines to log once each."""
        del settings
        return notices(inventory)

    def details(self, inventory: Inventory, settings: Settings) -> tuple[str, ...]:
        """Cards as discovery read them."""
        return details(inventory, settings)

    def prepares(self, inventory: Inventory, settings: Settings) -> bool:
        """When the image brings PPU-HAMi-core."""
        del settings
        return hostprep.prepares(inventory)

    def prepare(self, host: Host, inventory: Inventory, settings: Settings, pods: Sequence[Pod]) -> Prepared:
        """Put it onto the host."""
        del settings
        # The seam's other two halves: every host of the launcher has them.
        return hostprep.prepare(cast("Ground", host), inventory, pods)

    def sweeps(self, settings: Settings) -> float | None:
        """Always: directories of pods that are gone."""
        del settings
        return sweep.PERIOD

    def sweep(
        self, host: Host, inventory: Inventory, settings: Settings, turn: Turn
    ) -> tuple[tuple[Effect, ...], Any]:
        """Those directories."""
        del inventory, settings
        return sweep.sweep(host, turn)

    def health(self, host: Host, inventory: Inventory, settings: Settings, reports: Reports) -> Inventory:
        """After trying every device node."""
        del settings, reports
        return looking.health(host, inventory)

    def registration(self, inventory: Inventory, settings: Settings, now: float) -> NodePatch:
        """Cards and handshake, in one patch."""
        return node_patch(inventory, settings, now)

    def events(
        self, inventory: Inventory, settings: Settings, seen: Seen | None
    ) -> tuple[tuple[Effect, ...], Seen]:
        """Events about health and about cards that came or went."""
        del settings
        return events.transitions(inventory, seen)

    def offers(self, inventory: Inventory, settings: Settings) -> Mapping[str, Offer]:
        """kubelet's list."""
        return offers(inventory, settings)

    def needs(self, inventory: Inventory, settings: Settings, claim: Claim) -> tuple[FactRequest, ...]:
        """Facts to gather before `allocate`."""
        del settings
        return allocation.needs(inventory, claim)

    def allocate(
        self,
        inventory: Inventory,
        settings: Settings,
        claim: Claim,
        pods: Sequence[Pod],
        facts: Mapping[FactRequest, Any],
    ) -> Allocation:
        """One container's edits; raises Refused."""
        del settings, pods
        return allocation.allocate(inventory, claim, facts)

    def checks(self, host: Host, inventory: Inventory, settings: Settings) -> tuple[Check, ...]:
        """ppu-smi, device nodes, runtime library."""
        return ready.checks(host, inventory, settings)

    def leftovers(self, node: Node) -> NodePatch:
        """Registration and handshake."""
        return leftovers(node)

    def report(self, host: Host, inventory: Inventory, settings: Settings) -> Mapping[str, Any]:
        """The `-dry_run` object."""
        del host
        return report(inventory, settings)
