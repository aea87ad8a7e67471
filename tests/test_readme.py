"""README's Python runs as printed: a statement whose comment names an OSError raises just that one."""

from __future__ import annotations

import ast
import errno
import re
from pathlib import Path
from typing import Any

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
