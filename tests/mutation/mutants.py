"""What is changed in a source file, one place at a time, to see whether a test notices.

Why not mutmut: 3.8 runs here, in a copy of the checkout, but it also changes the words of error messages,
which no test should hold, and it numbers its survivors, so that an explanation is lost when a line moves.
Here the module is compiled from the changed syntax tree: nothing is written to disk, nothing installed.
"""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

_COMPARE: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_BINARY: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}

_CALLED = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True, slots=True)
class Change:
    """One place of a syntax tree that all changes of a file share; made for as long as a ``with`` lasts."""

    root: ast.Module
    node: ast.AST
    field: str
    place: int | None
    """Index, when the field is a list."""
    old: ast.AST
    new: ast.AST

    def __enter__(self) -> None:
        _put(self.node, self.field, self.place, self.new)

    def __exit__(self, *_: object) -> None:
        _put(self.node, self.field, self.place, self.old)


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change."""

    number: int
    line: int
    where: str
    """The function or class it is in, ``Class.method``; empty at the top of the file."""
    was: str
    now: str
    """The statement's first line before and after; it names the change together with `where`."""
    change: Change
    same: int = 1
    """Which of the changes that read alike, from 1."""

    @property
    def tree(self) -> ast.Module:
        """The whole file, changed."""
        with self.change:
            return ast.fix_missing_locations(copy.deepcopy(self.change.root))

    @property
    def key(self) -> str:
        """Name of the change that stays when lines move; no two changes of a file have one."""
        which = f" (number {self.same})" if self.same > 1 else ""
        return f"{self.where or 'top'}{which}: `{self.was}` → `{self.now}`"


def mutants(source: str) -> Iterator[Mutant]:
    """Every change of a file, in the order of its lines."""
    seen = Counter[str]()
    for mutant in _mutants(source):
        seen[mutant.key] += 1
        yield replace(mutant, same=seen[mutant.key])


def _mutants(source: str) -> Iterator[Mutant]:
    root = ast.parse(source)
    number = 0
    for where, statement, hidden in _statements(root):
        was = _shown(statement)
        for node, field, place in _sites(statement, hidden):
            current = getattr(node, field)
            old = current if place is None else current[place]
            for new in _changes(old, node, field):
                change = Change(root, node, field, place, old, new)
                with change:
                    now = _shown(statement)
                if now != was:
                    number += 1
                    yield Mutant(number, getattr(old, "lineno", statement.lineno), where, was, now, change)
        for parent, field, place, new, now in _removals(statement, root, hidden):
            number += 1
            change = Change(root, parent, field, place, statement, new)
            yield Mutant(number, statement.lineno, where, was, now, change)


def _put(node: ast.AST, field: str, place: int | None, value: object) -> None:
    if place is None:
        setattr(node, field, value)
    else:
        getattr(node, field)[place] = value


def _statements(tree: ast.Module) -> Iterator[tuple[str, ast.stmt, bool]]:
    """Statements with the function they are in, and whether they only say what is wrong (raise)."""

    def walk(node: ast.AST, where: str) -> Iterator[tuple[str, ast.stmt, bool]]:
        for child in ast.iter_child_nodes(node):
            inside = where
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inside = f"{where}.{child.name}".lstrip(".")
            if isinstance(child, ast.stmt):
                yield inside, child, isinstance(child, ast.Raise)
            yield from walk(child, inside)

    yield from walk(tree, "")


_SKIPPED = frozenset({"annotation", "returns", "decorator_list", "type_params", "names"})


def _sites(statement: ast.stmt, hidden: bool) -> Iterator[tuple[ast.AST, str, int | None]]:
    """Places of the statement itself: not of statements inside it, no docstrings, no annotations."""
    if isinstance(statement, ast.Import | ast.ImportFrom) or _is_text(statement):
        return

    def walk(node: ast.AST) -> Iterator[tuple[ast.AST, str, int | None]]:
        for field, value in ast.iter_fields(node):
            if field in _SKIPPED:
                continue
            entries = enumerate(value) if isinstance(value, list) else [(None, value)]
            for place, entry in entries:
                if not isinstance(entry, ast.AST) or isinstance(entry, ast.stmt):
                    continue
                if _for_people(entry) or (hidden and isinstance(entry, ast.Constant | ast.JoinedStr)):
                    continue
                yield node, field, place
                yield from walk(entry)

    yield from walk(statement)


def _for_people(entry: ast.AST) -> bool:
    """A text with two blanks or more is words for people, and so is all that is put into it."""
    parts = entry.values if isinstance(entry, ast.JoinedStr) else [entry]
    texts = [part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)]
    return "".join(texts).count(" ") > 1


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _changes(old: ast.AST, node: ast.AST, field: str) -> Iterator[ast.AST]:
    if isinstance(old, ast.cmpop):
        yield from (new() for new in _COMPARE[type(old)])
    elif isinstance(old, ast.operator) and type(old) in _BINARY:
        yield _BINARY[type(old)]()
    elif isinstance(old, ast.boolop):
        yield ast.Or() if isinstance(old, ast.And) else ast.And()
    elif isinstance(old, ast.UnaryOp):
        yield old.operand
    elif isinstance(old, ast.Constant):
        yield from _constants(old.value)
    elif isinstance(old, ast.IfExp):
        yield old.body
        yield old.orelse
    elif isinstance(old, ast.BoolOp):
        yield from old.values
    elif isinstance(old, ast.Name) and field == "func" and old.id in _CALLED:
        yield ast.Name(_CALLED[old.id], old.ctx)
    if (
        field in ("test", "ifs")
        and isinstance(old, ast.expr)
        and not isinstance(old, ast.Compare | ast.UnaryOp)
    ):
        yield ast.UnaryOp(ast.Not(), old)
    if isinstance(node, ast.Return) and field == "value" and not isinstance(old, ast.Constant):
        yield ast.Constant(None)


def _constants(value: object) -> Iterator[ast.Constant]:
    if isinstance(value, bool):
        yield ast.Constant(not value)
    elif isinstance(value, int):
        yield ast.Constant(value + 1)
        if value > 0:
            yield ast.Constant(value - 1)
    elif isinstance(value, str):
        yield ast.Constant(value[1:] if value else "x")
    elif isinstance(value, bytes):
        yield ast.Constant(value[1:] if value else b"x")


def _removals(
    statement: ast.stmt, tree: ast.Module, hidden: bool
) -> Iterator[tuple[ast.AST, str, int, ast.stmt, str]]:
    """The statement left out, where something is left to run."""
    plain = isinstance(statement, ast.Expr | ast.AugAssign | ast.Delete) and not _is_text(statement)
    jumps = isinstance(statement, ast.Break | ast.Continue)
    if not plain and not jumps and not hidden:
        return
    for parent in ast.walk(tree):
        for field in ("body", "orelse", "finalbody"):
            body = getattr(parent, field, None)
            if isinstance(body, list) and any(one is statement for one in body):
                place = next(i for i, one in enumerate(body) if one is statement)
                yield parent, field, place, ast.Pass(), "pass"


def _shown(statement: ast.stmt) -> str:
    """The statement without what is inside it: one line."""
    text = ast.unparse(statement)
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.For | ast.While):
        text = text[: text.index(":\n")] if ":\n" in text else text
    lines = text.splitlines()
    return lines[0] if lines else ""
