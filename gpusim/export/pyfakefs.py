"""Fills pyfakefs with a machine, for tests of Python code that knows no root directory and no `Host`.

Lazy: a directory is listed and a file computed when the code under test looks, so installing costs nothing
and a switched GPU shows at the next look. What pyfakefs 6.3 cannot say differently from Linux:

* A refused *read* (EPERM, EIO) comes from the open, because pyfakefs reads a file when it opens it; a refused
  *write* comes where Python hands the bytes over: at the open when it truncates, else at flush or close.
* A device node is a regular file. Opening it asks the driver (ENODEV, …) but does not hold it: use
  `Machine.process` and `Machine.open` for what must be busy.
* A cgroup can be made; its rmdir answers ENOTEMPTY, as pyfakefs sees the files in it: use `Machine.rmdir`.
* What is not the kernel's (/etc, /run, …) is copied once and lives in pyfakefs alone.

`FakeFile.byte_contents`, `.set_contents` and `FakeDirectory.entries` are overridden (libraries.md).
"""

from __future__ import annotations

import errno
import os
import stat as modes
import weakref
from typing import TYPE_CHECKING, Any, AnyStr

from pyfakefs.fake_file import FakeDirectory, FakeFile, FakeFileWrapper

from gpusim.errors import GpusimError
from gpusim.nodes import Kind

if TYPE_CHECKING:
    from pyfakefs.fake_filesystem import FakeFilesystem

    from gpusim.view import View

_LAZY = ("dev", "proc", "sys")
"""What the kernel makes at the root."""


def install(view: View, fs: FakeFilesystem) -> None:
    """Show `view`'s /sys, /proc and /dev in `fs`, and copy its other directories into it.

    Args:
        view: a machine, or it as another caller sees it; what that caller may not, the code under test
            may not.
        fs: pyfakefs' file system, such as the ``fs`` fixture of its pytest plugin.

    Raises:
        GpusimError: /sys, /proc or /dev are there already.
    """
    for name in view.list("/"):
        path = f"/{name}"
        if name not in _LAZY:
            _copy(view, fs, path)
        elif fs.exists(path):
            raise GpusimError(f"{path} is in the fake file system already: install a machine first")
        else:
            fs.root_dir.add_entry(_Directory(name, path, view, fs))


def _copy(view: View, fs: FakeFilesystem, path: str) -> None:
    found = view.stat(path, follow=False)
    if found.kind is Kind.DIRECTORY:
        if not fs.exists(path):
            fs.create_dir(path, perm_bits=found.mode)
        for name in view.list(path):
            _copy(view, fs, f"{path}/{name}")
    elif found.kind is Kind.LINK:
        fs.create_symlink(path, view.readlink(path))
    else:
        content = view.read(path) if found.kind is Kind.FILE else b""
        fs.create_file(path, contents=content, st_mode=modes.S_IFREG | found.mode)


