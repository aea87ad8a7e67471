"""YAML read as nodes that still know their line, and a few scalars written back safely.

A fixture is edited by hand, so the usual YAML traps are closed here: plain scalars stay text until somebody
asks for a number (``6.10`` is no float, ``0000:05:00.0`` no sexagesimal number, ``no`` no boolean), a key may
stand once, tags are refused. `gpusim.fixture` decodes what this hands out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import yaml

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Six times as fast where PyYAML was built with libyaml; both compose the same nodes."""
_PLAIN_TAGS = frozenset(
    f"tag:yaml.org,2002:{name}"
    for name in ("str", "int", "float", "bool", "null", "timestamp", "merge", "value")
)
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_INTEGER = re.compile(r"[-+]?(0x[0-9a-fA-F]+|0|[1-9][0-9]*)")
_LONGEST = 40
"""Characters of a number that anything may be; Python itself refuses to read beyond 4300 digits."""
_SAFE_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./+-]*")
_WORDS_WITH_MEANING = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})


class BadYaml(ValueError):  # noqa: N818 - inside the reader only
    """The text is no document we read: the line (from 1, or None) and why."""

    def __init__(self, why: str, line: int | None = None) -> None:
        super().__init__(why)
        self.why = why
        self.line = line


@dataclass(frozen=True, slots=True)
class Scalar:
    """One value as written; `plain` tells whether it stood without quotes."""

    text: str
    plain: bool
    line: int

    @property
    def null(self) -> bool:
        """Whether nothing, ``~`` or ``null`` was written."""
        return self.plain and self.text in _NULLS

    def integer(self) -> int | None:
        """The number, when the scalar is a plain decimal or 0x hexadecimal one and of a sane length."""
        if not self.plain or len(self.text) > _LONGEST or not _INTEGER.fullmatch(self.text):
            return None
        return int(self.text, 16 if "0x" in self.text else 10)


@dataclass(frozen=True, slots=True)
class Items:
    """A sequence."""

    items: tuple[Node, ...]
    line: int


@dataclass(frozen=True, slots=True)
class Fields:
    """A mapping; keys are scalars, each stands once, in the order written."""

    fields: Mapping[str, Node]
    keys: Mapping[str, Scalar]
    line: int


Node = Scalar | Items | Fields


def parse(text: str) -> Node:
    """The one document in `text`.

    Raises:
        BadYaml: broken syntax, several documents, a repeated key, a tag, nesting without end.
    """
    try:
        root = yaml.compose(text, Loader=_LOADER)
        if root is None:
            raise BadYaml("the document is empty")
        return _Reader().node(root)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise BadYaml(
            f"not YAML: {error.problem or error.context}", mark.line + 1 if mark else None
        ) from error
    except yaml.YAMLError as error:
        raise BadYaml(f"not YAML: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise BadYaml("nested too deeply") from error
    except UnicodeEncodeError as error:
        raise BadYaml("not YAML: half a surrogate pair is no character") from error


class _Reader:
    """One pass over the composed document; what an alias names is converted once, however often."""

    def __init__(self) -> None:
        self.done: dict[int, Node] = {}
        self.open: set[int] = set()

    def node(self, node: yaml.Node) -> Node:
        found = self.done.get(id(node))
        if found is not None:
            return found
        line = node.start_mark.line + 1
        if isinstance(node, yaml.ScalarNode):
            if node.tag not in _PLAIN_TAGS:
                raise BadYaml(f"tags such as {node.tag} are not read", line)
            return Scalar(node.value, plain=not node.style, line=line)
        if id(node) in self.open:
            raise BadYaml("an alias points into itself", line)
        self.open.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            made: Node = Items(tuple(self.node(item) for item in node.value), line)
        else:
            made = self.fields(node, line)
        self.open.discard(id(node))
        self.done[id(node)] = made
        return made

    def fields(self, node: yaml.Node, line: int) -> Fields:
        fields: dict[str, Node] = {}
        keys: dict[str, Scalar] = {}
        for key_node, value in node.value:
            key = self.node(key_node)
            if not isinstance(key, Scalar):
                raise BadYaml("a key must be a single word or number", key.line)
            if key.text in fields:
                raise BadYaml(f"the key {key.text!r} stands twice", key.line)
            fields[key.text], keys[key.text] = self.node(value), key
        return Fields(fields, keys, line)


def describe(node: Node) -> str:
    """What stands there, in a few words, for a refusal."""
    if isinstance(node, Items):
        return f"a list of {len(node.items)}"
    if isinstance(node, Fields):
        return f"a mapping with {', '.join(list(node.fields)[:4]) or 'no keys'}"
    if node.null:
        return "nothing"
    shown = node.text if len(node.text) <= 60 else node.text[:57] + "…"
    return repr(shown) if not node.plain or not shown.isprintable() else shown


def quoted(text: str) -> str:
    """`text` as a YAML scalar that every YAML reader takes for a string."""
    if _SAFE_PLAIN.fullmatch(text) and text.lower() not in _WORDS_WITH_MEANING:
        return text
    return '"' + "".join(_escaped(character) for character in text) + '"'


def _escaped(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    if character == " " or (character.isprintable() and ord(character) < 0xFFFE):
        return character
    code = ord(character)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def flow(items: Sequence[str]) -> str:
    """A flow list of already written scalars."""
    return f"[{', '.join(items)}]"
