"""Is this node ready for the daemon? One look before it serves, each finding with its remedy.

`-check` asks what otherwise shows as pods that wait: driver and device nodes, kubelet's directory, the API
server and every right in it, and what only one vendor needs (its hook, its tool, the dmem controller). It
writes nothing and leaves nothing behind. Exit status 1 when something is missing that pods need.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "warning", "missing"]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    name: str
    """What: ``kubelet socket``, ``right patch pods``."""
    verdict: Verdict
    """``missing``: pods will not run, or not be limited; ``warning``: something less is lost."""
    found: str
    """What was seen, in a few words."""
    remedy: str = ""
    """What to do; empty when it is fine."""


def good(name: str, found: str) -> Check:
    """A check that found what it should."""
    return Check(name, "ok", found)


def failed(checks: Iterable[Check]) -> bool:
    """Whether something is missing."""
    return any(check.verdict == "missing" for check in checks)


def text(checks: Sequence[Check]) -> str:
    """A line for each check, the remedy below it, and a last line with the sum."""
    width = max((len(check.name) for check in checks), default=0)
    lines = []
    for check in checks:
        lines.append(f"{check.verdict:<8} {check.name:<{width}}  {check.found}".rstrip())
        if check.remedy:
            lines.append(f"{'':<8} {'':<{width}}  -> {check.remedy}")
    count = sum(check.verdict == "missing" for check in checks)
    warned = sum(check.verdict == "warning" for check in checks)
    lines.append(f"{len(checks)} checks: {count} missing, {warned} warnings")
    return "\n".join(lines)


def as_json(checks: Sequence[Check]) -> str:
    """The same for a program."""
    rows = [{"name": c.name, "verdict": c.verdict, "found": c.found, "remedy": c.remedy} for c in checks]
    return json.dumps({"schema": 1, "ready": not failed(checks), "checks": rows}, indent=2)
