"""Ascend's answers to `devplugin.vendor.Vendor`, each from the file that has the question as its name."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, cast

from devplugin.answers import Allocation, Effect, FactRequest, NodePatch, Offer, Prepared, Turn
from devplugin.ascend import allocation, events, flags, hostprep, metrics, ready, sweep
from devplugin.ascend.discovery import discover
from devplugin.ascend.events import Seen
from devplugin.ascend.inventory import Inventory
from devplugin.ascend.notices import details, notices
from devplugin.ascend.offer import offers
from devplugin.ascend.registration import leftovers, node_patch
from devplugin.ascend.report import report
from devplugin.ascend.runtimeinfo import vocabulary
from devplugin.ascend.settings import Settings
from devplugin.deeds import Ground
from devplugin.explain import Choice
from devplugin.hami import Claim, Node, Pod, Vocabulary
from devplugin.host import Host
from devplugin.plain import Plain
from devplugin.preflight import Check
from devplugin.vendor import Exports, SettingsInput


class Ascend(Plain[Inventory, Settings]):
    """The Ascend vendor. Holds nothing."""

    name = "ascend"
    domain = "huawei.com"

    def add_flags(self, parser: argparse.ArgumentParser) -> None:
        """Declare the flags of A.1."""
        flags.add_flags(parser)

    def settings(self, given: SettingsInput) -> tuple[Settings, tuple[str, ...]]:
        """Settings and warnings; raises SettingsError."""
        return flags.resolve(given)

    def choices(self, given: SettingsInput, settings: Settings) -> Mapping[str, Choice]:
        """What configuration files and environment decide."""
        return flags.choices(given, settings)

    def describe(self, settings: Settings) -> str:
        """The mode of the node's containers."""
        return f"operating mode: {settings.mode}"

    def vocabulary(self, inventory: Inventory, settings: Settings) -> Vocabulary | None:
        """The keys of the node's kind of chip; None while none was seen."""
        del settings
        return None if inventory.chip is None else vocabulary(inventory.chip.word)

    def discover(self, host: Host, settings: Settings, previous: Inventory | None) -> Inventory:
        """What the node has now, its health included."""
        return discover(host, settings, previous)

    def notices(self, inventory: Inventory, settings: Settings) -> tuple[str, ...]:
        """Lines to log once each."""
        return notices(inventory, settings)

    def details(self, inventory: Inventory, settings: Settings) -> tuple[str, ...]:
        """Chips as discovery read them."""
        return details(inventory, settings)

    def prepares(self, inventory: Inventory, settings: Settings) -> bool:
        """In soft mode: directories, runtime library, device-share."""
        return hostprep.prepares(inventory, settings)

    def prepare(self, host: Host, inventory: Inventory, settings: Settings, pods: Sequence[Pod]) -> Prepared:
        """Make the host ready for soft slices."""
        # The seam's other two halves: every host of the launcher has them.
        return hostprep.prepare(cast("Ground", host), inventory, settings, pods)

    def sweeps(self, settings: Settings) -> float | None:
        """Always: directories of pods that are gone, at least."""
        return sweep.every(settings)

    def sweep(
        self, host: Host, inventory: Inventory, settings: Settings, turn: Turn
    ) -> tuple[tuple[Effect, ...], Any]:
        """Directories, idle vNPUs, a library that had to wait."""
        return sweep.sweep(host, inventory, settings, turn)

    def exports(self, settings: Settings) -> Exports[Inventory] | None:
        """NPUs and soft containers' memory, in soft mode: the library of no other mode keeps a ledger."""
        if not settings.soft or not settings.monitor_address:
            return None
        return Exports(
            flags.MONITOR,
            settings.monitor_address,
            metrics.SERIES,
            lambda host, inventory, pods: metrics.samples(host, inventory, settings, pods),
        )

    def registration(self, inventory: Inventory, settings: Settings, now: float) -> NodePatch:
        """Cards, handshake and mode, in one patch."""
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
        return allocation.needs(inventory, settings, claim)

    def allocate(
        self,
        inventory: Inventory,
        settings: Settings,
        claim: Claim,
        pods: Sequence[Pod],
        facts: Mapping[FactRequest, Any],
    ) -> Allocation:
        """One container's edits; raises Refused."""
        return allocation.allocate(inventory, settings, claim, pods, facts)

    def checks(self, host: Host, inventory: Inventory, settings: Settings) -> tuple[Check, ...]:
        """npu-smi, device nodes, runtime library."""
        return ready.checks(host, inventory, settings)

    def leftovers(self, node: Node) -> NodePatch:
        """Registration, handshake and mode of every kind of chip."""
        return leftovers(node)

    def report(self, host: Host, inventory: Inventory, settings: Settings) -> Mapping[str, Any]:
        """The `-dry_run` object."""
        del host
        return report(inventory, settings)
