"""An ordinary user is refused by the tree exactly where the kernel refuses on a real directory.

Runs as root only: it makes files of several owners and then acts as one of them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusim.nodes import Caller, Dir, File, Link, Node
from gpusim.tree import Tree

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make files of several owners")

USER, GROUP, OTHER = 1000, 1000, 2000
MODES = st.one_of(
    st.sampled_from([0o777, 0o755, 0o700, 0o711, 0o644, 0o000, 0o070, 0o007]), st.integers(0, 0o777)
)


@dataclass(frozen=True)
class Owned:
    mode: int
    uid: int
    gid: int


OWNED = st.builds(Owned, MODES, st.sampled_from([0, USER]), st.sampled_from([0, GROUP, OTHER]))


@contextlib.contextmanager
def acting_as(uid: int, gids: tuple[int, ...]) -> Iterator[None]:
    before = os.getgroups()
    os.setgroups(gids)
    os.setegid(gids[0])
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(before)


def outcome(call: Callable[[], object]) -> object:
    try:
        call()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "fine"


def opened(path: str, flags: int) -> None:
    os.close(os.open(path, flags))


def put(path: str) -> None:
    temporary = f"{path.rpartition('/')[0]}/.temporary"
    opened(temporary, os.O_WRONLY | os.O_CREAT)
    try:
        os.rename(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise


OPERATIONS: dict[str, tuple[Callable[[str], object], Callable[[Tree, str, Caller], object]]] = {
    "read": (lambda path: opened(path, os.O_RDONLY), lambda tree, path, who: tree.open(path, who, "r")),
    "write": (lambda path: opened(path, os.O_WRONLY), lambda tree, path, who: tree.write(path, b"x", who)),
    "probe": (lambda path: opened(path, os.O_RDWR), lambda tree, path, who: tree.probe(path, who)),
    "list": (os.listdir, lambda tree, path, who: tree.list(path, who)),
    "stat": (os.stat, lambda tree, path, who: tree.stat(path, who)),
    "lstat": (os.lstat, lambda tree, path, who: tree.stat(path, who, follow=False)),
    "readlink": (os.readlink, lambda tree, path, who: tree.readlink(path, who)),
    "put": (put, lambda tree, path, who: tree.put(path, b"", 0o644, who)),
    "mkdir": (os.mkdir, lambda tree, path, who: tree.mkdir(path, 0o755, who)),
    "symlink": (lambda path: os.symlink("f", path), lambda tree, path, who: tree.symlink("f", path, who)),
    "unlink": (os.unlink, lambda tree, path, who: tree.unlink(path, who)),
    "rename": (
        lambda path: os.rename(path, path + "2"),
        lambda tree, path, who: tree.rename(path, path + "2", who),
    ),
}


@given(
    owners=st.tuples(OWNED, OWNED, OWNED, OWNED),
    gids=st.sampled_from([(GROUP,), (GROUP, OTHER)]),
    steps=st.lists(
        st.tuples(
            st.sampled_from(sorted(OPERATIONS)),
            st.sampled_from(["f", "d", "d/f", "d/new", "new", "link", "d/.", "d/..", "d/../f", "f/x"]),
        ),
        min_size=1,
        max_size=6,
    ),
)
def test_an_ordinary_user_is_refused_where_the_kernel_refuses(
    owners: tuple[Owned, Owned, Owned, Owned], gids: tuple[int, ...], steps: list[tuple[str, str]]
) -> None:
    top, file, directory, inner = owners
    base = tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
    try:
        os.chmod(base, 0o755)
        os.makedirs(f"{base}/top/d")
        os.symlink("d/f", f"{base}/top/link")
        for name, owned in (("top/d/f", inner), ("top/d", directory), ("top/f", file), ("top", top)):
            if name.endswith("f"):
                Path(f"{base}/{name}").write_bytes(b"")
            os.chown(f"{base}/{name}", owned.uid, owned.gid)
            os.chmod(f"{base}/{name}", owned.mode)

        def made(owned: Owned, kids: dict[str, Node] | None = None) -> Node:
            if kids is None:
                return File(b"", mode=owned.mode, uid=owned.uid, gid=owned.gid)
            return Dir(kids, mode=owned.mode, uid=owned.uid, gid=owned.gid, writable=True)

        inside = made(directory, {"f": made(inner)})
        tree = Tree(Dir({"top": made(top, {"d": inside, "f": made(file), "link": Link("d/f")})}))
        for operation, path in steps:
            real, simulated = OPERATIONS[operation]
            with acting_as(USER, gids):
                expected = outcome(lambda: real(f"{base}/top/{path}"))  # noqa: B023
            got = outcome(lambda: simulated(tree, f"/top/{path}", Caller(USER, gids)))  # noqa: B023
            assert (operation, path, got) == (operation, path, expected)
    finally:
        shutil.rmtree(base)
