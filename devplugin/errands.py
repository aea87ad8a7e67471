"""What a plugin's program can do beside serving: look whether it could (`-check`), clean up after itself.

Both print for people, or one JSON object with `-json`, and end: 0 when all is well, 1 when something is
missing or was refused. Neither changes the node's devices or touches a container.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TextIO

from devplugin.hami.values import Node
from devplugin.host import Host
from devplugin.preflight import Check, as_json, failed, good, text
from devplugin.rights import PLUGIN, Right
from devplugin.settings import SettingsError
from devplugin.stdout import printed
from devplugin.vendor import SettingsInput, Vendor


@dataclass(frozen=True, slots=True)
class Place:
    """Where an errand prints, and as which program."""

    prog: str
    out: TextIO | None = None

    def printed(self, text: str) -> int:
        """Print it; the exit status."""
        return printed(text, self.prog, self.out)


def check(vendor: Vendor[Any, Any], host: Host, given: SettingsInput, settings: Any, place: Place) -> int:
    """Look at everything; the exit status."""
    import asyncio  # a dry run needs neither it nor what follows

    from devplugin.daemon import ready

    inventory = vendor.discover(host, settings, None)
    checks = [*vendor.checks(host, inventory, settings), _devices(vendor, inventory, settings)]
    checks += ready.kubelet(given.args.kubelet_dir)
    checks += asyncio.run(ready.cluster(_connect(vendor, given), given.node, _rights(vendor, given.node)))
    status = place.printed(as_json(checks) if given.args.json else text(checks))
    return 1 if failed(checks) else status


def _rights(vendor: Vendor[Any, Any], node: str) -> tuple[Right, ...]:
    """What this vendor's plugin asks for: whoever publishes no capacity never patches a node's status."""
    publishes = bool(vendor.leftovers(Node(node, "")).capacity)
    return tuple(right for right in PLUGIN if publishes or right.resource != "nodes/status")


def _devices(vendor: Vendor[Any, Any], inventory: Any, settings: Any) -> Check:
    """How much kubelet would be offered."""
    offers = vendor.offers(inventory, settings)
    said = ", ".join(f"{name}: {len(offer.devices)}" for name, offer in sorted(offers.items()))
    if said:
        return good("devices to offer", said)
    return Check(
        "devices to offer", "missing", "none", "see the findings above, and -dry_run for what was skipped"
    )


def cleanup(vendor: Vendor[Any, Any], given: SettingsInput, place: Place) -> int:
    """Take back what the API server was told of this node; the exit status.

    Raises:
        SettingsError: no node, no API server, or a plugin that still runs.
    """
    import asyncio

    from devplugin.daemon.cleanup import clean, report, running

    if not given.node:
        raise SettingsError("NODE_NAME is not set: which node is to be cleaned up?")
    if path := running(given.args.kubelet_dir, vendor.domain):
        raise SettingsError(
            f"a plugin answers on {path} and would write everything again: uninstall it first"
        )
    lines = asyncio.run(clean(_connect(vendor, given), given.node, vendor.leftovers))
    if given.args.json:
        return place.printed(json.dumps(report(given.node, lines), indent=2))
    return place.printed("\n".join(lines) or f"node {given.node}: nothing of ours is left")


def _connect(vendor: Vendor[Any, Any], given: SettingsInput) -> Callable[[], Any]:
    from devplugin.kube import connect

    return lambda: connect(given.env.get("KUBECONFIG") or None, component=f"{vendor.name}-device-plugin")
