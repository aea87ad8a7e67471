"""A configuration file that people write, read: YAML to typed values, with one error for all that is wrong.

These files have other readers, too, so keys nobody here knows are passed over (ascend_ppu_hami.md A.2, C.2).
A key that stands twice is refused, and every error names its place: ``$.nodes[0].name: expected `str`, got
`int```.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import yaml

from devplugin.host import words
from devplugin.settings import shown

T = TypeVar("T")

LONGEST = 1 << 20
"""Bytes of a file: a ConfigMap holds no more."""
MOST_SHARES = 4096
"""Of one card: every share of every card stands in each ListAndWatch list, and gRPC takes 4 MiB a message."""
INT32_MAX = (1 << 31) - 1
"""Of `devmem` and `devcore` in a registration (ascend_ppu_hami.md D.2)."""
RESOURCE = re.compile(
    r"(?=[^/]{1,253}/)[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*"
    r"/[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
)
"""Name of an extended resource, matched as a whole."""

_MERGE = "tag:yaml.org,2002:merge"
_PLACED = re.compile(r"(.*) - at (.*)")
_WHATEVER = (yaml.YAMLError, ValueError, TypeError, AttributeError, RecursionError, OverflowError)
"""What PyYAML lets out beside its own errors: ValueError of a date in month 13, for example."""


class ConfigError(Exception):
    """The file cannot be used. One line: the place in it and why."""


class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Plain YAML in which no key stands twice: PyYAML would take the last and say nothing."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        """A mapping."""
        seen = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
                continue
            if (key.tag, key.value) in seen:
                text = f"the key {shown(key.value)} stands twice"
                raise yaml.constructor.ConstructorError(None, None, text, key.start_mark)
            seen.add((key.tag, key.value))
        return super().construct_mapping(node, deep)


def read(data: bytes, kind: type[T]) -> T:
    """The document as `kind`, a `msgspec.Struct`.

    Raises:
        ConfigError: no YAML, or not of that shape.
    """
    if len(data) > LONGEST:
        raise ConfigError(f"{len(data)} bytes, at most {LONGEST} are read")
    try:
        document = yaml.load(data, Loader=Loader)  # noqa: S506  a SafeLoader, see above
    except _WHATEVER as error:
        raise ConfigError(f"no YAML: {_line(error)}") from error
    try:
        return msgspec.convert({} if document is None else document, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        text = " ".join(str(error).split())
        placed = _PLACED.fullmatch(text)
        place, why = (placed[2].replace("`", ""), placed[1]) if placed else ("$", text)
        text = f"{place}: {why[:1].lower()}{why[1:]}"
        raise ConfigError(text.encode("ascii", "backslashreplace").decode()) from error


def load(get: Callable[[str], bytes], path: str, parse: Callable[[bytes], T]) -> T:
    """The configuration at a path.

    Args:
        get: reads a file; raises OSError.
        path: where.
        parse: makes of its bytes what it says; raises ConfigError.

    Raises:
        ConfigError: it cannot be read or used; the text begins with the path.
    """
    try:
        return parse(get(path))
    except (OSError, ConfigError) as error:
        told = words(error) if isinstance(error, OSError) else str(error)
        raise ConfigError(f"{shown(path, 200)}: {told}") from error


def _line(error: Exception) -> str:
    """An error of several lines as one, printable and bounded (decision 25)."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem:
        mark = error.problem_mark
        where = f"line {mark.line + 1}: " if mark else ""
        return where + shown(error.problem, 200).strip("'\"")
    return shown(" ".join(str(error).split()) or type(error).__name__, 200).strip("'\"")
