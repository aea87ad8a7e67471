"""The table of cases names tests that exist."""

from __future__ import annotations

import re

from .conftest import ROOT

TABLE = ROOT / "tests" / "cases.md"


def test_every_test_that_the_table_names_is_there() -> None:
    sources: dict[str, str] = {}
    for path in (ROOT / "tests").rglob("test_*.py"):
        sources[path.name] = sources.get(path.name, "") + path.read_text()
    missing = []
    for line in TABLE.read_text().splitlines():
        file = ""
        for name in re.findall(r"`([^`]*)`", line):
            where, _, test = name.partition("::")
            if where.endswith(".py"):
                file = where.rpartition("/")[2]
                if file not in sources:
                    missing.append(name)
            elif where != "…":
                continue
            if test and f"def {test}(" not in sources.get(file, ""):
                missing.append(name)
    assert missing == [], missing


def test_every_row_is_held_by_a_test_or_says_why_not() -> None:
    rows = [
        line.split("|")
        for line in TABLE.read_text().splitlines()
        if line.startswith("|") and "---" not in line
    ]
    for _, _, test, overruled, _ in (row for row in rows if row[1].strip() != "case"):
        assert "test" in test or overruled.strip(), (test, overruled)
