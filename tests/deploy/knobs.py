"""For every value of a chart another one that its schema takes, and what must be set for it to matter.

The other values are made from the schema: nobody has to think of one when a value is added, only of its
context when it has none of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .engine import AMD, ASCEND, PPU, Where, get, leaves, rule, schema, spelled, values, way

CANDIDATES: tuple[Any, ...] = (
    "other",
    ":9444",
    "/other/place",
    "other.example/thing",
    "sha256:" + "5" * 64,
    "45s",
    "7",
    "250m",
    ["card3"],
    [{"name": "other"}],
    {"other": "word"},
    {"limits": {"cpu": "2"}},
    {"type": "OnDelete"},
)
"""Tried in this order where a value is no number, no boolean and none of an enumeration."""

NEEDS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    AMD: {
        "dp.muslFailClosed.ctrPath": {"dp.muslFailClosed.enabled": True},
        "dp.muslFailClosed.containerdSocketDir": {"dp.muslFailClosed.enabled": True},
        "dp.muslFailClosed.containerdSocket": {"dp.muslFailClosed.enabled": True},
        "dp.muslFailClosed.containerdDataDir": {"dp.muslFailClosed.enabled": True},
        "dp.cdi.specDir": {"dp.cdi.enabled": True},
        "monitor.metricsBindAddress": {"monitor.enabled": True},
        "monitor.resources": {"monitor.enabled": True},
        "node_selector.feature.node.kubernetes.io/pci-0300_1002.present": {"node_selector_enabled": True},
        "node_selector.kubernetes.io/arch": {"node_selector_enabled": True},
    },
    ASCEND: {
        "config.deviceConfigMapName": {"config.create": True},
        "hamiVnpuCore.enabled": {"config.create": True},
        "fullnameOverride": {"daemonSet.name": ""},
    }
    | {
        spelled(path): {"vnpuMonitor.enabled": True}
        for path, _ in leaves(values(ASCEND))
        if path[0] == "vnpuMonitor" and path[1] != "enabled"
    },
    PPU: {
        "config.create": {"config.existingConfigMapName": "there"},
        "config.existingConfigMapName": {"config.create": False, "config.existingConfigMapName": "there"},
    },
}
"""Value → what else must be set for it to have an effect; a value without an entry always has one."""


def another(name: str, path: Where) -> Any:
    """A value that is not the default and that the schema takes.

    Raises:
        LookupError: none was found: give `CANDIDATES` one.
    """
    import jsonschema

    wanted, default = rule(name, path), get(values(name), path)
    if isinstance(default, bool):
        return not default
    if isinstance(default, int | float):
        tried: tuple[Any, ...] = (default + 1, default + 0.5, 1)
    else:
        tried = tuple(wanted.get("enum", ())) or CANDIDATES
    checked = jsonschema.Draft7Validator({**wanted, "definitions": schema(name)["definitions"]})
    for candidate in tried:
        if candidate != default and checked.is_valid(candidate):
            return candidate
    raise LookupError(spelled(path))


def context(name: str, path: Where) -> dict[Where, Any]:
    """What must be set for a value to matter."""
    return {way(name, key): value for key, value in NEEDS[name].get(spelled(path), {}).items()}
