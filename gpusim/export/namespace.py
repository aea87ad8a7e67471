"""Runs a program on a simulated node: in a mount namespace of its own, with the node's /sys and /dev.

The node is mounted (`gpusim.export.fuse`) on a scratch directory, in that namespace only, and bound over /sys
and /dev. A mount point cannot be made in the host's /sys, and must not be made in its /dev; so the node's
own directories are the base, and what they lack and programs need (the null device, terminals, CPUs, network
classes, …) is bound into them from the host. Not so PCI devices, graphics and accelerators: those are the
node's alone. /proc stays the host's, but for the list of device majors and the kernel's release.

**The host's own mount namespace is never touched**: every mount(2) goes through a `Namespace`, which exists
only in a process that has left the host's namespace and made every mount private; it looks again each time.
Nothing is unmounted: the mounts end with the last process in the namespace.

Sources: unshare(2), mount_namespaces(7), user_namespaces(7), Linux ``fs/namespace.c``.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import select
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from gpusim.errors import GpusimError
from gpusim.export import fuse
from gpusim.export.fuseops import Stub
from gpusim.nodes import Kind

if TYPE_CHECKING:
    from gpusim.machine import Machine
    from gpusim.remote import RemoteMachine

_CLONE_NEWNS = 0x00020000
_CLONE_NEWUSER = 0x10000000
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000
_PR_SET_PDEATHSIG = 1
_PASSED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_MOUNT_SECONDS = 30.0

NOT_EXECUTABLE, NOT_FOUND = 126, 127
"""What a shell exits with when it cannot run a program."""

_MIXED = ("/sys", "/sys/class", "/sys/bus", "/sys/devices", "/sys/devices/virtual", "/sys/fs")
"""Directories where the host's names stay beside the node's."""
_NODES = frozenset({"accel", "amdgpu", "dev", "drm", "hwmon", "kfd", "module", "pci", "pci_bus", "platform"})
"""Names there that are the node's even when it has none (driver not loaded): never the host's."""
_DEVICES = (
    *("null", "zero", "full", "random", "urandom", "tty", "console", "kmsg", "fuse", "log"),
    *("pts", "shm", "mqueue", "hugepages", "net", "fd", "stdin", "stdout", "stderr", "core", "ptmx"),
)
"""Names in /dev that have nothing to do with accelerators."""
_PROC = ("/proc/devices", "/proc/sys/kernel/osrelease")


class NamespaceError(GpusimError):
    """A program cannot be run on a node here."""


class Namespace:
    """A mount namespace that this process shares with nobody but its children. Made by `enter`."""

    def __init__(self, outside: str) -> None:
        self._outside = outside

    @classmethod
    def enter(cls) -> Namespace:
        """Leave the mount namespace this process is in, for good. Only for a process made for that.

        Raises:
            NamespaceError: not permitted, or mounts could not be made private.
        """
        outside = _own()
        uid, gid = os.geteuid(), os.getegid()
        try:
            _call("unshare", _CLONE_NEWNS)
        except OSError:
            try:
                _call("unshare", _CLONE_NEWNS | _CLONE_NEWUSER)
                _map_to_root(uid, gid)
            except OSError as error:
                raise NamespaceError(
                    f"no mount namespace for the program: {error.strerror}; run as root (CAP_SYS_ADMIN), or "
                    "where users may make user namespaces"
                ) from None
        space = cls(outside)
        space._look()
        try:
            _call("mount", b"none", b"/", None, ctypes.c_ulong(_MS_REC | _MS_PRIVATE), None)
        except OSError as error:
            raise NamespaceError(f"mounts cannot be made private: {error.strerror}") from None
        if shared := [line for line in _mountinfo() if " shared:" in line.partition(" - ")[0]]:
            raise NamespaceError(f"a mount is still shared with the host: {shared[0]}")
        return space

    def bind(self, source: str, target: str) -> None:
        """Show `source`, with what is mounted below it, at `target`, in this namespace only.

        Raises:
            NamespaceError: this is the host's namespace, or the kernel refuses.
        """
        self._look()
        try:
            _call(
                "mount",
                os.fsencode(source),
                os.fsencode(target),
                None,
                ctypes.c_ulong(_MS_BIND | _MS_REC),
                None,
            )
        except OSError as error:
            raise NamespaceError(f"{source} cannot be laid over {target}: {error.strerror}") from None

    def _look(self) -> None:
        if _own() == self._outside:
            raise NamespaceError("still in the mount namespace of the host: nothing is mounted")


def run(node: Machine | RemoteMachine, argv: Sequence[str]) -> int:
    """Run a program on `node` and wait for it; call it in the main thread of a single-threaded process.

    Ctrl-C and Ctrl-\\ reach the program from its terminal; SIGTERM, SIGHUP and whatever a process sends are
    passed on to it.

    Args:
        node: the machine; one of this process lives on in a child, and ends with the program.
        argv: the program and its arguments; found on PATH.

    Returns:
        Its exit status; 128 plus the signal that ended it; 126 or 127 when it cannot be executed.

    Raises:
        MountError: FUSE is not to be had here.
        NamespaceError: no namespace.
    """
    fuse.load()
    scratch = tempfile.mkdtemp(prefix="gpusim-run-")
    try:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {*_PASSED, signal.SIGCHLD})
        try:
            told, tell = os.pipe()
            child = _fork(lambda: _inside(node, scratch, argv, before, tell))
            os.close(tell)
            status = _attend(child)
            with os.fdopen(told, "rb") as reader:
                why = reader.read().decode(errors="replace")
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    finally:
        # Nothing was ever mounted on it in this namespace: an empty directory, and rmdir takes no other.
        with contextlib.suppress(FileNotFoundError):
            Path(scratch).rmdir()
    if why:
        raise NamespaceError(why)
    return status


def _inside(
    node: Machine | RemoteMachine,
    scratch: str,
    argv: Sequence[str],
    mask: set[int | signal.Signals],
    tell: int,
) -> int:
    """In the child: leave the host's namespace, lay the node, run the program, end the file system."""
    try:
        _end_with_parent()
        space = Namespace.enter()
        stubs, binds = _host_parts(node)
        server = _serve(node, scratch, stubs, mask)
    except (GpusimError, OSError) as error:
        os.write(tell, str(error).encode())
        return 1
    try:
        for path in binds:
            space.bind(path, f"{scratch}{path}")
        for path in ("/sys", "/dev", *_PROC):
            space.bind(f"{scratch}{path}", path)
        program = _fork(lambda: _execute(argv, mask))
    except (GpusimError, OSError) as error:
        os.write(tell, str(error).encode())
        return 1
    else:
        os.close(tell)
        return _attend(program)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(server, signal.SIGTERM)
        os.waitpid(server, 0)


