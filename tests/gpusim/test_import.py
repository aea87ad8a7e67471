"""`import gpusim` is nearly free: names come from their modules when they are asked for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout.strip()


def test_importing_the_package_loads_none_of_its_modules() -> None:
    assert run("import sys, gpusim; print([m for m in sys.modules if m.startswith('gpusim.')])") == "[]"


def test_every_public_name_is_there_when_asked_for() -> None:
    wrong = run(
        "import gpusim\n"
        "print([n for n in gpusim.__all__ if not getattr(gpusim, n).__module__.startswith('gpusim.')])"
    )
    assert wrong == "[]"


def test_a_name_it_does_not_have_is_an_attribute_error() -> None:
    code = "import gpusim\ntry: gpusim.nonsense\nexcept AttributeError as error: print(error)"
    assert run(code) == "module 'gpusim' has no attribute 'nonsense'"


def test_the_machine_and_its_socket_need_the_standard_library_only() -> None:
    code = (
        "import sys; before = set(sys.modules)\n"
        "import gpusim.machine, gpusim.serve, gpusim.remote\n"
        "tops = {m.partition('.')[0] for m in set(sys.modules) - before} - set(sys.stdlib_module_names)\n"
        "print(sorted(tops))"
    )
    assert run(code) == "['gpusim']"
