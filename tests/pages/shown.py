"""What `kubectl get` prints: tables and JSONPath. As near to the original as the pages show it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

Object = dict[str, Any]


def table(resource: str, found: list[Object], *, everywhere: bool = False) -> str:
    """Columns as of `kubectl get`."""
    if resource == "events":
        rows = [["TYPE", "REASON", "OBJECT", "MESSAGE"]]
        for one in found:
            of = one.get("involvedObject", {})
            where = f"{of.get('kind', '').lower()}/{of.get('name', '')}"
            rows.append([one.get("type", ""), one.get("reason", ""), where, one.get("message", "")])
    elif resource == "nodes":
        rows = [["NAME", "STATUS"]]
        for one in found:
            off = ",SchedulingDisabled" if one.get("spec", {}).get("unschedulable") else ""
            rows.append([one["metadata"]["name"], f"Ready{off}"])
    elif resource == "configmaps":
        rows = [["NAME", "DATA"], *([one["metadata"]["name"], str(len(one["data"]))] for one in found)]
    else:
        rows = [["NAME", "STATUS", "NODE"]]
        for one in found:
            status = one.get("status", {})
            shown = status.get("reason") or status.get("phase", "Pending")
            rows.append([one["metadata"]["name"], shown, one["spec"].get("nodeName", "<none>")])
    if everywhere:
        rows = [["NAMESPACE", *rows[0]]] + [
            [one["metadata"].get("namespace", ""), *row] for one, row in zip(found, rows[1:], strict=True)
        ]
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = ["   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def filled(template: str, top: Any) -> Iterator[str]:
    """A JSONPath template of kubectl: texts, and paths in braces."""
    for text, path in re.findall(r"([^{]*)(?:\{([^}]*)\})?", template):
        yield text
        if path:
            if path.startswith('"'):
                yield json.loads(path)
                continue
            values = _at([top], path)
            yield " ".join(
                value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
                for value in values
            )


def _at(values: list[Any], path: str) -> list[Any]:
    for step in re.findall(r"\.((?:\\.|[^.\[\\])+)|\[(\*|\d+)\]", path):
        name, index = step[0].replace("\\", ""), step[1]
        if name:
            values = [value[name] for value in values if isinstance(value, dict) and name in value]
        elif index == "*":
            values = [inner for value in values for inner in value]
        else:
            values = [value[int(index)] for value in values]
    return values
