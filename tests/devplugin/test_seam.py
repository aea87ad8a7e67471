"""Only `linux.py` touches the operating system (design.md, rule 1); import-linter cannot see `open`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..conftest import ROOT

PACKAGE = ROOT / "devplugin"

IO_MODULES = frozenset(
    [
        "os",
        "subprocess",
        "pathlib",
        "shutil",
        "tempfile",
        "socket",
        "glob",
        "fcntl",
        "mmap",
        "fileinput",
        "io",
    ]
)
IO_NAMES = frozenset(["open", "exec", "eval", "input", "__import__"])

ALLOWED = {
    "linux.py": IO_MODULES,
    "launch.py": frozenset({"os"}),
    "stdout.py": frozenset({"os"}),
    "kube.py": frozenset({"pathlib"}),
    "scrape.py": frozenset({"socket"}),
    "libc.py": frozenset({"io"}),
    "kubelet/directory.py": frozenset({"os", "pathlib", "socket"}),
}
"""The real end; the environment of a console script; where a console script prints; the kubeconfig; the
port that Prometheus scrapes; the directory of kubelet's and our sockets."""

ONLY = {"launch.py": {"environ"}, "stdout.py": {"dup2", "open", "devnull", "O_WRONLY"}}
"""Where of `os` only these names may be used."""


def modules() -> Iterator[Path]:
    for path in sorted(PACKAGE.rglob("*.py")):
        if "kubeletapi" not in path.parts:
            yield path


def offences(source: str, allowed: frozenset[str] = frozenset()) -> list[str]:
    """What a module imports or calls that does input or output of its own."""
    found = []
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        found += [f"line {node.lineno}: import {n}" for n in names if n.split(".")[0] in IO_MODULES - allowed]
        if isinstance(node, ast.Name) and node.id in IO_NAMES:
            found.append(f"line {node.lineno}: {node.id}")
    return found


@pytest.mark.parametrize("path", list(modules()), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_file_but_linux_touches_the_operating_system(path: Path) -> None:
    name = str(path.relative_to(PACKAGE))
    source = path.read_text()
    assert offences(source, ALLOWED.get(name, frozenset())) == []
    used = {
        node.attr
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os"
    }
    assert name not in ONLY or used <= ONLY[name]


@pytest.mark.parametrize(
    "source",
    [
        "import os",
        "import os.path as p",
        "from os import path",
        "def f():\n    import subprocess",
        "from pathlib import Path",
        "open('/sys/class/kfd')",
        "x = [open(p) for p in ()]",
        "read = open",
        "__import__('os')",
    ],
)
def test_the_check_sees_what_it_is_for(source: str) -> None:
    assert offences(source) != []


def test_every_exemption_is_still_needed() -> None:
    assert [name for name in ALLOWED if not offences((PACKAGE / name).read_text())] == []