def _serve(
    node: Machine | RemoteMachine, scratch: str, stubs: dict[str, Stub], mask: set[int | signal.Signals]
) -> int:
    """Start the process that answers for the file system; its pid, once the mount can be used."""
    ready, done = os.pipe()

    def child() -> int:
        _end_with_parent()
        os.setsid()  # what is typed at the terminal is the program's
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        fuse.mount(node, scratch, stubs=stubs, ready=lambda: os.close(done))
        return 0

    pid = _fork(child)
    os.close(done)
    # Closed without mounting by a child that failed, after it said why on stderr.
    select.select([ready], [], [], _MOUNT_SECONDS)
    os.close(ready)
    if os.stat(scratch).st_dev == os.stat(os.path.dirname(scratch)).st_dev:  # noqa: PTH116, PTH120
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise NamespaceError("the node's file system could not be mounted; the reason stands above")
    return pid


def _host_parts(node: Machine | RemoteMachine) -> tuple[dict[str, Stub], list[str]]:
    """What of the host stays to be seen: names the node lacks, and what is to be bound there."""
    stubs: dict[str, Stub] = {}
    binds: list[str] = []
    for directory in _MIXED:
        ours = _names(node, directory)
        for path in _directories(directory):
            if path.name in ours or path.name in _NODES or path.name.startswith("pci"):
                continue
            if str(path) not in _MIXED:
                stubs[str(path)] = Stub(Kind.DIRECTORY)
                binds.append(str(path))
    ours = _names(node, "/dev")
    for name in _DEVICES:
        path = Path("/dev") / name
        if name == "ptmx":  # the node outside devpts looks for pts beside itself, on its own mount
            stubs[str(path)] = Stub(Kind.LINK, "pts/ptmx")
        elif path.is_symlink():
            stubs[str(path)] = Stub(Kind.LINK, str(path.readlink()))
        elif path.exists():
            if name not in ours:
                stubs[str(path)] = Stub(Kind.DIRECTORY if path.is_dir() else Kind.FILE)
            binds.append(str(path))
    return stubs, binds


def _directories(directory: str) -> Iterator[Path]:
    try:
        entries = sorted(Path(directory).iterdir())
    except OSError:
        return
    yield from (path for path in entries if path.is_dir() and not path.is_symlink())


def _names(node: Machine | RemoteMachine, directory: str) -> frozenset[str]:
    try:
        return frozenset(node.list(directory))
    except OSError:
        return frozenset()


# Processes


def _fork(body: Callable[[], int]) -> int:
    """Run `body` in a child, whose exit code it gives; the child's pid."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        code = body()
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    except (GpusimError, OSError) as error:
        os.write(2, f"gpusim: {error}\n".encode())
    finally:
        os._exit(code)


def _execute(argv: Sequence[str], mask: set[int | signal.Signals]) -> NoReturn:
    """Become the program, with the signals of a program that Python did not start."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    try:
        os.execvp(argv[0], list(argv))  # noqa: S606  no shell, as asked for
    except OSError as error:
        os.write(2, f"gpusim: {argv[0]}: {error.strerror}\n".encode())
        os._exit(NOT_FOUND if error.errno == errno.ENOENT else NOT_EXECUTABLE)


def _attend(pid: int) -> int:
    """Wait for a child, passing signals on that a process sent; the terminal's it gets itself.

    The signals are blocked: they come one at a time, none is lost.
    """
    while True:
        came = signal.sigwaitinfo({*_PASSED, signal.SIGCHLD})
        if came.si_signo == signal.SIGCHLD:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code
        elif came.si_code <= 0:  # SI_USER, SI_QUEUE, SI_TKILL; SI_KERNEL (128) is from the terminal
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, came.si_signo)


def _end_with_parent() -> None:
    """SIGTERM when the parent dies, whatever it dies of."""
    with contextlib.suppress(OSError):
        _call("prctl", _PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGTERM), 0, 0, 0)


def _map_to_root(uid: int, gid: int) -> None:
    """Be root of the new user namespace: this user, and nobody else."""
    Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
    Path("/proc/self/uid_map").write_text(f"0 {uid} 1", encoding="ascii")
    Path("/proc/self/gid_map").write_text(f"0 {gid} 1", encoding="ascii")


def _own() -> str:
    """The name of this process's mount namespace."""
    return os.readlink("/proc/self/ns/mnt")  # noqa: PTH115  a text, not a path


def _mountinfo() -> list[str]:
    return Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines()


def _call(name: str, *arguments: object) -> None:
    """A libc function that Python 3.11 does not have. OSError with its errno."""
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
