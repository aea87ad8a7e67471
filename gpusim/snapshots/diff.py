"""Where two nodes differ: names on one side, changed lines, and what is not taken literally.

A path is compared wherever both sides lead to it (`walk`). Identifiers may differ as long
as one renaming explains all of them (`Renaming`); counters are told apart by `tables`.
"""

from __future__ import annotations

import difflib
import errno
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

from gpusim.nodes import Kind
from gpusim.snapshots import identifiers, tables
from gpusim.snapshots.sources import Source
from gpusim.snapshots.tables import Rule
from gpusim.snapshots.walk import Leaf, Lookup, Walk

_LINE = re.compile(r"(\S+)[ =](\S.*|)")


class State(Enum):
    """How one path compares."""

    EQUAL = "equal"
    RENAMED = "renamed"
    IGNORED = "ignored"
    CHANGED = "changed"
    ONLY_A = "only in A"
    ONLY_B = "only in B"


@dataclass(frozen=True, slots=True)
class Change:
    """One line that differs; a side without it has None."""

    field: str
    a: str | None
    b: str | None


@dataclass(frozen=True, slots=True)
class Finding:
    """One path."""

    path: str
    state: State
    reason: str = ""
    changes: tuple[Change, ...] = ()
    top: str = ""
    """Of a path on one side: the highest directory above it that the other side lacks, or the path itself."""


@dataclass(slots=True)
class Renaming:
    """A bijection between the identifiers of A and of B, grown as they are met; 0 stays 0."""

    forth: dict[object, object] = field(default_factory=dict)
    back: dict[object, object] = field(default_factory=dict)

    def same(self, a: object, b: object) -> bool:
        """Whether `a` may be called `b`: neither has another partner."""
        if a == 0 or b == 0:
            return a == b
        return self.forth.setdefault(a, b) == b and self.back.setdefault(b, a) == a


def compare(
    a: Source,
    b: Source,
    *,
    ignore: Sequence[Rule] = tables.COUNTERS,
    only: Sequence[str] = (),
    one_way: bool = False,
) -> Iterator[Finding]:
    """Every path of A, then those B alone has.

    Args:
        a: one node.
        b: the other.
        ignore: what is not compared.
        only: globs of the places to look at; empty: all.
        one_way: leave out what only B has.
    """
    left = Walk(a, only)
    right: Walk = Lookup(b) if one_way else Walk(b, only)
    names, seen = Renaming(), set[str]()
    for at, leaf in left.leaves.items():
        other = right.find(at)
        if other is None:
            yield _one_side(at, right, State.ONLY_A, tuple(ignore))
            continue
        seen |= {at, right.real(other)}
        yield _both(at, (left, leaf), (right, other), names, tuple(ignore))
    for at, leaf in right.leaves.items():
        if at in seen or right.real(leaf) in seen:
            continue
        if (other := left.find(at)) is None:
            yield _one_side(at, left, State.ONLY_B, tuple(ignore))
        elif other.kind is not Kind.DIRECTORY:
            yield _both(at, (left, other), (right, leaf), names, tuple(ignore))


def _one_side(at: str, other: Walk, state: State, ignore: tuple[Rule, ...]) -> Finding:
    if reason := tables.reason(ignore, at, absent=True):
        return Finding(at, State.IGNORED, reason)
    top = at
    while (above := top.rpartition("/")[0]) and other.find(above) is None:
        top = above
    return Finding(at, state, top=top)


Side = tuple[Walk, Leaf]


def _both(at: str, a: Side, b: Side, names: Renaming, ignore: tuple[Rule, ...]) -> Finding:
    kinds = a[1].kind, b[1].kind
    if Kind.DIRECTORY in kinds:
        # A recorder keeps a directory where there is a link to one, or only its name.
        fine = all(kind in (Kind.DIRECTORY, Kind.LINK) for kind in kinds)
        change = Change("", kinds[0].value, kinds[1].value)
        return Finding(at, State.EQUAL) if fine else Finding(at, State.CHANGED, changes=(change,))
    if Kind.LINK in kinds and kinds[0] is kinds[1]:
        return _links(at, a, b, ignore)
    linked = Kind.LINK in kinds and Kind.FILE in kinds and _link_as_file(a, b)
    # Device nodes become plain files in a rendered tree.
    if linked or Kind.CHARACTER in kinds or Kind.OTHER in kinds:
        return Finding(at, State.EQUAL)
    return _files(at, a[0].content(a[1]), b[0].content(b[1]), names, ignore)


Content = bytes | OSError


def _files(at: str, ours: Content, theirs: Content, names: Renaming, ignore: tuple[Rule, ...]) -> Finding:
    if _same(ours, theirs):
        if isinstance(ours, bytes):
            _note_equal(at, ours, names)
        return Finding(at, State.EQUAL)
    if reason := tables.reason(ignore, at):
        return Finding(at, State.IGNORED, reason)
    if isinstance(ours, OSError) or isinstance(theirs, OSError):
        return Finding(at, State.CHANGED, changes=(Change("", _shown(ours), _shown(theirs)),))
    return _texts(at, ours.decode("utf-8", "replace"), theirs.decode("utf-8", "replace"), names, ignore)


