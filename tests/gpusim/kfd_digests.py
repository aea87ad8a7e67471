"""Digest manifests: what a capture's KFD files say, small enough to keep beside the tests.

A line is a path below ``topology/`` and the first 16 hex digits of its sha256; the entries 0, 1, 2, … of one
directory share a line, with ``*`` for the number. `manifest` makes the text, `digests` reads it back.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from itertools import count
from pathlib import Path

DATA = Path(__file__).parent / "data"
_ENTRY = re.compile(r"(nodes/\d+/(?:io_links|p2p_links|caches|mem_banks)/)(\d+)(/\w+)")
_HEX = 16


def digest(content: str) -> str:
    """First 16 hex digits of the sha256: two of them agree by accident once in 2^64."""
    return hashlib.sha256(content.encode()).hexdigest()[:_HEX]


def manifest(files: Mapping[str, str]) -> str:
    """Text of the manifest of these files (path → content)."""
    lines: dict[str, str] = {}
    runs: dict[tuple[str, str], dict[int, str]] = {}
    for path, content in files.items():
        if match := _ENTRY.fullmatch(path):
            runs.setdefault((match[1], match[3]), {})[int(match[2])] = digest(content)
        else:
            lines[path] = digest(content)
    for (head, tail), found in runs.items():
        assert sorted(found) == list(range(len(found))), f"{head}: a number is missing"
        lines[f"{head}*{tail}"] = " ".join(found[number] for number in range(len(found)))
    return "".join(f"{path} {lines[path]}\n" for path in sorted(lines))


def digests(name: str) -> dict[str, str]:
    """Path → digest of the checked-in manifest ``data/<name>.digests``."""
    found: dict[str, str] = {}
    for line in (DATA / f"{name}.digests").read_text().splitlines():
        path, *values = line.split()
        if "*" in path:
            found |= {path.replace("*", str(number)): value for number, value in zip(count(), values)}
        else:
            (found[path],) = values
    return found


def capture(topology: Path) -> dict[str, str]:
    """Path → content of every file of a recorded ``topology/``; NUL padding of the recording off."""
    return {
        str(path.relative_to(topology)): path.read_bytes().decode().rstrip("\0")
        for path in sorted(topology.rglob("*"))
        if path.is_file() and path.name != ".captured-as-directory"
    }
