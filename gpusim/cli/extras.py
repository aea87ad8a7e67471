"""What the command says when the extra that a subcommand needs is not installed.

The wheel without extras is what a test environment of others has (the pytest plugin loads there); its console
script is there, too, and must not answer with a traceback.
"""

from __future__ import annotations

_EXTRAS = {
    "yaml": "sim",
    "msgspec": "sim",
    "rich": "sim",
    "grpc": "daemon",
    "google": "daemon",
    "kubernetes": "daemon",
}
"""Top-level module → the extra that brings it (pyproject.toml)."""


def remedy(error: ModuleNotFoundError) -> str | None:
    """What to install, as one line; None: it is no module of an extra, so a mistake of ours."""
    absent = (error.name or "").partition(".")[0]
    extra = _EXTRAS.get(absent)
    return None if extra is None else f"gpusim: this needs {absent}: pip install 'gpusim[{extra}]'"
