"""A node and a call of a trace as a few plain lines: what the report of a failed test has room for.

`gpusim show` is the large picture. Everything comes from ``describe()``, so a served machine looks the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpusim.amd.products import PRODUCTS

_MIB = 1 << 20
_CLIP = 200


def picture(state: Mapping[str, Any]) -> str:
    """One line a GPU, with its partitions as boxes that hold their KFD nodes; then who holds what open.

    ``[8|9|-|11]``: the third partition has no KFD node.
    """
    lines = [f"{state['name']}: kernel {state['kernel']}, driver {state['driver']}"]
    if not state["loaded"]:
        lines[0] += " (not loaded)"
    rows = list(_rows(state))
    width = max((len(row) for row, _ in rows), default=0)
    lines += [f"  {row.ljust(width)}  {rest}" for row, rest in rows] or ["  no GPU"]
    for process in state["processes"]:
        held = [handle["path"] for handle in process["open"]]
        if held:
            lines.append(f"  process {process['pid']} (uid {process['uid']}) holds {', '.join(held)}")
    return "\n".join(lines)


def _rows(state: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    nodes = {(node["gpu"], node["partition"]): node["node"] for node in state["kfd"]["gpu_nodes"]}
    for index, gpu in enumerate(state["gpus"]):
        front = f"gpu {index}  {gpu['bdf']}  {gpu['product']}  {_mode(gpu)}"
        count = PRODUCTS[gpu["product"]].partitions(gpu["mode"]) if gpu["partitions"] else 0
        boxes = "|".join(str(nodes.get((gpu["bdf"], number), "-")) for number in range(count))
        used = f"{gpu['vram_used'] // _MIB} of {gpu['vram_bytes'] // _MIB} MiB used"
        yield front, f"[{boxes}]  {used}" if gpu["present"] else "[ ]"


def _mode(gpu: Mapping[str, Any]) -> str:
    if not gpu["present"]:
        return "removed"
    if gpu["driver"] != "amdgpu":
        return str(gpu["driver"] or "no driver")
    mode = f"{gpu['mode']}/NPS{gpu['nps']}" if PRODUCTS[gpu["product"]].partitionable else "whole"
    return f"{mode}{' hung' if gpu['hung'] else ''}{' in reset' if gpu['resetting'] else ''}"


def words(entry: Mapping[str, Any]) -> str:
    """One call of a trace as a person reads it: ``switch '0000:75:00.0' 'CPX' → EBUSY``."""
    named = [f"{key}={_value(value)}" for key, value in entry.get("named", {}).items()]
    said = [str(entry.get("do")), *map(_value, entry.get("args", [])), *named]
    if "error" in entry:
        error = entry["error"]
        return " ".join([*said, "→", str(error.get("errno") or error.get("why"))])
    if "answer" in entry:
        return " ".join([*said, "→", _value(entry["answer"])])
    return " ".join(said)


def _value(value: Any) -> str:
    if isinstance(value, dict) and value.keys() == {"length", "sha256"}:
        return f"({value['length']} characters)"
    if isinstance(value, dict) and len(value) == 1:
        ((key, inner),) = value.items()
        return repr(inner) if key == "bytes" else f"{key} {inner}"
    return clip(repr(value))


def clip(text: str) -> str:
    """At most 200 characters."""
    return text if len(text) <= _CLIP else text[:_CLIP] + "…"
