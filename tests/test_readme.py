"""README's Python runs as printed: a statement whose comment names an OSError raises just that one."""

from __future__ import annotations

import ast
import errno
import io
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from devplugin.ascend import flags
from devplugin.ascend.vendor import Ascend
from devplugin.launch import main
from devplugin.ppu.vendor import Ppu
from devplugin.settings import GoParser

README = Path(__file__).resolve().parent.parent / "README.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)
PROMISE = re.compile(r"#.*OSError\((\w+)\)")


def test_every_statement_of_readme_does_what_its_comment_says() -> None:
    names: dict[str, Any] = {}
    raised = 0
    for block in BLOCKS:
        lines = block.splitlines()
        for statement in ast.parse(block).body:
            code = compile(ast.Module([statement], []), "README.md", "exec")
            promised = PROMISE.search(lines[(statement.end_lineno or 1) - 1])
            try:
                exec(code, names)
            except OSError as error:
                assert promised, f"{ast.unparse(statement)} raised {error}"
                assert errno.errorcode[error.errno or 0] == promised[1]
                raised += 1
            else:
                assert not promised, f"{ast.unparse(statement)} raised nothing"
    assert raised >= 2
    assert "vendor" in names, "the plugin's part was run too"


def test_every_document_readme_links_to_is_there() -> None:
    links = re.findall(r"\]\(([\w./-]+)\)", README.read_text())
    assert links
    assert [link for link in links if not (README.parent / link).exists()] == []


def test_the_ascend_example_prints_what_the_page_says() -> None:
    (line,) = [line for line in README.read_text().splitlines() if "ascend/910b4 -dry_run" in line]
    program, *words = line.split()
    assert os.access(README.parent / program, os.X_OK)
    out = io.StringIO()
    here = [str(README.parent / word) if word.startswith("deploy/") else word for word in words]
    assert main(Ascend(), here, env={}, out=out) == 0
    said = json.loads(out.getvalue())
    (resource,) = said["resources"]
    assert (said["vendor"], said["mode"], said["chip"], resource) == (
        *("ascend", "template", "Ascend910B4"),
        "huawei.com/Ascend910B4",
    )
    assert len(said["resources"][resource]) == 4 * len(said["registration"]) == 32
    page = README.read_text()
    assert [key for key in said if f"`{key}`" not in page] == []


@pytest.mark.parametrize(
    ("vendor", "begin", "end"),
    [(Ascend(), "### Ascend nodes", "## Inside"), (Ppu(), "### PPU nodes", "### Ascend nodes")],
    ids=["ascend", "ppu"],
)
def test_the_table_of_a_vendors_flags_is_the_parsers(vendor: Any, begin: str, end: str) -> None:
    parser = GoParser("device-plugin", "")
    vendor.add_flags(parser)
    known = {f"-{action.dest}": action.default for action in parser._actions if action.dest != "help"}
    page = README.read_text()
    section = page[page.index(begin) : page.index(end)]
    told = {}
    for names, default in re.findall(r"^\| (.+?) \| (.+?) \| .+ \|$", section, re.MULTILINE):
        told.update(dict.fromkeys(re.findall(r"`(-[\w-]+)`", names), default.strip("`")))
    klog = {f"-{name}" for name, _, _ in flags.KLOG}
    assert told == {name: spelled(default) for name, default in known.items() if name not in klog}


def spelled(default: object) -> str:
    """A default as the tables show it."""
    if isinstance(default, float):
        return f"{default:g}"
    return str(default).lower() if isinstance(default, bool) else str(default) or "empty"
