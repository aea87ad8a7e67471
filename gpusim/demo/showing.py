"""What a play shows: the registration as a scheduler reads it, and what a container received."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console
from rich.table import Table

from gpusim.cluster import pods
from gpusim.cluster.apiclient import ApiClient
from gpusim.demo.stage import NODE, DemoError, Stage

MANY = 10


def annotation(api: ApiClient, key: str) -> str | None:
    """One of the node's annotations."""
    value = (api.get("nodes", NODE)["metadata"].get("annotations") or {}).get(key)
    return None if value is None else str(value)


def registered(api: ApiClient, key: str) -> list[dict[str, Any]]:
    """The devices in a register annotation; empty before the plugin wrote it."""
    devices: list[dict[str, Any]] = json.loads(annotation(api, key) or "[]")
    return devices


def show_devices(console: Console, key: str, devices: list[dict[str, Any]]) -> None:
    """The registration, long lists cut in the middle."""
    table = Table("id", "type", "mode", "shares", "memory MiB", "cores", "NUMA", "PCI address", title=key)
    shown = devices if len(devices) <= MANY else [*devices[:5], None, *devices[-3:]]
    for device in shown:
        if device is None:
            table.add_row(f"… {len(devices) - 8} more", *[""] * 7)
            continue
        table.add_row(
            device["id"],
            device["type"],
            device.get("mode", "-"),
            str(device.get("count", 0)),
            str(device.get("devmem", 0)),
            str(device.get("devcore", 0)),
            str(device.get("numa", 0)),
            device.get("custominfo", {}).get("pciBDF", "-"),
        )
    console.print(table)


def admitted(stage: Stage, api: ApiClient, name: str, keys: tuple[str, ...]) -> dict[str, Any]:
    """Wait for a pod to be admitted and show what its container received; the pod.

    Args:
        stage: where.
        api: the API server.
        name: of the pod, in ``default``.
        keys: annotations to show besides the bind phase.

    Raises:
        DemoError: it was rejected, or nothing came of it.
    """

    def settled() -> dict[str, Any] | None:
        found = api.get("pods", name)
        return found if found.get("status", {}).get("phase") in ("Running", "Failed") else None

    pod: dict[str, Any] = stage.until(f"pod {name} to be admitted", settled)
    if pod["status"]["phase"] == "Failed":
        said = pod["status"].get("message", "")
        raise DemoError(f"pod {name} was rejected: {said}\n{stage.tail('plugin')}")
    edits = json.loads((stage.scratch / "pods" / f"default_{name}.json").read_text())
    table = Table("the container receives", "", show_header=True, title=f"pod {name}")
    for container in edits["containers"].values():
        for key, value in sorted(container["envs"].items()):
            table.add_row(key, value)
        for node in container["devices"]:
            table.add_row("device", f"{node['host_path']} ({node['permissions']})")
        for mount in container["mounts"]:
            table.add_row("mount", f"{mount['host_path']} → {mount['container_path']}")
    annotations = pod["metadata"]["annotations"]
    for key in (*keys, pods.BIND_PHASE):
        if key in annotations:
            table.add_row(key, annotations[key])
    stage.console.print(table)
    return pod
