"""The one real end of the seam: a Linux node, or a directory that holds a tree of one.

The only file of this package that knows `os` and `subprocess`. With ``root="/"`` paths go to the kernel
as they are. With any other root every path, every absolute symlink and every ``..`` inside stays below
it, so a capture with absolute links (`/sys/class/kfd/kfd` is one) is read whole and never
mixed with the machine it is looked at on.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import stat as modes
import subprocess
from collections.abc import Sequence

from devplugin.host import Completed, Kind, Stat

_MAX_BYTES = 64 << 20
"""A file that goes on after this is a device or a mistake: EFBIG."""

_MAX_LINKS = 40
"""The kernel's own limit of one path walk (MAXSYMLINKS): ELOOP."""

_KINDS = {
    modes.S_IFDIR: Kind.DIRECTORY,
    modes.S_IFREG: Kind.FILE,
    modes.S_IFLNK: Kind.LINK,
    modes.S_IFCHR: Kind.CHARACTER,
}


class LinuxHost:
    """Host, Files and Runner of a node whose root is `root`.

    A tree under another root is taken to keep its directories and links while we run (files may come,
    go and change): where a directory's path leads is remembered, and looked up again when it leads to
    nothing.
    """

    def __init__(self, root: str = "/") -> None:
        """Open nothing yet; a root that is no directory answers ENOENT on first use."""
        self.root = os.path.realpath(root)
        self._real = self.root == "/"
        self._directories: dict[str, str] = {}

    # ------------------------------------------------------------------ Host

    def read(self, path: str) -> bytes:
        """The whole content, in as few read(2) as it takes."""
        fd = self._open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            chunks: list[bytes] = []
            size = 0
            while chunk := os.read(fd, 1 << 16):
                chunks.append(chunk)
                size += len(chunk)
                if size > _MAX_BYTES:
                    raise _error(errno.EFBIG, path)
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)
        finally:
            os.close(fd)

    def write(self, path: str, data: bytes) -> int:
        """One write(2), without O_CREAT: on kernfs that would turn ENOENT into EACCES (decision 30)."""
        fd = self._open(path, os.O_WRONLY | os.O_NONBLOCK)
        try:
            return os.write(fd, data)
        finally:
            os.close(fd)

    def list(self, path: str) -> Sequence[str]:
        """Names in a directory, sorted as text."""
        return sorted(os.listdir(self._resolve(path)))

    def readlink(self, path: str) -> str:
        """The link's text as it stands in the tree."""
        return os.readlink(self._beside(path))

    def stat(self, path: str, *, follow: bool = True) -> Stat:
        """Kind, mode, size, device number."""
        found = os.lstat(self._beside(path))
        if follow and modes.S_ISLNK(found.st_mode):
            found = os.stat(path) if self._real else os.lstat(self._resolve(path))
        kind = _KINDS.get(modes.S_IFMT(found.st_mode), Kind.OTHER)
        rdev = (os.major(found.st_rdev), os.minor(found.st_rdev)) if kind is Kind.CHARACTER else None
        return Stat(kind, modes.S_IMODE(found.st_mode), found.st_size, rdev)

    def probe(self, path: str) -> None:
        """Open for reading and writing, and close: what a runtime's first step would find."""
        os.close(self._open(path, os.O_RDWR | os.O_NONBLOCK))

    # ------------------------------------------------------------------ Files

    def put(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Write beside the target, then rename over it; a link at `path` is replaced, not followed."""
        target = self._beside(path)
        directory, name = os.path.split(target)
        part = os.path.join(directory, f".{name}.{os.getpid()}.part")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            try:
                rest = memoryview(data)
                while rest:
                    rest = rest[os.write(fd, rest) :]
                os.fchmod(fd, mode)
                os.fsync(fd)
            finally:
                os.close(fd)
            os.rename(part, target)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(part)
            raise

    def mkdir(self, path: str, mode: int = 0o755) -> None:
        """Make a directory and its parents."""
        made = "/"
        for name in _parts(path):
            made = f"{made.rstrip('/')}/{name}"
            with contextlib.suppress(FileExistsError):
                os.mkdir(self._beside(made), mode)
        if self.stat(path).kind is not Kind.DIRECTORY:
            raise _error(errno.ENOTDIR, path)

    def rmdir(self, path: str) -> None:
        """Remove one empty directory."""
        os.rmdir(self._beside(path))

    def unlink(self, path: str) -> None:
        """Remove one file."""
        os.unlink(self._beside(path))

    def rename(self, old: str, new: str) -> None:
        """Give a name to what had another; links on either end are themselves renamed or replaced."""
        source, target = self._beside(old), self._beside(new)
        self._directories.clear()  # a directory may have moved with all below it
        os.rename(source, target)

    def chmod(self, path: str, mode: int) -> None:
        """Set the permission bits, of what a link leads to when it is one."""
        os.chmod(self._resolve(path), mode)

    def copy(self, source: str, target: str, mode: int) -> None:
        """Copy a file's bytes, as `put` does."""
        self.put(target, self.read(source), mode)

    # ------------------------------------------------------------------ Runner

    def run(self, argv: Sequence[str], *, timeout: float = 30.0, stdin: bytes = b"") -> Completed:
        """Run a program in a process group of its own, which ends with the timeout.

        Under another root the program is the one of that tree, named by its absolute path.
        """
        program = argv[0]
        if not self._real:
            if not program.startswith("/"):
                raise _error(errno.ENOENT, program)
            program = self._resolve(program)
        process = subprocess.Popen(  # noqa: S603  argv comes from our own tables, never from a shell
            list(argv),
            executable=program,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            stdout, stderr = process.communicate(stdin, timeout)
        except subprocess.TimeoutExpired:
            raise TimeoutError(errno.ETIMEDOUT, f"no end within {timeout:g} s", argv[0]) from None
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                for pipe in (process.stdin, process.stdout, process.stderr):
                    if pipe is not None:
                        with contextlib.suppress(OSError):
                            pipe.close()
        return Completed(process.returncode, stdout, stderr)

    # ------------------------------------------------------------------ the root

    def _open(self, path: str, flags: int) -> int:
        """Open without following a link out of the root."""
        flags |= os.O_CLOEXEC | os.O_NOCTTY
        if self._real:
            return os.open(path, flags)
        try:
            return os.open(self._beside(path), flags | os.O_NOFOLLOW)
        except OSError as error:
            if error.errno != errno.ELOOP:  # the last part is a link
                raise
        return os.open(self._resolve(path), flags | os.O_NOFOLLOW)

    def _beside(self, path: str) -> str:
        """The real path of a name whose last part may be a link that is not to be followed."""
        if self._real:
            return path
        parent, _, name = path.rstrip("/").rpartition("/")
        if name in ("", ".", ".."):
            return self._resolve(path)
        return f"{self._directory(parent)}/{name}"

    def _directory(self, path: str) -> str:
        """The real path of a directory of the tree, remembered; a new one costs one readlink(2)."""
        if not path:
            return self.root
        real = self._directories.get(path)
        if real is not None and os.path.isdir(real):
            return real
        parent, _, name = path.rpartition("/")
        if name in ("", ".", ".."):
            return self._resolve(path)
        real = f"{self._directory(parent)}/{name}"
        try:
            os.readlink(real)
        except OSError as error:
            if error.errno != errno.EINVAL:  # EINVAL: no link
                raise
        else:
            real = self._resolve(path)
        self._directories[path] = real
        return real

    def _resolve(self, path: str) -> str:
        """The real path that a path of the tree leads to, every link followed inside the root."""
        if self._real:
            return path
        todo = _parts(path)[::-1]
        done: list[str] = []
        links = 0
        while todo:
            part = todo.pop()
            if part == "..":
                del done[-1:]
                continue
            try:
                target = os.readlink("/".join((self.root, *done, part)))
            except OSError as error:
                if error.errno != errno.EINVAL:  # EINVAL: no link
                    raise _error(error.errno or errno.EIO, path) from None
                done.append(part)
                continue
            links += 1
            if links > _MAX_LINKS:
                raise _error(errno.ELOOP, path)
            if target.startswith("/"):
                done.clear()
            todo += _parts(target)[::-1]
        return "/".join((self.root, *done))


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
