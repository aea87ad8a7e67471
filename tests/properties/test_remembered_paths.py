"""What a walk remembers is never wrong, whatever was made, moved, closed or removed since.

The oracle is a walk that remembers nothing: a new one for every question.
"""

from __future__ import annotations

import contextlib

from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpusim.nodes import Caller, Dir, Node
from gpusim.tree import Tree
from gpusim.walk import Walk

NAMES = ("a", "b", "c")
USER = Caller(uid=1)
ROOT = Caller()

SHORT = (*(f"/{a}" for a in NAMES), *(f"/{a}/{b}" for a in NAMES for b in NAMES))
paths = st.sampled_from(SHORT)
targets = st.sampled_from((*SHORT, "a", "b", "../c", "a/../b", "/a/b/../a"))
steps = st.one_of(
    st.tuples(st.just("makedirs"), paths),
    st.tuples(st.just("put"), paths, st.just(b"x")),
    st.tuples(st.just("symlink"), targets, paths),
    st.tuples(st.just("rename"), paths, paths),
    st.tuples(st.just("unlink"), paths),
    st.tuples(st.just("rmdir"), paths),
    st.tuples(st.just("chmod"), paths, st.sampled_from((0o755, 0o700, 0o711))),
)


def led_to(walk: Walk, path: str, caller: Caller) -> Node | int | None:
    """The node, or the errno."""
    try:
        return walk.find(path, caller)
    except OSError as error:
        return error.errno


NOTHING = (("unlink", "/c"), [])


@example([NOTHING, (("chmod", "/a", 0o700), [])])
@example([(("symlink", "a", "/b"), []), (("unlink", "/b"), [])])
@example([NOTHING, (("rename", "/a", "/b"), [])])
@settings(deadline=None, max_examples=150)
@given(history=st.lists(st.tuples(steps, st.lists(paths, max_size=3)), max_size=25))
def test_a_remembered_path_leads_where_a_walk_without_memory_leads(
    history: list[tuple[tuple[object, ...], list[str]]],
) -> None:
    root = Dir({}, writable=True)
    tree, remembering = Tree(root), Walk(root)
    for name in NAMES[:2]:
        tree.makedirs(f"/a/{name}")
        tree.put(f"/a/{name}/c", b"x")
    for (operation, *arguments), asked in history:
        with contextlib.suppress(OSError):
            getattr(tree, str(operation))(*arguments)
        for path in (*asked, *(f"{above}/{name}" for above in SHORT for name in NAMES)):
            for caller in (ROOT, USER):
                assert led_to(remembering, path, caller) == led_to(Walk(root), path, caller), path
