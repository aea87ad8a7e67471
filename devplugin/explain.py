"""Where every setting comes from: the `settings` of a dry run.

An operator who changed a chart's value wants to see that it arrived, and what overruled it when it did not.
Every flag is there with the value in force; what comes from elsewhere (environment, configuration files, node
annotations) the vendor adds. Flags that only say where to look, or what this run is to do, are left out, so
that two nodes configured alike print the same.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

DEFAULT = "default"
FLAG = "flag"

_ERRANDS = frozenset(
    {
        *("help", "version", "root", "simulate", "kubelet_dir", "dry_run", "check", "cleanup", "json"),
        *("expect", "update", "junit", "install_hook"),
    }
)


@dataclass(frozen=True, slots=True)
class Choice:
    """One setting: the value in force, and what decided it."""

    value: Any
    """JSON-able."""
    source: str
    """``default``, ``flag``, ``environment NAME``, ``annotation KEY``, ``file PATH``."""


def environment(name: str, value: Any, given: Mapping[str, str], default: str = DEFAULT) -> Choice:
    """A choice that an environment variable makes, when it is set to something."""
    return Choice(value, f"environment {name}" if given.get(name) else default)


def choices(
    parser: argparse.ArgumentParser, args: argparse.Namespace, others: Mapping[str, Choice]
) -> Mapping[str, Choice]:
    """Every setting by its name, sorted: the flags, and over them what the vendor adds."""
    flags = {
        name: Choice(getattr(args, name), FLAG if name in args.explicit else DEFAULT)
        for name in _flags(parser)
        if name not in _ERRANDS
    }
    return dict(sorted({**flags, **others}.items()))


def shown(settings: Mapping[str, Choice]) -> Mapping[str, Mapping[str, Any]]:
    """As it stands in the dry run's object."""
    return {name: {"value": one.value, "source": one.source} for name, one in settings.items()}


def _flags(parser: argparse.ArgumentParser) -> Iterable[str]:
    return (action.dest for action in parser._actions)  # argparse has no public list of them
