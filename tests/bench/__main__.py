"""`bin/bench`: runs every speed guard and prints what was measured, the floor beside it, and the ratio."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import pytest
from rich.console import Console
from rich.markup import escape
from rich.table import Table

HERE = Path(__file__).resolve().parent


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="bin/bench",
        allow_abbrev=False,
        description="Measure the model and the plugin, and hold each operation to a ratio of a floor "
        "measured in the same run. Exit 0: every guard holds; 1: one broke; 2: usage.",
    )
    parser.add_argument("--json", metavar="FILE", help="also write the rows to FILE")
    parser.add_argument("-k", metavar="WORDS", help="only guards whose name matches, as in pytest")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch, "bench.json")
        options = [
            str(HERE),
            "-o",
            "python_files=bench_*.py",
            "-q",
            "-p",
            "no:xdist",
            f"--benchmark-json={out}",
            "--benchmark-columns=min",
        ]
        status = pytest.main(options + (["-k", args.k] if args.k else []))
        if not out.exists():
            return int(status)
        benchmarks = json.loads(out.read_text())["benchmarks"]
    rows = [{"name": b["name"], **b["extra_info"]} for b in benchmarks if "ratio" in b["extra_info"]]
    if args.json:
        Path(args.json).write_text(json.dumps(rows, indent=2) + "\n")
    table = Table("operation", "measured", "floor", "floor's", "unit", "ratio", "guard", "")
    for row in rows:
        table.add_row(
            escape(row["name"].removeprefix("test_").replace("_", " ")),
            f"{row['seconds'] * row['scale']:.4f}",
            row["floor_name"],
            f"{row['floor'] * row['scale']:.4f}",
            row["unit"],
            f"{row['ratio']:.2f}",
            f"≤ {row['limit']:g}",
            "holds" if row["held"] else "BROKEN",
        )
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
