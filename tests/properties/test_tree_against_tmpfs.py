"""A random history of file operations gives the same results and errnos in the tree and on a real directory.

The real one is a directory of the host, reached with ``..`` never leaving it: absolute links and paths
are kept below a common prefix. Only operations whose answer does not depend on the user are drawn.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from gpusim.nodes import Dir, Kind
from gpusim.tree import Tree

NAMES = st.sampled_from(["a", "b", "c"])
ODD_NAMES = st.sampled_from([".", "..", "", "x" * 255, "y" * 256, "é" * 128])
COMPONENTS = st.one_of(NAMES, NAMES, NAMES, ODD_NAMES)
PATHS = st.builds(
    lambda parts, slash: "/".join(parts) + ("/" if slash else ""),
    st.lists(COMPONENTS, min_size=1, max_size=4),
    st.booleans(),
)
CONTENT = st.binary(max_size=8)
KINDS = {stat.S_IFDIR: Kind.DIRECTORY, stat.S_IFREG: Kind.FILE, stat.S_IFLNK: Kind.LINK}


def outcome(call: Callable[[], object]) -> object:
    try:
        return call()
    except OSError as error:
        return errno.errorcode[error.errno or 0]


class TreeAgainstTmpfs(RuleBasedStateMachine):
    """The same history on both sides."""

    @initialize()
    def start(self) -> None:
        # The deepest common place: as many directories above as one walk can climb with "..".
        self.top = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
        self.base = "/".join([str(self.top), *"12345678"])
        os.makedirs(self.base)
        self.tree = Tree(Dir({}, writable=True))
        self.tree.makedirs(self.base)

    def teardown(self) -> None:
        if hasattr(self, "top"):
            shutil.rmtree(self.top)

    def path(self, relative: str) -> str:
        return f"{self.base}/{relative}"

    def same(self, real: Callable[[], object], simulated: Callable[[], object]) -> None:
        assert outcome(simulated) == outcome(real)

    @rule(relative=PATHS)
    def mkdir(self, relative: str) -> None:
        path = self.path(relative)
        self.same(lambda: os.mkdir(path), lambda: self.tree.mkdir(path))

    @rule(relative=PATHS, text=st.one_of(PATHS, PATHS.map(lambda p: "/" + p)))
    def symlink(self, relative: str, text: str) -> None:
        path = self.path(relative)
        target = self.base + text if text.startswith("/") else text
        self.same(lambda: os.symlink(target, path), lambda: self.tree.symlink(target, path))

    @rule(relative=PATHS, data=CONTENT)
    def put(self, relative: str, data: bytes) -> None:
        path = self.path(relative)

        def real() -> None:
            head = path.rstrip("/").rpartition("/")[0]
            temporary = f"{head}/.temporary"
            with open(temporary, "wb") as file:
                file.write(data)
            try:
                os.rename(temporary, path)
            except OSError:
                os.unlink(temporary)
                raise

        self.same(real, lambda: self.tree.put(path, data))

    @rule(relative=PATHS, data=CONTENT)
    def write(self, relative: str, data: bytes) -> None:
        path = self.path(relative)

        def real() -> int:
            descriptor = os.open(path, os.O_WRONLY)
            try:
                return os.write(descriptor, data)
            finally:
                os.close(descriptor)

        self.same(real, lambda: self.tree.write(path, data))

    @rule(relative=PATHS)
    def unlink(self, relative: str) -> None:
        path = self.path(relative)
        self.same(lambda: os.unlink(path), lambda: self.tree.unlink(path))

    @rule(old=PATHS, new=PATHS)
    def rename(self, old: str, new: str) -> None:
        self.same(
            lambda: os.rename(self.path(old), self.path(new)),
            lambda: self.tree.rename(self.path(old), self.path(new)),
        )

    @rule(relative=PATHS)
    def read(self, relative: str) -> None:
        path = self.path(relative)

        def real() -> bytes:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                return os.read(descriptor, 100)
            finally:
                os.close(descriptor)

        self.same(real, lambda: self.tree.read(path))

    @rule(relative=PATHS)
    def list(self, relative: str) -> None:
        path = self.path(relative)
        self.same(lambda: sorted(os.listdir(path)), lambda: self.tree.list(path))

    @rule(relative=PATHS)
    def readlink(self, relative: str) -> None:
        path = self.path(relative)
        self.same(lambda: os.readlink(path), lambda: self.tree.readlink(path))

    @rule(relative=PATHS, follow=st.booleans())
    def stat(self, relative: str, follow: bool) -> None:
        path = self.path(relative)

        def real() -> tuple[Kind, int]:
            found = os.stat(path, follow_symlinks=follow)
            kind = KINDS[stat.S_IFMT(found.st_mode)]
            return kind, 0 if kind is Kind.DIRECTORY else found.st_size

        def simulated() -> tuple[Kind, int]:
            found = self.tree.stat(path, follow=follow)
            return found.kind, found.size

        self.same(real, simulated)

    @rule(relative=PATHS)
    def resolve(self, relative: str) -> None:
        path = self.path(relative)

        def real() -> str:
            descriptor = os.open(path, os.O_PATH)  # not os.path.realpath, which walks on its own
            try:
                return os.readlink(f"/proc/self/fd/{descriptor}")
            finally:
                os.close(descriptor)

        self.same(real, lambda: self.tree.resolve(path))


TestTreeAgainstTmpfs = TreeAgainstTmpfs.TestCase
