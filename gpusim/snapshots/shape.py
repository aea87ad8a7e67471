"""What a pack may hold: the check that everything read from one has passed.

Names that would lead out of a directory, nodes of no known form, impossible modes, numbers, targets and
errnos are refused here, once, so that nobody behind needs to look again. The forms are told in `pack`.
"""

from __future__ import annotations

import errno
from typing import Any

from gpusim.errors import GpusimError


class PackError(GpusimError):
    """No pack, a damaged one, or one of a newer version."""


MAX_DEPTH = 128
"""Directories below each other in a capture; sysfs has about thirty. What is deeper is no node's tree, and
would exhaust the stack of whoever walks it."""

_SHAPES: dict[str, tuple[type, ...]] = {
    "f": (int, str),
    "e": (int, str),
    "d": (int, str),
    "l": (str,),
    "c": (int, int, int),
    "o": (int,),
}


def checked(tree: dict[str, Any]) -> None:
    """Refuse names that would lead out of a directory, nodes of no known form, and trees beyond `MAX_DEPTH`.

    Raises:
        PackError: which and why.
    """
    good: set[str] = set()
    todo: list[tuple[int, dict[str, Any]]] = [(0, tree)]
    while todo:
        depth, directory = todo.pop()
        if depth > MAX_DEPTH:
            raise too_deep("the tree")
        for name, node in directory.items():
            if name not in good:
                if name == "/":
                    _check_mode(node)
                    continue
                _check_name(name)
                good.add(name)
            kind = type(node)
            if kind is str:
                if not node.isascii():
                    _bytes(node)
                continue
            if kind is dict:
                todo.append((depth + 1, node))
            else:
                _check_list(name, node)


def check_depth(path: str) -> None:
    """Refuse a directory that lies deeper than `MAX_DEPTH`, before anybody looks into it.

    Raises:
        PackError: with the start of the path.
    """
    if path.count("/") > MAX_DEPTH:
        raise too_deep("/".join(path.split("/")[:6]) + "/…")


def too_deep(what: str) -> PackError:
    """The refusal of a tree beyond `MAX_DEPTH`."""
    return PackError(
        f"{what} has more than {MAX_DEPTH} directories below each other; it is no tree of a node"
    )


def _check_name(name: str) -> None:
    if "/" in name or "\0" in name or name in ("", ".", ".."):
        raise PackError(f"{name!r} is no file name")
    _bytes(name)


def _check_mode(mode: Any) -> None:
    if type(mode) is not int or not 0 <= mode <= 0o7777:
        raise PackError(f"{mode!r} is no file mode")


def _check_list(name: str, node: Any) -> None:
    shape = _SHAPES.get(node[0]) if isinstance(node, list) and node and isinstance(node[0], str) else None
    if shape is None or tuple(map(type, node[1:])) != shape:
        raise PackError(f"{name!r} has an entry of no known form")
    tag = node[0]
    if tag == "l":
        if not node[1] or "\0" in node[1] or len(node[1]) > 4095:  # PATH_MAX
            raise PackError(f"{name!r} is a link with an impossible target")
        _bytes(node[1])
        return
    _check_mode(node[1])
    if tag == "f":
        _bytes(node[2])
    if tag in "ed" and not hasattr(errno, node[2]):
        raise PackError(f"{name!r} has an errno of no known name")
    if tag == "c" and not (0 <= node[2] < 1 << 12 and 0 <= node[3] < 1 << 20):  # dev_t of Linux
        raise PackError(f"{name!r} has an impossible device number")


def _bytes(text: str) -> bytes:
    """A name, target or content as Linux has it; PackError when no bytes decode to it."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise PackError(f"{text[:40]!r} stands for no bytes") from None
