"""README's table of flags against the vendor guide's rows (guide_amd.yaml) and the plugin's own parser."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from devplugin.amd import flags
from devplugin.settings import GoParser, add_common_flags

TESTS = Path(__file__).parent
README = TESTS.parent / "README.md"
GUIDE: list[dict[str, Any]] = yaml.safe_load((TESTS / "guide_amd.yaml").read_text())
HEAD = "| chart value | chart default | flag or variable | default | meaning | test |"


@dataclass(frozen=True)
class Row:
    """One line of the table; a cell of several names has as many defaults."""

    values: dict[str, str]
    """Chart value → its default."""
    options: dict[str, str]
    """``-flag`` or variable → its default."""
    meaning: str
    test: str


def pairs(names: str, defaults: str) -> dict[str, str]:
    found = re.findall(r"`([^`]+)`", names)
    told = [cell.strip("` ") for cell in defaults.split(",")]
    if len(found) == 1:
        told = [defaults.strip("` ")]
    assert len(found) in (0, len(told)), (names, defaults)
    return dict(zip(found, told, strict=False))


def table() -> list[Row]:
    lines = README.read_text().split(HEAD + "\n")[1].split("\n\n")[0].splitlines()[1:]
    rows = []
    for line in lines:
        value, chart, option, default, meaning, test = (
            cell.strip() for cell in line.strip("| ").split(" | ")
        )
        rows.append(Row(pairs(value, chart), pairs(option, default), meaning, test.strip("`")))
    return rows


ROWS = table()
VALUES = {name: default for row in ROWS for name, default in row.values.items()}
OPTIONS = {name: default for row in ROWS for name, default in row.options.items()}


def parsed() -> dict[str, str]:
    parser = GoParser("amd-device-plugin", "")
    add_common_flags(parser)
    flags.add_flags(parser)
    found = vars(parser.parse_args([]))
    return {f"-{name}": shown(default) for name, default in found.items() if name != "explicit"}


def shown(default: object) -> str:
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, float) and default.is_integer():
        return str(int(default))
    return "empty" if default in (None, "") else str(default)


def test_the_table_has_every_flag_the_parser_takes_with_its_default_and_no_other() -> None:
    assert {name: default for name, default in OPTIONS.items() if name.startswith("-")} == parsed()


@pytest.mark.parametrize("row", GUIDE, ids=lambda row: ",".join(row["values"] or row["flags"]))
def test_every_row_of_the_guide_is_there_with_its_chart_default(row: dict[str, Any]) -> None:
    for value, default in zip(row["values"], row["defaults"], strict=True):
        assert VALUES[value] == default
    for flag in row.get("flags", ()):
        assert f"-{flag}" in OPTIONS
    for variable in row.get("env", ()):
        assert variable in OPTIONS


def test_what_the_guide_does_not_have_is_marked_as_ours() -> None:
    guides = {value for row in GUIDE for value in row["values"]}
    guides |= {f"-{flag}" for row in GUIDE for flag in row.get("flags", ())}
    ours = {name.lstrip("-") for row in GUIDE for name in row.get("ours", ())}
    marked = set(re.findall(r"`-?([^` ]+)` \(ours\)", README.read_text()))
    assert marked == ours
    assert {value for value in VALUES if value not in guides} == {
        name for name in marked if name.startswith("dp.")
    }


def test_every_variable_is_explained_by_help() -> None:
    parser = GoParser("amd-device-plugin", "")
    flags.add_flags(parser)
    help_text = parser.format_help()
    for name in OPTIONS:
        if not name.startswith("-") and name != "KUBECONFIG":  # the API client's own
            assert name in help_text, name


@pytest.mark.parametrize("row", ROWS, ids=lambda row: ",".join([*row.values, *row.options]))
def test_the_test_that_holds_a_row_exists(row: Row) -> None:
    file, name = row.test.split("::")
    assert re.search(rf"^def {name}\(", (TESTS / file).read_text(), re.MULTILINE)
    assert row.meaning
