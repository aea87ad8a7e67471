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


NPU_HEAD: Row = ("NPU", "PCI address", "chip", "NPU ID", "health", "memory used", "device", "vNPUs")
_NPU_RIGHT = frozenset({"NPU", "memory used"})


def npu_rows(state: Mapping[str, Any]) -> Iterator[Row]:
    """One row a chip, and below it one for each of its vNPUs."""
    for npu in state["npus"]["chips"]:
        free = npu["free"]
        left = f"{free['ai_cores']} AICore, {free['memory_mib']} MiB free" if npu["vnpus"] else ""
        yield (
            str(npu["logic"]),
            npu["bdf"],
            npu["chip"],
            f"{npu['card']}/{npu['chip_id']}",
            npu["health"],
            f"{npu['used_mib']} of {npu['total_mib']} MiB",
            f"davinci{npu['phy']}",
            "device-share" if npu["share"] else left,
        )
        for vnpu in npu["vnpus"]:
            holder = vnpu["container"] or "idle"
            yield ("", f"  {vnpu['template']}", "", "", "", "", f"vdavinci{vnpu['id']}", holder)


PPU_HEAD: Row = ("PPU", "PCI address", "product", "NUMA", "health", "memory used", "busy", "device")
_PPU_RIGHT = frozenset({"PPU", "NUMA", "memory used", "busy"})


def ppu_rows(state: Mapping[str, Any]) -> Iterator[Row]:
    """One row a PPU, by the index of ppu-smi; one that is not listed has ``-`` there."""
    for ppu in state["ppus"]["devices"]:
        listed = ppu["index"] is not None
        yield (
            str(ppu["index"]) if listed else "-",
            ppu["bdf"],
            ppu["product"],
            str(ppu["numa"]),
            ppu["health"] if ppu["present"] else "vanished",
            f"{ppu['used_mib']} of {ppu['total_mib']} MiB" if ppu["present"] else "-",
            f"{ppu['busy']}%" if ppu["present"] else "-",
            f"alixpu_ppu{ppu['minor']}" if listed else "-",
        )


def _tables(state: Mapping[str, Any]) -> Iterator[tuple[str, Row, frozenset[str], Sequence[Row]]]:
    """Title, head, right-aligned columns and rows; the GPUs are left out where there are only others."""
    if state["gpus"] or not {"npus", "ppus"} & state.keys():
        yield headline(state), HEAD, _RIGHT, list(rows(state))
    if "npus" in state:
        title = f"{state['name']}: kernel {state['kernel']}, Ascend driver {state['npus']['driver']}"
        yield title, NPU_HEAD, _NPU_RIGHT, list(npu_rows(state))
    if "ppus" in state:
        loaded = "" if state["ppus"]["loaded"] else " (not loaded)"
        title = f"{state['name']}: kernel {state['kernel']}, PPU driver {state['ppus']['driver']}{loaded}"
        yield title, PPU_HEAD, _PPU_RIGHT, list(ppu_rows(state))


def print_state(state: Mapping[str, Any]) -> None:
    """The node on stdout: a table with colours on a terminal, aligned plain text elsewhere."""
    if is_terminal():
        _print_rich(state)
        return
    for title, head, right, body in _tables(state):
        widths = [max(len(row[i]) for row in [head, *body]) for i in range(len(head))]
        say(title)
        for row in [head, *body]:
            cells = [
                cell.rjust(width) if name in right else cell.ljust(width)
                for name, cell, width in zip(head, row, widths, strict=True)
            ]
            say("  ".join(cells).rstrip())
    for note in notes(state):
        say(note)


def _print_rich(state: Mapping[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    for title, head, right, body in _tables(state):
        table = Table(title=Text(title), title_justify="left", show_edge=False, pad_edge=False)
        for name in head:
            table.add_column(name, justify="right" if name in right else "left", no_wrap=name != "product")
        for row in body:
            table.add_row(*(Text(cell) for cell in row), style="bold" if row[0] else "")
        console.print(table)
    for note in notes(state):
        console.print(Text(note))