def _same(ours: Content, theirs: Content) -> bool:
    if isinstance(ours, OSError) and isinstance(theirs, OSError):
        return ours.errno == theirs.errno
    return not isinstance(ours, OSError) and ours == theirs


def _shown(content: Content) -> str:
    if isinstance(content, OSError):
        return errno.errorcode.get(content.errno or 0, "error")
    text = content.decode("utf-8", "replace").strip()
    return text if len(text) <= 60 else text[:57] + "..."


def _links(at: str, a: Side, b: Side, ignore: tuple[Rule, ...]) -> Finding:
    ends = [walk.source.readlink(leaf.path) for walk, leaf in (a, b)]
    if ends[0] == ends[1] or _last(ends[0]) == _last(ends[1]):
        return Finding(at, State.EQUAL)
    if reason := tables.reason(ignore, at):
        return Finding(at, State.IGNORED, reason)
    return Finding(at, State.CHANGED, changes=(Change("", *ends),))


def _link_as_file(a: Side, b: Side) -> bool:
    """Whether a recorder kept a link as a file that holds its target (mi300a-4apu-spx: controlD64)."""
    link, text = (a, b) if a[1].kind is Kind.LINK else (b, a)
    return text[0].content(text[1]) == link[0].source.readlink(link[1].path).encode()


def _last(target: str) -> str:
    return re.sub(r"hwmon\d+$", "hwmon*", target.rstrip("/").rpartition("/")[2])


def _identifier(at: str, name: str, text: str) -> tuple[str, object] | None:
    """What a text names, when it is an identifier: decimal in KFD and hexadecimal in PCI are one number."""
    what = name or at.rpartition("/")[2]
    base = (tables.IDENTIFIER_FIELDS if name else tables.IDENTIFIER_FILES).get(what)
    if base is None:
        return None
    try:
        value = int(text, base) if base else text
    except ValueError:
        return what, text
    small = isinstance(value, int) and value < identifiers.SMALLEST and what != "gpu_id"
    return None if small else (what, value)


def _pairs(text: str) -> list[tuple[str, str]] | None:
    """Lines of ``name value`` or ``NAME=value``; None: it is something else."""
    matches = [_LINE.fullmatch(line) for line in text.splitlines()]
    if not matches or not all(matches):
        return None
    pairs = [(match[1], match[2]) for match in matches if match]
    return pairs if len({name for name, _ in pairs}) == len(pairs) else None


def _note_equal(at: str, data: bytes, names: Renaming) -> None:
    """Identifiers that are equal are partners of themselves."""
    last = at.rpartition("/")[2]
    if last not in ("properties", *tables.IDENTIFIER_FILES):
        return
    text = data.decode("utf-8", "replace")
    for name, value in _pairs(text) or [] if last == "properties" else [("", text.strip())]:
        if (found := _identifier(at, name, value)) is not None:
            names.same(found[1], found[1])


def _texts(at: str, ours: str, theirs: str, names: Renaming, ignore: tuple[Rule, ...]) -> Finding:
    whole = [_identifier(at, "", text.strip()) for text in (ours, theirs)]
    if whole[0] is not None and whole[1] is not None:
        if names.same(whole[0][1], whole[1][1]):
            return Finding(at, State.RENAMED, f"another {whole[0][0]}")
        return Finding(at, State.CHANGED, changes=(Change("", ours.strip(), theirs.strip()),))
    a, b = _pairs(ours), _pairs(theirs)
    changes = _lines(ours, theirs) if a is None or b is None else _fields(dict(a), dict(b))
    renamed, ignored, left = set[str](), set[str](), []
    for change in changes:
        if reason := tables.reason(ignore, at, change.field):
            ignored.add(reason)
        elif change.a is not None and change.b is not None and _may_rename(at, change, names):
            renamed.add(change.field)
        else:
            left.append(change)
    if left:
        return Finding(at, State.CHANGED, changes=tuple(left))
    if ignored:
        return Finding(at, State.IGNORED, ", ".join(sorted(ignored)))
    if renamed:
        return Finding(at, State.RENAMED, f"another {', '.join(sorted(renamed))}")
    return Finding(at, State.CHANGED, changes=(Change("", "blanks or order", "blanks or order"),))


def _may_rename(at: str, change: Change, names: Renaming) -> bool:
    a, b = (_identifier(at, change.field, text or "") for text in (change.a, change.b))
    return a is not None and b is not None and names.same(a[1], b[1])


def _fields(a: dict[str, str], b: dict[str, str]) -> list[Change]:
    return [
        Change(name, a.get(name), b.get(name))
        for name in dict.fromkeys([*a, *b])
        if a.get(name) != b.get(name)
    ]


def _lines(ours: str, theirs: str) -> list[Change]:
    a, b = ours.splitlines(), theirs.splitlines()
    found = []
    for tag, i, j, k, n in difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        for at in range(max(j - i, n - k)):
            left = a[i + at] if i + at < j else None
            right = b[k + at] if k + at < n else None
            found.append(Change("", left, right))
    return found
