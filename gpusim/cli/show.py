"""What `gpusim show` prints: a node on one screen, as a table for people and as JSON for programs.

Everything comes from `Machine.describe()`, so a fixture and a served machine look the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpusim.amd.products import PRODUCTS
from gpusim.stdout import is_terminal, say

Row = tuple[str, ...]

HEAD: Row = (
    "GPU",
    "PCI address",
    "product",
    "mode",
    "NUMA",
    "memory used",
    "card",
    "render",
    "KFD node",
    "gpu_id",
)
_RIGHT = frozenset({"GPU", "NUMA", "memory used", "card", "render", "KFD node", "gpu_id"})
_MIB = 1 << 20


def headline(state: Mapping[str, Any]) -> str:
    """One line: name, kernel, driver, and how much KFD lists."""
    kfd = state["kfd"]
    hidden = "" if state["kfd_partitions"] == "listed" else f" ({state['kfd_partitions']})"
    return (
        f"{state['name']}: kernel {state['kernel']}, driver {state['driver']}; KFD generation "
        f"{kfd['generation']}: {kfd['cpu_nodes']} CPU and {len(kfd['gpu_nodes'])} GPU nodes{hidden}"
    )


def rows(state: Mapping[str, Any]) -> Iterator[Row]:
    """One row a GPU, and below a partitioned one a row for each partition of its mode.

    A partition without a KFD node has ``-`` there; one that got no DRM device (the minors ran out) has
    nothing but its number.
    """
    nodes = {(node["gpu"], node["partition"]): node for node in state["kfd"]["gpu_nodes"]}
    for index, gpu in enumerate(state["gpus"]):
        devices = {part["partition"]: part for part in gpu["partitions"]}
        used = f"{gpu['vram_used'] // _MIB} of {gpu['vram_bytes'] // _MIB} MiB"
        numa = "no file" if gpu["numa"] is None else str(gpu["numa"])
        front: Row = (
            str(index),
            gpu["bdf"],
            gpu["product"],
            _mode(gpu),
            numa,
            used if gpu["present"] else "-",
        )
        count = PRODUCTS[gpu["product"]].partitions(gpu["mode"]) if devices else 0
        if count <= 1:
            yield front + _device(devices.get(0), nodes.get((gpu["bdf"], 0)))
            continue
        yield (*front, "", "", "", "")
        for number in range(count):
            device = devices.get(number)
            name = device["device"] if device else "no DRM device"
            blank: Row = ("", f"  {number}  {name}", "", "", "", "")
            yield blank + _device(device, nodes.get((gpu["bdf"], number)))


def _mode(gpu: Mapping[str, Any]) -> str:
    if not gpu["present"]:
        return "removed"
    if gpu["driver"] != "amdgpu":
        return gpu["driver"] or "no driver"
    return f"{gpu['mode']}/NPS{gpu['nps']}" if PRODUCTS[gpu["product"]].partitionable else "-"


def _device(device: Mapping[str, Any] | None, node: Mapping[str, Any] | None) -> Row:
    card, render = (str(device["card"]), str(device["render"])) if device else ("-", "-")
    return (card, render, *((str(node["node"]), str(node["gpu_id"])) if node else ("-", "-")))


def notes(state: Mapping[str, Any]) -> Iterator[str]:
    """Other displays, and the processes that hold something open."""
    for card in state["cards"]:
        where = "no DRM minor" if card["card"] is None else f"card{card['card']}"
        yield f"{where}: {card['bdf']}, driver {card['driver']}"
    for process in state["processes"]:
        held = ", ".join(f"{handle['path']} (handle {handle['handle']})" for handle in process["open"])
        if held:
            yield f"process {process['pid']} (uid {process['uid']}) holds {held}"


def print_state(state: Mapping[str, Any]) -> None:
    """The node on stdout: a table with colours on a terminal, aligned plain text elsewhere."""
    body = list(rows(state))
    if is_terminal():
        _print_rich(state, body)
        return
    widths = [max(len(row[i]) for row in [HEAD, *body]) for i in range(len(HEAD))]
    say(headline(state))
    for row in [HEAD, *body]:
        cells = [
            cell.rjust(width) if title in _RIGHT else cell.ljust(width)
            for title, cell, width in zip(HEAD, row, widths, strict=True)
        ]
        say("  ".join(cells).rstrip())
    for note in notes(state):
        say(note)


def _print_rich(state: Mapping[str, Any], body: Sequence[Row]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(headline(state)), title_justify="left", show_edge=False, pad_edge=False)
    for title in HEAD:
        table.add_column(title, justify="right" if title in _RIGHT else "left", no_wrap=title != "product")
    for row in body:
        table.add_row(*(Text(cell) for cell in row), style="bold" if row[0] else "")
    console = Console(highlight=False)
    console.print(table)
    for note in notes(state):
        console.print(Text(note))
