"""Taking back what a plugin told the API server about its node, after the plugin itself is gone.

An uninstalled plugin leaves its registration behind, and the scheduler goes on to place pods by it; what it
published as capacity stays until somebody removes it. A plugin that still runs would only write all of it
again: so nothing is done while one of its sockets answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from devplugin.answers import NodePatch
from devplugin.hami import Node
from devplugin.kube import KubeError, NoCluster, OfficialClient
from devplugin.kubelet.directory import alive
from devplugin.settings import SettingsError


def running(directory: str, domain: str) -> str:
    """Path of a socket of `domain` on which a plugin answers; empty: there is none."""
    return next(iter(alive(directory, f"{domain}_")), "")


async def clean(
    connect: Callable[[], OfficialClient], node: str, leftovers: Callable[[Node], NodePatch]
) -> tuple[str, ...]:
    """Remove it; what was removed, one line each.

    Args:
        connect: makes the API server's port; blocking.
        node: NODE_NAME.
        leftovers: what of this node's annotations and capacity is the vendor's.

    Raises:
        SettingsError: no API server is configured, or it refuses; the text says what to do.
    """
    try:
        api = connect()
        before = await api.node(node)
        patch = leftovers(before)
        annotations = {key: None for key in patch.annotations if key in before.annotations}
        capacity = {name: None for name in patch.capacity if _has(before, name)}
        if annotations:
            await api.patch_node(node, annotations)
        if capacity:
            await api.patch_node_capacity(node, capacity)
    except NoCluster as error:
        raise SettingsError(str(error)) from error
    except KubeError as error:
        raise SettingsError(f"node {node} cannot be cleaned up: {error}") from error
    return tuple(
        [f"annotation {key} removed" for key in sorted(annotations)]
        + [f"capacity {name} removed" for name in sorted(capacity)]
    )


def _has(node: Node, name: str) -> bool:
    return name in node.capacity or name in node.allocatable


def report(node: str, lines: tuple[str, ...]) -> Mapping[str, Any]:
    """What was done, for a program."""
    return {"schema": 1, "node": node, "removed": list(lines)}
