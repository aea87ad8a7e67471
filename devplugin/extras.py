"""What a program says when the extra that it needs is not installed.

The wheel without extras, and the one with ``sim``, bring the console scripts too: a dry run works there, and
what serves must not answer with a traceback.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import ParamSpec

P = ParamSpec("P")

MODULES = frozenset(
    (
        "elftools",
        "google",
        "grpc",
        "inotify_simple",
        "kubernetes",
        "msgspec",
        "prometheus_client",
        "structlog",
        "yaml",
    )
)
"""Top-level modules of the extra ``daemon`` (pyproject.toml)."""


def daemon(program: Callable[P, int]) -> Callable[P, int]:
    """A console script that names the extra when one of its modules is absent, and returns 1."""

    @functools.wraps(program)
    def run(*args: P.args, **kwargs: P.kwargs) -> int:
        try:
            return program(*args, **kwargs)
        except ModuleNotFoundError as error:
            absent = (error.name or "").partition(".")[0]
            if absent not in MODULES:
                raise
            name = program.__name__.replace("_", "-")
            sys.stderr.write(f"{name}: this needs {absent}: pip install 'gpusim[daemon]'\n")
            return 1

    return run