class _File(FakeFile):
    """An attribute, a link or a device of the machine."""

    def __init__(self, name: str, path: str, view: View, fs: FakeFilesystem) -> None:
        found = view.stat(path, follow=False)
        kind = modes.S_IFLNK if found.kind is Kind.LINK else modes.S_IFREG
        super().__init__(name, st_mode=kind | found.mode, contents="", filesystem=fs)
        self._path = path
        self._view = view
        self._kind = found.kind
        self._shown = b""
        """What whoever has it open last saw."""
        self._truncated = False
        self.stat_result.st_size = found.size
        self.stat_result.st_uid, self.stat_result.st_gid = found.uid, found.gid

    @property
    def opened_as(self) -> str:
        """The name it was opened by; pyfakefs sets it at each open, before it reads the content."""
        return self._opened_as

    @opened_as.setter
    def opened_as(self, name: str) -> None:
        self._opened_as = name
        if name and self._kind is Kind.CHARACTER:
            self._view.probe(self._path)

    @property
    def byte_contents(self) -> bytes:
        """The content now; empty just after an open that truncated."""
        if self._truncated:
            self._truncated = False
            self._shown = b""
        elif self._kind is Kind.LINK:
            return os.fsencode(self._view.readlink(self._path))
        elif self._kind is Kind.CHARACTER or not self.st_mode & 0o444:
            self._shown = b""
        else:
            self._shown = self._view.read(self._path)
        return self._shown

    def set_contents(self, contents: AnyStr, encoding: str | None = None) -> bool:
        """One write(2) of what was written since; called at each flush, also when nothing was.

        Raises:
            OSError: what the machine answers; EACCES for root, too, on a file without write bits.
        """
        whole = contents.encode(encoding or "utf-8") if isinstance(contents, str) else contents
        if not whole:
            self._view.probe(self._path, "w")
            self._truncated = True
            return False
        written = self._written(whole)
        if whole == self._shown or not written:
            return False
        self._view.write(self._path, written)
        self._shown = whole
        self.epoch += 1
        return True

    def _written(self, whole: bytes) -> bytes:
        """The part of a file's new content that was written: pyfakefs hands over old and new together."""
        writer = self._writer(whole)
        if writer is None:
            return whole
        if writer.open_modes.append:
            return whole[len(self._shown) :]
        return whole[: writer._io.tell()]

    def _writer(self, whole: bytes) -> FakeFileWrapper | None:
        """Who is flushing: the open file that holds exactly this content."""
        for opened in self.filesystem.open_files:
            for wrapper in opened or ():
                if not isinstance(wrapper, FakeFileWrapper) or wrapper.file_object is not self:
                    continue
                if wrapper.open_modes.can_write and wrapper._io.getvalue() == whole:
                    return wrapper
        return None

    @property
    def size(self) -> int:
        """As stat tells it; it takes no room."""
        return self.stat_result.st_size

    @size.setter
    def size(self, size: int) -> None:
        """truncate(2): the kernel's files have no length to cut."""


class _Directory(FakeDirectory):
    """A directory of the machine."""

    def __init__(self, name: str, path: str, view: View, fs: FakeFilesystem) -> None:
        found = view.stat(path, follow=False)
        super().__init__(name, perm_bits=found.mode, filesystem=fs)
        self._path = path
        self._view = view
        self._fs = fs
        self._names: list[str] | None = None
        self.stat_result.st_uid, self.stat_result.st_gid = found.uid, found.gid

    @property
    def entries(self) -> dict[str, FakeFile]:
        """Name → file, as the machine lists them now; who stays keeps its object."""
        names = list(self._view.list(self._path))
        if names != self._names:
            before = self._entries
            self._entries = {name: before.get(name) or self._made(name) for name in names}
            self._names = names
        return self._entries

    @property
    def ordered_dirs(self) -> list[str]:
        """Names in the order of making: as listed."""
        return list(self.entries)

    def add_entry(self, path_object: FakeFile) -> None:
        """Make a name: only a directory, only where the machine lets one be made (a cgroup).

        Raises:
            OSError: EPERM, EACCES as kernfs; what mkdir answers.
        """
        path = f"{self._path}/{os.fsdecode(path_object.name)}"
        if not isinstance(path_object, FakeDirectory):
            code = errno.EPERM if modes.S_ISLNK(path_object.st_mode) else errno.EACCES
            raise OSError(code, os.strerror(code), path)
        self._view.mkdir(path, path_object.st_mode & 0o7777)

    def remove_entry(self, pathname_name: str, recursive: bool = True) -> None:
        """Remove a name, where the machine lets one be removed.

        Raises:
            OSError: EPERM as kernfs; what rmdir answers.
        """
        path = f"{self._path}/{pathname_name}"
        if isinstance(self.get_entry(pathname_name), FakeDirectory):
            self._view.rmdir(path)
        else:
            self._view.unlink(path)

    @property
    def size(self) -> int:
        """It takes no room."""
        return 0

    @size.setter
    def size(self, size: int) -> None:
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), self._path)

    def _made(self, name: str) -> FakeFile:
        path = f"{self._path}/{name}"
        directory = self._view.stat(path, follow=False).kind is Kind.DIRECTORY
        made: Any = (_Directory if directory else _File)(name, path, self._view, self._fs)
        made.parent_dir = weakref.ref(self)
        made.st_nlink = 2 if directory else 1
        made.st_dev = self.st_dev
        self._fs.last_ino += 1
        made.st_ino = self._fs.last_ino
        return made  # type: ignore[no-any-return]
