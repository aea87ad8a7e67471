"""Rule-based state machines to subclass, and the small nodes they run on.

`NodeMachine` walks a node, `PluginMachine` an allocator, `LedgerMachine` per-device accounting. Each breaks
with `Broken`, which names the invariant. They need Hypothesis (``pip install gpusim[sim]``) and load it only
when one of them is asked for; `node` and its addresses do not.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from gpusim.testing.build import BUSES, NUMA, node

if TYPE_CHECKING:
    from gpusim.testing.machines.broken import Broken
    from gpusim.testing.machines.ledger import DmemLedger, Ledger, LedgerMachine, ToyLedger
    from gpusim.testing.machines.plugin import Allocator, Device, PluginMachine, Request, Share
    from gpusim.testing.machines.walk import NodeMachine

__all__ = [
    "BUSES",
    "NUMA",
    "Allocator",
    "Broken",
    "Device",
    "DmemLedger",
    "Ledger",
    "LedgerMachine",
    "NodeMachine",
    "PluginMachine",
    "Request",
    "Share",
    "ToyLedger",
    "node",
]

_HOMES = {
    "broken": ("Broken",),
    "ledger": ("DmemLedger", "Ledger", "LedgerMachine", "ToyLedger"),
    "walk": ("NodeMachine",),
    "plugin": ("Allocator", "Device", "PluginMachine", "Request", "Share"),
}
_HOME = {name: f"{__name__}.{module}" for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value
