"""The answers of a vendor that has nothing of the kind: what most vendors say to some of the questions.

A vendor derives from `Plain` and answers what it has: so its own file shows only that, and a question that
only one vendor knows something about costs the others nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic

from devplugin.answers import Caps, CdiSpec, Effect, HealthSource, PreferenceQuery, Prepared, Reports, Turn
from devplugin.hami import Pod
from devplugin.host import Host
from devplugin.vendor import Exports, Inv, S


class Plain(Generic[Inv, S]):
    """Answers to `devplugin.vendor.Vendor`."""

    def cdi(self, inventory: Inv, settings: S) -> CdiSpec | None:
        """None: no specification of ours; device nodes, or the vendor's container runtime, do it."""
        del inventory, settings
        return None

    def prepares(self, inventory: Inv, settings: S) -> bool:
        """No work at the start."""
        del inventory, settings
        return False

    def prepare(self, host: Host, inventory: Inv, settings: S, pods: Sequence[Pod]) -> Prepared:
        """Nothing to do."""
        del host, inventory, settings, pods
        return Prepared()

    def sweeps(self, settings: S) -> float | None:
        """None: nothing is left over on a node when a pod ends."""
        del settings
        return None

    def sweep(self, host: Host, inventory: Inv, settings: S, turn: Turn) -> tuple[tuple[Effect, ...], Any]:
        """Nothing to clear away."""
        del host, inventory, settings
        return (), turn.memory

    def exports(self, settings: S) -> Exports[Inv] | None:
        """None: a monitor is a program of its own, if there is one."""
        del settings
        return None

    def health_source(self, settings: S) -> HealthSource | None:
        """None: no service beside us knows more than discovery."""
        del settings
        return None

    def health(self, host: Host, inventory: Inv, settings: S, reports: Reports) -> Inv:
        """As it is: discovery itself has looked at every device's health."""
        del host, settings, reports
        return inventory

    def replacing(
        self, inventory: Inv, settings: S, registered: str, pods: Sequence[Pod]
    ) -> tuple[Effect, ...]:
        """Nothing to be said: an id never means another device."""
        del inventory, settings, registered, pods
        return ()

    def prefer(self, inventory: Inv, settings: S, query: PreferenceQuery) -> tuple[str, ...]:
        """No preference is announced: kubelet's ids say nothing."""
        del inventory, settings, query
        raise ValueError("not supported")

    def caps(self, inventory: Inv, settings: S, pods: Sequence[Pod]) -> Caps:
        """None: no kernel controller knows these devices' memory."""
        del inventory, settings, pods
        return Caps()
